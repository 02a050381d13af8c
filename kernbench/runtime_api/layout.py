"""Where the parts of a device tensor lie: between an array on the host and the bytes of the shards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import numpy as np

from kernbench.dtypes import DType
from kernbench.policy.placement.dp import DPPolicy

Box = tuple[slice, ...]
Piece = tuple[int, int]


@dataclass(frozen=True, slots=True)
class TensorShard:
    """One contiguous part of a tensor, in the memory of one PE."""

    sip: int
    cube: int
    pe: int
    pa: int
    offset: int
    nbytes: int
    index: Box


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
        self.shards = tuple(sorted(shards, key=lambda s: (s.offset, s.cube, s.pe)))

    @cached_property
    def parts(self) -> tuple[TensorShard, ...]:
        """One shard for every part, in the order of offsets."""
        first: dict[int, TensorShard] = {}
        for shard in self.shards:
            first.setdefault(shard.offset, shard)
        return tuple(first.values())

    def replicated(self) -> list[list[TensorShard]]:
        """Return the copies of each part that has several, the one that the host reads first."""
        by_offset: dict[int, list[TensorShard]] = {}
        for shard in self.shards:
            by_offset.setdefault(shard.offset, []).append(shard)
        return [shards for shards in by_offset.values() if len(shards) > 1]

    @property
    def nbytes(self) -> int:
        """Bytes of all parts, copies not counted."""
        return prod(self.shape) * self.dtype.itemsize

    @property
    def read_pieces(self) -> list[Piece]:
        """Where to read every part once, as (physical address, bytes)."""
        return _pieces(self.parts)

    @property
    def write_pieces(self) -> list[Piece]:
        """Where to write every part, all copies, as (physical address, bytes)."""
        return _pieces(self.shards)

    @cached_property
    def is_row_major(self) -> bool:
        """Whether the bytes lie in the row-major order of the whole array."""
        return all(
            (run := _run(s.index, self.shape)) is not None and run[0] * self.dtype.itemsize == s.offset
            for s in self.parts
        )

    def gather(self, data: np.ndarray) -> np.ndarray:
        """Return the array whose `parts` have the bytes `data` (uint8)."""
        elements = data.view(self.dtype.numpy)
        if self.is_row_major:
            return elements.reshape(self.shape)
        array = np.empty(self.shape, self.dtype.numpy)
        for shard in self.parts:
            part = array[shard.index]
            start = shard.offset // self.dtype.itemsize
            part[...] = elements[start : start + part.size].reshape(part.shape)
        return array

    def scatter(self, array: np.ndarray) -> np.ndarray:
        """Return the bytes (uint8) that `array` has in `write_pieces`."""
        if not self.shards:
            return np.zeros(0, np.uint8)
        rows = [np.ascontiguousarray(array[s.index]).reshape(-1).view(np.uint8) for s in self.shards]
        return np.concatenate(rows)

    def cut(self, box: Box) -> tuple[int, Layout] | None:
        """Return the part `box` as (offset of its first byte, layout), or None if it is not one run of bytes."""
        found = []
        for shard in self.shards:
            inner = [_overlap(own, wanted) for own, wanted in zip(shard.index, box, strict=True)]
            if any(s.start >= s.stop for s in inner):
                continue
            local = tuple(
                slice(i.start - own.start, i.stop - own.start) for i, own in zip(inner, shard.index, strict=True)
            )
            run = _run(local, [own.stop - own.start for own in shard.index])
            if run is None:
                return None
            start, size = (n * self.dtype.itemsize for n in run)
            index = tuple(slice(i.start - b.start, i.stop - b.start) for i, b in zip(inner, box, strict=True))
            found.append(
                TensorShard(shard.sip, shard.cube, shard.pe, shard.pa + start, shard.offset + start, size, index)
            )
        first = min((s.offset for s in found), default=0)
        shape = [b.stop - b.start for b in box]
        dp = self.dp if prod(shape) in (0, prod(self.shape)) else None  # all or nothing of it
        layout = Layout(shape, self.dtype, (replace(s, offset=s.offset - first) for s in found), dp)
        end = 0
        for part in layout.parts:
            if part.offset != end:
                return None
            end += part.nbytes
        return first, layout

    def flat(self) -> Layout | None:
        """Return the same bytes as a layout of one dim, or None if they are not in row-major order."""
        if not self.is_row_major:
            return None
        item = self.dtype.itemsize
        return Layout(
            (prod(self.shape),),
            self.dtype,
            (replace(s, index=(slice(s.offset // item, (s.offset + s.nbytes) // item),)) for s in self.shards),
        )

    def without(self, dims: set[int]) -> Layout:
        """Return the layout without `dims`, each of size 1."""
        return self.permuted([i for i in range(len(self.shape)) if i not in dims]) if dims else self

    def of(self, dtype: DType) -> Layout:
        """Return the same spread of elements for another type."""
        old, new = self.dtype.itemsize, dtype.itemsize
        return Layout(
            self.shape,
            dtype,
            (replace(s, offset=s.offset // old * new, nbytes=s.nbytes // old * new) for s in self.shards),
            self.dp,
        )

    def permuted(self, dims: Sequence[int]) -> Layout:
        """Return the layout of an array whose dim i is this one's `dims[i]`, with the same parts on the same PEs."""
        return Layout(
            [self.shape[d] for d in dims],
            self.dtype,
            (replace(s, index=tuple(s.index[d] for d in dims)) for s in self.shards),
        )

    def boundaries(self) -> list[list[int]]:
        """Return for each dim where the shards begin and end."""
        return [
            sorted({n for s in self.parts for n in (s.index[dim].start, s.index[dim].stop)})
            for dim in range(len(self.shape))
        ]


def strided(array: np.ndarray, shape: Sequence[int], stride: Sequence[int]) -> np.ndarray:
    """Return the elements of `array`, from the first on, with another shape and strides (in elements)."""
    # as_strided does not know the 8-bit floats: their bits pass as integers.
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


def _overlap(a: slice, b: slice) -> slice:
    return slice(max(a.start, b.start), min(a.stop, b.stop))


def _pieces(shards: Iterable[TensorShard]) -> list[Piece]:
    """Return the bytes of `shards`, neighbours in one PE's memory joined."""
    out: list[Piece] = []
    holder = None
    for s in shards:
        if holder == (s.cube, s.pe) and out[-1][0] + out[-1][1] == s.pa:
            out[-1] = out[-1][0], out[-1][1] + s.nbytes
        else:
            out.append((s.pa, s.nbytes))
        holder = s.cube, s.pe
    return out
