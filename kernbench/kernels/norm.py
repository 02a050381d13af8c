"""Normalization of rows: each program processes its share, a few rows at a time."""

from __future__ import annotations

from kernbench.kernels.partition import blocks
from kernbench.triton_emu._handles import Pointer
from kernbench.triton_emu.tl_context import TLContext


def layernorm(
    x_ptr: Pointer, weight_ptr: Pointer, bias_ptr: Pointer, out_ptr: Pointer, rows: int, cols: int, eps: float = 1e-5,
    block_rows: int = 8, *, tl: TLContext,
) -> None:  # fmt: skip
    """Write (x - mean) / sqrt(var + eps) * weight + bias to out, by rows, computed in f32.

    The variance is the mean square of the centred row, which avoids cancellation.
    """
    weight = bias = None
    for start, size in blocks(rows, block_rows, tl):
        if weight is None or bias is None:
            weight = tl.load(weight_ptr, shape=(1, cols)).to(tl.float32)
            bias = tl.load(bias_ptr, shape=(1, cols)).to(tl.float32)
        x = tl.load(x_ptr + start * cols, shape=(size, cols)).to(tl.float32)
        x = x - tl.sum(x, axis=1, keep_dims=True) * (1 / cols)
        variance = tl.sum(x * x, axis=1, keep_dims=True) * (1 / cols)
        tl.store(out_ptr + start * cols, tl.fma(x * tl.rsqrt(variance + eps), weight, bias))


def softmax(x_ptr: Pointer, out_ptr: Pointer, rows: int, cols: int, block_rows: int = 8, *, tl: TLContext) -> None:
    """Write softmax(x) along rows to out, computed in f32."""
    for start, size in blocks(rows, block_rows, tl):
        x = tl.load(x_ptr + start * cols, shape=(size, cols)).to(tl.float32)
        tl.store(out_ptr + start * cols, tl.softmax(x, dim=1))
