"""The same program on torch's own DTensor and here, where torch is installed: every rank's part of every result."""

from __future__ import annotations

import importlib.util
import warnings
from contextlib import contextmanager
from itertools import product

import numpy as np
import pytest

from kernbench import dtensor as dt
from tests.dtensor.test_dtensor import spawned

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch, the oracle, is not installed"),
]
X, Y, Z = np.random.default_rng(3).integers(-4, 5, (3, 7, 5)).astype(np.float32)
# Operands that fit a rule as they are.
FIT = ["(R) @ (R)", "(R) @ (S1)", "(S0) @ (R)", "(S1) @ (S0)", *(f"({p}) + ({p})" for p in ("R", "S0", "S1", "P"))]


@contextmanager
def one_thread(shape):
    """Torch's module, a mesh of which one thread plays all ranks, and how it gets values on each."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own
        import torch
        from torch.distributed import tensor
        from torch.distributed._local_tensor import LocalTensor, LocalTensorMode
        from torch.testing._internal.distributed.fake_pg import FakeStore

        ranks = int(np.prod(shape))
        torch.distributed.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
        try:
            with LocalTensorMode(ranks):
                mesh = tensor.init_device_mesh("cpu", shape)
                yield tensor, mesh, lambda x: LocalTensor({rank: torch.tensor(x) for rank in range(ranks)})
        finally:
            torch.distributed.destroy_process_group()


def spread(where, mesh, x, placements):
    """Distribute `x`; along an axis of summands every rank has all of it."""
    there = [where.Replicate() if "Partial" in repr(p) else p for p in placements]
    d = where.distribute_tensor(x, mesh, there)
    if there == list(placements):
        return d
    options = {} if where is dt else {"stride": (x.shape[1], 1)}
    return where.DTensor.from_local(d.to_local(), mesh, placements, shape=x.shape, **options)


def program(where, mesh, shape, tensor_of):
    """Yield (what it is, DTensor): moves, and what the operations make of pairs of placements."""
    words = {"R": where.Replicate(), "S0": where.Shard(0), "S1": where.Shard(1), "P": where.Partial()}
    kinds = {f"({' '.join(w)})": [words[p] for p in w] for w in product(words, repeat=len(mesh.shape))}
    box = tuple(slice(n) for n in shape)
    x, y, z = (tensor_of(np.ascontiguousarray(v)) for v in (X[box], Y[box], Z[box].T))
    pairs = list(product(kinds.items(), repeat=2))
    for (a, source), (b, target) in pairs[:: 1 if len(pairs) < 20 else 13]:
        d = spread(where, mesh, x, source)
        yield f"{a} * 2", d * 2
        # Torch keeps summands to itself: no caller gets one of what is none.
        if not any("Partial" in repr(new) and new != old for old, new in zip(source, target, strict=True)):
            yield f"{a} to {b}", d.redistribute(mesh, target)
        yield f"{a} + {b}", d + spread(where, mesh, y, target)
        yield f"{a} * {b}", d * spread(where, mesh, y, target)
        yield f"{a} @ {b}", d @ spread(where, mesh, z, target)


@pytest.mark.parametrize("shape", [(7, 5), (2, 3)])  # uneven; with empty parts
@pytest.mark.parametrize("mesh_shape", [(3,), (2, 2)])
def test_parts_are_those_of_torch(mesh_shape, shape):
    ranks = range(int(np.prod(mesh_shape)))
    want = {}
    with one_thread(mesh_shape) as (where, mesh, tensor_of):
        for name, d in program(where, mesh, shape, tensor_of):
            parts, whole = d.to_local()._local_tensors, d.full_tensor()._local_tensors[0]
            want[name] = [repr(p) for p in d.placements], [parts[r].numpy().copy() for r in ranks], whole.numpy().copy()

    def here(torch, mesh):
        return {
            name: ([repr(p) for p in d.placements], d.to_local().numpy(), d.full_tensor().numpy())
            for name, d in program(dt, mesh, shape, torch.from_numpy)
        }

    for rank, found in enumerate(spawned(here, len(ranks), mesh_shape)[0]):
        assert set(found) == set(want)
        for name, (placements, part, whole) in found.items():
            same, parts, torchs = want[name]
            np.testing.assert_allclose(whole, torchs, rtol=1e-6, atol=1e-5, err_msg=name)
            # Where operands do not fit, each chooses by its own measure which of them moves.
            if " to " in name or name.endswith("* 2") or (shape == (7, 5) and name in FIT):
                assert placements == same, name
            if placements == same and "Partial" not in " ".join(placements):
                np.testing.assert_allclose(part, parts[rank], rtol=1e-6, atol=1e-5, err_msg=name)
