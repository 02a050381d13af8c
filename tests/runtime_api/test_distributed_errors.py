"""Ranks that disagree, ranks that are left alone, and what remains of them: nothing."""

from __future__ import annotations

import re
import traceback
import warnings

import pytest

from kernbench.ccl.algorithm import algorithm
from kernbench.errors import CollectiveMismatchError, ConfigError, DeadlockError, IpcqDeadlock, PlacementError
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api._multiprocessing import ProcessRaisedException
from tests.runtime_api.ranks import on_ranks

MIXED = DPPolicy(cube="row_wise", pe="column_wise", num_cubes=2)
ROWS = DPPolicy(cube="row_wise", pe="row_wise", num_cubes=2)


def failure(program, n=2, **options):
    with pytest.raises(ProcessRaisedException) as caught:
        on_ranks(program, n, **options)
    return caught.value


def calls_differ(torch, rank, dist, x):
    (dist.barrier if rank else lambda: dist.all_reduce(x))()


def shapes_differ(torch, rank, dist, x):
    dist.all_reduce(x if rank else x[:2])


def dtypes_differ(torch, rank, dist, x):
    dist.all_reduce(torch.zeros(4, 8, dtype=torch.float16 if rank else torch.float32, device="ahbm", dp=ROWS))


def ops_differ(torch, rank, dist, x):
    dist.all_reduce(x, op="max" if rank else "sum")


def roots_differ(torch, rank, dist, x):
    dist.broadcast(x, src=rank)


def places_differ(torch, rank, dist, x):
    dist.all_reduce(
        torch.zeros(4, 8, device="ahbm", dp=[MIXED, DPPolicy(cube="column_wise", num_cubes=2, num_pes=1)][rank])
    )


def groups_differ(torch, rank, dist, x):
    dist.new_group([0] if rank else [0, 1])


def an_algorithm_differs(torch, rank, dist, x):
    dist.new_group(pg_options={"all_reduce": "ring_allreduce_hbm"} if rank else None)


