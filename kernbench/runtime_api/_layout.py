"""The placement of a device tensor: shards on PEs, and regions of them as runs of bytes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import numpy as np

from kernbench._dtypes import DType
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api._parts import assign

_Box = tuple[slice, ...]
_Place = tuple[int, int]  # (cube, PE)
ByteSpan = tuple[int, int]  # (physical address, bytes)


@dataclass(frozen=True, slots=True)
class TensorShard:
    sip: int
    cube: int
    pe: int
    pa: int
    offset_bytes: int
    nbytes: int
    index: _Box


class Layout:
    """Shards that together hold an array of `shape`, one run of bytes when taken in the order of their offsets.

    Where a part is replicated, the host reads the copy of the first PE and writes every copy.
    """

    def __init__(
        self, shape: Sequence[int], dtype: DType, shards: Iterable[TensorShard], dp: DPPolicy | None = None
    ) -> None:
        self.shape = tuple(shape)
        self.dtype = dtype
        self.dp = dp
        self.shards = tuple(sorted(shards, key=lambda s: (s.offset_bytes, s.cube, s.pe)))

    @cached_property
    def parts(self) -> tuple[TensorShard, ...]:
        first: dict[int, TensorShard] = {}
        for shard in self.shards:
            first.setdefault(shard.offset_bytes, shard)
        return tuple(first.values())

    def held(self, pes_per_cube: int) -> list[tuple[int, int, tuple[int, ...]]]:
        """Return (first byte, bytes, numbers in the SIP of the PEs that hold it) of each part."""
        holders: dict[int, list[int]] = {}
        for shard in self.shards:
            holders.setdefault(shard.offset_bytes, []).append(shard.cube * pes_per_cube + shard.pe)
        return [(part.offset_bytes, part.nbytes, tuple(holders[part.offset_bytes])) for part in self.parts]

    def replicated(self) -> list[list[TensorShard]]:
        by_offset: dict[int, list[TensorShard]] = {}
        for shard in self.shards:
            by_offset.setdefault(shard.offset_bytes, []).append(shard)
        return [shards for shards in by_offset.values() if len(shards) > 1]

    @cached_property
    def placement(self) -> tuple[object, ...]:
        """A key: equal if all elements are in the same places, whatever the device."""
        return tuple(
            (s.cube, s.pe, s.offset_bytes, s.nbytes, *((i.start, i.stop) for i in s.index)) for s in self.shards
        )

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    @property
    def read_pieces(self) -> list[ByteSpan]:
        return _pieces(self.parts)

    @property
    def write_pieces(self) -> list[ByteSpan]:
        return _pieces(self.shards)

    @cached_property
    def is_row_major(self) -> bool:
        return all(
            (run := _run(s.index, self.shape)) is not None and run[0] * self.dtype.itemsize == s.offset_bytes
            for s in self.parts
        )

    def gather(self, data: np.ndarray) -> np.ndarray:
        """Assemble the array from the bytes (uint8) of `parts`, in order."""
        elements = data.view(self.dtype.numpy)
        if self.is_row_major:
            return elements.reshape(self.shape)
        array = np.empty(self.shape, self.dtype.numpy)
        for shard in self.parts:
            part = array[shard.index]
            start = shard.offset_bytes // self.dtype.itemsize
            assign(part, elements[start : start + part.size].reshape(part.shape))
        return array

    def scatter(self, array: np.ndarray) -> np.ndarray:
        """Return the bytes (uint8) of `array` for `write_pieces`."""
        found = np.empty(sum(s.nbytes for s in self.shards), np.uint8)
        start = 0
        for s in self.shards:
            part = array[s.index]
            assign(found[start : start + s.nbytes].view(self.dtype.numpy).reshape(part.shape), part)
            start += s.nbytes
        return found

    def cut(self, box: _Box) -> tuple[int, Layout] | None:
        """Return (offset of its first byte, layout) of a part, or None if it is not one run of bytes."""
        found = []
        for shard in self.shards:
            inner = _overlap(shard.index, box)
            if any(s.start >= s.stop for s in inner):
                continue
            run = _run(_within(inner, shard.index), _sizes(shard.index))
            if run is None:
                return None
            start, size = (n * self.dtype.itemsize for n in run)
            index = _within(inner, box)
            found.append(
                replace(shard, pa=shard.pa + start, offset_bytes=shard.offset_bytes + start, nbytes=size, index=index)
            )
        first = min((s.offset_bytes for s in found), default=0)
        shape = _sizes(box)
        dp = self.dp if prod(shape) in (0, prod(self.shape)) else None  # all or nothing of it
        layout = Layout(shape, self.dtype, (replace(s, offset_bytes=s.offset_bytes - first) for s in found), dp)
        end = 0
        for part in layout.parts:
            if part.offset_bytes != end:
                return None
            end += part.nbytes
        return first, layout

    def flat(self) -> Layout | None:
        """Return the layout in one dim, or None if the bytes are not in row-major order."""
        if not self.is_row_major:
            return None
        item = self.dtype.itemsize
        return Layout(
            (prod(self.shape),),
            self.dtype,
            (
                replace(s, index=(slice(s.offset_bytes // item, (s.offset_bytes + s.nbytes) // item),))
                for s in self.shards
            ),
        )

    def of(self, dtype: DType) -> Layout:
        old, new = self.dtype.itemsize, dtype.itemsize
        return Layout(
            self.shape,
            dtype,
            (replace(s, offset_bytes=s.offset_bytes // old * new, nbytes=s.nbytes // old * new) for s in self.shards),
            self.dp,
        )

    def permuted(self, dims: Sequence[int]) -> Layout:
        """Return the layout whose dim i is this one's `dims[i]`; dims of size 1 may be left out."""
        return Layout(
            [self.shape[d] for d in dims],
            self.dtype,
            (replace(s, index=tuple(s.index[d] for d in dims)) for s in self.shards),
        )

    def boundaries(self) -> list[list[int]]:
        return [
            sorted({n for s in self.parts for n in (s.index[dim].start, s.index[dim].stop)})
            for dim in range(len(self.shape))
        ]


