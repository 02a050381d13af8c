"""What leaves the explorer is the run."""

from __future__ import annotations

import json

import numpy as np
import pytest

import kernbench as kb
from kernbench.analysis._roofline import placed
from kernbench.errors import KernbenchError
from kernbench.notebook._export import EXPORTS, code, export
from kernbench.notebook._model import Explorer
from kernbench.notebook._panels import sentence, utilization_line
from tests.notebook import programs

LONG_S = 60


def finished(explorer):
    assert explorer.run()
    assert explorer.wait(LONG_S)
    assert explorer.state.status == "done", explorer.state.message
    return explorer.history[-1], explorer.result


@pytest.fixture(scope="module")
def explorer():
    explorer = Explorer("preset:small")
    explorer.choose("study gemm")
    for name in "mkn":
        explorer.set(name, 64)
    explorer.form.set("cube.hbm.channel_bw_gbs", "16")
    return explorer


@pytest.fixture(scope="module")
def run(explorer):
    return finished(explorer)


def execute(text):
    *lines, last = text.splitlines()
    names = {}
    exec("\n".join(lines), names)
    return eval(last, names)


@pytest.mark.parametrize("work", ["study gemm", "study probe", "bench gemm-single-pe", "copies"])
def test_the_code_cell_reproduces_the_run(work):
    explorer = Explorer("preset:small", [programs.copies])
    explorer.choose(work)
    explorer.form.set("cube.ucie.port_ns", "4")
    explorer.set_option("log", "operation")
    if work == "study gemm":
        for name in "mkn":
            explorer.set(name, 32)
    entry, result = finished(explorer)
    again = execute(code(entry))
    assert again.result.records.digest() == result.records.digest()
    assert again.result.records.machine == result.records.machine


def test_the_code_cell_names_the_users_own_file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("base: small\ncube:\n  ucie: {port_ns: 4}\n")
    entry, result = finished(Explorer(path, [programs.copies]))
    assert execute(code(entry)).result.records.machine == result.records.machine


def test_json_has_the_result_and_its_reasons(run):
    content = json.loads(export("result and why (JSON)", *run).content)
    assert content["latency_ns"] == run[1].latency_ns
    assert content["why"]["reasons"][0]["ns"] == run[1].why()[0].ns


def test_the_log_can_be_read_again(run, tmp_path):
    made = export("result (one file)", *run)
    path = tmp_path / made.name
    path.write_bytes(made.content)
    found = kb.read(path)
    assert found.records.digest() == run[1].records.digest()
    assert found.manifest.title == run[0].title
    assert found.manifest.overrides == ("cube.hbm.channel_bw_gbs=16",)


def test_the_picture_is_a_page_that_says_what_ran(run):
    made = export("picture (HTML)", *run)
    assert made.name == "run1.html"
    assert made.content.startswith(b"<!doctype html>")
    assert f"<title>#1 {run[0].title}: {run[1].latency_ns:,.1f} ns on preset:small</title>" in made.content.decode()
    assert "cube.hbm.channel_bw_gbs=16; data=True, log=tile; kernbench" in made.content.decode()


def test_the_machine_file_is_the_machine(run, tmp_path):
    made = export("machine file", *run)
    path = tmp_path / made.name
    path.write_bytes(made.content)
    assert kb.load(path).hash == run[0].machine.hash


def test_the_trace_has_events(run):
    assert json.loads(export("trace for ui.perfetto.dev", *run).content)["traceEvents"]


@pytest.mark.parametrize("what", [what for what in EXPORTS if what.startswith("figure")])
def test_figures_are_pictures(run, what):
    assert export(what, *run).content.startswith(b"\x89PNG")


def test_a_figure_without_rows_is_refused_in_words():
    explorer = Explorer("preset:small")
    explorer.choose("study probe")
    entry, result = finished(explorer)
    with pytest.raises(KernbenchError, match=r"figure of the timeline: no rows to draw"):
        export("figure of the timeline", entry, result)


def test_roofs_are_those_of_the_machine_file(run):
    pes = len(run[1].records.pes())
    _, roofs = placed(run[1].records, "a run")
    assert roofs.peak_gflops == pes * 2 * 4096
    assert roofs.levels_gbs["HBM"] == pes * 8 * 16
    assert "useful work" in utilization_line(*run)


def test_reasons_are_sentences_with_numbers_and_advice(run):
    first = run[1].why()[0]
    said = sentence(first)
    assert f"{first.ns:,.1f} ns" in said
    assert first.resource in said
    assert first.fields[0] in said
    assert np.isclose(sum(reason.ns for reason in run[1].why()), run[1].latency_ns)
