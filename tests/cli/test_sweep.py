"""`kernbench sweep` and `kernbench cache`: from a plan file to a table, and what is kept."""

from __future__ import annotations

import json
import sys

import pytest

from kernbench.cli.main import main

PLAN = """
machine: preset:small
study: tests.sweeps.studies:square
axes:
  x: [1, 2]
  sip.cube_mesh.w: [2, 99]
parameters: {y: 3}
"""


@pytest.fixture
def plan(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "squares.yaml"
    path.write_text(PLAN)
    return path


def test_a_plan_becomes_a_table(plan, capsys, tmp_path):
    assert main(["sweep", str(plan), "--workers", "1"]) == 0
    out = capsys.readouterr().out
    assert "2 more cannot be:" in out
    assert "sip.cube_mesh = 99 x 2 = 198 cubes must be <= 64" in out
    assert "2 points of tests.sweeps.studies:square over x, sip.cube_mesh.w: 2 ok, 2 that cannot be" in out
    assert (tmp_path / "squares" / "table.csv").read_text().count("\n") == 3


def test_a_study_beside_its_plan_is_found(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "beside_its_plan.py").write_text("def twice(machine, *, x: int):\n    return {'y': 2 * x}\n")
    plan = tmp_path / "own.yaml"
    plan.write_text("machine: preset:small\nstudy: beside_its_plan:twice\naxes: {x: [1, 2]}\n")
    for workers in ("1", "2"):
        out = tmp_path / workers
        assert main(["sweep", str(plan), "--workers", workers, "--out", str(out)]) == 0, capsys.readouterr().err
        assert (out / "table.csv").read_text().splitlines()[1].endswith(",2,ok,")


def test_a_dry_run_runs_nothing(plan, capsys, tmp_path):
    assert main(["sweep", str(plan), "--dry-run"]) == 0
    assert "2 points of" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == [plan]


def test_a_failed_point_is_the_commands_failure_too(plan, capsys):
    plan.write_text("machine: preset:small\nstudy: tests.sweeps.studies:hurts\naxes: {x: [1, 2]}\n")
    assert main(["sweep", str(plan), "--workers", "1"]) == 1
    assert "1 error" in capsys.readouterr().out


@pytest.mark.parametrize("options", [[], ["--dry-run"]])
def test_a_plan_without_a_valid_point_is_bad_input_with_the_reasons(plan, capsys, tmp_path, options):
    plan.write_text(PLAN.replace("[2, 99]", "[99]") + "where: x < 2\n")
    assert main(["sweep", str(plan), *options]) == 2
    out, err = capsys.readouterr()
    assert "none of its 2 points can be" in err
    for x in (1, 2):
        assert f"x = {x}, sip.cube_mesh.w = 99: sip.cube_mesh = 99 x 2 = 198 cubes must be <= 64" in err
    assert out == ""
    assert list(tmp_path.iterdir()) == [plan]


def test_a_plan_that_is_wrong_is_bad_input(plan, capsys):
    plan.write_text("study: gem\naxes: {k: [1]}\n")
    assert main(["sweep", str(plan)]) == 2
    assert "did you mean gemm?" in capsys.readouterr().err


def test_the_cache_is_shown_and_pruned(plan, capsys, tmp_path, monkeypatch):
    assert main(["cache"]) == 0
    assert "the cache is off" in capsys.readouterr().out
    monkeypatch.setenv("KERNBENCH_CACHE", str(tmp_path / "cache"))
    assert main(["sweep", str(plan), "--workers", "1"]) == 0
    assert main(["sweep", str(plan), "--dry-run"]) == 0
    assert "2 of them are in the cache" in capsys.readouterr().out
    assert main(["cache", "--json"]) == 0
    (group,) = json.loads(capsys.readouterr().out)
    assert (group["study"], group["points"]) == ("tests.sweeps.studies:square", 2)
    assert main(["cache", "--all"]) == 2
    assert main(["cache", "--prune"]) == 0, "what this code has made stays"
    assert "took 0 points away" in capsys.readouterr().out
    assert main(["cache", "--prune", "--all"]) == 0
    assert "took 2 points away" in capsys.readouterr().out
