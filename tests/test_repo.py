"""What may stand in this repository: names, sizes, and nothing that belongs to one machine."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import tomllib

import pytest

from tests.repo import NOTEBOOK_FOLDERS, PACKAGE, ROOT, files, notebooks, python_files, relative, text_files

LONGEST_FILE = 800

# Written so that this file does not match itself.
INDEX = re.compile(r":[/]{2}|--(?:extra-)?[i]ndex|--[f]ind-links|--[t]rusted-host")
REGISTRY = re.compile(r"\bp[y]pi\b|python[h]osted|\bn[p]mjs\b", re.IGNORECASE)
MACHINE_PATH = re.compile(r"(?<![\w.\-/:])(?:/(?:[h]ome|[r]oot|[w]ork|[U]sers)/\w|[A-Z]:\\[U]sers\\)")
UNFINISHED = re.compile(r"\b(?:T[O]DO|F[I]XME|X[X]X|Not[I]mplementedError)\b")
CONFLICT = re.compile(r"^(?:<{7} |>{7} |={7}$)")


def matching(pattern: re.Pattern[str], paths) -> list[str]:
    found = []
    for path in paths:
        text = path.read_text(encoding="utf-8")
        if path.suffix in {".ipynb", ".json"}:
            text = text.replace("\\n", "\n")
        lines = enumerate(text.splitlines(), 1)
        found += [f"{relative(path)}:{n}: {m.group()!r}" for n, line in lines for m in pattern.finditer(line)]
    return found


def test_settings_and_lock_name_no_package_index():
    settings = [p for p in files() if p.suffix in {".lock", ".toml", ".cfg"} or p.name.startswith("requirements")]
    assert ROOT / "requirements.lock" in settings
    assert not matching(INDEX, settings)


def test_no_registry_is_named():
    assert not matching(REGISTRY, text_files())


def test_no_path_of_one_machine():
    here = re.compile(re.escape(str(ROOT)) + r"\b")
    assert not matching(MACHINE_PATH, text_files())
    assert not matching(here, text_files())


def test_nothing_is_left_unfinished():
    sources = [p for p in files() if p.suffix in {".py", ".yaml", ".toml"}]
    assert not matching(UNFINISHED, sources)
    assert not matching(CONFLICT, text_files())


def test_a_skipped_test_says_why():
    wrong = []
    for path in python_files(ROOT / "tests"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if re.fullmatch(r"(?:pytest\.)?(?:mark\.)?(?:skip|skipif|xfail|importorskip)", name):
                given = {k.arg for k in node.keywords}
                if "reason" not in given and not (name.endswith("skip") and node.args):
                    wrong.append(f"{relative(path)}:{node.lineno}")
    assert not wrong


def test_files_stay_short():
    long = {
        relative(p): n for p in python_files(PACKAGE) if (n := len(p.read_text("utf-8").splitlines())) > LONGEST_FILE
    }
    assert not long


def test_notebooks_stand_only_where_they_are_checked():
    starters = [p for p in files() if p.suffix == ".ipynb" and p.is_relative_to(PACKAGE)]
    elsewhere = [p for p in files() if p.suffix == ".ipynb" and p not in notebooks() and p not in starters]
    assert not [relative(p) for p in elsewhere]


def test_notebook_names():
    wrong = [relative(p) for p in notebooks("notebooks") if not re.fullmatch(r"\d\d_[a-z0-9_]+|explorer", p.stem)]
    assert not wrong, "NN_topic"
    numbers = [p.stem[:2] for p in notebooks("notebooks") if p.stem != "explorer"]
    assert len(numbers) == len(set(numbers))


@pytest.mark.parametrize("notebook", notebooks("milestones"), ids=relative)
def test_milestone_has_its_study_and_full_parameters(notebook):
    assert importlib.util.find_spec(f"kernbench.studies.{notebook.stem}") is not None
    assert notebook.with_suffix(".yaml").is_file()


@pytest.mark.parametrize("folder", NOTEBOOK_FOLDERS)
def test_notebook_folders_share_one_pairing(folder):
    first = (ROOT / NOTEBOOK_FOLDERS[0] / "jupytext.toml").read_text()
    assert (ROOT / folder / "jupytext.toml").read_text() == first


def test_lock_holds_every_direct_requirement():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(r for e in ("notebook", "test") for r in project["optional-dependencies"][e])]
    normal = lambda name: re.sub(r"[-_.]+", "-", name).lower()  # noqa: E731
    locked = {normal(line.split("==")[0]) for line in (ROOT / "requirements.lock").read_text().splitlines()}
    assert {normal(re.match(r"[\w.\-]+", r)[0]) for r in wanted} <= locked


def modules_with_all() -> list[str]:
    names = []
    for path in python_files(PACKAGE):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        assigned = {
            t.id for node in body if isinstance(node, ast.Assign) for t in node.targets if isinstance(t, ast.Name)
        }
        if "__all__" in assigned:
            parts = path.relative_to(ROOT).with_suffix("").parts
            names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return names


@pytest.mark.parametrize("name", modules_with_all())
def test_all_is_sorted_and_true(name):
    module = importlib.import_module(name)
    assert list(module.__all__) == sorted(set(module.__all__))
    assert not [n for n in module.__all__ if not hasattr(module, n)]


def test_all_of_the_package_is_what_it_shows():
    # A fresh interpreter: a module imported by some test would show up as an attribute.
    code = "import kernbench; print(*sorted(n for n in dir(kernbench) if n[0] != '_'))"
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert shown == list(importlib.import_module("kernbench").__all__)
