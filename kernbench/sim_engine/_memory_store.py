"""Contents of the machine's memories: bytes by physical address, in pages allocated on first write."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import NoReturn

import numpy as np

_PAGE_BITS = 18
_PAGE = 1 << _PAGE_BITS
_PATIENCE_S = 0.1  # an exception of another thread interrupts a wait no earlier

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
    """All bytes of a machine, zero until written. A piece is (physical address, number of bytes).

    Of the `due_bytes` that were to be stored later, `made_bytes` are known; `waits` for others.
    """

    def __init__(self) -> None:
        self._pages: dict[int, np.ndarray] = {}
        self.watches: dict[int, list[Watch]] = {}
        self.due_bytes = self.made_bytes = 0
        self.waits = False
        # What is stored later, in order; and by page, the number of the last one of all that were.
        self._due: deque[tuple[list[ByteRange], Future[np.ndarray]]] = deque()
        self._due_in: dict[int, int] = {}
        self._stored = 0

    def watch(self, watch: Watch, is_written: bool) -> None:
        """Compare later writes to the bytes of `watch`; with `is_written`, with the present content."""
        pa, n = watch.piece
        self._settle([watch.piece])
        if is_written:
            watch.see(pa, self.peek([watch.piece]))
        for page in range(pa >> _PAGE_BITS, (pa + n - 1 >> _PAGE_BITS) + 1):
            self.watches.setdefault(page, []).append(watch)

    def peek(self, pieces: Iterable[ByteRange]) -> np.ndarray:
        """Copy the bytes of `pieces`, concatenated (uint8); no simulated time passes."""
        pieces = list(pieces)
        if self._due:
            self._settle(pieces)
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
        if self._due:
            pieces = list(pieces)
            self._settle(pieces)
        self._store(pieces, data)

    def later(self, pieces: Iterable[ByteRange], data: Future[np.ndarray]) -> None:
        """Store `data` (uint8) into `pieces`, as `poke` does, before anything else accesses their pages."""
        pieces = list(pieces)
        self._due.append((pieces, data))
        self._due_in |= dict.fromkeys(_pages_of(pieces), self._stored + len(self._due))

    def _settle(self, pieces: list[ByteRange]) -> None:
        """Store what is due in the pages of `pieces`, and what was to be stored before that."""
        last = max((self._due_in.get(page, 0) for page in _pages_of(pieces)), default=0)
        while self._stored < last:
            self._store(self._due[0][0], self._known(self._due[0][1]))
            self._due.popleft()
            self._stored += 1
        if not self._due:
            self._due_in.clear()

    def _known(self, data: Future[np.ndarray]) -> np.ndarray:
        self.waits = True
        try:
            while True:
                with suppress(TimeoutError):
                    return data.result(_PATIENCE_S)
        finally:
            self.waits = False

    def _store(self, pieces: Iterable[ByteRange], data: np.ndarray) -> None:
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


def _pages_of(pieces: Iterable[ByteRange]) -> Iterator[int]:
    for pa, nbytes in pieces:
        yield from range(pa >> _PAGE_BITS, (pa + nbytes - 1 >> _PAGE_BITS) + 1)


def _split(pa: int, nbytes: int) -> Iterable[tuple[int, int, int]]:
    while nbytes > 0:
        offset = pa & (_PAGE - 1)
        n = min(nbytes, _PAGE - offset)
        yield pa >> _PAGE_BITS, offset, n
        pa += n
        nbytes -= n
