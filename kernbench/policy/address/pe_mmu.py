"""The address translation of one PE: ranges of virtual memory, each contiguous in physical memory."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from kernbench.errors import AllocationError, OutOfBoundsError

Range = tuple[int, int, int]


class TranslationTable:
    """Ranges in columns, sorted by virtual address. Immutable: PEs with equal mappings share one."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.pas: list[int] = []
        self.owners: list[str] = []

    def copy(self) -> TranslationTable:
        new = TranslationTable()
        new.starts, new.ends, new.pas, new.owners = self.starts[:], self.ends[:], self.pas[:], self.owners[:]
        return new

    def range(self, i: int) -> str:
        return f"{self.owners[i]!r} {_span(self.starts[i], self.ends[i])}"


_EMPTY = TranslationTable()
_NO_END = 1 << 64


class PeMMU:
    """Ranges (va, nbytes, pa) with their owners, sorted by va; `name` is the PE's, for messages.

    Look-up time, permissions and table walks are not modelled.

    >>> mmu = PeMMU("sip0.cube0.pe0")
    >>> mmu.map(0x1000, 256, 0xA000, "w")
    >>> mmu.map(0x1100, 256, 0xF000, "w")
    >>> [(hex(pa), nbytes) for pa, nbytes in mmu.translate(0x10C0, 128)]
    [('0xa0c0', 64), ('0xf000', 64)]
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._table = _EMPTY

    def __len__(self) -> int:
        return len(self._table.starts)

    def map(self, va: int, nbytes: int, pa: int, owner: str) -> None:
        """Map a range to memory of the tensor `owner`; AllocationError if a part of it is mapped already."""
        self.map_all(((va, nbytes, pa),), owner, {})

    def map_all(self, ranges: Iterable[Range], owner: str, made: dict[TranslationTable, TranslationTable]) -> None:
        """Map ranges (va, nbytes, pa) as `map`; `made` caches derived tables for the next PE with the same update."""
        new = made.get(self._table)
        if new is None:
            new = made[self._table] = self._with(sorted(ranges), owner)
        self._table = new

    def _with(self, ranges: list[Range], owner: str) -> TranslationTable:
        """Return the table with `ranges`, in order; those between the same two neighbours are inserted together."""
        table = self._table.copy()
        while ranges:
            i, n = bisect_left(table.starts, ranges[0][0]), 0
            end = table.ends[i - 1] if i else 0
            behind = table.starts[i] if i < len(table.starts) else _NO_END
            for va, nbytes, _ in ranges:
                if nbytes <= 0:
                    raise AllocationError(
                        f"{self.name}: cannot map {nbytes} B of {owner!r} at {va:#x}; expected at least 1 B"
                    )
                if not end <= va <= behind - nbytes:
                    break
                end = va + nbytes
                n += 1
            if not n:
                raise AllocationError(
                    f"{self.name}: {owner!r} {_span(va, va + nbytes)} overlaps {table.range(i - (va < end))}, which is "
                    "mapped; unmap it first"
                )
            table.starts[i:i] = [va for va, _, _ in ranges[:n]]
            table.ends[i:i] = [va + nbytes for va, nbytes, _ in ranges[:n]]
            table.pas[i:i] = [pa for _, _, pa in ranges[:n]]
            table.owners[i:i] = [owner] * n
            ranges = ranges[n:]
        return table

    def unmap(self, va: int, nbytes: int, made: dict[TranslationTable, TranslationTable] | None = None) -> None:
        """Unmap all ranges within `va` .. `va + nbytes`; AllocationError if there is none, or one crosses an end."""
        made = {} if made is None else made
        new = made.get(self._table)
        if new is None:
            new = made[self._table] = self._without(va, nbytes)
        self._table = new

    def _without(self, va: int, nbytes: int) -> TranslationTable:
        table = self._table.copy()
        starts, ends = table.starts, table.ends
        first, behind = bisect_left(starts, va), bisect_left(starts, va + nbytes)
        crossing = [i for i in (first - 1, behind - 1) if i >= 0 and starts[i] < va + nbytes and ends[i] > va]
        partly = [i for i in crossing if starts[i] < va or ends[i] > va + nbytes]
        if first == behind or partly:
            found = f"only a part of {table.range(partly[0])}" if partly else "nothing that is mapped"
            raise AllocationError(
                f"{self.name}: unmap of {_span(va, va + nbytes)} covers {found}; unmap whole ranges, once"
            )
        del starts[first:behind], ends[first:behind], table.pas[first:behind], table.owners[first:behind]
        return table

    def translate(self, va: int, nbytes: int) -> list[tuple[int, int]]:
        """Return the pieces (pa, nbytes) of an access, in address order; OutOfBoundsError if a byte is not mapped."""
        table = self._table
        starts, ends, pas = table.starts, table.ends, table.pas
        i = bisect_right(starts, va) - 1
        if i >= 0 and va + nbytes <= ends[i]:
            return [(pas[i] + va - starts[i], nbytes)]
        pieces = []
        at, end = va, va + nbytes
        while at < end:
            if i < 0 or i == len(starts) or not starts[i] <= at < ends[i]:
                raise OutOfBoundsError(self._unmapped(at, va, nbytes))
            size = min(end, ends[i]) - at
            pieces.append((pas[i] + at - starts[i], size))
            at += size
            i += 1
        return pieces

    def range_of(self, va: int) -> tuple[int, int, int]:
        """Return (start, end, physical address) of the range that contains `va`; (0, 0, 0) if it is not mapped."""
        table = self._table
        i = bisect_right(table.starts, va) - 1
        return (table.starts[i], table.ends[i], table.pas[i]) if i >= 0 and va < table.ends[i] else (0, 0, 0)

    def owner(self, va: int) -> str | None:
        table = self._table
        i = bisect_right(table.starts, va) - 1
        return table.owners[i] if i >= 0 and va < table.ends[i] else None

    def owner_of(self, pa: int) -> str | None:
        table = self._table
        ranges = zip(table.pas, table.starts, table.ends, table.owners, strict=True)
        return next((owner for at, start, end, owner in ranges if at <= pa < at + end - start), None)

    def _unmapped(self, at: int, va: int, nbytes: int) -> str:
        table = self._table
        access = f"{self.name}: access to {_span(va, va + nbytes)} ({nbytes} B): {at:#x} is not mapped"
        if not table.starts:
            return f"{access}; no tensor is mapped on this PE; launch the kernel with the tensor as an argument"
        i = bisect_right(table.starts, at)
        adjacent = [j for j in (i - 1, i) if 0 <= j < len(table.starts)]
        near = min(adjacent, key=lambda j: max(table.starts[j] - at, at - table.ends[j] + 1))
        gap = at - table.ends[near]
        where = f"{gap + 1} B past the last byte of" if gap >= 0 else f"{table.starts[near] - at} B before"
        return f"{access}; it is {where} {table.range(near)}; check the offsets against the tensor's size"


def _span(start: int, end: int) -> str:
    return f"[{start:#x}, {end:#x})"
