"""What rows a sweep has: a point's own costs, none at all, and columns that are the table's."""

from __future__ import annotations

import gc
import weakref

import pytest

import kernbench as kb
from kernbench.points._cache import Cache
from kernbench.studies import gemm
from kernbench.sweeps import _worker
from tests.sweeps import studies

QUIET = {"workers": 1, "progress": False}


def io_area(machine):
    return {"got_mm2": machine.config.cost.area.io_mm2}


@pytest.mark.parametrize("axis", ["cost.area.io_mm2", "both"])
def test_points_that_differ_in_cost_alone_are_points_of_their_own(tmp_path, axis):
    values = [20.0, 40.0]
    axes = {axis: values if "." in axis else {str(v): {"cost.area.io_mm2": v} for v in values}}
    cache = Cache(tmp_path)
    for _ in ("run", "found again"):
        got = kb.sweep("preset:small", io_area, axes, cache=cache, folder=tmp_path / "sweep", **QUIET)
        assert got.table["got_mm2"].tolist() == values
        assert got.table["area_mm2"].nunique() == 2
        assert got.table["machine"].nunique() == 1


def test_machines_of_other_costs_do_not_share_rows(tmp_path):
    cache = Cache(tmp_path)
    for value in (20.0, 40.0):
        machine = kb.load("preset:small").with_({"cost.area.io_mm2": value})
        got = kb.sweep(machine, io_area, {"cube.hbm.channel_bw_gbs": [16]}, cache=cache, **QUIET)
        assert got.table["got_mm2"].tolist() == [value]


def test_a_sweep_without_a_valid_point_says_so_and_why(tmp_path):
    axes = {"x": [1, 2], "sip.cube_mesh.w": [1]}
    got = kb.sweep("preset:small", studies.square, axes, where="x > 2", cache=False, folder=tmp_path, **QUIET)
    assert len(got) == len(got.ok) == 0
    assert {"x", "sip.cube_mesh.w", "machine", "area_mm2", "status", "error"} <= set(got.table)
    said = repr(got)
    assert said.startswith("no points of tests.sweeps.studies:square over x, sip.cube_mesh.w: 2 that cannot be\n")
    assert said.count("does not satisfy x > 2") == 2
    assert "does not satisfy x &gt; 2" in got._repr_html_()
    assert (tmp_path / "table.csv").read_text().startswith("x,sip.cube_mesh.w,machine,")


def test_a_sweep_shows_times_first_and_no_parameter_as_a_metric():
    got = kb.sweep("preset:small", "gemm", {"k": [64]}, parameters={"m": 32, "n": 32}, **QUIET)
    assert got.metrics[0] == "latency_ns"
    assert not {"m", "n", "k"} & set(got.metrics)
    columns = repr(got).splitlines()[1].split()
    assert columns[:3] == ["k", "latency_ns", "run_ns"]


def test_products_are_counted_in_the_type_that_a_program_has_of_itself():
    def product(torch, *, dtype="i8"):
        return gemm.product(torch, 64, 64, 64, "ref_ref", dtype)

    got = kb.sweep("preset:small", product, {"log": ["off"]}, cache=False, **QUIET)
    assert got.table["macs_i8"].tolist() == [64**3]


@pytest.mark.parametrize("name", ["status", "error"])
def test_a_study_may_not_return_a_column_of_the_table(name):
    def study(machine, *, x):
        return {name: "mine", "y": x}

    got = kb.sweep("preset:small", study, {"x": [1]}, cache=False, **QUIET)
    assert got.table["status"].tolist() == ["error"]
    assert f"returns '{name}', a column of the table itself: name it otherwise" in got.table["error"][0]


class Engine:
    def __init__(self):
        self.env = self


@pytest.mark.parametrize(("long_s", "kept"), [(-1, False), (3600, True)])
def test_the_engine_of_a_long_point_is_gone_before_the_next_one(monkeypatch, long_s, kept):
    made = []

    def study(point):
        made.append(weakref.ref(Engine()))
        return {}

    monkeypatch.setattr(_worker, "_LONG_S", long_s)
    gc.disable()
    try:
        assert _worker.attempt(study, {}).status == "ok"
        assert (made[0]() is not None) == kept
    finally:
        gc.enable()