@pytest.mark.parametrize(
    ("program", "first", "second"),
    [
        (calls_differ, r"all_reduce\(tensor \(4, 8\) torch.float32 on 8 PEs, op=SUM\)", r"barrier\(\)"),
        (shapes_differ, r"tensor \(2, 8\)", r"tensor \(4, 8\)"),
        (dtypes_differ, r"torch.float32", r"torch.float16"),
        (ops_differ, r"op=SUM", r"op=MAX"),
        (roots_differ, r"root=0", r"root=1"),
        (places_differ, r"on 8 PEs", r"on 2 PEs"),
        (groups_differ, r"new_group\(ranks=\[0, 1\]", r"new_group\(ranks=\[0\]"),
        (an_algorithm_differs, r"pg_options=\{\}", r"pg_options=.*ring_allreduce_hbm"),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_a_mismatch_tells_what_each_rank_asked_for(program, first, second):
    def run(torch, rank):
        program(torch, rank, torch.distributed, torch.zeros(4, 8, device="ahbm", dp=MIXED))

    error = failure(run)
    assert error.error_index == 1  # the one that came second
    assert list(error.errors) == [1, 0]
    for each in error.errors.values():
        assert isinstance(each, CollectiveMismatchError)
        assert str(each).startswith("ranks disagree about call 1 of group (0, 1):\n  rank 0: ")
    text = str(error.__cause__)
    lines = text.splitlines()
    assert re.search(first, lines[1])
    assert re.search(second, lines[2])
    assert ("same DPPolicy" in text) == (program is places_differ)


@pytest.mark.parametrize("what", ["all_reduce", "new_group"])
def test_who_catches_a_mismatch_leaves_the_others_with_theirs(what):
    def program(torch, rank):
        dist, x = torch.distributed, torch.zeros(4 + rank, device="ahbm")
        ask = dist.all_reduce if what == "all_reduce" else lambda _: dist.new_group([rank])
        with pytest.raises(CollectiveMismatchError):
            ask(x)
        x.numpy()
        return rank

    assert on_ranks(program) == [0, 1]


def test_a_mismatch_is_found_at_the_same_count_and_names_who_has_not_come():
    def program(torch, rank):
        x = torch.zeros(4, device="ahbm")
        torch.distributed.barrier()
        works = [torch.distributed.all_reduce(x, async_op=True)]
        if rank == 0:
            torch.ahbm.synchronize()
        if rank == 2:
            torch.zeros(4, device="ahbm").numpy()
        works.append(torch.distributed.all_reduce(x, op="max" if rank == 1 else "sum", async_op=True))
        torch.ahbm.synchronize()

    error = failure(program, 3)
    assert isinstance(error.__cause__, CollectiveMismatchError)
    assert "call 3 of group (0, 1, 2)" in str(error.__cause__)
    assert "not called yet by rank" in str(error.__cause__)


def test_who_waits_alone_is_named_and_so_is_who_has_ended():
    def program(torch, rank):
        x = torch.zeros(4, device="ahbm")
        if rank == 0:
            torch.distributed.all_reduce(x)
        elif rank == 1:
            torch.distributed.recv(x, 0, tag=7)

    error = failure(program, 3)
    cause = error.errors[0]
    assert isinstance(cause, DeadlockError)
    lines = str(cause).splitlines()
    assert lines[0].startswith("deadlock at ")
    assert (
        "rank 0, in all_reduce, call 1 of group (0, 1, 2): rank 1 has not called it, rank 2 has ended, since "
        in lines[1]
    )
    assert "rank 1, in recv, the message from rank 0 to rank 1, tag 7: rank 0 has not called it, since " in lines[2]
    assert len(lines) == 3
    assert list(error.errors) == [0, 1]


def test_a_root_is_told_by_its_global_rank():
    def program(torch, rank):
        group = torch.distributed.new_group([1, 2])
        if rank:
            torch.distributed.broadcast(torch.zeros(4, device="ahbm"), src=rank, group=group)

    _, *lines = str(failure(program, 3).__cause__).splitlines()
    assert [line.rpartition(", ")[2] for line in lines] == ["root=1)", "root=2)"]


def test_groups_of_the_same_ranks_are_told_apart():
    def program(torch, rank):
        groups = [torch.distributed.new_group([0, 1]) for _ in range(2)]
        for group in groups if rank else groups[::-1]:
            torch.distributed.all_reduce(torch.zeros(4, device="ahbm"), group=group)

    text = str(failure(program))
    assert "rank 0, in all_reduce, call 1 of group (0, 1) (2): rank 1 has not called it" in text
    assert "rank 1, in all_reduce, call 1 of group (0, 1) (1): rank 0 has not called it" in text


def test_the_lines_of_a_deadlock_are_printed_once_at_the_end():
    def program(torch, rank):
        if rank == 0:
            torch.distributed.all_reduce(torch.zeros(4, device="ahbm"))
        else:
            torch.distributed.recv(torch.zeros(4, device="ahbm"), 0, tag=7)

    error = failure(program)
    printed = "".join(traceback.format_exception(error)).rstrip().splitlines()
    lines = str(error.errors[0]).splitlines()
    assert [line.split(",")[0] for line in lines[1:]] == ["  rank 0", "  rank 1"]
    assert printed[-2:] == lines[1:]
    for line in lines:
        assert sum(line in each for each in printed) == 1


def test_calls_have_the_same_numbers_in_the_world_and_in_a_new_group():
    def program(torch, rank):
        dist = torch.distributed
        x = torch.zeros(4, device="ahbm")
        for group in (None, dist.new_group(), dist.new_group([0, 1])):
            dist.all_reduce(x, group=group)
            work = dist.all_reduce(x, group=group, async_op=True)
            assert "all_reduce, call 2 of group (0, 1)" in str(work)
            work.wait()

    on_ranks(program)


def deaf(t_ptr, n_elem, world_size, *, tl):
    if tl.program_id(2) == 0:
        tl.recv("E", shape=n_elem, dtype=t_ptr.dtype.element_ty)


def test_programs_that_wait_for_each_other_are_named_beside_the_ranks():
    def program(torch, rank):
        torch.distributed.all_reduce(torch.zeros(4, device="ahbm"))

    error = failure(program, pg_options={"all_reduce": algorithm(deaf)})
    cause = error.errors[0]
    assert isinstance(cause, IpcqDeadlock)
    assert "sip0.cube0.pe0" in str(cause)
    assert "rank 0, in all_reduce, call 1 of group (0, 1) with rank 1, since" in str(cause)
    assert "rank 1, in" not in str(cause)  # its part is complete, and so is the rank


def test_a_receive_from_nobody_is_named():
    def program(torch, rank):
        torch.distributed.recv(torch.zeros(4, device="ahbm"))

    assert "recv from any rank of group (0, 1), tag 0: no rank has sent" in str(failure(program))


def test_after_each_failure_the_next_ranks_begin_anew(torch):
    def interrupted(torch, rank):
        torch.distributed.all_reduce(torch.zeros(4, device="ahbm"), async_op=True)
        torch.ahbm.synchronize()
        raise KeyboardInterrupt

    def mismatched(torch, rank):
        torch.distributed.all_reduce(torch.zeros(4 + rank, device="ahbm"))

    def alone(torch, rank):
        if rank:
            torch.distributed.all_reduce(torch.zeros(4, device="ahbm"), async_op=True)
            torch.distributed.isend(torch.zeros(4, device="ahbm"), 0)
            torch.ahbm.synchronize()

    def right(torch, rank):
        x = torch.full((4,), float(rank), device="ahbm")
        torch.distributed.all_reduce(x)
        return x.tolist()

    for program, kind in (
        (mismatched, ProcessRaisedException),
        (interrupted, KeyboardInterrupt),
        (alone, ProcessRaisedException),
    ):
        with pytest.raises(kind):
            on_ranks(program, torch=torch)
        assert on_ranks(right, torch=torch) == [[1] * 4] * 2


def test_tensors_are_checked(torch):
    def program(torch, rank):
        dist = torch.distributed
        x = torch.zeros(4, 6, device="ahbm")
        with pytest.raises(TypeError, match=r'expected one on ahbm:\d: .to\("ahbm"\)'):
            dist.all_reduce(torch.zeros(4))
        with pytest.raises(RuntimeError, match=rf"is on ahbm:{1 - rank}, but rank {rank} drives ahbm:{rank}"):
            dist.all_reduce(torch.zeros(4, device=1 - rank))
        with pytest.raises(ValueError, match=r"not contiguous; copy it"):
            dist.all_reduce(x.t())
        with pytest.raises(ValueError, match=r"'mean' is not a reduction.*known: sum, avg"):
            dist.all_reduce(x, op="mean")
        with pytest.raises(ValueError, match=r"\(4, 6\) has 24 elements; expected 2 x 24"):
            dist.all_gather_into_tensor(x, x)
        with pytest.raises(TypeError, match="expected one type"):
            dist.all_gather_into_tensor(torch.zeros(8, 6, dtype=torch.float16, device="ahbm"), x)
        with pytest.raises(ValueError, match=r"sizes = \[1, 2\]: expected 2 sizes whose sum is 4"):
            dist.all_to_all_single(x, x, [1, 2], [2, 2])
        with pytest.raises(ValueError, match="2 ranks do not divide dim 0; give input_split_sizes"):
            dist.all_to_all_single(x, torch.zeros(3, 6, device="ahbm"))
        with pytest.raises(ValueError, match="tensor_list has 1 tensors; expected 2"):
            dist.all_gather([x], x)
        with pytest.raises(ValueError, match="gather_list is given by rank 0, and by no other"):
            dist.gather(x, None if rank == 0 else [x, x])
        with pytest.raises(ValueError, match="global rank 5 is not part of group"):
            dist.broadcast(x, 5)
        with pytest.raises(ValueError, match="src = None, group_src = None: expected one of them"):
            dist.broadcast(x)
        with pytest.raises(ValueError, match="different ranks of the world"):
            dist.new_group([0, 9])

    on_ranks(program, torch=torch)


def test_sizes_of_parts_have_to_agree():
    def program(torch, rank):
        x = torch.zeros(4, device="ahbm")
        torch.distributed.all_to_all_single(x, x.clone(), [2, 2], [1, 3])

    error = failure(program)
    assert isinstance(error.__cause__, CollectiveMismatchError)
    assert "rank 0 of the group sends 1 rows to rank 0, which expects 2" in str(error.__cause__)


@pytest.mark.parametrize(("rows", "dtype"), [(3, "float32"), (5, "float32"), (4, "float16")])
def test_lists_of_tensors_that_do_not_agree_are_not_cut_off(rows, dtype):
    def program(torch, rank):
        x = [torch.zeros(4, 8, device="ahbm", dp=ROWS) for _ in range(2)]
        kinds = [(4, "float32") if i == rank else (rows, dtype) for i in range(2)]
        y = [torch.zeros(n, 8, dtype=kind, device="ahbm", dp=ROWS) for n, kind in kinds]
        torch.distributed.all_to_all(y, x)

    error = failure(program)
    assert isinstance(error.__cause__, CollectiveMismatchError)
    assert (
        "input_tensor_list[1] of rank 0 of the group is (4, 8) torch.float32, but output_tensor_list[0] of rank 1 is "
        f"({rows}, 8) torch.{dtype}; give both one size and type"
    ) in str(error.__cause__)


def test_an_algorithm_that_does_not_run_says_why_and_ends_all():
    def program(torch, rank):
        torch.distributed.all_reduce(torch.zeros(4, 8, device="ahbm", dp=ROWS))

    error = failure(program, 2, pg_options={"all_reduce": "mesh_allreduce_4"})
    assert isinstance(error.__cause__, ConfigError)
    assert "one shard on each device" in str(error.__cause__)
    assert list(error.errors) == [1, 0]


def test_shapes_that_cannot_be_matched_are_refused_with_the_remedy():
    columns = DPPolicy(pe="column_wise", num_cubes=1)

    def program(torch, rank):
        x = torch.zeros(4, 8, device="ahbm", dp=columns)
        torch.distributed.all_gather_into_tensor(torch.zeros(16, 4, device="ahbm", dp=columns), x)

    error = failure(program)
    assert isinstance(error.__cause__, PlacementError)
    assert "row_wise" in str(error.__cause__)


def collective(dist, rank, x):
    return dist.all_reduce(x, async_op=True)


def messages(dist, rank, x):
    return dist.irecv(x, 0) if rank else dist.isend(x, 1)


@pytest.mark.parametrize("begin", [collective, messages])
@pytest.mark.parametrize("end", ["nothing", "wait", "is_completed", "synchronize"])
def test_a_work_that_nobody_waits_for_is_warned_about(begin, end):
    def program(torch, rank):
        work = begin(torch.distributed, rank, torch.zeros(4, device="ahbm"))
        if end == "wait":
            work.wait()
        if end == "synchronize":
            torch.ahbm.synchronize()
        while end == "is_completed" and not work.is_completed():
            torch.zeros(1, device="ahbm").numpy()
        torch.distributed.barrier()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        on_ranks(program)
    if end != "nothing":
        assert not caught
        return
    assert [warning.filename for warning in caught] == [__file__] * 2
    lines = {warning.lineno for warning in caught}
    assert lines == {begin.__code__.co_firstlineno + 1}
    assert all("was never waited for" in str(warning.message) for warning in caught)


LONG = "x" * 20_000


@pytest.mark.parametrize(
    "call",
    [
        lambda torch, dist, x: torch.zeros(4, device=LONG),
        lambda torch, dist, x: torch.zeros(4, dtype=LONG),
        lambda torch, dist, x: torch.zeros(LONG),
        lambda torch, dist, x: x.view(LONG),
        lambda torch, dist, x: x[LONG],
        lambda torch, dist, x: torch.launch("k", LONG, x),
        lambda torch, dist, x: getattr(torch, LONG),
        lambda torch, dist, x: dist.all_reduce(LONG),
        lambda torch, dist, x: dist.all_reduce(x, op=LONG),
        lambda torch, dist, x: dist.all_reduce(x, group=LONG),
        lambda torch, dist, x: dist.send(x, LONG),
        lambda torch, dist, x: dist.new_group(LONG),
        lambda torch, dist, x: dist.new_group(backend=LONG),
        lambda torch, dist, x: dist.new_group(pg_options=LONG),
    ],
)
def test_messages_quote_values_up_to_a_line(call):
    found = failure(lambda torch, rank: call(torch, torch.distributed, torch.zeros(4, device="ahbm")))
    assert "xxxxxxxx..." in str(found)
    assert max(map(len, str(found).splitlines())) < 1000
