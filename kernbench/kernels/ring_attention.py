"""Prefill over many ranks: ranks keep their query tokens and fold the K/V tiles that travel from rank to rank.

On a ring a tile travels around to the rank before its own; on an open chain of ranks it travels both ways to
the ends. A tile is sent on before it is folded, so that it travels while the ranks work.

Source: Liu et al., Ring Attention with Blockwise Transformers (2023); zigzag and striped tokens: Brandon et al.,
Striped Attention (2023).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import sqrt

from kernbench.errors import KernelError
from kernbench.kernels.attention import (
    NEG,
    Flash,
    Running,
    TokenSpan,
    causal_mask,
    load_kv,
    over_memory,
    tiles,
    to_column,
    visible,
)
from kernbench.triton_emu._handles import Pointer, Tile
from kernbench.triton_emu.tl_context import TLContext

EXTRA = 2  # m and l
_BLOCK = 32
HELD_BYTES = 256 * 1024  # bytes of running states in TCM at a time: a quarter of the kernel's scratch


def merge(x: Tile, y: Tile, tl: TLContext) -> Tile:
    """Combine two partial results: the operator of a reduction.

    m = max(mx, my); the rest is x e^(mx - m) + y e^(my - m), bit-identical in either order.
    """
    is_m = tl.arange(0, x.shape[1])[None, :] == 0
    mx, my = (tl.sum(tl.where(is_m, part, 0.0), axis=1, keep_dims=True) for part in (x, y))
    m, of_x, of_y = _weights(mx, my, tl)
    return tl.where(is_m, m, x * of_x + y * of_y)


def _weights(mx: Tile, my: Tile, tl: TLContext) -> tuple[Tile, Tile, Tile]:
    """Return the larger of two scaled maxima, and the factors of the sums that belong to each."""
    m = tl.maximum(mx, my)
    return m, tl.exp(mx - m), tl.exp(my - m)


def store_part(ptr: Pointer, state: Running | None, rows: int, head_dim: int, tl: TLContext) -> None:
    """Write a running softmax (None: the identity) as a partial result: per row m, scaled, l and o."""
    width = head_dim + EXTRA
    if state is None:
        tl.store(ptr, tl.where(tl.arange(0, width)[None, :] == 0, tl.full((rows, width), NEG, tl.float32), 0.0))
        return
    at = tl.arange(0, rows)[:, None] * width
    tl.store(ptr + at, to_column(state.m) * (1 / sqrt(head_dim)))
    tl.store(ptr + (at + 1), to_column(state.l))
    tl.store(ptr + (at + EXTRA + tl.arange(0, head_dim)[None, :]), state.o)


def store_normal(ptr: Pointer, part: Tile, tl: TLContext) -> None:
    """Write o / l of a partial result to the rows from `ptr` on."""
    rows, width = part.shape
    column = tl.arange(0, width)[None, :]
    total = tl.sum(tl.where(column == 1, part, 0.0), axis=1, keep_dims=True)
    at = tl.arange(0, rows)[:, None] * (width - EXTRA) + (column - EXTRA)
    tl.store(ptr + at, part / total, mask=(column >= EXTRA) & (at >= 0))


def attend(
    q_ptr: Pointer, k_ptr: Pointer, v_ptr: Pointer, part_ptr: Pointer, kv_heads: int, group: int, q_len: int,
    kv_len: int, head_dim: int, *, tl: TLContext,
) -> None:  # fmt: skip
    """Write the partial results of the query tokens, which see all of k and v, to part, one for each kv head.

    q is [kv_heads, q_len, group, head_dim], k and v [kv_heads, kv_len, head_dim], part [kv_heads, q_len, group,
    head_dim + 2].
    """
    blocks = TokenSpan(0, q_len, kv_len).cut(tiles(group, q_len)[0])
    for head in range(kv_heads):
        row, kv = head * kv_len * head_dim, TokenSpan(0, kv_len, 0)
        for block in blocks:
            first, rows = (head * q_len + block.start) * group, block.size * group
            q = tl.load(q_ptr + first * head_dim, shape=(rows, head_dim))
            state = over_memory(q, block, k_ptr + row, v_ptr + row, kv, group, False, tl)
            store_part(part_ptr + first * (head_dim + EXTRA), state, rows, head_dim, tl)


def merged_attention(
    q_ptr: Pointer, k_ptr: Pointer, v_ptr: Pointer, part_ptr: Pointer, out_ptr: Pointer, kv_heads: int, group: int,
    q_len: int, kv_len: int, head_dim: int, collective: Callable[..., object], collective_args: Sequence[object], *,
    tl: TLContext,
) -> None:  # fmt: skip
    """Compute attention with kv tokens distributed over ranks: merge all ranks' partial results, write o / l to out.

    Every rank gets the result. Pointers refer to the rank's own copies (q, out) and parts (k, v, part).
    """
    attend(q_ptr, k_ptr, v_ptr, part_ptr, kv_heads, group, q_len, kv_len, head_dim, tl=tl)
    collective(part_ptr, *collective_args, tl=tl)
    rows = kv_heads * q_len * group
    for start in range(0, rows, _BLOCK):
        size = min(_BLOCK, rows - start)
        part = tl.load(part_ptr + start * (head_dim + EXTRA), shape=(size, head_dim + EXTRA))
        store_normal(out_ptr + start * head_dim, part, tl)


def exchanged_attention(
    q_ptr: Pointer, k_ptr: Pointer, v_ptr: Pointer, out_ptr: Pointer, kv_heads: int, group: int, q_len: int,
    kv_len: int, head_dim: int, *, tl: TLContext,
) -> None:  # fmt: skip
    """Compute `merged_attention` by recursive doubling, with q and the running states in TCM throughout.

    Ranks exchange whole states with partners at distance 1, 2, 4, ...; those beyond the largest power of two send
    theirs to a partner first and get the result from it. Memory is read for q, k and v, and written for out only.
    """
    tokens = tiles(group, q_len)[0]
    units = [(head, block) for head in range(kv_heads) for block in TokenSpan(0, q_len, kv_len).cut(tokens)]
    at_once = max(1, HELD_BYTES // (4 * tokens * group * (head_dim + EXTRA)))
    for first in range(0, len(units), at_once):
        held = units[first : first + at_once]
        states = []
        for head, block in held:
            row = head * kv_len * head_dim
            q = tl.load(q_ptr + _first(head, block, q_len, group) * head_dim, shape=(block.size * group, head_dim))
            state = over_memory(q, block, k_ptr + row, v_ptr + row, TokenSpan(0, kv_len, 0), group, False, tl)
            assert state is not None
            states.append(Running(state.m * (1 / sqrt(head_dim)), state.l, state.o))
        for (head, block), state in zip(held, _exchange(states, tl), strict=True):
            tl.store(out_ptr + _first(head, block, q_len, group) * head_dim, state.o / to_column(state.l))


def _exchange(states: list[Running], tl: TLContext) -> list[Running]:
    """Merge `states`, with scaled m, with those of all other ranks: bit-identical on every rank."""
    rank, n = tl.program_id(2), tl.num_programs(2)
    power = 1 << n.bit_length() - 1
    if rank >= power:
        _send("fold", states, tl)
        return [Running(*(tl.copy(_received_part("fold", x, tl)) for x in (own.m, own.l, own.o))) for own in states]
    if rank < n - power:
        states = [_merged("fold", own, tl) for own in states]
    for direction in (f"bit{bit}" for bit in range(power.bit_length() - 1)):
        _send(direction, states, tl)
        states = [_merged(direction, own, tl) for own in states]
    if rank < n - power:
        _send("fold", states, tl)
    return states


def _send(direction: str, states: Sequence[Running], tl: TLContext) -> None:
    for state in states:
        for tile in (state.m, state.l, state.o):
            tl.send(direction, tile)


def _merged(direction: str, own: Running, tl: TLContext) -> Running:
    """Merge `own` with the state received from `direction`; each message leaves its slot before the next one."""
    m, of_own, of_other = _weights(own.m, _received_part(direction, own.m, tl), tl)
    total = own.l * of_own + _received_part(direction, own.l, tl) * of_other
    return Running(m, total, own.o * to_column(of_own) + _received_part(direction, own.o, tl) * to_column(of_other))


def _received_part(direction: str, like: Tile, tl: TLContext) -> Tile:
    got = tl.recv(direction, shape=like.shape, dtype=tl.float32)
    assert got is not None
    return got


def _first(head: int, block: TokenSpan, q_len: int, group: int) -> int:
    return (head * q_len + block.start) * group


ORDERS = ("contiguous", "zigzag", "striped")
BLOCKS = 4
SLOT_BYTES = 4096


def tokens_of(order: str, rank: int, world: int, tokens: int) -> list[TokenSpan]:
    """Return the positions of the `tokens` tokens of a rank; under a causal mask "contiguous" leaves ranks idle.

    "zigzag": of 2 x world chunks, the rank-th from the front and from the back; "striped": every world-th token.

    >>> [[(s.first, s.size) for s in tokens_of("zigzag", rank, 2, 4)] for rank in range(2)]
    [[(0, 2), (6, 2)], [(2, 2), (4, 2)]]
    """
    if order == "contiguous":
        return [TokenSpan(0, tokens, rank * tokens)]
    if order == "striped":
        return [TokenSpan(0, tokens, rank, world)]
    if order != "zigzag":
        raise KernelError(f"order of tokens {order!r} is unknown; known: {', '.join(ORDERS)}")
    if tokens % 2:
        raise KernelError(f"zigzag cuts the tokens of a rank into halves; {tokens} is odd")
    half = tokens // 2
    return [TokenSpan(0, half, rank * half), TokenSpan(half, half, (2 * world - 1 - rank) * half)]


def kernel_args(
    *, n_elem: int, world_size: int, kv_heads: int = 1, group: int = 1, head_dim: int = 128, causal: bool = False,
    order: str = "contiguous", ring: bool = True, slot_bytes: int = SLOT_BYTES, kv_tokens: int | None = None,
) -> tuple[object, ...]:  # fmt: skip
    """Return the arguments of `ring_attention` after its pointers; `n_elem` is the number of elements of a rank's q."""
    q_tokens = n_elem // (kv_heads * group * head_dim)
    tokens = q_tokens if kv_tokens is None else kv_tokens
    return kv_heads, group, q_tokens, tokens, head_dim, causal, order, ring and world_size > 1, slot_bytes


