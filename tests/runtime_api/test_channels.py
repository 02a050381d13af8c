"""Channels of collectives where PEs share memory, and the start of a protocol."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from kernbench.analysis.result import Result
from kernbench.ccl.algorithm import algorithm
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import session
from kernbench.topology.builder import resolve_topology
from tests.runtime_api.machines import small
from tests.runtime_api.ranks import on_ranks

IPCQ = "cube.pe.pe_ipcq."
RANKS = 3
RING = {"pg_options": {"all_reduce": "ring_allreduce_tcm", "broadcast": "tree_broadcast"}}
SPREAD = DPPolicy(cube="row_wise", pe="row_wise", num_pes=2)
WIDE = DPPolicy(cube="row_wise", pe="row_wise", num_pes=4)


def machine(**changes):
    """Return devices whose PEs share memory, with six channels."""
    die = {"cube.pe_layout.pe_per_corner": 2, "cube.hbm.controllers": 2, "cube.noc.topology": "crossbar"}
    return resolve_topology("preset:a100_sxm", {"system.sips.count": RANKS, **die, f"{IPCQ}channels": 6, **changes})


def called(torch, rank, *, name, dp=None, n=45):
    """Return what a collective leaves on a rank, and what numpy says."""
    dist = torch.distributed
    every = [np.random.default_rng(r).integers(-8, 8, n * RANKS).astype(np.float32) for r in range(RANKS)]
    whole = torch.tensor(every[rank], device="ahbm", dp=dp)
    part = torch.tensor(every[rank][:n], device="ahbm", dp=dp)
    own = slice(rank * n, (rank + 1) * n)
    match name:
        case "all_reduce":
            dist.all_reduce(whole)
            return whole.numpy(), sum(every)
        case "all_gather":
            dist.all_gather_into_tensor(whole, part)
            return whole.numpy(), np.concatenate([each[:n] for each in every])
        case "reduce_scatter":
            dist.reduce_scatter_tensor(part, whole)
            return part.numpy(), sum(every)[own]
        case "all_to_all":
            other = torch.empty(n * RANKS, dtype=torch.float32, device="ahbm", dp=dp)
            dist.all_to_all_single(other, whole)
            return other.numpy(), np.concatenate([each[own] for each in every])
    dist.broadcast(whole, 1)
    return whole.numpy(), every[1]


def pes(torch):
    """PEs of the first device that have queues."""
    config = torch.engine.machine.config
    return sum(bool(torch.engine.pe(0, 0, pe).ipcq.sets) for pe in range(config.pes_per_cube))


@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"])
@pytest.mark.parametrize(("dp", "held"), [(None, 1), (SPREAD, 2), (WIDE, 4)], ids=["one", "two", "four"])
def test_shards_are_cut_among_channels_and_values_are_as_numpy_says(name, dp, held):
    with session(machine(), data=True) as torch:
        for got, expected in on_ranks(partial(called, name=name, dp=dp), RANKS, torch=torch, **RING):
            np.testing.assert_array_equal(got, expected)
        # Of four shards, more than half of the channels hold one already.
        assert pes(torch) == (6 if held < 4 else 4)


def test_a_short_vector_has_no_empty_pieces():
    with session(machine(), data=True) as torch:
        for got, expected in on_ranks(partial(called, name="all_gather", n=2), RANKS, torch=torch, **RING):
            np.testing.assert_array_equal(got, expected)
        assert pes(torch) == 2


@pytest.mark.parametrize(
    ("mapper", "settings"), [("leader_only", {}), ("all_pes", {"contribution": "pe"}), ("by_shard", {"scratch": len})]
)
def test_only_algorithms_whose_shards_are_apart_are_cut(mapper, settings):
    def kernel(t_ptr, n_elem, world_size, *, tl): ...

    assert not algorithm(kernel, mapper=mapper, **settings).cuts
    assert algorithm(kernel).cuts
    assert not algorithm(kernel, validator="single_shard_per_rank").cuts
    assert not algorithm(kernel, collective="all_gather").cuts  # its arguments have no stride


def test_an_algorithm_of_leaders_sums_whole_vectors():
    def whole(t_ptr, n_elem, world_size, *, tl):
        x = tl.load(t_ptr, shape=(n_elem,))
        tl.send("E", x)
        for step in range(1, world_size):
            y = tl.copy(tl.recv("W", shape=(n_elem,), dtype=tl.float32))
            if step < world_size - 1:
                tl.send("E", y)
            x = x + y
        tl.store(t_ptr, x)

    own = {"pg_options": {"all_reduce": algorithm(whole, mapper="leader_only")}}
    with session(machine(), data=True) as torch:
        for got, expected in on_ranks(partial(called, name="all_reduce"), RANKS, torch=torch, **own):
            np.testing.assert_array_equal(got, expected)
        assert pes(torch) == 1


def test_where_pes_do_not_share_memory_a_shard_stays_whole():
    with session(small(RANKS).with_({f"{IPCQ}channels": 6}), data=True) as torch:
        on_ranks(partial(called, name="all_reduce"), RANKS, torch=torch, **RING)
        assert pes(torch) == 1


def took(**changes):
    def program(torch, rank):
        dist = torch.distributed
        x = torch.empty(4096, dtype=torch.float16, device="ahbm")
        for _ in range(2):  # the first call installs queues
            dist.barrier()
            torch.ahbm.synchronize()
            begun = torch.engine.now_ns
            dist.all_reduce(x)
            torch.ahbm.synchronize()
        return torch.engine.now_ns - begun

    unused = {f"{IPCQ}ll.up_to_bytes": 0, f"{IPCQ}ll128.up_to_bytes": 0}
    with session(machine(**unused | changes)) as torch:
        return max(on_ranks(program, RANKS, torch=torch, **RING))


def test_a_protocol_begins_later():
    short, simple = {f"{IPCQ}ll.up_to_bytes": 8192}, took()
    assert took(**short, **{f"{IPCQ}ll.start_ns": 700}) == pytest.approx(took(**short) + 700)
    assert took(**{f"{IPCQ}ll.up_to_bytes": 8191, f"{IPCQ}ll.start_ns": 700}) == pytest.approx(simple)
    assert took(**{f"{IPCQ}simple.start_ns": 300}) == pytest.approx(simple + 300)


def by_ranks(torch):
    def program(torch, rank):
        torch.distributed.all_reduce(torch.empty(4096, dtype=torch.float16, device="ahbm"))

    on_ranks(program, RANKS, torch=torch, **RING)


def by_the_main_program(torch):
    given = [torch.empty(4096, dtype=torch.float16, device=f"ahbm:{i}") for i in range(RANKS)]
    torch.collective(given, algorithm="ring_allreduce_tcm", name="sum, simple")


@pytest.mark.parametrize("program", [by_ranks, by_the_main_program])
def test_why_names_the_start_of_a_protocol_whatever_the_name_of_the_collective(program, tmp_path):
    with session(machine(**{f"{IPCQ}ll.up_to_bytes": 8192, f"{IPCQ}ll.start_ns": 700})) as torch:
        program(torch)
    assert {launch.protocol for launch in torch.result.launches} == {"ll"}
    again = Result.load(torch.result.save(tmp_path / "run.npz"))
    (start,) = [reason for reason in again.why() if reason.what == "start of a protocol"]
    assert (start.ns, start.fields) == (700, (f"{IPCQ}ll.start_ns",))
    assert start.advice().startswith("lower ")


def test_an_all_to_all_keeps_all_links_in_use():
    """If all ranks sent to rank 0 first, then to rank 1, the links would be in use half of the time."""
    n, longer = 8, 1 << 21  # of protocol simple

    def program(torch, rank):
        took = []
        for nbytes in (longer, longer, 2 * longer):  # the first call installs queues
            x, y = (torch.empty(nbytes // 2, dtype=torch.float16, device="ahbm") for _ in range(2))
            torch.distributed.barrier()
            torch.ahbm.synchronize()
            begun = torch.engine.now_ns
            torch.distributed.all_to_all_single(y, x)
            torch.ahbm.synchronize()
            took.append(torch.engine.now_ns - begun)
        return took

    small = {"system.sips.count": n, "cube.hbm.controllers": 10, f"{IPCQ}simple.channels": 8}
    with session(machine(**small)) as torch:
        _, once, twice = map(max, zip(*on_ranks(program, n, torch=torch), strict=True))
    least = longer * (n - 1) / n / 300  # GB/s of a link
    assert least < twice - once < 1.25 * least
