"""Every milestone, run as its users run it, with the small parameters that it is committed with."""

from __future__ import annotations

import ast
import re

import nbformat
import papermill
import pytest

from kernbench.cli.main import main
from kernbench.studies import milestone
from tests.repo import ROOT, files, notebooks, relative
from tests.slow import slow_after

every_milestone = pytest.mark.parametrize("path", notebooks("milestones"), ids=relative)
probe_first = slow_after(1, sorted(notebooks("milestones"), key=lambda path: path.stem != "probe"))


def small_parameters(path) -> list[str]:
    """The notebook's own values, as options of the command line; the runner sets the others."""
    known = papermill.inspect_notebook(str(path))
    values = {name: ast.literal_eval(p["default"]) for name, p in known.items()}
    options = ["--topology", values["topology"], "--workers", "1"]
    for name in sorted(values.keys() - {"topology", "overrides", "output", "workers", "rerender"}):
        options += ["--param", f"{name}={values[name]!r}"]
    return options


def committed(path) -> set[str]:
    return {p.name for p in files() if p.parent == ROOT / "milestones" / "output" / path.stem}


def kinds(names: set[str]) -> set[str]:
    """The names, with one for all figures by traffic pattern or network: the full report has more of them."""
    by_case = r"^(probe_links|ccl(?=_ring_1d|_torus_2d|_mesh_2d_no_wrap|_fully_connected))_\w+\."
    return {re.sub(by_case, r"\1_*.", name) for name in names}


def name_of(path) -> str:
    return path.stem.replace("_", "-")


@pytest.mark.parametrize("path", probe_first, ids=relative)
def test_writes_what_is_committed_and_draws_it_again(path, tmp_path, capsys):
    if needed := milestone.lacking(name_of(path)):
        pytest.skip(f"{name_of(path)} {needed}")
    command = ["milestone", path.stem, "--out", str(tmp_path), *small_parameters(path)]
    assert main(command) == 0, capsys.readouterr().err
    report = nbformat.read(tmp_path / "report.ipynb", as_version=4)
    assert not [o for c in report.cells for o in c.get("outputs", []) if o.output_type == "error"]
    assert kinds(committed(path)) <= kinds({p.name for p in tmp_path.iterdir()})

    assert main(command) == 0
    assert "there already, made of the same" in capsys.readouterr().out
    tables = {p.name: p.read_bytes() for p in tmp_path.glob("*.json")}
    pictures = {p for p in tmp_path.glob("*.png") if "timeline" not in p.name}
    for picture in pictures:
        picture.unlink()
    assert main([*command, "--rerender"]) == 0, capsys.readouterr().err
    assert {p.name: p.read_bytes() for p in tmp_path.glob("*.json")} == tables
    assert all(p.is_file() for p in pictures)


@every_milestone
def test_refuses_a_parameter_that_it_does_not_have(path, tmp_path, capsys):
    folder = tmp_path / "report"
    assert main(["milestone", path.stem, "--out", str(folder), "--param", "no_such=1"]) == 2
    assert "no_such is unknown; known:" in capsys.readouterr().err
    assert not folder.exists()
