"""Cache keys: machine, study, parameters, and the version of the code."""

from __future__ import annotations

import ast
import hashlib
import json
import sys
import sysconfig
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, lru_cache, partial
from importlib.util import resolve_name
from inspect import isclass, isfunction, ismethod
from pathlib import Path
from types import ModuleType
from typing import Any

from kernbench.config import default_ccl_path, find, read_ccl
from kernbench.config._ccl import PROGRAM, module_spec, user_components
from kernbench.errors import ConfigError
from kernbench.topology.builder import Machine, resolve_topology

Row = dict[str, Any]
StudyFn = Callable[..., Row]

_CODE = {".py", ".pyx", ".pxd", ".yaml", ".csv"}
_STUDIES = "kernbench.studies"
# Imports of a study are followed into these modules: their content decides its rows.
_FOLLOWED = (
    _STUDIES,
    "kernbench.sweeps._measure",
    "kernbench.sweeps._energy_area",
    "kernbench.serving.",
    "kernbench.torch.",
    "kernbench.triton.",
)
_SHOWING = tuple(f"{_STUDIES}.{name}" for name in ("study", "_page", "_findings"))
# The modules that run and write MSCCL programs: part of the version where ccl.yaml names such a program.
_MSCCL = ("ccl/_msccl.py", "ccl/_msccl_program.py", "ccl/_msccl_writer.py")
# Decide rows only where a study imports them: of sweeps only `measure`; predictions and the rest never.
_APART = (
    "viz", "points", "sweeps", "benches", "cli", "notebook", "pipeline", "serving", "triton", "torch",
    "analysis/_what_if", "analysis/_chakra.py", "chakra.py",
    "_engine_selection.py",
    "compat.py", *_MSCCL,
)  # fmt: skip


@cache
def code_version(study: str = "") -> str:
    """Hash the package's sources and data files: results of other code are not reused.

    For a module in `kernbench.studies`, only files that its rows can depend on count: neither those that draw and
    show them nor other studies. The sources of the compiled core count; its built files do not, so that the hash is
    the same without a core.
    """
    root = Path(__file__).parents[1]
    files = {path for path in root.rglob("*") if path.suffix in _CODE}
    if study.startswith(f"{_STUDIES}."):
        own = _simulating(root, study)
        files = {path for path in files if _decides_rows(path.relative_to(root)) or path in own}
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes().replace(b"\r\n", b"\n"))
    return digest.hexdigest()[:12]


def _decides_rows(path: Path) -> bool:
    names = path.name == "__init__.py" or path == Path("_names.py")  # where public names are
    if names or any(path.is_relative_to(part) for part in _APART):
        return False
    return path.parts[0] != "studies" or path.suffix != ".py"


def _simulating(root: Path, study: str) -> set[Path]:
    """Return the files of a study and of its imports in `_FOLLOWED`, without the base class of studies and reports."""
    found: set[Path] = set()
    todo = [study]
    while todo:
        name = todo.pop()
        path = root.parent.joinpath(*name.split(".")).with_suffix(".py")
        if path in found or not path.is_file() or name in _SHOWING or name.endswith("_report"):
            continue
        found.add(path)
        todo += [other for other in _imports(path) if other.startswith(_FOLLOWED)]
    return found


def _imports(path: Path, package: str = "") -> set[str]:
    """Return the names that a module of a package imports; those of `from ... import` as if each were a module."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            with suppress(ImportError):  # a relative import beyond the top
                module = resolve_name("." * node.level + (node.module or ""), package)
                found |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return found


def _user_code(*modules: str) -> bytes:
    """Content of modules of the user's and of those that they import, none of which is run; others do not count."""
    found: dict[str, bytes] = {}
    todo = list(modules)
    while todo:
        name = todo.pop()
        file = _user_file(name) if name not in found else None
        if file is not None:
            found[name] = file.read_bytes()
            with suppress(SyntaxError):  # importing it reports that
                package = name if file.name == "__init__.py" else name.rpartition(".")[0]
                todo += [*_imports(file, package), package]
    return b"".join(found[name] for name in sorted(found))


def _user_file(name: str) -> Path | None:
    spec, place = None, None
    for i, _ in enumerate(parts := name.split("."), 1):
        spec = module_spec(".".join(parts[:i]), place)
        if spec is None or (spec.origin and not _is_user_file(Path(spec.origin))):
            return None
        place = list(spec.submodule_search_locations or ())
    return Path(spec.origin) if spec and spec.origin and spec.origin.endswith(".py") else None


def _is_user_file(path: Path) -> bool:
    roots = (Path(__file__).parents[1], *(Path(path) for path in sysconfig.get_paths().values()))
    return path.is_file() and not any(path.resolve().is_relative_to(root.resolve()) for root in roots)


