"""Reductions: the sum and the maximum of rows, and the index of the maximum."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kernbench._dtypes import DType
from kernbench.kernels.partition import Parts, part_blocks
from kernbench.ops._access import BLOCK, load_places
from kernbench.triton_emu._handles import Pointer, Tile
from kernbench.triton_emu.tl_context import TLContext

Rows = tuple[Pointer, np.ndarray]  # a tensor, and for each element of the result's memory the places of its row


def _blocks(rows: np.ndarray, parts: Parts, tl: TLContext) -> Iterator[tuple[int, np.ndarray]]:
    for at, size in part_blocks(parts, max(1, BLOCK // rows.shape[1]), tl):
        yield at, rows[at : at + size]


def _largest(x: Tile, tl: TLContext) -> Tile:
    """Largest value of each row; NaN if there is one, as in torch."""
    found: Tile = tl.max(x, axis=1)
    if not x.dtype.is_floating_point:
        return found
    nan = (x != x).to(tl.int32)  # noqa: PLR0124
    return tl.where(tl.sum(nan, axis=1) > 0, float("nan"), found)


def reduce(out_ptr: Pointer, x: Rows, name: str, compute: DType, scale: float, parts: Parts, *, tl: TLContext) -> None:
    pointer, places = x
    for at, rows in _blocks(places, parts, tl):
        total: Tile | None = None
        for start in range(0, rows.shape[1], BLOCK):
            part = load_places(pointer, rows[:, start : start + BLOCK], tl).to(compute)
            found = tl.sum(part, axis=1) if name == "sum" else _largest(part, tl)
            if total is None:
                total = found
            else:
                total = total + found if name == "sum" else _largest(_pair(total, found, tl), tl)
        assert total is not None
        tl.store(out_ptr + at, total if scale == 1 else total * scale)


def _pair(x: Tile, y: Tile, tl: TLContext) -> Tile:
    return tl.where(tl.arange(0, 2)[None, :] == 0, x[:, None], y[:, None])


def index_of_max(out_ptr: Pointer, x: Rows, parts: Parts, *, tl: TLContext) -> None:
    """Write the index of the first largest value of each row, or of its first NaN."""
    pointer, places = x
    for at, rows in _blocks(places, parts, tl):
        values = load_places(pointer, rows, tl)
        if values.dtype.itemsize < 4:
            values = values.to(tl.float32 if values.dtype.is_floating_point else tl.int32)
        found = (values == tl.max(values, axis=1, keep_dims=True)).to(tl.int32)
        if values.dtype.is_floating_point:
            nan = (values != values).to(tl.int32)  # noqa: PLR0124
            found = tl.where(tl.sum(nan, axis=1, keep_dims=True) > 0, nan, found)
        index = tl.where(found != 0, tl.arange(0, rows.shape[1])[None, :], rows.shape[1])
        tl.store(out_ptr + at, tl.min(index, axis=1))
