"""The results file of a study: rows, and what they belong to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernbench.errors import KernbenchError
from kernbench.studies.points import Row

SCHEMA_VERSION = 1


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
    part = path.with_suffix(".part")
    part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8", newline="\n")
    part.replace(path)
    return path


def read_results(path: Path) -> dict[str, Any]:
    """Return what `write_results` wrote.

    Raises
    ------
    KernbenchError
        If there is none, or it has another schema version.
    """
    if not path.is_file():
        raise KernbenchError(f"{path}: no results to draw; run the study first (without rerender)")
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if (version := content.get("schema_version")) != SCHEMA_VERSION:
        raise KernbenchError(f"{path}: schema_version = {version} must be {SCHEMA_VERSION}; run the study again")
    return content
