"""Groups that begin and end many times in one session."""

from __future__ import annotations

import pytest

from kernbench.runtime_api.context import session
from tests.runtime_api.machines import small


@pytest.fixture
def two():
    with session(small(2), data=True) as torch:
        yield torch


def held(torch):
    """Return what groups can leave behind: free bytes of the memories that rings lie in, queues, streams, groups."""
    pe = torch.engine.allocators.pe(0, 0, 0)
    host = torch.distributed._host
    queues = torch.engine.pe(0, 0, 0).ipcq.sets
    groups = torch.distributed._groups.scope.made
    return pe.tcm.free_bytes, pe.hbm.free_bytes, len(queues), len(host._streams), len(groups)


@pytest.mark.parametrize("what", ["world", "group", "messages"])
def test_a_session_may_make_a_thousand_groups(two, what):
    dist, seen = two.distributed, {}

    def program(rank):
        x = two.full((4,), rank + 1.0, device="ahbm")
        for i in range(1000):
            if what == "world" or not i:
                dist.init_process_group("ahbm")
            group = None if what == "world" else dist.new_group([0, 1])
            if i % 20 == 0 and what == "messages":
                dist.broadcast(x, src=i // 20 % 2, group=group)
                dist.recv(x, 0, group) if rank else dist.send(x, 1, group)
            elif i % 20 == 0:
                dist.all_reduce(x, "max", group=group)
            dist.destroy_process_group(group)
            if rank and i in (100, 960):  # rank 0 is not over: it waits in the call of 980 at the latest
                seen[i] = held(two)

    two.multiprocessing.spawn(program, nprocs=2)
    assert seen[960] == seen[100]


@pytest.mark.filterwarnings("ignore:.*was never waited for")
def test_a_group_that_a_call_still_waits_in_is_not_over(two):
    """The next group of the same ranks does not come after it: it has queues and streams of its own."""
    dist, seen = two.distributed, {}

    def program(rank):
        dist.init_process_group("ahbm")
        late = dist.new_group()
        x, y = (two.full((4,), rank + 1.0, device="ahbm") for _ in range(2))
        if rank:
            dist.all_reduce(y, group=late, async_op=True)
        dist.destroy_process_group(late)
        dist.barrier()
        dist.all_reduce(x, group=dist.new_group())
        seen[rank] = x.numpy().tolist()

    two.multiprocessing.spawn(program, nprocs=2)
    assert seen == {0: [3] * 4, 1: [3] * 4}


def test_a_group_whose_messages_are_under_way_is_not_over(two):
    """Queues that a message of one group is still to come through are not those of the next group."""
    dist, seen = two.distributed, {}

    def program(rank):
        dist.init_process_group("ahbm")
        first = dist.new_group()
        x = two.full((1 << 16,), 1.0 + rank, device="ahbm")
        y = two.full((8,), 3.0 + rank, device="ahbm")
        work = (dist.irecv if rank else dist.isend)(x, 1 - rank, first, 1)
        dist.destroy_process_group(first)
        while len(first.left) < 2:
            two.zeros(1, device="ahbm").numpy()  # Give the other a turn.
        second = dist.new_group()
        dist.recv(y, 0, second, 2) if rank else dist.send(y, 1, second, 2)
        work.wait()
        seen[rank] = {*x.numpy().tolist(), *y.numpy().tolist()}

    two.multiprocessing.spawn(program, nprocs=2)
    assert seen == {0: {1, 3}, 1: {1, 3}}
    assert sum(c.name.startswith("install") for c in two.engine.log.commands) == 2 * 2
