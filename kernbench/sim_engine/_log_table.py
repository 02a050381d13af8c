"""A table of 64-bit numbers that grows by blocks, so that a log costs what its columns hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from kernbench.analysis._records import HELD
from kernbench.errors import LimitError

_ROWS = 16384  # of a block


class LogTable:
    """Rows of `width` numbers; those of the row that was added last begin at `place` of the block `last`."""

    def __init__(self, width: int) -> None:
        self.width, self.place = width, 0
        self.last = np.empty(0, np.int64).data
        self._blocks: list[Any] = []  # None: dropped
        self._left = self._rows = self._dropped = 0

    def add(self) -> int:
        """Reserve a row; return its number."""
        if not self._left:
            held = self._rows - self._dropped * _ROWS
            if held + _ROWS << 3 > HELD:  # more than the numbers of causes can hold
                raise LimitError(
                    f"the log holds {held:,} rows of one kind, the most; make the run smaller, or log less "
                    '("operation" instead of "tile", "off" instead of "operation")'
                )
            self.last = np.empty(_ROWS * self.width, np.int64).data
            self._blocks.append(np.asarray(self.last))
            self._left, self.place = _ROWS, -self.width
        self._left -= 1
        self.place += self.width
        self._rows += 1
        return self._rows - 1

    def drop(self, number: int) -> None:
        """Free the blocks of which all rows are before row `number`."""
        while self._dropped < number // _ROWS:
            self._blocks[self._dropped] = None
            self._dropped += 1

    def place_of(self, number: int) -> int:
        """Return where a row begins in its block."""
        return number % _ROWS * self.width

    def block(self, number: int) -> memoryview:
        """Return the block of a row."""
        at = number // _ROWS
        if at == len(self._blocks) - 1:
            return self.last
        rows: memoryview = self._blocks[at].data
        return rows

    def _parts(self) -> Iterator[np.ndarray]:
        """Yield the rows of each block."""
        for block in self._blocks[:-1]:
            yield block.reshape(-1, self.width)
        yield np.asarray(self.last, np.int64)[: self.place + self.width].reshape(-1, self.width)

    def rows(self, numbers: slice = slice(None)) -> np.ndarray:
        """Return `numbers` of all rows so far."""
        return np.concatenate([part[:, numbers] for part in self._parts()])

    def columns(self, types: Mapping[str, type]) -> dict[str, np.ndarray]:
        """Return the first columns, with these names and types."""
        found: dict[str, np.ndarray] = {name: np.empty(self._rows, dtype) for name, dtype in types.items()}
        end = 0
        for part in self._parts():
            start, end = end, end + len(part)
            for i, column in enumerate(found.values()):
                column[start:end] = part[:, i]
        return found
