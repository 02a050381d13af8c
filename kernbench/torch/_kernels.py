"""The native kernels behind matrix products, attention and copies: operands anywhere in memory, with any strides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kernbench._dtypes import bool_
from kernbench.kernels.attention import NEG, Flash, column, tiles
from kernbench.kernels.gemm import gemm
from kernbench.kernels.partition import Pe, chunk, mine, program
from kernbench.triton_emu._handles import Pointer, PointerTile, Tile
from kernbench.triton_emu.tl_context import TLContext

BLOCK = 64  # rows and columns of a product at a time
ROOM = 5 << 20  # bytes of TCM for the blocks of an operand that stay there (chosen: half of what is free by default)
DEPTH = 16384  # elements of K at a time
ELEMENTS = 4096  # of a copy at a time
GOLDEN = 0.6180339887  # its multiples modulo 1 are spread evenly, and so are those of every n-th number

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Matrix:
    """Where the elements of a batch of matrices are: the pointer to the first, and the strides in elements."""

    pointer: Pointer
    batch: int
    row: int
    column: int

    def tile(self, i: int, rows: tuple[int, int], columns: tuple[int, int], tl: TLContext, cache: Offsets) -> Tile:
        """Load a block, as (start, size) of rows and columns."""
        (r, m), (c, n) = rows, columns
        start = self.pointer + (i * self.batch + r * self.row + c * self.column)
        if (n == 1 or self.column == 1) and (m == 1 or self.row == n):
            return tl.load(start, shape=(m, n))
        return tl.load(start + cache.get(m, n, self.row, self.column, tl))

    @property
    def transposed(self) -> Matrix:
        """Return the transpose."""
        return Matrix(self.pointer, self.batch, self.column, self.row)


class Offsets:
    """Offsets of strided blocks: one tile for each shape, so that its runs are found once in a program."""

    def __init__(self) -> None:
        self._made: dict[tuple[Shape, Shape], Tile] = {}

    def get(self, m: int, n: int, row: int, column: int, tl: TLContext) -> Tile:
        """Return the offsets of a matrix."""
        return self.of((m, n), (row, column), (m, n), tl)

    def of(self, shape: Shape, strides: Shape, seen: Shape, tl: TLContext) -> Tile:
        """Return the offsets of an array, as one of the shape `seen`."""
        key = shape, strides
        if key not in self._made:
            lines = np.ix_(*(np.arange(n, dtype=np.int64) * step for n, step in zip(shape, strides, strict=True)))
            self._made[key] = tl.constant(sum(lines, np.zeros((), np.int64)).reshape(seen))
        return self._made[key]


@dataclass(frozen=True)
class Share:
    """A PE's part of a product: the matrices of the batch, rows and columns, as (start, size)."""

    batch: tuple[int, int]
    rows: tuple[int, int]
    columns: tuple[int, int]


def matmul(
    a: Matrix, b: Matrix, bias: Matrix | None, out: Matrix, K: int, alpha: float, beta: float,
    shares: dict[Pe, Sequence[Share]], *, tl: TLContext,
) -> None:  # fmt: skip
    """Write alpha a @ b (+ beta bias) to out, each program its share.

    Where the columns of b are consecutive in memory, as those of a transposed weight are, blocks of b are loaded as
    rows, and the transposed product is computed: no operand that is read once has to be transposed.
    """
    for share in mine(shares, tl):
        _share(a, b, bias, out, K, alpha, beta, share, tl)


