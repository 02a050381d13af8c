"""`kernbench lab` and `kernbench web`: what they start, and what they refuse."""

from __future__ import annotations

import importlib.util

import pytest

from kernbench.cli.main import main
from kernbench.errors import ConfigError
from kernbench.notebook import serve
from tests.repo import ROOT


def test_the_notebook_is_found_from_below_and_from_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT / "docs")
    assert serve.notebook() == ROOT / "notebooks" / "explorer.ipynb"
    monkeypatch.chdir(tmp_path)
    assert serve.notebook() == ROOT / "notebooks" / "explorer.ipynb"


def test_where_there_is_none_a_remedy_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(serve, "NOTEBOOK", "no_such.ipynb")
    with pytest.raises(ConfigError, match=r"run this in a checkout of kernbench, or call kernbench\.notebook\.explore"):
        serve.notebook()


def test_a_missing_package_is_named_with_its_extra(monkeypatch, capsys):
    monkeypatch.setattr(serve, "find_spec", lambda _: None)
    assert main(["web"]) == 2
    assert "pip install 'kernbench[web]'" in capsys.readouterr().err
    assert main(["lab"]) == 2
    assert "pip install 'kernbench[notebook]'" in capsys.readouterr().err


def test_both_stay_on_this_machine():
    assert "--ServerApp.ip=127.0.0.1" in serve.lab_arguments(browser=False)
    if importlib.util.find_spec("voila") is None:
        pytest.skip("Voila is not installed")
    arguments = serve.web_arguments("secret", 1234, browser=False)
    assert {"--Voila.ip=127.0.0.1", "--Voila.token=secret", "--port=1234", "--no-browser"} <= set(arguments)


def test_the_lab_opens_on_the_explorer(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    arguments = serve.lab_arguments()
    assert "--LabApp.default_url=/lab/tree/notebooks/explorer.ipynb" in arguments
    assert f"--ServerApp.root_dir={ROOT}" in arguments


def test_the_labs_settings_stand_where_it_is_told():
    folder = next(x.partition("=")[2] for x in serve.lab_arguments() if x.startswith("--LabApp.app_settings_dir="))
    assert "commsOverSubshells" in (ROOT / folder / "overrides.json").read_text()
