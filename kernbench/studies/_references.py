"""Results of other tools and measurements, as references: CSV, and the output of nccl-tests."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

import yaml

from kernbench._registry import hint
from kernbench._units import MIB
from kernbench.config._files import parse_yaml, problem, read_text
from kernbench.errors import ConfigError, quote

_Values = dict[str, Any]
Faults = list[str]

_COLUMNS = ("workload", "parameters", "value", "unit", "source")
_MOST_BYTES = 64 * MIB
TOOLS = f"nccl-tests output, or a CSV with the header {','.join(_COLUMNS)}"
# To the unit in which values are compared.
UNITS = {
    "ps": ("ns", 1e-3), "ns": ("ns", 1.0), "us": ("ns", 1e3), "ms": ("ns", 1e6), "s": ("ns", 1e9),
    "MB/s": ("GB/s", 1e-3), "GB/s": ("GB/s", 1.0), "TB/s": ("GB/s", 1e3), "cycles": ("cycles", 1.0),
    "flits/node/cycle": ("flits/node/cycle", 1.0),
}  # fmt: skip


@dataclass(frozen=True)
class Reference:
    """One number of the outside world: what ran there, the result, and where it is written.

    `refused` says why it cannot be compared; it is empty otherwise.
    """

    workload: str
    parameters: Mapping[str, Any]
    value: float
    unit: str
    source: str
    where: str  # file and line
    refused: str = field(default="", compare=False)


def read_references(paths: Sequence[str | Path]) -> list[Reference]:
    """Read CSV files and output of nccl-tests, in any mix.

    A ConfigError has a fault for each problem, with file, line and remedy.
    """
    texts = {Path(path): read_text(Path(path), _MOST_BYTES, "pass files of results") for path in paths}
    faults: Faults = []
    found: list[Reference] = []
    for path, text in texts.items():
        found += _read(path, text, faults)
    faults += _repeated(found)
    if not faults and not found:
        faults = [f"{', '.join(map(str, texts)) or 'no file'}: no result to compare; expected {TOOLS}"]
    if faults:
        raise ConfigError(faults)
    return found


def _read(path: Path, text: str, faults: Faults) -> Iterator[Reference]:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    first = next((line for line in lines if not line.startswith("#")), "")
    at = f"{path}: line {_line_of(text, first)}"
    if re.search(r"\bsize\s+count\s+type\b.*\bbusbw\b", text):
        yield from _nccl_tests(path, text, faults)
    elif {"workload", "value"} & {cell.strip().lower() for cell in first.split(",")}:
        yield from _csv(path, text, faults)
    elif not lines:
        faults.append(f"{path}: is empty; pass {TOOLS}")
    elif re.match(r"workload\s*[;\t]", first, re.IGNORECASE):
        faults.append(f"{at}: columns must be separated by commas; save it as CSV")
    else:
        faults.append(f"{at}: {quote(first)} is not the format of a supported tool; expected {TOOLS}")


def _line_of(text: str, line: str) -> int:
    return next((n for n, each in enumerate(text.splitlines(), 1) if each.strip() == line), 1)


def _repeated(found: Sequence[Reference]) -> Faults:
    first: dict[object, str] = {}
    faults = []
    for x in found:
        key = (x.workload, tuple(sorted((k, str(v)) for k, v in x.parameters.items())), x.unit, x.source)
        if key in first:
            faults.append(
                f"{x.where}: repeats {x.workload} of {first[key]} with the same parameters; remove one of them"
            )
        first.setdefault(key, x.where)
    return faults


# -- CSV


def _csv(path: Path, text: str, faults: Faults) -> Iterator[Reference]:
    rows = csv.reader(text.splitlines())
    header: list[str] = []
    for cells in rows:
        at = f"{path}: line {rows.line_num}"
        if not any(cell.strip() for cell in cells) or cells[0].lstrip().startswith("#"):
            continue
        if not header:
            header = [cell.strip().lower() for cell in cells]
            if sorted(header) != sorted(_COLUMNS):
                missing, extra = [c for c in _COLUMNS if c not in header], [c for c in header if c not in _COLUMNS]
                what = [f"column {c} is missing" for c in missing] + [f"column {quote(c)} is unknown" for c in extra]
                faults.append(f"{at}: {'; '.join(what) or 'a column is repeated'}; write {','.join(_COLUMNS)}")
                return
            continue
        if len(cells) != len(_COLUMNS):
            faults.append(f"{at}: has {len(cells)} cells, expected {len(_COLUMNS)}; quote values that contain a comma")
            continue
        row = dict(zip(header, (cell.strip() for cell in cells), strict=True))
        row["unit"] = re.sub("^[\u00b5\u03bc]s$", "us", row["unit"])  # the micro sign, and the letter mu
        parameters, value = _parameters(at, row["parameters"], faults), _number(at, "value", row["value"], faults)
        faults += [f"{at}: {name} is empty; state it" for name in ("workload", "source") if not row[name]]
        if row["unit"] not in UNITS:
            faults.append(f"{at}: unit = {quote(row['unit'])} is unknown; {hint(row['unit'], UNITS)}")
        elif value is not None and parameters is not None:
            unit, scale = UNITS[row["unit"]]
            yield Reference(row["workload"], parameters, value * scale, unit, row["source"], f"{path}:{rows.line_num}")
    if not header:
        faults.append(f"{path}: is empty; write the header {','.join(_COLUMNS)} and a row for each result")


def _parameters(at: str, text: str, faults: Faults) -> _Values | None:
    found: _Values = {}
    pairs = text.split(";") if ";" in text else re.sub(r"\s*=\s*", "=", text).split()
    for pair in filter(None, (part.strip() for part in pairs)):
        name, equals, value = (part.strip() for part in pair.partition("="))
        if not (name and equals and value):
            faults.append(f"{at}: parameters: {quote(pair)} must be key=value; separate pairs by semicolons")
            return None
        if name in found:
            faults.append(f"{at}: parameters: {name} is repeated; remove one of them")
            return None
        try:
            found[name] = parse_yaml(value)[0] if "." in name else _scalar(value)
        except yaml.YAMLError as error:
            faults.append(f"{at}: parameters: {name} {problem(error, 'put the value in quotes')}")
            return None
    return found


def _scalar(text: str) -> int | float | str:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def _number(at: str, name: str, text: str, faults: Faults) -> float | None:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not (isfinite(value) and value > 0):
        faults.append(f"{at}: {name} = {quote(text)} must be a number above 0")
        return None
    return value


# -- nccl-tests (rccl-tests prints the same)

# What each program of nccl-tests times, as it is named here; empty: it is not timed here.
_COLLECTIVES = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter",
    "broadcast": "broadcast", "reduce": "reduce", "alltoall": "all_to_all", "sendrecv": "", "gather": "", "scatter": "",
    "hypercube": "",
}  # fmt: skip
_TYPES = {"float": "f32", "half": "f16", "bfloat16": "bf16", "int8": "i8", "fp8_e4m3": "f8e4m3fn", "fp8_e5m2": "f8e5m2"}
_TAG = re.compile(r"^(\[[\d,]+\](<std(out|err)>)?:?\s?)+")  # what mpirun and srun put before a line


def _nccl_tests(path: Path, text: str, faults: Faults) -> Iterator[Reference]:
    lines = [_TAG.sub("", line) for line in text.splitlines()]
    named, ranks = re.search("|".join(_COLLECTIVES), path.name), set[str]()
    name = named[0] if named else ""
    library, source = re.search(r"NCCL version (\S+)|library=(\S+)", text), path.name
    source = f"{'rccl' if 'rccl' in text else 'nccl'}-tests" + (f", {library[0]}" if library else "") + f" ({source})"
    threads = re.search(r"nGpus (\d+)", text)
    devices = {"devices_per_thread": int(threads[1])} if threads and int(threads[1]) > 1 else {}
    columns: list[str] = []
    for number, line in enumerate(lines, 1):
        words, at = line.strip("# ").split(), f"{path}: line {number}"
        if named := re.search(rf"({'|'.join(_COLLECTIVES)})_perf", line):  # of several runs, the latest
            name = named[1]
        if line.strip("# ").startswith("Using devices"):
            ranks = set()
        if rank := re.match(r"#?\s*Rank\s+(\d+)\s", line):
            ranks.add(rank[1])
        if words[:3] == ["size", "count", "type"]:
            columns = words[: words.index("time") + 1] if "time" in words else []
            if not columns:
                faults.append(f"{at}: column time is missing; keep the header of nccl-tests")
            if not name:
                faults.append(
                    f"{at}: no line before names the collective; add the command line, as in # ./all_reduce_perf -b 8"
                )
            if not ranks:
                faults.append(
                    f"{at}: no line before lists the ranks ('#  Rank  0 ... device ...'); keep the head of the output"
                )
            if not (columns and name and ranks):
                return
            continue
        if not columns or line.lstrip().startswith("#") or not re.match(r"\d+$", words[0] if words else ""):
            continue
        if len(words) < len(columns):
            faults.append(f"{at}: has {len(words)} columns, the header names {len(columns)}; remove the damaged line")
            continue
        row = dict(zip(columns, words, strict=False))
        if row["size"] == "0":
            continue
        us, kind = _number(at, "time", row["time"], faults), _TYPES.get(row["type"])
        operation = row.get("redop", "none")
        refused = "" if kind else f"element type {row['type']} does not exist here"
        if not _COLLECTIVES[name]:
            known = ", ".join(program for program, ours in _COLLECTIVES.items() if ours)
            refused = f"{name} is not timed here; known: {known}"
        refused = refused or ("" if operation in ("sum", "none") else f"redop {operation}: only sum is timed here")
        if us is not None:
            given = {"bytes": int(row["size"]), "ranks": len(ranks), "dtype": kind or row["type"], "redop": operation}
            given |= devices
            given = {key: value for key, value in given.items() if (key, value) not in _PLAIN}
            yield Reference(_COLLECTIVES[name] or name, given, us * 1e3, "ns", source, f"{path}:{number}", refused)
    if not columns:
        faults.append(f"{path}: the header 'size count type ... time' is commented out in no known way; keep it")


_PLAIN = {("redop", "sum"), ("redop", "none")}
