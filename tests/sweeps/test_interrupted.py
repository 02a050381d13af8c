"""Real processes: an interrupt, a kill and a full disk lose no finished point."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

import kernbench as kb
from kernbench.errors import KernbenchError
from kernbench.points._cache import FINISHED, PointStore, entries
from tests.repo import ROOT
from tests.slow import slow_after
from tests.sweeps import studies

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="signals, limits and /proc of Linux")

# A process that a shell put into the background ignores interrupts, and so do its children, unless told otherwise.
SCRIPT = """
import json, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
import kernbench as kb
from tests.sweeps import studies
notes, folder, xs = sys.argv[1:4]
done = kb.sweep("preset:small", studies.slowly, {"x": json.loads(xs)}, parameters={"notes": notes}, folder=folder,
                workers=2, cache=False, progress=False)
print(done.table["y"].tolist())
"""


@pytest.fixture
def notes(tmp_path):
    folder = tmp_path / "notes"
    folder.mkdir()
    return folder


def start(notes, folder, xs, **options):
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(notes), str(folder), json.dumps(xs)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def finished(folder) -> list[int]:
    return sorted(entry["row"]["y"] for entry in entries(folder / FINISHED) if "row" in entry)


def wait_for(folder, n, process):
    deadline = time.monotonic() + 60
    while len(finished(folder)) < n:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("how", slow_after(1, [signal.SIGINT, signal.SIGKILL]), ids=lambda s: s.name)
def test_a_sweep_that_is_ended_goes_on_where_it_was(tmp_path, notes, how):
    folder, xs = tmp_path / "sweep", list(range(40))
    process = start(notes, folder, xs)
    wait_for(folder, 4, process)
    os.kill(process.pid, how)
    process.communicate(timeout=30)
    assert process.returncode != 0
    had = finished(folder)
    assert 4 <= len(had) < len(xs)
    for x in had:
        (notes / str(x)).unlink()
    left = xs[:8]
    again = start(notes, folder, left)
    out, err = again.communicate(timeout=60)
    assert json.loads(out) == left, err
    assert not {int(p.name) for p in notes.iterdir()} & set(had), "what was finished is not run again"
    # Nobody is left behind.
    assert set(finished(folder)) == {*had, *left}


# Debian's package faketime. The file that it reads says how far off the process's clock of the day is.
FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
JUMPS = """
import sys
import kernbench as kb
done = kb.sweep("preset:small", "gemm", {"m": list(range(32, 672, 32)), "k": [32, 64, 96]}, parameters={"n": 64},
                folder=sys.argv[1], workers=2, progress=False)
print(len(done.ok), done.table["latency_ns"].sum())
"""


@pytest.mark.slow
@pytest.mark.skipif(FAKETIME is None, reason="libfaketime is not installed")
def test_a_clock_that_jumps_back_loses_no_point_and_stops_nothing(tmp_path):
    offset, cache = tmp_path / "offset", tmp_path / "cache"
    offset.write_text("+0")
    own = {**os.environ, "PYTHONPATH": str(ROOT), "KERNBENCH_CACHE": str(cache)}
    fake = {
        "LD_PRELOAD": str(FAKETIME), "FAKETIME_TIMESTAMP_FILE": str(offset), "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }  # fmt: skip

    def start(folder, env):
        return subprocess.Popen(
            [sys.executable, "-c", JUMPS, str(tmp_path / folder)], env=env, stdout=subprocess.PIPE, text=True
        )

    process = start("sweep", own | fake)
    deadline = time.monotonic() + 60
    while sum("row" in entry for entry in entries(tmp_path / "sweep" / FINISHED)) < 5:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    offset.write_text("-10d")
    told, _ = process.communicate(timeout=120)
    assert told.split()[0] == "60"
    with closing(sqlite3.connect(cache / "points.sqlite")) as database:
        ((first, last, points),) = database.execute("SELECT MIN(made), MAX(made), COUNT(*) FROM points")
        database.execute("UPDATE points SET row = json_set(row, '$.latency_ns', 1)")
        database.commit()
    assert last - first > 9 * 86_400, "the clock did jump while the sweep ran"
    assert points == 60
    assert start("sweep", own).communicate(timeout=60)[0] == told, "what the folder holds is not run again"
    assert start("other", own).communicate(timeout=60)[0].split() == ["60", "60"], "nor what the cache holds"


@pytest.mark.slow
def test_a_point_that_never_ends_ends_with_its_sweep(tmp_path, notes):
    script = SCRIPT.replace("slowly", "endless")
    command = [sys.executable, "-c", script, str(notes), str(tmp_path / "sweep"), "[0, 1, 2]"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while len(list(notes.iterdir())) < 2:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    process.wait()
    for pid in (int(p.name) for p in notes.iterdir()):
        while alive(pid):
            assert time.monotonic() < deadline, "left behind"
            time.sleep(0.02)


def alive(pid) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@pytest.mark.slow
def test_a_disk_that_is_full_loses_nothing_that_was_written(tmp_path, notes):
    folder, xs = tmp_path / "sweep", list(range(12))

    def small():
        # A quota by the system: a file that grows over it cannot be written, and what fits is written first.
        resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))

    process = start(notes, folder, xs, preexec_fn=small)
    _, err = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "cannot write a finished point" in err
    assert "make room, then run the same again" in err
    had = finished(folder)
    assert 0 < len(had) < len(xs)
    assert (folder / FINISHED).read_bytes().endswith(b"\n"), "the part of a line that fitted is taken off"
    for x in had:
        (notes / str(x)).unlink()
    out, err = start(notes, folder, xs).communicate(timeout=60)
    assert json.loads(out) == xs, err
    assert not {int(p.name) for p in notes.iterdir()} & set(had)


def test_a_table_that_cannot_be_written_leaves_the_one_before(tmp_path, monkeypatch):
    swept = kb.sweep("preset:small", studies.square, {"x": [1]}, folder=tmp_path, workers=1, progress=False)
    before = (tmp_path / "table.csv").read_bytes()

    def full(path, text, **_):
        with path.open("w") as file:
            file.write(text[:9])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(KernbenchError, match=r"table.csv: cannot be written: No space left on device; make room"):
        swept.save(tmp_path)
    assert (tmp_path / "table.csv").read_bytes() == before
    assert not list(tmp_path.glob("*.part"))


def test_a_second_sweep_into_the_folder_of_a_running_one_is_refused(tmp_path, notes):
    with PointStore(tmp_path / "sweep"):
        process = start(notes, tmp_path / "sweep", [1])
        _, err = process.communicate(timeout=60)
    assert "another run is writing its points here; wait for its end, or name another folder" in err
    assert studies.calls(notes) == []