def study_name(fn: StudyFn) -> str:
    fn, _ = _inner(fn)
    if ismethod(fn):
        return f"{_owner(fn).__module__}:{_owner(fn).__qualname__}.{fn.__name__}"
    return f"{fn.__module__}:{getattr(fn, '__qualname__', type(fn).__name__)}"


def _owner(fn: StudyFn) -> Any:
    """Return the function, or the class of the object whose method this is."""
    return type(fn.__self__) if ismethod(fn) else fn


def study_version(fn: StudyFn) -> str:
    """Return the version of a study's code: that of the package, and for a user's study also of its modules.

    A function of a notebook or script, or one made by another function, is pickled with the values that it uses, and so
    are values bound by a partial; the nearest ccl.yaml counts if it differs from the packaged one: studies of
    collectives read it. Modules that a function of a notebook uses, and installed ones, do not count.
    """
    fn, bound = _inner(fn)
    owner = _owner(fn)
    module: str = owner.__module__
    package = code_version(module)
    file = getattr(sys.modules.get(module), "__file__", None)
    named = isfunction(owner) or isclass(owner)
    stands_in_file = named and "<locals>" not in owner.__qualname__ and file and module != "__main__"
    parts = [] if stands_in_file else [_pickled(fn)]
    parts += [_pickled(bound)] if bound else []
    collectives, packaged = _collectives()
    parts += [collectives] if collectives != packaged else []
    if stands_in_file and module.partition(".")[0] != __package__.partition(".")[0]:
        parts.append(_user_code(module) or Path(str(file)).read_bytes())
    own = hashlib.sha256(b"".join(parts)).hexdigest()[:12]
    return f"{package}+{own}" if parts else package


def own_module(fn: StudyFn) -> ModuleType | None:
    """Return the module of a user's study: a file that is not installed; else None."""
    fn, _ = _inner(fn)
    name: str = _owner(fn).__module__
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if module is None or file is None or name == "__main__":
        return None
    return module if _is_user_file(Path(file)) else None


def only_ours(machine: Machine) -> bool:
    """Return True if only this package decides the machine's times: its components and ccl.yaml are not the user's."""
    collectives, packaged = _collectives()
    return collectives == packaged and not any(user_components(machine.spec))


def key_of(study: str, version: str, machine: str, parameters: Mapping[str, Any]) -> str:
    text = json.dumps([study, version, machine, parameters], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def sweep_key(study: str, version: str, machine: Machine, parameters: Mapping[str, Any]) -> str:
    """Return the key of a point; it also has what the machine's hash omits: costs and code of the user's components."""
    decides: dict[str, Any] = {"parameters": parameters, "cost": machine.config.cost.to_spec()}
    if modules := sorted({impl.partition(":")[0] for _, impl in user_components(machine.spec)}):
        decides["code"] = hashlib.sha256(_user_code(*modules)).hexdigest()
    return key_of(study, version, machine.hash, decides)


def machine_of(spec: Mapping[str, Any], overrides: Mapping[str, Any] | None = None) -> Machine:
    """Return the machine of a point, cached per process: its points share the graph."""
    return _machine(json.dumps(dict(spec), sort_keys=True), json.dumps(overrides or {}, sort_keys=True))


@lru_cache(maxsize=32)
def _machine(spec: str, overrides: str) -> Machine:
    return resolve_topology(json.loads(spec), json.loads(overrides))


def _collectives() -> tuple[bytes, bytes]:
    """Return the nearest ccl.yaml, with its MSCCL programs and the code that runs them, and the packaged one."""
    file = find("ccl.yaml")
    nearest, packaged = (path.read_bytes().replace(b"\r\n", b"\n") for path in (file, default_ccl_path()))
    if nearest != packaged:
        programs: list[Path] = []
        with suppress(ConfigError):  # studies that read the file report its faults
            entries = read_ccl(file).algorithms.values()
            programs = sorted({Path(entry.module) for entry in entries if entry.module.endswith(PROGRAM)})
        code = [Path(__file__).parents[1] / path for path in _MSCCL] if programs else []
        nearest += b"".join(path.read_bytes() for path in (*programs, *code))
    return nearest, packaged


def _inner(fn: StudyFn) -> tuple[StudyFn, list[Any]]:
    """Return the function behind partials, or the program that a partial measures, and the bound values."""
    bound: list[Any] = []
    while isinstance(fn, partial):
        first, *rest = (*fn.args, None)
        if callable(first):
            rest, inner = rest[:-1], first
        else:
            rest, inner = list(fn.args), fn.func
        bound += [*rest, *sorted(fn.keywords.items())]
        fn = inner
    return fn, bound


def _pickled(value: Any) -> bytes:
    import cloudpickle

    return cloudpickle.dumps(value)
