from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kernbench._dtypes import int16
from kernbench.policy.placement.dp import resolve_dp_policy
from kernbench.runtime_api._layout import Layout, TensorShard
from kernbench.runtime_api._memory import map_ranges
from tests.runtime_api.machines import CUBES, PES, placed_shapes


def layout_of(placed) -> Layout:
    """Place (shape, policy) in a memory where each shard has an address of its own."""
    shape, dp = placed
    specs = resolve_dp_policy(dp, shape=shape, itemsize=2, num_pe=PES, num_cubes=CUBES, target_sip=0)
    return Layout(
        shape,
        int16,
        [TensorShard(0, s.cube, s.pe, i << 20, s.offset_bytes, s.nbytes, s.index) for i, s in enumerate(specs)],
    )


def numbered(layout: Layout) -> np.ndarray:
    return np.arange(np.prod(layout.shape), dtype=np.int16).reshape(layout.shape)


def of_parts(layout: Layout, array: np.ndarray) -> np.ndarray:
    """Return the tensor's bytes in the order of its addresses."""
    return np.concatenate([array[s.index].ravel() for s in layout.parts]).view(np.uint8)


@given(placed_shapes())
def test_gather_undoes_scatter(placed):
    layout = layout_of(placed)
    array = numbered(layout)
    assert (layout.gather(of_parts(layout, array)) == array).all()
    written = layout.scatter(array)
    assert len(written) == sum(n for _, n in layout.write_pieces) == sum(s.nbytes for s in layout.shards)


@given(placed_shapes(), st.data())
def test_a_cut_is_the_block_or_is_refused_with_reason(placed, data):
    layout = layout_of(placed)
    array = numbered(layout)
    box = []
    for edges in layout.boundaries():
        ends = st.sampled_from(edges) if data.draw(st.booleans()) else st.integers(0, edges[-1])
        start, stop = sorted((data.draw(ends), data.draw(ends)))
        box.append(slice(start, stop))
    cut = layout.cut(tuple(box))
    block = array[tuple(box)]
    memory = of_parts(layout, array).view(np.int16)
    if cut is None:
        # Its elements, in the order of addresses, leave a gap.
        places = np.flatnonzero(np.isin(memory, block))
        assert block.size
        assert places[-1] - places[0] + 1 > block.size or (np.diff(places) == 1).all()
        return
    offset, part = cut
    assert part.shape == block.shape
    run = memory[offset // 2 : offset // 2 + block.size]
    assert (part.gather(run.view(np.uint8)) == block).all()
    for shard in part.shards:
        whole = next(
            s for s in layout.shards if (s.cube, s.pe) == (shard.cube, shard.pe) and 0 <= shard.pa - s.pa < 1 << 20
        )
        assert shard.pa - whole.pa == shard.offset_bytes + offset - whole.offset_bytes


@given(placed_shapes())
def test_whole_tensor_is_a_cut_of_itself(placed):
    layout = layout_of(placed)
    assert layout.cut(tuple(slice(0, n) for n in layout.shape))[1].shards == layout.shards


@given(placed_shapes())
def test_every_pe_is_told_the_whole_range_once(placed):
    layout = layout_of(placed)
    pes = [(c, p) for c in range(CUBES) for p in range(PES)]
    told = map_ranges(1000, layout.shards, pes)
    assert list(told) == pes
    for (cube, pe), ranges in told.items():
        at = 1000
        for va, nbytes, pa in ranges:
            assert va == at
            at += nbytes
            shard = next(s for s in layout.shards if s.pa <= pa < s.pa + s.nbytes)
            assert va - 1000 - shard.offset_bytes == pa - shard.pa
            copies = [s for s in layout.shards if s.offset_bytes == shard.offset_bytes]
            own = [s for s in copies if (s.cube, s.pe) == (cube, pe)]
            near = [s for s in copies if s.cube == cube]
            assert shard in (own or near[:1] or copies[:1])
        assert at == 1000 + layout.nbytes


def test_ranges_that_go_on_in_both_memories_are_one():
    def shard(pa, offset):
        return TensorShard(0, 0, 0, pa, offset, 256, (slice(0, 128),))

    joined = [shard(0, 0), shard(256, 256)]
    apart = [shard(0, 0), shard(512, 256)]
    assert map_ranges(0, joined, [(0, 0)]) == {(0, 0): ((0, 512, 0),)}
    assert map_ranges(0, apart, [(0, 0)]) == {(0, 0): ((0, 256, 0), (256, 256, 512))}
    assert Layout((256,), int16, joined).read_pieces == [(0, 512)]
    assert Layout((256,), int16, apart).read_pieces == [(0, 256), (512, 256)]


def test_pieces_of_different_pes_stay_apart():
    # Slices of neighbours touch in physical memory, and a transaction goes to one of them.
    shards = [TensorShard(0, 0, pe, 256 * pe, 256 * pe, 256, (slice(0, 128),)) for pe in (0, 1)]
    assert Layout((256,), int16, shards).read_pieces == [(0, 256), (256, 256)]
