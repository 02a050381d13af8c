"""The documents say what is so: parameters, links, commands and examples are compared with the thing itself."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib

import pytest
import yaml

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


def parameter_table() -> dict[str, tuple[object, str]]:
    """Default and mark of each key."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in MODEL.splitlines() if line.startswith("| `")]
    rows = [row for row in rows if len(row) == 5]
    table = {key.strip("`"): (yaml.safe_load(value.strip("`")), mark) for key, value, _, mark, _ in rows}
    assert len(rows) == len(table), "duplicate key"
    return table


def marks_in(text: str) -> dict[str, str]:
    """The first mark in the comment of each key of a machine file."""
    path: list[str] = []
    found = {}
    for line in text.splitlines():
        if key := re.match(r"( *)([a-z_0-9]+):(.*)", line):
            path[len(key[1]) // 2 :] = [key[2]]
            if mark := re.search(r"#.*?[( ](ref|std|chosen)\b", key[3]):
                found[".".join(path)] = mark[1]
    return found


def leaves(tree: object, prefix: str = "") -> dict[str, object]:
    if not isinstance(tree, dict):
        return {prefix: tree}
    return {k: v for key, sub in tree.items() for k, v in leaves(sub, f"{prefix}.{key}".lstrip(".")).items()}


def machine_file() -> dict[str, object]:
    return yaml.safe_load((ROOT / "topology.yaml").read_text(encoding="utf-8"))


def test_every_parameter_is_documented_with_its_value():
    written = {}
    for key, (value, _) in parameter_table().items():
        written |= leaves(value, key)
    real = {k: v for k, v in leaves(machine_file()).items() if not k.endswith(".impl")}
    assert written == real


def test_every_parameter_carries_the_mark_that_is_documented():
    marks = marks_in((ROOT / "topology.yaml").read_text(encoding="utf-8"))
    documented = {key: mark for key, (_, mark) in parameter_table().items() if key != "schema_version"}
    assert {key: marks.get(key) for key in documented} == documented


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


def test_readme_names_commands_that_exist():
    from kernbench.cli.main import cli

    shell = "\n".join(fenced(README, "sh"))
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
