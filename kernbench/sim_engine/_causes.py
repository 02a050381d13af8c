"""Causes: the events that times follow from. Every time of the simulation travels with the event that it is of.

A decision names its candidates to the log, the one that was decisive first; of equal times, the first that was asked
about. `analysis._records` has the numbers of events.
"""

from __future__ import annotations

from kernbench.analysis._records import NONE

# What the stages of a PE spend time on: `PARTS` of the records.
PLAN, READING, MEMORY, FETCH, GEMM, MATH, STORE, WRITING = range(8)
READS, WRITES = 8, 9  # how many requests READING and WRITING are of
_WIDTH = 10


class Cause:
    """What a time follows from: an `event`, or if tiles are not logged, the time by part since the cause `before`.

    Such a path is of one `command`. It becomes an event when something that is logged follows from it; `depth` counts
    the paths before it that are none yet.
    """

    __slots__ = ("before", "command", "depth", "event", "parts")

    def __init__(self, event: int = NONE) -> None:
        self.event, self.command, self.depth = event, -1, 0
        self.before: Cause | None = None
        self.parts: list[int] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0]

    def then(self, command: int, part: int, ps: int) -> Cause:
        """Return the cause that follows after `ps` in a part of a command."""
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
