"""Run the points of a study on all cores; what is finished is kept, in its folder and in the cache that all share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kernbench.errors import PointError
from kernbench.sweeps.cache import FINISHED, default_cache, entries
from kernbench.sweeps.keys import Row, code_version, key_of, machine_of, study_name, study_version
from kernbench.sweeps.runner import TO_DO, Job, run
from kernbench.sweeps.worker import OK, Outcome

__all__ = ["FINISHED", "Row", "code_version", "machine_of", "progress", "run_points"]


def run_points(
    fn: Callable[[Row], Row], points: Sequence[Row], *, folder: Path | None = None, workers: int = 1
) -> list[Row]:
    """Return `fn(point)` for each of `points`, in their order.

    Parameters
    ----------
    fn
        A function of a module, from plain parameters to a plain row; the same row for the same point, always.
    points
        Plain (JSON) parameters; `machine`, if there is one, is its content.
    folder
        Where finished points are written at once (`points.jsonl`) and found again.
    workers
        Processes; 1 stays in this one.

    Raises
    ------
    PointError
        If a point raises, or takes its process down; the others that were finished before are kept.
    """
    study, version = study_name(fn), study_version(fn)
    machines = [machine_of(point["machine"]).hash if "machine" in point else "" for point in points]
    keys = [
        key_of(study, version, machine, _without_machine(point))
        for machine, point in zip(machines, points, strict=True)
    ]
    job = Job(fn, dict(zip(keys, points, strict=True)), study, version, dict(zip(keys, machines, strict=True)))
    rows: dict[str, Row] = {}
    for key, outcome, _ in run(job, folder=folder, cache=default_cache(), workers=workers, keep_failed=False):
        rows[key] = _row(outcome)
    return [rows[key] for key in keys]


def progress(store: Path) -> tuple[int, int]:
    """Return how many points of the latest run have been finished, and how many it had to run."""
    done = total = 0
    for entry in entries(store):
        if TO_DO in entry:
            done, total = 0, entry[TO_DO]
        else:
            done += 1
    return done, total


def _row(outcome: Outcome) -> Row:
    if outcome.status != OK:
        raise PointError(f"a point of the study failed: {outcome.error}\n{outcome.trace}".rstrip())
    return outcome.row


def _without_machine(point: Mapping[str, Any]) -> Row:
    return {name: value for name, value in point.items() if name != "machine"}
