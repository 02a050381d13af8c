"""Milestones as benches: the report is made for the machine that the bench is given."""

from __future__ import annotations

from pathlib import Path

import pytest

import kernbench as kb
from kernbench.benches.registry import resolve
from kernbench.studies import milestone
from kernbench.studies.milestone import as_parameters

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


def test_runs_the_milestone_for_the_machine(monkeypatch):
    asked = []

    def note(name, **parameters):
        asked.append((name, parameters))
        return milestone.MilestoneReport(Path("somewhere"), found=False)

    monkeypatch.setattr(milestone, "run", note)
    assert resolve("milestone_1h_gemm").is_milestone
    machine = kb.load("preset:small")
    assert kb.run("milestone-1h-gemm", machine).ok
    assert asked == [("gemm", {"topology": machine, "output": None})]
