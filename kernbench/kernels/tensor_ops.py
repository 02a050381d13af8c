"""The kernels behind operators on tensors: every PE computes its own part of the result, wherever the operands are.

The host knows where each element is. It hands each PE a list of tasks with the places of the elements, counted from the
pointers; these are constants of the program and cost nothing, as indices made by `tl.arange` do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from kernbench._dtypes import DType
from kernbench.kernels.elementwise import FUNCTIONS
from kernbench.kernels.partition import Pe, mine
from kernbench.triton_emu._handles import Pointer, Tile
from kernbench.triton_emu.tl_context import TLContext

BLOCK = 4096  # elements of a tile

Operand = Pointer | float

ELEMENTWISE: dict[str, Callable[..., Tile]] = {
    **FUNCTIONS,
    "copy": lambda _tl, x: x,
    "sub": lambda _tl, x, y: x - y,
    "div": lambda _tl, x, y: x / y,
}


class Part(NamedTuple):
    """A PE's part of an element-wise result: elements `first` to `first + n`, and the places of each operand's."""

    first: int
    n: int
    places: Sequence[np.ndarray | None]


class Rows(NamedTuple):
    """A PE's rows: the places of their elements in x and in the result, and which of the latter are the PE's own."""

    x: np.ndarray
    out: np.ndarray
    owned: np.ndarray


class Block(NamedTuple):
    """A PE's block of a product: the places of its rows of a, of its columns of b, and of its elements."""

    a: np.ndarray
    b: np.ndarray
    out: np.ndarray


def load(pointer: Pointer, places: np.ndarray, tl: TLContext) -> Tile:
    """Return the elements at `places`: as a block where they follow each other, else by a tile of pointers."""
    flat = places.reshape(-1)
    first, n = int(flat[0]), flat.size
    if int(flat[-1]) - first == n - 1 and bool((np.diff(flat) == 1).all()):
        return tl.load(pointer + first, shape=places.shape)
    return tl.load(pointer + tl.constant(places))


def elementwise(
    out_ptr: Pointer, operands: Sequence[Operand], name: str, compute: DType, tasks: Mapping[Pe, Sequence[Part]], *,
    tl: TLContext,
) -> None:  # fmt: skip
    """Write a function of the operands, computed in the type `compute`, to out; numbers are operands, too."""
    function = ELEMENTWISE[name]
    for part in mine(tasks, tl):
        for at in range(0, part.n, BLOCK):
            size = min(BLOCK, part.n - at)
            tiles = [
                load(x, places[at : at + size], tl).to(compute)
                if isinstance(x, Pointer) and places is not None
                else tl.full((size,), x, compute)
                for x, places in zip(operands, part.places, strict=True)
            ]
            tl.store(out_ptr + (part.first + at), function(tl, *tiles))


def move(out_ptr: Pointer, sources: Sequence[Pointer], tasks: Mapping[Pe, Sequence[Any]], *, tl: TLContext) -> None:
    """Write elements of several tensors to places in out: tasks are (source, its places, places in out)."""
    for source, places, targets in mine(tasks, tl):
        for at in range(0, places.size, BLOCK):
            x = load(sources[source], places[at : at + BLOCK], tl)
            tl.store(out_ptr + tl.constant(targets[at : at + BLOCK]), x)


def _largest(tl: TLContext, x: Tile) -> Tile:
    """Return the largest value of each row; NaN where there is one, as torch has it."""
    found = tl.max(x, axis=1)
    if not x.dtype.is_floating_point:
        return found
    nan = (x != x).to(tl.int32)  # noqa: PLR0124
    return tl.where(tl.sum(nan, axis=1) > 0, float("nan"), found)


REDUCTIONS: dict[str, Callable[[TLContext, Tile], Tile]] = {
    "sum": lambda tl, x: tl.sum(x, axis=1),
    "max": _largest,
}


