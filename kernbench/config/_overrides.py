"""Overrides: values of a machine file that are set by dotted path, as texts path=value or in a mapping."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

import yaml

from kernbench.config._files import parse_yaml, problem
from kernbench.config._kinds import Fault, dotted, keys, model_at, unknown
from kernbench.config._schema import MachineConfig
from kernbench.errors import quote

_Path = tuple[str, ...]


def override(
    content: dict[str, Any], overrides: Mapping[str, object] | Sequence[str]
) -> tuple[set[_Path], list[Fault]]:
    """Set values in `content`, and return the paths that are set, and faults.

    The order does not matter: a group is set before the values in it.
    """
    if isinstance(overrides, str):
        overrides = [overrides]
    faults: list[Fault] = []
    pairs: Iterable[tuple[Any, Any]] = (
        overrides.items() if isinstance(overrides, Mapping) else _pairs(overrides, faults)
    )
    values: dict[_Path, object] = {}
    for name, value in pairs:
        if not isinstance(name, str) or not all(name.split(".")):
            faults.append(Fault(f"{quote(name)} is not a path; join names by dots, as in sip.cube_mesh.w", ()))
            continue
        path = tuple(name.split("."))
        if repr(values.setdefault(path, value)) != repr(value):  # nan is not equal to itself
            text = f"{name} is set to {quote(values[path])} and to {quote(value)}; keep one"
            faults.append(Fault(text, (path,)))
    overridden = set()
    for path, value in sorted(values.items(), key=lambda pair: len(pair[0])):
        fault = _unknown_part(path)
        if fault is not None:
            faults.append(fault)
            continue
        place: Any = content
        for part in path[:-1]:
            place = place.setdefault(part, {}) if isinstance(place, dict) else None
        if isinstance(place, dict):
            place[path[-1]] = plain(value)
            overridden.add(path)
    return overridden, faults


def _pairs(texts: Iterable[Any], faults: list[Fault]) -> Iterator[tuple[str, Any]]:
    for text in texts:
        path, equals, value = text.partition("=") if isinstance(text, str) else ("", "", "")
        if not equals or not path.strip():
            faults.append(Fault(f"{quote(text)} must be path=value, as in sip.cube_mesh.w=2", ()))
            continue
        try:
            content, doubles = parse_yaml(value)
        except yaml.YAMLError as error:
            wrong = problem(error, "correct it, or put it in quotes")
            faults.append(Fault(f"{quote(text)} has a value that {wrong}", (tuple(path.split(".")),)))
            continue
        faults += [Fault(f"{quote(text)}: {fault.text}", (tuple(path.split(".")),)) for fault in doubles]
        yield path.strip(), content


def _unknown_part(path: _Path) -> Fault | None:
    for depth, part in enumerate(path):
        here = path[: depth + 1]
        group = model_at(MachineConfig, path[:depth])
        if group is None:
            return Fault(f"{dotted(path)} is unknown; {dotted(path[:depth])} is a value, with no keys in it", (here,))
        if part not in keys(group):
            return unknown(here, group)
    return None


def plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    return deepcopy(value)


def value_at(spec: Mapping[str, Any], path: str, absent: Any = None) -> Any:
    value: Any = spec
    for key in path.split("."):
        value = value.get(key, absent) if isinstance(value, Mapping) else absent
    return value


def leaves(spec: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Values of a machine file by dotted path."""
    found: dict[str, Any] = {}
    for name, value in spec.items():
        path = f"{prefix}{name}"
        found |= leaves(value, f"{path}.") if isinstance(value, Mapping) else {path: value}
    return found
