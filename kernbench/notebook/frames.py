"""A run at one instant: a frame of the live view, from an engine at work or from a finished log cut at a time."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from kernbench.analysis.records import COLUMNS, Launch, LinkTable, Records
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
        """Return the log up to a time: rows begun by then, none longer than to then.

        Notes
        -----
        How busy a link was by then is not in the log. It is taken in proportion to the bytes that crossed it, and
        those of a transfer as evenly spread over the transfer: right at the end, an estimate before.
        """
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
            links=self._links(t),
            component_busy_ps=None,
            makespan_ps=t,
            launches=tuple(Launch(x.name, x.start_ps, min(x.end_ps, t)) for x in records.launches if x.start_ps < t),
            complete=False,
        )

    def _links(self, t: int) -> LinkTable:
        table, (route, link), moves = self.records.links, self._crossings, self.records.causes.moves
        span = np.maximum(1, moves["end_ps"] - moves["start_ps"])
        progress = np.clip((t - moves["start_ps"]) / span, 0, 1)
        n_routes, n_links = len(self.records.causes.routes), len(table.names)
        crossed = np.bincount(moves["route"], moves["nbytes"] * progress, n_routes)
        in_all = np.bincount(moves["route"], moves["nbytes"], n_routes)
        done = np.bincount(link, crossed[route], n_links)
        whole = np.bincount(link, in_all[route], n_links)
        share = np.where(whole > 0, done / np.maximum(1, whole), t / self.end_ps)
        busy = np.rint(table.busy_ps * share).astype(np.int64)
        return LinkTable(table.names, np.rint(table.nbytes * share).astype(np.int64), busy, table.bw_gbs)

    @cached_property
    def _crossings(self) -> tuple[np.ndarray, np.ndarray]:
        """(route, link) for each link of each route, in both directions: a transaction goes out and comes back."""
        causes, index = self.records.causes, {name: i for i, name in enumerate(self.records.links.names)}
        pairs = []
        for number, route in enumerate(causes.routes):
            names = [causes.nodes[node] for node in route]
            for src, dst in itertools.pairwise(names):
                pairs += [(number, index[x]) for x in (f"{src}->{dst}", f"{dst}->{src}") if x in index]
        table = np.array(pairs, np.int64).reshape(-1, 2)
        return table[:, 0], table[:, 1]
