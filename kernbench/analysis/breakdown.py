"""Where the time went: busy and exclusive time per stage, and how much communication is hidden."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernbench.analysis._records import Records, covered_ps
from kernbench.analysis._stages import ORDER, PE_KINDS, STAGE_KINDS, WAIT


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Time of each stage [ps], summed over `n_pes` PEs with a window of `window_ps` each.

    `exclusive_ps` has every stage of `ORDER` and sums to `n_pes * window_ps`. `busy_ps` counts an instant for every
    stage that is busy then, so it may sum to more.
    """

    window_ps: int
    n_pes: int
    exclusive_ps: dict[str, int]
    busy_ps: dict[str, int]

    def exclusive_ns(self) -> dict[str, float]:
        """Each stage's exclusive time [ns], averaged over PEs; the values sum to the window."""
        return {stage: ps / (1000 * self.n_pes) for stage, ps in self.exclusive_ps.items()}

    def busy_ns(self) -> dict[str, float]:
        return {stage: ps / (1000 * self.n_pes) for stage, ps in self.busy_ps.items()}

    def columns(self) -> dict[str, float]:
        exclusive = {f"exclusive_{stage}_ns": ns for stage, ns in self.exclusive_ns().items()}
        return exclusive | {f"busy_{stage}_ns": ns for stage, ns in self.busy_ns().items()}


def breakdown(
    records: Records, *, pe: tuple[int, int, int] | None = None, window: tuple[int, int] | None = None
) -> Breakdown:
    """Return busy and exclusive time of every stage.

    "launch" is the part of a launch before the first and after the last work of its PEs: messages through the CPUs.
    "composite" is the time of composites whose tiles were not logged and so cannot be distinguished. "wait" is time in
    which nothing listed is busy. Host copies count for every PE that is looked at.

    Parameters
    ----------
    records : Records
        Rows with one interval per piece of work (tile level shows overlap best).
    pe : (sip, cube, pe), optional
        One PE; by default every PE that did work, each over the same window.
    window : (start_ps, end_ps), optional
        By default the whole run.

    Notes
    -----
    One sweep over the sorted ends of all intervals. PEs are concatenated on one axis, so that a single
    sweep serves any number of them.
    """
    start, end = window or (0, records.makespan_ps)
    span = max(0, end - start)
    pes = [pe] if pe else records.pes() or [(-1, -1, -1)]
    pe_index = _index_of_pe(records, pes)

    intervals = []
    for stage, kinds in STAGE_KINDS.items():
        chosen = records.is_kind(*kinds)
        if stage == "composite":
            chosen = whole_composites(records)
        if stage == "host":
            low, high = records.start_ps[chosen], records.end_ps[chosen]
            intervals.append(_on_every_pe(low, high, len(pes), start, end))
        else:
            chosen &= pe_index >= 0
            intervals.append(_on_axis(records.start_ps[chosen], records.end_ps[chosen], pe_index[chosen], start, end))
    low, high = _launch_gaps(records)
    intervals.append(_on_every_pe(low, high, len(pes), start, end))

    exclusive, busy = _sweep(intervals, span * len(pes))
    busy[WAIT] = exclusive[WAIT]
    return Breakdown(span, len(pes), exclusive, busy)


def whole_composites(records: Records) -> np.ndarray:
    """Mask of the composites whose tiles were not logged."""
    untiled = np.ones(len(records.commands) + 1, bool)
    untiled[records.command[records.tile >= 0]] = False
    return untiled[records.command] & records.is_kind("composite")


def _index_of_pe(records: Records, pes: list[tuple[int, int, int]]) -> np.ndarray:
    index = {pe: i for i, pe in enumerate(pes)}
    return records.per_row(lambda c: index.get((c.sip, c.cube, c.pe), -1), -1)


def _on_axis(
    low: np.ndarray, high: np.ndarray, pe_index: np.ndarray, start: int, end: int
) -> tuple[np.ndarray, np.ndarray]:
    """Clip intervals to the window and shift each to its PE's section of the axis."""
    low, high = np.clip(low, start, end), np.clip(high, start, end)
    keep = high > low
    shift = pe_index[keep] * (end - start) - start
    return low[keep] + shift, high[keep] + shift


def _on_every_pe(low: np.ndarray, high: np.ndarray, pes: int, start: int, end: int) -> tuple[np.ndarray, np.ndarray]:
    return _on_axis(np.tile(low, pes), np.tile(high, pes), np.repeat(np.arange(pes), len(low)), start, end)


def _launch_gaps(records: Records) -> tuple[np.ndarray, np.ndarray]:
    """For every launch, the times before its first and after its last work on a PE."""
    work = records.of_kind(*PE_KINDS)
    low, high = [], []
    for launch in records.launches:
        inside = work.within(launch.start_ps, launch.end_ps)
        first = int(inside.start_ps.min(initial=launch.end_ps))
        last = int(inside.end_ps.max(initial=first))
        low += [launch.start_ps, last]
        high += [first, launch.end_ps]
    return np.array(low, np.int64), np.array(high, np.int64)


def _sweep(intervals: list[tuple[np.ndarray, np.ndarray]], total: int) -> tuple[dict[str, int], dict[str, int]]:
    low, high = (np.concatenate([pair[i] for pair in intervals]) for i in (0, 1))
    stages = np.repeat(np.arange(len(intervals)), [len(pair[0]) for pair in intervals])
    ends = np.concatenate([[0], low, high, [total]]).astype(np.int64)
    step = np.concatenate([[0], np.ones(len(low)), -np.ones(len(high)), [0]]).astype(np.int8)
    stage_of = np.concatenate([[-1], stages, stages, [-1]]).astype(np.int8)
    order = np.argsort(ends, kind="stable")
    step, stage_of = step[order], stage_of[order]
    width = np.diff(ends[order])  # 0 between simultaneous ends
    free = np.ones(len(width), bool)
    exclusive, busy = {}, {}
    for i, stage in enumerate(ORDER[: len(intervals)]):
        active = np.cumsum(np.where(stage_of == i, step, 0), dtype=np.int32)[:-1] > 0
        busy[stage] = int(width[active].sum())
        exclusive[stage] = int(width[active & free].sum())
        free &= ~active
    exclusive[WAIT] = int(width[free].sum())
    return exclusive, busy


COMMUNICATION = ("send", "recv")
WORK = tuple(kind for kind in PE_KINDS if kind not in COMMUNICATION)


@dataclass(frozen=True, slots=True)
class Overlap:
    """Mean time over PEs [ns]; the four sum to the window."""

    work_ns: float
    hidden_ns: float
    exposed_ns: float
    idle_ns: float


def overlap(records: Records, window: tuple[int, int] | None = None) -> Overlap:
    """Return the overlap of work and messages on the PEs that did work.

    Parameters
    ----------
    records : Records
        With rows of operations.
    window : (start_ps, end_ps), optional
        By default the whole run.
    """
    start, end = window or (0, records.makespan_ps)
    pes = records.pes()
    span, n, pe_index = max(1, end - start), max(1, len(pes)), _index_of_pe(records, pes)
    intervals = []
    for kinds in (WORK, COMMUNICATION):
        chosen = (pe_index >= 0) & records.is_kind(*kinds)
        intervals.append(_on_axis(records.start_ps[chosen], records.end_ps[chosen], pe_index[chosen], start, end))
    work, messages = (covered_ps(*each) for each in intervals)
    both = covered_ps(*np.concatenate(intervals, axis=1))
    hidden = work + messages - both
    scale = 1 / (1000 * n)
    return Overlap((work - hidden) * scale, hidden * scale, (messages - hidden) * scale, (span * n - both) * scale)
