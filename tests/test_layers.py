"""Imports inside the package point one way, and heavy libraries stay where they belong."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

import kernbench
from tests.repo import PACKAGE, python_files, relative

# Each may import those before it; those on one line may import each other, one way only.
LAYERS = (
    ("engine_selection", "names", "units", "interrupts", "errors", "dtypes", "config", "registry"),
    ("analysis",),
    ("topology", "policy"),
    ("points",),
    ("sim_engine",),
    ("components",),
    ("triton_emu",),
    ("kernels",),
    ("ops",),
    ("ccl",),
    ("runtime_api",),
    ("tp", "dtensor"),
    ("chakra",),
    ("compat",),
    ("sweeps",),
    ("viz",),
    ("pipeline",),
    ("triton",),
    ("torch",),
    ("studies",),
    ("benches",),
    ("cli", "notebook"),
    ("__init__", "__main__"),
)
TORCH = all(map(find_spec, ("torch", "transformers")))
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}

# The first layer that may import a library; the layers before it may not.
LIBRARIES = {"altair": "viz", "matplotlib": "viz", "ipywidgets": "notebook"}
# The only layers that may import a front end's library.
FRONT_ENDS = {"torch": {"torch"}, "transformers": {"torch"}, "triton": {"torch", "triton"}}


@dataclass(frozen=True)
class Import:
    file: str
    line: int
    layer: str
    target: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} ({self.layer}) imports {self.target}"


def targets(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        assert not node.level, f"relative import in line {node.lineno}"
        if node.module == "kernbench":
            return [f"kernbench.{alias.name}" for alias in node.names]
        return [node.module or ""]
    return []


def layer_of(path: Path) -> str:
    return part(path.relative_to(PACKAGE).parts[0].removesuffix(".py"))


def part(name: str) -> str:
    """The name without the underscore of a private module."""
    return name if name.startswith("__") else name.removeprefix("_")


def nodes(path: Path) -> Iterator[ast.AST]:
    """All of a file, so that imports inside functions and for types alone count, too."""
    return ast.walk(ast.parse(path.read_text(encoding="utf-8")))


@cache
def imports() -> tuple[Import, ...]:
    return tuple(
        Import(relative(path), node.lineno, layer_of(path), target)
        for path in python_files(PACKAGE)
        for node in nodes(path)
        for target in targets(node)
    )


def inner() -> list[tuple[Import, str]]:
    """Imports from one layer of the package to another, with the layer imported.

    A name that is no layer is one of the facade's: `from kernbench import load`.
    """
    pairs = []
    for found in imports():
        first, _, rest = found.target.partition(".")
        if first == "kernbench":
            name = part(rest.partition(".")[0])
            pairs.append((found, name if name in RANK else "__init__"))
    return [(found, target) for found, target in pairs if target != found.layer]


def is_another_design_s(found: Import, target: str) -> bool:
    """Names of the reference design are imported from where they are, and kept out of there."""
    return target == "compat"


def test_every_part_has_a_layer():
    unknown = {layer_of(path) for path in python_files(PACKAGE)} - set(RANK)
    assert not unknown, f"give these a place in LAYERS: {sorted(unknown)}"


def test_imports_point_one_way():
    wrong = [str(f) for f, t in inner() if RANK[t] > RANK[f.layer] and not is_another_design_s(f, t)]
    assert not wrong, "\n".join(wrong)


def test_neighbours_do_not_import_each_other():
    edges = {(f.layer, t): str(f) for f, t in inner() if RANK[t] == RANK[f.layer]}
    wrong = [edges[a, b] for a, b in edges if (b, a) in edges]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("library", LIBRARIES)
def test_library_stays_in_its_layer(library):
    users = [f for f in imports() if f.target.partition(".")[0] == library]
    wrong = [str(f) for f in users if RANK[f.layer] < RANK[LIBRARIES[library]]]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("library", FRONT_ENDS)
def test_library_of_a_front_end_stays_there(library):
    users = [f for f in imports() if f.target.partition(".")[0] == library]
    assert users
    wrong = [str(f) for f in users if f.layer not in FRONT_ENDS[library]]
    assert not wrong, "\n".join(wrong)


def test_figures_use_the_object_interface():
    # pyplot keeps global state, which threads and notebooks spoil.
    wrong = [str(f) for f in imports() if "pyplot" in f.target]
    assert not wrong, "\n".join(wrong)


def own_classes() -> Iterator[type]:
    for info in pkgutil.walk_packages(kernbench.__path__, "kernbench."):
        if not info.name.endswith("__main__") and (TORCH or not info.name.startswith("kernbench.torch.")):
            module = importlib.import_module(info.name)
            yield from (c for _, c in inspect.getmembers(module, inspect.isclass) if c.__module__ == info.name)


def depth(cls: type) -> int:
    """How many classes of the package a chain of bases from `cls` up has, at most."""
    return 0 if not cls.__module__.startswith("kernbench.") else 1 + max(map(depth, cls.__bases__))


def test_no_chain_of_classes_is_longer_than_two():
    # The core is compiled for the other engine: its classes have no module to import from.
    long = {c for c in own_classes() if not issubclass(c, BaseException) and depth(c) > 2}
    assert not long, sorted(f"{c.__module__}.{c.__qualname__}" for c in long)


def module_of(path: Path) -> str:
    return ".".join(("kernbench", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")


def module_imports() -> dict[str, set[str]]:
    """The modules of the package that each imports."""
    files = {module_of(path): path for path in python_files(PACKAGE)}
    return {name: {m for node in nodes(path) for m in modules(node)} & files.keys() for name, path in files.items()}


def modules(node: ast.AST) -> set[str]:
    """The names of what a node imports, of which some are modules."""
    more = {f"{node.module}.{alias.name}" for alias in node.names} if isinstance(node, ast.ImportFrom) else set()
    return {*targets(node), *more}


def cycles(edges: dict[str, set[str]]) -> set[frozenset[str]]:
    """The sets of modules that import each other, directly or not."""
    reached: dict[str, set[str]] = {}
    for start in edges:
        seen, queue = set(), [start]
        while queue:
            new = edges[queue.pop()] - seen
            seen |= new
            queue += new
        reached[start] = seen
    return {frozenset(b for b in reached[a] if a in reached[b]) for a in edges if a in reached[a]}


def test_no_cycle_of_imports_has_more_than_four_modules():
    large = [sorted(cycle) for cycle in cycles(module_imports()) if len(cycle) > 4]
    assert not large, "\n".join(map(str, large))


def test_imports_in_functions_and_for_types_count():
    edges = module_imports()
    assert "kernbench.runtime_api._operators" in edges["kernbench.runtime_api.tensor"]
    assert "kernbench.runtime_api._devices" in edges["kernbench.runtime_api.tensor"]


def test_cycles_are_found():
    edges = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": set()}
    assert cycles(edges) == {frozenset("abc")}


def loaded_by(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(*sorted({{m.partition('.')[0] for m in sys.modules}}))"
    out = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    return set(out.splitlines()[-1].split())


def test_importing_the_package_loads_nothing_heavy():
    heavy = {
        "numpy",
        "pandas",
        "matplotlib",
        "simpy",
        "pydantic",
        "IPython",
        "ipywidgets",
        "papermill",
        "torch",
        "triton",
    }
    assert not loaded_by("import kernbench") & heavy


def test_the_explorer_opens_without_what_only_figures_need():
    assert not loaded_by("from kernbench.notebook import explore\nexplore()") & {"matplotlib", "pandas", "altair"}


def test_the_front_end_of_triton_imports_neither_triton_nor_torch():
    code = "import kernbench as kb\nkb.triton.on, kb.triton.load, kb.triton.autotune\nimport kernbench.triton._module"
    assert not loaded_by(code) & {"torch", "triton"}


def test_asking_for_help_loads_nothing_heavy():
    code = "from kernbench.cli.main import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n    pass"
    assert not loaded_by(code) & {"numpy", "pandas", "matplotlib", "simpy", "IPython", "ipywidgets", "papermill"}
