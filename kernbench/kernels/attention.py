"""Attention with grouped query heads: prefill and decode, on one or many PEs.

Layouts, each row-major: q and out are [kv_heads, q_len, group, head_dim], k and v [kv_heads, kv_len, head_dim]. Of
several sequences of equal length, `kv_heads` is the sum over all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import sqrt

from kernbench.kernels.partition import program_number, programs
from kernbench.triton_emu._handles import Pointer, Tile
from kernbench.triton_emu.tl_context import TLContext

NEG = -(2.0**100)  # a masked score; exact when scaled, so that masked scores stay equal
_ROWS = 64
RESULT_BYTES = 32 * 1024
KV_TOKENS = 512


def tiles(group: int, q_len: int) -> tuple[int, int]:
    """Return (query tokens, kv tokens) of a tile: no more than ROWS rows, scores of at most RESULT_BYTES in f32.

    RESULT_BYTES is half of the largest result that fits into the kernel's scratch: between small long-lived results,
    first fit always finds a hole of that size.

    >>> tiles(8, 1), tiles(8, 4096), tiles(1, 4096)
    ((1, 512), (8, 128), (64, 128))
    """
    tokens = max(1, min(q_len, _ROWS // group))
    return tokens, max(32, min(KV_TOKENS, RESULT_BYTES // 4 // (tokens * group) // 32 * 32))


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """Consecutive tokens in memory: `size` tokens from `start`, at the positions first, first + step, ..."""

    start: int
    size: int
    first: int
    step: int = 1

    @property
    def last(self) -> int:
        return self.first + (self.size - 1) * self.step

    def cut(self, block: int) -> list[TokenSpan]:
        return [
            TokenSpan(self.start + at, min(block, self.size - at), self.first + at * self.step, self.step)
            for at in range(0, self.size, block)
        ]


def seen_by(q: TokenSpan, kv: TokenSpan) -> TokenSpan:
    """Return the part of `kv` at positions up to that of the last token of `q`."""
    return TokenSpan(kv.start, max(0, min(kv.size, (q.last - kv.first) // kv.step + 1)), kv.first, kv.step)


def visible(q: TokenSpan, kv: TokenSpan, causal: bool) -> bool:
    return not causal or kv.first <= q.last


def causal_mask(q: TokenSpan, group: int, kv: TokenSpan, tl: TLContext) -> Tile | None:
    """Return the causal mask (kv tokens x rows), or None if it masks nothing."""
    if kv.last <= q.first:
        return None
    rows = q.first + tl.arange(0, q.size * group)[None, :] // group * q.step
    return rows >= kv.first + tl.arange(0, kv.size)[:, None] * kv.step


@dataclass(slots=True)
class Running:
    """The running softmax of a block of rows: m and l (1 x rows), o (rows x head_dim), all f32.

    `m` is the maximum of raw scores, before scaling.
    """

    m: Tile
    l: Tile  # noqa: E741 : the letter of the papers
    o: Tile


class Flash:
    """Blocks of query rows into which K/V tiles are folded.

    The scores of a tile are issued before the softmax of the previous tile: engines take commands in program order, so
    this lets the matrix engine and the vector engine work concurrently. Scores are multiplied by `scale`, by default
    1 / sqrt(head_dim).
    """

    def __init__(self, blocks: Sequence[Tile], tl: TLContext, scale: float | None = None) -> None:
        self._tl = tl
        self._scale = 1 / sqrt(blocks[0].shape[1]) if scale is None else scale
        self._across = [tl.trans(block) for block in blocks]
        self._states: list[Running | None] = [None] * len(blocks)
        self._waiting: tuple[int, Tile, Tile] | None = None

    def fold(
        self, i: int, k: Tile, v: Tile, mask: Tile | None = None, bias: Tile | None = None, scores: Tile | None = None
    ) -> None:
        """Fold a tile (kv tokens x head_dim each) into block `i`.

        `mask` (None: all) selects the scores; `bias` is added to the scaled scores, and those of k to `scores`. All are
        kv tokens x rows.
        """
        s = self._tl.dot(k, self._across[i], scores)
        if bias is not None:
            s = self._tl.maximum(self._tl.fma(bias, 1 / self._scale, s), NEG)
        self._finish()
        self._waiting = (i, s if mask is None else self._tl.where(mask, s, NEG), v)

    def states(self) -> list[Running | None]:
        """Return the states after all folded tiles; None for a block without any tile."""
        self._finish()
        return self._states

    def _finish(self) -> None:
        if self._waiting is None:
            return
        (i, s, v), tl, self._waiting = self._waiting, self._tl, None
        state = self._states[i]
        top = tl.max(s, axis=0, keep_dims=True)
        m = top if state is None else tl.maximum(state.m, top)
        p = tl.exp(tl.fma(s, self._scale, m * -self._scale))
        del s
        total = tl.sum(p, axis=0, keep_dims=True)
        weights = tl.trans(p.to(v.dtype))
        del p
        if state is None:
            self._states[i] = Running(m, total, tl.dot(weights, v))
            return
        alpha = tl.exp((state.m - m) * self._scale)
        o = tl.dot(weights, v, state.o * to_column(alpha))
        self._states[i] = Running(m, tl.fma(state.l, alpha, total), o)


def to_column(x: Tile) -> Tile:
    return x.reshape(x.shape[1], 1)


def attention(
    q_ptr: Pointer, k_ptr: Pointer, v_ptr: Pointer, out_ptr: Pointer, kv_heads: int, group: int, q_len: int,
    kv_len: int, head_dim: int, causal: bool = False, by_token: bool = False, *, tl: TLContext,
) -> None:  # fmt: skip
    """Write softmax(q k^T / sqrt(head_dim)) v to out.

    A unit of work is a block of query tokens of one kv head with all its query heads; units are assigned to programs in
    alternating order, so that each gets causal blocks of few and of many kv tokens. K and V are read tile by tile for
    each unit, from any placement. With `causal`, the last query token is the last kv token.

    Parameters
    ----------
    q_ptr, k_ptr, v_ptr, out_ptr : Pointer
        The first element of each; 16-bit floats or f32, all of one type.
    kv_heads, group : int
        Key/value heads, and query heads per kv head.
    q_len, kv_len : int
        Tokens of q, and of k and v.
    head_dim : int
        Elements of a head.
    causal : bool
        Whether a query token sees only kv tokens up to its own.
    by_token : bool
        Whether out is [q_len, kv_heads, group, head_dim], as a linear layer reads it.
    tl : TLContext
        The language.

    Notes
    -----
    With u the unit roundoff of the type and V the largest |v|: |error| <= u |out| + V (u + 2 ds + 2^-20), where
    ds = (head_dim + 4) 2^-24 times the largest sum |q| |k| / sqrt(head_dim) bounds the error of f32 scores.
    """
    behind = kv_len - q_len if causal else 0
    blocks = TokenSpan(0, q_len, behind).cut(tiles(group, q_len)[0])
    units = [(head, block) for head in range(kv_heads) for block in blocks]
    for head, block in deal(units, tl):
        at = (head * q_len + block.start) * group * head_dim
        q = tl.load(q_ptr + at, shape=(block.size * group, head_dim))
        row = head * kv_len * head_dim
        state = over_memory(q, block, k_ptr + row, v_ptr + row, TokenSpan(0, kv_len, 0), group, causal, tl)
        assert state is not None
        out = state.o / to_column(state.l)
        if by_token:
            heads, width = out.reshape(block.size, group * head_dim), group * head_dim
            token = block.start + tl.arange(0, block.size)[:, None]
            tl.store(out_ptr + ((token * kv_heads + head) * width + tl.arange(0, width)[None, :]), heads)
        else:
            tl.store(out_ptr + at, out)


def over_memory(
    q: Tile, block: TokenSpan, k_ptr: Pointer, v_ptr: Pointer, kv: TokenSpan, group: int, causal: bool, tl: TLContext
) -> Running | None:
    flash = Flash([q], tl)
    for part in (seen_by(block, kv) if causal else kv).cut(tiles(group, block.size)[1]):
        k, v = load_kv(k_ptr, v_ptr, part, q.shape[1], tl)
        flash.fold(0, k, v, causal_mask(block, group, part, tl) if causal else None)
    return flash.states()[0]


def load_kv(k_ptr: Pointer, v_ptr: Pointer, part: TokenSpan, head_dim: int, tl: TLContext) -> tuple[Tile, Tile]:
    at, shape = part.start * head_dim, (part.size, head_dim)
    return tl.load(k_ptr + at, shape=shape), tl.load(v_ptr + at, shape=shape)


def deal(units: list[tuple[int, TokenSpan]], tl: TLContext) -> Iterator[tuple[int, TokenSpan]]:
    """Yield this program's units, assigned in alternating order over the programs of the launch."""
    number, count = program_number(tl), programs(tl)
    for turn, start in enumerate(range(0, len(units), count)):
        at = start + (count - 1 - number if turn % 2 else number)
        if at < len(units):
            yield units[at]
