"""Element by element over n values: each program takes its share of them, block by block."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernbench.errors import KernelError
from kernbench.kernels.partition import Parts, blocks, part_blocks, program, programs
from kernbench.triton_emu._handles import Pointer, Tile
from kernbench.triton_emu.tl_context import TLContext

BLOCK = 4096


FUNCTIONS: dict[str, Callable[..., Tile]] = {
    "add": lambda _tl, x, y: x + y,
    "mul": lambda _tl, x, y: x * y,
    "relu": lambda tl, x: tl.maximum(x, 0.0),
    "silu": lambda tl, x: x * tl.sigmoid(x),
    "gelu": lambda tl, x: x * tl.sigmoid(x * tl.fma(x * x, 0.044715, 1.0) * 1.5957691216057308),
}


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
        tl.store(out_ptr + start, FUNCTIONS["silu"](tl, x))


def gelu(x_ptr: Pointer, out_ptr: Pointer, n: int, block: int = BLOCK, *, tl: TLContext) -> None:
    """Write gelu(x) in its tanh form, x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)), to out, computed in f32."""
    for start, size in blocks(n, block, tl):
        x = tl.load(x_ptr + start, shape=(size,)).to(tl.float32)
        tl.store(out_ptr + start, FUNCTIONS["gelu"](tl, x))


def elementwise(
    name: str, operands: Sequence[Pointer | float], out_ptr: Pointer, parts: Parts, *, tl: TLContext
) -> None:
    """Write a function of the operands to out; computed in f32. Tensors have the same layout, numbers are operands."""
    if name not in FUNCTIONS:
        raise KernelError(f"function {name!r} is unknown; known: {', '.join(FUNCTIONS)}")
    for at, size in part_blocks(parts, BLOCK, tl):
        tiles = [tl.load(x + at, shape=(size,)).to(tl.float32) if isinstance(x, Pointer) else x for x in operands]
        tl.store(out_ptr + at, FUNCTIONS[name](tl, *tiles))


def swiglu(gate_ptr: Pointer, up_ptr: Pointer, out_ptr: Pointer, n: int, block: int = 4096, *, tl: TLContext) -> None:
    """Write silu(gate) up to out, element by element over n values, computed in f32."""
    for start, size in blocks(n, block, tl):
        gate = tl.load(gate_ptr + start, shape=(size,)).to(tl.float32)
        up = tl.load(up_ptr + start, shape=(size,)).to(tl.float32)
        tl.store(out_ptr + start, gate * tl.sigmoid(gate) * up)


def rotate(first: Tile, second: Tile, cos: Tile, sin: Tile, tl: TLContext) -> tuple[Tile, Tile]:
    """Return (first cos - second sin, second cos + first sin), in f32."""
    return tl.fma(first, cos, second * sin * -1.0), tl.fma(second, cos, first * sin)


def rotary(
    x_ptr: Pointer, cos_ptr: Pointer, sin_ptr: Pointer, out_ptr: Pointer, tokens: int, heads: int, head_dim: int,
    block: int = 64, *, tl: TLContext,
) -> None:  # fmt: skip
    """Write x[tokens, heads, head_dim], rotated by the angles of its tokens, to out.

    cos and sin are [tokens, head_dim / 2]: tables, as inference engines keep them. Blocks of tokens of one head go
    round the programs.
    """
    half = head_dim // 2
    units = [(start, head) for start in range(0, tokens, block) for head in range(heads)]
    for start, head in units[program(tl) :: programs(tl)]:
        size = min(block, tokens - start)
        cos = tl.load(cos_ptr + start * half, shape=(size, half)).to(tl.float32)
        sin = tl.load(sin_ptr + start * half, shape=(size, half)).to(tl.float32)
        at = ((start + tl.arange(0, size)[:, None]) * heads + head) * head_dim + tl.arange(0, half)[None, :]
        first = tl.load(x_ptr + at).to(tl.float32)
        second = tl.load(x_ptr + (at + half)).to(tl.float32)
        low, high = rotate(first, second, cos, sin, tl)
        tl.store(out_ptr + at, low)
        tl.store(out_ptr + (at + half), high)
