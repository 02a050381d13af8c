"""The critical path of a run: steps and waits, each beginning where its cause ended, from 0 to the makespan."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from kernbench.analysis.path_tiles import Walk
from kernbench.analysis.records import Records
from kernbench.analysis.trail import Step
from kernbench.errors import KernbenchError


@dataclass(frozen=True)
class CriticalPath:
    """A chain of steps from 0 to the makespan without gaps; their times sum to it."""

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


def critical_path(records: Records) -> CriticalPath:
    """Return the critical path of a run.

    Raises
    ------
    KernbenchError
        If the run was not logged.
    """
    if not len(records) and records.makespan_ps:
        raise KernbenchError('this run was not logged, so nothing says why; run it with log="operation" or log="tile"')
    if records.makespan_ps and not records.spec:
        raise KernbenchError("these records do not hold the machine they were made on; run the bench again")
    return CriticalPath(Walk(records).steps(), records.makespan_ps)
