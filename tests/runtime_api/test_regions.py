"""Regions: what moves where when parts of one tensor become parts of another, held to numpy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench._dtypes import float32
from kernbench.policy.placement.dp import DPPolicy, resolve_dp_policy
from kernbench.runtime_api._layout import Layout, TensorShard, along, chunks, elements, runs, stacked, whole_region
from tests.runtime_api.machines import CUBES, PES, placed_shapes


def layout_of(shape, dp):
    specs = resolve_dp_policy(dp, shape=shape, itemsize=4, num_pe=PES, num_cubes=CUBES, target_sip=0)
    return Layout(shape, float32, [TensorShard(0, s.cube, s.pe, 0, s.offset_bytes, s.nbytes, s.index) for s in specs])


def in_memory(layout, array):
    """The elements of an array in the order of the layout's offsets."""
    memory = np.full(array.size, np.nan)
    for part in layout.parts:
        at = part.offset_bytes // 4
        memory[at : at + part.nbytes // 4] = array[part.index].reshape(-1)
    return memory


def moved(found, source, size):
    target = np.full(size, np.nan)
    for run in found:
        assert np.isnan(target[run.target : run.target + run.n]).all()  # nothing twice
        target[run.target : run.target + run.n] = source[run.source : run.source + run.n]
    return target


@given(placed=placed_shapes(), data=st.data())
@settings(max_examples=25)
def test_any_placement_becomes_any_other(placed, data):
    shape, dp = placed
    _, other = data.draw(placed_shapes().filter(lambda p: p[1].tile is None))
    source, target = layout_of(shape, dp), layout_of(shape, other)
    array = np.arange(np.prod(shape), dtype=float).reshape(shape)
    found = runs(whole_region(source), whole_region(target))
    assert np.array_equal(moved(found, in_memory(source, array), array.size), in_memory(target, array))
    holders = {(s.offset_bytes, (s.cube, s.pe)) for s in target.shards}
    starts = {part.offset_bytes: part for part in target.parts}
    for run in found:
        part = max((s for s in starts.values() if s.offset_bytes <= 4 * run.target), key=lambda s: s.offset_bytes)
        assert {(part.offset_bytes, place) for place in run.holders} <= holders
        assert len(run.holders) == sum(offset == part.offset_bytes for offset, _ in holders)


@given(placed=placed_shapes(), n=st.integers(1, 4), as_stack=st.booleans())
@settings(max_examples=25)
def test_chunks_are_those_of_a_concatenation_or_a_stack(placed, n, as_stack):
    shape, dp = placed
    joint_shape = (n, *shape) if as_stack else (n * shape[0], *shape[1:])
    dp = replace(dp, tile=(2,) * len(joint_shape) if dp.tile else None)
    joint, part = layout_of(joint_shape, dp), layout_of(shape, DPPolicy(cube="row_wise", num_pes=1))
    array = np.arange(np.prod(joint_shape), dtype=float).reshape(joint_shape)
    pieces = array if as_stack else np.split(array, n)
    for piece, region in zip(pieces, chunks(joint, n, shape), strict=True):
        got = moved(runs(region, whole_region(part)), in_memory(joint, array), piece.size)
        assert np.array_equal(got, in_memory(part, piece))


def test_neighbours_in_both_are_one_run():
    columns = layout_of((8, 6), DPPolicy(pe="column_wise", num_cubes=1, num_pes=2))
    row_major = layout_of((8, 6), DPPolicy(pe="row_wise", num_cubes=1, num_pes=2))
    assert [run.n for run in runs(whole_region(row_major), whole_region(row_major))] == [24, 24]
    assert [run.n for run in runs(whole_region(columns), whole_region(columns))] == [24, 24]
    assert [run.n for run in runs(whole_region(columns), whole_region(row_major))] == [3] * 16
    assert [run.n for run in runs(along(columns, 0, 2, 4), along(columns, 0, 4, 6))] == [6, 6]


def test_a_stack_holds_all_layers_of_a_shard_side_by_side():
    layout = layout_of((4, 6), DPPolicy(pe="column_wise", num_cubes=1, num_pes=2))
    stack = stacked(layout, 3)
    assert [(s.pe, s.offset_bytes, s.nbytes) for s in stack.shards] == [(0, 0, 144), (1, 144, 144)]
    array = np.arange(72.0).reshape(3, 4, 6)
    assert np.array_equal(in_memory(stack, array).reshape(2, 3, 4, 3)[1], array[:, :, 3:])


def test_elements_are_counted_in_row_major_order_or_not_at_all():
    row_major = layout_of((4, 6), DPPolicy(pe="row_wise", num_cubes=1, num_pes=2))
    region = elements(row_major, 10, 14)
    assert region is not None
    assert [(p.first, p.box) for p in region.pieces] == [(10, (slice(0, 2),)), (12, (slice(2, 4),))]
    assert elements(layout_of((4, 6), DPPolicy(pe="column_wise", num_pes=2)), 0, 24) is None
