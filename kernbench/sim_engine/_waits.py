"""Where messages waited for links, and which message was in front."""

from __future__ import annotations

from kernbench.analysis._records import WAITS
from kernbench.sim_engine._log_table import LogTable

UNKNOWN, NOWHERE = -1, 0  # a message that is not recorded; one that has not waited yet


class Waits:
    """Waits of messages for links, as a linked list: previous wait, link, message in front, and time [ps].

    A message is identified by its transaction key, and arrives with its last flit. A flit that follows another flit of
    its message on a link without a gap inherits the waits of that flit (docs/model.md, M9.3).
    """

    def __init__(self) -> None:
        self.last: dict[int, int] = {}  # the last wait of each recorded message
        self.table = LogTable(len(WAITS))
        self.add(0, -1, -1, 0)  # NOWHERE

    def follow(self, key: int) -> None:
        """Start recording the waits of a message that is sent now."""
        self.last[key] = NOWHERE

    def of(self, key: int) -> int:
        return self.last.get(key, UNKNOWN) if self.last else UNKNOWN

    def landed(self, key: int, wait: int) -> None:
        self.last[key] = wait

    def forget(self, key: int) -> int:
        """Stop recording; return the last wait of the complete message."""
        return self.last.pop(key, UNKNOWN)

    def add(self, before: int, link: int, front: int, ps: int) -> int:
        """Add a wait after the wait `before`; return its number."""
        number = self.table.add()
        rows, i = self.table.last, self.table.place
        rows[i], rows[i + 1], rows[i + 2], rows[i + 3] = before, link, front, ps
        return number
