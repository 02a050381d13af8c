"""The result of a pipeline run: times by rank and action, and what the idle time is due to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernbench.analysis._records import Launch, covered_ps
from kernbench.analysis.result import Result
from kernbench.pipeline._actions import RECEIVES, Action, Table
from kernbench.pipeline._timing import peak_activations, sent, times

if TYPE_CHECKING:
    import pandas as pd

CAUSES = ("peer", "imbalance", "link", "launch")


@dataclass(frozen=True, slots=True)
class _Span:
    """An action as simulated: from the start of its first program to the end of its last, and how long they ran."""

    rank: int
    action: Action
    start_ps: int
    end_ps: int
    busy_ps: int


@dataclass(frozen=True, eq=False, repr=False)
class Pipeline:
    """A run of a pipeline schedule; it prints itself, and shows itself in a notebook.

    The bubble is the share of time in which ranks run no action, from the first action's start to the last one's end.
    Its parts sum to it:

    - peer: waiting for other stages that the order itself requires, if all actions of a kind took equally long;
    - imbalance: what the actions' different times add, which may be negative;
    - link: messages with their launches, and receives that begin late because the order has other actions first;
    - launch: the rest: starts of launches, and collectives that stages queue.

    Attributes
    ----------
    result : Result
        Of the run: `kb.picture(found)` draws it.
    bubble : float
        Share of idle time over all ranks.
    ideal_bubble : float
        The same without messages and launches, and with equal times of actions of a kind.
    causes : dict of str to float
        The parts of `bubble`.
    peak_activations : list of int
        By rank, how many activations it holds at most: of a stage and a microbatch each.
    latency_ns : float
        From the start of the first action to the end of the last one.
    """

    result: Result
    ideal_bubble: float
    peak_activations: list[int]
    spans: tuple[_Span, ...]
    parts_ps: tuple[tuple[float, ...], ...]  # by rank, of each cause

    @property
    def latency_ns(self) -> float:
        return (max(x.end_ps for x in self.spans) - min(x.start_ps for x in self.spans)) / 1000

    @property
    def causes(self) -> dict[str, float]:
        whole = 1000 * self.latency_ns * len(self.parts_ps)
        return {cause: sum(rank[i] for rank in self.parts_ps) / whole for i, cause in enumerate(CAUSES)}

    @property
    def bubble(self) -> float:
        busy = sum(x.busy_ps for x in self.spans)
        return 1 - busy / (1000 * self.latency_ns * len(self.parts_ps))

    @property
    def table(self) -> pd.DataFrame:
        """A row for each rank: actions, busy and idle time [ns], the idle time by cause [ns], and peak activations."""
        import pandas as pd

        rows = []
        for rank, parts in enumerate(self.parts_ps):
            own = [x for x in self.spans if x.rank == rank]
            busy = sum(x.busy_ps for x in own) / 1000
            row: dict[str, Any] = {
                "rank": rank,
                "actions": len(own),
                "busy_ns": busy,
                "idle_ns": self.latency_ns - busy,
            }
            row |= {f"{cause}_ns": ps / 1000 for cause, ps in zip(CAUSES, parts, strict=True)}
            rows.append({**row, "peak_activations": self.peak_activations[rank]})
        return pd.DataFrame(rows)

    @property
    def timeline(self) -> pd.DataFrame:
        """A row for each action, in order of start: its rank, name, stage, kind, microbatch, and times [ns]."""
        import pandas as pd

        rows = [
            {
                "rank": x.rank, "action": str(x.action), "stage": x.action.stage, "kind": x.action.kind,
                "microbatch": x.action.microbatch, "start_ns": x.start_ps / 1000, "end_ns": x.end_ps / 1000,
                "busy_ns": x.busy_ps / 1000,
            }
            for x in sorted(self.spans, key=lambda x: (x.start_ps, x.rank))
        ]  # fmt: skip
        return pd.DataFrame(rows)

    @property
    def title(self) -> str:
        parts = ", ".join(f"{cause} {share:.1%}" for cause, share in self.causes.items())
        return (
            f"{len(self.parts_ps)} ranks, {len(self.spans)} actions: {self.latency_ns:,.0f} ns, bubble "
            f"{self.bubble:.1%} ({parts}), ideal {self.ideal_bubble:.1%}"
        )

    def __repr__(self) -> str:
        return f"{self.title} (machine {self.result.machine})\n{self.table.round(1).to_string(index=False)}"

    def _repr_html_(self) -> str:
        from kernbench.viz._html import pipeline_html

        spans = [(x.rank, x.action.kind, str(x.action), x.start_ps / 1000, x.end_ps / 1000) for x in self.spans]
        return pipeline_html(f"{self.title} (machine {self.result.machine})", spans, self.table)


def measured_pipeline(table: Table, result: Result, queued: Mapping[Action, range], width: int) -> Pipeline:
    """Measurements of a run; `queued` has the operations that the host queued in each action."""
    of: dict[int, list[Launch]] = {}
    for launch in result.launches:
        of.setdefault(launch.operation, []).append(launch)
    launches = {
        action: [x for number in numbers for x in of.get(number, ()) if x.sip == table.home[action.stage] * width]
        for action, numbers in queued.items()
    }
    spans = {a: _span(table, a, found) for a, found in launches.items() if a.is_compute and found}
    start = min(x.start_ps for x in spans.values())
    whole = max(x.end_ps for x in spans.values()) - start
    busy = {action: spans[action].busy_ps if action in spans else 0 for action in table.actions}
    delays = {}
    for actions in table.ranks:
        reached = start
        for action in actions:
            if action.kind in RECEIVES:
                made = spans.get(sent(table, action)[1])
                ready = max(reached, start if made is None else made.end_ps)
                delays[action] = max(0, max((x.end_ps for x in launches[action]), default=ready) - ready)
            reached = spans[action].end_ps if action in spans else reached
    kinds = {a.kind for a in spans}
    mean = {kind: sum(busy[a] for a in spans if a.kind == kind) / sum(a.kind == kind for a in spans) for kind in kinds}

    compute = table.without_messages()
    ideal = times(compute, lambda a: mean.get(a.kind, 0.0), lambda _: 0.0).makespan
    equal = times(compute, lambda a: float(busy[a]), lambda _: 0.0).makespan
    linked = times(table, lambda a: float(busy[a]), lambda a: float(delays[a])).makespan
    parts = []
    for actions in table.ranks:
        peer = ideal - sum(mean.get(a.kind, 0.0) for a in actions)
        parts.append((peer, equal - sum(busy[a] for a in actions) - peer, linked - equal, whole - linked))
    ideal_bubble = 1 - sum(busy.values()) / (ideal * len(table.ranks))
    return Pipeline(result, ideal_bubble, peak_activations(table), tuple(spans.values()), tuple(parts))


def _span(table: Table, action: Action, launches: list[Launch]) -> _Span:
    import numpy as np

    begins, ends = (np.array(column) for column in zip(*((x.begin_ps, x.done_ps) for x in launches), strict=True))
    busy = covered_ps(begins, ends)
    return _Span(table.home[action.stage], action, int(begins.min()), int(ends.max()), busy)
