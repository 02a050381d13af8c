"""The design-space study: parts sum to the whole, figures and findings come from the rows."""

from __future__ import annotations

import pytest

import kernbench as kb
from kernbench.errors import ConfigError, KernbenchError
from kernbench.studies import design_space, design_space_report
from kernbench.studies.design_space import DesignSpaceStudy, gpt2_layers, llama3_70b_decode
from kernbench.studies.study import Report
from kernbench.topology.builder import resolve_topology

TWO = resolve_topology("preset:small", {"system.sips.count": 2, "sip.cube_mesh": {"w": 2, "h": 1}})
SIZE = {"context": 128, "hidden": 256, "ffn": 512}
GIVEN = {
    **SIZE, "gpt2": "gpt2 QKTV", "meshes": [[1, 1], [2, 1]], "ucie_gbs": [64, 128], "hbm_scale": [1],
    "gpt2_hbm_scale": [1], "topologies": ["ring_1d", "fully_connected"], "ties": 2,
    "factors": ["UCIe bandwidth", "SIP topology"],
}  # fmt: skip


@pytest.fixture
def cache(monkeypatch, tmp_path):  # points share their parts by it
    monkeypatch.setenv("KERNBENCH_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNBENCH_CACHE", str(tmp_path_factory.mktemp("cache")))
        return DesignSpaceStudy().run(TWO, **GIVEN)


def test_a_decode_step_is_its_parts():
    row = llama3_70b_decode(TWO, **SIZE)
    assert row["latency_ns"] == pytest.approx(row["attention_ns"] + row["products_ns"] + row["allreduce_ns"])
    assert min(row[name] for name in ("attention_ns", "products_ns", "allreduce_ns")) > 0
    assert row["sip_link_bytes"] > 0
    # Keys, values and weights are read once; parts of attention go to HBM and back as often as they are merged.
    kv = 2 * 8 * 128 * 128 * 2
    weights = 2 * (256 * (256 + 2048) + 256 * 256 + 256 * 1024 + 512 * 256)
    assert row["hbm_bytes"] > kv + weights
    # Weights alone: twice as wide a network has as many bytes more as there are more weights.
    wider = llama3_70b_decode(TWO, **{**SIZE, "ffn": 1024})
    assert wider["hbm_bytes"] - row["hbm_bytes"] == pytest.approx(2 * (256 * 1024 + 512 * 256), rel=0.1)


def test_one_sip_reduces_nothing():
    row = llama3_70b_decode(TWO.with_({"system.sips.count": 1}), **SIZE)
    assert row["allreduce_ns"] == row["sip_link_bytes"] == 0


@pytest.mark.parametrize("topology", ["ring_1d", "fully_connected"])
def test_idle_cubes_do_not_change_an_all_reduce(topology):
    times = set()
    for w, h in ((1, 1), (2, 1), (2, 2), (4, 2)):
        machine = TWO.with_({"sip.cube_mesh": {"w": w, "h": h}, "system.sips.topology": topology})
        for name in ("recursive_doubling_allreduce", "ring_allreduce_tcm"):
            ran = design_space._all_reduce_by(machine, hidden=256, algorithm=name, log="off", tie_seed=None)
            times.add((name, design_space._row(machine, *ran)["latency_ns"]))
    assert len(times) == 2


@pytest.mark.slow
def test_an_all_reduce_is_simulated_once_for_all_meshes(cache, monkeypatch):
    ran = []
    run = design_space._all_reduce_by
    monkeypatch.setattr(
        design_space, "_all_reduce_by", lambda machine, **what: ran.append(what) or run(machine, **what)
    )
    for w in (1, 2):
        llama3_70b_decode(TWO.with_({"sip.cube_mesh": {"w": w, "h": 1}}), **SIZE)
    assert sorted(what["algorithm"] for what in ran) == ["recursive_doubling_allreduce", "ring_allreduce_tcm"]
    llama3_70b_decode(TWO.with_({"cube.ucie.bw_gbs": 64}), **SIZE)
    assert len(ran) == 4


def test_of_several_placements_the_fastest_counts():
    each = [gpt2_layers(TWO, layer_list="gpt2 QKTV", placements=[p])["latency_ns"] for p in ("rows", "2-D")]
    assert gpt2_layers(TWO, layer_list="gpt2 QKTV", placements=["rows", "2-D"])["latency_ns"] == min(each)


def test_tables(rows):
    assert list(dict.fromkeys(row["table"] for row in rows)) == [
        f"{workload} {kind}" for workload in ("decode", "gpt2") for kind in ("grid", "factors", "ties")
    ]
    grid = design_space_report.frame(rows, "decode grid")
    assert design_space_report.axes_of(grid) == ["cube mesh", "UCIe [GB/s]", "SIP topology"]
    assert len(grid) == 8
    assert {row["factor"] for row in rows if "factor" in row} == {"base", "UCIe bandwidth", "SIP topology"}
    assert min(grid["energy_uj"].min(), grid["area_mm2"].min()) > 0


def test_reasons_are_of_machines_that_differ_in_their_cubes_alone(rows):
    reasons = [row for row in rows if row.get("why")]
    assert {(row["table"], row["cube mesh"]) for row in reasons} == {
        (f"{workload} grid", mesh) for workload in ("decode", "gpt2") for mesh in ("1x1", "2x1")
    }
    assert {row["cube.ucie.bw_gbs"] for row in reasons} == {TWO.config.cube.ucie.bw_gbs}
    decode = next(row for row in reasons if row["table"] == "decode grid")
    parts = ["attention", "qkv", "o", "gate and up", "down", "all-reduce"]
    assert list(dict.fromkeys(reason["part"] for reason in decode["why"])) == parts
    by_part = design_space_report._why(rows, "decode")
    assert [row["part"] for row in by_part] == parts
    assert set(by_part[0]) == {"part", "1x1", "2x1"}


