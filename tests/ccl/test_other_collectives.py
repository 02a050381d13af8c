"""Broadcast, reduce, reduce-scatter, all-gather, all-to-all and barrier against numpy, in the mock."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kernbench.ccl.algorithms import barrier
from kernbench.ccl.testing import run_kernel_in_mock
from kernbench.errors import ConfigError
from tests.ccl.cases import DTYPES, OPS, built, reduced, shards

WORLDS = (1, 2, 3, 6, 7, 16)
SLOTS = ({}, {"n_slots": 1, "slot_bytes": 32, "chunk_bytes": 64})


@pytest.mark.parametrize(("name", "topology"), [("broadcast", "tree_binary"), ("broadcast_ring", "ring_1d")])
def test_broadcast_from_anybody(name, topology):
    algorithm = built(name, topology, collective="broadcast")
    for n in WORLDS:
        for root in {0, n // 2, n - 1}:
            for size, slots in ((1, {}), (101, SLOTS[1])):
                x = [np.arange(size, dtype=np.float16) + rank for rank in range(n)]
                run_kernel_in_mock(algorithm, x, root=root, **slots)
                assert all((v == np.arange(size) + root).all() for v in x), (n, root)


def test_reduce_changes_only_the_root():
    algorithm = built("reduce", "tree_binary", collective="reduce")
    for n in WORLDS:
        for i, op in enumerate(OPS):
            x = shards(n, 37, op, DTYPES[i % 3])
            want = [v.copy() for v in x]
            root = (i + n) % n
            want[root] = reduced(op, x)
            run_kernel_in_mock(algorithm, x, op=op, root=root, **SLOTS[i % 2])
            for got, expected in zip(x, want, strict=True):
                np.testing.assert_array_equal(got.astype(float), expected.astype(float))


@pytest.mark.parametrize("both_ways", [False, True])
def test_reduce_scatter(both_ways):
    algorithm = built("reduce_scatter", collective="reduce_scatter")
    for n in WORLDS:
        for i, op in enumerate(OPS):
            for part, slots in ((1, {}), (33, SLOTS[1])):
                x = shards(n, n * part, op, DTYPES[i % 3])
                before = [v.copy() for v in x]
                out = [np.zeros(part, v.dtype) for v in x]
                run_kernel_in_mock(algorithm, list(zip(x, out, strict=True)), op=op, both_ways=both_ways, **slots)
                want = reduced(op, x).reshape(n, part).astype(float)
                np.testing.assert_array_equal(np.stack(out).astype(float), want)
                assert all((a == b).all() for a, b in zip(x, before, strict=True))


@pytest.mark.parametrize("both_ways", [False, True])
def test_all_gather(both_ways):
    algorithm = built("all_gather", collective="all_gather")
    for n in WORLDS:
        for part, slots in ((1, {}), (33, SLOTS[1])):
            x = shards(n, part)
            out = [np.zeros(n * part, np.float16) for _ in x]
            run_kernel_in_mock(algorithm, list(zip(x, out, strict=True)), both_ways=both_ways, **slots)
            assert all((v == np.concatenate(x)).all() for v in out)


def test_all_to_all():
    algorithm = built("all_to_all", "all_to_all", collective="all_to_all")
    for n in WORLDS:
        for part, slots in ((1, {}), (33, SLOTS[1])):
            x = shards(n, n * part)
            out = [np.zeros_like(v) for v in x]
            run_kernel_in_mock(algorithm, list(zip(x, out, strict=True)), **slots)
            want = np.stack(x).reshape(n, n, part).swapaxes(0, 1).reshape(n, -1)
            np.testing.assert_array_equal(np.stack(out), want)


@pytest.mark.parametrize("name", ["reduce_scatter", "all_to_all"])
def test_parts_have_to_be_equal(name):
    with pytest.raises(ConfigError, match="7 elements have no 2 equal parts"):
        run_kernel_in_mock(built(name, "all_to_all"), [(np.zeros(7, np.float16), np.zeros(3, np.float16))] * 2)


def test_nobody_leaves_a_barrier_before_the_last_has_come():
    came, left = [], []

    def kernel(*, tl):
        came.append(tl.program_id(2))
        barrier.kernel(tl=tl)
        left.append((tl.program_id(2), len(came)))

    algorithm = replace(built("barrier", "tree_binary", collective="barrier"), kernel=kernel)
    for n in WORLDS:
        came.clear()
        left.clear()
        run_kernel_in_mock(algorithm, [()] * n)
        assert sorted(rank for rank, _ in left) == list(range(n))
        assert {count for _, count in left} == {n}


@pytest.mark.parametrize("name", ["tree_broadcast", "tree_reduce"])
def test_a_root_that_does_not_take_part_is_refused(name):
    with pytest.raises(ConfigError, match="root = 7 must be a whole number, 0 to 1"):
        run_kernel_in_mock(name, [np.zeros(6, np.float16)] * 2, root=7)
