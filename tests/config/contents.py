"""Contents of machine files, for tests: the default one, and copies of it with some values changed."""

from __future__ import annotations

import copy

import yaml

from kernbench import config
from kernbench.errors import ConfigError

DEFAULT = yaml.safe_load(config.preset_path("default").read_text(encoding="utf-8"))

# One PE on one cube, at the first router of a grid of any size.
ONE_PE = {
    "cube.pe_layout": {"pe_per_corner": 1, "corners": ["NW"]},
    "cube.m_cpu.pos_mm": [0, 0],
    "cube.sram.pos_mm": [0, 0],
    "cube.noc.removed": [],
}
GONE = object()


def changed(changes: dict[str, object]) -> dict:
    """Return the default content with other values at some paths; GONE takes the key away."""
    content = copy.deepcopy(DEFAULT)
    for path, value in changes.items():
        *groups, key = path.split(".")
        place = content
        for group in groups:
            place = place[group]
        if value is GONE:
            del place[key]
        else:
            place[key] = value
    return content


def leaves(content: object, path: tuple = ()) -> dict[str, object]:
    if not isinstance(content, dict):
        return {".".join(path): content}
    return {k: v for name, inner in content.items() for k, v in leaves(inner, (*path, name)).items()}


def faults(source, overrides=()) -> list[str]:
    """Return the lines of what is wrong, without the name of the source; none if nothing is."""
    try:
        config.read_machine(source, overrides)
    except ConfigError as error:
        return [line.partition(": ")[2] for line in error.faults]
    return []
