"""Causes: the events that times follow from. Every simulated time is passed on together with its event.

A decision logs its candidate causes, the decisive one first; of equal times, the first one compared. Events are
numbered as in `analysis._records`.
"""

from __future__ import annotations

from kernbench.analysis._records import NONE

# Parts of a command's time in the stages of a PE: `PARTS` of the records.
PLAN, READING, MEMORY, FETCHING, GEMM, MATH, STORE, WRITING = range(8)
READS, WRITES = 8, 9  # number of requests in READING and WRITING
_WIDTH = 10


class Cause:
    """The cause of a time: an `event` or, if tiles are not logged, a path: the time by part since the cause `before`.

    A path belongs to one `command`. It becomes an event when something logged follows from it; `depth` counts the
    earlier paths that are not events yet.
    """

    __slots__ = ("before", "command", "depth", "event", "parts")

    def __init__(self, event: int = NONE) -> None:
        self.event, self.command, self.depth = event, -1, 0
        self.before: Cause | None = None
        self.parts: list[int] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0]

    def then(self, command: int, part: int, ps: int) -> Cause:
        """Extend the path by `ps` in one part of a command; a path of that command that is no event yet is copied."""
        found = Cause()
        found.command = command
        if self.event or self.command != command:
            found.before, found.depth = self, 0 if self.event else self.depth + 1
        else:
            found.before, found.depth = self.before, self.depth
            for i in range(_WIDTH):
                found.parts[i] = self.parts[i]
        found.parts[part] += ps
        return found


NOTHING = Cause()
