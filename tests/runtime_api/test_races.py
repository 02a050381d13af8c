"""Accesses that nothing orders are errors with both lines; what is ordered is none, whatever the times."""

from __future__ import annotations

import re

import numpy as np
import pytest

import kernbench as kb
from kernbench.ccl.algorithm import algorithm
from kernbench.errors import RaceError
from kernbench.runtime_api._multiprocessing import ProcessRaisedException
from kernbench.runtime_api.context import session
from tests.runtime_api.machines import small

TWO = kb.DPPolicy(pe="row_wise", num_cubes=1, num_pes=2)
COPIES = kb.DPPolicy(pe="replicate", num_cubes=1, num_pes=2)
N = 64


def line_of(function, offset=1):
    return rf"{re.escape(__file__)}:{function.__code__.co_firstlineno + offset}"


def store_200(x, *, tl):
    tl.store(x, tl.full((N,), 200.0, tl.float32))


def load_all(x, *, tl):
    tl.wait(tl.load(x, shape=(N,)))


def load_pieces(x, *, tl):
    tl.wait(tl.load(x + tl.arange(0, N // 2) * 2))


# -- against a collective that is not complete


def launch_write(torch, x):
    torch.launch("write", store_200, x)


def launch_read(torch, x):
    torch.launch("read", load_all, x)


def launch_read_pieces(torch, x):
    torch.launch("read", load_pieces, x)


def host_read(torch, x):
    x.numpy()


def host_write(torch, x):
    x.copy_(torch.zeros(N))


def fill(torch, x):
    x.fill_(7)


def another_collective(torch, x):
    torch.distributed.all_reduce(x, group=torch.distributed.new_group(), async_op=True)


USES = {
    launch_write: line_of(store_200),
    launch_read: line_of(load_all),
    launch_read_pieces: line_of(load_pieces),
    host_read: line_of(host_read),
    host_write: line_of(host_write),
    fill: line_of(fill),
    another_collective: line_of(another_collective),
}


def reduced(use, order, races=True, late=False):
    """Return each rank's tensor: used while an all-reduce of it is under way, or after it."""
    seen = {}

    def program(rank, torch):
        dist = torch.distributed
        dist.init_process_group()
        x = torch.full((N,), 100.0 * (rank + 1), device="ahbm", name="x")
        if late and rank:
            torch.zeros(1 << 16, device="ahbm").fill_(1).cpu()
        work = dist.all_reduce(x, async_op=True)
        if order == "wait":
            work.wait()
        if order == "synchronize":
            torch.ahbm.synchronize()
        if order == "another's wait":
            dist.all_reduce(torch.zeros(4, device="ahbm"))
        use(torch, x)
        work.wait()
        torch.ahbm.synchronize()
        seen[rank] = x.tolist()[0]

    with session(small(2), data=True, races=races) as torch:
        torch.multiprocessing.spawn(program, args=(torch,), nprocs=2)
    return seen


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("use", USES)
def test_a_tensor_that_a_collective_still_uses(use, late):
    with pytest.raises(ProcessRaisedException) as caught:
        reduced(use, "none", late=late)
    error = next(iter(caught.value.errors.values()))
    assert isinstance(error, RaceError)
    text = str(error)
    assert re.search(r"race on \d+ B of tensor 'x'", text)
    assert re.search(USES[use], text), text
    assert re.search(r"kernel 'all_reduce by \w+' (reads|writes) them at .*/kernbench/ccl/.*\.py:\d+", text)
    assert re.search(rf"asked for at {re.escape(__file__)}:\d+", text)


@pytest.mark.parametrize("order", ["wait", "synchronize", "another's wait"])
@pytest.mark.parametrize("use", [use for use in USES if use is not another_collective])
def test_a_tensor_after_the_collective(use, order):
    expected = {launch_write: 200.0, host_write: 0.0, fill: 7.0}.get(use, 300.0)
    assert reduced(use, order) == {0: expected, 1: expected}


def test_the_switch_turns_it_off():
    values = reduced(launch_write, "none", races=False)
    assert values != {0: 300.0, 1: 300.0}


def test_without_data_there_is_nothing_to_look_for():
    with session(small(2)) as torch:
        assert torch.engine.races(0) is None


def test_collectives_of_one_group_follow_each_other():
    def program(rank, torch):
        torch.distributed.init_process_group()
        x = torch.full((N,), rank + 1.0, device="ahbm")
        works = [torch.distributed.all_reduce(x, async_op=True) for _ in range(3)]
        for work in works:
            work.wait()
        assert x.tolist() == [12.0] * N

    with session(small(2), data=True) as torch:
        torch.multiprocessing.spawn(program, args=(torch,), nprocs=2)


def test_a_message_under_way():
    def program(rank, torch):
        dist = torch.distributed
        dist.init_process_group()
        x = torch.full((N,), rank + 1.0, device="ahbm", name="x")
        work = dist.irecv(x, 0) if rank else dist.isend(x, 1)
        x.fill_(9)
        work.wait()

    with session(small(2), data=True) as torch, pytest.raises(ProcessRaisedException, match=r"race on .* tensor .x."):
        torch.multiprocessing.spawn(program, args=(torch,), nprocs=2)


# -- between the programs of a launch


def run(kernel, *, dp=None, data=None, other=TWO):
    """Launch `kernel(x, _)` on the two PEs that hold the second tensor; return what x holds then."""
    with session(small(), data=True) as torch:
        where = {"dp": dp} if dp else {"device": "ahbm"}
        x = torch.tensor(np.zeros(N, np.float32) if data is None else data, name="x", **where)
        torch.launch("both", kernel, x, torch.zeros(2, dp=other))
        return x.numpy()


def test_two_programs_write_different_values():
    def kernel(x, _, *, tl):
        tl.store(x + 8, tl.full((4,), tl.program_id(0), tl.float32))

    with pytest.raises(RaceError) as caught:
        run(kernel)
    text = str(caught.value)
    assert "race on 16 B of tensor 'x'" in text
    assert len(re.findall(line_of(kernel), text)) >= 2
    assert "sip0.cube0.pe0" in text
    assert "sip0.cube0.pe1" in text


def test_two_programs_write_the_same_values():
    def kernel(x, _, *, tl):
        tl.store(x, tl.full((4,), 5.0, tl.float32))

    assert run(kernel).tolist() == [5.0] * 4 + [0.0] * (N - 4)


@pytest.mark.parametrize("first", [0, 1])
def test_one_program_reads_what_another_writes(first):
    def kernel(x, _, *, tl):
        if tl.program_id(0) != first:
            for _ in range(20):
                tl.wait(tl.load(x + 32, shape=(4,)))
        if tl.program_id(0):
            tl.store(x, 1.0)
        else:
            tl.wait(tl.load(x, shape=(4,)))

    with pytest.raises(RaceError, match=r"(reads|writes) them at .* (reads|writes) them at "):
        run(kernel)


def test_one_large_access_and_one_small():
    big = np.zeros(1 << 16, np.float32)

    def kernel(x, _, *, tl):
        if tl.program_id(0):
            tl.store(x + 40_000, 1.0)
        else:
            tl.wait(tl.load(x, shape=(1 << 16,)))

    with pytest.raises(RaceError, match=r"race on 4 B of tensor 'x'"):
        run(kernel, data=big)


def test_a_composite_writes_what_another_program_reads():
    def kernel(x, _, *, tl):
        if tl.program_id(0):
            a = tl.ref(x, (4, 4))
            tl.wait(tl.composite("math", a, out_ptr=x + 16, epilogue="relu"))
        else:
            tl.wait(tl.load(x + 20, shape=(4,)))

    with pytest.raises(RaceError, match=line_of(kernel, 3)):
        run(kernel)


def test_neighbouring_elements_do_not_race():
    def kernel(x, _, *, tl):
        p = tl.program_id(0)
        own = x + tl.arange(0, N // 2) * 2 + p
        tl.store(own, tl.load(own) + p + 1.0)

    assert run(kernel).tolist() == [1.0, 2.0] * (N // 2)


def test_launches_follow_each_other():
    with session(small(), data=True) as torch:
        x = torch.zeros(N, dp=TWO, name="x")
        for value in (1.0, 2.0):
            torch.launch(
                "write", lambda x, v, *, tl: tl.store(x + 32 * tl.program_id(0), tl.full((32,), v, "f32")), x, value
            )
            torch.launch("read", lambda x, *, tl: tl.wait(tl.load(x, shape=(N,))), x)
        assert x.tolist() == [2.0] * N


def no_arguments(*, n_elem, world_size):
    return ()


def ordered(t_ptr, *, tl):
    """Participant 0 writes to its memory and tells 1, which has nothing to do before."""
    if tl.program_id(2) == 0:
        tl.store(t_ptr, 1.0)
        tl.wait(tl.load(t_ptr, shape=(1,)))
        tl.send("E", tl.zeros(4, tl.float32))
    else:
        tl.recv("W", shape=4, dtype="f32")


def test_messages_order_the_programs_of_a_launch(torch):
    x = torch.zeros(N, dp=TWO, name="x")

    def late(t_ptr, *, tl):
        ordered(t_ptr - (N // 2) * tl.program_id(2), tl=tl)
        if tl.program_id(2):
            tl.store(t_ptr - N // 2, 2.0)

    own = algorithm(late, no_arguments, name="late", topology="ring_1d", mapper="all_pes")
    torch.collective([x], own)
    assert x.tolist()[0] == 2.0


def test_programs_with_queues_race_while_both_are_under_way(torch):
    x = torch.zeros(N, dp=TWO, name="x")

    def early(t_ptr, *, tl):
        tl.store(t_ptr - (N // 2) * tl.program_id(2), tl.program_id(2) + 1.0)
        ordered(t_ptr + 8, tl=tl)

    own = algorithm(early, no_arguments, name="early", topology="ring_1d", mapper="all_pes")
    torch.collective([x], own)
    with pytest.raises(RaceError, match=line_of(early)):
        torch.ahbm.synchronize()


# -- copies of a replicated tensor


def test_copies_with_different_values_have_no_value_to_read():
    def kernel(x, _, *, tl):
        tl.store(x, tl.full((N,), tl.program_id(0), tl.float32))

    with pytest.raises(RaceError) as caught:
        run(kernel, dp=COPIES, other=COPIES)
    text = str(caught.value)
    assert "race on tensor 'x': its replicated copies differ in 128 of 256 B" in text
    assert len(re.findall(line_of(kernel), text)) == 2
    assert "sip0.cube0.pe0" in text
    assert "sip0.cube0.pe1" in text


def test_parts_that_each_pe_writes_to_its_own_copy_are_not_joined():
    def kernel(x, _, *, tl):
        half = N // 2
        tl.store(x + half * tl.program_id(0), tl.full((half,), 1.0, tl.float32))

    with pytest.raises(RaceError, match="no program wrote the copy that the host reads"):
        run(kernel, dp=COPIES, other=COPIES)


def test_equal_copies_are_read():
    def kernel(x, _, *, tl):
        tl.store(x, tl.load(x, shape=(N,)) + 1.0)

    assert run(kernel, dp=COPIES, other=COPIES).tolist() == [1.0] * N


def test_what_only_the_first_copy_got_is_read():
    def kernel(x, _, *, tl):
        if tl.program_id(0) == 0:
            tl.store(x, 5.0)

    assert run(kernel, dp=COPIES, other=COPIES).tolist() == [5.0] + [0.0] * (N - 1)


def test_copies_are_scratch_until_the_host_writes_or_reads_them(torch):
    x = torch.zeros(N, dp=COPIES, name="x")
    torch.launch("scratch", lambda x, *, tl: tl.store(x, tl.full((N,), tl.program_id(0), "f32")), x)
    x.copy_(torch.ones(N))
    assert x.tolist() == [1.0] * N


def test_one_of_several_launches_is_older(torch):
    x = torch.zeros(N, dp=COPIES, name="x")
    torch.launch("both", lambda x, *, tl: tl.store(x, 1.0), x)

    def first(x, *, tl):
        if tl.program_id(0) == 0:
            tl.store(x, 2.0)

    torch.launch("first", first, x)
    assert x.tolist()[0] == 2.0
    torch.launch("second", lambda x, *, tl: first(x, tl=tl) if tl.program_id(0) == 0 else tl.store(x, 3.0), x)
    with pytest.raises(RaceError, match="replicated copies differ"):
        x.numpy()
