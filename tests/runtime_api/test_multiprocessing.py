"""Ranks are greenlets on one clock: each gives way only where it waits, and one that fails ends all."""

from __future__ import annotations

import sys

import pytest

from kernbench.errors import DeadlockError, KernelError
from kernbench.runtime_api._multiprocessing import ProcessExitedException, ProcessRaisedException
from kernbench.runtime_api.context import session
from tests.runtime_api.machines import small


def add_one(x, n, *, tl):
    tl.store(x, tl.load(x, shape=(n,)) + 1)


def test_each_rank_has_its_number_its_arguments_and_its_device(torch):
    seen = []

    def program(rank, first, second):
        seen.append((rank, first, second, torch.ahbm.current_device(), torch.zeros(4, device="ahbm").device.index))

    assert torch.multiprocessing.spawn(program, ("a", "b"), nprocs=2) is None
    assert seen == [(0, "a", "b", 0, 0), (1, "a", "b", 1, 1)]
    assert torch.ahbm.current_device() == 0


def test_a_rank_gives_way_where_it_waits_and_nowhere_else(torch):
    trace = []

    def program(rank):
        x = torch.zeros(64, device="ahbm")
        trace.append(("asked", rank))
        torch.launch("add", add_one, x, 64)
        trace.append(("launched", rank))
        assert x.tolist() == [1] * 64
        trace.append(("read", rank))

    torch.multiprocessing.spawn(program, nprocs=2)
    assert trace == [("asked", 0), ("launched", 0), ("asked", 1), ("launched", 1), ("read", 0), ("read", 1)]


def test_ranks_wait_at_the_same_time():
    def took(n):
        with session(small()) as torch:

            def program(rank):
                for _ in range(3):
                    torch.zeros(64, device="ahbm").fill_(rank).numpy()

            torch.multiprocessing.spawn(program, nprocs=n)
            return torch.engine.now_ns

    assert took(2) < 1.1 * took(1)


@pytest.mark.parametrize("how", ["synchronize", "event", "item"])
def test_every_wait_lets_the_others_go_on(torch, how):
    trace = []

    def program(rank):
        x = torch.zeros(1, device="ahbm")
        event = torch.ahbm.Event()
        event.record()
        trace.append(rank)
        {"synchronize": torch.ahbm.synchronize, "event": event.synchronize, "item": x.item}[how]()
        trace.append(rank)

    torch.multiprocessing.spawn(program, nprocs=2)
    assert trace == [0, 1, 0, 1]


def test_ranks_that_are_not_joined_run_while_the_program_waits(torch):
    seen = []

    def program(rank):
        torch.ahbm.synchronize()
        seen.append(rank)

    context = torch.multiprocessing.spawn(program, nprocs=2, join=False)
    assert seen == []
    x = torch.zeros(4, device="ahbm")
    x.numpy()
    x.numpy()
    assert sorted(seen) == [0, 1]
    assert context.join()


