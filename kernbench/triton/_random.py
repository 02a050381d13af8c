"""Random numbers of Triton's language: Philox, with Triton's values."""

from __future__ import annotations

from operator import index
from typing import Any

import numpy as np

from kernbench import _dtypes as dtypes
from kernbench.errors import KernelError
from kernbench.triton_emu import _tile_ops as tile_ops
from kernbench.triton_emu._program import broadcast as broadcast_shapes


def randint(lang: Any, seed: Any, offset: Any, n_rounds: int = tile_ops.ROUNDS) -> Any:
    """Return random u32."""
    return lang._wrap(lang._tl.randint(lang._tile(seed), lang._tile(offset), n_rounds))


def randint4x(lang: Any, seed: Any, offset: Any, n_rounds: int = tile_ops.ROUNDS) -> Any:
    """Return four tensors of random u32."""
    return lang._wrap(lang._tl.randint4x(lang._tile(seed), lang._tile(offset), n_rounds))


def rand(lang: Any, seed: Any, offset: Any, n_rounds: int = tile_ops.ROUNDS) -> Any:
    """Return random floats between 0 and 1."""
    return lang._wrap(lang._tl.rand(lang._tile(seed), lang._tile(offset), n_rounds))


def randn(lang: Any, seed: Any, offset: Any, n_rounds: int = tile_ops.ROUNDS) -> Any:
    """Return random floats of a normal distribution."""
    return lang._wrap(lang._tl.randn(lang._tile(seed), lang._tile(offset), n_rounds))


def uint_to_uniform_float(lang: Any, x: Any) -> Any:
    """Return random integers as floats between 0 and 1."""
    wide = x.dtype.primitive_bitwidth == 64
    x = x.to("int64" if wide else "int32", bitcast=True)
    return lang.where(x < 0, ~x, x) * (1.0842020432385337e-19 if wide else 4.6566127342e-10)


def rand4x(lang: Any, seed: Any, offsets: Any, n_rounds: int = tile_ops.ROUNDS) -> Any:
    """Return four tensors of random floats between 0 and 1."""
    return tuple(uint_to_uniform_float(lang, x) for x in randint4x(lang, seed, offsets, n_rounds))


def pair_uniform_to_normal(lang: Any, u1: Any, u2: Any) -> Any:
    """Return two uniform floats as two normal ones."""
    angle = u2 * 6.283185307179586
    radius = lang.sqrt(lang.log(lang.maximum(u1, 1.0e-7)) * -2.0)
    return radius * lang.cos(angle), radius * lang.sin(angle)


def randn4x(lang: Any, seed: Any, offset: Any, n_rounds: int = tile_ops.ROUNDS) -> Any:
    """Return four tensors of random floats of a normal distribution."""
    u1, u2, u3, u4 = rand4x(lang, seed, offset, n_rounds)
    return (*pair_uniform_to_normal(lang, u1, u2), *pair_uniform_to_normal(lang, u3, u4))


def philox(lang: Any, seed: Any, c0: Any, c1: Any, c2: Any, c3: Any, n_rounds: int = tile_ops.ROUNDS) -> Any:
    """Return the four words of Philox."""
    rounds = index(n_rounds)
    if rounds < 0:
        raise KernelError(f"tl.philox: n_rounds = {rounds} must be a whole number >= 0")
    tiles = [lang._tile(x) for x in (c0, c1, c2, c3)]
    kind = dtypes.uint64 if tiles[0].dtype.itemsize == 8 else dtypes.uint32
    shape = broadcast_shapes("philox", *(tile.shape for tile in tiles))

    def words(s: np.ndarray, *counters: np.ndarray) -> list[np.ndarray]:
        spread = [np.broadcast_to(c.astype(kind.numpy), shape) for c in counters]
        return tile_ops.philox(s.reshape(()), spread, rounds)

    work = ("simple",) * (10 * rounds)
    operands = (lang._tile(seed), *tiles)
    return lang._wrap(tile_ops._outputs(lang._tl, "philox", work, words, operands, shape, (kind,) * 4, fold=False))
