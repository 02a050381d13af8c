"""A run at one instant: a frame of the live view, from an engine at work or from a finished log cut at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from kernbench.analysis.links import Crossings
from kernbench.analysis.records import COLUMNS, Records
from kernbench.analysis.result import Busy, Result

if TYPE_CHECKING:
    from kernbench.sim_engine.engine import GraphEngine

SHOWN_LINKS = 6


@dataclass(frozen=True, slots=True)
class Frame:
    """What the live view shows.

    Attributes
    ----------
    now_ns : float
        Simulated time.
    exclusive_ns : dict
        Mean exclusive time of each stage up to then; sums to `now_ns`.
    links : tuple of Busy
        The busiest links so far.
    n_pes : int
        PEs that have done work.
    done, total : int
        Programs that have ended, of those started.
    events : int
        Events processed; 0 in a frame of a finished log.
    events_per_s : float
        Of host time.
    """

    now_ns: float
    exclusive_ns: dict[str, float]
    links: tuple[Busy, ...]
    n_pes: int
    done: int = 0
    total: int = 0
    events: int = 0
    events_per_s: float = 0.0


def frame_of(records: Records) -> Frame:
    """Return the frame at the end of `records`."""
    result = Result(records)
    parts = result.breakdown
    return Frame(result.latency_ns, parts.exclusive_ns(), tuple(result.busiest_links(SHOWN_LINKS)), len(records.pes()))


def live_frame(engine: GraphEngine, events_per_s: float) -> Frame:
    """Return where an engine stands."""
    return replace(
        frame_of(engine.records()),
        done=sum(launch.ended for launch in engine.launches),
        total=sum(len(pes) for launch in engine.launches for pes in launch.cubes.values()),
        events=engine.env.events,
        events_per_s=events_per_s,
    )


class Film:
    """A finished run, to be looked at again at any simulated time.

    Parameters
    ----------
    records : Records
    """

    def __init__(self, records: Records) -> None:
        self.records = records

    @property
    def end_ps(self) -> int:
        """When the run ended."""
        return self.records.makespan_ps

    def frame(self, t_ps: int) -> Frame:
        """Return the frame at a simulated time: that of the log cut there."""
        return frame_of(self.cut(t_ps))

    def cut(self, t_ps: int) -> Records:
        """Return the log up to a time: rows begun by then, none longer than to then; links as `Crossings` has them."""
        records = self.records
        t = max(0, min(t_ps, records.makespan_ps))
        if t == records.makespan_ps:
            return records
        begun = records.start_ps < t
        columns = {name: getattr(records, name)[begun] for name in COLUMNS}
        columns["end_ps"] = np.minimum(columns["end_ps"], t)
        return replace(
            records,
            **columns,
            links=self._crossings.between(0, t),
            component_busy_ps=None,
            makespan_ps=t,
            launches=tuple(replace(x, end_ps=min(x.end_ps, t)) for x in records.launches if x.start_ps < t),
            complete=False,
        )

    @cached_property
    def _crossings(self) -> Crossings:
        return Crossings(self.records)
