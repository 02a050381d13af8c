"""The address translation of one PE: ranges of virtual memory, each contiguous in physical memory."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from kernbench.errors import AllocationError, OutOfBoundsError


class PeMMU:
    """Ranges (va, nbytes, pa) with their owners, sorted by va.

    Look-up time, permissions and table walks are not modelled.

    Parameters
    ----------
    name : str
        The PE, for messages.

    Examples
    --------
    >>> mmu = PeMMU("sip0.cube0.pe0")
    >>> mmu.map(0x1000, 256, 0xA000, "w")
    >>> mmu.map(0x1100, 256, 0xF000, "w")
    >>> [(hex(pa), nbytes) for pa, nbytes in mmu.translate(0x10C0, 128)]
    [('0xa0c0', 64), ('0xf000', 64)]
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._pas: list[int] = []
        self._owners: list[str] = []

    def __len__(self) -> int:
        return len(self._starts)

    def map(self, va: int, nbytes: int, pa: int, owner: str) -> None:
        """Let `va` .. `va + nbytes` mean `pa` .. `pa + nbytes`, memory of the tensor `owner`.

        Raises
        ------
        AllocationError
            If a part of the range is mapped already.
        """
        if nbytes <= 0:
            raise AllocationError(f"{self.name}: cannot map {nbytes} B of {owner!r} at {va:#x}; expected at least 1 B")
        i = len(self._starts)
        if i and va < self._ends[-1]:
            i = bisect_left(self._starts, va)
            for at in (i - 1, i):
                if 0 <= at < len(self) and va < self._ends[at] and self._starts[at] < va + nbytes:
                    raise AllocationError(
                        f"{self.name}: {owner!r} {_span(va, va + nbytes)} overlaps {self._range(at)}, which is mapped; "
                        "unmap it first"
                    )
        self._starts.insert(i, va)
        self._ends.insert(i, va + nbytes)
        self._pas.insert(i, pa)
        self._owners.insert(i, owner)

    def unmap(self, va: int, nbytes: int) -> None:
        """Forget the ranges that lie in `va` .. `va + nbytes`.

        Raises
        ------
        AllocationError
            If there is none, or one reaches over an end.
        """
        first, behind = bisect_left(self._starts, va), bisect_left(self._starts, va + nbytes)
        crossing = [
            i for i in (first - 1, behind - 1) if i >= 0 and self._starts[i] < va + nbytes and self._ends[i] > va
        ]
        partly = [i for i in crossing if self._starts[i] < va or self._ends[i] > va + nbytes]
        if first == behind or partly:
            found = f"only a part of {self._range(partly[0])}" if partly else "nothing that is mapped"
            raise AllocationError(
                f"{self.name}: unmap of {_span(va, va + nbytes)} covers {found}; unmap whole ranges, once"
            )
        for column in (self._starts, self._ends, self._pas, self._owners):
            del column[first:behind]

    def translate(self, va: int, nbytes: int) -> list[tuple[int, int]]:
        """Return the physical pieces (pa, nbytes) of an access, in address order.

        Raises
        ------
        OutOfBoundsError
            If a byte of it is not mapped; the message names the PE, the address and the nearest tensor.
        """
        i = bisect_right(self._starts, va) - 1
        if i >= 0 and va + nbytes <= self._ends[i]:
            return [(self._pas[i] + va - self._starts[i], nbytes)]
        pieces = []
        at, end = va, va + nbytes
        while at < end:
            if i < 0 or i == len(self) or not self._starts[i] <= at < self._ends[i]:
                raise OutOfBoundsError(self._unmapped(at, va, nbytes))
            size = min(end, self._ends[i]) - at
            pieces.append((self._pas[i] + at - self._starts[i], size))
            at += size
            i += 1
        return pieces

    def owner(self, va: int) -> str | None:
        """Return the name of the tensor that `va` belongs to, or None."""
        i = bisect_right(self._starts, va) - 1
        return self._owners[i] if i >= 0 and va < self._ends[i] else None

    def owner_of(self, pa: int) -> str | None:
        """Return the name of the tensor that a physical address belongs to, or None."""
        ranges = zip(self._pas, self._starts, self._ends, self._owners, strict=True)
        return next((owner for at, start, end, owner in ranges if at <= pa < at + end - start), None)

    def _unmapped(self, at: int, va: int, nbytes: int) -> str:
        access = f"{self.name}: access to {_span(va, va + nbytes)} ({nbytes} B): {at:#x} is not mapped"
        if not self._starts:
            return f"{access}; no tensor is mapped on this PE; launch the kernel with the tensor as an argument"
        i = bisect_right(self._starts, at)
        beside = [j for j in (i - 1, i) if 0 <= j < len(self)]
        near = min(beside, key=lambda j: max(self._starts[j] - at, at - self._ends[j] + 1))
        gap = at - self._ends[near]
        where = f"{gap + 1} B past the last byte of" if gap >= 0 else f"{self._starts[near] - at} B before"
        return f"{access}; it is {where} {self._range(near)}; check the offsets against the tensor's size"

    def _range(self, i: int) -> str:
        return f"{self._owners[i]!r} {_span(self._starts[i], self._ends[i])}"


def _span(start: int, end: int) -> str:
    return f"[{start:#x}, {end:#x})"
