"""Attention by running softmax: K/V tiles are folded into (m, l, o), whatever the order they come in.

For the scores s of a row, `m` is the largest so far, `l` the sum of exp(s - m), `o` the sum of exp(s - m) v. Rows are
the query heads of one kv head, token by token, so that the matrix engine sees all of them as one operand. The start
is (NEG, 0, 0), with a large number in place of infinity: differences of two stay finite.

Source: Dao et al., FlashAttention (2022); the merge of parts is that of split-KV decoding (2023).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from kernbench.triton_emu.handles import Tile
from kernbench.triton_emu.tl_context import TLContext

NEG = -1e30
ROWS = 64
RESULT_BYTES = 32 * 1024
KV_TOKENS = 512


def tiles(group: int, q_len: int) -> tuple[int, int]:
    """Return (query tokens, kv tokens) of a tile: no more than ROWS rows, scores of at most RESULT_BYTES in f32.

    Half of the largest result that the kernel's scratch takes: between small results that live long, first fit always
    finds a hole of that size.

    >>> tiles(8, 1), tiles(8, 4096), tiles(1, 4096)
    ((1, 512), (8, 128), (64, 128))
    """
    tokens = max(1, min(q_len, ROWS // group))
    return tokens, max(32, min(KV_TOKENS, RESULT_BYTES // 4 // (tokens * group) // 32 * 32))


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive tokens in memory: `size` from `start` on, at the positions first, first + step, ..."""

    start: int
    size: int
    first: int
    step: int = 1

    @property
    def last(self) -> int:
        """The position of the last token."""
        return self.first + (self.size - 1) * self.step

    def cut(self, block: int) -> list[Span]:
        """Return it in pieces of at most `block` tokens."""
        return [
            Span(self.start + at, min(block, self.size - at), self.first + at * self.step, self.step)
            for at in range(0, self.size, block)
        ]


def seen_by(q: Span, kv: Span) -> Span:
    """Return the part of `kv` that the last token of `q` may see, at its own position at the latest."""
    return Span(kv.start, max(0, min(kv.size, (q.last - kv.first) // kv.step + 1)), kv.first, kv.step)


def visible(q: Span, kv: Span, causal: bool) -> bool:
    """Return whether any token of `q` may see any of `kv`."""
    return not causal or kv.first <= q.last


def causal_mask(q: Span, group: int, kv: Span, tl: TLContext) -> Tile | None:
    """Return which scores count (kv tokens x rows), where a token sees those up to its own; None: all of them."""
    if kv.last <= q.first:
        return None
    rows = q.first + tl.arange(0, q.size * group)[None, :] // group * q.step
    return rows >= kv.first + tl.arange(0, kv.size)[:, None] * kv.step


@dataclass(slots=True)
class Running:
    """What a block of rows knows of the tiles folded so far: m and l (1 x rows), o (rows x head_dim), all f32.

    `m` counts in raw scores, before they are scaled.
    """

    m: Tile
    l: Tile  # noqa: E741 : the letter of the papers
    o: Tile


class Flash:
    """Blocks of query rows into which K/V tiles are folded.

    The scores of a tile are issued before the softmax of the tile before: engines take commands in program order, so
    that is what lets the matrix engine work while the vector engine does.

    Parameters
    ----------
    blocks : sequence of Tile
        Rows x head_dim each.
    tl : TLContext
        The language.

    Notes
    -----
    Scores are computed as k q^T: q is transposed once, and the weights, which are smaller than k where few rows
    share it, once per tile. Scores, exp and sums are f32; the weights are rounded to the type of v for the product.
    """

    def __init__(self, blocks: Sequence[Tile], tl: TLContext) -> None:
        self._tl = tl
        self._scale = 1 / sqrt(blocks[0].shape[1])
        self._across = [tl.trans(block) for block in blocks]
        self._states: list[Running | None] = [None] * len(blocks)
        self._waiting: tuple[int, Tile, Tile] | None = None

    def fold(self, i: int, k: Tile, v: Tile, mask: Tile | None = None) -> None:
        """Fold a tile (kv tokens x head_dim each) into block `i`; `mask` (None: all) says which scores count."""
        s = self._tl.dot(k, self._across[i])
        self._finish()
        self._waiting = (i, s if mask is None else self._tl.where(mask, s, NEG), v)

    def states(self) -> list[Running | None]:
        """Return what the blocks know now; None of a block without any tile."""
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
        o = tl.dot(weights, v, state.o * column(alpha))
        self._states[i] = Running(m, tl.fma(state.l, alpha, total), o)


def column(x: Tile) -> Tile:
    """Return a row of values (1 x rows) as a column: the same bytes."""
    turned: Tile = x.reshape(x.shape[1], 1)
    return turned