def test_the_session_joins_what_nobody_has_joined():
    seen = []
    with session(small()) as torch:
        torch.multiprocessing.spawn(seen.append, nprocs=2, join=False)
    assert seen == [0, 1]
    with pytest.raises(ProcessRaisedException), session(small()) as torch:
        torch.multiprocessing.spawn(lambda rank: 1 // rank, nprocs=2, join=False)


def test_the_first_failure_ends_the_others_and_is_told(torch):
    ended = []

    def program(rank):
        x = torch.zeros(4, device="ahbm")
        try:
            if rank == 1:
                raise ValueError("no such weight")
            x.numpy()
            ended.append("went on")
        finally:
            ended.append(rank)

    with pytest.raises(ProcessRaisedException) as caught:
        torch.multiprocessing.spawn(program, nprocs=2)
    error = caught.value
    assert (error.error_index, error.error_pid) == (1, error.pid)
    assert str(error).startswith("\n\n-- Process 1 terminated with the following error:\nTraceback (most recent")
    assert 'raise ValueError("no such weight")\nValueError: no such weight\n' in str(error)
    assert error.__cause__ is error.errors[1]
    assert list(error.errors) == [1]
    assert ended == [1, 0]


def test_after_a_failure_the_session_goes_on(torch):
    with pytest.raises(ProcessRaisedException):
        torch.multiprocessing.spawn(lambda rank: torch.zeros(4, device="ahbm").numpy()[rank - 9], nprocs=2)
    values = []
    torch.multiprocessing.spawn(lambda rank: values.append(torch.ones(4, device="ahbm").tolist()), nprocs=2)
    assert values == [[1] * 4] * 2


@pytest.mark.parametrize("where", ["rank", "cleanup"])
def test_an_interrupt_ends_the_ranks_and_is_itself(torch, where):
    def program(rank):
        try:
            torch.zeros(4, device="ahbm").numpy()
            if where == "rank" and rank == 1:
                raise KeyboardInterrupt
            torch.ahbm.synchronize()
        finally:
            if where == "cleanup":
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        torch.multiprocessing.spawn(program, nprocs=2)
    assert torch.engine.waiter is None
    torch.multiprocessing.spawn(lambda rank: torch.zeros(4, device="ahbm").numpy(), nprocs=2)


def test_an_interrupt_while_the_clock_runs_is_itself(torch):
    def program(rank, interrupt):
        x = torch.zeros(4, device="ahbm")
        if interrupt and rank == 0:
            torch.engine.env.call_at(torch.engine.env.now + 1000, interrupted)
        x.numpy()
        return x

    def interrupted(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        torch.multiprocessing.spawn(program, (True,), nprocs=2)
    torch.multiprocessing.spawn(program, (False,), nprocs=2)
    assert not torch.result.complete


def test_what_a_rank_asks_of_the_machine_while_it_is_ended_does_not_hang(torch):
    def program(rank):
        try:
            if rank == 1:
                raise ValueError
            torch.zeros(4, device="ahbm").numpy()
        finally:
            torch.zeros(4, device="ahbm").numpy()

    with pytest.raises(ProcessRaisedException):
        torch.multiprocessing.spawn(program, nprocs=2)


def test_a_kernel_that_fails_is_an_error_of_every_rank(torch):
    def bad(x, *, tl):
        tl.load(x + 10**6, shape=(4,))

    def program(rank):
        x = torch.zeros(4, device="ahbm")
        if rank == 1:
            torch.launch("bad", bad, x)
        x.numpy()

    with pytest.raises(ProcessRaisedException) as caught:
        torch.multiprocessing.spawn(program, nprocs=2)
    assert list(caught.value.errors) == [1, 0]
    assert caught.value.error_index == 1  # whose SIP it was
    assert all(isinstance(error, KernelError) for error in caught.value.errors.values())
    assert "sip1.cube0.pe0" in str(caught.value)


def test_a_rank_that_exits(torch):
    torch.multiprocessing.spawn(lambda rank: sys.exit(0), nprocs=2)
    with pytest.raises(ProcessExitedException, match="process 0 terminated with exit code 3") as caught:
        torch.multiprocessing.spawn(lambda rank: sys.exit(3), nprocs=2)
    assert caught.value.exit_code == 3


def test_when_none_can_go_on_the_error_names_every_rank_and_its_wait(torch):
    from kernbench.runtime_api._devices import Stream

    def program(rank):
        torch.ahbm.synchronize()
        never = torch.engine.env.event()
        Stream(torch._host, torch.device("ahbm", rank)).wait(never, f"thing {rank}")

    with pytest.raises(ProcessRaisedException) as caught:
        torch.multiprocessing.spawn(program, nprocs=2)
    now = f"{torch.engine.now_ns:,.2f} ns"
    error = caught.value.errors[0]
    assert isinstance(error, DeadlockError)
    assert str(error) == (
        f"deadlock at {now}; waiting:\n  rank 0, in thing 0, since {now}\n  rank 1, in thing 1, since {now}"
    )
    assert list(caught.value.errors) == [0, 1]
    assert torch.ones(4, device="ahbm").tolist() == [1] * 4  # the machine itself is well


def test_bad_spawns_are_refused(torch):
    with pytest.raises(ValueError, match=r"nprocs = 3.*the machine has 2"):
        torch.multiprocessing.spawn(print, nprocs=3)
    with pytest.raises(ProcessRaisedException, match="ranks cannot spawn ranks"):
        torch.multiprocessing.spawn(lambda rank: torch.multiprocessing.spawn(print), nprocs=2)
    context = torch.multiprocessing.spawn(lambda rank: None, nprocs=2, join=False)
    with pytest.raises(RuntimeError, match="still run"):
        torch.multiprocessing.spawn(print)
    context.join()
