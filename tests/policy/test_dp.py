from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.errors import PlacementError
from kernbench.policy.placement.dp import POLICIES, DPPolicy, resolve_dp_policy


def shards(policy, shape, *, itemsize=2, num_pe=4, num_cubes=2):
    return resolve_dp_policy(policy, shape=shape, itemsize=itemsize, num_pe=num_pe, num_cubes=num_cubes, target_sip=1)


def test_row_wise_is_plain_row_major():
    found = shards(DPPolicy(cube="row_wise", pe="row_wise"), (16, 3))
    assert [(s.sip, s.cube, s.pe) for s in found] == [(1, c, p) for c in range(2) for p in range(4)]
    assert [s.index[0] for s in found] == [slice(i, i + 2) for i in range(0, 16, 2)]
    assert [(s.offset_bytes, s.nbytes, s.shape) for s in found] == [(12 * i, 12, (2, 3)) for i in range(8)]


def test_sizes_that_do_not_divide_follow_torch_chunk():
    # torch.chunk(range(10), 4) gives 3, 3, 3, 1; of 9 over 4 it gives 3, 3, 3: the last PE holds nothing.
    sizes = [s.shape[0] for s in shards(DPPolicy(pe="row_wise"), (10,), num_cubes=1)]
    assert sizes == [3, 3, 3, 1]
    found = shards(DPPolicy(pe="row_wise"), (9,), num_cubes=1)
    assert [(s.pe, s.shape[0]) for s in found] == [(0, 3), (1, 3), (2, 3)]
    found = shards(DPPolicy(cube="row_wise", pe="row_wise"), (3,))
    assert [(s.cube, s.pe, s.index[0]) for s in found] == [
        (0, 0, slice(0, 1)), (0, 1, slice(1, 2)), (1, 0, slice(2, 3)),
    ]  # fmt: skip


def test_the_pe_policy_cuts_the_cubes_part():
    found = shards(DPPolicy(cube="column_wise", pe="row_wise", num_pes=2), (4, 6))
    assert [(s.cube, s.pe, s.index, s.offset_bytes) for s in found] == [
        (0, 0, (slice(0, 2), slice(0, 3)), 0),
        (0, 1, (slice(2, 4), slice(0, 3)), 12),
        (1, 0, (slice(0, 2), slice(3, 6)), 24),
        (1, 1, (slice(2, 4), slice(3, 6)), 36),
    ]


def test_replicated_axes_share_the_offset():
    found = shards(DPPolicy(), (4, 6))
    assert len(found) == 8
    assert {(s.offset_bytes, s.nbytes) for s in found} == {(0, 48)}
    found = shards(DPPolicy(cube="replicate", pe="row_wise"), (4, 6))
    assert [s.offset_bytes for s in found] == [0, 12, 24, 36] * 2
    found = shards(DPPolicy(cube="row_wise", pe="replicate"), (4, 6))
    assert [s.offset_bytes for s in found] == [0] * 4 + [24] * 4


def test_cubes_by_number():
    found = shards(DPPolicy(cube="row_wise", pe="row_wise", cubes=(3, 1)), (8, 2), num_cubes=4)
    assert [(s.cube, s.index[0].start) for s in found] == [
        (3, 0),
        (3, 1),
        (3, 2),
        (3, 3),
        (1, 4),
        (1, 5),
        (1, 6),
        (1, 7),
    ]
    with pytest.raises(PlacementError, match="but there are 2, numbered from 0"):
        shards(DPPolicy(cubes=(2,)), (8, 2))
    for asked in ({"cubes": ()}, {"cubes": (1, 1)}, {"cubes": (-1,)}, {"cubes": (0,), "num_cubes": 1}):
        with pytest.raises(PlacementError, match="give different numbers from 0, without num_cubes"):
            DPPolicy(**asked)


