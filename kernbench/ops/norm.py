"""Softmax and normalization of rows, computed in f32, without weights."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kernbench.kernels.partition import Parts, mine
from kernbench.ops._access import BLOCK, load_places
from kernbench.triton_emu._handles import Pointer, Tile
from kernbench.triton_emu.tl_context import TLContext


def _normalized(x: Tile, eps: float, tl: TLContext) -> Tile:
    return x * tl.rsqrt(tl.sum(x * x, axis=1, keep_dims=True) * (1 / x.shape[1]) + eps)


def _centred(x: Tile, tl: TLContext) -> Tile:
    return x - tl.sum(x, axis=1, keep_dims=True) * (1 / x.shape[1])


_FUNCTIONS: dict[str, Callable[[TLContext, Tile, float], Tile]] = {
    "softmax": lambda tl, x, _eps: tl.softmax(x, dim=1),
    "rms_norm": lambda tl, x, eps: _normalized(x, eps, tl),
    "layer_norm": lambda tl, x, eps: _normalized(_centred(x, tl), eps, tl),
}


def norm(
    out_ptr: Pointer, x: tuple[Pointer, np.ndarray, np.ndarray], name: str, eps: float, parts: Parts, *, tl: TLContext
) -> None:
    """Normalize the rows of x; each program writes the elements in its parts of out's memory.

    `x` is a tensor, the places of the elements of each row, and those of the results.
    """
    pointer, places, targets = x
    held = np.zeros(targets.shape, bool)
    for first, n in mine(parts, tl):
        held |= (targets >= first) & (targets < first + n)
    rows, step = np.flatnonzero(held.any(axis=1)), max(1, BLOCK // targets.shape[1])
    for own in (rows[at : at + step] for at in range(0, rows.size, step)):
        y = _FUNCTIONS[name](tl, load_places(pointer, places[own], tl).to(tl.float32), eps)
        mask = None if held[own].all() else tl.constant(held[own]) != 0
        tl.store(out_ptr + tl.constant(targets[own]), y, mask=mask)
