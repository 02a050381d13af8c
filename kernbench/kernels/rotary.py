"""Rotary position embedding, in the form that Llama uses: the two halves of a head are rotated against each other."""

from __future__ import annotations

from kernbench.triton_emu.handles import Pointer, Tile
from kernbench.triton_emu.tl_context import TLContext


def rotate(first: Tile, second: Tile, cos: Tile, sin: Tile, tl: TLContext) -> tuple[Tile, Tile]:
    """Return (first cos - second sin, second cos + first sin), in f32."""
    return tl.fma(first, cos, second * sin * -1.0), tl.fma(second, cos, first * sin)


def rotary(
    x_ptr: Pointer,
    cos_ptr: Pointer,
    sin_ptr: Pointer,
    out_ptr: Pointer,
    tokens: int,
    heads: int,
    head_dim: int,
    block: int = 64,
    *,
    tl: TLContext,
) -> None:
    """Write x[tokens, heads, head_dim], rotated by the angles of its tokens, to out.

    cos and sin are [tokens, head_dim / 2]: tables, as inference engines keep them. Blocks of tokens of one head go
    round the programs.
    """
    half = head_dim // 2
    program = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    programs = tl.num_programs(0) * tl.num_programs(1)
    units = [(start, head) for start in range(0, tokens, block) for head in range(heads)]
    for start, head in units[program::programs]:
        size = min(block, tokens - start)
        cos = tl.load(cos_ptr + start * half, shape=(size, half)).to(tl.float32)
        sin = tl.load(sin_ptr + start * half, shape=(size, half)).to(tl.float32)
        at = ((start + tl.arange(0, size)[:, None]) * heads + head) * head_dim + tl.arange(0, half)[None, :]
        first = tl.load(x_ptr + at).to(tl.float32)
        second = tl.load(x_ptr + (at + half)).to(tl.float32)
        low, high = rotate(first, second, cos, sin, tl)
        tl.store(out_ptr + at, low)
        tl.store(out_ptr + (at + half), high)
