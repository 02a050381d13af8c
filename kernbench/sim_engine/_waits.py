"""Where messages waited for links, and which message was in front."""

from __future__ import annotations

from kernbench.analysis._records import WAITS
from kernbench.sim_engine._log_table import LogTable

UNKNOWN, NOWHERE = -1, 0  # a message that is not recorded; one that has not waited yet


class Waits:
    """Waits of messages for links, as a linked list: previous wait, link, message in front, and time [ps].

    A message is identified by its transaction key, and arrives with its last flit. A flit that follows another flit of
    its message on a link without a gap inherits the waits of that flit (docs/model.md, M9.3).

    Every flit that waits adds one, and few of them lead to the last wait of their message. When that is complete, those
    are copied to `kept`, after their numbers; `table` drops all that are older than the messages in flight.
    """

    def __init__(self) -> None:
        self.last: dict[int, int] = {}  # the last wait of each recorded message in flight
        self.first: dict[int, int] = {}  # the first number that a wait of each could have, in ascending order
        self.table, self.kept = LogTable(len(WAITS)), LogTable(1 + len(WAITS))
        self._keep(self.add(0, -1, -1, 0))  # NOWHERE

    def follow(self, key: int) -> None:
        """Start recording the waits of a message that is sent now."""
        self.last[key], self.first[key] = NOWHERE, self.table._rows

    def of(self, key: int) -> int:
        return self.last.get(key, UNKNOWN) if self.last else UNKNOWN

    def landed(self, key: int, wait: int) -> None:
        self.last[key] = wait

    def forget(self, key: int) -> int:
        """Stop recording; return the last wait of the complete message."""
        wait = at = self.last.pop(key, UNKNOWN)
        if wait != UNKNOWN:
            del self.first[key]
        while at > NOWHERE:
            at = self._keep(at)
        return wait

    def add(self, before: int, link: int, front: int, ps: int) -> int:
        """Add a wait after the wait `before`; return its number."""
        if not self.table._left:
            self.table.drop(next(iter(self.first.values()), self.table._rows))
        number = self.table.add()
        rows, i = self.table.last, self.table.place
        rows[i], rows[i + 1], rows[i + 2], rows[i + 3] = before, link, front, ps
        return number

    def _keep(self, number: int) -> int:
        """Copy a wait; return the previous one."""
        self.kept.add()
        kept, i = self.kept.last, self.kept.place
        rows, j = self.table.block(number), self.table.place_of(number)
        kept[i], kept[i + 1], kept[i + 2] = number, rows[j], rows[j + 1]
        kept[i + 3], kept[i + 4] = rows[j + 2], rows[j + 3]
        return rows[j]
