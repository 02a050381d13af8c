"""Milestones as benches: the report is made for the machine that the bench is given."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

import kernbench as kb
from kernbench.benches import milestone_1h_gemm
from kernbench.benches.registry import resolve
from kernbench.runtime_api.bench_runner import run_bench
from kernbench.studies import milestone
from kernbench.studies.milestone import as_parameters
from tests.repo import ROOT

CHANGES = {
    "sip.cube_mesh.w": 2,
    "cube.hbm.gather": "strided",
    "cube.noc.removed": [[2, 2]],
    "cube.hbm.channel_bw_gbs": 8,
}


@pytest.mark.parametrize(
    "machine",
    [
        kb.load("preset:small"),
        kb.load("preset:default", CHANGES),
        kb.load(kb.load("preset:default", CHANGES).config.to_spec()),
    ],
    ids=["preset", "changed", "mapping"],
)
def test_parameters_mean_the_same_machine(machine):
    assert kb.load(*as_parameters(machine)).hash == machine.hash


@pytest.mark.parametrize(
    ("module", "name"), [("milestone_1h_gemm", "gemm"), ("milestone_1h_ccl", "ccl"), ("milestone_gqa_llama70b", "gqa")]
)
def test_runs_the_milestone_for_the_machine(monkeypatch, tmp_path, module, name):
    asked = []

    def note(name, **parameters):
        asked.append((name, parameters))
        return milestone.MilestoneReport(parameters["output"], found=False)

    bench = importlib.import_module(f"kernbench.benches.{module}")
    assert ROOT / "milestones" / "output" / name == bench._OUTPUT_DIR
    monkeypatch.setattr(milestone, "run", note)
    monkeypatch.delenv("GQA_VALIDATION", raising=False)
    assert resolve(module).is_milestone
    machine = kb.load("preset:small")
    assert kb.run(module, machine).ok
    monkeypatch.setattr(bench, "_OUTPUT_DIR", tmp_path)
    assert run_bench(topology=machine, bench_fn=resolve(module)).completion.ok
    assert asked == [
        (name, {"topology": machine, "output": out}) for out in (ROOT / "milestones/output" / name, tmp_path)
    ]


def test_the_environment_asks_to_draw_again_from_stored_rows(monkeypatch, tmp_path):
    asked = []

    def execute(notebook, work, values):
        asked.append((notebook.stem, values["rerender"], Path(values["output"])))
        work.mkdir(exist_ok=True)

    monkeypatch.setattr(milestone, "_execute", execute)
    monkeypatch.setattr(milestone_1h_gemm, "_OUTPUT_DIR", tmp_path / "gemm")
    monkeypatch.setenv("MILESTONE_FAST", "1")
    assert kb.run("milestone-1h-gemm", "preset:small").ok
    assert asked == [("gemm", True, tmp_path / ".gemm.unfinished")]
