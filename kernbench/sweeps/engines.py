"""Where points run: in this process, in processes of this machine, or on a Dask cluster. All give the same outcomes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from functools import cached_property
from typing import TYPE_CHECKING, Any

from kernbench.errors import ConfigError, StateError, quote
from kernbench.sweeps import checks
from kernbench.sweeps.child import Child, packed, unpacked
from kernbench.sweeps.keys import Row, code_version, own_module
from kernbench.sweeps.outcome import DIED, ERROR, Outcome, PointLimits, attempt

if TYPE_CHECKING:
    from distributed import Client

PointFn = Callable[[Row], Row]
Points = Mapping[str, Row]
Outcomes = Iterator[tuple[str, Outcome]]


def check_limits(limits: PointLimits) -> None:
    """Refuse limits that cannot be held.

    Raises
    ------
    ConfigError
        If one is no number, or not positive.
    StateError
        If the system cannot hold a process to an amount of memory.
    """
    if limits.seconds is not None and not (checks.is_number(limits.seconds) and limits.seconds > 0):
        raise ConfigError(f"time_limit_s = {quote(limits.seconds)} must be a number > 0 [s]")
    if limits.mib is not None:
        checks.whole("memory_limit_mib", limits.mib, 1, " [MiB]")
    if limits.mib is not None and sys.platform != "linux":
        raise StateError("a memory limit needs Linux, which holds a process to it; leave it out")


def here(fn: PointFn, points: Points, limits: PointLimits) -> Outcomes:
    """Yield the outcome of each point, run in this process."""
    for key, point in points.items():
        yield key, attempt(fn, point, limits.session)


def processes(fn: PointFn, points: Points, workers: int, limits: PointLimits) -> Outcomes:
    """Yield the outcomes of points as they end, run in `workers` processes of this machine.

    A process that dies is replaced, and its point run once more: somebody else may have been after the memory.
    """
    own = threading.local()
    children: list[Child] = []

    def run(point: Row) -> Outcome:
        if not hasattr(own, "child"):
            own.child = Child(fn, limits)
            children.append(own.child)
        outcome: Outcome = own.child.run(point)
        return own.child.run(point) if outcome.status == DIED else outcome

    pool = ThreadPoolExecutor(min(workers, len(points)), "kernbench-sweep")
    try:
        futures = {pool.submit(run, point): key for key, point in points.items()}
        for future in as_completed(futures):
            yield futures.pop(future), future.result()
    finally:
        # Not waited for: an interrupt is answered at once.
        pool.shutdown(wait=False, cancel_futures=True)
        for child in children:
            child.close()


def cluster(fn: PointFn, points: Points, client: Client, limits: PointLimits) -> Outcomes:
    """Yield the outcomes of points as they end, run by the workers of a Dask cluster.

    A worker that is lost is the scheduler's to replace: its points run elsewhere.

    Raises
    ------
    StateError
        If a worker's kernbench is not this one: its results would be other results.
    """
    from distributed import as_completed as as_done

    version = code_version()
    other = {where: found for where, found in client.run(_version_there).items() if found != version}
    if other:
        lines = [f"{where}: its kernbench is {found}, this one is {version}" for where, found in other.items()]
        raise StateError("\n".join([*lines, "install the same kernbench on all workers, and start them again"]))
    task = client.scatter(Task(packed(fn, own_module(fn)), limits, version), broadcast=True, hash=False)
    futures: dict[Any, str] = {client.submit(_run, task, point, pure=False): key for key, point in points.items()}
    try:
        for future in as_done(futures):
            yield futures.pop(future), _outcome(future)
    finally:
        client.cancel(list(futures))


class Task:
    """What the workers of a cluster do with a point.

    Parameters
    ----------
    fn : bytes
        From a point to a row, packed: with the file of a study of the user's own, which workers do not have.
    limits : PointLimits
        Of each point; with them a worker runs points in a process of its own for each of its threads.
    version : str
        Of the code that the results are to come from: workers may join late.
    """

    def __init__(self, fn: bytes, limits: PointLimits, version: str) -> None:
        self.fn, self.limits, self.version = fn, limits, version
        self._own = threading.local()

    def __reduce__(self) -> tuple[type[Task], tuple[bytes, PointLimits, str]]:
        return Task, (self.fn, self.limits, self.version)

    def run(self, point: Row) -> Outcome:
        """Return what becomes of a point."""
        if code_version() != self.version:
            return Outcome(ERROR, {}, f"this worker's kernbench is {code_version()}, not {self.version}")
        if not self.limits.need_process:
            return attempt(self._study, point, self.limits.session)
        if not hasattr(self._own, "child"):
            self._own.child = Child(self.fn, self.limits)
        outcome: Outcome = self._own.child.run(point)
        return outcome

    @cached_property
    def _study(self) -> PointFn:
        return unpacked(self.fn)


def _version_there() -> str:
    return code_version()


def _run(task: Task, point: Row) -> Outcome:
    return task.run(point)


def _outcome(future: Future[Outcome]) -> Outcome:
    """Return the outcome of a point of the cluster; one that keeps losing its worker is given up by the scheduler."""
    try:
        return future.result()
    except Exception as error:  # noqa: BLE001 - KilledWorker, or a cluster that is gone
        return Outcome(DIED, {}, f"{type(error).__name__}: {error}")
