"""The cache of every finished point on this machine, shared by milestones, sweeps and the explorer."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from filelock import FileLock, Timeout
from platformdirs import user_cache_path

from kernbench.errors import HostError, StateError
from kernbench.points._keys import Row

FINISHED = "points.jsonl"
LOCK = "running.lock"

_Entry = dict[str, Any]


class PointStore:
    """The finished points of one folder, locked by one run at a time.

    A context manager: inside, the folder is locked, and `append` writes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / FINISHED
        self._lock = FileLock(folder / LOCK)
        self._file = -1

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise StateError(
                f"{self.folder}: another run is writing its points here; wait for its end, or name another folder"
            ) from None
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o644)
        size = os.fstat(self._file).st_size
        if size and not self._ends_line(size):
            self._write(b"\n")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        os.close(self._file)
        self._lock.release()

    def append(self, entry: _Entry) -> None:
        self._write(json.dumps(entry).encode() + b"\n")

    def entries(self) -> list[_Entry]:
        return entries(self.path)

    def _ends_line(self, size: int) -> bool:
        with self.path.open("rb") as file:
            file.seek(size - 1)
            return file.read(1) == b"\n"

    def _write(self, line: bytes) -> None:
        before = os.fstat(self._file).st_size
        try:
            written = os.write(self._file, line)
            if written < len(line):
                # A nearly full disk accepts a part; the next write raises the reason.
                os.write(self._file, line[written:])
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, before)
            raise HostError(
                f"{self.path}: cannot write a finished point: {error.strerror}; all points before it are kept: "
                "make room, then run the same again"
            ) from error


def entries(path: Path) -> list[_Entry]:
    """Return the complete lines of a file of points; empty without a file."""
    found = []
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict):
            found.append(entry)
    return found


Put = Callable[[str, Row, str, str, str, float], None]

_FILE = "points.sqlite"
CACHE_VARIABLE = "KERNBENCH_CACHE"
OFF = "off"
_WAIT_S = 10.0  # for other writing processes

