"""Every milestone, run as its users run it, with the small parameters that it is committed with."""

from __future__ import annotations

import ast
import json
import os
import re

import nbformat
import papermill
import pytest

from kernbench.cli.main import main
from kernbench.studies import milestone
from tests.repo import ROOT, files, notebooks, relative

every_milestone = pytest.mark.parametrize("path", notebooks("milestones"), ids=relative)


def small_parameters(path) -> list[str]:
    """The notebook's own values, as options of the command line; the runner sets the others."""
    known = papermill.inspect_notebook(str(path))
    values = {name: ast.literal_eval(p["default"]) for name, p in known.items()}
    options = ["--topology", values["topology"], "--workers", "1"]
    for name in sorted(values.keys() - {"topology", "overrides", "output", "workers", "rerender"}):
        options += ["--param", f"{name}={values[name]!r}"]
    return options


# Made of points that the small parameters leave out: changes to the published run, a long list of references, a device.
ONLY_IN_FULL = {"published_gap", "references", "fidelity_device"}


def committed(path) -> set[str]:
    folder = ROOT / "milestones" / "output" / path.stem
    return {p.name for p in files() if p.parent == folder and p.name.partition(".")[0] not in ONLY_IN_FULL}


def kinds(names: set[str]) -> set[str]:
    """The names, with one for all figures by traffic pattern or network: the full report has more of them."""
    by_case = r"^(probe_links|ccl(?=_ring_1d|_torus_2d|_mesh_2d_no_wrap|_fully_connected))_\w+\."
    return {re.sub(by_case, r"\1_*.", name) for name in names}


def name_of(path) -> str:
    return path.stem.replace("_", "-")


@pytest.mark.slow
@every_milestone
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
    assert main([*command, "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert (record["name"], record["folder"], record["made"]) == (name_of(path), str(tmp_path), False)
    page = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert all(finding["text"] in page for finding in record["findings"][path.stem])
    assert all(finding["values"] for found in record["findings"].values() for finding in found)
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


# Reports that only end together: each waits for a file of the other.
PARTS = """\
topology = ""
overrides = []
workers = 1
rerender = False
output = ""
"""
MEETING = """\
import time
from pathlib import Path
folder = Path(output)
folder.mkdir(parents=True)
(folder.parent / "{own}.here").touch()
while not (folder.parent / "{other}.here").is_file():
    time.sleep(0.05)
(folder / "README.md").write_text({result})
"""


SPEC = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}


def write_report(folder, own, other, result='"made"'):
    """Write the notebook of a report that waits for another one."""
    code = MEETING.format(own=own, other=other, result=result)
    cells = [
        nbformat.v4.new_markdown_cell(f"# {own}"),
        nbformat.v4.new_code_cell(PARTS, metadata={"tags": ["parameters"]}),
        nbformat.v4.new_code_cell(code),
    ]
    (folder / "milestones").mkdir(exist_ok=True)
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=SPEC), folder / "milestones" / f"{own}.ipynb")


@pytest.fixture
def two_cores(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    return tmp_path


@pytest.mark.slow
def test_the_last_of_several_reports_is_made_beside_the_others(two_cores, capfd):
    write_report(two_cores, "first", "last")
    write_report(two_cores, "last", "first")
    assert main(["milestone", "first", "last", "--topology", "preset:small"]) == 0, capfd.readouterr().err
    said = capfd.readouterr()
    for name in ("first", "last"):
        page = two_cores / "milestones" / "output" / name / "README.md"
        assert page.read_text() == "made"
        assert f"{name}: wrote {page}" in said.out
    assert "making 2 reports: first, last" in said.err


@pytest.mark.slow
def test_reports_that_are_made_beside_others_are_in_one_document(two_cores, capfd):
    write_report(two_cores, "first", "last")
    write_report(two_cores, "last", "first")
    assert main(["milestone", "first", "last", "--json"]) == 0, capfd.readouterr().err
    assert [record["name"] for record in json.loads(capfd.readouterr().out)] == ["first", "last"]


@pytest.mark.slow
def test_a_failure_of_a_report_that_is_made_beside_is_the_document(two_cores, capfd):
    write_report(two_cores, "first", "last")
    write_report(two_cores, "last", "first", result='"made" + None')
    assert main(["milestone", "first", "last", "--json"]) == 2
    assert "last: cell 3 failed: TypeError" in json.loads(capfd.readouterr().out)["error"]["message"]


@pytest.mark.slow
def test_a_failure_interrupts_the_report_that_is_made_beside(two_cores, capfd):
    write_report(two_cores, "first", "last", result='"made" + None')
    write_report(two_cores, "last", "never")
    assert main(["milestone", "first", "last"]) == 2
    assert "first: cell 3 failed: TypeError" in capfd.readouterr().err
    assert not list(two_cores.glob("milestones/output/*/README.md"))
