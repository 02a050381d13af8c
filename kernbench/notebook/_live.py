"""Live frames of a run: load of links and components since the previous frame, and the phase."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kernbench.analysis._stages import STAGE_ENGINES
from kernbench.sim_engine._observer import Counters, Observer
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import _naming as naming

_FULL = 255
_EVERY_S, _SELDOM_S = 0.15, 0.4
_COST = 40  # a frame is due after this many times the time of the last one, with listeners; `_SELDOM_S` at most

MAKING, SIMULATING, COMPUTING = "making values", "simulating", "computing values"


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """Busy shares of links and components from `since_ns` to `now_ns`: uint8, 255 is all of the time.

    `links` and `nodes` name everything used so far, as the log does; they are the same objects as in the previous frame
    if nothing was added. Programs have ended (`done`) of those that have started (`total`). `events` were processed so
    far, and `events_per_s` per second of the host since the previous frame.
    """

    since_ns: float
    now_ns: float
    links: tuple[str, ...]
    link_load: np.ndarray
    nodes: tuple[str, ...]
    node_load: np.ndarray
    done: int
    total: int
    events: int
    events_per_s: float


class Frames:
    def __init__(self) -> None:
        self._now_ps = self._events = 0
        self._links, self._nodes = _Loads(), _Loads()
        self._known: tuple[object, ...] = ()
        self._names: tuple[str, ...] = ()

    def next(self, counters: Counters, seconds: float) -> Frame:
        since, self._now_ps = self._now_ps, counters.now_ps
        events, self._events = self._events, counters.events
        if (counters.pes, counters.slices) != self._known:
            self._known = counters.pes, counters.slices
            engines = [f"{naming.pe(*place)}.{part}" for place in counters.pes for part in STAGE_ENGINES.values()]
            self._names = (*engines, *counters.slices)
        span = counters.now_ps - since
        self._links.add(counters.links, counters.busy_ps, span)
        self._nodes.add(self._names, np.concatenate([counters.engine_busy_ps.ravel(), counters.slice_busy_ps]), span)
        return Frame(
            since / 1000, counters.now_ps / 1000, self._links.names, self._links.load, self._nodes.names,
            self._nodes.load, counters.done, counters.total, counters.events,
            (counters.events - events) / max(1e-9, seconds),
        )  # fmt: skip


class _Loads:
    """The loads of servers, some of which appear during a run."""

    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()
        self.load = np.zeros(0, np.uint8)
        self._busy_ps = np.zeros(0, np.int64)

    def add(self, names: tuple[str, ...], busy_ps: np.ndarray, span_ps: int) -> None:
        """Update the busy times, and the loads by their increase over `span_ps`; a span of 0 keeps the loads."""
        if names != self.names:
            at = {name: i for i, name in enumerate(names)}
            places = np.array([at[name] for name in self.names], np.int64)
            before, load = np.zeros(len(names), np.int64), np.zeros(len(names), np.uint8)
            before[places], load[places] = self._busy_ps, self.load
            self.names, self._busy_ps, self.load = names, before, load
        if span_ps:
            # A slice's time is the mean over its channels, rounded down to a picosecond.
            share = np.minimum(busy_ps - self._busy_ps, span_ps) / span_ps
            self._busy_ps, self.load = busy_ps, np.rint(_FULL * share).astype(np.uint8)


class FrameObserver(Observer):
    """Reports frames of a run, some times a second."""

    def __init__(self, report: Callable[[Frame], None]) -> None:
        self._report = report
        self._frames = Frames()
        self.engine: GraphEngine | None = None  # before its first pulse, too
        self._due, self._last = 0.0, time.perf_counter()
        self._heard = self._last

    def pulse(self, engine: GraphEngine) -> None:
        self._heard = time.perf_counter()
        now = self._heard
        if now < self._due:
            return
        seconds, self._last = now - self._last, now
        self._report(self._frames.next(engine.counters(), seconds))
        self._due = time.perf_counter() + min(_SELDOM_S, max(_EVERY_S, _COST * (time.perf_counter() - now)))

    @property
    def phase(self) -> str:
        """Activity of the program, with its progress; everything before the first launch counts as making values."""
        engine = self.engine
        if engine is None:
            return MAKING
        if engine.doing:
            return engine.doing
        started, ended, memory = engine.programs_started, engine.programs_ended, engine.memory
        if memory.waits or not started:
            share = f" {memory.made_bytes / memory.due_bytes:.0%}" if memory.due_bytes else ""
            return f"{MAKING}{share}"
        if ended < started or time.perf_counter() - self._heard < _SELDOM_S:
            return f"{SIMULATING} {ended / started:.0%} of {started:,} programs"
        return COMPUTING
