"""Attention with grouped query heads: prefill and decode, on one PE or with the work dealt out to many.

Layouts, each row-major: q and out are [kv_heads, q_len, group, head_dim], k and v [kv_heads, kv_len, head_dim]. Of
several sequences of equal length, `kv_heads` counts those of all.
"""

from __future__ import annotations

from collections.abc import Iterator

from kernbench.kernels.flash import Running, causal_mask, column, fold_all, tiles
from kernbench.triton_emu.handles import Pointer, Tile
from kernbench.triton_emu.tl_context import TLContext


def attention(
    q_ptr: Pointer,
    k_ptr: Pointer,
    v_ptr: Pointer,
    out_ptr: Pointer,
    kv_heads: int,
    group: int,
    q_len: int,
    kv_len: int,
    head_dim: int,
    causal: bool = False,
    *,
    tl: TLContext,
) -> None:
    """Write softmax(q k^T / sqrt(head_dim)) v to out.

    A unit of work is a block of query tokens of one kv head with all its query heads; units go round the programs,
    forth and back, so that causal blocks of few and of many kv tokens meet. K and V are read tile by tile for each
    unit, from wherever they are. With `causal`, the last query token is the last kv token.

    Parameters
    ----------
    q_ptr, k_ptr, v_ptr, out_ptr : Pointer
        To the first element of each; 16-bit floats or f32, all alike.
    kv_heads, group : int
        Key/value heads, and query heads of each.
    q_len, kv_len : int
        Tokens of q, and of k and v.
    head_dim : int
        Elements of a head.
    causal : bool
        Whether a query token sees only kv tokens up to its own.
    tl : TLContext
        The language.

    Notes
    -----
    With u the unit roundoff of the type and V the largest |v|: |error| <= u |out| + V (u + 2 ds + 2^-20), where
    ds = (head_dim + 4) 2^-24 times the largest sum |q| |k| / sqrt(head_dim) is what f32 scores may lose.
    """
    tokens, _ = tiles(group, q_len)
    units = [(head, first) for head in range(kv_heads) for first in range(0, q_len, tokens)]
    for head, first in deal(units, tl):
        count = min(tokens, q_len - first)
        at = (head * q_len + first) * group * head_dim
        q = tl.load(q_ptr + at, shape=(count * group, head_dim))
        position = kv_len - q_len + first if causal else None
        state = over_memory(None, q, k_ptr, v_ptr, head * kv_len, kv_len, group, position, tl)
        assert state is not None
        tl.store(out_ptr + at, state.o / column(state.l))


def over_memory(
    state: Running | None,
    q: Tile,
    k_ptr: Pointer,
    v_ptr: Pointer,
    row: int,
    kv_len: int,
    group: int,
    position: int | None,
    tl: TLContext,
    first: int = 0,
) -> Running | None:
    """Fold `kv_len` kv tokens that lie in memory, from row `row` of k and v on, tile by tile.

    Parameters
    ----------
    state : Running, optional
        What was folded before.
    q : Tile
        Rows x head_dim.
    k_ptr, v_ptr : Pointer
        To matrices of head_dim columns.
    row, kv_len : int
        The kv tokens: first row, and how many.
    group : int
        Query heads of a kv head.
    position : int, optional
        Position of the first query token, for a causal mask; None sees everything.
    tl : TLContext
        The language.
    first : int
        Position of the first of the kv tokens.
    """
    rows, head_dim = q.shape
    count = rows // group
    seen = kv_len if position is None else max(0, min(kv_len, position + count - first))
    _, block = tiles(group, count)

    def kv() -> Iterator[tuple[Tile, Tile, Tile | None]]:
        for start in range(0, seen, block):
            size = min(block, seen - start)
            at = (row + start) * head_dim
            mask = None if position is None else causal_mask(position, count, group, first + start, size, tl)
            yield tl.load(k_ptr + at, shape=(size, head_dim)), tl.load(v_ptr + at, shape=(size, head_dim)), mask

    return fold_all(state, q, kv(), tl)


def deal(units: list[tuple[int, int]], tl: TLContext) -> Iterator[tuple[int, int]]:
    """Yield this program's share of `units`: they go round the programs of the launch, forth and back."""
    programs = tl.num_programs(0) * tl.num_programs(1)
    program = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    for turn, start in enumerate(range(0, len(units), programs)):
        at = start + (programs - 1 - program if turn % 2 else program)
        if at < len(units):
            yield units[at]