def reduce(
    out_ptr: Pointer, x_ptr: Pointer, name: str, compute: DType, scale: float, tasks: Mapping[Pe, Sequence[Any]], *,
    tl: TLContext,
) -> None:  # fmt: skip
    """Write a reduction of rows of x, times `scale`: tasks are (first element of out, places of the rows)."""
    function = REDUCTIONS[name]
    for first, places in mine(tasks, tl):
        rows, width = places.shape
        step = max(1, BLOCK // width)
        for at in range(0, rows, step):
            total = None
            for start in range(0, width, BLOCK):
                x = load(x_ptr, places[at : at + step, start : start + BLOCK], tl).to(compute)
                found = function(tl, x)
                if total is None:
                    total = found
                elif name == "sum":
                    total = total + found
                else:
                    total = function(tl, _pair(total, found, tl))
            assert total is not None
            tl.store(out_ptr + (first + at), total if scale == 1 else total * scale)


def _pair(x: Tile, y: Tile, tl: TLContext) -> Tile:
    """Return two vectors as the columns of a matrix."""
    return tl.where(tl.arange(0, 2)[None, :] == 0, x[:, None], y[:, None])


def index_of_max(out_ptr: Pointer, x_ptr: Pointer, tasks: Mapping[Pe, Sequence[Any]], *, tl: TLContext) -> None:
    """Write the index of the first largest value of each row, or of its first NaN; tasks as for `reduce`."""
    for first, places in mine(tasks, tl):
        rows, width = places.shape
        step = max(1, BLOCK // width)
        for at in range(0, rows, step):
            x = load(x_ptr, places[at : at + step], tl)
            if x.dtype.itemsize < 4:
                x = x.to(tl.float32 if x.dtype.is_floating_point else tl.int32)
            found = (x == tl.max(x, axis=1, keep_dims=True)).to(tl.int32)
            if x.dtype.is_floating_point:
                nan = (x != x).to(tl.int32)  # noqa: PLR0124
                found = tl.where(tl.sum(nan, axis=1, keep_dims=True) > 0, nan, found)
            index = tl.where(found != 0, tl.arange(0, width)[None, :], width)
            tl.store(out_ptr + (first + at), tl.min(index, axis=1))


def _normalized(x: Tile, eps: float, tl: TLContext) -> Tile:
    return x * tl.rsqrt(tl.sum(x * x, axis=1, keep_dims=True) * (1 / x.shape[1]) + eps)


def _centred(x: Tile, tl: TLContext) -> Tile:
    return x - tl.sum(x, axis=1, keep_dims=True) * (1 / x.shape[1])


ROWS: dict[str, Callable[[TLContext, Tile, float], Tile]] = {
    "softmax": lambda tl, x, _eps: tl.softmax(x, dim=1),
    "rms_norm": lambda tl, x, eps: _normalized(x, eps, tl),
    "layer_norm": lambda tl, x, eps: _normalized(_centred(x, tl), eps, tl),
}


def by_rows(
    out_ptr: Pointer, x_ptr: Pointer, name: str, eps: float, tasks: Mapping[Pe, Sequence[Rows]], *, tl: TLContext
) -> None:
    """Write a function of whole rows of x to out, computed in f32; each PE writes the elements that it holds."""
    for task in mine(tasks, tl):
        rows, width = task.x.shape
        step = max(1, BLOCK // width)
        for at in range(0, rows, step):
            own = slice(at, at + step)
            y = ROWS[name](tl, load(x_ptr, task.x[own], tl).to(tl.float32), eps)
            mask = None if task.owned[own].all() else tl.constant(task.owned[own]) != 0
            tl.store(out_ptr + tl.constant(task.out[own]), y, mask=mask)


def matmul(
    out_ptr: Pointer, a_ptr: Pointer, b_ptr: Pointer, tasks: Mapping[Pe, Sequence[Block]], *, tl: TLContext
) -> None:
    """Write blocks of a @ b to out, accumulated in f32, tile by tile."""
    m_tile, k_tile, n_tile = 64, 128, 64
    for task in mine(tasks, tl):
        (m, k), n = task.a.shape, task.b.shape[1]
        for r in range(0, m, m_tile):
            for c in range(0, n, n_tile):
                acc = None
                for at in range(0, k, k_tile):
                    a = load(a_ptr, task.a[r : r + m_tile, at : at + k_tile], tl)
                    b = load(b_ptr, task.b[at : at + k_tile, c : c + n_tile], tl)
                    acc = tl.dot(a, b, acc)
                assert acc is not None
                tl.store(out_ptr + tl.constant(task.out[r : r + m_tile, c : c + n_tile]), acc.to(out_ptr.dtype))
