"""Process groups, and what collectives compute, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from kernbench.config import default_ccl_path
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api._multiprocessing import ProcessRaisedException
from kernbench.runtime_api.context import session
from tests.runtime_api.machines import small
from tests.runtime_api.ranks import on_ranks

ROWS = DPPolicy(cube="row_wise", pe="row_wise", num_cubes=2)
COLUMNS = DPPolicy(cube="column_wise", pe="column_wise", num_cubes=2, num_pes=2)
MIXED = DPPolicy(cube="row_wise", pe="column_wise", num_cubes=2, num_pes=2)
COPIES = DPPolicy(cube="replicate", pe="row_wise", num_cubes=2, num_pes=2)
TILES = DPPolicy(cube="tiled_row_major", pe="replicate", num_cubes=3, num_pes=1, tile=(3, 2))
PLACES = {"one": None, "rows": ROWS, "columns": COLUMNS, "mixed": MIXED, "copies": COPIES, "tiles": TILES}

everywhere = pytest.mark.parametrize("dp", PLACES.values(), ids=PLACES)


@pytest.fixture(scope="module")
def three():
    """A session for programs of three ranks, one spawn after another."""
    with session(small(3), data=True) as torch:
        yield torch


def values(rank, shape, dtype=np.float32):
    return np.random.default_rng(rank).integers(-8, 8, shape).astype(dtype)


def device(torch, array, dp=None):
    return torch.tensor(array, device="ahbm", dp=dp)


# -- groups


def test_before_init_there_is_an_error_and_no_silent_zero():
    with session(small()) as torch:
        dist = torch.distributed
        assert dist.is_available()
        assert not dist.is_initialized()
        assert dist.group.WORLD is None
        x = torch.zeros(4, device="ahbm")
        for ask in (dist.get_rank, dist.get_world_size, dist.barrier, dist.new_group, dist.get_backend,
                    dist.destroy_process_group, lambda: dist.all_reduce(x), lambda: dist.send(x, 1)):  # fmt: skip
            with pytest.raises(ValueError, match="Default process group has not been initialized"):
                ask()


def test_a_program_of_one_is_rank_0_of_1():
    with session(small(), data=True) as torch:
        torch.ahbm.set_device(1)
        torch.distributed.init_process_group(world_size=1, rank=0)
        assert (torch.distributed.get_rank(), torch.distributed.get_world_size()) == (0, 1)
        x = torch.ones(4, device="ahbm")
        torch.distributed.all_reduce(x)
        assert x.tolist() == [1] * 4
        assert on_ranks(lambda torch, rank: torch.distributed.get_world_size(), 2, torch=torch) == [2, 2]
        assert torch.distributed.get_world_size() == 1


def test_init_is_checked(torch):
    dist = torch.distributed
    refused = {
        "twice": {},
        "'gloo' is unknown; the only one here is 'ahbm'": {"backend": "gloo"},
        r"world_size = 4, but this is rank \d of 2": {"world_size": 4},
        r"rank = 7": {"rank": 7},
    }

    def program(rank):
        for text, options in list(refused.items())[1:]:
            with pytest.raises(ValueError, match=text):
                dist.init_process_group(**options)
        dist.init_process_group("ahbm", rank=rank, world_size=2, init_method="env://")
        assert dist.is_initialized()
        assert dist.get_backend() == "ahbm"
        assert dist.get_process_group_ranks(dist.group.WORLD) == [0, 1]
        with pytest.raises(ValueError, match="twice"):
            dist.init_process_group()
        dist.destroy_process_group()
        assert not dist.is_initialized()
        dist.init_process_group()
        x = torch.ones(4, device="ahbm")
        dist.all_reduce(x)
        assert x.tolist() == [2] * 4

    torch.multiprocessing.spawn(program, nprocs=2)


def test_groups_and_their_ranks():
    def program(torch, rank):
        dist = torch.distributed
        group = dist.new_group([3, 1])
        everybody = dist.new_group()
        outside = torch.distributed.GroupMember.NON_GROUP_MEMBER
        assert (group == outside) == (rank in (0, 2))
        assert dist.get_process_group_ranks(everybody) == dist.get_process_group_ranks() == [0, 1, 2, 3]
        if group == outside:
            with pytest.warns(UserWarning, match=f"on global rank {rank} which does not belong") as caught:
                assert dist.all_reduce(torch.ones(4, device="ahbm"), group=group) is None
            assert [warning.filename for warning in caught] == [__file__]
            return dist.get_rank(group), dist.get_world_size(group)
        assert dist.get_process_group_ranks(group) == [1, 3]
        assert (dist.get_global_rank(group, 1), dist.get_group_rank(group, 3)) == (3, 1)
        with pytest.raises(ValueError, match="group rank 2 is not part"):
            dist.get_global_rank(group, 2)
        with pytest.raises(ValueError, match="global rank 0 is not part"):
            dist.get_group_rank(group, 0)
        assert (group.rank(), group.size()) == (dist.get_rank(group), 2)
        return dist.get_rank(group), dist.get_world_size(group)

    assert on_ranks(program, 4) == [(-1, -1), (0, 2), (-1, -1), (1, 2)]


def test_a_collective_of_a_group_is_among_its_members():
    def program(torch, rank):
        dist = torch.distributed
        groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
        x = torch.full((8,), float(2**rank), device="ahbm")
        dist.all_reduce(x, group=groups[rank % 2])
        y = x.clone()
        dist.broadcast(y, src=[2, 3][rank % 2], group=groups[rank % 2])
        dist.broadcast(x, group_src=0, group=groups[rank % 2])
        return x.tolist()[0], y.tolist()[0]

    assert on_ranks(program, 4) == [(5, 5), (10, 10), (5, 5), (10, 10)]


def test_a_group_may_keep_the_order_of_its_ranks():
    def program(torch, rank):
        dist = torch.distributed
        group = dist.new_group([2, 0, 1], sort_ranks=False)
        assert dist.get_process_group_ranks(group) == [2, 0, 1]
        y = torch.zeros(6, device="ahbm")
        dist.all_gather_into_tensor(y, torch.full((2,), float(rank), device="ahbm"), group=group)
        return dist.get_rank(group), y.tolist()

    joint = [2, 2, 0, 0, 1, 1]
    assert on_ranks(program, 3) == [(1, joint), (2, joint), (0, joint)]


def test_a_destroyed_group_is_refused_and_the_rest_goes_on():
    def program(torch, rank):
        dist = torch.distributed
        group = dist.new_group([0, 1])
        dist.destroy_process_group(group)
        with pytest.raises(ValueError, match="has been destroyed"):
            dist.barrier(group)
        x = torch.ones(4, device="ahbm")
        dist.all_reduce(x)
        return x.tolist()

    assert on_ranks(program) == [[2] * 4] * 2


# -- values


@everywhere
def test_all_reduce_is_the_sum_over_ranks(three, dp):
    def program(torch, rank):
        x = device(torch, values(rank, (12, 8)), dp)
        assert torch.distributed.all_reduce(x) is None
        return x.numpy()

    expected = sum(values(rank, (12, 8)) for rank in range(3))
    for got in on_ranks(program, 3, torch=three):
        assert np.array_equal(got, expected)


@pytest.mark.parametrize(
    ("op", "dtype"),
    [("sum", "int32"), ("AVG", "float16"), ("min", "bfloat16"), ("max", "float32"), ("product", "float16"),
     ("product", "int32"), ("AVG", "bfloat16"), ("sum", "bfloat16")],
)  # fmt: skip
def test_all_reduce_knows_torchs_operations(op, dtype):
    def program(torch, rank):
        x = device(torch, values(rank, (37,)), ROWS).to(getattr(torch, dtype))
        torch.distributed.all_reduce(x, op=op if op.islower() else torch.distributed.ReduceOp.AVG)
        return x.numpy().astype(np.float64)

    each = np.stack([values(rank, (37,), np.float64) for rank in range(2)])
    expected = {"sum": each.sum(0), "AVG": each.mean(0), "min": each.min(0), "max": each.max(0)}
    for got in on_ranks(program):
        assert np.array_equal(got, expected.get(op, each.prod(0)))


@everywhere
def test_broadcast_and_reduce_have_a_root(three, dp):
    def program(torch, rank):
        x, y = (device(torch, values(rank, (12, 8)), dp) for _ in range(2))
        torch.distributed.broadcast(x, 2)
        torch.distributed.reduce(y, dst=1, op="max")
        return x.numpy(), y.numpy()

    got = on_ranks(program, 3, torch=three)
    assert all(np.array_equal(x, values(2, (12, 8))) for x, _ in got)
    assert np.array_equal(got[1][1], np.stack([values(rank, (12, 8)) for rank in range(3)]).max(0))


@everywhere
@pytest.mark.parametrize("stack", [False, True])
def test_all_gather_is_concatenation_or_stack(three, dp, stack):
    def program(torch, rank):
        x = device(torch, values(rank, (6, 8)), dp)
        y = torch.zeros((3, 6, 8) if stack else (18, 8), device="ahbm", dp=None if stack and dp is TILES else dp)
        torch.distributed.all_gather_into_tensor(y, x)
        return y.numpy()

    join = np.stack if stack else np.concatenate
    for got in on_ranks(program, 3, torch=three):
        assert np.array_equal(got, join([values(rank, (6, 8)) for rank in range(3)]))


@everywhere
def test_reduce_scatter_gives_each_rank_its_part_of_the_sum(three, dp):
    def program(torch, rank):
        x = device(torch, values(rank, (18, 8)), dp)
        y = torch.zeros(6, 8, device="ahbm", dp=dp)
        torch.distributed.reduce_scatter_tensor(y, x)
        return y.numpy()

    expected = sum(values(rank, (18, 8)) for rank in range(3))
    assert np.array_equal(np.concatenate(on_ranks(program, 3, torch=three)), expected)


@everywhere
def test_all_to_all_transposes_ranks_and_parts(three, dp):
    def program(torch, rank):
        x = device(torch, values(rank, (18, 8)), dp)
        y = torch.zeros(18, 8, device="ahbm", dp=ROWS)
        torch.distributed.all_to_all_single(y, x)
        return y.numpy()

    sent = [values(rank, (18, 8)).reshape(3, 6, 8) for rank in range(3)]
    for rank, got in enumerate(on_ranks(program, 3, torch=three)):
        assert np.array_equal(got, np.concatenate([x[rank] for x in sent]))


def test_all_to_all_with_sizes_of_its_own(three):
    rows = [[1, 0, 4], [2, 3, 0], [0, 5, 1]]  # rows[i][j] go from rank i to rank j

    def program(torch, rank):
        to_get = [rows[source][rank] for source in range(3)]
        x = device(torch, values(rank, (sum(rows[rank]), 4)), ROWS)
        y = torch.zeros(sum(to_get), 4, device="ahbm", dp=COLUMNS)
        torch.distributed.all_to_all_single(y, x, to_get, rows[rank])
        return y.numpy()

    sent = [np.split(values(rank, (sum(rows[rank]), 4)), np.cumsum(rows[rank])[:-1]) for rank in range(3)]
    for rank, got in enumerate(on_ranks(program, 3, torch=three)):
        assert np.array_equal(got, np.concatenate([parts[rank] for parts in sent]))


def test_all_to_all_of_a_list_with_a_size_for_each_pair(three):
    rows = [[1, 2, 4], [2, 3, 6], [8, 5, 1]]  # rows[i][j] go from rank i to rank j

    def program(torch, rank):
        x = [device(torch, values(10 * rank + i, (rows[rank][i], 4)), ROWS) for i in range(3)]
        y = [torch.zeros(rows[source][rank], 4, device="ahbm", dp=COLUMNS) for source in range(3)]
        torch.distributed.all_to_all(y, x)
        return [t.numpy() for t in y]

    for rank, got in enumerate(on_ranks(program, 3, torch=three)):
        for source in range(3):
            assert np.array_equal(got[source], values(10 * source + rank, (rows[source][rank], 4)))


@everywhere
def test_lists_of_tensors(three, dp):
    def program(torch, rank):
        dist = torch.distributed
        x = device(torch, values(rank, (6, 4)), dp)

        def some(n=3):
            return [torch.zeros(6, 4, device="ahbm", dp=dp) for _ in range(n)]

        every, gathered, exchanged = some(), some() if rank == 1 else None, some()
        parts = [device(torch, values(10 * rank + i, (6, 4)), dp) for i in range(3)]
        (summed,), (scattered,) = some(1), some(1)
        dist.all_gather(every, x)
        dist.gather(x, gathered, dst=1)
        dist.scatter(scattered, parts if rank == 2 else None, src=2)
        dist.reduce_scatter(summed, parts)
        dist.all_to_all(exchanged, parts)
        return [[t.numpy() for t in ts or []] for ts in (every, gathered, [scattered, summed], exchanged)]

    each = [values(rank, (6, 4)) for rank in range(3)]
    part = [[values(10 * rank + i, (6, 4)) for i in range(3)] for rank in range(3)]
    for rank, (every, gathered, (scattered, summed), exchanged) in enumerate(on_ranks(program, 3, torch=three)):
        assert np.array_equal(every, each)
        assert np.array_equal(gathered, each if rank == 1 else [])
        assert np.array_equal(scattered, part[2][rank])
        assert np.array_equal(summed, sum(part[r][rank] for r in range(3)))
        assert np.array_equal(exchanged, [part[r][rank] for r in range(3)])


def test_views_take_part():
    def program(torch, rank):
        x = device(torch, values(rank, (8, 6)), ROWS)
        torch.distributed.all_reduce(x[2:4])
        y = torch.zeros(8, 6, device="ahbm", dp=ROWS)
        torch.distributed.all_gather_into_tensor(y.view(2, 24), x.reshape(48)[:24])
        return x.numpy(), y.numpy()

    each = [values(rank, (8, 6)) for rank in range(2)]
    for rank, (x, y) in enumerate(on_ranks(program)):
        expected = each[rank].copy()
        expected[2:4] = each[0][2:4] + each[1][2:4]
        assert np.array_equal(x, expected)
        summed = [np.concatenate([own[:2], (each[0] + each[1])[2:4]]) for own in each]
        assert np.array_equal(y, np.concatenate(summed))


def test_empty_tensors_and_single_elements():
    def program(torch, rank):
        nothing, one = torch.zeros(0, 4, device="ahbm"), torch.full((), float(rank), device="ahbm")
        every = torch.zeros(2, device="ahbm")
        torch.distributed.all_reduce(nothing)
        torch.distributed.all_gather_into_tensor(every, one)
        torch.distributed.all_reduce(one)
        return one.item(), every.tolist()

    assert on_ranks(program) == [(1.0, [0.0, 1.0])] * 2


@pytest.mark.parametrize("name", ["ring_flat_allreduce", "tree_allreduce", "intercube_allreduce"])
def test_the_default_of_ccl_yaml_is_used_for_all_reduce_alone(tmp_path, monkeypatch, name):
    text = default_ccl_path().read_text()
    (tmp_path / "ccl.yaml").write_text(text.replace("algorithm: auto", f"algorithm: {name}", 1))
    monkeypatch.chdir(tmp_path)

    def program(torch, rank):
        x = device(torch, np.full((4, 6), rank + 1.0, np.float32), DPPolicy(cube="row_wise", num_pes=1))
        torch.distributed.all_reduce(x)
        torch.distributed.broadcast(x, 0)
        return set(x.cpu().numpy().flat)

    with session(small(2), data=True) as torch:
        assert on_ranks(program, torch=torch) == [{12.0 if name.startswith("intercube") else 3.0}] * 2
        said = {c.name.removesuffix(" over each cube's shard") for c in torch.engine.log.commands}
    assert f"all_reduce by {name}" in said
    assert any(text.startswith("broadcast by ") for text in said)


STUCK = """
def kernel(x_ptr, out_ptr, n_elem, world_size, *, tl):
    tl.store(out_ptr, tl.recv("W", shape=(n_elem,), dtype=tl.float32))

