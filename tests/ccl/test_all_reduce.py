"""Every all-reduce against numpy, in the mock: any operator, type, number of participants and elements."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from kernbench.ccl import algorithms
from kernbench.ccl._all_reduce_steps import all_reduce_steps
from kernbench.ccl._schedule import Chunking
from kernbench.ccl.stages import Ring, cycle
from kernbench.ccl.testing import run_kernel_in_mock
from kernbench.errors import ConfigError
from tests.ccl.cases import DTYPES, OPS, OVER_GRIDS, OVER_LEVELS, OVER_RANKS, built, check, grid
from tests.slow import slow_after

GRIDS = ((1, 1), (2, 2), (3, 2), (2, 4), (4, 4), (5, 2))
SIP_GRIDS = ((1, 1, True), (2, 1, True), (3, 1, True), (2, 2, True), (3, 2, False))


def sizes(n):
    """Few elements, odd ones, fewer than participants, not a multiple of anything; in turn."""
    return (1, 2 * n + 1, max(1, n - 1), 37)


@pytest.mark.parametrize("name", slow_after(2, OVER_RANKS))
def test_operators_and_types_over_ranks(name):
    algorithm = built(name, OVER_RANKS[name])
    for n in range(1, 17):
        for i, (op, dtype) in enumerate(product(OPS, DTYPES)):
            if (i + n) % 5 == 0:  # each operator with each type three times, each number of ranks with three of them
                check(algorithm, None, n, sizes(n)[(i + n) % 4], op, dtype)


@pytest.mark.parametrize("name", slow_after(1, OVER_GRIDS))
def test_operators_and_types_over_grids(name):
    algorithm = built(name, OVER_GRIDS[name])
    for w, h in GRIDS if name != "ring_mesh" else GRIDS[1:]:
        for i, (op, dtype) in enumerate(product(OPS, DTYPES)):
            check(algorithm, grid(w, h), w * h, sizes(w * h)[(i + w) % 4], op, dtype)


@pytest.fixture(params=["as it is", "slices are long"])
def length(request, monkeypatch):
    """Let algorithms choose by length, and as for long slices."""
    if request.param == "slices are long":
        monkeypatch.setattr(algorithms, "SHORT_SLICE", 0)


@pytest.mark.parametrize("name", OVER_LEVELS)
@pytest.mark.parametrize("root", slow_after(1, ["corner", "centre"]))
def test_cubes_and_pes(name, root, length):
    topology, mapper = OVER_LEVELS[name]
    algorithm = built(name, topology, mapper=mapper, root_cube=root)
    runs = product(((1, 1), (2, 2), (3, 2), (3, 1)), SIP_GRIDS, (1, 2) if name != "intercube" else (1,))
    for i, ((w, h), sips, pes) in enumerate(runs):
        group = grid(*sips, places=[(cube, pe) for cube in range(w * h) for pe in range(pes)], cube_columns=w)
        n = sips[0] * sips[1] * w * h * pes
        if n > 48:
            continue
        check(algorithm, group, n, (1, 29, 7)[i % 3], list(OPS)[i % 5], DTYPES[2], n_slots=1 + i % 2, slot_bytes=32)


@pytest.mark.parametrize("name", slow_after(4, [*OVER_RANKS, *OVER_GRIDS]))
def test_any_number_of_slots_is_enough(name):
    """Messages of less than a slot, of some and of more than all; pieces of many messages."""
    over_grid = name in OVER_GRIDS
    algorithm = built(name, OVER_GRIDS[name] if over_grid else OVER_RANKS[name])
    for n, group in ((2, None), (5, None), (8, None)) if not over_grid else ((6, grid(3, 2)), (8, grid(2, 4))):
        for n_slots, slot_bytes in ((1, 16), (1, 4096), (2, 64), (3, 100)):
            for chunk_bytes in (32, 256):
                check(algorithm, group, n, 301, n_slots=n_slots, slot_bytes=slot_bytes, chunk_bytes=chunk_bytes)


@pytest.mark.parametrize("name", ["ring", "torus_2d"])
def test_one_way_or_both(name):
    group = grid(3, 2) if name == "torus_2d" else None
    algorithm = built(name, {**OVER_RANKS, **OVER_GRIDS}[name])
    for both_ways, size in product((False, True), (1, 100, 4001)):
        check(algorithm, group, 6, size, both_ways=both_ways, n_slots=2, slot_bytes=64, chunk_bytes=128)


@pytest.mark.parametrize("name", ["ring", "halving_doubling", "recursive_doubling", "tree_binary", "double_tree"])
def test_long_vectors_are_cut_into_segments(name):
    algorithm = built(name, OVER_RANKS[name])
    check(algorithm, None, 3, 700_001, dtype=DTYPES[0], n_slots=4)


@pytest.mark.parametrize("size", slow_after(1, [1000, 40, 20_011]))
@pytest.mark.parametrize("name", slow_after(2, ["torus_2d", "hierarchical_sliced", "halving_doubling"]))
def test_many_participants(name, size, length):
    """So many that rings keep to messages of their own: with short vectors in every level, with longer ones in some."""
    levels = OVER_LEVELS.get(name)
    algorithm = built(name, *levels[:1], mapper=levels[1]) if levels else built(name, (OVER_RANKS | OVER_GRIDS)[name])
    group = {"torus_2d": grid(8, 8), "halving_doubling": None}.get(name, grid(2, 1, True, PES_OF_8_CUBES, 4))
    check(algorithm, group, 128 if levels else 64, size, n_slots=1, slot_bytes=128)


PES_OF_8_CUBES = [(cube, pe) for cube in range(8) for pe in range(8)]


def test_messages_are_no_more_than_steps_where_they_are_short():
    def sent(levels, n):
        return sum(len(step.to) for step in all_reduce_steps(levels, (0, n), Chunking(itemsize=2)))

    pes, cubes, sips = Ring(3, 8, "local_E", "local_W"), cycle(5, 4, 4), Ring(2, 6, "global_E", "global_W")
    assert sent([pes, cubes, sips], 1024) == 2 * (7 + 15 + 5)
    row, column = Ring(3, 8, "E", "W"), Ring(5, 8, "S", "N")
    assert sent([row, column], 1024) == 2 * (7 + 7)
    # Longer pieces, and few short ones, go through all levels in one pipeline.
    assert sent([row, column], 1 << 16) == 2 * 63
    assert sent([Ring(0, 4, "E", "W"), Ring(1, 4, "S", "N")], 64) == 2 * 15


def test_members_whose_parts_differ_decide_alike_how_to_send_them():
    """The longest part is too long to keep rings apart, and the shortest is not."""
    check(built("torus_2d", "torus_2d"), grid(8, 8), 64, 8 * 1791 + 4, both_ways=False)


def log_sum_exp(a, b, tl):
    """Merge rows (m, l): the largest exponent, and the sum of exponentials relative to it."""
    is_m = tl.arange(0, 2)[None, :] == 0
    ma, mb = (tl.max(tl.where(is_m, x, -1e30), axis=1, keep_dims=True) for x in (a, b))
    m = tl.maximum(ma, mb)
    return tl.where(is_m, m, a * tl.exp(ma - m) + b * tl.exp(mb - m))


@pytest.mark.parametrize("name", [*OVER_RANKS, *OVER_GRIDS])
def test_an_operator_of_ones_own(name):
    """Rows are never cut apart, and 16-bit ones are merged in f32."""
    over_grid = name in OVER_GRIDS
    algorithm = built(name, OVER_GRIDS[name] if over_grid else OVER_RANKS[name])
    n = 6
    for dtype, tolerance in ((np.float32, 1e-5), (np.float16, 3e-2)):
        rng = np.random.default_rng(0)
        parts = [np.stack([rng.normal(size=7), rng.uniform(1, 2, 7)], axis=1).astype(dtype) for _ in range(n)]
        want = np.log(sum(p[:, 1].astype(np.float64) * np.exp(p[:, 0].astype(np.float64)) for p in parts))
        run_kernel_in_mock(
            algorithm, parts, group=grid(3, 2) if over_grid else None, op=log_sum_exp, row=2, chunk_bytes=16, n_slots=2
        )
        for part in parts:
            got = part[:, 0] + np.log(part[:, 1].astype(np.float64))
            np.testing.assert_allclose(got, want, atol=tolerance)


def test_sixteen_bit_sums_are_rounded_where_they_leave_a_pe():
    """2048 + 1 is 2048 in f16: what one PE adds keeps it, what is sent in between does not."""
    x = [np.array([v], np.float16) for v in (2048, 1, 1)]
    run_kernel_in_mock(built("tree_binary", "tree_binary"), x)
    assert [float(v[0]) for v in x] == [2050.0] * 3
    x = [np.array([v], np.float16) for v in (1, 2048, 1, 0)]
    run_kernel_in_mock(built("ring"), x)
    assert len({float(v[0]) for v in x}) == 1
    assert float(x[0][0]) in (2048.0, 2050.0)


@pytest.mark.parametrize("name", OVER_RANKS)
def test_error_of_sixteen_bit_sums(name):
    n, size = 16, 64
    rng = np.random.default_rng(1)
    x = [rng.normal(size=size).astype(np.float16) for _ in range(n)]
    exact = np.sum([v.astype(np.float64) for v in x], axis=0)
    scale = np.sum([np.abs(v.astype(np.float64)) for v in x], axis=0)
    run_kernel_in_mock(built(name, OVER_RANKS[name]), x)
    for v in x:
        assert (np.abs(v - exact) <= (n - 1) * 2.0**-11 * scale).all()


@pytest.mark.parametrize("name", [n for n in OVER_RANKS if n != "ring_flat"])
def test_participants_agree_to_the_bit(name):
    rng = np.random.default_rng(2)
    x = [rng.normal(size=33).astype(np.float32) for _ in range(11)]
    run_kernel_in_mock(built(name, OVER_RANKS[name]), x)
    assert all((v == x[0]).all() for v in x)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"op": "summ"}, "op = 'summ' is not a reduction; did you mean sum?"),
        ({"row": 4}, "row = 4: expected a divisor of the 6 elements"),
        ({"chunks": 2}, "takes no option 'chunks'"),
    ],
)
def test_what_a_call_may_not_ask_for(call, message):
    with pytest.raises(ConfigError, match=message):
        run_kernel_in_mock(built("ring"), [np.zeros(6, np.float16)] * 2, **call)


def test_a_mesh_without_a_cycle_is_refused():
    with pytest.raises(ConfigError, match="3 x 3 mesh has no cycle"):
        check(built("ring_mesh", "mesh_cycle"), grid(3, 3), 9, 4)
