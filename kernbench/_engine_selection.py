"""Selects the engine: the compiled core, or its definition in plain Python.

`setup.py` compiles every module that has a `.pxd` file, next to its source, and records the hashes of the sources. A
core whose sources have changed since then is not used.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from importlib.util import source_hash
from pathlib import Path
from types import ModuleType

VARIABLE = "KERNBENCH_ENGINE"
CORE, DEFINITION = "core", "definition"

PACKAGE = Path(__file__).parent
SUFFIX = EXTENSION_SUFFIXES[0]  # of files built for this interpreter
RECORD = "core" + SUFFIX.rpartition(".")[0] + ".built"
_REMEDY = "run `make core`, or install kernbench again where there is a C compiler"


def modules() -> dict[str, Path]:
    """Return the source of each module of the core, by module name: those that have a `.pxd` file."""
    found = {}
    for declared in sorted(PACKAGE.rglob("*.pxd")):
        if declared.stem != "__init__":
            source = declared.with_suffix(".pyx")
            name = ".".join(declared.relative_to(PACKAGE.parent).with_suffix("").parts)
            found[name] = source if source.is_file() else declared.with_suffix(".py")
    return found


def built(source: Path) -> Path:
    return source.with_name(source.stem + SUFFIX)


def hash_of(source: Path) -> str:
    """Hash of a source, independent of line endings."""
    return source_hash(source.read_bytes().replace(b"\r\n", b"\n")).hex()


def read_record(package: Path) -> dict[str, str]:
    """Hashes of the sources of the core built in `package`, by relative path; empty if there is no core."""
    try:
        text = (package / RECORD).read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    return {path: digest for digest, path in (line.split(" ", 1) for line in text.splitlines())}


def fault(package: Path = PACKAGE) -> str:
    """Why the core in `package` cannot be used; empty if it can."""
    record = read_record(package)
    if not record:
        return f"the compiled core is not built for this Python; {_REMEDY}"
    changed = next((path for path, digest in record.items() if not is_built(package / path, digest)), "")
    return f"the compiled core was built before {package.name}/{changed} changed; {_REMEDY}" if changed else ""


def is_built(source: Path, digest: str) -> bool:
    """Whether the source is unchanged and, unless it only declares types, its built file exists."""
    try:
        return hash_of(source) == digest and (source.suffix == ".pxd" or built(source).is_file())
    except FileNotFoundError:
        return False


class SourceFinder:
    """Finds the modules of a package as `.py` files only, never their compiled files.

    The attributes of a compiled module are typed, so it works with the compiled core only.
    """

    def __init__(self, package: str) -> None:
        self._prefix = f"{package}."
        self._folders: dict[str, FileFinder] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """None leaves the module to the usual finders."""
        if path is None or not name.startswith(self._prefix):
            return None
        for folder in path:
            if folder not in self._folders:
                self._folders[folder] = FileFinder(folder, (SourceFileLoader, SOURCE_SUFFIXES))
            spec = self._folders[folder].find_spec(name, target)
            if spec is not None and spec.loader is not None:
                return spec
        return None

    def invalidate_caches(self) -> None:
        self._folders.clear()


_WANTED = os.environ.get(VARIABLE, "")
_FAULT = "" if _WANTED == DEFINITION else fault()
_ENGINE = DEFINITION if _FAULT or _WANTED == DEFINITION else CORE


@cache
def engine() -> str:
    """Return the engine that simulates in this process, "core" or "definition".

    Warns once if the definition simulates because there is no usable core; ConfigError if KERNBENCH_ENGINE names no
    engine, or a core that cannot be used.
    """
    from kernbench.errors import ConfigError

    if _WANTED not in {"", CORE, DEFINITION}:
        raise ConfigError([f"{VARIABLE}={_WANTED}: unknown engine; use {CORE} or {DEFINITION}"])
    if _FAULT and _WANTED:
        raise ConfigError([f"{VARIABLE}={_WANTED}: {_FAULT}"])
    if _FAULT:
        # Child processes use the same engine, and do not repeat the warning.
        os.environ[VARIABLE] = DEFINITION
        warnings.warn_explicit(
            f"{_FAULT}. The slower definition in Python simulates, with equal results", RuntimeWarning, "kernbench", 1
        )
    return _ENGINE


if _ENGINE == DEFINITION:
    sys.meta_path.insert(0, SourceFinder(__package__))
