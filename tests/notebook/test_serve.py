"""`kernbench lab` and `kernbench web`: what they start, and what they refuse."""

from __future__ import annotations

import importlib.util
import json
from contextlib import closing
from pathlib import Path

import nbformat
import pytest
from nbformat.sign import NotebookNotary

from kernbench.cli.main import main
from kernbench.errors import ConfigError
from kernbench.notebook import _serve as serve
from tests.repo import ROOT


def test_the_notebook_is_found_from_below_and_from_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT / "docs")
    assert serve.notebook() == ROOT / "notebooks" / "explorer.ipynb"
    monkeypatch.chdir(tmp_path)
    assert serve.notebook() == ROOT / "notebooks" / "explorer.ipynb"


def test_where_there_is_none_a_remedy_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(serve, "_NOTEBOOK", "no_such.ipynb")
    with pytest.raises(ConfigError, match=r"run this in a checkout of kernbench, or call kernbench\.notebook\.explore"):
        serve.notebook()


def test_a_missing_package_is_named_with_its_extra(monkeypatch, capsys):
    monkeypatch.setattr(serve, "find_spec", lambda _: None)
    monkeypatch.setattr(serve, "copy_notebooks", lambda root: root)
    assert main(["web"]) == 2
    assert "pip install 'kernbench[web]'" in capsys.readouterr().err
    assert main(["lab"]) == 2
    assert "pip install 'kernbench[notebook]'" in capsys.readouterr().err


def test_both_stay_on_this_machine():
    assert "--ServerApp.ip=127.0.0.1" in serve.lab_arguments(ROOT, browser=False)
    if importlib.util.find_spec("voila") is None:
        pytest.skip("Voila is not installed")
    arguments = serve.web_arguments("secret", 1234, browser=False)
    assert {"--Voila.ip=127.0.0.1", "--Voila.token=secret", "--port=1234", "--no-browser"} <= set(arguments)


def test_the_lab_opens_on_the_explorer(tmp_path):
    arguments = serve.lab_arguments(tmp_path)
    assert "--LabApp.default_url=/lab/tree/notebooks/explorer.ipynb" in arguments
    assert f"--ServerApp.root_dir={tmp_path}" in arguments


def test_the_labs_settings_stand_where_it_is_told():
    folder = next(x.partition("=")[2] for x in serve.lab_arguments(ROOT) if x.startswith("--LabApp.app_settings_dir="))
    assert "commsOverSubshells" in (ROOT / folder / "overrides.json").read_text()


def notebook_of(*sources):
    cells = [
        {"cell_type": "code", "source": [x], "metadata": {}, "outputs": [], "execution_count": None, "id": x}
        for x in sources
    ]
    return {"cells": cells, "metadata": {"jupytext": {"formats": "ipynb,py"}}, "nbformat": 4, "nbformat_minor": 5}


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "one.ipynb").write_text(json.dumps(notebook_of("1")))
    return tmp_path


def sources(path):
    return ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"]]


def test_an_edited_copy_stays_and_one_that_was_only_run_follows_its_original(checkout):
    original, copy = checkout / "notebooks" / "one.ipynb", checkout / "lab" / "notebooks" / "one.ipynb"
    assert serve.copy_notebooks(checkout) == checkout / "lab"
    assert "jupytext" not in json.loads(copy.read_text())["metadata"]
    ran = json.loads(copy.read_text())
    ran["cells"][0]["execution_count"] = 7
    copy.write_text(json.dumps(ran))
    serve.copy_notebooks(checkout)
    assert json.loads(copy.read_text()) == ran, "the original is as it was"
    original.write_text(json.dumps(notebook_of("1", "2")))
    serve.copy_notebooks(checkout)
    assert sources(copy) == ["1", "2"]
    edited = json.loads(copy.read_text())
    edited["cells"][0]["source"] = ["mine"]
    copy.write_text(json.dumps(edited))
    original.write_text(json.dumps(notebook_of("1", "2", "3")))
    serve.copy_notebooks(checkout)
    assert sources(copy) == ["mine", "2"]
    copy.write_text("no notebook")
    serve.copy_notebooks(checkout)
    assert copy.read_text() == "no notebook"


def test_data_that_notebooks_read_is_beside_their_copies(checkout):
    data = Path("milestones", "fidelity", "data", "tool", "results.csv")
    (checkout / data).parent.mkdir(parents=True)
    for text in ("1", "2"):
        (checkout / data).write_text(text)
        assert (serve.copy_notebooks(checkout) / data).read_text() == text


def test_notebooks_of_the_package_are_copied_to_where_one_is(checkout, tmp_path, monkeypatch):
    monkeypatch.setattr(serve, "_SHARE", checkout)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert serve.copy_notebooks(checkout) == tmp_path / "here" / "lab"
    assert (tmp_path / "here" / "lab" / "notebooks" / "one.ipynb").is_file()
    assert not (checkout / "lab").exists()


def test_a_copy_is_trusted_and_its_drawings_are_shown_before_a_cell_runs(checkout):
    copy = serve.copy_notebooks(checkout) / "notebooks" / "one.ipynb"
    notary = NotebookNotary()
    with closing(notary.store):
        assert notary.check_signature(nbformat.read(copy, as_version=4))
        copy.write_text(copy.read_text().replace('"1"', '"2"'))
        assert not notary.check_signature(nbformat.read(copy, as_version=4)), "of other cells it knows nothing"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"metadata": {}, "cells": 5}'])
def test_a_copy_that_is_no_notebook_any_more_is_the_users(checkout, text):
    copy = serve.copy_notebooks(checkout) / "notebooks" / "one.ipynb"
    copy.write_text(text)
    serve.copy_notebooks(checkout)
    assert copy.read_text() == text


def test_a_folder_that_cannot_be_written_is_named(checkout):
    (checkout / "lab").write_text("a file")
    with pytest.raises(ConfigError, match=r"lab: cannot be written .*; run this in another folder"):
        serve.copy_notebooks(checkout)
