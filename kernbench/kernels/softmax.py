"""Softmax of rows, fused: each row is read and written once."""

from __future__ import annotations

from kernbench.kernels.partition import blocks
from kernbench.triton_emu.handles import Pointer
from kernbench.triton_emu.tl_context import TLContext


def softmax(x_ptr: Pointer, out_ptr: Pointer, rows: int, cols: int, block_rows: int = 8, *, tl: TLContext) -> None:
    """Write softmax(x) along rows to out, computed in f32."""
    for start, size in blocks(rows, block_rows, tl):
        x = tl.load(x_ptr + start * cols, shape=(size, cols)).to(tl.float32)
        tl.store(out_ptr + start * cols, tl.softmax(x, dim=1))
