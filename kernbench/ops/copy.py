"""Copies between tensors of the same layout, of another layout, or joined; and fills with a number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from kernbench.kernels.partition import Parts, mine, part_blocks, program_number, programs
from kernbench.ops._access import BLOCK, load_places, store_places
from kernbench.ops._stored import Piece, Stored
from kernbench.topology._naming import PeId
from kernbench.triton_emu._handles import Pointer
from kernbench.triton_emu._places import Affine, Pieces
from kernbench.triton_emu.tl_context import TLContext

_TOGETHER = 16  # pieces of a matrix read at a time (chosen)
_ELEMENTS = 1 << 18  # elements of a matrix at a time (chosen)

_Move = tuple[
    int, np.ndarray | Pieces, np.ndarray | Pieces
]  # index of the source, places in it, and places in the target


class Strided(NamedTuple):
    """The elements that each PE copies, in row-major order, and the strides of both arrays."""

    shape: tuple[int, ...]
    source: tuple[int, ...]
    target: tuple[int, ...]
    parts: Parts

    def moves(self, tl: TLContext) -> Iterator[_Move]:
        for at, n in part_blocks(self.parts, BLOCK, tl):
            index = np.unravel_index(np.arange(at, at + n), self.shape) if self.shape else ()
            read, written = (
                sum((i * step for i, step in zip(index, steps, strict=True)), np.zeros(n, np.int64))
                for steps in (self.source, self.target)
            )
            yield 0, read, written


class Joined(NamedTuple):
    """The source of each element of the target's memory, its place there, and the parts of each PE."""

    source: np.ndarray
    places: np.ndarray
    parts: Parts

    def moves(self, tl: TLContext) -> Iterator[_Move]:
        for first, n in mine(self.parts, tl):
            own = self.source[first : first + n]
            for i in np.unique(own).tolist():
                targets = first + np.flatnonzero(own == i)
                for at in range(0, targets.size, BLOCK):
                    yield i, self.places[targets[at : at + BLOCK]], targets[at : at + BLOCK]


class Matrix(NamedTuple):
    """A stored matrix, and each PE's one piece of the target; a PE reads TOGETHER pieces of the source at a time."""

    source: Stored
    parts: Mapping[PeId, Piece]

    def moves(self, tl: TLContext) -> Iterator[_Move]:
        target = self.parts[int(tl.program_id(1)), int(tl.program_id(0))]
        (row, _), (column, n), place, *_ = target
        spread = self.source.near(target.rows, target.columns)
        # Programs begin with different pieces, so that they read from different PEs.
        first = program_number(tl) * len(spread) // programs(tl)
        spread = spread[first:] + spread[:first]
        for at in range(0, len(spread), _TOGETHER):
            left, read, written = _ELEMENTS, list[Affine](), list[Affine]()
            for piece, rows, columns in spread[at : at + _TOGETHER]:
                first = place + (rows[0] - row) * n + columns[0] - column
                source, goal = piece.places(rows, columns), Affine(first, (rows[1], columns[1]), (n, 1))
                done, size = 0, rows[1] * columns[1]
                while done < size:
                    stop = min(size, done + left)
                    read += source.flat(done, stop)
                    written += goal.flat(done, stop)
                    left, done = left - (stop - done), stop
                    if not left:
                        yield 0, Pieces.joined(read), Pieces.joined(written)
                        left, read, written = _ELEMENTS, [], []
            if read:
                yield 0, Pieces.joined(read), Pieces.joined(written)


def copy(out_ptr: Pointer, sources: Sequence[Pointer], plan: Strided | Joined | Matrix, *, tl: TLContext) -> None:
    for source, read, written in plan.moves(tl):
        store_places(out_ptr, written, load_places(sources[source], read, tl), tl)


def fill(out_ptr: Pointer, value: float, parts: Parts, *, tl: TLContext) -> None:
    for at, size in part_blocks(parts, BLOCK, tl):
        tl.store(out_ptr + at, tl.full((size,), value, out_ptr.dtype.element_ty))
