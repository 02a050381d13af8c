"""The design-space study: products sum to the whole, figures and findings come from the rows."""

from __future__ import annotations

import pytest

import kernbench as kb
from kernbench.errors import ConfigError
from kernbench.studies import design_space_report
from kernbench.studies.design_space import DesignSpaceStudy
from kernbench.studies.layers import StoredProduct, run, select_layers, simulated_ns
from kernbench.studies.study import Report
from kernbench.topology.builder import resolve_topology

MACHINE = resolve_topology("preset:small", {"sip.cube_mesh": {"w": 2, "h": 1}})
GIVEN = {
    "layer_list": "gpt2 QKTV", "meshes": [[1, 1], [2, 1]], "ucie_gbs": [64, 128], "hbm_scale": [1], "ties": 2,
    "factors": ["UCIe bandwidth", "cubes, two in a row"],
}  # fmt: skip
STUDY = DesignSpaceStudy()


@pytest.fixture(scope="module")
def rows():
    return STUDY.run(MACHINE, **GIVEN)


def test_a_row_is_the_sum_of_its_products():
    parts = [
        run(MACHINE, StoredProduct(layer.m, layer.n, layer.k, "2-D"), log="off")
        for layer in select_layers(["gpt2 QKT"])
    ]
    row = STUDY.simulate(MACHINE, layer_list="gpt2 QKT")
    assert row["latency_ns"] == pytest.approx(sum(simulated_ns(result) for result, _ in parts))
    assert row["hbm_bytes"] > 0


def test_of_several_placements_the_fastest_counts():
    each = [STUDY.simulate(MACHINE, layer_list="gpt2 QKTV", placements=[p])["latency_ns"] for p in ("rows", "2-D")]
    both = STUDY.simulate(MACHINE, layer_list="gpt2 QKTV", placements=["rows", "2-D"])
    assert both["latency_ns"] == min(each)


def test_tables(rows):
    assert list(dict.fromkeys(row["table"] for row in rows)) == ["grid", "factors", "ties"]
    grid = design_space_report.frame(rows, "grid")
    assert design_space_report.axes_of(grid) == ["cube mesh", "UCIe [GB/s]"]
    assert len(grid) == 4
    assert {row["factor"] for row in rows if "factor" in row} == {"base", *GIVEN["factors"]}
    assert {row["tie_seed"] for row in rows if row["table"] == "ties"} == {1, 2}
    assert min(grid["energy_uj"].min(), grid["area_mm2"].min()) > 0


def test_reasons_are_of_machines_that_differ_in_their_cubes_alone(rows):
    reasons = [row for row in rows if row.get("why")]
    assert [(row["table"], row["cube mesh"]) for row in reasons] == [("grid", "1x1"), ("grid", "2x1")]
    assert {row["cube.ucie.bw_gbs"] for row in reasons} == {MACHINE.config.cube.ucie.bw_gbs}
    assert {reason["part"] for row in reasons for reason in row["why"]} == {"QKTV"}
    [by_part] = design_space_report._why(rows)
    assert set(by_part) == {"part", "1x1", "2x1"}


@pytest.mark.slow
def test_asking_why_changes_no_time():
    found = STUDY.simulate(MACHINE, layer_list="gpt2 QKTV", why=True)
    assert {k: v for k, v in found.items() if k != "why"} == STUDY.simulate(MACHINE, layer_list="gpt2 QKTV")


@pytest.mark.slow
def test_what_is_written_is_read_and_drawn_again(rows, tmp_path):
    written = {path.name for path in Report(STUDY, rows, MACHINE, STUDY.complete(GIVEN)).write(tmp_path)}
    assert STUDY.read(tmp_path) == rows
    assert {f"{chart.name}.png" for chart in STUDY.charts} <= written
    assert {"design_space.csv", "design_space_why.csv"} <= written
    page = (tmp_path / "README.md").read_text()
    assert "## Why" in page
    assert "chance" not in page


def test_findings_rest_on_points_that_were_run(rows):
    said = STUDY.findings(rows)
    assert [finding.chart for finding in said] == [f"design_space_{name}" for name in ("map", "front", "factors")]
    assert not STUDY.findings([])


def made(times):
    """Return a grid by hand: of each mesh the area, the time [ns] and the longest resource of its path."""
    return [
        {"table": "grid", "cube mesh": mesh, "area_mm2": area, "latency_ns": ns, "pes": 8, "cubes": 8,
         "sips": 1, "why": [
            {"part": "product", "what": "HBM slice", "resource": f"hbm of {mesh}", "kind": "memory", "ns": on_path,
             "share": on_path / ns},
            {"part": "product", "what": "matrix engine", "resource": "gemm", "kind": "matrix", "ns": 9.0, "share": 0.1},
        ]}
        for mesh, area, ns, on_path in times
    ]  # fmt: skip


def test_more_cubes_that_do_not_pay_are_explained_by_the_resource_that_takes_longer():
    rows = made([("2x2", 100.0, 2000.0, 500.0), ("4x2", 200.0, 1000.0, 400.0), ("4x4", 400.0, 1200.0, 900.0)])
    grid = design_space_report.frame(rows, "grid")
    [said] = design_space_report._cubes(grid, rows)
    assert said.text == "4x4 cubes take 20.0 % more time than 4x2, for 100 % more silicon."
    assert said.detail == "In product, HBM slice takes 900 ns instead of 400, most at hbm of 4x4."
    assert set(grid["dies"]) == {9}
    assert said.values == {
        "before": "4x2", "after": "4x4", "more_pct": pytest.approx(20), "cost_pct": pytest.approx(100),
    }  # fmt: skip


def test_the_front_skips_machines_that_are_hardly_faster():
    times = [("a", 1.0, 1000.0, 1.0), ("b", 2.0, 990.0, 1.0), ("c", 3.0, 1100.0, 1.0), ("d", 4.0, 900.0, 1.0)]
    grid = design_space_report.frame(made(times), "grid")
    assert list(design_space_report.front(grid)["cube mesh"]) == ["a", "d"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"factors": ["luck"]}, "factors: luck is unknown; known: HBM bandwidth"),
        ({"meshes": [[9, 9]]}, "9 x 9 = 81 cubes must be <= 64"),
    ],
)
def test_parameters_that_cannot_be_run_are_refused_before_anything_runs(wrong, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        STUDY.run(MACHINE, folder=tmp_path, **GIVEN | wrong)
    assert not list(tmp_path.iterdir())


def test_a_sweep_takes_the_study_by_name():
    size = {"layer_list": "gpt2 QKT"}
    found = kb.sweep(MACHINE, "design-space", {"cube.ucie.bw_gbs": [64, 128]}, parameters=size, progress=False)
    assert len(found.ok) == 2
    assert found.ok["latency_ns"].iloc[1] == STUDY.simulate(MACHINE, **size)["latency_ns"]
