from __future__ import annotations

import json

import jupytext
import nbformat
import pytest

from kernbench.cli.main import main
from kernbench.topology.builder import resolve_topology

FILES = {"topology.yaml", "ccl.yaml", "jupytext.toml", "first_steps.py", "first_steps.ipynb"}


@pytest.fixture
def lab(tmp_path, capsys):
    assert main(["new", str(tmp_path / "deep" / "lab")]) == 0
    capsys.readouterr()
    return tmp_path / "deep" / "lab"


def test_the_folder_holds_what_one_needs(lab):
    assert {path.name for path in lab.iterdir()} == FILES


def test_its_machine_is_the_default_one(lab):
    assert resolve_topology(lab / "topology.yaml").hash == resolve_topology("preset:default").hash


def test_its_files_are_valid(lab, capsys):
    assert main(["validate", str(lab / "topology.yaml"), str(lab / "ccl.yaml")]) == 0
    assert capsys.readouterr().err == ""


def test_both_halves_of_the_notebook_are_one(lab):
    def cells(path):
        return [(cell.cell_type, cell.source) for cell in jupytext.read(path).cells]

    assert cells(lab / "first_steps.py") == cells(lab / "first_steps.ipynb")
    notebook = nbformat.read(lab / "first_steps.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"


def test_two_folders_are_equal(lab, tmp_path):
    assert main(["new", str(tmp_path / "other")]) == 0
    for name in FILES:
        assert (lab / name).read_bytes() == (tmp_path / "other" / name).read_bytes()


def test_the_notebook_runs(lab, monkeypatch):
    monkeypatch.chdir(lab)
    script = (lab / "first_steps.py").read_text(encoding="utf-8")
    space = {}
    exec(compile(script, "first_steps.py", "exec"), space)
    assert space["torch"].result.latency_ns > 0
    assert json.loads(space["torch"].result.to_json())["complete"] is True


def test_nothing_is_overwritten(lab, capsys):
    (lab / "topology.yaml").write_text("mine", encoding="utf-8")
    (lab / "ccl.yaml").unlink()
    assert main(["new", str(lab)]) == 2
    assert "topology.yaml" in capsys.readouterr().err
    assert (lab / "topology.yaml").read_text(encoding="utf-8") == "mine"
    assert not (lab / "ccl.yaml").exists()
