"""Symbolic integer tiles: results of `arange` and scalars as first element and strides, and masks as boxes.

A load or store with such offsets computes its runs from a few numbers, however large the tile is. An operation without
an exact symbolic result returns None, and is computed with arrays.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import NamedTuple

import numpy as np

Shape = tuple[int, ...]
Runs = tuple[tuple[int, int, int], ...]  # (first, elements, requested elements) of each, ascending, with gaps


class Affine(NamedTuple):
    """The integers first + i * strides[0] + j * strides[1] + ..., for each i, j, ... of `shape`."""

    first: int
    shape: Shape
    strides: tuple[int, ...]

    @property
    def ends(self) -> tuple[int, int]:
        """The least and the greatest of the integers."""
        low = high = self.first
        for n, step in zip(self.shape, self.strides, strict=True):
            if step < 0:
                low += (n - 1) * step
            else:
                high += (n - 1) * step
        return low, high

    def are_in(self, least: int, greatest: int) -> bool:
        low, high = self.ends
        return least <= low and high <= greatest

    def array(self) -> np.ndarray:
        out = np.full(self.shape, self.first, np.int64)
        for axis, (n, step) in enumerate(zip(self.shape, self.strides, strict=True)):
            if step and n > 1:
                out += (np.arange(n) * step).reshape(n, *(1,) * (len(self.shape) - axis - 1))
        return out

    def spread(self, shape: Shape) -> Affine:
        """Broadcast to `shape`."""
        if shape == self.shape:
            return self
        new = len(shape) - len(self.shape)
        steps = [step if n > 1 else 0 for n, step in zip(self.shape, self.strides, strict=True)]
        return Affine(self.first, shape, (*(0,) * new, *steps))

    def view(self, shape: Shape) -> Affine | None:
        """Reshape in row-major order; None if the result is not affine."""
        left: list[tuple[int, int]] = []  # merged axes, (size, stride)
        for n, step in zip(self.shape, self.strides, strict=True):
            if left and left[-1][1] == n * step:
                left[-1] = left[-1][0] * n, step
            elif n > 1:
                left.append((n, step))
        steps = [0] * len(shape)
        for axis in reversed(range(len(shape))):
            size = shape[axis]
            if size > 1:
                n, steps[axis] = left.pop()
                if n % size:
                    return None
                if n > size:
                    left.append((n // size, size * steps[axis]))
        return Affine(self.first, shape, tuple(steps))

    def plus(self, other: Affine, sign: int = 1) -> Affine:
        steps = tuple([a + sign * b for a, b in zip(self.strides, other.strides, strict=True)])
        return Affine(self.first + sign * other.first, self.shape, steps)

    def times(self, other: Affine) -> Affine | None:
        """Product with integers of the same shape; None if neither is uniform."""
        if any(other.strides):
            return None if any(self.strides) else other.times(self)
        return Affine(self.first * other.first, self.shape, tuple([step * other.first for step in self.strides]))

    def below(self, bound: int) -> Inside | None:
        """Elements less than `bound`; None unless the comparison depends on one axis only."""
        shape, (low, high) = self.shape, self.ends
        if high < bound:
            return Inside(shape, tuple([(0, n) for n in shape]))
        if low >= bound:
            return Inside(shape, tuple([(0, 0)] * len(shape)))
        varying = [axis for axis, (n, step) in enumerate(zip(shape, self.strides, strict=True)) if n > 1 and step]
        if len(varying) > 1:
            return None
        (axis,) = varying
        n, step = shape[axis], self.strides[axis]
        spans = [(0, size) for size in shape]
        spans[axis] = (0, -((self.first - bound) // step)) if step > 0 else ((self.first - bound) // -step + 1, n)
        return Inside(shape, tuple(spans))

    def flat(self, start: int, stop: int) -> list[Affine]:
        """Elements `start` to `stop` (exclusive) of a tile with two axes, in row-major order."""
        across = self.shape[1]
        row, column = divmod(start, across)
        end_row, end = divmod(stop, across)
        if row == end_row:
            blocks = [(row, 1, column, end)]
        else:
            whole = row + (column > 0)
            blocks = [(row, whole - row, column, across), (whole, end_row - whole, 0, across), (end_row, 1, 0, end)]
        down, right = self.strides
        return [
            Affine(self.first + i * down + j * right, (n, k - j), self.strides) for i, n, j, k in blocks if n and k > j
        ]

    def within(self, inside: Inside) -> Affine:
        starts = zip(inside.spans, self.strides, strict=True)
        first = self.first + sum([start * step for (start, _), step in starts])
        return Affine(first, tuple([end - start for start, end in inside.spans]), self.strides)

    @property
    def ascend(self) -> bool:
        """Whether the elements strictly ascend in row-major order."""
        reach = 1
        for n, step in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if n > 1:
                if step < reach:
                    return False
                reach += (n - 1) * step
        return True

    def runs(self) -> Runs | None:
        """Find the runs of consecutive integers; None if axes overlap other than by repetition."""
        asked = prod([n for n, step in zip(self.shape, self.strides, strict=True) if not step])
        length = reach = 1
        starts, adjoin = [self.ends[0]], False
        for step, n in sorted([(abs(s), n) for n, s in zip(self.shape, self.strides, strict=True) if s and n > 1]):
            if step < reach:
                return None
            if step == length and len(starts) == 1:
                length = reach = n * length
                continue
            adjoin = adjoin or step == reach
            starts = [start + i * step for i in range(n) for start in starts]
            reach += (n - 1) * step
        found = tuple([(start, length, length * asked) for start in starts])
        return _joined(found) if adjoin else found


class Pieces(NamedTuple):
    """Integers of a tile that are affine in parts of it; `parts` holds (corner in the tile, integers) of each.

    In a tile with one axis, parts are flattened.
    """

    shape: Shape
    parts: tuple[tuple[Shape, Affine], ...]

    @property
    def ascend(self) -> bool:
        """Unknown, so assume the worst."""
        return False

    def array(self) -> np.ndarray:
        out = np.empty(self.shape, np.int64)
        for corner, part in self.parts:
            sizes = part.shape if len(self.shape) > 1 else (prod(part.shape),)
            to = tuple([slice(at, at + n) for at, n in zip(corner, sizes, strict=True)])
            out[to] = part.array().reshape(sizes)
        return out

    @classmethod
    def joined(cls, parts: Iterable[Affine]) -> Pieces:
        """Join the elements of `parts`, each flattened, to a tile with one axis."""
        found, size = [], 0
        for part in parts:
            found.append(((size,), part))
            size += prod(part.shape)
        return cls((size,), tuple(found))

    def view(self, shape: Shape) -> None:
        """None: a reshaped tile needs an array."""

    def runs(self) -> Runs | None:
        """Find the runs of consecutive integers; None if parts overlap."""
        found: list[tuple[int, int, int]] = []
        for _, part in self.parts:
            runs = part.runs()
            if runs is None:
                return None
            found += runs
        return _joined(sorted(found))


class Inside(NamedTuple):
    """A mask that is a box: from a start to an end along each axis."""

    shape: Shape
    spans: tuple[tuple[int, int], ...]

    @property
    def size(self) -> int:
        return prod([end - start for start, end in self.spans])

    def array(self) -> np.ndarray:
        out = np.zeros(self.shape, bool)
        out[tuple([slice(start, end) for start, end in self.spans])] = True
        return out

    def spread(self, shape: Shape) -> Inside:
        """Broadcast to `shape`."""
        if shape == self.shape:
            return self
        new = len(shape) - len(self.shape)
        spans = [(0, n) for n in shape[:new]]
        for span, before, n in zip(self.spans, self.shape, shape[new:], strict=True):
            spans.append((0, n) if before == 1 != n and span == (0, 1) else span)
        return Inside(shape, tuple(spans))

    def view(self, shape: Shape) -> Inside | None:
        """Reshape, if the shapes differ by axes of size 1 only; else None."""
        if not self.size:
            return Inside(shape, ((0, 0),) * len(shape)) if shape else None
        kept = [(n, span) for n, span in zip(self.shape, self.spans, strict=True) if n > 1]
        if [n for n, _ in kept] != [n for n in shape if n > 1]:
            return None
        left = iter([span for _, span in kept])
        return Inside(shape, tuple([next(left) if n > 1 else (0, 1) for n in shape]))

    def both(self, other: Inside) -> Inside:
        spans = []
        for (start, end), (low, high) in zip(self.spans, other.spans, strict=True):
            first = max(start, low)
            spans.append((first, max(first, min(end, high))))
        return Inside(self.shape, tuple(spans))


Places = Affine | Pieces | Inside


def everywhere(value: int, shape: Shape) -> Affine | Inside:
    if isinstance(value, bool):
        return Inside(shape, tuple([(0, n if value else 0) for n in shape]))
    return Affine(value, shape, (0,) * len(shape))


def combined(name: str, a: Places | None, b: Places | None, shape: Shape, limits: tuple[int, int]) -> Places | None:
    """Apply an operation to operands of a type with these limits; None if the result is not known exactly."""
    if isinstance(a, Inside) and isinstance(b, Inside):
        return a.spread(shape).both(b.spread(shape)) if name == "and" else None
    if not (isinstance(a, Affine) and isinstance(b, Affine)):
        return None
    if not (a.are_in(*limits) and b.are_in(*limits)):
        return None
    x, y = a.spread(shape), b.spread(shape)
    if name in ("lt", "le"):
        return x.plus(y, -1).below(int(name == "le"))
    if name in ("gt", "ge"):
        return y.plus(x, -1).below(int(name == "ge"))
    found = x.plus(y) if name == "add" else x.plus(y, -1) if name == "sub" else x.times(y) if name == "mul" else None
    return found if found is not None and found.are_in(*limits) else None


def _joined(runs: Iterable[tuple[int, int, int]]) -> Runs | None:
    """Merge adjacent runs of an ascending sequence; None if some overlap."""
    out: list[tuple[int, int, int]] = []
    end = None
    for start, n, asked in runs:
        if end is not None and start <= end:
            if start < end:
                return None
            first, before, asked_before = out[-1]
            out[-1] = (first, before + n, asked_before + asked)
        else:
            out.append((start, n, asked))
        end = start + n
    return tuple(out)