def strided(array: np.ndarray, shape: Sequence[int], stride: Sequence[int]) -> np.ndarray:
    """View the elements of `array`, from the first one, with another shape and strides (in elements)."""
    # as_strided does not know the 8-bit floats: view them as integers.
    bits = array.view(f"u{array.itemsize}")
    steps = [n * array.itemsize for n in stride]
    return np.lib.stride_tricks.as_strided(bits, tuple(shape), steps).view(array.dtype)


def _run(box: Sequence[slice], shape: Sequence[int]) -> tuple[int, int] | None:
    """Return (first element, elements) of `box` in a row-major array of `shape`; None if it is not one run."""
    first, size, whole = 0, 1, True
    for dim in range(len(shape)):
        first = first * shape[dim] + box[dim].start
    for dim in reversed(range(len(shape))):
        length = box[dim].stop - box[dim].start
        if not whole and length > 1:
            return None
        size *= length
        whole = whole and length == shape[dim]
    return first, size


def _pieces(shards: Iterable[TensorShard]) -> list[ByteSpan]:
    """Return the spans of `shards`, merged where they are adjacent in one PE's memory."""
    out: list[ByteSpan] = []
    holder = None
    for s in shards:
        if holder == (s.cube, s.pe) and out[-1][0] + out[-1][1] == s.pa:
            out[-1] = out[-1][0], out[-1][1] + s.nbytes
        else:
            out.append((s.pa, s.nbytes))
        holder = s.cube, s.pe
    return out


@dataclass(frozen=True, slots=True)
class _Piece:
    """The part of a region in one shard; `first` and `strides` count elements."""

    box: _Box
    first: int
    strides: tuple[int, ...]
    holders: tuple[_Place, ...]


@dataclass(frozen=True, slots=True)
class CopyRun:
    """`n` consecutive elements copied from `source` to `target`, each counted from its tensor's pointer."""

    source: int
    target: int
    n: int
    holders: tuple[_Place, ...]


@dataclass(frozen=True, slots=True)
class Region:
    shape: tuple[int, ...]
    pieces: tuple[_Piece, ...]


def whole_region(layout: Layout) -> Region:
    return _region(layout, everything(layout.shape))


def elements(layout: Layout, start: int, stop: int) -> Region | None:
    """Return a range of elements in row-major order; None if the parts are not in that order."""
    flat = layout.flat()
    return None if flat is None else _region(flat, (slice(start, stop),))


def along(layout: Layout, dim: int, start: int, stop: int) -> Region:
    box = [*everything(layout.shape)]
    box[dim] = slice(start, stop)
    return _region(layout, tuple(box))


