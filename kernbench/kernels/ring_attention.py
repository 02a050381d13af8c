"""Prefill over many ranks: every rank keeps its query tokens, K/V tiles travel, each rank folds what comes by.

On a ring a tile goes all the way round to the rank before its own; on an open chain of ranks it goes both ways to
the ends. Either way a tile is passed on before it is folded, so that it travels while the ranks work.

Source: Liu et al., Ring Attention with Blockwise Transformers (2023); zigzag and striped tokens: Brandon et al.,
Striped Attention (2023).
"""

from __future__ import annotations

from collections.abc import Iterator

from kernbench.errors import KernelError
from kernbench.kernels.attention import load_kv
from kernbench.kernels.flash import Flash, Span, causal_mask, column, tiles, visible
from kernbench.triton_emu.handles import Pointer, Tile
from kernbench.triton_emu.tl_context import TLContext

ORDERS = ("contiguous", "zigzag", "striped")
BLOCKS = 4
SLOT_BYTES = 4096


def tokens_of(order: str, rank: int, world: int, tokens: int) -> list[Span]:
    """Return which positions the `tokens` tokens of a rank have.

    Parameters
    ----------
    order : str
        "contiguous": rank after rank; "zigzag": of 2 x world chunks, the rank-th from the front and from the back;
        "striped": every world-th token. Under a causal mask the first leaves early ranks idle.
    rank, world, tokens : int
        The rank, how many there are, and the tokens of each.

    Examples
    --------
    >>> [[(s.first, s.size) for s in tokens_of("zigzag", rank, 2, 4)] for rank in range(2)]
    [[(0, 2), (6, 2)], [(2, 2), (4, 2)]]
    """
    if order == "contiguous":
        return [Span(0, tokens, rank * tokens)]
    if order == "striped":
        return [Span(0, tokens, rank, world)]
    if order != "zigzag":
        raise KernelError(f"order of tokens {order!r} is unknown; known: {', '.join(ORDERS)}")
    if tokens % 2:
        raise KernelError(f"zigzag cuts the tokens of a rank into halves; {tokens} is odd")
    half = tokens // 2
    return [Span(0, half, rank * half), Span(half, half, (2 * world - 1 - rank) * half)]


def kernel_args(
    *,
    n_elem: int,
    world_size: int,
    kv_heads: int = 1,
    group: int = 1,
    head_dim: int = 128,
    causal: bool = False,
    order: str = "contiguous",
    ring: bool = True,
    slot_bytes: int = SLOT_BYTES,
    kv_tokens: int | None = None,
) -> tuple[object, ...]:
    """Return the arguments of `ring_attention` after its pointers; `n_elem` counts a rank's q."""
    q_tokens = n_elem // (kv_heads * group * head_dim)
    tokens = q_tokens if kv_tokens is None else kv_tokens
    return kv_heads, group, q_tokens, tokens, head_dim, causal, order, ring and world_size > 1, slot_bytes


