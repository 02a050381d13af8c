"""Attention in parts, and the log-sum-exp merge that makes one of two: associative, commutative, identity (NEG, 0, 0).

A part is a matrix of f32 with a row [m, l, o...] for each query head: m the largest scaled score, l and o the sums of
`flash`. Rows are never cut, so an all-reduce over parts may cut a message between any two rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt

from kernbench.kernels.attention import over_memory
from kernbench.kernels.flash import NEG, Running, Span, column, tiles
from kernbench.kernels.partition import blocks
from kernbench.triton_emu.handles import Pointer, Tile
from kernbench.triton_emu.tl_context import TLContext

EXTRA = 2  # m and l
BLOCK = 32


def merge(x: Tile, y: Tile, tl: TLContext) -> Tile:
    """Return the part that stands for both `x` and `y`: the operator of a reduction.

    m = max(mx, my); the rest is x e^(mx - m) + y e^(my - m), the same bits whichever comes first.
    """
    is_m = tl.arange(0, x.shape[1])[None, :] == 0
    mx, my = (tl.sum(tl.where(is_m, part, 0.0), axis=1, keep_dims=True) for part in (x, y))
    m = tl.maximum(mx, my)
    return tl.where(is_m, m, x * tl.exp(mx - m) + y * tl.exp(my - m))


def store_part(ptr: Pointer, state: Running | None, rows: int, head_dim: int, tl: TLContext) -> None:
    """Write a running softmax (None: the identity) as a part to `ptr`."""
    width = head_dim + EXTRA
    if state is None:
        tl.store(ptr, tl.where(tl.arange(0, width)[None, :] == 0, tl.full((rows, width), NEG, tl.float32), 0.0))
        return
    at = tl.arange(0, rows)[:, None] * width
    tl.store(ptr + at, column(state.m) * (1 / sqrt(head_dim)))
    tl.store(ptr + (at + 1), column(state.l))
    tl.store(ptr + (at + EXTRA + tl.arange(0, head_dim)[None, :]), state.o)


def store_normal(ptr: Pointer, part: Tile, tl: TLContext) -> None:
    """Write o / l of a part to the rows from `ptr` on."""
    rows, width = part.shape
    column = tl.arange(0, width)[None, :]
    total = tl.sum(tl.where(column == 1, part, 0.0), axis=1, keep_dims=True)
    at = tl.arange(0, rows)[:, None] * (width - EXTRA) + (column - EXTRA)
    tl.store(ptr + at, part / total, mask=(column >= EXTRA) & (at >= 0))


def attend(
    q_ptr: Pointer,
    k_ptr: Pointer,
    v_ptr: Pointer,
    part_ptr: Pointer,
    kv_heads: int,
    group: int,
    q_len: int,
    kv_len: int,
    head_dim: int,
    *,
    tl: TLContext,
) -> None:
    """Write to part what the query tokens know of k and v, all of which they see: a part for each kv head.

    q is [kv_heads, q_len, group, head_dim], k and v [kv_heads, kv_len, head_dim], part [kv_heads, q_len, group,
    head_dim + 2].
    """
    blocks = Span(0, q_len, kv_len).cut(tiles(group, q_len)[0])
    for head in range(kv_heads):
        row, kv = head * kv_len * head_dim, Span(0, kv_len, 0)
        for block in blocks:
            first, rows = (head * q_len + block.start) * group, block.size * group
            q = tl.load(q_ptr + first * head_dim, shape=(rows, head_dim))
            state = over_memory(q, block, k_ptr + row, v_ptr + row, kv, group, False, tl)
            store_part(part_ptr + first * (head_dim + EXTRA), state, rows, head_dim, tl)


def decode_part(
    q_ptr: Pointer,
    k_ptr: Pointer,
    v_ptr: Pointer,
    part_ptr: Pointer,
    kv_heads: int,
    group: int,
    kv_len: int,
    head_dim: int,
    *,
    tl: TLContext,
) -> None:
    """Let one query token see this program's own kv tokens: `attend` on its shards of k, v, part; all have one q."""
    program = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    row, at = program * kv_heads * kv_len * head_dim, program * kv_heads * group * (head_dim + EXTRA)
    attend(q_ptr, k_ptr + row, v_ptr + row, part_ptr + at, kv_heads, group, 1, kv_len, head_dim, tl=tl)


def merged_attention(
    q_ptr: Pointer,
    k_ptr: Pointer,
    v_ptr: Pointer,
    part_ptr: Pointer,
    out_ptr: Pointer,
    kv_heads: int,
    group: int,
    q_len: int,
    kv_len: int,
    head_dim: int,
    collective: Callable[..., object],
    collective_args: Sequence[object],
    *,
    tl: TLContext,
) -> None:
    """Attend with the kv tokens spread over ranks: attend to the own ones, merge all parts, write o / l to out.

    Every rank gets the result. Pointers are to the rank's own copies (q, out) and parts (k, v, part).

    Parameters
    ----------
    q_ptr, k_ptr, v_ptr, part_ptr : Pointer
        As for `attend`.
    out_ptr : Pointer
        To [kv_heads, q_len, group, head_dim].
    kv_heads, group, q_len, kv_len, head_dim : int
        As for `attend`.
    collective : callable
        The kernel of an all-reduce, run on part as it stands.
    collective_args : sequence
        Its arguments after the pointer: with `merge` as the operator and rows of head_dim + 2.
    tl : TLContext
        The language.
    """
    attend(q_ptr, k_ptr, v_ptr, part_ptr, kv_heads, group, q_len, kv_len, head_dim, tl=tl)
    collective(part_ptr, *collective_args, tl=tl)
    rows = kv_heads * q_len * group
    for start in range(0, rows, BLOCK):
        size = min(BLOCK, rows - start)
        part = tl.load(part_ptr + start * (head_dim + EXTRA), shape=(size, head_dim + EXTRA))
        store_normal(out_ptr + start * head_dim, part, tl)


def merge_parts(
    part_ptr: Pointer, out_ptr: Pointer, parts: int, rows: int, head_dim: int, block: int = BLOCK, *, tl: TLContext
) -> None:
    """Merge `parts` parts of `rows` rows each, which lie one after the other, and write o / l to out.

    Programs share the rows; each reads them from every part.
    """
    width = head_dim + EXTRA
    for start, size in blocks(rows, block, tl):
        merged = tl.load(part_ptr + start * width, shape=(size, width))
        for i in range(1, parts):
            merged = merge(merged, tl.load(part_ptr + (i * rows + start) * width, shape=(size, width)), tl)
        store_normal(out_ptr + start * head_dim, merged, tl)
