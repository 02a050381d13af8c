"""What the package has once: each table, kernel and estimate is found in the file that owns it, and nowhere else.

A file that has one as well, for a good reason, is named here with that reason.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import pytest

from kernbench import _dtypes
from kernbench.analysis._resources import LINKS
from kernbench.analysis._stages import STAGE_ENGINES
from kernbench.ops.matmul import PLACEMENTS
from tests.repo import PACKAGE, python_files

TYPES = {name for name, value in vars(_dtypes).items() if isinstance(value, _dtypes.DType)}


def is_type(node: ast.AST) -> bool:
    """Whether an expression is an element type: `float32`, `dtypes.float32`, `DType(...)`."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "DType"
    if getattr(getattr(node, "value", None), "id", None) == "np":
        return False
    return getattr(node, "id", getattr(node, "attr", None)) in TYPES


def makes_types(node: ast.AST) -> bool:
    """Whether it makes an element type, gives names to six or more, or says how wide one is."""
    if isinstance(node, ast.Dict):
        return sum(map(is_type, node.values)) >= 6
    if isinstance(node, ast.ClassDef):
        return any(getattr(member, "name", None) == "primitive_bitwidth" for member in node.body)
    return isinstance(node, ast.Call) and is_type(node)


def names_in(node: ast.AST) -> set[object]:
    """The constants in a list, or among the keys of a table; nothing of one whose values are computed."""
    if isinstance(node, ast.Dict) and not any(isinstance(x, ast.BinOp) for v in node.values for x in ast.walk(v)):
        return {getattr(key, "value", None) for key in node.keys}
    return {getattr(x, "value", None) for x in getattr(node, "elts", ())}


def names_stages(node: ast.AST) -> bool:
    """Whether it names all stages of a PE's pipeline, or their components."""
    return set(STAGE_ENGINES) <= names_in(node) or set(STAGE_ENGINES.values()) <= names_in(node)


def names_links(node: ast.AST) -> bool:
    """Whether it has a table with the names of four or more kinds of links."""
    names = {getattr(x, "value", None) for x in ast.walk(node)} if isinstance(node, ast.Tuple | ast.Dict) else set()
    return len(names & {*LINKS.values()}) >= 4


def names_placements(node: ast.AST) -> bool:
    """Whether it names four or more placements of a product."""
    return len(names_in(node) & PLACEMENTS.keys()) >= 4


