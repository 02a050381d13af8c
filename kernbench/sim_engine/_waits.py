"""Where messages waited for links, and which message was in front."""

from __future__ import annotations

import numpy as np

from kernbench.analysis._records import WAITS

UNKNOWN, NOWHERE = -1, 0  # of a message that is not followed; of one that has not waited yet
_ROWS = 16384  # of a block
_WIDTH = len(WAITS)


class Waits:
    """The waits of messages for links: for each the wait before it, the link, the message in front, and the time [ps].

    A message is named by the key of its transaction, and arrives with its last flit. A flit that follows another one of
    its message on a link without a gap has the waits of that one (docs/model.md, M9.3).
    """

    def __init__(self) -> None:
        self.last: dict[int, int] = {}  # the last wait of each message that is followed
        self._blocks: list[np.ndarray] = []
        self._rows = np.zeros(0, np.int64).data
        self._free = 0
        self.add(0, -1, -1, 0)  # NOWHERE

    def follow(self, key: int) -> None:
        """Keep the waits of a message that is sent now."""
        self.last[key] = NOWHERE

    def of(self, key: int) -> int:
        """Return the last wait of a message."""
        return self.last.get(key, UNKNOWN)

    def landed(self, key: int, wait: int) -> None:
        """Set the last wait of a message."""
        self.last[key] = wait

    def forget(self, key: int) -> int:
        """Return the last wait of a message that is complete."""
        return self.last.pop(key, UNKNOWN)

    def add(self, before: int, link: int, front: int, ps: int) -> int:
        """Add a wait that comes after the wait `before`; return its number."""
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
        """Return all rows so far."""
        filled = [*self._blocks[:-1], self._blocks[-1][: len(self._rows) - self._free]]
        return np.concatenate(filled).reshape(-1, _WIDTH)
