"""The shared cache: found by what a point is, pruned by what it was, and never in the way."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from contextlib import closing

import pytest

import kernbench as kb
from kernbench.cli.main import main
from kernbench.points import _cache
from kernbench.points._cache import _FILE, CACHE_VARIABLE, Cache, default_cache
from tests.sweeps import studies

ROW = {"y": 1.5, "name": "a", "nested": {"z": [1, 2]}}


def put(cache, key, study="s", version="v1", row=ROW):
    cache.put(key, row, study, "machine", version, 0.25)


def test_what_was_put_is_got_and_nothing_else(tmp_path):
    cache = Cache(tmp_path)
    assert cache.get(["a"]) == {}
    put(cache, "a")
    assert cache.get(["a", "b"]) == {"a": ROW}
    (group,) = cache.groups()
    assert (group.study, group.version, group.points, group.seconds) == ("s", "v1", 1, 0.25)


def test_pruning(tmp_path):
    cache = Cache(tmp_path)
    for key, study, version in (("a", "s", "v1"), ("b", "s", "v2"), ("c", "t", "v2")):
        put(cache, key, study, version)
    assert cache.prune(older_than_days=1) == 0
    assert cache.prune(keep=["v2"]) == 1
    assert cache.prune(study="t") == 1
    assert set(cache.get("abc")) == {"b"}
    assert cache.prune() == 1


def test_many_may_write_at_once(tmp_path):
    cache = Cache(tmp_path)
    threads = [
        threading.Thread(target=lambda i=i: [put(cache, f"{i}-{j}") for j in range(20)], daemon=True) for i in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(g.points for g in cache.groups()) == 80


def test_a_connection_that_sqlite_refuses_at_once_tries_again(tmp_path, monkeypatch):
    # Without a timeout SQLite refuses as it does two connections that change the journal's mode at once.
    path = tmp_path / _FILE
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as refused:
            with monkeypatch.context() as patch:
                patch.setattr(_cache, "_WAIT_S", 0.05)
                with pytest.raises(sqlite3.OperationalError, match="locked"):
                    _cache._write_ahead(refused)
            release = threading.Timer(0.2, other.rollback)
            release.start()
            _cache._write_ahead(refused)
            release.join()


def test_one_that_is_broken_is_passed_over_with_a_warning(tmp_path):
    (tmp_path / _FILE).write_bytes(b"this is no database, though it is long enough to look like one" * 9)
    cache = Cache(tmp_path)
    with pytest.warns(RuntimeWarning, match="passed over, it cannot read"):
        assert cache.get(["a"]) == {}
    with pytest.warns(RuntimeWarning, match="passed over, it cannot write"):
        put(cache, "a")


def test_its_place_is_the_users_to_choose(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNBENCH_CACHE", str(tmp_path))
    assert default_cache().path.parent == tmp_path
    monkeypatch.setenv("KERNBENCH_CACHE", "off")
    assert default_cache() is None


def test_sweeps_share_it_by_what_a_point_is(tmp_path):
    notes = tmp_path / "notes"
    notes.mkdir()
    cache = Cache(tmp_path)

    def run(xs, **options):
        options = {"parameters": {"notes": str(notes)}, "workers": 1, "progress": False, "cache": cache} | options
        return kb.sweep("preset:small", studies.noted, {"x": xs}, **options)

    first = run([1, 2])
    again = run([1, 2, 3], folder=tmp_path / "other")
    assert studies.calls(notes) == [1, 2, 3]
    assert again.table["y"].tolist() == [*first.table["y"].tolist(), 3]
    # A study may read a cost, so another cost is another point, as another number of cubes is.
    run([1], parameters={"notes": str(notes), "cost.area.io_mm2": 1})
    assert studies.calls(notes) == [1, 1, 2, 3]
    run([1], parameters={"notes": str(notes), "sip.cube_mesh.w": 1})
    assert studies.calls(notes) == [1, 1, 1, 2, 3]


def test_a_row_is_computed_once(tmp_path):
    made = []

    def compute():
        made.append(time.time())
        return ROW

    for _ in range(2):
        assert Cache(tmp_path).rows_of(compute, "key", study="explore", machine="m", version="v") == ROW
    assert len(made) == 1


def test_a_failed_point_is_not_kept(tmp_path):
    cache = Cache(tmp_path)
    kb.sweep("preset:small", studies.hurts, {"x": [2]}, workers=1, progress=False, cache=cache)
    assert cache.groups() == []


def test_a_log_is_kept_beside_its_row_and_goes_with_it(tmp_path):
    cache = Cache(tmp_path)
    assert cache.find("a") is None
    put(cache, "a")
    without = cache.groups()[0].nbytes
    cache.put_log("a", b"log" * 100, {"checks": 2})
    kept = cache.find("a")
    assert (kept.row, kept.seconds, kept.notes, kept.log) == (ROW, 0.25, {"checks": 2}, b"log" * 100)
    assert cache.groups()[0].nbytes == without + 300
    assert cache.prune() == 1
    put(cache, "a")
    assert (cache.find("a").notes, cache.find("a").log) == ({}, None)


@pytest.mark.parametrize("row", ["{", "[1]", "null", "nonsense", None, "[" * 9999])
def test_a_damaged_row_is_deleted_and_the_others_are_found(tmp_path, row):
    cache = Cache(tmp_path)
    for key in "abc":
        put(cache, key)
    with closing(sqlite3.connect(cache.path, isolation_level=None)) as database:
        database.execute("UPDATE points SET row = ? WHERE key = 'b'", (b"\xff" if row is None else row,))
    with pytest.warns(RuntimeWarning, match=r"points.sqlite: damaged points are deleted; they are run again"):
        assert cache.get("abc") == {"a": ROW, "c": ROW}
    assert cache.get("abc") == {"a": ROW, "c": ROW}
    with closing(sqlite3.connect(cache.path, isolation_level=None)) as database:
        database.execute("UPDATE points SET seconds = 'long', row = ? WHERE key = 'a'", (row or "{}",))
    with pytest.warns(RuntimeWarning, match="damaged points are deleted"):
        assert cache.find("a") is None
    assert cache.find("a") is None


@pytest.mark.parametrize("command", [[], ["--json"], ["--prune"], ["--prune", "--all"]])
@pytest.mark.parametrize("broken", ["text", "folder", "zeros"])
def test_the_command_names_a_broken_file_and_the_remedy(tmp_path, monkeypatch, capsys, command, broken):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    path = tmp_path / _FILE
    if broken == "text":
        path.write_bytes(b"this is no database, though it is long enough to look like one" * 9)
    elif broken == "folder":
        Cache(tmp_path).put("a", ROW, "s", "m", "v1", 1)
        data = bytearray(path.read_bytes())
        data[100:4000] = bytes(3900)
        path.write_bytes(data)
    else:
        path.write_bytes(bytes(9999))
    assert main(["cache", *command]) == 1
    out, err = capsys.readouterr()
    line = f"error: {json.loads(out)['error']['message']}" if "--json" in command else err.rstrip("\n")
    assert line.startswith(f"error: {path}: cannot be used as the cache of points (")
    assert "\n" not in line
    assert line.endswith("if it is damaged, delete it: it holds only points that can be run again")


def test_a_clock_that_jumps_back_loses_no_point(tmp_path, monkeypatch, capsys):
    clock = iter(range(10**9, 0, -(10**7)))
    monkeypatch.setattr(time, "time", lambda: next(clock))
    cache = Cache(tmp_path)
    fixed = {"cache": cache, "folder": tmp_path / "sweep", "workers": 1, "progress": False}
    first = kb.sweep("preset:small", studies.square, {"x": [1, 2]}, **fixed)
    again = kb.sweep("preset:small", studies.square, {"x": [1, 2, 3]}, **fixed)
    assert len(again.ok) == 3
    assert first.table.equals(again.table[:2])
    assert cache.prune(older_than_days=1) == 0, "points of the future are not old"
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    assert main(["cache"]) == 0
    assert "3 points" in capsys.readouterr().out


def test_columns_without_a_value_are_shown(tmp_path, monkeypatch, capsys):
    cache = Cache(tmp_path)
    put(cache, "a")
    with closing(sqlite3.connect(cache.path, isolation_level=None)) as database:
        database.execute("DROP TABLE points")
        database.execute("CREATE TABLE points (key TEXT PRIMARY KEY, study, machine, version, row, seconds, made)")
        database.execute("INSERT INTO points (key) VALUES ('a')")
        database.execute("INSERT INTO points VALUES ('b', 's', 'm', 'v', 3, 'long', 'never')")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    assert main(["cache"]) == 0
    assert main(["cache", "--json"]) == 0
    assert "2 points" in capsys.readouterr().out