def multiplies(node: ast.AST) -> bool:
    """Whether it lets a matrix engine multiply: `tl.dot`, or a composite "gemm"."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    by_tiles = node.func.attr == "dot" and getattr(node.func.value, "id", None) != "np"
    whole = node.func.attr == "composite" and node.args and getattr(node.args[0], "value", None) == "gemm"
    return by_tiles or bool(whole)


def estimates(node: ast.AST) -> bool:
    """Whether it takes the time of a product on a matrix engine, which an estimate begins with."""
    return isinstance(node, ast.Call) and getattr(node.func, "id", None) == "matrix_ns"


def names_matrix_types(node: ast.AST) -> bool:
    """Whether it has a table with the names of four or more types of the matrix engine."""
    return isinstance(node, ast.Dict) and len(names_in(node) & _dtypes.MATRIX_TYPES.keys()) >= 4


def counts_cores(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "cpu_count"


@dataclass(frozen=True)
class Owned:
    """What one file has, how it is found, and code in which it is; `others` have one, too, with the reason."""

    what: str
    owner: str
    is_one: Callable[[ast.AST], bool]
    examples: tuple[str, ...]
    others: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.what


OWNED = [
    Owned(
        "element types", "_dtypes.py", makes_types,
        (
            "x = DType('float24', numpy, True)",
            "class dtype:\n    def primitive_bitwidth(self): return 8",
            f"X = {{{', '.join(f'{name!r}: dtypes.{name}' for name in sorted(TYPES)[:6])}}}",
        ),
    ),
    Owned(
        "stages of a PE", "analysis/_stages.py", names_stages,
        (
            "X = ('gemm', 'math', 'fetch', 'store_tcm')",
            "X = {'dma_in': 1, 'fetch': 2, 'gemm': 3, 'math': 4, 'store_tcm': 5}",
            f"X = {[*STAGE_ENGINES.values()]}",
        ),
        {
            "viz/_palette.py": "their colours",
        },
    ),
    Owned(
        "kinds of links", "analysis/_resources.py", names_links,
        ("X = {'a': 'mesh link', 'b': 'UCIe link', 'c': ('PCIe link', 1), 'd': 'SIP link'}",),
        {"studies/layers.py": "the parts of a critical path, by what is on it"},
    ),
    Owned(
        "types of the matrix engine", "_dtypes.py", names_matrix_types,
        ("X = {'float16': 'f16', 'bfloat16': 'bf16', 'int8': 'i8', 'float32': 'f32'}",),
    ),
    Owned("the number of workers", "sweeps/_runner.py", counts_cores, ("workers = os.cpu_count() or 1",)),
    Owned(
        "placements of a product", "ops/matmul/_placements.py", names_placements,
        ("PLACEMENTS = ('rows', 'columns', '2-D', 'split-K')", "X = {'rows': 1, 'columns': 2, '2-D': 3, 'split-K': 4}"),
    ),
    Owned(
        "kernels of a product", "ops/matmul/_kernels.py", multiplies,
        ("acc = tl.dot(x, y, acc)", "tl.wait(tl.composite('gemm', a, b, c))"),
        {
            "kernels/gemm.py": "examples, of which the study `gemm` measures one: the product of one PE",
            "kernels/attention.py": "the scores of attention, and the sums of values",
            "ops/attention.py": "the scores of the part of latent keys that is no value",
        },
    ),
    Owned(
        "estimates of a product", "ops/matmul/_cost.py", estimates,
        ("ns = tiles * matrix_ns(config, (m, n, k), dtype)",),
        {
            "ops/attention.py": "the two products of a part of the kv tokens",
            "ops/matmul/_blocks.py": "a block, on PEs that share memory",
            "studies/attention.py": "the bound of attention",
            "sweeps/_energy_area.py": "multiplications from the time that they took",
        },
    ),
]  # fmt: skip


@cache
def trees() -> dict[str, ast.Module]:
    return {p.relative_to(PACKAGE).as_posix(): ast.parse(p.read_text(encoding="utf-8")) for p in python_files(PACKAGE)}


@cache
def all_found() -> dict[str, dict[str, int]]:
    """The files that have each, with a line."""
    found: dict[str, dict[str, int]] = {str(owned): {} for owned in OWNED}
    for path, tree in trees().items():
        for node in ast.walk(tree):
            for owned in OWNED:
                if owned.is_one(node):
                    found[str(owned)][path] = node.lineno
    return found


@pytest.mark.parametrize("owned", OWNED, ids=str)
def test_it_has_one_owner(owned):
    found = all_found()[str(owned)]
    others = [f"{path}:{line}" for path, line in found.items() if path not in (owned.owner, *owned.others)]
    assert not others, f"{owned} are in {owned.owner}: use those instead of {', '.join(others)}"
    assert set(found) == {owned.owner, *owned.others}, "an exception that is none"


@pytest.mark.parametrize(("owned", "code"), [(x, code) for x in OWNED for code in x.examples], ids=str)
def test_another_one_is_found(owned, code):
    assert any(map(owned.is_one, ast.walk(ast.parse(code))))


def defined(tree: ast.Module) -> set[str]:
    """The public names that a module defines."""
    found = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    targets = [t for n in tree.body for t in getattr(n, "targets", [getattr(n, "target", None)]) if t]
    found |= {x.id for target in targets for x in ast.walk(target) if isinstance(x, ast.Name)}
    return {name for name in found if not name.startswith("_")}


def test_few_names_are_defined_in_several_modules():
    # Those left are functions of plug-ins, commands, names of torch and Triton, and pairs (decision 0088): add none.
    modules = Counter(name for tree in trees().values() for name in defined(tree))
    assert sum(n > 1 for n in modules.values()) <= 57