_TABLE = """
CREATE TABLE IF NOT EXISTS points (
    key TEXT PRIMARY KEY, study TEXT NOT NULL, machine TEXT NOT NULL, version TEXT NOT NULL,
    row TEXT NOT NULL, seconds REAL NOT NULL, made REAL NOT NULL
) WITHOUT ROWID
"""
# Logs are large, and only the explorer reads them: a separate table.
_LOGS = "CREATE TABLE IF NOT EXISTS logs (key TEXT PRIMARY KEY, notes TEXT NOT NULL, log BLOB)"


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows of one study by one version of its code: number, bytes, time to compute them [s], time of the last one."""

    study: str
    version: str
    points: int
    nbytes: int
    seconds: float
    made: float


@dataclass(frozen=True, slots=True)
class CachedPoint:
    """A point in the cache: row, time to compute it [s], time of creation; log and notes, if any."""

    row: Row
    seconds: float
    made: float
    notes: Row
    log: bytes | None


class Cache:
    """Finished rows by key: the point (machine, study, parameters) and the code that computed it.

    A row is found only under its key, so after a change of the package, machine, parameters or file of a study
    nothing is found. Modules that a user's study imports are not part of the key: prune after a change there. A
    cache that cannot be read or written is skipped with a warning.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / _FILE

    def get(self, keys: Iterable[str]) -> dict[str, Row]:
        return {key: row for key, (row, _) in self.timed(keys).items()}

    def timed(self, keys: Iterable[str]) -> dict[str, tuple[Row, float]]:
        """Return the rows found under `keys`, each with the time to compute it [s]."""
        query = "SELECT key, row, seconds, made, '{}', NULL FROM points WHERE key = ?"
        found = self._read(query, [(key,) for key in keys])
        return {key: (point.row, point.seconds) for key, point in found.items()}

    def find(self, key: str) -> CachedPoint | None:
        columns = "SELECT key, row, seconds, made, COALESCE(notes, '{}'), log FROM points LEFT JOIN logs USING (key)"
        return self._read(f"{columns} WHERE key = ?", [(key,)]).get(key)

    def drop(self, key: str) -> None:
        with _passed_over("write"), self._open() as database:
            self._drop(database, key)

    def put(self, key: str, row: Row, study: str, machine: str, version: str, seconds: float) -> None:
        with self.writer() as put:
            put(key, row, study, machine, version, seconds)

    def noted(self, most: int) -> dict[str, CachedPoint]:
        """Return the latest `most` points that have notes, latest first; `log` is b"" if there is one."""
        columns = "SELECT key, row, seconds, made, notes, CASE WHEN log IS NOT NULL THEN x'' END"
        return self._read(f"{columns} FROM points JOIN logs USING (key) ORDER BY made DESC LIMIT ?", [(most,)])

    def _read(self, query: str, asked: Iterable[tuple[object, ...]]) -> dict[str, CachedPoint]:
        """Return the points that a query selects for each of `asked`, by key; damaged ones are dropped."""
        found: dict[str, CachedPoint] = {}
        if not self.path.is_file():
            return found
        with _passed_over("read"), self._open() as database:
            for values in asked:
                for key, row, seconds, made, notes, log in database.execute(query, values).fetchall():
                    with self._dropped_if_damaged(database, key):
                        found[key] = CachedPoint(_object(row), float(seconds), float(made), _object(notes), log)
        return found

    def delete(self, keys: Iterable[str]) -> None:
        if not self.path.is_file():
            return
        with _passed_over("write"), self._open() as database:
            for key in keys:
                self._delete(database, key)

    def put_log(self, key: str, log: bytes | None, notes: Row) -> None:
        """Store notes on a point, and its log unless that is too long (None)."""
        with _passed_over("write"), self._open() as database:
            database.execute("INSERT OR REPLACE INTO logs VALUES (?, ?, ?)", (key, json.dumps(notes), log))

    def annotate(self, key: str, changes: Row) -> None:
        """Merge `changes` into the notes on a point; without effect on a point that has none."""
        with _passed_over("write"), self._open() as database:
            database.execute("UPDATE logs SET notes = json_patch(notes, ?) WHERE key = ?", (json.dumps(changes), key))

    @contextmanager
    def writer(self) -> Iterator[Put]:
        """Yield a `put` for many rows: opening and closing the file costs more than a row."""
        with ExitStack() as stack:
            database: sqlite3.Connection | None = None
            with _passed_over("write"):
                database = stack.enter_context(self._open())

            def put(key: str, row: Row, study: str, machine: str, version: str, seconds: float) -> None:
                if database is not None:
                    with _passed_over("write"):
                        values = (key, study, machine, version, json.dumps(row), seconds, time.time())
                        database.execute("INSERT OR REPLACE INTO points VALUES (?, ?, ?, ?, ?, ?, ?)", values)

            yield put

    def groups(self) -> list[_Group]:
        if not self.path.is_file():
            return []
        with self._told(), self._open() as database:
            rows = database.execute(
                # Columns of a damaged file may be NULL, or of another type.
                "SELECT COALESCE(CAST(study AS TEXT), '?'), COALESCE(CAST(version AS TEXT), '?'), COUNT(*), "
                "SUM(COALESCE(LENGTH(row), 0) + COALESCE(LENGTH(log), 0)), TOTAL(seconds), "
                "MAX(MIN(MAX(COALESCE(CAST(made AS REAL), 0), 0), 4102444800)) "
                "FROM points LEFT JOIN logs USING (key) GROUP BY study, version ORDER BY MAX(made) DESC"
            )
            return [_Group(*row) for row in rows]

    def prune(
        self, *, keep: Collection[str] | None = None, older_than_days: float | None = None, study: str | None = None
    ) -> int:
        """Delete the rows that meet all conditions (without one: all rows), and return their number."""
        if not self.path.is_file():
            return 0
        conditions: list[str] = ["1"]
        values: list[object] = []
        for condition, value in (
            ("made < ?", None if older_than_days is None else time.time() - older_than_days * 86400),
            ("study = ?", study),
        ):
            if value is not None:
                conditions.append(condition)
                values.append(value)
        if keep is not None:
            conditions.append(f"substr(version, 1, 12) NOT IN ({', '.join('?' * len(keep))})")
            values.extend(keep)
        with self._told(), self._open() as database:
            gone = database.execute(f"DELETE FROM points WHERE {' AND '.join(conditions)}", values).rowcount  # noqa: S608
            database.execute("DELETE FROM logs WHERE key NOT IN (SELECT key FROM points)")
        with self._told(), self._open() as database:
            database.execute("VACUUM")
        return gone

    def rows_of(self, fn: Callable[[], Row], key: str, *, study: str, machine: str, version: str) -> Row:
        hit = self.get([key])
        if key not in hit:
            start = time.perf_counter()
            hit[key] = fn()
            self.put(key, hit[key], study, machine, version, time.perf_counter() - start)
        return hit[key]

    @contextmanager
    def _dropped_if_damaged(self, database: sqlite3.Connection, key: str) -> Iterator[None]:
        try:
            yield
        except (ValueError, TypeError, RecursionError):
            self._drop(database, key)

    def _delete(self, database: sqlite3.Connection, key: str) -> None:
        for table in ("points", "logs"):
            database.execute(f"DELETE FROM {table} WHERE key = ?", (key,))  # noqa: S608

    def _drop(self, database: sqlite3.Connection, key: str) -> None:
        self._delete(database, key)
        warnings.warn(f"{self.path}: damaged points are deleted; they are run again", RuntimeWarning, stacklevel=4)

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise HostError(
                f"{self.path}: cannot be used as the cache of points ({error}); if it is damaged, delete it: it holds "
                "only points that can be run again"
            ) from error

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(self.path, timeout=_WAIT_S, isolation_level=None)) as database:
            # Undecodable text damages only its entry.
            database.text_factory = lambda data: data.decode(errors="replace")
            _write_ahead(database)
            # Rows lost in a power failure are computed again.
            database.execute("PRAGMA synchronous = NORMAL")
            database.execute(_TABLE)
            database.execute(_LOGS)
            yield database


def _write_ahead(database: sqlite3.Connection) -> None:
    """Switch to WAL, for concurrent readers and one writer. SQLite fails at once if two connections switch together."""
    deadline = time.monotonic() + _WAIT_S
    while True:
        try:
            database.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.005)
        else:
            return


def _object(text: object) -> Row:
    found = json.loads(text) if isinstance(text, str) else None
    if not isinstance(found, dict):
        raise TypeError("no JSON object")
    return found


def default_cache() -> Cache | None:
    """Return the user's cache, in the folder of KERNBENCH_CACHE or the system's default; None if it is "off"."""
    where = os.environ.get(CACHE_VARIABLE)
    if where == OFF:
        return None
    return Cache(Path(where) if where else user_cache_path("kernbench"))


@contextmanager
def _passed_over(what: str) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError, ValueError) as error:
        warnings.warn(f"the cache of points is passed over, it cannot {what}: {error}", RuntimeWarning, stacklevel=3)
