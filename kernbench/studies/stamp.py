"""Whether a report is what a run would write: its stamp says what it was made of, and what was written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from kernbench.sweeps.keys import code_version, only_ours
from kernbench.topology.builder import Machine

STAMP = "made_of.json"
_APART = (STAMP, "running.lock")
_DRAWN_BY = ("matplotlib", "numpy", "pandas")


def made_of(notebook: Path, values: Mapping[str, Any], machine: Machine) -> str | None:
    """Return a hash of all that a report follows from; None where that is not known, for code from elsewhere.

    Parameters
    ----------
    notebook : Path
        Its cells count, its outputs do not.
    values : mapping
        Its parameters.
    machine : Machine
    """
    if not only_ours(machine):
        return None
    cells = [cell["source"] for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]]
    costs = machine.config.cost.to_spec()
    drawn_by = [version(name) for name in _DRAWN_BY]
    parts = [cells, values, machine.hash, costs, code_version(), drawn_by]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def is_made(folder: Path, key: str | None) -> bool:
    """Return whether `folder` holds the report of `key`, with every file as it was written."""
    path = folder / STAMP
    if key is None or not path.is_file():
        return False
    try:
        made: Any = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return False
    return isinstance(made, dict) and made.get("key") == key and made.get("files") == _files(folder)


def foreign(folder: Path) -> list[Path]:
    """Return the files of a folder that no report wrote, as far as its stamp tells."""
    try:
        made: Any = json.loads((folder / STAMP).read_text(encoding="utf-8"))
        written = set(made["files"])
    except (OSError, ValueError, KeyError, TypeError):
        written = set()
    return [folder / name for name in _files(folder) if name not in written]


def stamp(folder: Path, key: str | None) -> None:
    """Say of the report in `folder` that it is that of `key`."""
    text = json.dumps({"key": key, "files": _files(folder)}, indent=1)
    (folder / STAMP).write_text(text + "\n", encoding="utf-8", newline="\n")


def _files(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in _APART)
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
