"""`Work.block_current_stream`: the device waits for a message, and the program continues."""

from __future__ import annotations

import pytest

from kernbench.errors import RaceError
from kernbench.runtime_api._multiprocessing import ProcessRaisedException
from kernbench.runtime_api.context import session
from kernbench.topology.builder import resolve_topology
from tests.runtime_api.machines import small
from tests.runtime_api.ranks import on_ranks

N = 1024


def heavy(p, *, tl):
    for _ in range(5):
        tl.store(p, tl.load(p, shape=(N,)) + 1.0)


def add_one(x, y, *, tl):
    tl.store(y, tl.load(x, shape=(N,)) + 1.0)


def receive_and_add(how, machine):
    """Return how long rank 1's program waited [ps], ends of both sides of the message, and the launch after it."""
    waited = []

    def program(torch, rank):
        x, y = (torch.full((N,), value, device="ahbm") for value in (float(rank), 0.0))
        torch.distributed.barrier()
        torch.ahbm.synchronize()
        if rank == 0:
            torch.launch("heavy", heavy, x)
            return torch.distributed.isend(x, 1).wait()
        work = torch.distributed.irecv(x, 0)
        before = torch.engine.now_ns
        getattr(work, how)()
        waited.append(torch.engine.now_ns - before)
        assert work.is_completed() == (how == "wait")
        torch.launch("add", add_one, x, y)
        return y.tolist()[0]

    with session(machine, data=True) as torch:
        assert on_ranks(program, torch=torch)[1] == 6.0  # 0, five times + 1, + 1
    (message,) = (x for x in torch.result.launches if x.sip == 1 and x.name.startswith("message"))
    (add,) = (x for x in torch.result.launches if x.name == "add")
    return waited[0], message.end_ps, add.start_ps


def test_the_stream_waits_and_the_program_does_not():
    waited, arrived, started = receive_and_add("block_current_stream", small(2))
    assert waited == 0.0
    assert started == arrived
    waited, arrived, started = receive_and_add("wait", small(2))
    assert waited > 0.0
    assert started == arrived


def test_a_launch_is_prepared_while_its_stream_waits():
    machine = resolve_topology(small(2), {"system.host.launch_ns": 1000, "system.host.doorbell_ns": 0})
    _, arrived, started = receive_and_add("wait", machine)
    assert started - arrived == 1_000_000
    _, arrived, started = receive_and_add("block_current_stream", machine)
    assert started == arrived


@pytest.mark.parametrize("blocks", [True, False])
def test_what_passes_a_message_on_follows_its_arrival(blocks):
    def program(torch, rank):
        dist, x = torch.distributed, torch.full((N,), float(rank), device="ahbm")
        if rank == 0:
            dist.isend(x, 1).wait()
        elif rank == 1:
            work = dist.irecv(x, 0)
            if blocks:
                work.block_current_stream()
            sent = dist.isend(x, 2)  # on another stream than the receive
            for each in (work, sent):
                each.wait()
        else:
            dist.recv(x, 1)
        return x.tolist()[0]

    if blocks:
        assert on_ranks(program, 3) == [0.0, 0.0, 0.0]
        return
    with pytest.raises(ProcessRaisedException) as caught:
        on_ranks(program, 3)
    assert isinstance(caught.value.__cause__, RaceError)


def test_a_deadlock_names_what_the_stream_waits_for():
    def program(torch, rank):
        if rank == 1:
            torch.distributed.irecv(torch.zeros(N, device="ahbm"), 0, tag=7).block_current_stream()
            torch.ahbm.synchronize()

    with pytest.raises(
        ProcessRaisedException,
        match="in a synchronize of ahbm:1, whose stream waits for recv, the message from rank 0 to rank 1, tag 7",
    ):
        on_ranks(program)


def test_a_receive_from_any_rank_must_have_its_source():
    def program(torch, rank):
        dist, x, y = torch.distributed, torch.zeros(N, device="ahbm"), torch.zeros(N, device="ahbm")
        if rank == 1:
            dist.send(x, 0, tag=1)
            return dist.send(y, 0, tag=2)
        early = dist.irecv(x, tag=1)
        with pytest.raises(RuntimeError, match="a receive without a source"):
            early.block_current_stream()
        early.wait()
        dist.irecv(y, tag=2).block_current_stream()  # rank 1 has sent
        return y.tolist()[0]

    assert on_ranks(program) == [0.0, None]
