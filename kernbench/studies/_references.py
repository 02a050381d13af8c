"""Results of other tools and measurements, as references: CSV, nccl-tests, SCALE-Sim, BookSim2 and Ramulator2."""

from __future__ import annotations

import configparser
import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
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

Values = dict[str, Any]
Faults = list[str]

COLUMNS = ("workload", "parameters", "value", "unit", "source")
MOST_BYTES = 64 * MIB
TOOLS = "nccl-tests output, a SCALE-Sim COMPUTE_REPORT.csv, a BookSim2 log, Ramulator2 statistics, or a CSV"
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
    """Return the references in files, in order.

    Parameters
    ----------
    paths : sequence of paths
        Any mix of supported files. A SCALE-Sim report contains no layer sizes: pass the topology and the configuration
        of its run, too.

    Returns
    -------
    list of Reference

    Raises
    ------
    ConfigError
        If a file is missing, unknown or malformed: one fault for each problem, with file, line and remedy.
    """
    texts = {Path(path): read_text(Path(path), MOST_BYTES, "pass files of results") for path in paths}
    faults: Faults = []
    found: list[Reference] = []
    kinds = {path: _kind(path, text, faults) for path, text in texts.items()}
    for path, text in texts.items():
        if kinds[path] in _READERS:
            found += _READERS[kinds[path]](path, text, faults)
    faults += _repeated(found)
    # A network contains the same layer several times.
    found += _scale_sim({kind: [p for p in texts if kinds[p] == kind] for kind in _SCALE_SIM}, texts, faults)
    if not faults and not found:
        faults = [f"{', '.join(map(str, texts)) or 'no file'}: no result to compare; expected {TOOLS}"]
    if faults:
        raise ConfigError(faults)
    return found


