"""A report that is there is left alone only if a run would write the same."""

from __future__ import annotations

import json

import pytest

import kernbench as kb
from kernbench.config import default_ccl_path
from kernbench.errors import ConfigError
from kernbench.studies import milestone as stamps
from kernbench.studies.milestone import STAMP, foreign, is_made, made_of, stamp

VALUES = {"sizes": [1, 2], "topology": "preset:small"}


@pytest.fixture
def notebook(tmp_path):
    path = tmp_path / "study.ipynb"
    path.write_text(json.dumps({"cells": [{"source": "1 + 1", "outputs": []}]}))
    return path


@pytest.fixture
def report(tmp_path):
    folder = tmp_path / "report"
    folder.mkdir()
    (folder / "table.csv").write_text("a,b\n")
    stamp(folder, "key")
    return folder


def test_whatever_a_report_follows_from_is_in_its_key(notebook, monkeypatch):
    small = kb.load("preset:small")
    keys = [made_of(notebook, VALUES, small)]
    assert keys == [made_of(notebook, VALUES, kb.load("preset:small"))]
    keys.append(made_of(notebook, VALUES | {"sizes": [1]}, small))
    keys.append(made_of(notebook, VALUES, small.with_({"sip.cube_mesh.w": 1})))
    keys.append(made_of(notebook, VALUES, small.with_({"cost.area.io_mm2": 1})))
    monkeypatch.setattr(stamps, "code_version", lambda: "other")
    keys.append(made_of(notebook, VALUES, small))
    monkeypatch.undo()
    notebook.write_text(json.dumps({"cells": [{"source": "1 + 1", "outputs": ["2"]}]}))
    assert made_of(notebook, VALUES, small) == keys[0], "outputs are no part of it"
    notebook.write_text(json.dumps({"cells": [{"source": "1 + 2"}]}))
    keys.append(made_of(notebook, VALUES, small))
    assert len(set(keys)) == 6


def test_code_from_elsewhere_may_have_changed(notebook, tmp_path, monkeypatch):
    own = kb.load("preset:small", ["cube.noc.router.impl=kernbench.components.builtin.transit:Router"])
    assert made_of(notebook, VALUES, own) is None
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ccl.yaml").write_text(default_ccl_path().read_text() + "# mine\n")
    assert made_of(notebook, VALUES, kb.load("preset:small")) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"cells": [{}]}', "[" * 100_000])
def test_a_damaged_notebook_is_named(notebook, text):
    notebook.write_text(text)
    with pytest.raises(ConfigError, match=r"study.ipynb: is damaged, or no notebook"):
        made_of(notebook, VALUES, kb.load("preset:small"))


@pytest.mark.parametrize("text", ["", "[]", '{"files": 5}', "[" * 100_000])
def test_a_damaged_stamp_says_nothing(report, text):
    (report / STAMP).write_text(text)
    assert not is_made(report, "key")
    assert foreign(report) == [report / "table.csv"]


def test_a_report_is_there_while_its_files_are_as_they_were_written(report):
    assert is_made(report, "key")
    assert not is_made(report, "other")
    assert not is_made(report, None)
    (report / "table.csv").write_text("a,c\n")
    assert not is_made(report, "key")
    stamp(report, "key")
    (report / "table.csv").unlink()
    assert not is_made(report, "key")
    stamp(report, "key")
    (report / STAMP).write_text("{")
    assert not is_made(report, "key")
    assert not is_made(report / "nowhere", "key")
