"""Sweeps as users run them: the same table however they are run, and nothing that was finished is lost."""

from __future__ import annotations

import json

import pytest

import kernbench as kb
from kernbench.errors import KernbenchError
from kernbench.points._cache import FINISHED, PointStore, entries
from tests.slow import slow_after
from tests.sweeps import studies

SMALL = "preset:small"


def table(study, axes, **options):
    options = {"cache": False, "progress": False, "workers": 1} | options
    return kb.sweep(SMALL, study, axes, **options).table


def test_rows_come_in_the_order_of_the_plan_with_what_was_varied():
    got = table(studies.square, {"x": [3, 1, 2], "sip.cube_mesh.w": [1, 2]}, parameters={"y": 10})
    assert list(got["x"]) == [3, 3, 1, 1, 2, 2]
    assert list(got["area_x"]) == [90, 90, 10, 10, 40, 40]
    assert list(got["pes_seen"]) == list(got["pes"]) == [16, 32] * 3
    assert got["machine"].nunique() == 2
    assert set(got["status"]) == {"ok"}


def test_workers_change_nothing():
    axes = {"x": list(range(12))}
    one = table(studies.square, axes)
    assert one.equals(table(studies.square, axes, workers=2))
    assert one.equals(table(studies.square, axes, time_limit_s=30))


def test_a_point_that_raises_is_recorded_and_stops_nothing(tmp_path):
    got = table(studies.hurts, {"x": [1, 2, 3]}, folder=tmp_path)
    assert list(got["status"]) == ["ok", "error", "ok"]
    assert got["error"][1] == "ValueError: two is not for me"
    assert got["y"].isna().tolist() == [False, True, False]
    (entry,) = [e for e in entries(tmp_path / FINISHED) if e.get("status") == "error"]
    assert "in hurts" in entry["trace"]


@pytest.mark.parametrize(
    ("how", "limits", "status"),
    [
        ("hang", {"time_limit_s": 5}, "time limit"),
        ("swell", {"memory_limit_mib": 1024}, "memory limit"),
        ("die", {}, "worker died"),
    ],
)
def test_a_point_that_has_to_be_ended_is_recorded_and_stops_nothing(how, limits, status):
    got = table(studies.hurts, {"x": [1, 2, 3]}, parameters={"how": how}, workers=2, **limits)
    assert list(got["status"]) == ["ok", status, "ok"]


@pytest.mark.slow
def test_a_process_that_is_killed_once_costs_nothing(tmp_path):
    got = table(studies.dies_once, {"x": [1, 2, 3]}, parameters={"notes": str(tmp_path)}, workers=2)
    assert list(got["status"]) == ["ok"] * 3


@pytest.fixture
def notes(tmp_path):
    folder = tmp_path / "notes"
    folder.mkdir()
    return folder


def test_a_sweep_goes_on_where_it_was(tmp_path, notes):
    fixed = {"parameters": {"notes": str(notes)}, "folder": tmp_path / "sweep"}
    table(studies.noted, {"x": [1, 2]}, **fixed)
    got = table(studies.noted, {"x": [1, 2, 3]}, **fixed)
    assert studies.calls(notes) == [1, 2, 3]
    assert list(got["y"]) == [1, 2, 3]


@pytest.mark.parametrize("cut", [1, 5, 60])
def test_a_line_that_was_cut_short_costs_that_point_alone(tmp_path, notes, cut):
    fixed = {"parameters": {"notes": str(notes)}, "folder": tmp_path / "sweep"}
    table(studies.noted, {"x": [1, 2]}, **fixed)
    path = tmp_path / "sweep" / FINISHED
    path.write_bytes(path.read_bytes()[:-cut])
    table(studies.noted, {"x": [1, 2, 3]}, **fixed)
    assert studies.calls(notes) == ([1, 2, 3] if cut == 1 else [1, 2, 2, 3])
    # What was written after the cut line is whole.
    assert sum("row" in e for e in entries(path)) == 3


def test_two_sweeps_into_one_folder_are_refused(tmp_path):
    with PointStore(tmp_path), pytest.raises(KernbenchError, match="another run is writing its points here; wait"):
        table(studies.square, {"x": [1]}, folder=tmp_path)
    assert len(table(studies.square, {"x": [1]}, folder=tmp_path)) == 1


@pytest.mark.slow
def test_a_limit_that_is_raised_is_tried_again(tmp_path):
    def run(limit):
        fixed = {"parameters": {"how": "hang"}, "folder": tmp_path}
        return table(studies.hurts, {"x": [2]}, time_limit_s=limit, **fixed)

    assert list(run(0.5)["error"]) == ["ended after its limit of 0.5 s"]
    assert list(run(0.4)["error"]) == ["ended after its limit of 0.5 s"], "known from before"
    assert list(run(0.6)["error"]) == ["ended after its limit of 0.6 s"]


def test_what_is_written_can_be_read_again(tmp_path):
    import pandas as pd

    got = table(studies.square, {"x": [1, 2], "label": {"a": {"y": 1}, "b": {"y": 2}}}, folder=tmp_path)
    read = pd.read_csv(tmp_path / "table.csv", keep_default_na=False)
    assert list(read.columns) == list(got.columns)
    assert read["area_x"].tolist() == [1, 2, 4, 8]
    assert read["label"].tolist() == ["a", "b", "a", "b"]
    assert json.loads((tmp_path / "plan.json").read_text())["axes"] == ["x", "label"]


def test_parquet_where_pyarrow_is(tmp_path):
    pytest.importorskip("pyarrow", reason="pyarrow writes the Parquet file")
    import pandas as pd

    got = table(studies.hurts, {"x": [1, 2]}, folder=tmp_path)
    read = pd.read_parquet(tmp_path / "table.parquet")
    assert read["y"].tolist()[0] == got["y"].tolist()[0] == 1
    assert read["error"].tolist() == got["error"].tolist()


@pytest.mark.parametrize("fixed", slow_after(1, [{"workers": 1}, {"workers": 2}, {"workers": 1, "time_limit_s": 60}]))
def test_a_session_over_its_limits_is_recorded_and_tried_again(tmp_path, fixed):
    fixed |= {"folder": tmp_path / "sweep"}
    got = table(studies.sessions, {"x": [1, 0, 2]}, limits={"events": 5000}, **fixed)
    assert list(got["status"]) == ["ok", "session limit", "ok"]
    assert "limit of 5,000 events" in got["error"][1]
    assert "studies.py" in got["error"][1]
    got = table(studies.sessions, {"x": [1, 0, 2]}, limits={"events": 6000}, **fixed)
    assert "limit of 6,000 events" in got["error"][1]
