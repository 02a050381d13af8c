"""The JSON schema of machine files, for editors."""

from __future__ import annotations

from typing import Any

from kernbench.config.files import presets
from kernbench.config.read import BASE
from kernbench.config.schema import MachineConfig

_PARTIAL = "Partial"


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of machine files: bounds, units, and a description of each key.

    A file that names a `base` may leave any key out; another one may not.
    """
    from pydantic import TypeAdapter

    schema = TypeAdapter(MachineConfig).json_schema()
    groups = schema.pop("$defs")
    groups["Machine"] = schema
    partial = {name + _PARTIAL: _without_required(group) for name, group in groups.items() if "properties" in group}
    top = partial.pop("Machine" + _PARTIAL)
    top["properties"][BASE] = {
        "enum": presets(),
        "description": "Preset that supplies every key that is left out",
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **_with_units(top),
        "title": "kernbench machine",
        "if": {"not": {"required": [BASE]}},
        "then": {"$ref": "#/$defs/Machine"},
        "$defs": {name: _with_units(group) for name, group in (groups | partial).items()},
    }


def _without_required(node: Any) -> Any:
    """Return a copy that requires nothing and refers to the partial groups."""
    if isinstance(node, list):
        return [_without_required(inner) for inner in node]
    if not isinstance(node, dict):
        return node
    return {
        name: inner + _PARTIAL if name == "$ref" else _without_required(inner)
        for name, inner in node.items()
        if name != "required"
    }


def _with_units(node: Any) -> Any:
    """Return a copy in which descriptions, which is what editors show, end with the unit."""
    if isinstance(node, list):
        return [_with_units(inner) for inner in node]
    if not isinstance(node, dict):
        return node
    copy = {name: _with_units(inner) for name, inner in node.items() if name != "title"}
    if "unit" in copy:
        copy["description"] = f"{copy.get('description', '')} [{copy['unit']}]".strip()
    return copy
