"""Attention with grouped query heads: prefill and decode, on one PE or with the work dealt out to many.

Layouts, each row-major: q and out are [kv_heads, q_len, group, head_dim], k and v [kv_heads, kv_len, head_dim]. Of
several sequences of equal length, `kv_heads` counts those of all.
"""

from __future__ import annotations

from collections.abc import Iterator

from kernbench.kernels.flash import Flash, Running, Span, causal_mask, column, seen_by, tiles
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
    behind = kv_len - q_len if causal else 0
    blocks = Span(0, q_len, behind).cut(tiles(group, q_len)[0])
    units = [(head, block) for head in range(kv_heads) for block in blocks]
    for head, block in deal(units, tl):
        at = (head * q_len + block.start) * group * head_dim
        q = tl.load(q_ptr + at, shape=(block.size * group, head_dim))
        row = head * kv_len * head_dim
        state = over_memory(q, block, k_ptr + row, v_ptr + row, Span(0, kv_len, 0), group, causal, tl)
        assert state is not None
        tl.store(out_ptr + at, state.o / column(state.l))


def over_memory(
    q: Tile, block: Span, k_ptr: Pointer, v_ptr: Pointer, kv: Span, group: int, causal: bool, tl: TLContext
) -> Running | None:
    """Return what the rows `q` of `block` know after all of `kv`, which lies in memory; None if they see nothing."""
    flash = Flash([q], tl)
    for part in (seen_by(block, kv) if causal else kv).cut(tiles(group, block.size)[1]):
        k, v = load_kv(k_ptr, v_ptr, part, q.shape[1], tl)
        flash.fold(0, k, v, causal_mask(block, group, part, tl) if causal else None)
    return flash.states()[0]


def load_kv(k_ptr: Pointer, v_ptr: Pointer, part: Span, head_dim: int, tl: TLContext) -> tuple[Tile, Tile]:
    """Return the rows `part` of k and v."""
    at, shape = part.start * head_dim, (part.size, head_dim)
    return tl.load(k_ptr + at, shape=shape), tl.load(v_ptr + at, shape=shape)


def deal(units: list[tuple[int, Span]], tl: TLContext) -> Iterator[tuple[int, Span]]:
    """Yield this program's share of `units`: they go round the programs of the launch, forth and back."""
    programs = tl.num_programs(0) * tl.num_programs(1)
    program = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    for turn, start in enumerate(range(0, len(units), programs)):
        at = start + (programs - 1 - program if turn % 2 else program)
        if at < len(units):
            yield units[at]
