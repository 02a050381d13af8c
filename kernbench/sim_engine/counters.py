"""What the links and PEs of a machine have done by now, at any moment of a run."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from kernbench.sim_engine.engine import GraphEngine

ENGINES = ("fetch", "gemm", "math", "store_tcm")
_PLACE = re.compile(r"sip(\d+)\.cube(\d+)\.pe(\d+)\.")


class _Stage(Protocol):
    """A stage of a PE's pipeline."""

    queue: Collection[Any]

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
    busy_ps, nbytes, queued : numpy.ndarray
        Of each link: time in service [ps], bytes of flits that have left it, and flits that wait or are in service.
    pes : tuple of (sip, cube, pe)
        PEs that have had work.
    engine_busy_ps, queued_commands : numpy.ndarray
        Of each PE: time in service of each of `ENGINES` [ps], shape (len(pes), 4), and commands in their queues.
    done, total : int
        Programs that have ended, of those started.
    events : int
        Events processed.
    """

    now_ps: int
    links: tuple[str, ...]
    busy_ps: np.ndarray
    nbytes: np.ndarray
    queued: np.ndarray
    pes: tuple[tuple[int, int, int], ...]
    engine_busy_ps: np.ndarray
    queued_commands: np.ndarray
    done: int
    total: int
    events: int


class Meter:
    """Takes snapshots of an engine; the time that takes depends on the machine alone.

    Parameters
    ----------
    engine : GraphEngine
        Opened with `live`.
    """

    def __init__(self, engine: GraphEngine) -> None:
        self._engine = engine
        self._links: list[str] = []
        self._seen = 0
        self._idle: list[tuple[str, Any]] = []  # components that may get stages yet
        self._pes: list[tuple[int, int, int]] = []
        self._stages: list[tuple[_Stage, ...]] = []

    def read(self) -> Counters:
        """Return what has happened by now."""
        engine, core = self._engine, self._engine.env.core
        links = list(engine.fabric.links.values())
        self._links += [link.name for link in links[len(self._links) :]]
        busy_ps, nbytes, queued = core.link_counters(links)
        now = core.now
        self._look_for_stages()
        busy = [[stage.busy_by(now) for stage in stages] for stages in self._stages]
        return Counters(
            now_ps=now,
            links=tuple(self._links),
            busy_ps=busy_ps,
            nbytes=nbytes,
            queued=queued,
            pes=tuple(self._pes),
            engine_busy_ps=np.array(busy, np.int64).reshape(-1, len(ENGINES)),
            queued_commands=np.array([sum([len(x.queue) for x in stages]) for stages in self._stages], np.int64),
            done=sum([launch.ended for launch in engine.launches]),
            total=engine.programs_started,
            events=engine.env.events,
        )

    def _look_for_stages(self) -> None:
        """Note the PEs that have had work since the last snapshot."""
        parts = self._engine.parts
        new = list(islice(parts.items(), self._seen, None))
        self._seen = len(parts)
        idle = []
        for name, part in self._idle + [(name, part) for name, part in new if hasattr(part, "stages")]:
            stages = part.stages
            if stages:
                found = _PLACE.match(name)
                assert found is not None
                sip, cube, pe = (int(x) for x in found.groups())
                self._pes.append((sip, cube, pe))
                self._stages.append(stages)
            else:
                idle.append((name, part))
        self._idle = idle