def _kind(path: Path, text: str, faults: Faults) -> str:
    """Return which tool wrote a file, by its content."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    first = next((line for line in lines if not line.startswith("#")), "")
    cells = [cell.strip().lower() for cell in first.split(",")]
    if re.search(r"\bsize\s+count\s+type\b.*\bbusbw\b", text):
        return "nccl-tests"
    if "BEGIN Configuration File" in text or re.search(r"^Packet latency average = ", text, re.MULTILINE):
        return "BookSim2"
    if "[architecture_presets]" in text:
        return "cfg"
    if "layerid" in cells and "total cycles" in cells:
        return "report"
    if {"m", "n", "k"} <= set(cells) or "ifmap height" in cells:
        return "topology"
    if re.search(r"^memory_system:|^MemorySystem:", text, re.MULTILINE):
        return "Ramulator2"
    if "workload" in cells or "value" in cells:
        return "CSV"
    if not lines:
        faults.append(f"{path}: is empty; pass {TOOLS}")
        return ""
    if re.match(r"workload\s*[;\t]", first, re.IGNORECASE):
        faults.append(f"{path}: line {_line_of(text, first)}: columns must be separated by commas; save it as CSV")
        return ""
    faults.append(
        f"{path}: line {_line_of(text, first)}: {quote(first)} is not the format of a supported tool; "
        f"expected {TOOLS} with the header {','.join(COLUMNS)}"
    )
    return ""


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
            if sorted(header) != sorted(COLUMNS):
                missing, extra = [c for c in COLUMNS if c not in header], [c for c in header if c not in COLUMNS]
                what = [f"column {c} is missing" for c in missing] + [f"column {quote(c)} is unknown" for c in extra]
                faults.append(f"{at}: {'; '.join(what) or 'a column is repeated'}; write {','.join(COLUMNS)}")
                return
            continue
        if len(cells) != len(COLUMNS):
            faults.append(f"{at}: has {len(cells)} cells, expected {len(COLUMNS)}; quote values that contain a comma")
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
        faults.append(f"{path}: is empty; write the header {','.join(COLUMNS)} and a row for each result")


def _parameters(at: str, text: str, faults: Faults) -> Values | None:
    found: Values = {}
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

# -- SCALE-Sim

_SCALE_SIM = ("report", "topology", "cfg")
_DATAFLOWS = {"ws": "weight_stationary", "os": "output_stationary", "is": "input_stationary"}


def _scale_sim(files: Mapping[str, Sequence[Path]], texts: Mapping[Path, str], faults: Faults) -> Iterator[Reference]:
    if not files["report"]:
        for path in (*files["topology"], *files["cfg"]):
            faults.append(f"{path}: is an input of SCALE-Sim; pass the COMPUTE_REPORT.csv of its run, too")
        return
    report = files["report"][0]
    for kind, what in (("topology", "the topology (a CSV with Layer,M,N,K)"), ("cfg", "the configuration (.cfg)")):
        if len(files[kind]) != 1:
            faults.append(f"{report}: contains no layer sizes; pass {what} of its run, too ({len(files[kind])} given)")
    faults += [f"{path}: is a second report; pass one run of SCALE-Sim at a time" for path in files["report"][1:]]
    if faults:
        return
    array = _array(files["cfg"][0], texts[files["cfg"][0]], faults)
    layers = _layers(files["topology"][0], texts[files["topology"][0]], faults)
    rows = list(csv.reader(texts[report].splitlines()))
    header = [cell.strip() for cell in rows[0]]
    body = [
        (n, [cell.strip() for cell in cells]) for n, cells in enumerate(rows[1:], 2) if any(c.strip() for c in cells)
    ]
    if len(body) != len(layers) and not faults:
        faults.append(
            f"{report}: has {len(body)} layers, {files['topology'][0]} has {len(layers)}; pass those of one run"
        )
    if faults:
        return
    for (number, cells), (name, layer) in zip(body, layers, strict=True):
        at = f"{report}: line {number}"
        row = dict(zip(header, cells, strict=False))
        total = _number(at, "Total Cycles", row.get("Total Cycles", ""), faults)
        try:
            stalls = float(row.get("Stall Cycles", "0"))
        except ValueError:
            faults.append(f"{at}: Stall Cycles = {quote(row['Stall Cycles'])} must be a number")
            continue
        if total is not None:
            source = f"SCALE-Sim ({report.name}), stall-free"
            workload = f"{files['topology'][0].stem} {name}"
            yield Reference(workload, layer | array, total - stalls, "cycles", source, f"{report}:{number}")


def _array(path: Path, text: str, faults: Faults) -> Values:
    """Return rows, columns and dataflow of a configuration."""
    parser = configparser.ConfigParser(inline_comment_prefixes=("#", ";"))
    try:
        parser.read_string(text)
        section = dict(parser["architecture_presets"])
    except (configparser.Error, KeyError) as error:
        faults.append(f"{path}: is not a SCALE-Sim configuration ({' '.join(str(error).split())}); restore it")
        return {}
    rows = _number(str(path), "ArrayHeight", section.get("arrayheight", ""), faults)
    columns = _number(str(path), "ArrayWidth", section.get("arraywidth", ""), faults)
    dataflow = section.get("dataflow", "").lower()
    if dataflow not in _DATAFLOWS:
        faults.append(f"{path}: Dataflow = {quote(dataflow)} is unknown; use one of {', '.join(_DATAFLOWS)}")
        return {}
    return {"rows": int(rows or 0), "cols": int(columns or 0), "dataflow": _DATAFLOWS[dataflow]}


def _layers(path: Path, text: str, faults: Faults) -> list[tuple[str, Values]]:
    """Return the name and m, k, n of each layer; of a convolution, those of the product that SCALE-Sim makes of it."""
    lines = [(n, [c.strip() for c in line.split(",") if c.strip()]) for n, line in enumerate(text.splitlines(), 1)]
    lines = [(n, cells) for n, cells in lines if cells]
    names = [cell.lower() for cell in lines[0][1]]
    gemm = {"m", "n", "k"} <= set(names)
    found: list[tuple[str, Values]] = []
    for number, cells in lines[1:]:
        at = f"{path}: line {number}"
        given = dict(zip(names, cells, strict=False))
        try:
            if gemm:
                size = {name: int(given[name]) for name in ("m", "k", "n")}
            else:
                high, wide, tall, broad, depth, filters, stride = (int(cell) for cell in cells[1:8])
                pixels = (-(-(high - tall + stride) // stride)) * (-(-(wide - broad + stride) // stride))
                size = {"m": pixels, "k": tall * broad * depth, "n": filters}
        except (KeyError, ValueError, ZeroDivisionError):
            faults.append(
                f"{at}: {quote(', '.join(cells))} does not fit the header; write whole numbers for each column"
            )
            continue
        if min(size.values()) < 1:
            faults.append(f"{at}: sizes must be at least 1, not {size}")
        found.append((cells[0], size))
    return found


# -- BookSim2

# BookSim2's hotspot is another traffic for each list of terminals and rates.
_NETWORKS = {"topology": ("mesh", "torus"), "traffic": ("uniform", "transpose", "tornado")}


def _booksim2(path: Path, text: str, faults: Faults) -> Iterator[Reference]:
    _, begin, after = text.partition("BEGIN Configuration File")
    config_text, end, results = after.partition("END Configuration File")
    if not (begin and end):
        faults.append(
            f"{path}: line 1: the configuration is missing (BEGIN to END Configuration File); keep the head of the log"
        )
        return
    plain = re.sub(r"//[^\n]*", "", config_text)
    config = {m[1]: m[2].strip() for m in re.finditer(r"(\w+)\s*=\s*([^;]+);", plain)}
    whole = results.partition("Overall Traffic Statistics")[2]
    stated = {m[1]: float(m[2]) for m in re.finditer(r"(\w[\w ]*? average)\s*= (\S+)", whole) if _is_float(m[2])}
    line = text[: text.find("Overall Traffic Statistics")].count("\n") + 1
    given: Values = {
        "topology": config.get("topology", ""), "k": _whole(config.get("k", "")), "n": _whole(config.get("n", "")),
        "traffic": config.get("traffic", "uniform").partition("(")[0], "packet": _whole(config.get("packet_size", "1")),
        "vcs": _whole(config.get("num_vcs", "16")), "vc_flits": _whole(config.get("vc_buf_size", "8")),
        "load": round(stated.get("Injected flit rate average", 0.0), 6),
    }  # fmt: skip
    where, source = f"{path}:{line}", f"BookSim2 ({path.name})"
    for name, known in _NETWORKS.items():
        if given[name] not in known:
            refused = f"{name} {quote(given[name])} of a log is not compared; known: {', '.join(known)}"
            yield Reference("noc", given, 1.0, "cycles", source, where, refused)
            return
    latency = stated.get("Packet latency average")
    if latency is None:
        refused = "the run did not converge (load above saturation), so that it has no mean latency"
        yield Reference("noc", given, 1.0, "cycles", source, f"{path}:{text.count(chr(10)) + 1}", refused)
        return
    measured = stated.get("Injected packet size average", stated.get("Injected packet length average"))
    if measured is not None and isinstance(given["packet"], int) and abs(measured - given["packet"]) > 0.1 * measured:
        faults.append(
            f"{where}: packets have {measured:g} flits, the file's packet_size is {given['packet']}; write options of "
            "the command line into the configuration file, which the log repeats"
        )
        return
    yield Reference("noc", given, latency, "cycles", source, where)


def _whole(text: str) -> int | str:
    return int(text) if re.fullmatch(r"\d+", text) else text


def _is_float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


# -- Ramulator2


def _ramulator2(path: Path, text: str, faults: Faults) -> Iterator[Reference]:
    try:
        content, doubles = parse_yaml(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        at = f"{path}: line {mark.line + 1}" if mark else str(path)
        faults.append(f"{at}: {problem(error, 'keep the statistics as Ramulator2 prints them')}")
        return
    faults += [f"{path}: {fault.what if hasattr(fault, 'what') else fault}" for fault in doubles]
    system = content.get("memory_system", content.get("MemorySystem"))
    parts = system if isinstance(system, Mapping) else {}
    controllers = [
        part for name, part in parts.items() if str(name).startswith("controller") and isinstance(part, Mapping)
    ]
    if not controllers:
        faults.append(f"{path}: memory_system has no controller; keep the statistics as Ramulator2 prints them")
    for number, one in enumerate(controllers):
        for key, unit, scale in (("total_throughput_MBps", "GB/s", 1e-3), ("avg_read_latency", "cycles", 1.0)):
            line = next((n for n, words in enumerate(text.splitlines(), 1) if words.strip().startswith(key)), 1)
            if isinstance(one.get(key), (int, float)) and one[key] > 0:
                given = {
                    "controller": one.get("id", number),
                    "requests": one.get("num_read_reqs", 0) + one.get("num_write_reqs", 0),
                }
                yield Reference(
                    "hbm", given, one[key] * scale, unit, f"Ramulator2 ({path.name})", f"{path}:{line}",
                    "Ramulator2 statistics do not contain the stream; state it in a CSV row, as in pattern=random",
                )  # fmt: skip


_READERS: dict[str, Callable[[Path, str, Faults], Iterator[Reference]]] = {
    "CSV": _csv, "nccl-tests": _nccl_tests, "BookSim2": _booksim2, "Ramulator2": _ramulator2,
}  # fmt: skip
