"""Where messages waited for links, and which message was in front."""

from __future__ import annotations

import numpy as np

from kernbench.analysis._records import WAITS

UNKNOWN, NOWHERE = -1, 0  # a message that is not recorded; one that has not waited yet
_ROWS = 16384  # of a block
_WIDTH = len(WAITS)


class Waits:
    """Waits of messages for links, as a linked list: previous wait, link, message in front, and time [ps].

    A message is identified by its transaction key, and arrives with its last flit. A flit that follows another flit of
    its message on a link without a gap inherits the waits of that flit (docs/model.md, M9.3).
    """

    def __init__(self) -> None:
        self.last: dict[int, int] = {}  # the last wait of each recorded message
        self._blocks: list[np.ndarray] = []
        self._rows = np.zeros(0, np.int64).data
        self._free = 0
        self.add(0, -1, -1, 0)  # NOWHERE

    def follow(self, key: int) -> None:
        """Start recording the waits of a message that is sent now."""
        self.last[key] = NOWHERE

    def of(self, key: int) -> int:
        return self.last.get(key, UNKNOWN)

    def landed(self, key: int, wait: int) -> None:
        self.last[key] = wait

    def forget(self, key: int) -> int:
        """Stop recording; return the last wait of the complete message."""
        return self.last.pop(key, UNKNOWN)

    def add(self, before: int, link: int, front: int, ps: int) -> int:
        """Add a wait after the wait `before`; return its number."""
        if not self._free:
            self._free = _ROWS * _WIDTH
            block = np.empty(self._free, np.int64).data
            self._blocks.append(np.asarray(block))
            self._rows = block
        rows, i = self._rows, len(self._rows) - self._free
        rows[i], rows[i + 1], rows[i + 2], rows[i + 3] = before, link, front, ps
        self._free -= _WIDTH
        return (len(self._blocks) - 1) * _ROWS + i // _WIDTH

    def table(self) -> np.ndarray:
        filled = [*self._blocks[:-1], self._blocks[-1][: len(self._rows) - self._free]]
        return np.concatenate(filled).reshape(-1, _WIDTH)