def test_tiles_are_dealt_out_in_order():
    policy = DPPolicy(pe="tiled_row_major", tile=(2, 4), num_cubes=1, num_pes=2)
    found = shards(policy, (4, 10))
    # Six tiles: 0 1 2 / 3 4 5; even ones to PE 0. A PE's tiles lie together; the last of a row is 2 x 2.
    assert [(s.pe, s.index[0].start, s.index[1].start, s.shape, s.offset_bytes) for s in found] == [
        (0, 0, 0, (2, 4), 0), (0, 0, 8, (2, 2), 16), (0, 2, 4, (2, 4), 24),
        (1, 0, 4, (2, 4), 40), (1, 2, 0, (2, 4), 56), (1, 2, 8, (2, 2), 72),
    ]  # fmt: skip
    found = shards(DPPolicy(pe="tiled_column_major", tile=(2, 4), num_cubes=1, num_pes=4), (4, 10))
    assert [(s.pe, s.index[0].start, s.index[1].start) for s in found] == [
        (0, 0, 0), (0, 0, 8), (1, 2, 0), (1, 2, 8), (2, 0, 4), (3, 2, 4),
    ]  # fmt: skip


@given(
    st.sampled_from(sorted(POLICIES)), st.sampled_from(sorted(POLICIES)),
    st.lists(st.integers(0, 9), min_size=1, max_size=3), st.integers(1, 4), st.integers(1, 5), st.data(),
)  # fmt: skip
def test_shards_cover_the_tensor_and_its_bytes_exactly(cube, pe, shape, num_cubes, num_pe, data):
    tiled = "tiled" in cube + pe
    tile = tuple(data.draw(st.integers(1, 5)) for _ in shape) if tiled else None
    found = shards(DPPolicy(cube=cube, pe=pe, tile=tile), shape, itemsize=4, num_pe=num_pe, num_cubes=num_cubes)
    copies = (num_cubes if cube == "replicate" else 1) * (num_pe if pe == "replicate" else 1)
    times, memory = np.zeros(shape, int), np.zeros(int(np.prod(shape)) * 4, int)
    for shard in found:
        times[shard.index] += 1
        memory[shard.offset_bytes : shard.offset_bytes + shard.nbytes] += 1
        assert times[shard.index].shape == shard.shape
        assert shard.nbytes == 4 * np.prod(shard.shape) > 0
    assert (times == copies).all()
    assert (memory == copies).all()
    assert [(s.cube, s.pe) for s in found] == sorted((s.cube, s.pe) for s in found)
    where = {}
    for shard in found:
        assert where.setdefault(str(shard.index), shard.offset_bytes) == shard.offset_bytes, "copies share their VA"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"cube": "row_wse"}, "cube = 'row_wse' is not a policy; did you mean row_wise.*known: column_wise"),
        ({"num_pes": 0}, "num_pes = 0 must be at least 1"),
        ({"pe": "tiled_row_major"}, "tile = None; a tiled policy needs"),
        ({"pe": "tiled_row_major", "tile": (0, 4)}, r"tile = \(0, 4\); a tiled policy needs"),
        ({"tile": (4, 4)}, "neither cube nor pe is a tiled policy"),
    ],
)
def test_a_wrong_policy_is_refused(keys, message):
    with pytest.raises(PlacementError, match=message):
        DPPolicy(**keys)


def test_an_unknown_field_is_a_type_error():
    with pytest.raises(TypeError, match="num_sips"):
        DPPolicy(num_sips=2)


@pytest.mark.parametrize(
    ("policy", "shape", "message"),
    [
        (DPPolicy(num_pes=5), (4, 4), "num_pes = 5, but there are 4"),
        (DPPolicy(num_cubes=3), (4, 4), "num_cubes = 3, but there are 2"),
        (DPPolicy(pe="row_wise"), (), "0-d tensor cannot be sharded"),
        (DPPolicy(pe="tiled_row_major", tile=(2, 2)), (4,), "does not fit a tensor of 1 dims"),
    ],
)
def test_what_does_not_fit_is_refused(policy, shape, message):
    with pytest.raises(PlacementError, match=message):
        shards(policy, shape)


def test_an_empty_tensor_has_no_shards():
    assert shards(DPPolicy(pe="row_wise"), (0, 4)) == []
