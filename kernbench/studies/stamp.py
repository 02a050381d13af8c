"""Whether a report is what a run would write: its stamp says what it was made of, and what was written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from kernbench.config.files import damaged, read_json, write_text
from kernbench.errors import ConfigError
from kernbench.sweeps.keys import code_version, only_ours
from kernbench.topology.builder import Machine

STAMP = "made_of.json"
_APART = (STAMP, "running.lock")
_DRAWN_BY = ("matplotlib", "numpy", "pandas")


def read_cells(notebook: Path) -> list[str]:
    """Return the sources of a notebook's cells.

    Raises
    ------
    ConfigError
        If the file is missing, or is no notebook.
    """
    what, remedy = "notebook", "restore it from version control"
    content = read_json(notebook, what, remedy)
    with damaged(notebook, what, remedy):
        return ["".join(cell["source"]) for cell in content["cells"]]


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
    costs = machine.config.cost.to_spec()
    drawn_by = [version(name) for name in _DRAWN_BY]
    parts = [read_cells(notebook), values, machine.hash, costs, code_version(), drawn_by]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def is_made(folder: Path, key: str | None) -> bool:
    """Return whether `folder` holds the report of `key`, with every file as it was written."""
    made = _read(folder)
    return key is not None and made.get("key") == key and made.get("files") == _files(folder)


def foreign(folder: Path) -> list[Path]:
    """Return the files of a folder that no report wrote, as far as its stamp tells."""
    written = _read(folder).get("files")
    written = written if isinstance(written, dict) else {}
    return [folder / name for name in _files(folder) if name not in written]


def stamp(folder: Path, key: str | None) -> None:
    """Say of the report in `folder` that it is that of `key`."""
    text = json.dumps({"key": key, "files": _files(folder)}, indent=1)
    write_text(folder / STAMP, text + "\n")


def _read(folder: Path) -> dict[str, Any]:
    """Return a folder's stamp; an empty one if that is missing or damaged."""
    try:
        return read_json(folder / STAMP, "stamp", "run the study again")
    except ConfigError:
        return {}


def _files(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in _APART)
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
