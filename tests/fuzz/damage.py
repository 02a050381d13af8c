"""Saved results and entries of the cache, damaged: one error with the file's name, or a point that is run again."""

from __future__ import annotations

import random
import sqlite3
import warnings
from contextlib import closing
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import kernbench as kb
from kernbench.cli.main import main
from kernbench.errors import ConfigError
from kernbench.points._cache import FINISHED, Cache, entries
from kernbench.runtime_api.context import session
from tests.fuzz.report import Report

ROW = {"y": 1.5, "nested": {"z": [1, 2]}}


@cache
def saved() -> tuple[bytes, str]:
    """Return a saved result, and the digest of its times."""
    with session("preset:small", log="tile") as torch:
        x = torch.zeros(64, device="ahbm")
        torch.launch("load", lambda x, *, tl: tl.store(x, tl.load(x, shape=(64,)) + 1), x)
        x.numpy()
    with TemporaryDirectory() as folder:
        return torch.result.save(Path(folder) / "run.npz").read_bytes(), torch.result.records.digest()


def damaged(data: bytes, chosen: random.Random) -> bytes:
    found = bytearray(data)
    for _ in range(chosen.choice([1, 1, 2, 8])):
        i = chosen.randrange(len(found) + 1)
        how = chosen.randrange(6)
        if how == 0:
            del found[i:]
        elif how == 1:
            del found[i : i + chosen.randrange(1, 200)]
        elif how == 2:
            found[i:i] = found[: chosen.randrange(200)]
        elif how == 3:
            found[i : i + 50] = bytes(50)
        elif found:
            found[min(i, len(found) - 1)] = chosen.randrange(256)
    return bytes(found)


def run(seeds: range, folder: Path) -> Report:
    """Damage one kind of file for each seed, and read it."""
    report = Report("damaged results and cache entries")
    parts = (_result, _entry, _database, _store)
    for seed in seeds:
        report.tried += 1
        try:
            wrong = parts[seed % len(parts)](random.Random(seed), folder)
        except BaseException as error:
            wrong = f"{type(error).__name__}: {str(error)[:300]}"
            if isinstance(error, KeyboardInterrupt):
                raise
        if wrong:
            report.failed(seed, f"{parts[seed % len(parts)].__name__[1:]}: {wrong}")
    return report


def _result(chosen: random.Random, folder: Path) -> str:
    data, digest = saved()
    path = folder / "run.npz"
    path.write_bytes(damaged(data, chosen))
    try:
        found = kb.read(path)
    except ConfigError as error:
        return "" if str(error).startswith(f"{path}: ") else f"names no file: {error}"
    return "" if found.records.digest() == digest else "other times were read"


def _fresh(folder: Path) -> Cache:
    for path in folder.glob("points.sqlite*"):
        path.unlink()
    kept = Cache(folder)
    for key in "abc":
        kept.put(key, ROW, "study", "machine", "v1", 0.25)
        kept.put_log(key, saved()[0], {"checks": 0})
    return kept


def _entry(chosen: random.Random, folder: Path) -> str:
    kept = _fresh(folder)
    table, column = chosen.choice(
        [("points", "row"), ("points", "seconds"), ("points", "made"), ("logs", "notes"), ("logs", "log")]
    )
    value: Any = chosen.choice(
        [b"", b"\xff\xfe", "{", "[1]", "3", "null", -1, 1e400, "x" * 9999, damaged(saved()[0], chosen), "[" * 5000]
    )
    with closing(sqlite3.connect(kept.path, isolation_level=None)) as database:
        database.execute(f"UPDATE {table} SET {column} = ? WHERE key = 'b'", (value,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        found = kept.get("abc")
        kept.find("b")
        kept.groups()
    if {"a", "c"} - set(found) or any(found[key] != ROW for key in "ac"):
        return f"{table}.{column} = {str(value)[:40]!r}: other points were lost"
    return "" if found.get("b", ROW) == ROW else f"a damaged row was taken: {found['b']}"


def _database(chosen: random.Random, folder: Path) -> str:
    kept = _fresh(folder)
    with closing(sqlite3.connect(kept.path)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    kept.path.write_bytes(damaged(kept.path.read_bytes(), chosen))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        found = kept.get("abc")
        kept.put("d", ROW, "study", "machine", "v1", 0.25)
    if any(row != ROW for row in found.values()):
        return f"a damaged row was taken: {found}"
    return "" if _command(folder) in (0, 1) else "kernbench cache"


def _command(folder: Path) -> int:
    import contextlib
    import io
    import os

    before = os.environ.get("KERNBENCH_CACHE")
    os.environ["KERNBENCH_CACHE"] = str(folder)
    err = io.StringIO()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err):
            status = main(["cache"])
    finally:
        if before is None:
            del os.environ["KERNBENCH_CACHE"]
        else:
            os.environ["KERNBENCH_CACHE"] = before
    told = err.getvalue()
    is_told = told.startswith(f"error: {folder / 'points.sqlite'}: ") and len(told.splitlines()) == 1
    return status if status == 0 or is_told else 99


def _store(chosen: random.Random, folder: Path) -> str:
    path = folder / FINISHED
    lines = [b'{"key": "%d", "row": {"y": %d}}\n' % (i, i) for i in range(20)]
    path.write_bytes(damaged(b"".join(lines), chosen))
    found = entries(path)
    return "" if all(isinstance(entry, dict) for entry in found) else f"{found}"
