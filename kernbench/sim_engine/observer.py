"""Watching a run: what an observer hears, and a tick of progress."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernbench.sim_engine.broadcast import Launch
    from kernbench.sim_engine.engine import GraphEngine


@dataclass(frozen=True, slots=True)
class Tick:
    """Where a run stands: simulated time, events processed, programs ended of those started.

    `busy_ns` is the busy time so far, by kind of component.
    """

    now_ns: float
    events: int
    done: int
    total: int
    busy_ns: dict[str, float]
    finished: bool


@dataclass(frozen=True, slots=True)
class QueueEvent:
    """A step of a message between PEs at `now_ns`: "send" (a part leaves), "arrive", "recv" or "credit" (leaves)."""

    now_ns: float
    what: str
    pe: str
    direction: str
    peer: str
    nbytes: int

    def __str__(self) -> str:
        return f"{self.now_ns:14,.3f} ns  {self.what:<6} {self.pe} {self.direction} ({self.peer}) {self.nbytes} B"


class Observer:
    """Hears of a run as it goes; override what you need. It must not change the run."""

    def launch_sent(self, launch: Launch) -> None:
        """Hear that the host has sent a launch."""

    def launch_done(self, launch: Launch) -> None:
        """Hear that the last completion of a launch has reached the host."""

    def pulse(self, engine: GraphEngine) -> None:
        """Hear that the engine is at work: every few thousand events, and at the end of each wait.

        An exception ends the run.
        """

    def queue(self, event: QueueEvent) -> None:
        """Hear of a message between PEs."""

    def tick(self, tick: Tick) -> None:
        """Hear how far the run is, some times a second."""


class QueueTrace(Observer):
    """Prints every step of the messages between PEs on the error stream: with KERNBENCH_CCL_TRACE=1 in every engine."""

    def queue(self, event: QueueEvent) -> None:
        """Print it."""
        print(event, file=sys.stderr)


def environment_observers() -> list[Observer]:
    """Return the observers that the environment asks for."""
    return [QueueTrace()] if os.environ.get("KERNBENCH_CCL_TRACE") == "1" else []
