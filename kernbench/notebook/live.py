"""Snapshots of a run: time, progress, and how busy engines and links were, live or from the log of a finished run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from kernbench.analysis.records import COLUMNS, Records
from kernbench.analysis.result import LABELS, Busy, Result
from kernbench.analysis.utilization import LinkTraffic
from kernbench.sim_engine.observer import ENGINES
from kernbench.viz import palette

if TYPE_CHECKING:
    from kernbench.sim_engine.observer import Counters


SHOWN_LINKS = 6


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the live view shows."""

    now_ns: float
    busy_ns: dict[str, float]
    links: tuple[Busy, ...]
    n_pes: int
    done: int = 0
    total: int = 0
    events: int = 0
    events_per_s: float = 0.0


def snapshot_of(records: Records) -> Snapshot:
    """Return the snapshot at the end of `records`."""
    result = Result(records)
    busy_ns = result.breakdown.busy_ns()
    return Snapshot(
        result.latency_ns,
        {engine: busy_ns[engine] for engine in ENGINES},
        tuple(result.busiest_links(SHOWN_LINKS)),
        len(records.pes()),
    )


def live_snapshot(counters: Counters, events_per_s: float) -> Snapshot:
    """Return the snapshot of a run from its counters."""
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
    return Snapshot(
        now / 1000,
        dict(zip(ENGINES, busy.tolist(), strict=True)),
        tuple(links),
        n_pes,
        done=counters.done,
        total=counters.total,
        events=counters.events,
        events_per_s=events_per_s,
    )


class Replay:
    """A finished run, shown again at any simulated time."""

    def __init__(self, records: Records) -> None:
        self.records = records

    @property
    def end_ps(self) -> int:
        """When the run ended."""
        return self.records.makespan_ps

    def snapshot(self, t_ps: int) -> Snapshot:
        """Return the snapshot at a simulated time: that of the log cut there."""
        return snapshot_of(self.cut(t_ps))

    def cut(self, t_ps: int) -> Records:
        """Return the log up to a time: rows begun by then, cut at it, and the traffic of links."""
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
            links=self._traffic.between(0, t),
            component_busy_ps=None,
            makespan_ps=t,
            launches=tuple(replace(x, end_ps=min(x.end_ps, t)) for x in records.launches if x.start_ps < t),
            complete=False,
        )

    @cached_property
    def _traffic(self) -> LinkTraffic:
        return LinkTraffic(self.records)


_BAR = "rgba(0,114,178,.35)"
_COLOURS = {
    "failed": palette.VERMILION, "outdated": palette.ORANGE, "done": palette.GREEN, "running": palette.BLUE,
}  # fmt: skip


def snapshot_html(snapshot: Snapshot | None, status: str, message: str = "", end_ns: float | None = None) -> str:
    """Return a snapshot as HTML, below the status of the run."""
    parts = [_status(status, message)]
    if snapshot is not None:
        parts += [_clock(snapshot, end_ns), _busy(snapshot)]
    return f'<div class="kb-frame">{"".join(parts)}</div>'


def _status(status: str, message: str) -> str:
    colour = _COLOURS.get(status, palette.GREY)
    lines = escape(message).replace("\n", "<br>")
    return (
        f'<div class="kb-status" role="status" style="border-left:4px solid {colour};padding-left:8px">'
        f"<b>{escape(status)}</b> <span class='kb-message'>{lines}</span></div>"
    )


def _clock(snapshot: Snapshot, end_ns: float | None) -> str:
    facts = [f'<b class="kb-now">{snapshot.now_ns:,.1f} ns</b>']
    if end_ns is not None:
        facts.append(f"of {end_ns:,.1f} ns")
    if snapshot.events:
        facts.append(f"{snapshot.events:,} events, {snapshot.events_per_s:,.0f} a second")
    if snapshot.total:
        facts.append(f"{snapshot.done} of {snapshot.total} programs ended")
    facts.append(f"mean of {snapshot.n_pes} PEs" if snapshot.n_pes > 1 else "")
    return f'<div style="margin:6px 0">simulated time {" &nbsp; ".join(x for x in facts if x)}</div>'


def _busy(snapshot: Snapshot) -> str:
    now = max(snapshot.now_ns, 1e-3)
    engines = "".join(_row(LABELS[name], ns / now) for name, ns in snapshot.busy_ns.items() if ns)
    links = "".join(_row(f"<code>{escape(x.name)}</code>", x.share, f"{x.nbytes:,} B") for x in snapshot.links)
    return "".join(
        f'<table class="kb-table {kind}"><tr><th>{title}</th><th>busy so far</th><th>{last}</th></tr>{rows}</table>'
        for kind, title, last, rows in (
            ("kb-engines", "engines of a PE, mean", "", engines),
            ("kb-links", "busiest links", "carried", links),
        )
        if rows
    )


def _row(name: str, share: float, last: str = "") -> str:
    bar = f"background:linear-gradient(90deg,{_BAR} {share:.1%},transparent {share:.1%})"
    return (
        f'<tr><td>{name}</td><td style="text-align:right;min-width:110px;{bar}">{share:.1%}</td>'
        f'<td style="text-align:right">{last}</td></tr>'
    )