def ring_attention(
    q_ptr: Pointer, k_ptr: Pointer, v_ptr: Pointer, out_ptr: Pointer, kv_heads: int, group: int, q_tokens: int,
    kv_tokens: int, head_dim: int, causal: bool = False, order: str = "contiguous", ring: bool = True,
    slot_bytes: int = SLOT_BYTES, *, tl: TLContext,
) -> None:  # fmt: skip
    """Write softmax(q k^T / sqrt(head_dim)) v of all ranks' tokens to each rank's out.

    Pointers refer to the rank's own parts: q and out [kv_heads, q_tokens, group, head_dim], k and v
    [kv_heads, kv_tokens, head_dim]. Up to BLOCKS blocks of query rows stay in TCM while the tiles of one kv head
    arrive; for more blocks the tiles of all ranks travel again. The error bound is that of `attention`.

    Queues: E to the next rank, W to the previous one; without `ring` the ranks are an open chain. A tile received in
    one slot, of `slot_bytes`, is copied out of it: it is held while it is sent on, and a ring of slots that all
    wait for each other would deadlock.
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
                tl.store(out_ptr + a, state.o / to_column(state.l))


def _tile(
    k_ptr: Pointer, v_ptr: Pointer, tile: TokenSpan, head_dim: int, came: str | None, slot_bytes: int, tl: TLContext
) -> tuple[Tile, Tile]:
    if came is None:
        return load_kv(k_ptr, v_ptr, tile, head_dim, tl)
    k, v = (_received(came, ptr, tile, head_dim, slot_bytes, tl) for ptr in (k_ptr, v_ptr))
    return k, v


def _received(came: str, ptr: Pointer, tile: TokenSpan, head_dim: int, slot_bytes: int, tl: TLContext) -> Tile:
    got = tl.recv(came, shape=(tile.size, head_dim), dtype=ptr.dtype.element_ty)
    assert got is not None
    return tl.copy(got) if tile.size * head_dim * ptr.dtype.element_ty.itemsize <= slot_bytes else got


_Step = tuple[int, str | None, list[str]]  # owner of the tiles, direction of arrival, directions to send on


def _round(rank: int, world: int) -> Iterator[_Step]:
    """Yield the steps on a ring: own tiles first, then those of the previous rank, ..."""
    for step in range(world):
        yield (rank - step) % world, "W" if step else None, ["E"] if step < world - 1 else []


def _both_ways(rank: int, world: int) -> Iterator[_Step]:
    """Yield the steps on an open chain: own tiles, then those of the neighbours at distance 1, 2, ..."""
    west, east = ["W"] if rank > 0 else [], ["E"] if rank < world - 1 else []
    yield rank, None, west + east
    for step in range(1, world):
        if rank - step >= 0:
            yield rank - step, "W", east
        if rank + step < world:
            yield rank + step, "E", west
