"""The operators of a Llama block between its linear layers, on row-major activations."""

from __future__ import annotations

from collections.abc import Iterator

from kernbench.kernels.elementwise import rotate
from kernbench.kernels.partition import blocks, program_number, programs
from kernbench.triton_emu._handles import Pointer
from kernbench.triton_emu.tl_context import TLContext


def rmsnorm(
    x_ptr: Pointer, weight_ptr: Pointer, out_ptr: Pointer, rows: int, columns: int, eps: float, *, tl: TLContext
) -> None:
    """Write x / sqrt(mean(x^2) + eps) * weight to out, by rows, computed in f32; rows are shared among programs."""
    for start, size in blocks(rows, 8, tl):
        place = start * columns
        x = tl.load(x_ptr + place, shape=(size, columns)).to(tl.float32)
        weight = tl.load(weight_ptr, shape=(1, columns)).to(tl.float32)
        mean_square = tl.sum(x * x, axis=1, keep_dims=True) * (1 / columns)
        tl.store(out_ptr + place, x * tl.rsqrt(mean_square + eps) * weight)


def split_heads(
    qkv_ptr: Pointer, cos_ptr: Pointer, sin_ptr: Pointer, q_ptr: Pointer, k_ptr: Pointer, v_ptr: Pointer, tokens: int,
    batch: int, kv_heads: int, group: int, head_dim: int, block: int = 64, *, tl: TLContext,
) -> None:  # fmt: skip
    """Split the result of a fused projection into q, k and v, and rotate q and k by their positions.

    qkv is [tokens, batch, kv_heads, group + 2, head_dim]: for each kv head its query heads, then k, then v,
    as in Megatron-LM. q becomes [batch * kv_heads, tokens, group, head_dim], k and v [batch * kv_heads, tokens,
    head_dim]: the layouts of `attention`. cos and sin are [tokens, head_dim / 2]. Blocks of tokens of one head are
    assigned to programs round-robin.
    """
    half = head_dim // 2
    for start, size, sequence, head, part in _units(tokens, batch, kv_heads, group + 2, block, tl):
        token = tl.arange(0, size)[:, None] + start
        low = ((token * batch + sequence) * kv_heads + head) * (group + 2) + part
        low = low * head_dim + tl.arange(0, half)[None, :]
        first, second = tl.load(qkv_ptr + low), tl.load(qkv_ptr + (low + half))
        if part <= group:
            cos = tl.load(cos_ptr + start * half, shape=(size, half)).to(tl.float32)
            sin = tl.load(sin_ptr + start * half, shape=(size, half)).to(tl.float32)
            first, second = rotate(first.to(tl.float32), second.to(tl.float32), cos, sin, tl)
        to = (sequence * kv_heads + head) * tokens + token
        if part < group:
            out, place = q_ptr, (to * group + part) * head_dim
        else:
            out, place = (k_ptr if part == group else v_ptr), to * head_dim
        place = place + tl.arange(0, half)[None, :]
        tl.store(out + place, first)
        tl.store(out + (place + half), second)


def _units(
    tokens: int, batch: int, kv_heads: int, parts: int, block: int, tl: TLContext
) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield this program's (first token, tokens, sequence, kv head, head within its group)."""
    units = [
        (start, min(block, tokens - start), sequence, head, part)
        for start in range(0, tokens, block)
        for sequence in range(batch)
        for head in range(kv_heads)
        for part in range(parts)
    ]
    yield from units[program_number(tl) :: programs(tl)]
