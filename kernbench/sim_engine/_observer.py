"""Watching a run: what an observer hears, ticks of progress, and counters of links and PEs."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from kernbench.analysis._stages import ENGINES

if TYPE_CHECKING:
    from kernbench.sim_engine._host_requests import Launch
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


class _Stage(Protocol):
    """A stage of a PE's pipeline."""

    def busy_by(self, now: int) -> int:
        """Return for how long it has been busy by now [ps]."""


@dataclass(frozen=True, slots=True)
class Counters:
    """A snapshot.

    It counts what has happened, and nothing that is reserved or planned: no server is busy for longer than the run.

    Attributes
    ----------
    now_ps : int
        Simulated time.
    links : tuple of str
        Names of the links that were used so far.
    busy_ps : numpy.ndarray
        Of each link: time in service [ps].
    pes : tuple of (sip, cube, pe)
        PEs that have had work.
    engine_busy_ps : numpy.ndarray
        Of each PE: time in service of each of `ENGINES` [ps], shape (len(pes), 4).
    slices : tuple of str
        Names of the HBM slices that were used so far.
    slice_busy_ps : numpy.ndarray
        Of each slice: time in service [ps], the mean over its channels.
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
    """Return what has happened by now; the time that this takes depends on the machine alone."""
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
        engine_busy_ps=np.array(engine_busy, np.int64).reshape(-1, len(ENGINES)),
        slices=tuple([part.name for part in slices]),
        slice_busy_ps=np.array([part.busy_by(core.now) for part in slices], np.int64),
        done=engine.programs_ended,
        total=engine.programs_started,
        events=engine.env.events,
    )
