"""Placements against numpy: the parts, the moves between them, and the rules of operations."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.dtensor import _ops as ops
from kernbench.dtensor._placements import Partial, Replicate, Shard, local_part, normalized, plan_moves
from kernbench.errors import PlacementError

PLACEMENT = st.sampled_from([Replicate(), Shard(0), Shard(1), Partial()])


def parts(whole, mesh, placements):
    """What each rank holds; a summand is the whole over the ranks of the axis."""
    found = {}
    for at in product(*map(range, mesh)):
        shape, first = local_part(whole.shape, mesh, at, placements)
        part = whole[tuple(slice(a, a + n) for a, n in zip(first, shape, strict=True))]
        for ranks, placement in zip(mesh, placements, strict=True):
            part = part / ranks if isinstance(placement, Partial) else part
        found[at] = part
    return found


def moved(held, mesh, move):
    """One move, each rank talking to the ranks along the axis only."""
    out = {}
    for at in held:
        line = [held[(*at[: move.axis], i, *at[move.axis + 1 :])] for i in range(mesh[move.axis])]
        match move.source:
            case Shard(dim):
                whole = np.concatenate(line, axis=dim)
            case Partial():
                whole = sum(line)
            case _:
                whole = held[at]
        match move.target:
            case Shard(dim):
                shape, first = local_part(
                    whole.shape, mesh[move.axis : move.axis + 1], at[move.axis :][:1], [move.target]
                )
                whole = whole.take(range(first[dim], first[dim] + shape[dim]), axis=dim)
            case Partial():
                whole = whole / mesh[move.axis]
        out[at] = whole
    return out


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(st.integers(1, 9), st.integers(1, 7)),
    st.tuples(st.integers(1, 4), st.integers(1, 3)),
    st.tuples(PLACEMENT, PLACEMENT),
    st.tuples(PLACEMENT, PLACEMENT),
)
def test_planned_moves_give_the_target(shape, mesh, source, target):
    if any(isinstance(b, Partial) and isinstance(a, Shard) for a, b in zip(source, target, strict=True)):
        with pytest.raises(PlacementError, match="a part is not a summand"):
            plan_moves(source, target)
        return
    whole = np.arange(1.0, 1 + shape[0] * shape[1]).reshape(shape)
    held = parts(whole, mesh, source)
    for move in plan_moves(source, target):
        held = moved(held, mesh, move)
    for at, want in parts(whole, mesh, target).items():
        np.testing.assert_allclose(held[at], want, rtol=1e-12)


def test_nothing_is_moved_for_nothing():
    assert plan_moves([Shard(0), Partial()], [Shard(0), Partial()]) == []
    [move] = plan_moves([Shard(0), Replicate()], [Shard(1), Replicate()])
    assert (move.axis, move.source, move.target) == (0, Shard(0), Shard(1))


def test_uneven_parts_follow_chunk():
    sizes = [local_part((5,), (4,), (i,), [Shard(0)]) for i in range(4)]
    assert sizes == [((2,), (0,)), ((2,), (2,)), ((1,), (4,)), ((0,), (5,))]


def test_wrong_placements_are_refused():
    assert normalized([Shard(-1)], 1, 2) == (Shard(1),)
    for wrong, message in [([Shard(2)], "2 dims"), ([Replicate()] * 2, "one for each"), ([0], "expected Shard")]:
        with pytest.raises(PlacementError, match=message):
            normalized(wrong, 1, 2)
    with pytest.raises(PlacementError, match="reduce_op"):
        Partial("max")


@pytest.mark.parametrize("a", [Replicate(), Shard(0), Shard(1), Partial()])
@pytest.mark.parametrize("b", [Replicate(), Shard(0), Shard(1), Partial()])
def test_matmul_rules_hold_for_values(a, b):
    rng = np.random.default_rng(0)
    x, y, mesh = rng.standard_normal((6, 5)), rng.standard_normal((5, 7)), (3,)
    inputs, result = ops._choose(ops.MATMUL, (a, b), (x.nbytes, y.nbytes), 3)
    left, right = (parts(z, mesh, [placement]) for z, placement in zip((x, y), inputs, strict=True))
    for at, want in parts(x @ y, mesh, [result]).items():
        got = left[at] @ right[at]
        if isinstance(result, Partial):
            got, want = sum(left[i] @ right[i] for i in left), x @ y
        np.testing.assert_allclose(got, want)


def test_rules_that_apply_are_taken_as_they_are():
    for operands, result in ops.MATMUL:
        assert ops._choose(ops.MATMUL, operands, (1, 1), 4) == (operands, result)
    assert ops._choose(ops._elementwise(2, 2, True), (Partial(), Partial()), (1, 1), 2)[1] == Partial()


def test_other_placements_are_changed_where_least_is_moved():
    free = ops._choose(ops._elementwise(2, 2, False), (Shard(0), Replicate()), (1, 1), 4)
    assert free == ((Shard(0), Shard(0)), Shard(0))
    assert ops._choose(ops._elementwise(2, 1, False), (Partial(),), (1,), 4)[1] == Shard(0)
    assert ops._choose(ops.MATMUL, (Shard(0), Shard(1)), (8, 1), 4) == ((Shard(0), Replicate()), Shard(0))
