"""Observers of a run, progress reports, and counters of links and PEs."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from kernbench.analysis._stages import STAGE_ENGINES

if TYPE_CHECKING:
    from kernbench.sim_engine._host_requests import LaunchBroadcast
    from kernbench.sim_engine.engine import GraphEngine


@dataclass(frozen=True, slots=True)
class Tick:
    """Progress of a run: simulated time, events processed, programs ended of those started.

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
    """Base class of observers of a run; override what you need. An observer must not change the run."""

    def launch_sent(self, launch: LaunchBroadcast) -> None:
        """Handle a launch that the host has sent."""

    def launch_done(self, launch: LaunchBroadcast) -> None:
        """Handle a launch whose last completion has reached the host."""

    def pulse(self, engine: GraphEngine) -> None:
        """Inspect the run, every few thousand events and at the end of each wait; an exception ends the run."""

    def queue(self, event: QueueEvent) -> None:
        """Handle a step of a message between PEs."""

    def tick(self, tick: Tick) -> None:
        """Handle a report of progress, made some times a second."""


class QueueTrace(Observer):
    """Prints each step of messages between PEs to stderr; every engine has one if KERNBENCH_CCL_TRACE=1."""

    def queue(self, event: QueueEvent) -> None:
        print(event, file=sys.stderr)


def environment_observers() -> list[Observer]:
    return [QueueTrace()] if os.environ.get("KERNBENCH_CCL_TRACE") == "1" else []


class _Stage(Protocol):
    def busy_by(self, now: int) -> int: ...


@dataclass(frozen=True, slots=True)
class Counters:
    """A snapshot of what has happened; reservations and plans do not count, so no server is busy longer than the run.

    Attributes
    ----------
    now_ps : int
        Simulated time.
    links : tuple of str
        Names of the links used so far.
    busy_ps : numpy.ndarray
        Service time of each link [ps].
    pes : tuple of (sip, cube, pe)
        PEs that have had work.
    engine_busy_ps : numpy.ndarray
        Service time of each of `ENGINES` of each PE [ps], shape (len(pes), 4).
    slices : tuple of str
        Names of the HBM slices used so far.
    slice_busy_ps : numpy.ndarray
        Service time of each slice, averaged over its channels [ps].
    done, total : int
        Programs that have ended, of those started.
    events : int
        Events processed.
    """

    now_ps: int
    links: tuple[str, ...]
    busy_ps: np.ndarray
    pes: tuple[tuple[int, int, int], ...]
    engine_busy_ps: np.ndarray
    slices: tuple[str, ...]
    slice_busy_ps: np.ndarray
    done: int
    total: int
    events: int


def read_counters(engine: GraphEngine) -> Counters:
    """Take a snapshot; its cost depends on the size of the machine, not on the length of the run."""
    core = engine.env.core
    parts = [part for part in engine.parts.values() if getattr(part, "stages", ())]
    stages: list[tuple[_Stage, ...]] = [part.stages for part in parts]
    slices = [part for part in engine.parts.values() if hasattr(part, "busy_by")]
    engine_busy = [[stage.busy_by(core.now) for stage in pe] for pe in stages]
    return Counters(
        now_ps=core.now,
        links=engine.network.names,
        busy_ps=core.busy_by(list(engine.network.links.values())),
        pes=tuple([part.place for part in parts]),
        engine_busy_ps=np.array(engine_busy, np.int64).reshape(-1, len(STAGE_ENGINES)),
        slices=tuple([part.name for part in slices]),
        slice_busy_ps=np.array([part.busy_by(core.now) for part in slices], np.int64),
        done=engine.programs_ended,
        total=engine.programs_started,
        events=engine.env.events,
    )
