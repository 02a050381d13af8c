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

    def __init__(self, event: int = NONE) -> None:
        self.begins(event, -1, None, 0)

    def begins(self, event: int, command: int, before: Cause | None, depth: int) -> None:
        """Set all fields: what `then` does in place of `__init__`."""
        self.event, self.command, self.before, self.depth = event, command, before, depth
        self.parts: list[int] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0]

    def then(self, command: int, part: int, ps: int) -> Cause:
        """Extend the path by `ps` in one part of a command; a path of that command that is no event yet is copied."""
        found = Cause.__new__(Cause)
        if self.event or self.command != command:
            found.begins(NONE, command, self, 0 if self.event else self.depth + 1)
        else:
            found.begins(NONE, command, self.before, self.depth)
            for i in range(_WIDTH):
                found.parts[i] = self.parts[i]
        found.parts[part] += ps
        return found


NOTHING = Cause()


class Moment:
    """A time [ps] and its cause; one that is set again and again costs no object."""

    def __init__(self, ps: int = 0, by: Cause = NOTHING) -> None:
        self.ps, self.by = ps, by
