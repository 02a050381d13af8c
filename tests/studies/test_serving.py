"""The study of serving: its machines and points, what is refused, and what rows made by hand say."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

import kernbench as kb
from kernbench.errors import ConfigError
from kernbench.points._keys import machine_of
from kernbench.serving._parts import points_of
from kernbench.studies import serving_report as report
from kernbench.studies.serving import CHANGES, ServingStudy
from kernbench.studies.study import MACHINE, Report, read_results
from tests.repo import ROOT

STUDY = ServingStudy()
DEFAULT = kb.load("preset:default")
OUTPUT = ROOT / "milestones" / "output" / "serving"
SMALL = {
    "models": {"llama3-8b": 8}, "presets": [], "sizes": [8], "contexts": [64, 256], "changes": ["memory twice as fast"],
    "served": 40, "input_len": 100, "output_len": 20,
}  # fmt: skip


def points(machine=DEFAULT, **given):
    return STUDY.points(machine, **STUDY.complete(given))


def test_models_run_on_the_machine_and_presets_and_changes_at_the_largest_size():
    found = {}
    for x in points():
        key = x["labels"]["on"], x["labels"]["change"], x["model"], x["tp"]
        found.setdefault(key, []).append(x)
    base = [
        (on, "", model, tp)
        for model, tp in (("llama3-8b", 1), ("llama3-70b", 4), ("mixtral-8x7b", 4))
        for on in ("default", "a100_sxm_calibrated")
    ]
    assert set(found) == {*base, *(("default", name, "llama3-8b", 1) for name in list(CHANGES)[:3])}
    sizes = {key: {x["requests"] for x in own if x["part"] == "layer"} for key, own in found.items()}
    assert all(own == ({128} if change else {16, 128}) for (_, change, _, _), own in sizes.items())
    machines = {key: machine_of(DEFAULT.spec, own[0][MACHINE]) for key, own in found.items()}
    ring = DEFAULT.with_({"system.sips": {"count": 4, "topology": "ring_1d"}})
    assert machines["default", "", "llama3-8b", 1].hash == DEFAULT.hash
    assert machines["default", "", "llama3-70b", 4].hash == ring.hash
    assert machines["a100_sxm_calibrated", "", "llama3-70b", 4].hash == kb.load("preset:a100_sxm_calibrated").hash
    faster = machines["default", "links between cubes twice as fast", "llama3-8b", 1].config.cube.ucie
    now = DEFAULT.config.cube.ucie
    assert (faster.bw_gbs, faster.port_ns) == (2 * now.bw_gbs, now.port_ns / 2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"input_len": 1000}, r"input_len \+ output_len = 1128 must be at most the largest of contexts = 1024"),
        ({"models": {"llama3-70b": 1}}, r"llama3-70b on a100_sxm_calibrated: .* leave no room .* use a larger tp"),
        ({"models": {"llama3-8b": 3}}, r"models: llama3-8b on default: tp = 3 must divide num_key_value_heads = 8"),
        ({"models": {"llama3-8c": 1}}, "'llama3-8c' is unknown; did you mean llama3-8b"),
        ({"changes": ["half the cube"]}, "'half the cube' is unknown; did you mean half the cubes"),
    ],
)
def test_wrong_parameters_are_refused_before_anything_runs(given, message):
    with pytest.raises(ConfigError, match=message):
        STUDY.plan(DEFAULT, **given)


def made(on, change="", layer=2e6, own=True, area=100.0):
    """Rows of a machine: a step takes 32 layers of `layer` ns, three quarters of them for memory."""
    same = {
        "on": on, "own": own, "change": change, "fields": ", ".join(CHANGES.get(change, ())), "changed": True,
        "num_blocks": 10_000, "served": 12, "input_len": 100, "output_len": 20, "tpot_ms": 1000, "ttft_ms": 1e6,
        "model": "llama3-8b", "tp": 1, "host_ns": 0.0, "nbytes": 1, "energy_uj": 1.0, "limit": "HBM slice",
        "path": {"HBM slice": 3.0, "matrix engine": 1.0}, "hbm_gbs": 100.0, "tflops": 10.0, "area_mm2": area,
        "machine": "0", "code_version": "0",
    }  # fmt: skip
    ns = {"layer": layer, "head": 1e3, "attention": 1e3}
    return [same | part | {"ns": ns[part["part"]]} for part in points_of([8], [64, 256])]


ROWS = [
    *made("ours"), *made("theirs", layer=4e6, own=False), *made("ours", "half the cubes", layer=4e6, area=50.0),
    *made("ours", "memory twice as fast", layer=1.5e6, area=120.0),
]  # fmt: skip


def test_findings_name_the_machine_with_more_users_and_the_change_with_its_prediction():
    texts = {x.chart: x for x in STUDY.findings(ROWS)}
    best = {x["on"]: x for x in report._best(ROWS)}
    assert best["ours"]["users"] / best["theirs"]["users"] == pytest.approx(2, rel=0.03)
    users = [f"{best[on]['users']:,.0f}" for on in ("ours", "theirs")]
    assert texts["serving_goodput"].text == (
        f"ours serves {users[0]} users of llama3-8b per SIP within 1000 ms per token, theirs {users[1]}."
    )
    # Memory has three quarters of the path, so that twice the speed leaves 5/8 of the time: 60 % more; simulated 33 %.
    said = texts["serving_changes"]
    assert said.text == "Change first on ours for llama3-8b: memory twice as fast, +33 % good requests."
    assert said.values["predicted_pct"] == pytest.approx(60, abs=1.5)
    assert said.values["silicon_pct"] == pytest.approx(20)
    assert report._best_silicon(ROWS) == "Memory twice as fast: +11 % good requests for the same silicon"  # 4/3 / 1.2
    assert "Half the cubes: -50 %, silicon -50 %." in said.detail  # the number of cubes is no rate: no prediction
    assert texts["serving_causes"].text.endswith("HBM slice takes 75% of it.")
    assert texts["serving_pareto"].text == "With few users, llama3-8b answers 2.0x as fast on ours as on theirs."


def test_goodput_beyond_the_largest_rate_does_not_count():
    assert report._most([{"load": 1.0, "goodput": 1.0}, {"load": 1.2, "goodput": 2.0}])["goodput"] == 1.0


def test_users_read_at_the_slowest_allowed_pace():
    [row] = [x for x in report._best(ROWS) if x["on"] == "ours"]
    assert row["users"] == pytest.approx(row["goodput"] * 20 * 1.0)
    assert row["users"] <= row["sip"] * 1.0


@pytest.mark.slow
def test_a_report_without_changes_or_other_machines_is_drawn(tmp_path):
    alone = [row | {"changed": False} for row in made("ours")]
    written = {x.name for x in Report(STUDY, alone, DEFAULT, STUDY.complete(SMALL)).write(tmp_path)}
    assert {"serving_causes.svg", "serving_path.csv", "README.md"} <= written
    assert "serving_changes.svg" not in written


@pytest.mark.slow
def test_the_committed_report_is_what_its_rows_give(tmp_path):
    rows, parameters = STUDY.read(OUTPUT), read_results(OUTPUT / "serving.json")["parameters"]
    Report(STUDY, rows, DEFAULT, parameters).write(tmp_path)
    for name in ("serving.json", "serving.csv", "serving_path.csv", "serving_findings.json"):
        assert (tmp_path / name).read_text() == (OUTPUT / name).read_text(), name
    page, committed = ((folder / "README.md").read_text().splitlines() for folder in (tmp_path, OUTPUT))
    assert page[:-1] == committed[:-1]  # the last line names the file of the machine


@pytest.mark.slow
@pytest.mark.skipif(not all(map(find_spec, ("torch", "triton", "transformers"))), reason="PyTorch is missing")
def test_a_small_run_has_the_rows_of_its_steps():
    rows = STUDY.run("preset:small", **SMALL)
    base = report._steps([row for row in rows if not row["change"]])
    steps = kb.serving.steps(
        "llama3-8b", kb.load("preset:small", {"system.sips": {"count": 8, "topology": "ring_1d"}}), tp=8, sizes=[8],
        contexts=[64, 256], workers=1, progress=False,
    )  # fmt: skip
    step = {"prefill": [(4, 60)], "contexts": [100] * 4}
    assert base(**step) == steps(**step)
    assert base.energy_uj(**step) == pytest.approx(steps.energy_uj(**step))
