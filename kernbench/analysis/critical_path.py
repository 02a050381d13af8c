"""The critical path of a run or a launch: steps and waits, each beginning where its cause ended, from end to start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from kernbench.analysis.launches import span
from kernbench.analysis.path_tiles import Walk
from kernbench.analysis.records import Launch, Records
from kernbench.analysis.trail import Step
from kernbench.errors import StateError


@dataclass(frozen=True)
class CriticalPath:
    """A chain of steps without gaps; their times sum to `makespan_ps`, the latency of the run or launch."""

    steps: tuple[Step, ...]
    makespan_ps: int

    def parts(self) -> Counter[tuple[str, str]]:
        """Return the time [ps] of each (kind, resource) on the path; the values sum to the makespan."""
        total: Counter[tuple[str, str]] = Counter()
        for step in self.steps:
            for part in step.parts:
                total[part.kind, part.resource] += part.ps
        return total

    def because(self) -> Counter[str]:
        """Return how many steps began for each reason."""
        return Counter(step.because for step in self.steps if step.because)


def critical_path(records: Records, launches: Sequence[Launch] = ()) -> CriticalPath:
    """Return the critical path of a run, or of launches of it: from the first one's start to the last one's end.

    A step that was under way when they started counts from then on.

    Raises
    ------
    StateError
        If the run was not logged, or stopped before a launch ended.
    """
    if not len(records) and records.makespan_ps:
        raise StateError('this run was not logged, so nothing says why; run it with log="operation" or log="tile"')
    if records.makespan_ps and not records.spec:
        raise StateError("these records do not hold the machine they were made on; run the bench again")
    walk = Walk(records)
    if not launches:
        return CriticalPath(walk.steps(), records.makespan_ps)
    start, end = span(launches)
    return CriticalPath(walk.steps(start, max(launches, key=lambda x: x.end_ps)), end - start)
