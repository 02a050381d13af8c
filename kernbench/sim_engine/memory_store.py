"""What the machine's memories hold: bytes by physical address, in pages made when first written."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

_PAGE_BITS = 18
_PAGE = 1 << _PAGE_BITS

Piece = tuple[int, int]


class MemoryStore:
    """All bytes of a machine, zero until written. A piece is (physical address, number of bytes)."""

    def __init__(self) -> None:
        self._pages: dict[int, np.ndarray] = {}

    def peek(self, pieces: Iterable[Piece]) -> np.ndarray:
        """Return the bytes of `pieces`, one after the other, as a new uint8 array; no simulated time passes."""
        pieces = list(pieces)
        if len(pieces) == 1:
            pa, nbytes = pieces[0]
            held, offset = self._pages.get(pa >> _PAGE_BITS), pa & (_PAGE - 1)
            if held is not None and offset + nbytes <= _PAGE:
                return held[offset : offset + nbytes].copy()
        out = np.zeros(sum(n for _, n in pieces), np.uint8)
        at = 0
        for pa, nbytes in pieces:
            for page, offset, n in _split(pa, nbytes):
                held = self._pages.get(page)
                if held is not None:
                    out[at : at + n] = held[offset : offset + n]
                at += n
        return out

    def poke(self, pieces: Iterable[Piece], data: np.ndarray) -> None:
        """Store `data` (uint8) into `pieces`, in their order; no simulated time passes."""
        at = 0
        for pa, nbytes in pieces:
            for page, offset, n in _split(pa, nbytes):
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
