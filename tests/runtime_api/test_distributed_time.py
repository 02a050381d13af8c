"""What collectives cost: as much as by direct launch, beside other work of the devices, from the calls on."""

from __future__ import annotations

import numpy as np
import pytest

from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import session
from tests.runtime_api.machines import small
from tests.runtime_api.ranks import on_ranks

ROWS = DPPolicy(cube="row_wise", pe="row_wise", num_cubes=2)


def heavy(x, n, *, tl):
    tile = tl.load(x, shape=(1024,))
    for _ in range(n):
        tile = tl.exp(tile)
    tl.store(x, tile)


def operand(torch, rank, n=512):
    values = np.random.default_rng(rank).integers(-8, 8, (n, 8)).astype(np.float16)
    return torch.tensor(values, device=rank, dp=ROWS)


def windows(torch, name):
    """When the launches of a collective began at each SIP, and how long each took, in ps."""
    found = [x for x in torch.engine.launches if x.name.startswith(name)]
    first = min(x.start_ps for x in found)
    return sorted((x.sip, x.start_ps - first, x.end_ps - x.start_ps) for x in found)


@pytest.mark.parametrize("algorithm", ["ring_allreduce_tcm", "ring_allreduce_hbm", "tree_allreduce"])
def test_by_ranks_or_by_direct_launch_values_and_times_are_the_same(algorithm):
    with session(small(4), data=True) as torch:
        tensors = [operand(torch, rank) for rank in range(4)]
        torch.collective(tensors, algorithm=algorithm)
        direct = [t.numpy() for t in tensors]
    direct_windows = windows(torch, "all_reduce")

    with session(small(4), data=True) as torch:

        def program(torch, rank):
            x = operand(torch, rank)
            torch.distributed.all_reduce(x)
            return x.numpy()

        by_ranks = on_ranks(program, 4, torch=torch, pg_options={"all_reduce": algorithm})
    assert np.array_equal(by_ranks, direct)
    assert windows(torch, "all_reduce") == direct_windows


@pytest.mark.slow
def test_an_asynchronous_collective_runs_beside_other_work():
    def took(asynchronous):
        with session(small(), data=True) as torch:

            def program(torch, rank):
                x, y = operand(torch, rank, 2048), torch.zeros(1024, device="ahbm")
                torch.distributed.barrier()
                torch.ahbm.synchronize()
                before = torch.engine.now_ns
                work = torch.distributed.all_reduce(x, async_op=asynchronous)
                torch.launch("heavy", heavy, y, 100)
                if work is not None:
                    assert not work.is_completed()
                    assert work.wait() is True
                    assert work.is_completed()
                    assert work.exception() is None
                torch.ahbm.synchronize()
                return torch.engine.now_ns - before, x.numpy()

            return on_ranks(program, torch=torch)

    (one_after_other, x), (side_by_side, y) = took(False)[0], took(True)[0]
    assert np.array_equal(x, y)
    assert side_by_side < 0.8 * one_after_other


def test_a_collective_begins_after_what_its_device_was_asked_before():
    def program(torch, rank):
        x = torch.zeros(1024, device="ahbm")
        torch.launch("heavy", heavy, x, 20 if rank else 0)  # exp of 0, 20 times, only on rank 1
        torch.distributed.all_reduce(x, op="max")
        return x.numpy()[0]

    with session(small(), data=True) as torch:
        got = on_ranks(program, torch=torch)
    assert got[0] == got[1] > 1
    ends = {x.sip: x.end_ps for x in torch.engine.launches if x.name == "heavy"}
    sent = {x.sip: x.sent_ps for x in torch.engine.launches if x.name.startswith("all_reduce")}
    assert sent[0] < ends[1] == sent[1]  # the early device waits in its kernel, not on the host


def test_collectives_of_a_group_run_in_order():
    def program(torch, rank):
        x = torch.full((64,), float(rank + 1), device="ahbm")
        works = [torch.distributed.all_reduce(x, async_op=True) for _ in range(3)]
        works[-1].wait()
        assert all(work.is_completed() for work in works)
        return x.tolist()[0]

    assert on_ranks(program) == [12.0, 12.0]  # 3, 6, 12


def test_a_synchronize_waits_for_collectives_too():
    def program(torch, rank):
        work = torch.distributed.all_reduce(torch.ones(8, device="ahbm"), async_op=True)
        torch.ahbm.synchronize()
        return work.is_completed()

    assert on_ranks(program) == [True, True]


def test_queues_are_installed_once_for_a_group_and_again_for_none():
    with session(small(), data=False) as torch:

        def program(torch, rank):
            x = torch.zeros(64, device="ahbm")
            torch.ahbm.synchronize()
            times = []
            for _ in range(3):
                torch.distributed.barrier()
                before = torch.engine.now_ns
                torch.distributed.all_reduce(x)
                times.append(torch.engine.now_ns - before)
            return times

        (first, second, third), _ = on_ranks(program, torch=torch)
        assert first > second + 100
        assert second == pytest.approx(third, abs=5)
        again, _ = on_ranks(program, torch=torch)
        assert again == pytest.approx([third] * 3, abs=5)


def test_no_rank_leaves_a_barrier_before_the_last_has_come():
    def program(torch, rank):
        if rank == 1:
            torch.launch("heavy", heavy, torch.zeros(1024, device="ahbm"), 50)
            torch.ahbm.synchronize()
        came = torch.engine.now_ns
        torch.distributed.barrier()
        return came, torch.engine.now_ns

    got = on_ranks(program, 3)
    assert max(came for came, _ in got) < min(left for _, left in got)


def test_starting_a_group_takes_no_time(torch):
    def program(torch, rank):
        torch.distributed.new_group([0])
        return torch.engine.now_ns

    assert on_ranks(program, torch=torch) == [0.0, 0.0]
