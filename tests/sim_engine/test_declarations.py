"""What a `.pxd` file declares is what its source sets: a compiled class has no other attributes."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from kernbench import _engine_selection

DECLARED = [source for source in _engine_selection.modules().values() if source.suffix == ".py"]
CLASS = re.compile(r"^cdef class (\w+)(?:\(([\w.]+)\))?:", re.MULTILINE)


@cache
def declared(source: Path) -> dict[str, tuple[str, set[str], set[str]]]:
    """The base, the attributes and the methods of each class of a `.pxd` file."""
    text = source.with_suffix(".pxd").read_text(encoding="utf-8")
    found = {}
    for match, end in zip(starts := list(CLASS.finditer(text)), [*starts, None][1:], strict=True):
        body = text[match.end() : end.start() if end else len(text)]
        attributes, methods = set(), set()
        for line in re.findall(r"^    (?:cdef|cpdef) (.+)$", body, re.MULTILINE):
            if "(" in line:
                methods.add(line.partition("(")[0].split()[-1])
            else:
                first, *others = line.split(",")
                attributes |= {first.split()[-1], *(name.strip() for name in others)}
        found[match[1]] = (match[2] or "").rpartition(".")[2], attributes, methods
    return found


@cache
def bases(own: Path) -> dict[str, set[str]]:
    """The attributes of every declared class, those of its bases included; of equal names, that of the source."""
    classes = {name: entry for source in (*DECLARED, own) for name, entry in declared(source).items()}

    def all_of(name: str) -> set[str]:
        base, attributes, _ = classes[name]
        return attributes | (all_of(base) if base in classes else set())

    return {name: all_of(name) for name in classes}


def assigned(node: ast.ClassDef) -> set[str]:
    """The attributes that a class sets on itself, or lists as fields."""
    names = {
        target.attr
        for child in ast.walk(node)
        if isinstance(child, ast.Attribute) and isinstance(child.ctx, ast.Store)
        for target in [child]
        if isinstance(target.value, ast.Name) and target.value.id == "self"
    }
    is_dataclass = any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)
    fields = {
        child.target.id
        for child in node.body
        if isinstance(child, ast.AnnAssign)
        and isinstance(child.target, ast.Name)
        and is_dataclass
        and "ClassVar" not in ast.unparse(child.annotation)
    }
    return names | fields


@cache
def classes(source: Path) -> dict[str, ast.ClassDef]:
    tree = ast.parse(source.read_text(encoding="utf-8"))
    return {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def set_by(name: str) -> set[str]:
    """The attributes that a declared class, or one that derives from it, sets on itself."""
    found = set()
    for source in DECLARED:
        for other, (base, _, _) in declared(source).items():
            if other == name:
                found |= assigned(classes(source)[name])
            elif base == name:
                found |= set_by(other)
    return found


@pytest.mark.parametrize(
    "source", DECLARED, ids=lambda source: source.relative_to(_engine_selection.PACKAGE).as_posix()
)
def test_a_class_sets_what_its_declaration_lists(source):
    for name, (_, own, methods) in declared(source).items():
        functions = [node for node in classes(source)[name].body if isinstance(node, ast.FunctionDef)]
        properties = {function.name for function in functions if function.decorator_list}
        missing = assigned(classes(source)[name]) - bases(source)[name] - properties
        assert not missing, f"declare these in {source.stem}.pxd, class {name}"
        idle = own - set_by(name) - {"__weakref__", "__dict__"}
        assert not idle, f"{source.stem}.pxd, class {name} declares what it never sets"
        unknown = methods - {function.name for function in functions}
        assert not unknown, f"{source.stem}.pxd, class {name} declares methods that do not exist"