def chunks(layout: Layout, n: int, shape: Sequence[int]) -> list[Region] | None:
    """Split into `n` regions of `shape`: of a concatenation along dim 0, or of a stack; None if it is neither."""
    if shape and layout.shape == (n * shape[0], *shape[1:]):
        return [along(layout, 0, i * shape[0], (i + 1) * shape[0]) for i in range(n)]
    if layout.shape == (n, *shape):
        layers = [along(layout, 0, i, i + 1).pieces for i in range(n)]
        return [
            Region(tuple(shape), tuple(_Piece(p.box[1:], p.first, p.strides[1:], p.holders) for p in pieces))
            for pieces in layers
        ]
    return None


def stacked(layout: Layout, n: int) -> Layout:
    """Return the layout of `n` arrays, consecutive in every shard."""
    parts = (
        replace(s, offset_bytes=s.offset_bytes * n, nbytes=s.nbytes * n, index=(slice(0, n), *s.index))
        for s in layout.shards
    )
    return Layout((n, *layout.shape), layout.dtype, parts)


def runs(source: Region, target: Region) -> list[CopyRun]:
    """Return the runs that copy `source` to `target`, of the same shape; their holders are those of the target."""
    assert source.shape == target.shape, f"a region of {source.shape} cannot become one of {target.shape}"
    found: list[CopyRun] = []
    for i, j in _meetings([p.box for p in target.pieces], [p.box for p in source.pieces]):
        to, of = target.pieces[i], source.pieces[j]
        found += _cut(of, to, _overlap(of.box, to.box))
    return found


def _meetings(a: Sequence[_Box], b: Sequence[_Box]) -> Iterator[tuple[int, int]]:
    if a and b:
        (a_first, a_last), (b_first, b_last) = (
            (np.array([[s.start for s in box] for box in boxes]), np.array([[s.stop for s in box] for box in boxes]))
            for boxes in (a, b)
        )
        both = (a_first[:, None] < b_last[None]) & (b_first[None] < a_last[:, None])
        yield from zip(*(side.tolist() for side in np.nonzero(both.all(axis=-1))), strict=True)


def _cut(of: _Piece, to: _Piece, box: _Box) -> Iterator[CopyRun]:
    """Split the overlap of two pieces into runs that are consecutive in both."""
    shape = _sizes(box)
    first, n = len(shape), 1
    while first and all(n == p.strides[first - 1] or shape[first - 1] == 1 for p in (of, to)):
        first -= 1
        n *= shape[first]
    starts = [
        p.first + sum((b.start - own.start) * step for b, own, step in zip(box, p.box, p.strides, strict=True))
        for p in (of, to)
    ]
    for at in itertools.product(*map(range, shape[:first])):
        source, target = (
            start + sum(i * step for i, step in zip(at, p.strides, strict=False))
            for start, p in zip(starts, (of, to), strict=True)
        )
        yield CopyRun(source, target, n, to.holders)


def _region(layout: Layout, box: _Box) -> Region:
    holders: dict[int, list[_Place]] = {}
    for shard in layout.shards:
        holders.setdefault(shard.offset_bytes, []).append((shard.cube, shard.pe))
    pieces = []
    for i, _ in _meetings([part.index for part in layout.parts], [box]):
        part = layout.parts[i]
        inner, strides = _overlap(part.index, box), row_major(_sizes(part.index))
        into = sum(at.start * step for at, step in zip(_within(inner, part.index), strides, strict=True))
        first = part.offset_bytes // layout.dtype.itemsize + into
        pieces.append(_Piece(_within(inner, box), first, strides, tuple(holders[part.offset_bytes])))
    return Region(_sizes(box), tuple(pieces))


def _overlap(a: _Box, b: _Box) -> _Box:
    return tuple(slice(max(x.start, y.start), min(x.stop, y.stop)) for x, y in zip(a, b, strict=True))


def _within(box: _Box, outer: _Box) -> _Box:
    return tuple(slice(b.start - o.start, b.stop - o.start) for b, o in zip(box, outer, strict=True))


def _sizes(box: _Box) -> tuple[int, ...]:
    return tuple(b.stop - b.start for b in box)


def everything(shape: Sequence[int]) -> _Box:
    return tuple(slice(0, n) for n in shape)


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides in elements."""
    stride, step = [], 1
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1)
    return tuple(reversed(stride))
