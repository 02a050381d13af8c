"""A run at one instant: a frame of the live view, from an engine at work or from a finished log cut at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from kernbench.analysis.links import Crossings
from kernbench.analysis.records import COLUMNS, Records
from kernbench.analysis.result import Busy, Result
from kernbench.sim_engine.observer import ENGINES

if TYPE_CHECKING:
    from kernbench.sim_engine.observer import Counters

SHOWN_LINKS = 6


@dataclass(frozen=True, slots=True)
class Frame:
    """What the live view shows.

    Attributes
    ----------
    now_ns : float
        Simulated time.
    busy_ns : dict
        For how long each of `ENGINES` was busy up to then, as a mean over the PEs.
    links : tuple of Busy
        The busiest links so far.
    n_pes : int
        PEs that have had work.
    done, total : int
        Programs that have ended, of those started.
    events : int
        Events processed; 0 in a frame of a finished log.
    events_per_s : float
        Of host time.
    """

    now_ns: float
    busy_ns: dict[str, float]
    links: tuple[Busy, ...]
    n_pes: int
    done: int = 0
    total: int = 0
    events: int = 0
    events_per_s: float = 0.0


def frame_of(records: Records) -> Frame:
    """Return the frame at the end of `records`."""
    result = Result(records)
    busy_ns = result.breakdown.busy_ns()
    return Frame(
        result.latency_ns,
        {engine: busy_ns[engine] for engine in ENGINES},
        tuple(result.busiest_links(SHOWN_LINKS)),
        len(records.pes()),
    )


def live_frame(counters: Counters, events_per_s: float) -> Frame:
    """Return what a snapshot of a run shows."""
    now, n_pes = counters.now_ps, len(counters.pes)
    first = np.argsort(-counters.busy_ps, kind="stable")[:SHOWN_LINKS].tolist()
    links = [
        Busy(
            counters.links[i], int(counters.busy_ps[i]) / 1000, int(counters.busy_ps[i]) / now, int(counters.nbytes[i])
        )
        for i in first
        if counters.busy_ps[i]
    ]
    busy = counters.engine_busy_ps.sum(axis=0) / (1000 * max(1, n_pes))
    return Frame(
        now / 1000,
        dict(zip(ENGINES, busy.tolist(), strict=True)),
        tuple(links),
        n_pes,
        done=counters.done,
        total=counters.total,
        events=counters.events,
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
