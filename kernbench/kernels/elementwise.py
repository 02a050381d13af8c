"""Element by element over n values: each program takes its share of them, block by block."""

from __future__ import annotations

from kernbench.kernels.partition import blocks
from kernbench.triton_emu.handles import Pointer
from kernbench.triton_emu.tl_context import TLContext

BLOCK = 4096


def copy(x_ptr: Pointer, out_ptr: Pointer, n: int, block: int = BLOCK, *, tl: TLContext) -> None:
    """Write x to out."""
    for start, size in blocks(n, block, tl):
        tl.store(out_ptr + start, tl.load(x_ptr + start, shape=(size,)))


def add(x_ptr: Pointer, y_ptr: Pointer, out_ptr: Pointer, n: int, block: int = BLOCK, *, tl: TLContext) -> None:
    """Write x + y to out."""
    for start, size in blocks(n, block, tl):
        tl.store(out_ptr + start, tl.load(x_ptr + start, shape=(size,)) + tl.load(y_ptr + start, shape=(size,)))


def mul(x_ptr: Pointer, y_ptr: Pointer, out_ptr: Pointer, n: int, block: int = BLOCK, *, tl: TLContext) -> None:
    """Write x * y to out."""
    for start, size in blocks(n, block, tl):
        tl.store(out_ptr + start, tl.load(x_ptr + start, shape=(size,)) * tl.load(y_ptr + start, shape=(size,)))


def relu(x_ptr: Pointer, out_ptr: Pointer, n: int, block: int = BLOCK, *, tl: TLContext) -> None:
    """Write max(x, 0) to out."""
    for start, size in blocks(n, block, tl):
        tl.store(out_ptr + start, tl.maximum(tl.load(x_ptr + start, shape=(size,)), 0))


def silu(x_ptr: Pointer, out_ptr: Pointer, n: int, block: int = BLOCK, *, tl: TLContext) -> None:
    """Write x sigmoid(x) to out, computed in f32."""
    for start, size in blocks(n, block, tl):
        x = tl.load(x_ptr + start, shape=(size,)).to(tl.float32)
        tl.store(out_ptr + start, x * tl.sigmoid(x))


def gelu(x_ptr: Pointer, out_ptr: Pointer, n: int, block: int = BLOCK, *, tl: TLContext) -> None:
    """Write gelu(x) in its tanh form, x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)), to out, computed in f32."""
    for start, size in blocks(n, block, tl):
        x = tl.load(x_ptr + start, shape=(size,)).to(tl.float32)
        inner = x * tl.fma(x * x, 0.044715, 1.0)
        tl.store(out_ptr + start, x * tl.sigmoid(inner * 1.5957691216057308))
