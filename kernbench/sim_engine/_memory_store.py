"""Contents of the machine's memories: bytes by physical address, in pages allocated on first write."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NoReturn

import numpy as np

_PAGE_BITS = 18
_PAGE = 1 << _PAGE_BITS

ByteRange = tuple[int, int]


class Watch:
    """Bytes that two programs write: `differs` is called if the second writes other values than the first."""

    def __init__(self, piece: ByteRange, differs: Callable[[], NoReturn]) -> None:
        self.piece, self._differs = piece, differs
        self._values = np.zeros(piece[1], np.uint8)
        self._known = np.zeros(piece[1], bool)

    def see(self, pa: int, data: np.ndarray) -> None:
        """Compare a write at `pa` with the bytes written before."""
        start, n = self.piece
        lo, hi = max(pa, start), min(pa + data.size, start + n)
        if lo >= hi:
            return
        new, own = data[lo - pa : hi - pa], slice(lo - start, hi - start)
        known = self._known[own]
        if (new[known] != self._values[own][known]).any():
            self._differs()
        self._values[own], self._known[own] = new, True


class MemoryStore:
    """All bytes of a machine, zero until written. A piece is (physical address, number of bytes)."""

    def __init__(self) -> None:
        self._pages: dict[int, np.ndarray] = {}
        self.watches: dict[int, list[Watch]] = {}

    def watch(self, watch: Watch, is_written: bool) -> None:
        """Compare later writes to the bytes of `watch`; with `is_written`, with the present content."""
        pa, n = watch.piece
        if is_written:
            watch.see(pa, self.peek([watch.piece]))
        for page in range(pa >> _PAGE_BITS, (pa + n - 1 >> _PAGE_BITS) + 1):
            self.watches.setdefault(page, []).append(watch)

    def peek(self, pieces: Iterable[ByteRange]) -> np.ndarray:
        """Copy the bytes of `pieces`, concatenated (uint8); no simulated time passes."""
        pieces = list(pieces)
        if len(pieces) == 1:
            pa, nbytes = pieces[0]
            held, offset = self._pages.get(pa >> _PAGE_BITS), pa & (_PAGE - 1)
            if held is not None and offset + nbytes <= _PAGE:
                return held[offset : offset + nbytes].copy()
        parts: list[memoryview | bytes] = []
        for pa, nbytes in pieces:
            offset = pa & (_PAGE - 1)
            split = ((pa >> _PAGE_BITS, offset, nbytes),) if offset + nbytes <= _PAGE else _split(pa, nbytes)
            for page, offset, n in split:
                held = self._pages.get(page)
                parts.append(bytes(n) if held is None else held.data[offset : offset + n])
        return np.frombuffer(bytearray().join(parts), np.uint8)

    def poke(self, pieces: Iterable[ByteRange], data: np.ndarray) -> None:
        """Store `data` (uint8) into `pieces`, in order; no simulated time passes."""
        at = 0
        for pa, nbytes in pieces:
            for page, offset, n in _split(pa, nbytes):
                for watch in self.watches.get(page, ()) if self.watches else ():
                    watch.see((page << _PAGE_BITS) + offset, data[at : at + n])
                held = self._pages.get(page)
                if held is None:
                    held = self._pages[page] = np.zeros(_PAGE, np.uint8)
                held[offset : offset + n] = data[at : at + n]
                at += n


def _split(pa: int, nbytes: int) -> Iterable[tuple[int, int, int]]:
    while nbytes > 0:
        offset = pa & (_PAGE - 1)
        n = min(nbytes, _PAGE - offset)
        yield pa >> _PAGE_BITS, offset, n
        pa += n
        nbytes -= n
