"""Parts of device tensors as runs of bytes: what moves where when a part of one tensor becomes a part of another."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kernbench.runtime_api.layout import Box, Layout, TensorShard
from kernbench.runtime_api.tensor import row_major

Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Piece:
    """The part of a region that lies in one shard."""

    box: Box
    first: int
    strides: tuple[int, ...]
    holders: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive elements that become others: `n` from `source` to `target`, each counted from its pointer."""

    source: int
    target: int
    n: int
    holders: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Region:
    """A part of a tensor, an array of `shape`, as pieces."""

    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]


def whole(layout: Layout) -> Region:
    """Return all of it as one region."""
    return _region(layout, tuple(slice(0, n) for n in layout.shape))


def elements(layout: Layout, start: int, stop: int) -> Region | None:
    """Return elements in row-major order; None if its parts do not lie in that order."""
    flat = layout.flat()
    return None if flat is None else _region(flat, (slice(start, stop),))


def rows(layout: Layout, start: int, stop: int) -> Region:
    """Return the part from `start` to `stop` along dim 0."""
    return _region(layout, (slice(start, stop), *(slice(0, n) for n in layout.shape[1:])))


def along(layout: Layout, dim: int, start: int, stop: int) -> Region:
    """Return the part from `start` to `stop` along a dim."""
    box = [slice(0, n) for n in layout.shape]
    box[dim] = slice(start, stop)
    return _region(layout, tuple(box))


def chunks(layout: Layout, n: int, shape: Sequence[int]) -> list[Region] | None:
    """Return the `n` parts of `shape` that it is the concatenation of (in dim 0), or the stack; None if of neither."""
    if shape and layout.shape == (n * shape[0], *shape[1:]):
        return [rows(layout, i * shape[0], (i + 1) * shape[0]) for i in range(n)]
    if layout.shape == (n, *shape):
        return [_drop_first(rows(layout, i, i + 1)) for i in range(n)]
    return None


def stacked(layout: Layout, n: int) -> Layout:
    """Return where `n` arrays lie one behind the other in every shard of a layout."""
    parts = (replace(s, offset=s.offset * n, nbytes=s.nbytes * n, index=(slice(0, n), *s.index)) for s in layout.shards)
    return Layout((n, *layout.shape), layout.dtype, parts)


def runs(source: Region, target: Region) -> list[Run]:
    """Return the runs by which `source` becomes `target`, of the same shape; holders are those of the target."""
    assert source.shape == target.shape, f"a region of {source.shape} cannot become one of {target.shape}"
    found: list[Run] = []
    for i, j in _meetings([p.box for p in target.pieces], [p.box for p in source.pieces]):
        to, of = target.pieces[i], source.pieces[j]
        found += _cut(of, to, _overlap(of.box, to.box))
    return found


def _meetings(a: Sequence[Box], b: Sequence[Box]) -> Iterator[tuple[int, int]]:
    """Yield the numbers of boxes that share elements."""
    if a and b:
        (a_first, a_last), (b_first, b_last) = (
            (np.array([[s.start for s in box] for box in boxes]), np.array([[s.stop for s in box] for box in boxes]))
            for boxes in (a, b)
        )
        both = (a_first[:, None] < b_last[None]) & (b_first[None] < a_last[:, None])
        yield from zip(*(side.tolist() for side in np.nonzero(both.all(axis=-1))), strict=True)


def _cut(of: Piece, to: Piece, box: Box) -> Iterator[Run]:
    """Cut the elements that two pieces share into runs that are consecutive in both."""
    sizes = [b.stop - b.start for b in box]
    first, n = len(sizes), 1
    while first and all(n == p.strides[first - 1] or sizes[first - 1] == 1 for p in (of, to)):
        first -= 1
        n *= sizes[first]
    starts = [
        p.first + sum((b.start - own.start) * step for b, own, step in zip(box, p.box, p.strides, strict=True))
        for p in (of, to)
    ]
    for at in itertools.product(*map(range, sizes[:first])):
        source, target = (
            start + sum(i * step for i, step in zip(at, p.strides, strict=False))
            for start, p in zip(starts, (of, to), strict=True)
        )
        yield Run(source, target, n, to.holders)


def _region(layout: Layout, box: Box) -> Region:
    holders: dict[int, list[Place]] = {}
    for shard in layout.shards:
        holders.setdefault(shard.offset, []).append((shard.cube, shard.pe))
    pieces = [
        _piece(layout, part, _overlap(part.index, box), box, tuple(holders[part.offset]))
        for part in (layout.parts[i] for i, _ in _meetings([part.index for part in layout.parts], [box]))
    ]
    return Region(tuple(b.stop - b.start for b in box), tuple(pieces))


def _piece(layout: Layout, part: TensorShard, inner: Box, box: Box, holders: tuple[Place, ...]) -> Piece:
    strides = row_major([own.stop - own.start for own in part.index])
    into = sum((i.start - own.start) * step for i, own, step in zip(inner, part.index, strides, strict=True))
    local = tuple(slice(i.start - b.start, i.stop - b.start) for i, b in zip(inner, box, strict=True))
    return Piece(local, part.offset // layout.dtype.itemsize + into, strides, holders)


def _drop_first(region: Region) -> Region:
    pieces = tuple(Piece(p.box[1:], p.first, p.strides[1:], p.holders) for p in region.pieces)
    return Region(region.shape[1:], pieces)


def _overlap(a: Box, b: Box) -> Box:
    """Return what two boxes share."""
    return tuple(slice(max(x.start, y.start), min(x.stop, y.stop)) for x, y in zip(a, b, strict=True))
