"""Python objects from rank to rank, groups of neighbours, and the order in which ranks run."""

from __future__ import annotations

import pytest

from kernbench.errors import CollectiveMismatchError, DeadlockError
from kernbench.runtime_api._multiprocessing import ProcessRaisedException
from tests.runtime_api.ranks import on_ranks


def test_all_gather_object():
    def program(torch, rank):
        own = {"rank": rank, "list": [rank]}
        found = [None] * 3
        torch.distributed.all_gather_object(found, own)
        own["list"].append("changed later")
        return found

    expected = [{"rank": rank, "list": [rank]} for rank in range(3)]
    results = on_ranks(program, 3)
    assert results == [expected] * 3
    assert results[0][1] is not results[2][1]


def test_gather_object():
    def program(torch, rank):
        found = [None] * 3 if rank == 2 else None
        torch.distributed.gather_object(f"from {rank}", found, dst=2)
        return found

    assert on_ranks(program, 3) == [None, None, ["from 0", "from 1", "from 2"]]


def test_broadcast_object_list():
    def program(torch, rank):
        objects = ["a", {"b": 1}] if rank == 1 else [None, None]
        torch.distributed.broadcast_object_list(objects, src=1)
        return objects

    assert on_ranks(program, 3) == [["a", {"b": 1}]] * 3


def test_scatter_object_list():
    def program(torch, rank):
        own = [None]
        torch.distributed.scatter_object_list(own, ["x", "y", "z"] if rank == 0 else None)
        return own

    assert on_ranks(program, 3) == [["x"], ["y"], ["z"]]


def test_objects_stay_in_their_group_and_take_no_time():
    def program(torch, rank):
        group = torch.distributed.new_group([0, 2])
        if rank == 1:
            return None
        found = [None, None]
        torch.distributed.all_gather_object(found, rank, group=group)
        return found, torch.engine.now_ns

    assert on_ranks(program, 3) == [([0, 2], 0.0), None, ([0, 2], 0.0)]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda dist, rank: dist.all_gather_object([None], rank), "has 1 entries; expected 2"),
        (lambda dist, rank: dist.gather_object(rank, [None] * 2, dst=0), "by no other; this is rank 1"),
        (lambda dist, rank: dist.scatter_object_list([], [1, 2]), "is empty"),
        (lambda dist, rank: dist.scatter_object_list([None], [1]), "expected 2 objects on rank 0"),
        (lambda dist, rank: dist.broadcast_object_list([0] * (1 + rank)), "has 2 entries; expected 1"),
    ],
)
def test_lists_are_checked(call, text):
    with pytest.raises(ProcessRaisedException, match=text):
        on_ranks(lambda torch, rank: call(torch.distributed, rank))


def test_ranks_that_disagree_about_the_root():
    def program(torch, rank):
        torch.distributed.broadcast_object_list([rank], src=rank)

    with pytest.raises(ProcessRaisedException) as caught:
        on_ranks(program)
    assert isinstance(caught.value.__cause__, CollectiveMismatchError)


def test_monitored_barrier():
    order = []

    def program(torch, rank):
        if rank:
            torch.zeros(1, device="ahbm").numpy()
        order.append(rank)
        torch.distributed.monitored_barrier()
        order.append("after")

    on_ranks(program, 3)
    assert order == [0, 1, 2, "after", "after", "after"]


def test_monitored_barrier_names_who_does_not_come():
    def program(torch, rank):
        if rank != 1:
            torch.distributed.monitored_barrier(timeout=1)

    with pytest.raises(ProcessRaisedException, match="rank 1 has ended") as caught:
        on_ranks(program, 3)
    assert isinstance(caught.value.errors[0], DeadlockError)


def test_new_subgroups():
    def program(torch, rank):
        dist = torch.distributed
        own, every = dist.new_subgroups(2)
        x = torch.full((4,), rank + 1.0, device="ahbm")
        dist.all_reduce(x, group=own)
        with pytest.raises(ValueError, match="group_size = 3 must divide the 4 ranks"):
            dist.new_subgroups(3)
        members = [group for group in every if group != dist.GroupMember.NON_GROUP_MEMBER]
        return x.tolist()[0], len(every), members == [own]

    assert on_ranks(program, 4) == [(3.0, 2, True)] * 2 + [(7.0, 2, True)] * 2


@pytest.mark.parametrize("async_ops", [False, True])
def test_the_coalescing_manager_waits_once(async_ops):
    def program(torch, rank):
        dist = torch.distributed
        tensors = [torch.full((64,), rank + i + 1.0, device="ahbm") for i in range(3)]
        torch.ahbm.synchronize()
        before = torch.engine.now_ns
        with dist._coalescing_manager(async_ops=async_ops) as coalesced:
            for tensor in tensors:
                assert dist.all_reduce(tensor) is None
            assert torch.engine.now_ns == before
        if async_ops:
            assert torch.engine.now_ns == before
            coalesced.wait()
        return [tensor.tolist()[0] for tensor in tensors]

    assert on_ranks(program) == [[3.0, 5.0, 7.0]] * 2


def test_cooperative_yield_lets_the_others_run_at_the_same_time():
    order = []

    def program(torch, rank):
        before = torch.engine.now_ns
        for step in range(3):
            order.append((step, rank))
            torch.distributed.cooperative_yield()
        assert torch.engine.now_ns == before

    on_ranks(program, 3)
    assert order == [(step, rank) for step in range(3) for rank in range(3)]


def test_cooperative_yield_outside_of_ranks_does_nothing(torch):
    torch.distributed.cooperative_yield()
