"""Run points, keep each as it ends, and run only what is not kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernbench.sweeps import engines
from kernbench.sweeps.cache import Cache
from kernbench.sweeps.keys import Row
from kernbench.sweeps.outcome import ERROR, MEMORY, OK, TIME, Outcome, PointLimits
from kernbench.sweeps.store import Store

if TYPE_CHECKING:
    from distributed import Client

TO_DO = "to_do"


@dataclass(frozen=True, slots=True)
class Job:
    """Points to run, by their keys.

    Parameters
    ----------
    fn : callable
        From a point to a row; the same row for the same point, always.
    points : mapping
        Plain (JSON) parameters, by key.
    study, version : str
        What the rows are of, and of which code: for the cache.
    machines : mapping
        The hash of each point's machine, by key: for the cache.
    """

    fn: Callable[[Row], Row]
    points: Mapping[str, Row]
    study: str
    version: str
    machines: Mapping[str, str]


def run(
    job: Job,
    *,
    folder: Path | None = None,
    cache: Cache | None = None,
    workers: int = 1,
    client: Client | None = None,
    limits: PointLimits | None = None,
    keep_failed: bool = True,
) -> Iterator[tuple[str, Outcome, bool]]:
    """Yield every point's key, its outcome, and whether it was kept from before, in the order in which they are had.

    Parameters
    ----------
    job : Job
    folder : Path or None
        Where finished points are written at once (`points.jsonl`) and found again.
    cache : Cache or None
        Where rows of all runs are kept and found again.
    workers : int
        Processes; 1 stays in this one, unless there are limits.
    client : Client or None
        A Dask cluster to run on, in place of processes.
    limits : PointLimits or None
        Of each point.
    keep_failed : bool
        Whether points without a row are written to the folder, too; one that is not is run again next time.
    """
    limits = limits or PointLimits()
    engines.check_limits(limits)
    with ExitStack() as stack:
        store = stack.enter_context(Store(folder)) if folder is not None else None
        kept = _kept(store, job, limits)
        if cache is not None:
            missing = [key for key in job.points if key not in kept]
            kept |= {key: Outcome(OK, row) for key, row in cache.get(missing).items()}
        for key, outcome in kept.items():
            yield key, outcome, True
        todo = {key: point for key, point in job.points.items() if key not in kept}
        if store is not None:
            store.append({TO_DO: len(todo)})
        put = stack.enter_context(cache.writer()) if cache is not None and todo else None
        for key, outcome in _engine(job.fn, todo, workers, client, limits):
            if put is not None and outcome.status == OK:
                put(key, outcome.row, job.study, job.machines[key], job.version, outcome.seconds)
            if store is not None and (keep_failed or outcome.status == OK):
                store.append({**_entry(key, outcome, limits), "made_of": _made_of(job, key)})
            yield key, outcome, False


def _engine(
    fn: Callable[[Row], Row], points: Mapping[str, Row], workers: int, client: Client | None, limits: PointLimits
) -> engines.Outcomes:
    if not points:
        return iter(())
    if client is not None:
        return engines.cluster(fn, points, client, limits)
    if limits.need_process or (workers > 1 and len(points) > 1):
        return engines.processes(fn, points, workers, limits)
    return engines.here(fn, points, limits)


def _entry(key: str, outcome: Outcome, limits: PointLimits) -> dict[str, Any]:
    if outcome.status == OK:
        return {"key": key, "row": outcome.row, "seconds": round(outcome.seconds, 6)}
    limit = {TIME: limits.seconds, MEMORY: limits.mib}.get(outcome.status)
    return {"key": key, **asdict(outcome), "limit": limit}


def _made_of(job: Job, key: str) -> dict[str, Any]:
    return {"study": job.study, "code": job.version, "machine": job.machines[key], "point": job.points[key]}


def _kept(store: Store | None, job: Job, limits: PointLimits) -> dict[str, Outcome]:
    """Return the outcomes of points that need not be run: rows, errors of the study, limits that are no higher now."""
    found: dict[str, Outcome] = {}
    for entry in store.entries() if store is not None else ():
        key, status = str(entry.get("key")), entry.get("status", OK)
        if key not in job.points:
            continue
        allowed = {TIME: limits.seconds, MEMORY: limits.mib}.get(status)
        again = status not in {OK, ERROR} and not (allowed is not None and allowed <= (entry.get("limit") or 0))
        if not again:
            fields = {name: entry[name] for name in ("row", "error", "trace", "seconds") if name in entry}
            found[key] = Outcome(status, **fields)
    return found