def kernel_args(*, n_elem, world_size):
    return n_elem, world_size
"""
STUCK_CCL = """
algorithms:
  stuck: {module: stuck_by_design, collective: reduce_scatter, topology: ring_1d, mapper: by_shard}
"""


def test_an_algorithm_that_deadlocks_while_it_is_tried_is_passed_over_with_a_warning(tmp_path, monkeypatch):
    (tmp_path / "stuck_by_design.py").write_text(STUCK)
    (tmp_path / "ccl.yaml").write_text(STUCK_CCL)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)

    def program(torch, rank):
        out, given = torch.empty(2, device="ahbm"), device(torch, np.full(4, rank + 1.0, np.float32))
        for _ in range(2):
            torch.distributed.reduce_scatter_tensor(out, given)
        return out.tolist()

    with pytest.warns(UserWarning, match="reduce_scatter: algorithm 'stuck' is passed over: deadlock at .* ns") as told:
        assert on_ranks(program) == [[3.0, 3.0]] * 2
    assert [warning.filename for warning in told] == [__file__]


def test_a_broken_ccl_yaml_is_told_before_anything_runs(tmp_path, monkeypatch):
    text = default_ccl_path().read_text()
    (tmp_path / "ccl.yaml").write_text(text.replace("root_cube: corner", "root_cube: 99"))
    monkeypatch.chdir(tmp_path)
    with (
        session(small(2)) as torch,
        pytest.raises(ProcessRaisedException, match=r"ccl.yaml: .*_corner.root_cube = 99 must be < 4"),
    ):
        on_ranks(lambda torch, rank: None, torch=torch)


def test_an_algorithm_of_a_group_sums_what_it_says_and_the_result_tells():
    dp = DPPolicy(cube="row_wise", pe="row_wise", num_pes=1)
    with session(small(), data=True) as torch:

        def program(torch, rank):
            x = torch.full((4, 8), float(rank + 1), device="ahbm", dp=dp)
            torch.distributed.all_reduce(x)
            return x.numpy()

        got = on_ranks(program, torch=torch, pg_options={"all_reduce": "intercube_allreduce"})
        assert np.array_equal(got, np.full((2, 4, 8), 4.0 * (1 + 2)))
        names = {launch.name for launch in torch.result.launches}
        assert names == {"all_reduce by intercube_allreduce over each cube's shard"}


def test_unknown_algorithms_are_refused_at_the_start(torch):
    refused = {
        "did you mean ring_allreduce_tcm": {"all_reduce": "ring_allreduce_tmc"},
        "'allreduce' is not a collective; did you mean all_reduce": {"allreduce": "ring_allreduce_tcm"},
        "all_reduce: algorithm 'tree_broadcast' does broadcast": {"all_reduce": "tree_broadcast"},
    }
    for text, options in refused.items():
        with pytest.raises(ProcessRaisedException, match=text):
            on_ranks(lambda torch, rank: None, torch=torch, pg_options=options)
    with pytest.raises(ProcessRaisedException, match=r"'ring_allreduce_tcm': expected an algorithm for each of some"):
        on_ranks(lambda torch, rank: None, torch=torch, pg_options="ring_allreduce_tcm")
