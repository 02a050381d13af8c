"""Exports of the explorer: pictures, results, figures, traces, machine files, and the cell that reproduces a run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import NamedTuple

from kernbench.analysis._manifest import Manifest
from kernbench.analysis.result import INCOMPLETE, Result
from kernbench.analysis.trace import last_pe, timeline
from kernbench.analysis.utilization import shares
from kernbench.errors import ArgumentError, KernbenchError
from kernbench.notebook._job import written
from kernbench.notebook._machine_form import machine_yaml
from kernbench.notebook._model import Entry
from kernbench.viz._picture import picture_html
from kernbench.viz._scene import scene_of
from kernbench.viz.figures import roofline, tile_timeline
from kernbench.viz.still import link_heatmap


class Export(NamedTuple):
    name: str
    content: bytes
    kind: str


def export(what: str, entry: Entry, result: Result) -> Export:
    suffix, kind, make = EXPORTS[what]
    try:
        return Export(f"{_file_name(entry)}{suffix}", make(entry, result), kind)
    except ValueError as error:  # a figure without a row to draw
        raise ArgumentError(f"{what}: {error}") from error


def _file_name(entry: Entry) -> str:
    return re.sub(r"[^\w.-]+", "_", entry.label).strip("._")[:80] or f"run{entry.number}"


def code(entry: Entry) -> str:
    workload, options = entry.workload, entry.options
    if not workload.source[1]:
        raise ArgumentError(f"code cell: {workload.name} is not a variable here; define it, and pass that")
    imports = [
        "from functools import partial",
        "",
        "import kernbench as kb",
        *([workload.source[0]] if workload.source[0] else []),
    ]
    changes = f", {list(entry.overrides)}" if entry.overrides else ""
    values = "".join(f", {name}={value!r}" for name, value in workload.arguments(entry.values).items())
    run = f"kb.run(program, machine, data={options.data}, log={options.log!r})"
    lines = [f"machine = kb.load({entry.source!r}{changes})", f"program = partial({workload.source[1]}{values})", run]
    return "\n".join([*imports, "", *lines]) + "\n"


def manifest(entry: Entry) -> Manifest:
    options = asdict(entry.options)
    given = {name: value for name, value in entry.values.items() if value is not None}
    return Manifest(entry.workload.name, given, options, entry.source, entry.overrides)


def _links(entry: Entry, result: Result) -> bytes:
    share = shares(result.records.links, result.records.makespan_ps)
    note = "" if result.complete else INCOMPLETE
    return link_heatmap(share, entry.machine, title=entry.name, note=note).png()


def _timeline(entry: Entry, result: Result) -> bytes:
    pe = last_pe(result.records) or (0, 0, 0)
    title = f"{entry.name}: sip{pe[0]}.cube{pe[1]}.pe{pe[2]}"
    return tile_timeline(timeline(result.records, pe), machine=entry.machine.hash, title=title).png()


def _roofline(entry: Entry, result: Result) -> bytes:
    return roofline(result.records, name=entry.name).png()


def _result(entry: Entry, result: Result) -> bytes:
    return written(replace(result, manifest=manifest(entry)).save, "run.npz")


def _picture(entry: Entry, result: Result) -> bytes:
    note = f"{manifest(entry)}; machine {entry.machine.hash[:12]}"
    return picture_html(scene_of(entry.machine, result, offline=True), note).encode()


def _json(_: Entry, result: Result) -> bytes:
    content = result.to_dict()
    try:
        content["why"] = result.why().to_dict()
    except KernbenchError:
        content["why"] = None
    return json.dumps(content, indent=2).encode()


EXPORTS: dict[str, tuple[str, str, Callable[[Entry, Result], bytes]]] = {
    "picture (HTML)": (".html", "text/html", _picture),
    "result (one file)": (".npz", "application/octet-stream", _result),
    "code cell": (".py", "text/x-python", lambda entry, _: code(entry).encode()),
    "machine file": ("-topology.yaml", "application/yaml", lambda entry, _: machine_yaml(entry.machine).encode()),
    "figure of the timeline": ("-timeline.png", "image/png", _timeline),
    "figure of the links": ("-links.png", "image/png", _links),
    "figure of the roofline": ("-roofline.png", "image/png", _roofline),
    "result and why (JSON)": (".json", "application/json", _json),
    "trace for ui.perfetto.dev": ("-trace.json", "application/json", lambda _, x: written(x.trace, "trace.json")),
}
