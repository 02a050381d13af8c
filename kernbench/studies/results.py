"""The results file of a study: rows, and what they belong to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernbench.config.files import damaged, read_json, write_text
from kernbench.errors import ConfigError, MissingFileError
from kernbench.studies.points import Row

SCHEMA_VERSION = 2
_TRUST = ("mode", "certified", "certificate")  # columns of version 1, whose engine could also estimate


def write_results(path: Path, rows: Sequence[Row], **more: Any) -> Path:
    """Write `rows`, and `more` before them, as JSON; an earlier file stays until the new one is whole."""
    first = rows[0]
    content = {
        "schema_version": SCHEMA_VERSION,
        "machine": first["machine"],
        "code_version": first["code_version"],
        **more,
        "rows": list(rows),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_text(path, json.dumps(content, indent=1) + "\n")


def read_results(path: Path) -> dict[str, Any]:
    """Return what `write_results` wrote.

    Raises
    ------
    ConfigError
        If there is none, it has another schema version, or it holds estimates, as version 1 could.
    """
    if not path.is_file():
        raise MissingFileError(f"{path}: no results to draw; run the study first (without rerender)")
    what, remedy = "file of results", "run the study again"
    content = read_json(path, what, remedy)
    version = content.get("schema_version")
    if version not in (1, SCHEMA_VERSION):
        raise ConfigError(f"{path}: schema_version = {version} must be {SCHEMA_VERSION}; run the study again")
    with damaged(path, what, remedy):
        rows = [dict(row.items()) for row in content["rows"]]
    content["rows"] = [_simulated(path, row) for row in rows] if version == 1 else rows
    return content


def _simulated(path: Path, row: Row) -> Row:
    """Return a row of version 1 without the columns that said how far to trust it, if it was simulated exactly."""
    if row.get("certified") is False or ", more than " in str(row.get("left_out")):
        raise ConfigError(f"{path}: it holds estimates, or points left out for their size; run the study again")
    return {name: value for name, value in row.items() if name not in _TRUST}
