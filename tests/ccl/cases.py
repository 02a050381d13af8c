"""Data whose reductions are exact in every type, and algorithms on made-up groups."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from kernbench.ccl import algorithms
from kernbench.ccl._group import Grid, Group
from kernbench.ccl.algorithm import algorithm
from kernbench.ccl.testing import run_kernel_in_mock

OPS = {"sum": np.sum, "avg": np.mean, "min": np.min, "max": np.max, "product": np.prod}
DTYPES = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32))

# Module, topology, mapper of every all-reduce.
OVER_RANKS = {
    "ring": "ring_1d",
    "ring_flat": "ring_1d_unidir",
    "tree_binary": "tree_binary",
    "double_tree": "double_tree",
    "halving_doubling": "hypercube",
    "recursive_doubling": "hypercube",
}
OVER_GRIDS = {
    "mesh_2d": "mesh_2d_no_wrap", "torus_2d": "torus_2d", "ring_mesh": "mesh_cycle", "double_torus": "double_torus",
}  # fmt: skip
OVER_LEVELS = {
    "intercube": ("intercube", "by_cube"),
    "hierarchical": ("hierarchical_3level", "all_pes"),
    "hierarchical_sliced": ("hierarchical_3level", "all_pes"),
}


def built(module, topology="ring_1d", **settings):
    found = getattr(algorithms, module)
    return algorithm(found.kernel, found.kernel_args, name=module, topology=topology, cost=found.cost, **settings)


def grid(w, h, wraps=True, places=((0, 0),), cube_columns=1):
    line = Group.line(w * h, places, cube_columns)
    return Group(line.shards, Grid(w, h, wraps), cube_columns)


def shards(n, size, op="sum", dtype=DTYPES[0], seed=0):
    """Return one array for each participant; sums of integers below 10 and products of powers of two are exact."""
    rng = np.random.default_rng([seed, n, size])
    if op == "product":
        return [np.exp2(rng.integers(-1, 2, size)).astype(dtype) for _ in range(n)]
    return [rng.integers(-4, 10, size).astype(dtype) for _ in range(n)]


def reduced(op, tensors):
    """Return what `op` makes of the tensors, rounded once."""
    wide = np.stack(tensors).astype(np.float64)
    if op == "avg":
        return (wide.sum(axis=0).astype(np.float32) / np.float32(len(tensors))).astype(tensors[0].dtype)
    return OPS[op](wide, axis=0).astype(tensors[0].dtype)


def check(algorithm, group, n, size, op="sum", dtype=DTYPES[0], *, n_slots=None, slot_bytes=4096, **call):
    """Run an all-reduce in the mock and compare every participant's result with numpy's."""
    tensors = shards(n, size, op, dtype)
    want = reduced(op, tensors)
    run_kernel_in_mock(algorithm, tensors, group=group, op=op, n_slots=n_slots, slot_bytes=slot_bytes, **call)
    for rank, got in enumerate(tensors):
        np.testing.assert_array_equal(
            got.astype(np.float64), want.astype(np.float64), f"{algorithm.name}, {n} x {size}, {op}, {dtype}: {rank}"
        )
