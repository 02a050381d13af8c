"""Run points, store each as it ends, and skip those that are stored."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernbench.errors import StateError
from kernbench.points._cache import Cache, PointStore
from kernbench.points._keys import Row, code_version, own_module
from kernbench.sweeps._argument_checks import whole
from kernbench.sweeps._worker import (
    DIED,
    ERROR,
    MEMORY_LIMIT,
    OK,
    TIME,
    Outcome,
    PointLimits,
    Worker,
    attempt,
    packed,
    unpacked,
)

if TYPE_CHECKING:
    from distributed import Client

    from kernbench.sweeps._plan import Plan, Point


def worker_count(asked: int | None) -> int:
    """Return how many processes run: as many as asked for, by default one per core."""
    if asked is None:
        return os.cpu_count() or 1
    whole("workers", asked, 1)
    return asked


FIRST = 5  # points until the remaining time is estimated
_TICK_S = 0.5


@dataclass(frozen=True, slots=True)
class Progress:
    done: int
    total: int
    found: int
    failed: int
    elapsed_s: float
    left_s: float | None

    def __str__(self) -> str:
        parts = [f"{self.done} of {self.total} points"]
        parts += [f"{self.found} found finished"] if self.found else []
        parts += [f"{self.failed} failed"] if self.failed else []
        if self.left_s is not None and self.done < self.total:
            parts.append(f"about {_time(self.left_s)} left")
        return ", ".join(parts)


class ProgressCounter:
    """Counts points as they end, and reports progress; `work` is the relative duration of each point."""

    def __init__(self, work: Mapping[str, float], show: bool | Callable[[Progress], object]) -> None:
        self._start = time.perf_counter()
        self._count = {"done": 0, "found": 0, "failed": 0}
        self._work, self._total = work, len(work)
        self._ran_work, self._left_work = 0.0, sum(work.values())
        self._tell = show if callable(show) else None
        self._bar = None
        if show is True:
            from tqdm.auto import tqdm

            self._bar = tqdm(total=self._total, desc="sweep", bar_format=BAR, leave=False)

    def point(self, key: str, *, ok: bool, found: bool) -> None:
        self._left_work -= self._work[key]
        self._ran_work += 0.0 if found else self._work[key]
        self._count["done"] += 1
        self._count["found"] += found
        self._count["failed"] += not ok
        if self._bar is not None:
            show_bar(self._bar, self.now())
        if self._tell is not None:
            self._tell(self.now())

    def now(self) -> Progress:
        elapsed = time.perf_counter() - self._start
        ran = self._count["done"] - self._count["found"]
        left = left_s(elapsed, ran, self._ran_work, self._left_work)
        return Progress(total=self._total, elapsed_s=elapsed, left_s=left, **self._count)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


# Without tqdm's remaining time, which follows from the number of points; the longest ones run first.
BAR = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} points [{elapsed}{postfix}]"


def show_bar(bar: Any, now: Progress) -> None:
    said = [f"{now.failed} failed"] if now.failed else []
    if now.left_s is not None and now.done < now.total:
        said.append(f"about {_time(now.left_s)} left")
    bar.n, bar.total = now.done, now.total
    bar.set_postfix_str(", ".join(said), refresh=False)
    bar.refresh()


def left_s(elapsed_s: float, ran: int, work: float, left: float) -> float | None:
    """Remaining time [s] in proportion to the work; None before `FIRST` points have run."""
    return elapsed_s * left / work if ran >= FIRST and work else None


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


PointFn = Callable[[Row], Row]
Points = Mapping[str, Row]
Outcomes = Iterator[tuple[str, Outcome]]


def here(fn: PointFn, points: Points, limits: PointLimits) -> Outcomes:
    for key, point in points.items():
        yield key, attempt(fn, point, limits.session)


def processes(
    fn: PointFn,
    points: Points,
    workers: int,
    limits: PointLimits,
    deadline: float | None = None,
    tick: Callable[[], object] | None = None,
) -> Outcomes:
    """Run the points in `workers` processes of this machine; yield outcomes as they end.

    A process that dies is replaced, and its point is retried once, because another program may have taken the memory.
    At the `deadline` (of `time.monotonic`) the points that still run are ended. `tick` is called regularly meanwhile.
    """
    local = threading.local()
    started: list[Worker] = []

    def run(point: Row) -> Outcome:
        if not hasattr(local, "worker"):
            local.worker = Worker(fn, limits)
            started.append(local.worker)
        outcome: Outcome = local.worker.run(point)
        return local.worker.run(point) if outcome.status == DIED else outcome

    pool = ThreadPoolExecutor(min(workers, len(points)), "kernbench-sweep")
    try:
        futures = {pool.submit(run, point): key for key, point in points.items()}
        while futures:
            waits = [] if tick is None else [_TICK_S]
            waits += [] if deadline is None else [deadline - time.monotonic()]
            if waits and min(waits) <= 0:
                return
            done, _ = wait(futures, min(waits, default=None), FIRST_COMPLETED)
            for future in done:
                yield futures.pop(future), future.result()
            if tick is not None:
                tick()
    finally:
        # Without waiting, so that an interrupt takes effect at once.
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in started:
            worker.close()


def cluster(fn: PointFn, points: Points, client: Client, limits: PointLimits) -> Outcomes:
    """Run the points on a Dask cluster; yield outcomes as they end.

    The scheduler replaces a worker that is lost: its points run elsewhere.
    """
    from distributed import as_completed as as_done

    version = code_version()
    other = {where: found for where, found in client.run(_version_there).items() if found != version}
    if other:
        lines = [f"{where}: its kernbench is {found}, this one is {version}" for where, found in other.items()]
        raise StateError("\n".join([*lines, "install the same kernbench on all workers, and start them again"]))
    task = client.scatter(_Task(packed(fn, own_module(fn)), limits, version), broadcast=True, hash=False)
    futures: dict[Any, str] = {client.submit(_run, task, point, pure=False): key for key, point in points.items()}
    try:
        for future in as_done(futures):
            yield futures.pop(future), _outcome(future)
    finally:
        client.cancel(list(futures))


class _Task:
    """A study in the form in which it is sent to the workers of a cluster."""

    def __init__(self, fn: bytes, limits: PointLimits, version: str) -> None:
        self.fn, self.limits, self.version = fn, limits, version
        self._local = threading.local()

    def __reduce__(self) -> tuple[type[_Task], tuple[bytes, PointLimits, str]]:
        return _Task, (self.fn, self.limits, self.version)

    def run(self, point: Row) -> Outcome:
        if code_version() != self.version:
            return Outcome(ERROR, {}, f"this worker's kernbench is {code_version()}, not {self.version}")
        if not self.limits.need_process:
            return attempt(self._study, point, self.limits.session)
        if not hasattr(self._local, "worker"):
            self._local.worker = Worker(self.fn, self.limits)
        return self._local.worker.run(point)

    @cached_property
    def _study(self) -> PointFn:
        return unpacked(self.fn)


def _version_there() -> str:
    return code_version()


def _run(task: _Task, point: Row) -> Outcome:
    return task.run(point)


def _outcome(future: Future[Outcome]) -> Outcome:
    """Handle a lost point of the cluster: the scheduler gives up a point that keeps losing its worker."""
    try:
        return future.result()
    except Exception as error:  # noqa: BLE001 - KilledWorker, or a cluster that is gone
        return Outcome(DIED, {}, f"{type(error).__name__}: {error}")


TO_DO = "to_do"  # in the first line of each run: keys and work of the points that it runs
FOUND = "found"  # in the same line: keys of the points that it need not run


def run_points(
    plan: Plan,
    *,
    folder: Path | None = None,
    cache: Cache | None = None,
    workers: int = 1,
    client: Client | None = None,
    limits: PointLimits | None = None,
    keep_failed: bool = True,
    deadline: float | None = None,
    tick: Callable[[], object] | None = None,
    progress: bool | Callable[[Progress], object] = False,
    shortest_first: bool = False,
) -> Generator[tuple[str, Outcome, bool]]:
    """Yield (key, outcome, whether it was stored before) of every point as it ends; the longest start first.

    With a `deadline` (of `time.monotonic`), only those that have ended by then; `tick` is called regularly while
    processes run.
    """
    limits = limits or PointLimits()
    sign = 1 if shortest_first else -1
    points = dict(sorted(plan.distinct.items(), key=lambda item: sign * item[1].work))
    work = {key: point.work for key, point in points.items()}
    with ExitStack() as stack:
        watch = stack.enter_context(closing(ProgressCounter(work, progress)))
        store = stack.enter_context(PointStore(folder)) if folder is not None else None
        kept = _kept(store, points, limits)
        if cache is not None:
            missing = [key for key in points if key not in kept]
            cached = {key: Outcome(OK, row, seconds=s) for key, (row, s) in cache.timed(missing).items()}
            if store is not None:
                for key, outcome in cached.items():
                    store.append(_entry(plan, points[key], key, outcome, limits))
            kept |= cached
        for key, outcome in kept.items():
            watch.point(key, ok=outcome.status == OK, found=True)
            yield key, outcome, True
        todo = {key: point.task for key, point in points.items() if key not in kept}
        if store is not None:
            store.append({TO_DO: {key: work[key] for key in todo}, FOUND: list(kept)})
        put = stack.enter_context(cache.writer()) if cache is not None and todo else None
        for key, outcome in _engine(plan.fn(), todo, workers, client, limits, deadline, tick):
            if put is not None and outcome.status == OK:
                put(key, outcome.row, plan.name, points[key].machine.hash, plan.version, outcome.seconds)
            if store is not None and (keep_failed or outcome.status == OK):
                store.append(_entry(plan, points[key], key, outcome, limits))
            watch.point(key, ok=outcome.status == OK, found=False)
            yield key, outcome, False


def _engine(
    fn: Callable[[Row], Row],
    points: Mapping[str, Row],
    workers: int,
    client: Client | None,
    limits: PointLimits,
    deadline: float | None,
    tick: Callable[[], object] | None,
) -> Outcomes:
    if not points:
        return iter(())
    if client is not None:
        return cluster(fn, points, client, limits)
    if limits.need_process or deadline is not None or (workers > 1 and len(points) > 1):
        return processes(fn, points, workers, limits, deadline, tick)
    return here(fn, points, limits)


def _entry(plan: Plan, point: Point, key: str, outcome: Outcome, limits: PointLimits) -> dict[str, Any]:
    made_of = {"study": plan.name, "code": plan.version, "machine": point.machine.hash, "point": point.task}
    if outcome.status == OK:
        return {"key": key, "row": outcome.row, "seconds": round(outcome.seconds, 6), "made_of": made_of}
    return {"key": key, **asdict(outcome), "limit": _limit(outcome.status, limits), "made_of": made_of}


def _limit(status: str, limits: PointLimits) -> float | None:
    return {TIME: limits.seconds, MEMORY_LIMIT: limits.mib}.get(status)


def _kept(store: PointStore | None, points: Mapping[str, Point], limits: PointLimits) -> dict[str, Outcome]:
    """Outcomes of points that need not be run: rows, errors of the study, limits not raised since."""
    found: dict[str, Outcome] = {}
    for entry in store.entries() if store is not None else ():
        key, status = str(entry.get("key")), entry.get("status", OK)
        if key not in points:
            continue
        allowed = _limit(status, limits)
        again = status not in {OK, ERROR} and not (allowed is not None and allowed <= (entry.get("limit") or 0))
        if not again:
            fields = {name: entry[name] for name in ("row", "error", "trace", "seconds") if name in entry}
            found[key] = Outcome(status, **fields)
    return found
