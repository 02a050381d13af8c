"""A report appears completely or not at all, whenever its process is interrupted or killed."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from kernbench.errors import ConfigError
from kernbench.points._keys import code_version, study_version
from kernbench.studies import milestone
from kernbench.studies.milestone import foreign, stamp
from kernbench.studies.probe import ProbeStudy
from tests.repo import ROOT

REPORT = [sys.executable, "-m", "kernbench", "milestone", "probe", "--param", 'cases=["own-slice-read", "h2d-write"]',
          "--workers", "1", "--again"]  # fmt: skip


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def made(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True)
    for name in ("README.md", "rows.json"):
        (folder / name).write_text(text)
    return folder


def test_a_report_replaces_the_former_one_as_a_whole(tmp_path):
    out = made(tmp_path / "out", "former")
    (out / "former.png").write_text("gone")
    work = made(tmp_path / "work", "new")

    milestone.publish(work, out)
    assert content(out) == {"README.md": b"new", "rows.json": b"new"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_files_that_no_report_wrote_stay(tmp_path):
    out = made(tmp_path / "out", "former")
    stamp(out, "key")
    (out / "notes.txt").write_text("mine")
    milestone.publish(made(tmp_path / "work", "new"), out, foreign(out))
    assert content(out) == {"README.md": b"new", "rows.json": b"new", "notes.txt": b"mine"}


def test_a_report_without_a_stamp_is_replaced_too(tmp_path):
    """A committed report has no stamp in a fresh clone."""
    out = made(tmp_path / "out", "former")
    milestone.publish(made(tmp_path / "work", "new"), out, foreign(out))
    assert content(out) == {"README.md": b"new", "rows.json": b"new"}


@pytest.mark.parametrize("former", [True, False])
def test_a_move_interrupted_half_way_is_undone(tmp_path, former):
    out = tmp_path / "out"
    made(tmp_path / ".out.former", "former")
    if former:
        made(out, "new")
    milestone.publish(made(tmp_path / "work", "newest"), out)
    assert content(out) == {"README.md": b"newest", "rows.json": b"newest"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.fixture
def report(tmp_path, monkeypatch):
    """Run a small milestone of two points, all of whose rows count as slow; return the report and the rows' times."""
    notebooks = tmp_path / "milestones"
    notebooks.mkdir()
    shutil.copy(ROOT / "milestones" / "probe.ipynb", notebooks)
    (notebooks / "probe.yaml").write_text("cases: [own-slice-read]\nsizes: [256, 512]\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERNBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(milestone, "KEPT_S", 0.0)

    def run(**how: bool) -> tuple[milestone.MilestoneReport, list[float]]:
        shutil.rmtree(notebooks / "output" / "probe", ignore_errors=True)
        made = milestone.run("probe", workers=1, **how)
        rows = json.loads((made.folder / "probe.json").read_text())["rows"]
        return made, [row["last_end_ns"] for row in rows]

    return run


@pytest.mark.slow
def test_rows_that_take_long_are_kept_and_reused_until_all_is_simulated_again(tmp_path, report):
    kept = tmp_path / "milestones" / "kept" / "probe.jsonl"
    made, simulated = report(again=True)
    assert made.unkept == 0
    entries = [json.loads(line) for line in kept.read_text().splitlines()]
    assert sorted(entry["made_of"]["point"]["parameters"]["nbytes"] for entry in entries) == [256, 512]
    assert {entry["made_of"]["code"] for entry in entries} == {study_version(ProbeStudy().simulate)}

    for entry in entries:
        entry["row"]["last_end_ns"] = -1.0
    entries[0]["key"] = "of another code, machine or point"
    kept.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    stale = kept.read_bytes()
    made, reused = report()
    assert reused.count(-1.0) == 1
    assert set(reused) - {-1.0} < set(simulated)
    assert made.unkept == 1
    assert kept.read_bytes() == stale, "a plain run leaves what is kept as it is"

    assert report(again=True)[1] == simulated
    assert "-1.0" not in kept.read_text()


@pytest.mark.slow
def test_rows_that_a_plain_run_simulated_are_stored_without_simulating_them_again(tmp_path, report):
    kept = tmp_path / "milestones" / "kept" / "probe.jsonl"
    made, simulated = report()
    assert made.unkept == 2
    assert not kept.exists()
    with closing(sqlite3.connect(tmp_path / "cache" / "points.sqlite", isolation_level=None)) as cache:
        cache.execute("UPDATE points SET row = json_set(row, '$.last_end_ns', -2.0)")
    made, stored = report(store=True)
    assert stored == [-2.0 for _ in simulated]
    assert made.unkept == 0
    assert [json.loads(line)["row"]["last_end_ns"] for line in kept.read_text().splitlines()] == stored
    with pytest.raises(ConfigError, match="probe: kept rows are those of the whole report"):
        milestone.run("probe", store=True, parameters={"sizes": [256]})


def test_reports_whose_slow_rows_have_to_be_simulated_are_made_last(tmp_path, monkeypatch):
    notebooks = tmp_path / "milestones"
    (notebooks / "kept").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    study = "kernbench.studies.probe:ProbeStudy.simulate"
    current = code_version("kernbench.studies.probe")
    for name, seconds, code in (("a", 9.0, "changed"), ("b", 3.0, "changed"), ("c", 5.0, current)):
        shutil.copy(ROOT / "milestones" / "probe.ipynb", notebooks / f"{name}.ipynb")
        entry = {"key": name, "row": {}, "seconds": seconds, "made_of": {"study": study, "code": code}}
        (notebooks / "kept" / f"{name}.jsonl").write_text(json.dumps(entry) + "\n")
    assert milestone.shortest_first() == ["c", "b", "a"]
    assert milestone.shortest_first(again=True) == ["b", "c", "a"]


def test_the_time_left_of_a_report_counts_the_points_of_its_latest_study(tmp_path):
    store = tmp_path / "points.jsonl"
    lines = [
        {"to_do": {"a": 1.0}, "found": []}, {"key": "a"},
        {"to_do": {"b": 4.0, "c": 2.0, "d": 1.0}, "found": ["a"]}, {"key": "c"}, {"key": "b"},
    ]  # fmt: skip
    store.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert milestone.progress(store) == milestone._Finished(runs=2, done=2, total=3, work=6.0, left=1.0)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_whenever_it_is_stopped_the_former_report_is_untouched(tmp_path, how):
    out = tmp_path / "report"
    environment = {**os.environ, "KERNBENCH_CACHE": str(tmp_path / "cache")}
    command = [*REPORT, "--out", str(out)]
    began = time.monotonic()
    subprocess.run([*command, "--param", "sizes=[256]"], check=True, capture_output=True, env=environment)
    whole, former = time.monotonic() - began, content(out)
    rng = random.Random(int(how))
    for _ in range(2):
        process = subprocess.Popen(
            [*command, "--param", "sizes=[512, 1024]"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment, start_new_session=True,
        )  # fmt: skip
        time.sleep(rng.uniform(0, whole))
        if how is signal.SIGKILL:
            os.killpg(process.pid, how)
        else:
            process.send_signal(how)
        process.wait(60)
        rows = json.loads((out / "probe.json").read_text())["rows"]
        if {row["nbytes"] for row in rows} == {256}:
            assert content(out) == former
        else:  # it was finished before the signal came
            assert {row["nbytes"] for row in rows} == {512, 1024}
            former = content(out)
