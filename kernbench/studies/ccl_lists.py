"""Sizes of all-reduces in real programs, packaged as they were published or follow from published dimensions."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from importlib.resources import files

from kernbench.errors import ArgumentError
from kernbench.registry import hint

LISTS = {"deepbench": "deepbench_allreduce.csv", "llama3-70b": "llama3_70b_allreduce.csv"}
# The types in which the lists count bytes.
TYPES = {"deepbench": "f32", "llama3-70b": "bf16"}


@dataclass(frozen=True, slots=True)
class Size:
    """An all-reduce of a list: `nbytes` of every rank, in elements of `dtype`."""

    list: str
    name: str
    nbytes: int
    dtype: str


def sizes(name: str) -> list[Size]:
    """Return the sizes of a list: "deepbench", or "llama3-70b" (tensor parallelism, by tokens in flight).

    Raises
    ------
    ArgumentError
        If there is no such list.

    Examples
    --------
    >>> sizes("llama3-70b")[0]
    Size(list='llama3-70b', name='1 token', nbytes=16384, dtype='bf16')
    """
    if name not in LISTS:
        raise ArgumentError(f"list {name!r} is unknown; {hint(name, LISTS)}")
    rows = csv.DictReader(line for line in _text(name).splitlines() if not line.startswith("#"))
    return [Size(name, _title(row), int(row["bytes"]), TYPES[name]) for row in rows]


def source(name: str) -> str:
    """Return where a list is from, as its file says."""
    lines = _text(name).splitlines()
    return " ".join(line.lstrip("# ") for line in lines if line.startswith("#"))


def _title(row: dict[str, str]) -> str:
    if "tokens" in row:
        return f"{row['tokens']} token{'s' if row['tokens'] != '1' else ''}"
    return f"{int(row['elements_fp32']):,} elements"


def _text(name: str) -> str:
    return (files("kernbench.studies") / "data" / LISTS[name]).read_text(encoding="utf-8")
