"""The study of PyTorch models: its runs, what is refused, what the rows say; with PyTorch, a row by hand."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

import kernbench as kb
from kernbench.errors import ConfigError
from kernbench.points._keys import machine_of
from kernbench.studies import models_report as report
from kernbench.studies.models import MODELS, ModelsStudy
from kernbench.studies.study import MACHINE, Report, read_results
from tests.repo import ROOT

STUDY = ModelsStudy()
DEFAULT, SMALL = kb.load("preset:default"), kb.load("preset:small")
OUTPUT = ROOT / "milestones" / "output" / "models"
with_torch = pytest.mark.skipif(
    not all(map(find_spec, ("torch", "triton", "transformers"))), reason="PyTorch, Triton or transformers is missing"
)
ONE = {"models": {"vit": [1]}, "presets": [], "changes": 0}


def runs(machine, **given):
    points = STUDY.points(machine, **STUDY.complete(given))
    return {(x["labels"]["on"], x["model"], x["tp"]): machine_of(machine.spec, x[MACHINE]) for x in points}


def test_the_machine_of_the_report_is_enlarged_and_presets_are_as_they_are():
    found = runs(DEFAULT)
    assert {tp for on, model, tp in found if (on, model) == ("default", "llama3-70b-decode")} == {1, 2, 4, 8}
    assert found["default", "llama3-70b-decode", 2].hash == DEFAULT.hash
    enlarged = {"system.sips": {"count": 8, "topology": "ring_1d"}}
    assert found["default", "llama3-70b-prefill", 8].hash == DEFAULT.with_(enlarged).hash
    assert {x for x in found if x[0] == "six_sip_torus"} == {("six_sip_torus", "llama3-70b-decode", 4)}
    for (on, _, _), machine in found.items():
        assert on == "default" or machine.hash == kb.load(f"preset:{on}").hash


def test_what_does_not_fit_is_refused_by_name():
    refused = STUDY.refused(DEFAULT, **STUDY.complete({}))
    assert refused["llama3-70b-decode over 2, 4, 8 SIPs on small"] == "it has 1"
    assert refused["gpt2 on large"] == "its SIP is that of default"
    assert not [name for name in refused if name.endswith("on default")]
    assert "vit on small" not in refused


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"hidden": 1000}, "hidden = 1000 must be a multiple of 1024"),
        ({"hidden": 2048, "models": {"llama3-70b-decode": [4]}}, r"over 4 SIPs: the SIPs must divide its 2 kv heads"),
        ({"models": {"vit": [2]}}, "vit over 2 SIPs must be over 1"),
        ({"models": {"vitt": [1]}}, "'vitt' is unknown; did you mean vit?"),
        ({"presets": ["tiny"]}, "'tiny' is unknown"),
    ],
)
def test_wrong_parameters_are_refused_before_anything_runs(given, message):
    with pytest.raises(ConfigError, match=message):
        STUDY.run(SMALL, **given)


def test_the_committed_report_is_what_its_rows_give(tmp_path):
    """Without PyTorch: the rows are read, and page and tables written again."""
    rows, parameters = STUDY.read(OUTPUT), read_results(OUTPUT / "models.json")["parameters"]
    Report(STUDY, rows, DEFAULT, parameters).write(tmp_path)
    for name in ("models.json", "models.csv", "models_modules.csv", "models_reasons.csv", "models_changes.csv"):
        assert (tmp_path / name).read_text() == (OUTPUT / name).read_text(), name
    page, committed = ((folder / "README.md").read_text().splitlines() for folder in (tmp_path, OUTPUT))
    assert page[:-1] == committed[:-1]  # the last line names the file of the machine


def test_the_committed_rows_add_up():
    for row in STUDY.read(OUTPUT):
        parts = sum(row.get(kind, 0.0) for kind in (*report.TIME_COLUMNS, "exchange_ns", "wait_ns", "between_ns"))
        assert parts == pytest.approx(row["latency_ns"], abs=0.01)
        assert sum(x["ns"] for x in row["modules"]) == pytest.approx(row["latency_ns"])
        assert row["bound_ns"] < row["latency_ns"]
        has_experts = row["model"].startswith("mixtral")  # the host reads their assignment
        assert row["on_host"] == has_experts
        assert (row["all_reduce_ns"] > 0) == (row["tp"] > 1 and not has_experts)
        assert all(0 < x["share"] <= 1 for x in row.get("changes", ()))


def row(title="Llama-3 70B layer, decode", tp=1, latency=100.0, spread=True, own=True, on="default", **more):
    parts = {"products_ns": latency, "attention_ns": 0.0, "all_reduce_ns": 0.0, "other_ns": 0.0, "between_ns": 0.0}
    module = {"module": "layer.down", "launches": 1, "ns": latency, "share": 1.0, "limit": "dma in", "bytes": 10,
              "flops": 20, "intensity": 2.0, "of_roofline": 0.25, "wait_ns": 0.0}  # fmt: skip
    return {
        "title": title, "spread": spread, "own": own, "on": on, "tp": tp, "latency_ns": latency, **parts,
        "bound_ns": 50.0 / tp, "bound_by": "memory", "launches": 1, "limit": "HBM slice", "modules": [module],
        "reasons": [], "changes": [], **more,
    }  # fmt: skip


def texts(*rows):
    return [finding.text for finding in STUDY.findings(list(rows))]


def change(what, share, saved, fields="f"):
    return [{"change": what, "share": share, "saved": saved, "fields": fields, "ns": 1.0}]


def test_findings_say_how_a_layer_scales():
    last = row(tp=4, latency=40.0, products_ns=30.0, all_reduce_ns=10.0)
    [said] = [found for found in STUDY.findings([row(), last]) if found.chart == "models_scaling"]
    assert said.text == "Llama-3 70B layer, decode: 4x the SIPs make it 2.5x as fast."
    assert said.detail == (
        "4 SIPs take 0.0 us, against 0.1 us on 1. All-reduces take 25%, and products 2.4x the bound (2.0x before)."
    )
    assert not [text for text in texts(row()) if "SIPs make" in text]  # one run says nothing of several


def test_a_finding_for_each_model_says_why_it_takes_longer_than_its_bound():
    reasons = [{"part": part, "ns": 1.0, "share": share, "advice": ""} for part, share in (("a", 0.5), ("b", 0.2))]
    far = row(tp=4, latency=50.0, products_ns=25.0, other_ns=20.0, all_reduce_ns=5.0, reasons=reasons)
    found = STUDY.findings([row(), far, row(title="GPT-2 block", spread=False, latency=200.0)])
    said = {finding.text: finding.detail for finding in found if finding.chart == "models_parts"}
    assert list(said) == [
        "Llama-3 70B layer, decode, tp 4 takes 4.0x its bound: products 2.0x, other kernels 1.6x, all-reduce 0.4x.",
        "GPT-2 block takes 4.0x its bound: products 4.0x.",
    ]
    why = said[next(iter(said))]
    assert "Critical path: a 50%, b 20%. Longest modules: down 100 % at 25 % of its roofline (dma in)." in why


def test_findings_tell_waiting_for_the_busiest_experts_from_the_exchange():
    rows = [row(title=f"experts {i}", tp=4, latency=ns, exchange_ns=10.0, wait_ns=wait)
            for i, (ns, wait) in enumerate([(100.0, 0.0), (150.0, 30.0)])]  # fmt: skip
    [said] = [found for found in STUDY.findings(rows) if found.chart == "models_experts"]
    assert said.text == ("experts 1, tp 4: 1.50x the time of balanced experts, 20% of it waiting for the busiest ones.")
    assert not [text for text in texts(*rows) if "its bound" in text]


def test_findings_name_the_change_that_saves_most_and_the_one_that_saves_less_than_its_share():
    both = [*change("HBM slice", 0.5, 0.24), *change("matrix engine", 0.4, 0.02)]
    found = texts(row(changes=both))
    assert "Change first for Llama-3 70B layer, decode, tp 1: HBM slice twice as fast, 24 % less time." in found
    assert "Llama-3 70B layer, decode, tp 1: matrix engine twice as fast saves 2 %, not 20 %." in found
    assert not [text for text in texts(row(changes=both[:1])) if "twice as fast saves" in text]
    graph = change(report.GRAPH, 0.6, 0.5, fields="")
    assert (
        "Change first for Llama-3 70B layer, decode, tp 1: launches of a call, sent as one graph, 50 % less time."
    ) in texts(row(changes=graph))


def test_findings_compare_machines_over_the_same_number_of_sips():
    slow = row(on="gpu_launch", own=False, tp=2, latency=240.0)
    assert "Llama-3 70B layer, decode, tp 2 takes 3.0x the time on gpu_launch." in texts(
        row(), row(tp=2, latency=80.0), slow
    )
    fast = row(on="small", own=False, latency=50.0)
    own = row(limit="UCIe ports", reasons=[{"part": "UCIe ports", "ns": 30.0, "share": 0.3, "advice": ""}])
    [said] = [found for found in STUDY.findings([own, fast]) if "takes 0.50x the time on small" in found.text]
    assert said.detail == "On default, the largest part of its critical path is UCIe ports (30%)."
    assert not [text for text in texts(own, row(on="small", own=False, latency=99.0)) if "0.99x the time" in text]


def test_every_model_has_its_sizes_among_the_parameters():
    assert {size for model in MODELS.values() for size in model.sizes} <= STUDY.parameters.keys()


@with_torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_a_row_has_the_weights_and_the_times_of_its_model():
    (found,) = STUDY.run(SMALL, **ONE)
    block, patches, head = 12 * 768**2 + 13 * 768, 768 * (3 * 16 * 16 + 1) + 198 * 768, 1536 + 768 * 2 + 2
    assert found["weight_bytes"] == pytest.approx(2 * (block + patches + head), rel=1e-3)
    assert found["bound_by"] == "matrix"  # 197 tokens for each weight
    assert [x["module"] for x in found["modules"]][-1] == "classifier"
    assert found["products_ns"] > 0.5 * found["latency_ns"]


@with_torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_a_layer_over_two_sips_halves_its_weights_and_a_change_is_simulated():
    given = {"models": {"llama3-70b-decode": [1, 2]}, "presets": [], "hidden": 2048, "context": 64, "changes": 1}
    alone, both = STUDY.run(SMALL, **given)
    assert both["weight_bytes"] == pytest.approx(alone["weight_bytes"] / 2, rel=1e-3)
    assert both["all_reduce_ns"] > alone["all_reduce_ns"] == 0
    for found in (alone, both):
        (changed,) = found["changes"]
        assert changed["ns"] < found["latency_ns"]
        assert changed["saved"] == pytest.approx(1 - changed["ns"] / found["latency_ns"])
        assert changed["change"].startswith(found["reasons"][0]["part"])  # and what limits with it
