"""The usual order of a program: process groups first, then the ranks, which inherit them."""

from __future__ import annotations

import pytest

import kernbench as kb
from kernbench.errors import StateError
from kernbench.runtime_api.context import current_session, session
from kernbench.tp import parallel_state as ps
from tests.runtime_api.machines import small


@pytest.fixture
def torch():
    with session(small(4), data=True) as namespace:
        yield namespace


def test_the_world_is_the_machines_sips_and_ranks_inherit_it(torch):
    dist, seen = torch.distributed, {}
    dist.init_process_group("ahbm")
    assert (dist.get_rank(), dist.get_world_size(), dist.is_initialized()) == (0, 4, True)

    def program(rank):
        x = torch.full((4,), rank + 1.0, device="ahbm")
        dist.all_reduce(x)
        seen[rank] = dist.get_rank(), dist.get_world_size(), x.tolist()

    for _ in range(2):
        torch.multiprocessing.spawn(program, nprocs=4)
        assert seen == {rank: (rank, 4, [10.0] * 4) for rank in range(4)}
        seen.clear()


def test_groups_made_before_are_those_of_the_ranks(torch):
    dist, seen = torch.distributed, {}
    dist.init_process_group()
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    assert [dist.get_process_group_ranks(group) for group in groups] == [[0, 1], [2, 3]]

    def program(rank):
        x = torch.full((4,), rank + 1.0, device="ahbm")
        dist.all_reduce(x, group=groups[rank // 2])
        inside = dist.new_group([0, 3])
        if rank in (0, 3):
            dist.all_reduce(x, group=inside)
        seen[rank] = x.tolist()

    for _ in range(2):
        torch.multiprocessing.spawn(program, nprocs=4)
        assert seen == {0: [10.0] * 4, 1: [3.0] * 4, 2: [7.0] * 4, 3: [10.0] * 4}


@pytest.mark.parametrize("nprocs", [1, 2, 3])
def test_another_number_of_ranks_is_refused(torch, nprocs):
    torch.distributed.init_process_group()
    with pytest.raises(ValueError, match=rf"nprocs = {nprocs}.*the machine's 4 SIPs"):
        torch.multiprocessing.spawn(lambda rank: None, nprocs=nprocs)


def test_ranks_that_initialize_twice_are_refused(torch):
    torch.distributed.init_process_group()
    with pytest.raises(torch.multiprocessing.ProcessRaisedException, match="twice"):
        torch.multiprocessing.spawn(lambda rank: torch.distributed.init_process_group(), nprocs=4)


def test_a_collective_before_the_ranks_is_refused(torch):
    dist = torch.distributed
    dist.init_process_group()
    x = torch.zeros(4, device="ahbm")
    for ask in (dist.barrier, lambda: dist.all_reduce(x), lambda: dist.isend(x, 1)):
        with pytest.raises(StateError, match=r"no rank is running.*nprocs=4"):
            ask()


def test_after_a_failed_spawn_the_next_begins_anew(torch):
    dist, seen = torch.distributed, {}
    dist.init_process_group()

    def program(rank, fails):
        x = torch.full((4,), rank + 1.0, device="ahbm")
        if fails and rank == 3:
            raise ValueError("not today")
        dist.all_reduce(x)
        seen[rank] = x.tolist()
        dist.destroy_process_group()

    with pytest.raises(torch.multiprocessing.ProcessRaisedException, match="not today"):
        torch.multiprocessing.spawn(program, args=(True,), nprocs=4)
    torch.multiprocessing.spawn(program, args=(False,), nprocs=4)
    assert seen == dict.fromkeys(range(4), [10.0] * 4)


def test_a_world_that_was_destroyed_is_not_inherited(torch):
    dist = torch.distributed
    dist.init_process_group()
    dist.destroy_process_group()
    assert not dist.is_initialized()
    torch.multiprocessing.spawn(lambda rank: dist.init_process_group(), nprocs=2)


def test_megatrons_groups_before_the_ranks(torch):
    dist, seen = torch.distributed, {}
    dist.init_process_group()
    ps.initialize_model_parallel(tensor_model_parallel_size=2)
    assert ps.model_parallel_is_initialized()

    def program(rank):
        x = torch.full((4,), rank + 1.0, device="ahbm")
        dist.all_reduce(x, group=ps.get_tensor_model_parallel_group())
        seen[rank] = (
            ps.get_tensor_model_parallel_rank(), ps.get_tensor_model_parallel_world_size(), ps.get_data_parallel_rank(),
            x.tolist(),
        )  # fmt: skip

    torch.multiprocessing.spawn(program, nprocs=4)
    sums = [3.0] * 4, [7.0] * 4
    assert seen == {rank: (rank % 2, 2, rank // 2, sums[rank // 2]) for rank in range(4)}


def test_megatrons_groups_end_with_the_session():
    for _ in range(2):
        with session(small(2)) as torch:
            torch.distributed.init_process_group()
            ps.initialize_model_parallel(tensor_model_parallel_size=2)
    assert not ps.model_parallel_is_initialized()


def test_the_current_session_is_the_innermost_of_the_thread():
    with pytest.raises(StateError, match="no session is open"):
        current_session()
    with kb.session("preset:small") as outer, kb.session("preset:small") as inner:
        assert current_session() is inner
        inner.__exit__(None, None, None)
        assert current_session() is outer
        inner.__enter__()
    with pytest.raises(StateError, match="no session is open"):
        ps.initialize_model_parallel()