@pytest.mark.slow
def test_asking_why_changes_no_time(rows):
    assert "why" not in llama3_70b_decode(TWO, **SIZE)
    found = llama3_70b_decode(TWO, **SIZE, why=True)
    assert {k: v for k, v in found.items() if k != "why"} == llama3_70b_decode(TWO, **SIZE)


@pytest.mark.slow
def test_what_is_written_is_read_and_drawn_again(rows, tmp_path):
    study = DesignSpaceStudy()
    written = {path.name for path in Report(study, rows, TWO, study.complete(GIVEN)).write(tmp_path)}
    assert study.read(tmp_path) == rows
    assert {f"{chart.name}.png" for chart in study.charts} <= written
    assert {"design_space.csv", "design_space_why.csv"} <= written
    page = (tmp_path / "README.md").read_text()
    assert "## Decode: why" in page
    assert "chance" not in page


def test_findings_rest_on_points_that_were_run(rows):
    study = DesignSpaceStudy()
    said = study.findings(rows)
    assert len(said) == 7
    assert {finding.chart for finding in said} <= {chart.name for chart in study.charts}
    alone = study.findings([row for row in rows if row["table"].startswith("gpt2")])
    assert all(finding.text.startswith("GPT-2") for finding in alone)
    assert len(alone) == 3


def made(times, workload="gpt2"):
    """Return a grid by hand: of each mesh the area, the time [ns] and the longest resource of its path."""
    return [
        {"table": f"{workload} grid", "cube mesh": mesh, "area_mm2": area, "latency_ns": ns, "pes": 8, "cubes": 8,
         "sips": 1, "why": [
            {"part": "product", "what": "HBM slice", "resource": f"hbm of {mesh}", "kind": "memory", "ns": on_path,
             "share": on_path / ns},
            {"part": "product", "what": "matrix engine", "resource": "gemm", "kind": "matrix", "ns": 9.0, "share": 0.1},
        ]}
        for mesh, area, ns, on_path in times
    ]  # fmt: skip


def test_more_cubes_that_do_not_pay_are_explained_by_the_resource_that_takes_longer():
    rows = made([("2x2", 100.0, 2000.0, 500.0), ("4x2", 200.0, 1000.0, 400.0), ("4x4", 400.0, 1200.0, 900.0)])
    grid = design_space_report.frame(rows, "gpt2 grid")
    [said] = design_space_report._cubes("gpt2", grid, rows)
    assert said.text == "GPT-2: 4x4 cubes take 20.0 % more time than 4x2, for 100 % more silicon."
    assert said.detail == "In product, HBM slice takes 900 ns instead of 400, most at hbm of 4x4."
    assert set(grid["dies"]) == {9}
    assert said.values == {
        "step": "cube mesh from 4x2 to 4x4",
        "gain_pct": pytest.approx(-20),
        "cost_pct": pytest.approx(100),
    }


def test_the_front_skips_machines_that_are_hardly_faster():
    times = [("a", 1.0, 1000.0, 1.0), ("b", 2.0, 990.0, 1.0), ("c", 3.0, 1100.0, 1.0), ("d", 4.0, 900.0, 1.0)]
    grid = design_space_report.frame(made(times), "gpt2 grid")
    assert list(design_space_report.front(grid)["cube mesh"]) == ["a", "d"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"factors": ["luck"]}, "factors: luck is unknown; known: HBM bandwidth"),
        ({"meshes": [[9, 9]]}, "9 x 9 = 81 cubes must be <= 64"),
        ({"context": 100}, "context = 100 tokens over 8 PEs: expected divisors"),
    ],
)
def test_parameters_that_cannot_be_run_are_refused_before_anything_runs(wrong, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        DesignSpaceStudy().run(TWO, folder=tmp_path, **GIVEN | wrong)
    assert not list(tmp_path.iterdir())


def test_heads_have_to_be_divided_evenly():
    with pytest.raises(KernbenchError, match="expected divisors"):
        llama3_70b_decode(TWO.with_({"system.sips.count": 3}), context=128)


def test_a_sweep_takes_the_study_and_its_workloads_by_name(cache):
    axes = {"cube.ucie.bw_gbs": [64, 128]}
    both = kb.sweep(TWO, "design-space", axes, parameters={"workload": "decode", **SIZE}, progress=False)
    one = kb.sweep(TWO, "llama3-70b-decode", axes, parameters=SIZE, progress=False)
    assert list(both.ok["latency_ns"]) == pytest.approx(list(one.ok["latency_ns"]), abs=1e-6)
    assert len(both.ok) == 2


def test_topologies_with_two_sides_get_them():
    axes = design_space.axes([[1, 1]], [64], [1], ["ring_1d", "torus_2d"], 8)
    assert axes["SIP topology"]["torus_2d"] == {
        "system.sips.topology": "torus_2d", "system.sips.w": 4, "system.sips.h": 2,
    }  # fmt: skip
    assert axes["SIP topology"]["ring_1d"] == {"system.sips.topology": "ring_1d"}
