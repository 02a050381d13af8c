"""Checks of arguments before anything runs; each fault names the field, its value and what is expected."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernbench._registry import hint
from kernbench.errors import ArgumentError, ConfigError, quote

if TYPE_CHECKING:
    import pandas as pd


def whole(name: str, value: object, least: int, unit: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name} = {quote(value)} must be >= {least}{unit}, a whole number")


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def mapping(name: str, value: object, holds: str) -> None:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} = {quote(value)} must be a mapping of {holds}")
    for key in value:
        if not isinstance(key, str):
            raise ConfigError(f"{name}: the name {quote(key)} must be a text")


def listed(name: str, value: object) -> None:
    if isinstance(value, (str, Mapping)) or not isinstance(value, Sequence):
        raise ConfigError(f"{name} = {quote(value)} must be a list of settings, as in [{{k: 64}}, {{k: 128}}]")
    for i, one in enumerate(value):
        mapping(f"{name}[{i}]", one, "fields and parameters to values")


def check_columns(table: pd.DataFrame, names: Sequence[str]) -> None:
    for name in names:
        if name not in table:
            raise ArgumentError(f"column {name!r} is not in the table; {hint(name, map(str, table.columns))}")


def json_values(settings: Mapping[str, Any]) -> None:
    """Refuse values that JSON cannot hold, because points are stored as JSON."""
    for name, value in settings.items():
        try:
            json.dumps(value, sort_keys=True)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"{name} = {quote(value)} must be a plain value (number, text, true, null, or lists and mappings of "
                f"them; of a numpy value its .tolist()), since a point is written as JSON: {error}"
            ) from error


def folder_of(given: object) -> Path | None:
    if given is None:
        return None
    if not isinstance(given, (str, Path)):
        raise ConfigError(f"folder = {quote(given)} must be the path of a folder")
    folder = Path(given)
    there = next((path for path in (folder, *folder.parents) if path.exists()), None)
    if there is not None and not there.is_dir():
        raise ConfigError(f"folder = {quote(str(given))} must be a folder, or a new one; {there} is a file")
    return folder
