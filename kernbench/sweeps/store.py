"""A folder of finished points: one line of JSON for each, written at once, found again after whatever happened."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from filelock import FileLock, Timeout

from kernbench.errors import HostError, StateError

FINISHED = "points.jsonl"
LOCK = "running.lock"

Entry = dict[str, Any]


class Store:
    """The finished points of one folder, held by one run at a time.

    Use it as a context manager: inside, the folder is locked, and `append` writes.

    Parameters
    ----------
    folder : Path
        Made if there is none.

    Raises
    ------
    StateError
        On entry, if another run is writing to the folder.

    Notes
    -----
    A line is one write at the end of the file: a process that is killed leaves whole lines. What was cut short all the
    same (a full disk, a power cut) is taken off again, or skipped when the file is read, and costs that point alone.
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

    def append(self, entry: Entry) -> None:
        """Write one line.

        Raises
        ------
        HostError
            If it cannot be written, as on a full disk; the lines before it stay whole.
        """
        self._write(json.dumps(entry).encode() + b"\n")

    def entries(self) -> list[Entry]:
        """Return the lines that are whole, in their order."""
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
                # A disk that is nearly full takes a part; the next write says why.
                os.write(self._file, line[written:])
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, before)
            raise HostError(
                f"{self.path}: cannot write a finished point: {error.strerror}; all points before it are kept: "
                "make room, then run the same again"
            ) from error


def entries(path: Path) -> list[Entry]:
    """Return the whole lines of a file of points; none if there is no file."""
    found = []
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict):
            found.append(entry)
    return found