def ring_attention(
    q_ptr: Pointer,
    k_ptr: Pointer,
    v_ptr: Pointer,
    out_ptr: Pointer,
    kv_heads: int,
    group: int,
    q_tokens: int,
    kv_tokens: int,
    head_dim: int,
    causal: bool = False,
    order: str = "contiguous",
    ring: bool = True,
    slot_bytes: int = SLOT_BYTES,
    *,
    tl: TLContext,
) -> None:
    """Write softmax(q k^T / sqrt(head_dim)) v of all ranks' tokens to each rank's out.

    Pointers are to the rank's own parts: q and out [kv_heads, q_tokens, group, head_dim], k and v [kv_heads, kv_tokens,
    head_dim]. Up to BLOCKS blocks of query rows stay in TCM while the tiles of one kv head come by; a rank with more
    of them lets the tiles travel again, as do all others.

    Parameters
    ----------
    q_ptr, k_ptr, v_ptr, out_ptr : Pointer
        Of one type of float.
    kv_heads, group : int
        Key/value heads, and query heads of each.
    q_tokens, kv_tokens : int
        Of each rank; under a causal mask the same tokens.
    head_dim : int
        Elements of a head.
    causal : bool
        Whether a token sees only those up to its own.
    order : str
        As for `tokens_of`.
    ring : bool
        Whether the last rank is the neighbour of the first; else the ranks are an open chain. Queues: E to the next
        rank, W to the one before.
    slot_bytes : int
        Size of a slot of the queues. A tile that came in one slot is copied out of it: it is held while it is passed
        on, and a ring of slots that all wait for each other would stand still.
    tl : TLContext
        The language.

    Notes
    -----
    The error is bounded as that of `attention`: tiles are folded in another order.
    """
    rank, world = tl.program_id(2), tl.num_programs(2)
    if causal and q_tokens != kv_tokens:
        raise KernelError(f"a causal mask is for the same tokens; there are {q_tokens} of q and {kv_tokens} of k and v")
    size, kv_size = tiles(group, q_tokens)
    mine = [block for part in tokens_of(order, rank, world, q_tokens) for block in part.cut(size)]
    theirs = [
        [tile for part in tokens_of(order, source, world, kv_tokens) for tile in part.cut(kv_size)]
        for source in range(world)
    ]
    route = _round if ring else _both_ways
    for head in range(kv_heads):
        row, kv_row = head * q_tokens * group * head_dim, head * kv_tokens * head_dim
        for at in range(0, len(mine), BLOCKS):
            blocks = mine[at : at + BLOCKS]
            where = [row + block.start * group * head_dim for block in blocks]
            shapes = [(block.size * group, head_dim) for block in blocks]
            flash = Flash([tl.load(q_ptr + a, shape=s) for a, s in zip(where, shapes, strict=True)], tl)
            for source, came, on in route(rank, world):
                for tile in theirs[source]:
                    k, v = _tile(k_ptr + kv_row, v_ptr + kv_row, tile, head_dim, came, slot_bytes, tl)
                    for direction in on:
                        tl.send(direction, k)
                        tl.send(direction, v)
                    for i, block in enumerate(blocks):
                        if visible(block, tile, causal):
                            flash.fold(i, k, v, causal_mask(block, group, tile, tl) if causal else None)
                    del k, v
            for a, state in zip(where, flash.states(), strict=True):
                assert state is not None
                tl.store(out_ptr + a, state.o / column(state.l))


def _tile(
    k_ptr: Pointer, v_ptr: Pointer, tile: Span, head_dim: int, came: str | None, slot_bytes: int, tl: TLContext
) -> tuple[Tile, Tile]:
    if came is None:
        return load_kv(k_ptr, v_ptr, tile, head_dim, tl)
    return _received(came, k_ptr, tile, head_dim, slot_bytes, tl), _received(
        came, v_ptr, tile, head_dim, slot_bytes, tl
    )


def _received(came: str, ptr: Pointer, tile: Span, head_dim: int, slot_bytes: int, tl: TLContext) -> Tile:
    got = tl.recv(came, shape=(tile.size, head_dim), dtype=ptr.dtype)
    assert got is not None
    return tl.copy(got) if tile.size * head_dim * ptr.dtype.itemsize <= slot_bytes else got


Step = tuple[int, str | None, list[str]]  # whose tiles, where they come from, where they are passed on to


def _round(rank: int, world: int) -> Iterator[Step]:
    """Yield the steps on a ring: own tiles first, then those of the rank before, ..."""
    for step in range(world):
        yield (rank - step) % world, "W" if step else None, ["E"] if step < world - 1 else []


def _both_ways(rank: int, world: int) -> Iterator[Step]:
    """Yield the steps on an open chain: own tiles, then those of the neighbours at distance 1, 2, ..."""
    west, east = ["W"] if rank > 0 else [], ["E"] if rank < world - 1 else []
    yield rank, None, west + east
    for step in range(1, world):
        if rank - step >= 0:
            yield rank - step, "W", east
        if rank + step < world:
            yield rank + step, "E", west
