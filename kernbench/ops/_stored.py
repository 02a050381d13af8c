"""The storage of a matrix, or a stack of matrices: blocks in the memories of PEs, with strides."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, wraps
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np

from kernbench.config import MachineConfig
from kernbench.kernels.partition import chunk
from kernbench.policy.placement.dp import DPPolicy, resolve_dp_policy
from kernbench.triton_emu._places import Affine, Pieces

Span = tuple[int, int]  # start and size
_X = TypeVar("_X")


class Piece(NamedTuple):
    """A block of a matrix in memory: its spans, the place of its first element, strides, and the PEs that hold it."""

    rows: Span
    columns: Span
    place: int
    row_step: int
    column_step: int
    holders: tuple[int, ...]

    def places(self, rows: Span, columns: Span) -> Affine:
        down, right = rows[0] - self.rows[0], columns[0] - self.columns[0]
        first = self.place + down * self.row_step + right * self.column_step
        return Affine(first, (rows[1], columns[1]), (self.row_step, self.column_step))


def _kept(find: Callable[[Stored, Span, Span], _X]) -> Callable[[Stored, Span, Span], _X]:
    """Keep what is found for each block: many PEs ask for the same ones."""

    @wraps(find)
    def found(self: Stored, rows: Span, columns: Span) -> _X:
        key = find.__name__, rows, columns
        if key not in self._found:
            self._found[key] = find(self, rows, columns)
        kept: _X = self._found[key]
        return kept

    return found


class _Holders(NamedTuple):
    """Pieces that several PEs hold, and those of one PE, sorted by it: `holders`, and where those of each begin."""

    several: np.ndarray
    alone: np.ndarray
    holders: np.ndarray
    begins: np.ndarray


@dataclass(frozen=True)
class Stored:
    """The storage of a matrix; places count elements from its pointer."""

    shape: tuple[int, int]
    pieces: tuple[Piece, ...]

    @classmethod
    def of(cls, config: MachineConfig, shape: tuple[int, int], policy: DPPolicy, *, transposed: bool = False) -> Stored:
        """With `transposed`, the policy places the transpose."""
        shards = resolve_dp_policy(
            policy, shape=shape[::-1] if transposed else shape, itemsize=1, num_pe=config.pes_per_cube,
            num_cubes=config.cubes_per_sip, target_sip=0,
        )  # fmt: skip
        held: dict[int, list[int]] = defaultdict(list)
        for shard in shards:
            held[shard.offset_bytes].append(shard.cube * config.pes_per_cube + shard.pe)
        pieces = []
        for shard in {shard.offset_bytes: shard for shard in shards}.values():
            rows, columns = ((x.start, x.stop - x.start) for x in shard.index)
            place = shard.offset_bytes
            piece = Piece(rows, columns, place, columns[1], 1, tuple(held[place]))
            pieces.append(turned(piece) if transposed else piece)
        return cls(shape, tuple(pieces))

    @classmethod
    def strided(
        cls, shape: tuple[int, int], strides: tuple[int, int], parts: Iterable[tuple[int, int, tuple[int, ...]]],
        offsets: Sequence[int] = (0,),
    ) -> Stored:  # fmt: skip
        """Place a stack of matrices in memory `parts`: (first element, elements, PEs that hold it).

        Elements are counted from the pointer; each matrix begins at one of `offsets`.
        """
        (m, n), (row_step, column_step) = shape, strides
        pieces, last = [], (m - 1) * row_step + (n - 1) * column_step
        for first, size, holders in parts:
            for i, base in enumerate(offsets):
                if first > base + last or first + size <= base:
                    continue
                for rows, columns in _inside(shape, strides, first - base, first + size - base):
                    place = base + rows[0] * row_step + columns[0] * column_step
                    pieces.append(Piece((i * m + rows[0], rows[1]), columns, place, row_step, column_step, holders))
        return cls((len(offsets) * m, n), tuple(pieces))

    @classmethod
    def side_by_side(cls, matrices: Sequence[Stored], offsets: Sequence[int], parts: int) -> Stored:
        """Concatenate matrices along columns, interleaved: part 0 of `parts` of each matrix, then part 1 of each, ...

        The elements of each matrix are counted from its offset.
        """
        pieces: list[Piece] = []
        column = 0
        for part in range(parts):
            for matrix, offset in zip(matrices, offsets, strict=True):
                start, width = chunk(matrix.shape[1], parts, part)
                for x, rows, (first, size) in matrix.near((0, matrix.shape[0]), (start, width)):
                    place = offset + x.places(rows, (first, size)).first
                    pieces.append(x._replace(columns=(column + first - start, size), place=place))
                column += width
        return cls((matrices[0].shape[0], column), tuple(pieces))

    @_kept
    def near(self, rows: Span, columns: Span) -> list[tuple[Piece, Span, Span]]:
        """Pieces that overlap a block, each with its rows and columns in the block."""
        return [(self.pieces[i], (a, m), (b, n)) for i, a, m, b, n in self._near(rows, columns).T.tolist()]

    @_kept
    def _near(self, rows: Span, columns: Span) -> np.ndarray:
        """Numbers of the pieces that overlap a block, first row and height of each part, first column and width."""
        top, height = _common(self._spans[0], np.array(rows))
        left, width = _common(self._spans[1], np.array(columns))
        near = np.flatnonzero((height > 0) & (width > 0))
        return np.array([near, top[near], height[near], left[near], width[near]])

    @_kept
    def first(self, rows: Span, columns: Span) -> int | None:
        """Place of the first element of a block that is consecutive in row-major order, else None."""
        near, top, height, left, width = self._near(rows, columns)
        n = columns[1]
        if not len(near) or (width < n).any():
            return None
        place, row_step, column_step = self._steps[:, near]
        if ((column_step != 1) & (n > 1) | (row_step != n) & (height > 1)).any():
            return None
        first = place + (top - self._spans[0][near, 0]) * row_step + (left - self._spans[1][near, 0]) * column_step
        return int(first[0]) if (first[1:] == first[:-1] + height[:-1] * n).all() else None

    def places(self, rows: Span, columns: Span) -> Affine | Pieces:
        near = self.near(rows, columns)
        parts = [((r[0] - rows[0], c[0] - columns[0]), piece.places(r, c)) for piece, r, c in near]
        return parts[0][1] if len(parts) == 1 else Pieces((rows[1], columns[1]), tuple(parts))

    @_kept
    def widths(self, rows: Span, columns: Span) -> list[int]:
        """Widths of the shards that hold the columns of a block, in order."""
        *_, left, width = self._near(rows, columns)
        edges = {columns[0], sum(columns)}.union(left.tolist(), (left + width).tolist())
        return [b - a for a, b in pairwise(sorted(edges))]

    @cached_property
    def side_by_side_parts(self) -> tuple[tuple[Span, int, int], ...]:
        """Columns of matrices that are apart in memory, each with the first place and the places up to its last."""
        in_memory: list[list[int]] = []  # low, high, first column, last column
        for x in sorted(self.pieces, key=lambda x: x.place):
            high = x.place + (x.rows[1] - 1) * x.row_step + (x.columns[1] - 1) * x.column_step
            part = [x.place, high, x.columns[0], sum(x.columns)]
            _joined(in_memory, part, bool(in_memory) and x.place <= in_memory[-1][1] + 1)
        by_column: list[list[int]] = []
        for part in sorted(in_memory, key=lambda part: part[2]):
            _joined(by_column, part, bool(by_column) and part[2] < by_column[-1][3])
        return tuple([((left, right - left), low, high + 1 - low) for low, high, left, right in by_column])

    def is_by_rows(self, rows: Span, columns: Span) -> bool:
        """Whether the elements of each row of a block are consecutive."""
        return bool((self._steps[2][self._near(rows, columns)[0]] == 1).all())

    @cached_property
    def _found(self) -> dict[tuple[str, Span, Span], Any]:
        return {}

    @cached_property
    def first_columns(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for piece in self.pieces:
            for pe in piece.holders:
                found.setdefault(pe, piece.columns[0])
        return found

    @cached_property
    def _spans(self) -> tuple[np.ndarray, np.ndarray]:
        rows, columns = (np.array([p[i] for p in self.pieces], np.int64).reshape(-1, 2) for i in (0, 1))
        return rows, columns

    @cached_property
    def _steps(self) -> np.ndarray:
        """Place of the first element of each piece, and its strides."""
        return np.array([(x.place, x.row_step, x.column_step) for x in self.pieces], np.int64).reshape(-1, 3).T

    @cached_property
    def _holders(self) -> _Holders:
        several = np.array([i for i, piece in enumerate(self.pieces) if len(piece.holders) > 1], np.int64)
        alone = sorted((piece.holders[0], i) for i, piece in enumerate(self.pieces) if len(piece.holders) == 1)
        holders, begins = np.unique(np.array([pe for pe, _ in alone], np.int64), return_index=True)
        return _Holders(several, np.array([i for _, i in alone], np.int64), holders, begins)

    def held(
        self, pes: np.ndarray, rows: np.ndarray, columns: np.ndarray, config: MachineConfig, line: int
    ) -> np.ndarray:
        """Count the elements of the block of each of `pes` (a span of rows and of columns each) by PE that holds them.

        A reader of a replicated piece uses its own copy, else that of the first PE in its cube, else the first. The
        result is a pair: the elements, and what memory serves, where parts of a line of the piece count as whole lines
        of `line` elements, and as more if the PE has fewer lines than its memory has channels.
        """
        own_rows, own_columns = self._spans
        heights, widths = overlaps(rows, own_rows), overlaps(columns, own_columns)
        several, alone, holders, begins = self._holders
        by_rows = self._steps[2] == 1
        short, whole = (np.where(by_rows, a, b) for a, b in ((widths, heights), (own_columns[:, 1], own_rows[:, 1])))
        common, n_pes = heights * widths, config.pes_per_sip
        counted = np.array([common, common])
        in_part = (short < whole) & (common > 0)
        if in_part.any():
            lines = np.minimum(np.broadcast_to(whole, short.shape)[in_part], line) / np.clip(short[in_part], 1, line)
            counted[1][in_part] = common[in_part] * lines
        out = np.zeros((2, len(rows), n_pes), np.int64)
        if len(holders):
            out[:, :, holders] = np.add.reduceat(counted[:, :, alone], begins, axis=2)
        for i in several:
            near = _nearest(self.pieces[i].holders, n_pes, config.pes_per_cube)[pes]
            out[:, np.arange(len(pes)), near] += counted[:, :, i]
        if line > 1:
            sizes = np.zeros(n_pes, np.int64)
            for piece in self.pieces:
                sizes[list(piece.holders)] += piece.rows[1] * piece.columns[1]
            out[1] *= np.maximum(1, config.cube.hbm.channels * line // np.maximum(1, sizes))
        return out


@lru_cache(maxsize=1024)
def _nearest(holders: tuple[int, ...], n_pes: int, each: int) -> np.ndarray:
    """Choose a holder for each PE: itself, else the first holder in its cube of `each` PEs, else the first."""
    near = np.full((n_pes // each, each), holders[0])
    for holder in reversed(holders):
        near[holder // each] = holder
    near.reshape(-1)[list(holders)] = holders
    return near.reshape(-1)


def _inside(shape: tuple[int, int], strides: tuple[int, int], low: int, high: int) -> list[tuple[Span, Span]]:
    """Blocks (rows, columns) of a strided matrix whose elements have places from `low` to `high` (exclusive)."""
    (m, n), (row_step, column_step) = shape, strides
    if row_step < column_step:
        return [(rows, columns) for columns, rows in _inside((n, m), (column_step, row_step), low, high)]
    starts = np.arange(m) * row_step
    if column_step:
        first = np.clip(-((starts - low) // column_step), 0, n)
        last = np.clip(-((starts - high) // column_step), 0, n)
    else:
        first, last = np.zeros(m, np.int64), np.where((starts >= low) & (starts < high), n, 0)
    spans = np.stack([first, last], axis=1)
    edges = [0, *(np.flatnonzero((np.diff(spans, axis=0) != 0).any(axis=1)) + 1).tolist(), m]
    return [
        ((top, bottom - top), (int(first[top]), int(last[top] - first[top])))
        for top, bottom in pairwise(edges)
        if bottom > top and last[top] > first[top]
    ]


def _common(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return starts and sizes of what spans have in common; a size of 0 or less is nothing."""
    low = np.maximum(a[..., 0], b[..., 0])
    return low, np.minimum(a.sum(axis=-1), b.sum(axis=-1)) - low


def _joined(parts: list[list[int]], part: list[int], joins: bool) -> None:
    """Append (low, high, first and last column), or join it with the last one."""
    if joins:
        last = parts.pop()
        part = [min(last[0], part[0]), max(last[1], part[1]), min(last[2], part[2]), max(last[3], part[3])]
    parts.append(part)


def turned(piece: Piece) -> Piece:
    rows, columns, place, row_step, column_step, holders = piece
    return Piece(columns, rows, place, column_step, row_step, holders)


def overlaps(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Sizes of what each span of `a` has in common with each of `b`."""
    return np.maximum(0, _common(a[:, None], b[None])[1])
