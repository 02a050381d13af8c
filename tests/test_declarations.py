"""The `.pxd` file of a compiled module declares what its `.py` file defines: the core and the definition share it."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kernbench import _engine_selection

_CLASS = re.compile(r"cdef class (?P<name>\w+)(?:\((?P<base>\w+)\))?:")
_METHOD = re.compile(r"c(?:p)?def .*?\b(?P<name>\w+)\(")
_ATTRIBUTES = re.compile(r"cdef (?:public |readonly )?[\w.]+(?:\[[^\]]*\])?[ *]+(?P<names>\w+(?:, *\w+)*)")


@dataclass
class Class:
    base: str = ""
    attributes: set[str] = field(default_factory=set)
    methods: set[str] = field(default_factory=set)


def declared(text: str) -> dict[str, Class]:
    """The classes of a `.pxd` file."""
    classes: dict[str, Class] = {}
    now = Class()
    text = re.sub(r",\n +\)", ")", text)
    for line in re.sub(r"([(,])\n +", r"\1 ", text).splitlines():
        words = line.partition("#")[0].strip()
        if found := _CLASS.fullmatch(words):
            now = classes[found["name"]] = Class(found["base"] or "")
        elif line[:1].isspace():
            if found := _METHOD.match(words):
                now.methods.add(found["name"])
            elif found := _ATTRIBUTES.fullmatch(words):
                now.attributes |= set(re.split(r", *", found["names"]))
            else:
                assert words in {"", "pass"} or words.startswith("@"), f"not understood: {line}"
    return classes


def defined(text: str) -> dict[str, Class]:
    """The classes of a `.py` file, with their slots, or where there are none the attributes that they assign."""
    classes = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            methods = [n for n in node.body if isinstance(n, ast.FunctionDef)]
            slots = [
                n.value for n in node.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__slots__"
            ]
            fields = {
                n.target.id
                for n in node.body
                if isinstance(n, ast.AnnAssign) and not ast.unparse(n.annotation).startswith("ClassVar")
            }
            assigned = set().union(*(assigned_by(n) for n in methods)) | fields
            attributes = set().union(*map(names_of, slots)) if slots else assigned
            classes[node.name] = Class("", attributes, {n.name for n in methods})
    return classes


def names_of(slots: ast.expr) -> set[str]:
    value = ast.literal_eval(slots)
    return {value} if isinstance(value, str) else set(value)


def assigned_by(method: ast.FunctionDef) -> set[str]:
    return {
        n.attr
        for n in ast.walk(method)
        if isinstance(n, ast.Attribute)
        and isinstance(n.ctx, ast.Store)
        and method.args.args
        and ast.unparse(n.value) == method.args.args[0].arg
    }


def differences(declarations: dict[str, Class], definitions: dict[str, Class], known: dict[str, Class]) -> list[str]:
    """What one file has and the other lacks; attributes of a base class are declared there."""
    found = []
    for name, one in declarations.items():
        if name not in definitions:
            found.append(f"{name}: no such class")
            continue
        inherited: set[str] = set()
        base = one.base
        while base:
            inherited |= known[base].attributes
            base = known[base].base
        wanted = definitions[name].attributes - inherited
        found += [f"{name}.{x}: not in the .pxd file" for x in sorted(wanted - one.attributes)]
        found += [f"{name}.{x}: not in the .py file" for x in sorted(one.attributes - wanted)]
        found += [f"{name}.{x}(): no such method" for x in sorted(one.methods - definitions[name].methods)]
    return found


SHARED = {name: source for name, source in _engine_selection.modules().items() if source.suffix == ".py"}


def declarations_of(source: Path) -> dict[str, Class]:
    return declared(source.with_suffix(".pxd").read_text(encoding="utf-8"))


@pytest.mark.parametrize("source", SHARED.values(), ids=SHARED)
def test_a_module_declares_what_it_defines(source):
    known = {name: one for other in SHARED.values() for name, one in declarations_of(other).items()}
    assert not differences(declarations_of(source), defined(source.read_text(encoding="utf-8")), known)


PXD = """
cdef class Base:
    cdef public int n
cdef class Sub(Base):
    cdef public object a, b
    cpdef step(self, int t)
"""
PY = """
class Base:
    __slots__ = ("n",)

class Sub(Base):
    kind: ClassVar[int] = 1
    def __init__(self):
        self.n = 1
        self.a, self.b = 2, 3
    def step(self, t):
        self.a += t
"""


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (("", ""), []),
        (("self.b = 2, 3", "self.c = 2, 3"), ["Sub.c: not in the .pxd file", "Sub.b: not in the .py file"]),
        (('("n",)', '("n", "m")'), ["Base.m: not in the .pxd file"]),
        (("def step", "def walk"), ["Sub.step(): no such method"]),
        (("class Base", "class Other"), ["Base: no such class"]),
    ],
)
def test_differences_are_found(change, difference):
    known = declared(PXD)
    assert differences(known, defined(PY.replace(*change)), known) == difference
