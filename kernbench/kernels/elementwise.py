"""Elementwise kernels over n values: each program processes its share, block by block."""

from __future__ import annotations

from kernbench.kernels.partition import blocks, program_number, programs
from kernbench.triton_emu._handles import Pointer, Tile
from kernbench.triton_emu.tl_context import TLContext

_BLOCK = 4096


def add(x_ptr: Pointer, y_ptr: Pointer, out_ptr: Pointer, n: int, block: int = _BLOCK, *, tl: TLContext) -> None:
    for start, size in blocks(n, block, tl):
        tl.store(out_ptr + start, tl.load(x_ptr + start, shape=(size,)) + tl.load(y_ptr + start, shape=(size,)))


def swiglu(gate_ptr: Pointer, up_ptr: Pointer, out_ptr: Pointer, n: int, block: int = 4096, *, tl: TLContext) -> None:
    """Write silu(gate) up to out, element by element over n values, computed in f32."""
    for start, size in blocks(n, block, tl):
        gate = tl.load(gate_ptr + start, shape=(size,)).to(tl.float32)
        up = tl.load(up_ptr + start, shape=(size,)).to(tl.float32)
        tl.store(out_ptr + start, gate * tl.sigmoid(gate) * up)


def rotate(first: Tile, second: Tile, cos: Tile, sin: Tile, tl: TLContext) -> tuple[Tile, Tile]:
    """Compute (first cos - second sin, second cos + first sin), in f32."""
    return tl.fma(first, cos, second * sin * -1.0), tl.fma(second, cos, first * sin)


def rotary(
    x_ptr: Pointer, cos_ptr: Pointer, sin_ptr: Pointer, out_ptr: Pointer, tokens: int, heads: int, head_dim: int,
    block: int = 64, *, tl: TLContext,
) -> None:  # fmt: skip
    """Write x[tokens, heads, head_dim], rotated by the angles of its tokens, to out.

    cos and sin are tables, [tokens, head_dim / 2]. Blocks of tokens of one head are assigned to programs
    round-robin.
    """
    half = head_dim // 2
    units = [(start, head) for start in range(0, tokens, block) for head in range(heads)]
    for start, head in units[program_number(tl) :: programs(tl)]:
        size = min(block, tokens - start)
        cos = tl.load(cos_ptr + start * half, shape=(size, half)).to(tl.float32)
        sin = tl.load(sin_ptr + start * half, shape=(size, half)).to(tl.float32)
        at = ((start + tl.arange(0, size)[:, None]) * heads + head) * head_dim + tl.arange(0, half)[None, :]
        first = tl.load(x_ptr + at).to(tl.float32)
        second = tl.load(x_ptr + (at + half)).to(tl.float32)
        low, high = rotate(first, second, cos, sin, tl)
        tl.store(out_ptr + at, low)
        tl.store(out_ptr + (at + half), high)