def _share(
    a: Matrix, b: Matrix, bias: Matrix | None, out: Matrix, K: int, alpha: float, beta: float,
    share: Share, tl: TLContext,
) -> None:  # fmt: skip
    turned = b.row == 1 and b.column != 1
    if turned:
        a, b, out = b.transposed, a.transposed, out.transposed
        bias = None if bias is None else bias.transposed
        share = Share(share.batch, share.columns, share.rows)
    (first, count), itemsize = share.batch, a.pointer.dtype.itemsize
    # The operand that is smaller in this program stays in TCM, as many blocks of it as fit; the other is streamed.
    keep_b = share.columns[1] <= share.rows[1]
    kept, streamed = (share.columns, share.rows) if keep_b else (share.rows, share.columns)
    cache = Offsets()
    # Programs that read the same begin at different places, so that they read from different PEs.
    turn = program(tl) * GOLDEN % 1

    if not K:  # sums of nothing
        for i in range(first, first + count):
            for rows in _blocks(share.rows):
                for columns in _blocks(share.columns):
                    zeros = tl.zeros((rows[1], columns[1]), tl.float32)
                    _finish(out, i, rows, columns, zeros, bias, alpha, beta, cache, tl)
        return
    (row, m), (_, n) = share.rows, share.columns
    follow = all(x.column == 1 and x.row == width for x, width in ((a, K), (b, n), (out, n)))
    if follow and bias is None and alpha == 1 and max(m, n) * K * itemsize <= ROOM:
        for i in range(first, first + count):  # all of it is consecutive in memory
            x, y, z = (each.pointer + (i * each.batch + at * each.row) for each, at in ((a, row), (b, 0), (out, row)))
            gemm(x, y, z, m, K, n, "load_load", tl=tl)
        return
    depth = min(K, DEPTH)
    panel = max(1, ROOM // (depth * itemsize * BLOCK)) if depth == K else 1

    def left(i: int, rows: tuple[int, int], k: tuple[int, int]) -> Tile:
        return a.tile(i, rows, k, tl, cache)

    def right(i: int, columns: tuple[int, int], k: tuple[int, int]) -> Tile:
        if b.row == 1 and b.column != 1 and columns[1] > 1:  # loaded by its consecutive elements, and turned
            return tl.trans(b.transposed.tile(i, columns, k, tl, cache))
        return b.tile(i, k, columns, tl, cache)

    for i in range(first, first + count):
        blocks = _blocks(kept, _size(kept), turn)
        for start in range(0, len(blocks), panel):
            held = [(at, (right if keep_b else left)(i, at, (0, depth))) for at in blocks[start : start + panel]]
            for other in _blocks(streamed, _size(streamed), turn):
                x = (left if keep_b else right)(i, other, (0, depth))
                for at, tile in held:
                    acc = tl.dot(x, tile) if keep_b else tl.dot(tile, x)
                    rows, columns = (other, at) if keep_b else (at, other)
                    for k in range(depth, K, depth):
                        part = k, min(depth, K - k)
                        acc = tl.dot(left(i, rows, part), right(i, columns, part), acc)
                    _finish(out, i, rows, columns, acc, bias, alpha, beta, cache, tl)


def grouped(
    a: Matrix, b: Matrix, ends: Pointer, out: Matrix, sizes: tuple[int, int], known: Sequence[int] | None,
    parts: dict[Pe, Sequence[tuple[int, tuple[int, int]]]], *, tl: TLContext,
) -> None:  # fmt: skip
    """Write the product of each group of rows of a with its matrix of b, each program its groups and columns.

    The groups end before the rows that `ends` points to, or `known` says; the last rows may be in none.
    """
    rows, K = sizes

    def end(group: int) -> int:
        if known is not None:
            return known[group]
        return min(int(tl.load(ends + group, shape=(1,))), rows)

    for group, columns in mine(parts, tl):
        first = end(group - 1) if group else 0
        share = Share((0, 1), (first, end(group) - first), columns)
        if share.rows[1] > 0:
            weight = Matrix(b.pointer + group * b.batch, 0, b.row, b.column)
            _share(a, weight, None, out, K, 1, 0, share, tl)


def _finish(
    out: Matrix, i: int, rows: tuple[int, int], columns: tuple[int, int], acc: Tile,
    bias: Matrix | None, alpha: float, beta: float, cache: Offsets, tl: TLContext,
) -> None:  # fmt: skip
    if alpha != 1:
        acc = acc * alpha
    if bias is not None:
        own = tuple(span if step else (0, 1) for span, step in ((rows, bias.row), (columns, bias.column)))
        added = bias.tile(i, own[0], own[1], tl, cache).to(tl.float32)
        acc = acc + (added if beta == 1 else added * beta)
    at = out.pointer + (i * out.batch + rows[0] * out.row + columns[0] * out.column)
    if (columns[1] == 1 or out.column == 1) and (rows[1] == 1 or out.row == columns[1]):
        tl.store(at, acc.to(out.pointer.dtype))
    else:
        tl.store(at + cache.get(rows[1], columns[1], out.row, out.column, tl), acc)


def _size(span: tuple[int, int]) -> int:
    """Return the size of blocks: a short span has several, too, whose loads overlap with products."""
    return BLOCK if span[1] > 2 * BLOCK else BLOCK // 2


def _blocks(span: tuple[int, int], size: int = BLOCK, first: float = 0.0) -> list[tuple[int, int]]:
    """Return (start, size) of the blocks of a span, beginning at a fraction of it and continuing at its start."""
    start, n = span
    turn = int(first * n) if n > size else 0
    parts = (start + turn, n - turn), (start, turn)
    return [(low + at, min(size, count - at)) for low, count in parts for at in range(0, count, size)]


@dataclass(frozen=True)
class Heads:
    """Where the elements of [batch, heads, tokens, head_dim] are: strides in elements, 0 where it is broadcast."""

    pointer: Pointer
    strides: tuple[int, int, int, int]

    def rows(self, batch: int, head: int) -> Matrix:
        """Return the tokens of one head."""
        b, h, t, d = self.strides
        return Matrix(self.pointer + (batch * b + head * h), 0, t, d)

    def at(self, batch: int, head: int, token: int, n: Shape, cache: Offsets, tl: TLContext) -> PointerTile:
        """Return pointers to n heads x tokens x elements from a place on, as a matrix of heads * tokens rows."""
        b, h, t, _ = self.strides
        heads, tokens, width = n
        start = self.pointer + (batch * b + head * h + token * t)
        places = cache.of((heads, tokens, width), self.strides[1:], (heads * tokens, width), tl)
        return PointerTile(start, places)


@dataclass(frozen=True)
class Unit:
    """A piece of attention: query tokens of query heads that share a kv head, over some kv tokens."""

    batch: int
    heads: tuple[int, int]
    tokens: tuple[int, int]
    kv: tuple[int, int]
    part: int


def attention(
    q: Heads, k: Heads, v: Heads, mask: Heads | None, out: Heads, group: int, behind: int | None, scale: float,
    sizes: tuple[int, int], parts: Heads | None, units: dict[Pe, Sequence[Unit]], *, tl: TLContext,
) -> None:  # fmt: skip
    """Write softmax(q k^T scale + mask) v to out, each program its units, by the running softmax of flash attention.

    With `behind`, query token i sees kv tokens up to i + behind. With `parts`, units are parts of the kv tokens, and
    the sum, maximum and denominator of each go there for `merge`: f32 [batch, heads, parts, head_dim + 2].
    """
    cache, (width, v_width) = Offsets(), sizes
    for unit in mine(units, tl):
        (head, heads), (token, n) = unit.heads, unit.tokens
        x = tl.load(q.at(unit.batch, head, token, (heads, n, width), cache, tl))
        flash = Flash([x], tl, scale)
        end = sum(unit.kv) if behind is None else min(sum(unit.kv), token + n + behind)
        keys, values = k.rows(unit.batch, head // group), v.rows(unit.batch, head // group)
        for at, size in _blocks((unit.kv[0], end - unit.kv[0]), tiles(heads, n)[1]):
            seen = bias = None
            if mask is not None:
                b, h, t, s = mask.strides
                start = mask.pointer + (unit.batch * b + head * h + token * t + at * s)
                given = tl.load(start + cache.of((size, heads, n), (s, h, t), (size, heads * n), tl))
                seen, bias = (given != 0, None) if given.dtype is bool_ else (None, given.to(tl.float32))
            if behind is not None and at + size - 1 > token + behind:
                places = np.tile(token + behind + np.arange(n), heads)[None, :] >= at + np.arange(size)[:, None]
                seen = tl.constant(places) != 0
            kt = keys.tile(0, (at, size), (0, width), tl, cache)
            flash.fold(0, kt, values.tile(0, (at, size), (0, v_width), tl, cache), seen, bias)
        state = flash.states()[0]
        if parts is not None:
            assert state is not None, "a part of the kv tokens that no query sees"
            place = Heads(parts.pointer + unit.part * parts.strides[2], parts.strides)
            tl.store(place.at(unit.batch, head, 0, (heads, 1, v_width), cache, tl), state.o)
            for i, x in enumerate((state.m * scale, state.l)):
                last = Heads(place.pointer + (v_width + i), parts.strides)
                tl.store(last.at(unit.batch, head, 0, (heads, 1, 1), cache, tl), column(x))
            continue
        result = tl.zeros((heads * n, v_width), tl.float32) if state is None else state.o / column(state.l)
        if state is not None and mask is not None and mask.pointer.dtype is bool_:  # rows that see nothing are 0
            result = tl.where(column(state.m) > NEG, result, 0.0)
        tl.store(out.at(unit.batch, head, token, (heads, n, v_width), cache, tl), result)


def merge(
    parts: Heads, count: int, out: Heads, head_dim: int, heads: dict[Pe, Sequence[tuple[int, int]]], *, tl: TLContext
) -> None:
    """Write the attention of one query token, for pairs of batch and head, from its parts."""
    cache = Offsets()
    for batch, head in mine(heads, tl):
        of = parts.rows(batch, head)
        o, m, total = (
            of.tile(0, (0, count), at, tl, cache) for at in ((0, head_dim), (head_dim, 1), (head_dim + 1, 1))
        )
        weights = tl.exp(m - tl.max(m, axis=0, keep_dims=True))
        result = tl.sum(o * weights, axis=0, keep_dims=True) / tl.sum(total * weights, axis=0, keep_dims=True)
        tl.store(out.at(batch, head, 0, (1, 1, head_dim), cache, tl), result)


def copy(
    source: Pointer, target: Pointer, shape: Shape, of: Shape, to: Shape, spans: dict[Pe, Sequence[tuple[int, int]]], *,
    tl: TLContext,
) -> None:  # fmt: skip
    """Write a strided array to another one of the same shape, each program some of its elements."""
    for at, n in (block for span in mine(spans, tl) for block in _blocks(span, ELEMENTS)):
        index = np.unravel_index(np.arange(at, at + n), shape) if shape else ()
        places = [sum((i * s for i, s in zip(index, steps, strict=True)), np.zeros(n, np.int64)) for steps in (of, to)]
        x = tl.load(source + tl.constant(places[0]))
        tl.store(target + tl.constant(places[1]), x)


def split(n: int, parts: int) -> list[tuple[int, int]]:
    """Return (start, size) of the parts of n that are not empty."""
    return [part for part in (chunk(n, parts, i) for i in range(parts)) if part[1]]
