"""What a finished point is found by: machine, study, parameters, and the version of the code that made it."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Mapping
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

from kernbench.topology.builder import Machine, resolve_topology

Row = dict[str, Any]
Study = Callable[..., Row]


@cache
def code_version() -> str:
    """Return the hash of the package's sources and data files: results of other code are not reused."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(p for p in root.rglob("*") if p.suffix in {".py", ".yaml", ".csv"}):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes().replace(b"\r\n", b"\n"))
    return digest.hexdigest()[:12]


def study_name(fn: Study) -> str:
    """Return `module:function` of a study."""
    fn = _inner(fn)
    return f"{fn.__module__}:{getattr(fn, '__qualname__', type(fn).__name__)}"


def study_version(fn: Study) -> str:
    """Return the version of the code of a study: the package's, and for one from elsewhere its own file's as well.

    A function of a notebook or script has no file of its own that could be trusted: it counts with the values that it
    uses. What a module outside the package imports in turn is not looked at.
    """
    fn = _inner(fn)
    if fn.__module__.partition(".")[0] == __package__.partition(".")[0]:
        return code_version()
    file = getattr(sys.modules.get(fn.__module__), "__file__", None)
    if fn.__module__ == "__main__" or file is None:
        import cloudpickle

        own = cloudpickle.dumps(fn)
    else:
        own = Path(file).read_bytes()
    return f"{code_version()}+{hashlib.sha256(own).hexdigest()[:12]}"


def key_of(study: str, version: str, machine: str, parameters: Mapping[str, Any]) -> str:
    """Return the key of a point; `machine` is the hash of the machine."""
    text = json.dumps([study, version, machine, parameters], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def machine_of(spec: Mapping[str, Any], overrides: Mapping[str, Any] | None = None) -> Machine:
    """Return the machine of a point, made once per process: its points share the graph."""
    return _machine(json.dumps(dict(spec), sort_keys=True), json.dumps(overrides or {}, sort_keys=True))


@lru_cache(maxsize=8)
def _machine(spec: str, overrides: str) -> Machine:
    return resolve_topology(json.loads(spec), json.loads(overrides))


def _inner(fn: Study) -> Study:
    """Return the function that a study is about: of a partial, the function that it was given first, if it was."""
    while isinstance(fn, partial):
        fn = fn.args[0] if fn.args and callable(fn.args[0]) else fn.func
    return fn
