"""The documents say what is so: parameters, links, commands and examples are compared with the thing itself."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator

import pytest
import yaml

from kernbench.config._overrides import value_at
from kernbench.config._schema import machine_keys
from kernbench.topology.builder import resolve_topology
from kernbench.viz._fields import _SOURCES as SOURCES
from kernbench.viz._fields import _UNITS as UNITS
from kernbench.viz._fields import fields, sources
from tests.repo import PACKAGE, ROOT, files, notebooks, relative

DOCS = [p for p in files() if p.suffix == ".md"]
RECORDS = ROOT / "docs" / "decisions"
DECISIONS = [p for p in DOCS if RECORDS in p.parents and p.name != "README.md"]
MODEL = (ROOT / "docs" / "model.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
RULE = re.compile(r"\bM\d\.\d+\b")

every_decision = pytest.mark.parametrize("path", DECISIONS, ids=lambda p: p.stem)


def fenced(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def rules() -> set[str]:
    """The rules that docs/model.md states: in a heading, or in bold at the head of an item."""
    return set(re.findall(r"^(?:### |- \*\*)(M\d\.\d+)\b", MODEL, re.MULTILINE))


def parameter_table() -> list[list[str]]:
    """Key, default, unit, mark and reason of each row."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in MODEL.splitlines() if line.startswith("| `")]
    return [[key.strip("`"), value.strip("`"), *more] for key, value, *more in rows if len(more) == 3]


def leaves(tree: object, path: str) -> dict[str, object]:
    if not isinstance(tree, dict):
        return {path: tree}
    return {k: v for key, sub in tree.items() for k, v in leaves(sub, f"{path}.{key}").items()}


def rows_by_key() -> Iterator[tuple[str, object, str, str, str]]:
    """The rows of the table, one for each key: path, default, unit, mark and reason."""
    for key, value, *more in parameter_table():
        for path, default in leaves(yaml.safe_load(value), key).items():
            yield path, default, *more


def test_every_parameter_is_documented_with_its_value():
    rows = [(path, default) for path, default, *_ in rows_by_key()]
    spec, paths = resolve_topology("preset:default").spec, [key.path for key in machine_keys()]
    real = {path: value_at(spec, path) for path in paths if not path.endswith(".impl")}
    optional = {path for path, value in real.items() if value is None}
    assert sorted(path for path, _ in rows) == sorted(real.keys() - optional)
    assert all(f"`{path}`" in MODEL for path in optional)
    assert dict(rows) == {path: value for path, value in real.items() if path not in optional}


def test_every_parameter_is_documented_with_its_unit():
    units = {field.unit for field in fields().values()} - {""}
    for path, _, unit, *_ in rows_by_key():
        if path in fields():  # all but the version
            written = UNITS.get(unit, unit)  # or what is counted: "cubes", "a side"
            assert fields()[path].unit == (written if written in units else ""), path


def test_every_parameter_carries_the_mark_that_is_documented():
    for path, _, _, mark, reason in rows_by_key():
        source = sources().get(path, "")
        assert source.partition(":")[0] == SOURCES.get(mark, ""), path
        assert source.partition("tried ")[2] == reason.partition("tried ")[2], path


def test_every_rule_is_held_by_a_test():
    table = MODEL[MODEL.index("## 9.") :]
    held: dict[str, list[str]] = {}
    for row in table.splitlines():
        for name in RULE.findall(row.partition("`")[0]):
            held.setdefault(name, []).extend(re.findall(r"`(tests/[^`]+)`", row))
    wanted = {name for name in rules() if not name.startswith("M1.1")}
    assert wanted <= set(held), f"no test for {sorted(wanted - set(held))}"
    for name, places in held.items():
        assert places, name
        for place in places:
            file, _, function = place.partition("::")
            text = (ROOT / file).read_text(encoding="utf-8")
            assert not function or re.search(rf"^ *def {function}\(", text, re.MULTILINE), place


def test_names_of_rules_exist():
    used = {}
    for path in files():
        if path.suffix in {".py", ".md", ".yaml"} and path != ROOT / "docs" / "model.md":
            for name in RULE.findall(path.read_text(encoding="utf-8")):
                used.setdefault(name, relative(path))
    assert not {name: place for name, place in used.items() if name not in rules()}


@pytest.mark.parametrize("path", DOCS, ids=relative)
def test_links_lead_somewhere(path):
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text)]
    assert not [link for link in links if link and "://" not in link and not (path.parent / link).exists()]


@every_decision
def test_decision_has_its_parts(path):
    number, _, _ = path.stem.partition("-")
    text = path.read_text(encoding="utf-8")
    assert re.fullmatch(r"\d{4}", number)
    assert text.startswith(f"# {number} ")
    assert re.findall(r"^## (.*)", text, re.MULTILINE)[:4] == [
        "Context",
        "Decision",
        "Consequences",
        "How it is tested",
    ]


def test_pictures_of_the_architecture_name_files_that_exist():
    named = {
        n for p in (ROOT / "docs/images").glob("*.svg") for n in re.findall(r"[\w/*]+\.pyx?\b", p.read_text("utf-8"))
    }
    assert len(named) >= 20
    assert not [name for name in named if not [*PACKAGE.rglob(name)]]


def test_table_of_the_architecture_names_files_that_exist():
    table = re.findall(
        r"^\| (?!package|---)(.*?) \|(.*)$", (ROOT / "docs/architecture.md").read_text("utf-8"), re.MULTILINE
    )
    assert len(table) >= 20
    for packages, row in table:
        folders = [PACKAGE / name for name in re.findall(r"`(\w+)`", packages)]
        for name in re.findall(r"`([\w/]+\.pyx?)`", row):
            places = [*(f / name for f in (ROOT, PACKAGE)), *(path for f in folders for path in f.rglob(name))]
            assert any(path.is_file() for path in places), (packages, name)


def test_index_lists_every_decision():
    index = (RECORDS / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| \[(\d{4})\]\((\S+\.md)\) \| \S", index, re.MULTILINE)
    assert [name for _, name in listed] == sorted(p.relative_to(RECORDS).as_posix() for p in DECISIONS)
    assert all(name.rpartition("/")[2].startswith(number) for number, name in listed)
    assert len({number for number, _ in listed}) == len(listed)


def test_readme_example_runs(tmp_path):
    (first,) = fenced(README, "python")
    assert len(first.splitlines()) <= 20
    done = subprocess.run([sys.executable, "-c", first], cwd=tmp_path, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "ns" in done.stdout


def test_guides_name_commands_that_exist():
    from kernbench.cli.main import cli

    shell = "\n".join(fenced((ROOT / "docs/howto/commands.md").read_text(encoding="utf-8"), "sh"))
    named = set(re.findall(r"^(?:python -m )?kernbench (\w+)", shell, re.MULTILINE))
    assert named
    assert named <= set(cli.commands)


def test_readme_names_targets_that_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = set(re.findall(r"\bmake (milestones|[a-z]+)(?=`|\s{2})", README))
    assert named
    assert named <= targets


def test_readme_leads_to_every_notebook():
    linked = set(re.findall(r"\]\((\S+\.ipynb)\)", README))
    assert {relative(p) for p in notebooks()} <= linked


def test_changelog_tells_of_this_version():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    heads = re.findall(r"^## \[(.*?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert heads[0] in {"Unreleased", version}
