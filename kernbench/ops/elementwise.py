"""Elementwise functions of tensors and numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from kernbench._dtypes import DType
from kernbench.kernels.partition import Parts, part_blocks
from kernbench.ops._access import BLOCK, load_places
from kernbench.triton_emu._handles import Pointer, Tile
from kernbench.triton_emu.tl_context import TLContext

# A number, or a tensor and the places of its elements in the order of the result's memory.
_Operand = tuple[Pointer | float, np.ndarray | None]

_FUNCTIONS: dict[str, Callable[..., Tile]] = {
    "copy": lambda _tl, x: x,
    "add": lambda _tl, x, y: x + y,
    "sub": lambda _tl, x, y: x - y,
    "mul": lambda _tl, x, y: x * y,
    "div": lambda _tl, x, y: x / y,
    "relu": lambda tl, x: tl.maximum(x, 0.0),
    "silu": lambda tl, x: x * tl.sigmoid(x),
    "gelu": lambda tl, x: x * tl.sigmoid(x * tl.fma(x * x, 0.044715, 1.0) * 1.5957691216057308),
}


def elementwise(
    out_ptr: Pointer, operands: Sequence[_Operand], name: str, compute: DType, parts: Parts, *, tl: TLContext
) -> None:
    """Write a function of the operands to out, computed in `compute`, each program its parts."""
    for at, size in part_blocks(parts, BLOCK, tl):
        tiles = [
            load_places(x, places[at : at + size], tl).to(compute)
            if isinstance(x, Pointer) and places is not None
            else tl.full((size,), x, compute)
            for x, places in operands
        ]
        tl.store(out_ptr + at, _FUNCTIONS[name](tl, *tiles))
