"""Run the points of a study on all cores; what is finished is kept on disk, so that a run can go on later."""

from __future__ import annotations

import hashlib
import json
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from functools import cache, lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from kernbench.topology.builder import Machine, resolve_topology

Row = dict[str, Any]
FINISHED = "points.jsonl"
TO_DO = "to_do"


@cache
def code_version() -> str:
    """Return the hash of the package's sources and data files: results of other code are not reused."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(p for p in root.rglob("*") if p.suffix in {".py", ".yaml"}):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes().replace(b"\r\n", b"\n"))
    return digest.hexdigest()[:12]


def key_of(point: Mapping[str, Any]) -> str:
    """Return what a finished point is found by: its parameters and the code's version."""
    text = json.dumps([code_version(), point], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def machine_of(spec: Mapping[str, Any]) -> Machine:
    """Return the machine of a point, made once per process: its points share the graph."""
    return _machine(json.dumps(spec, sort_keys=True))


@lru_cache(maxsize=8)
def _machine(text: str) -> Machine:
    return resolve_topology(json.loads(text))


def run_points(
    fn: Callable[[Row], Row], points: Sequence[Row], *, folder: Path | None = None, workers: int = 1
) -> list[Row]:
    """Return `fn(point)` for each of `points`, in their order.

    Parameters
    ----------
    fn
        A function of a module, from plain parameters to a plain row; the same row for the same point, always.
    points
        Plain (JSON) parameters.
    folder
        Where finished points are written at once (`points.jsonl`) and found again.
    workers
        Processes; 1 stays in this one.
    """
    store = folder / FINISHED if folder is not None else None
    finished = _finished(store)
    keys = [key_of(point) for point in points]
    missing = {key: point for key, point in zip(keys, points, strict=True) if key not in finished}
    if store is not None:
        store.parent.mkdir(parents=True, exist_ok=True)
        _append(store, {TO_DO: len(missing)})
    for key, row in _run(fn, missing, workers):
        finished[key] = row
        if store is not None:
            _append(store, {"key": key, "row": row})
    return [finished[key] for key in keys]


def progress(store: Path) -> tuple[int, int]:
    """Return how many points of the latest run have been finished, and how many it had to run."""
    done = total = 0
    for entry in _entries(store):
        if TO_DO in entry:
            done, total = 0, entry[TO_DO]
        else:
            done += 1
    return done, total


def _append(store: Path, entry: Row) -> None:
    with store.open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")


def _run(fn: Callable[[Row], Row], points: Mapping[str, Row], workers: int) -> Iterator[tuple[str, Row]]:
    if workers <= 1 or len(points) <= 1:
        for key, point in points.items():
            yield key, fn(point)
        return
    # Kernels of notebooks have threads, which a forked child would inherit half alive.
    # An interrupt reaches the whole group of processes, and is this one's to handle.
    context, deaf = get_context("spawn"), (signal.SIGINT, signal.SIG_IGN)
    with ProcessPoolExecutor(min(workers, len(points)), context, signal.signal, deaf) as pool:
        futures: dict[Future[Row], str] = {pool.submit(fn, point): key for key, point in points.items()}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _finished(store: Path | None) -> dict[str, Row]:
    """Return the rows of `store` by key."""
    entries = _entries(store) if store is not None else []
    return {entry["key"]: entry["row"] for entry in entries if "row" in entry}


def _entries(store: Path) -> list[Row]:
    """Return the lines of `store`; one that an interrupt cut short is none."""
    entries = []
    for line in store.read_text(encoding="utf-8").splitlines() if store.is_file() else ():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict):
            entries.append(entry)
    return entries
