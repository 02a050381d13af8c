"""Graphs: launches that the host sends in one message, and that the device starts one after the other."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import kernbench as kb
from kernbench.runtime_api.context import session
from tests.runtime_api.ranks import on_ranks


def nothing(_x, *, tl):
    """Do nothing: the program ends when it starts."""


def add_one(x, n, *, tl):
    tl.store(x, tl.load(x, shape=(n,)) + 1)


def double(x, n, *, tl):
    tl.store(x, tl.load(x, shape=(n,)) * 2)


def test_times_by_hand():
    # As in tests/sim_engine/test_launch.py::test_one_pe_by_hand; a launch of one argument is 72 B.
    to_host = 2 * 63 + 250 + 125 + 5000 + 105_000

    def ends(count):
        with session("preset:default") as torch:
            x = torch.empty(4, device="ahbm")
            torch.ahbm.synchronize()
            sent = torch.engine.env.now
            with torch.ahbm.graph() as graph:
                for _ in range(count):
                    torch.launch("nothing", nothing, x)
            graph.replay()
        return [(launch.start_ps - sent, launch.end_ps - sent) for launch in torch.result.launches]

    alone, (first, second) = ends(1)[0][1], ends(2)
    # The graph's message is 72 B longer: on links of 128 GB/s, of 64, and twice of 256.
    longer = 72_000 / 128 + 72_000 / 64 + 2 * 72_000 / 256
    assert first == (0, pytest.approx(alone - to_host + longer, abs=5))
    # The second does not take the way from the host to io_cpu, but its 10 ns.
    at_io_cpu = longer + 5000 + 105_000
    assert second == (first[1], pytest.approx(first[1] + alone - at_io_cpu, abs=5))


def test_values_and_order_are_those_of_launches(torch):
    x = torch.zeros(64, dtype=torch.int32, device="ahbm")
    with torch.ahbm.graph() as graph:
        for _ in range(3):
            torch.launch("add", add_one, x, 64)
            torch.launch("double", double, x, 64)
    assert len(graph) == 6
    assert x.peek().tolist() == [0] * 64
    graph.replay()
    graph.replay()
    assert np.array_equal(x.numpy(), np.full(64, 14 * 8 + 14))
    launches = torch.result.launches
    assert [x.name for x in launches] == ["add", "double"] * 6
    assert all(a.end_ps <= b.start_ps for a, b in pairwise(launches))


def test_the_critical_path_goes_through_a_graph(torch):
    x = torch.zeros(64, dtype=torch.int32, device="ahbm")
    with torch.ahbm.graph() as graph:
        torch.launch("add", add_one, x, 64)
        torch.launch("double", double, x, 64)
    graph.replay()
    torch.ahbm.synchronize()
    whole, second = torch.result.why(), torch.result.why("double")
    assert "unknown" not in str(whole)
    assert "unknown" not in str(second)


def test_a_graph_takes_launches_only(torch):
    x = torch.zeros(64, dtype=torch.int32, device="ahbm")
    for forbidden in (x.numpy, lambda: x.copy_(torch.ones(64)), lambda: torch.ahbm.graph().__enter__()):
        with torch.ahbm.graph(), pytest.raises(RuntimeError, match="ahbm:0 is capturing a graph, which takes launches"):
            forbidden()


def test_poke_and_peek_take_no_time(torch):
    x = torch.zeros(4, 8, device="ahbm")
    x.t().poke(np.arange(32).reshape(8, 4))
    assert torch.engine.now_ns == 0
    assert np.array_equal(x.peek(), np.arange(32).reshape(8, 4).T)
    torch.launch("double", double, x, 32)
    assert np.array_equal(x.numpy(), 2 * np.arange(32).reshape(8, 4).T)
    assert np.array_equal(x.peek(), x.numpy())


# -- collectives


def layers(graph, count=2, async_op=False, **ns):
    """Add one, sum over two ranks and double, `count` times: each rank's values, the time [ns], and what happened."""
    costs = {f"system.host.{name}_ns": value for name, value in ns.items()}

    def program(torch, rank):
        dist = torch.distributed
        x = torch.zeros(64, dtype=torch.int32, device="ahbm")

        def step():
            torch.launch("add", add_one, x, 64)
            dist.all_reduce(x, async_op=async_op)
            torch.launch("double", double, x, 64)

        dist.all_reduce(x)  # installs the queues
        torch.ahbm.synchronize()
        start = torch.engine.now_ns
        if graph:
            with torch.ahbm.graph() as captured:
                step()
            assert len(captured) == 3
            assert torch.engine.now_ns == start
            for _ in range(count):
                captured.replay()
        else:
            for _ in range(count):
                step()
        torch.ahbm.synchronize()
        took = torch.engine.now_ns - start
        return x.numpy().tolist(), took

    with session(kb.load("preset:small", overrides={"system.sips.count": 2, **costs}), data=True) as torch:
        found = on_ranks(program, torch=torch)
    return [values for values, _ in found], found[0][1], torch.result


@pytest.mark.parametrize("async_op", [False, True])
def test_a_graph_captures_collectives(async_op):
    eager, eager_ns, _ = layers(graph=False)
    values, took_ns, result = layers(graph=True, async_op=async_op)
    assert values == eager == [[20] * 64] * 2  # 2 * (1 + 1) = 4, then 2 * (5 + 5)
    assert took_ns < eager_ns
    own = [launch for launch in result.launches if launch.sip == 1][-6:]
    assert [launch.name.split()[0] for launch in own] == ["add", "all_reduce", "double"] * 2
    assert all(a.done_ps <= b.start_ps for a, b in pairwise(own))
    assert "unknown" not in str(result.why())


def test_a_graph_with_collectives_pays_the_start_of_work_once():
    costs = {"launch": 4000, "collective": 30_000, "doorbell": 500, "descriptor": 200, "collective_start": 1000}
    graph, one_by_one = (layers(graph, 1, **costs)[1] - layers(graph, 1)[1] for graph in (True, False))
    assert graph == pytest.approx(4000 + 500 + 200)
    # The host prepares a launch, a collective and a launch.
    assert one_by_one > 3 * 4000 + 30_000


def test_a_graph_of_a_collective_belongs_to_its_rank():
    kept = []

    def program(torch, rank):
        dist = torch.distributed
        x = torch.ones(64, device="ahbm")
        with torch.ahbm.graph() as captured:
            dist.all_reduce(x)
            with pytest.raises(RuntimeError, match="takes launches and collectives"):
                dist.isend(x, 1 - rank)
        kept.append(captured)
        dist.barrier()
        with pytest.raises(RuntimeError, match="replayed by another program than rank"):
            next(other for other in kept if other is not captured).replay()
        dist.barrier()

    on_ranks(program)
    with pytest.raises(RuntimeError, match="after the group's end"):
        kept[0].replay()
