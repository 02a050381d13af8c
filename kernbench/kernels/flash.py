"""Attention by running softmax: K/V tiles are folded into (m, l, o), whatever the order they come in.

For the scores s of a row, `m` is the largest so far, `l` the sum of exp(s - m), `o` the sum of exp(s - m) v. Rows are
the query heads of one kv head, token by token, so that the matrix engine sees all of them as one operand. The start
is (NEG, 0, 0), with a large number in place of infinity: differences of two stay finite.

Source: Dao et al., FlashAttention (2022); the merge of parts is that of split-KV decoding (2023).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import sqrt

from kernbench.triton_emu.handles import Tile
from kernbench.triton_emu.tl_context import TLContext

NEG = -1e30
ROWS = 128
RESULT_BYTES = 64 * 1024
KV_TOKENS = 512


def tiles(group: int, q_len: int) -> tuple[int, int]:
    """Return (query tokens, kv tokens) of a tile: no more than ROWS rows, scores of at most RESULT_BYTES in f32.

    A result of that size still goes to the kernel's scratch.

    >>> tiles(8, 1), tiles(8, 4096), tiles(1, 4096)
    ((1, 512), (16, 128), (128, 128))
    """
    tokens = max(1, min(q_len, ROWS // group))
    return tokens, max(32, min(KV_TOKENS, RESULT_BYTES // 4 // (tokens * group) // 32 * 32))


@dataclass(slots=True)
class Running:
    """What a block of rows knows of the tiles folded so far: m and l (1 x rows), o (rows x head_dim), all f32.

    `m` counts in raw scores, before they are scaled.
    """

    m: Tile
    l: Tile  # noqa: E741 : the letter of the papers
    o: Tile


def fold_all(
    state: Running | None, q: Tile, kv: Iterable[tuple[Tile, Tile, Tile | None]], tl: TLContext
) -> Running | None:
    """Return `state` (None: nothing yet) with K/V tiles folded in, one after the other.

    The scores of a tile are issued before the softmax of the tile before: engines take commands in program order, so
    that is what lets the matrix engine work while the vector engine does.

    Parameters
    ----------
    state : Running, optional
        Of the same rows.
    q : Tile
        Rows x head_dim.
    kv : iterable
        (k, v, mask): kv tokens x head_dim each, of the type of q; the mask (None: all) says which scores count,
        kv tokens x rows.
    tl : TLContext
        The language.

    Notes
    -----
    Scores are computed as k q^T: q is transposed once, and the weights, which are smaller than k where few rows
    share it, once per tile. Scores, exp and sums are f32; the weights are rounded to the type of v for the product.
    """
    scale = 1 / sqrt(q.shape[1])
    across = tl.trans(q)
    waiting: tuple[Tile, Tile] | None = None
    for k, v, mask in kv:
        s = tl.dot(k, across)
        if waiting is not None:
            state = _fold(state, *waiting, scale, tl)
        waiting = (s if mask is None else tl.where(mask, s, NEG), v)
        del s, k, v
    return state if waiting is None else _fold(state, *waiting, scale, tl)


def _fold(state: Running | None, s: Tile, v: Tile, scale: float, tl: TLContext) -> Running:
    top = tl.max(s, axis=0, keep_dims=True)
    m = top if state is None else tl.maximum(state.m, top)
    p = tl.exp(tl.fma(s, scale, m * -scale))
    total = tl.sum(p, axis=0, keep_dims=True)
    weights = tl.trans(p.to(v.dtype))
    if state is None:
        return Running(m, total, tl.dot(weights, v))
    alpha = tl.exp((state.m - m) * scale)
    l = tl.fma(state.l, alpha, total)  # noqa: E741
    return Running(m, l, tl.dot(weights, v, state.o * column(alpha)))


def column(x: Tile) -> Tile:
    """Return a row of values (1 x rows) as a column: the same bytes."""
    turned: Tile = x.reshape(x.shape[1], 1)
    return turned


def causal_mask(first: int, tokens: int, group: int, start: int, size: int, tl: TLContext) -> Tile | None:
    """Return which of the kv tokens from `start` on each row may see (kv tokens x rows); None: all of them.

    Parameters
    ----------
    first, tokens, group : int
        Position of the first query token, query tokens, query heads of a kv head.
    start, size : int
        The kv tokens.
    tl : TLContext
        The language.
    """
    if start + size <= first + 1:
        return None
    rows = first + tl.arange(0, tokens * group)[None, :] // group
    return rows >= start + tl.arange(0, size)[:, None]
