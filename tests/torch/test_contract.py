"""The private names of Inductor that the front end uses are there, and mean what it takes them to mean."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

from tests.repo import PACKAGE, ROOT

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from kernbench.torch import _inductor as inductor  # noqa: E402


def test_private_names_are_there():
    missing = inductor.missing()
    assert not missing, f"torch {torch.__version__} has changed: {', '.join(missing)}"


def test_a_missing_name_is_reported(monkeypatch):
    monkeypatch.setattr(inductor, "PRIVATE", (*inductor.PRIVATE, "torch._inductor.compile_fx:compile_gx"))
    monkeypatch.setattr(inductor, "SETTINGS", {**inductor.SETTINGS, "cpu_front": "triton"})
    assert inductor.missing() == ["torch._inductor.config.cpu_front", "torch._inductor.compile_fx:compile_gx"]


def test_no_other_module_names_inductor():
    users = {
        path.name
        for path in (PACKAGE / "torch").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch._inductor"))
        or (isinstance(node, ast.Attribute) and node.attr == "_inductor")
    }
    assert users == {"_inductor.py"}


def test_the_versions_are_pinned():
    project = tomllib.loads((Path(ROOT) / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert all("==" in package for package in project["optional-dependencies"]["torch"])
    assert project["entry-points"]["torch_dynamo_backends"] == {"kernbench": "kernbench.torch._compile:backend"}
