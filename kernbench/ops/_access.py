"""Loads and stores by places: element offsets from a pointer.

The host knows the places; they are constants of a program and take no time, as with `tl.arange`.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from kernbench.components._command import Ref
from kernbench.triton_emu._handles import Pointer, Tile
from kernbench.triton_emu._memory_ops import Access
from kernbench.triton_emu._places import Affine, Pieces
from kernbench.triton_emu.tl_context import TLContext

BLOCK = 4096  # elements of a tile

_Places = np.ndarray | Affine | Pieces


def load_places(pointer: Pointer, places: _Places, tl: TLContext) -> Tile:
    """Load consecutive `places` as a block, others by a tile of pointers."""
    first = _start(places)
    return tl.load(pointer + tl.constant(places)) if first is None else tl.load(pointer + first, shape=places.shape)


def store_places(pointer: Pointer, places: _Places, x: Tile, tl: TLContext) -> None:
    first = _start(places)
    tl.store(pointer + (tl.constant(places) if first is None else first), x)


def block_of(pointer: Pointer, first: int, places: Affine | Pieces, tl: TLContext) -> Ref:
    """Stream a block of a matrix with its elements at `places`, as if it were stored from `first` on."""
    dtype = pointer.dtype.element_ty
    va = pointer.va + first * dtype.itemsize
    if not tl._data:
        return Ref(va, places.shape, dtype)
    access = Access.at_places(places, None) or Access.of(places.array(), None)
    return Ref(va, places.shape, dtype, access.at(pointer.va, dtype.itemsize), partial(getattr, access, "inverse"))


def _start(places: _Places) -> int | None:
    """First of places that are consecutive, in order; else None."""
    if isinstance(places, np.ndarray):
        flat = places.reshape(-1)
        follow = int(flat[-1]) - int(flat[0]) == flat.size - 1 and bool((np.diff(flat) == 1).all())
        return int(flat[0]) if follow else None
    parts = [places] if isinstance(places, Affine) else [part for _, part in places.parts]
    end = parts[0].first
    for part in parts:
        runs = part.runs() if part.ascend and part.first == end else None
        if runs is None or len(runs) > 1:
            return None
        end += runs[0][1]
    return parts[0].first
