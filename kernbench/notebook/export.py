"""What leaves the explorer: figures, tables, traces, machine files, and the cell that reproduces a run."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

import yaml

from kernbench.analysis.result import INCOMPLETE
from kernbench.analysis.trace import timeline
from kernbench.analysis.utilization import shares
from kernbench.errors import ArgumentError, KernbenchError
from kernbench.notebook.pictures import roofline_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from kernbench.analysis.result import Result
    from kernbench.notebook.model import Entry


class Export(NamedTuple):
    """A file: its name, content and media type."""

    name: str
    content: bytes
    kind: str


def export(what: str, entry: Entry, result: Result) -> Export:
    """Return one of `EXPORTS` of a run."""
    suffix, kind, make = EXPORTS[what]
    try:
        return Export(f"run{entry.number}{suffix}", make(entry, result), kind)
    except ValueError as error:  # a figure without a row to draw
        raise ArgumentError(f"{what}: {error}") from error


def code(entry: Entry) -> str:
    """Return the text of a cell that does the run again."""
    work, options = entry.work, entry.options
    imports = [
        "from functools import partial",
        "",
        "import kernbench as kb",
        *([work.source[0]] if work.source[0] else []),
    ]
    changes = f", {list(entry.overrides)}" if entry.overrides else ""
    values = "".join(f", {name}={value!r}" for name, value in entry.values.items())
    run = f"kb.run(program, machine, data={options.data}, log={options.log!r})"
    lines = [f"machine = kb.load({entry.source!r}{changes})", f"program = partial({work.source[1]}{values})", run]
    return "\n".join([*imports, "", *lines]) + "\n"


def png_of(figure: Figure) -> bytes:
    """Return a figure as the content of a file."""
    png = BytesIO()
    figure.savefig(png, format="png", metadata={"Software": None})
    return png.getvalue()


def _links(entry: Entry, result: Result) -> bytes:
    from kernbench.viz.heatmap import link_heatmap

    share = shares(result.records.links, result.records.makespan_ps)
    return png_of(link_heatmap(share, entry.machine, title=entry.name, note="" if result.complete else INCOMPLETE))


def _timeline(entry: Entry, result: Result) -> bytes:
    from kernbench.viz.roofline import tile_timeline

    pe = next(iter(result.records.pes()), (0, 0, 0))
    return png_of(tile_timeline(timeline(result.records, pe), machine=entry.machine.hash, title=entry.name))


def _trace(_: Entry, result: Result) -> bytes:
    with TemporaryDirectory() as folder:
        return result.trace(Path(folder) / "trace.json").read_bytes()


def _log(_: Entry, result: Result) -> bytes:
    with TemporaryDirectory() as folder:
        return result.save(Path(folder) / "run.npz").read_bytes()


def _json(_: Entry, result: Result) -> bytes:
    content = result.to_dict()
    try:
        content["why"] = result.why().to_dict()
    except KernbenchError:
        content["why"] = None
    return json.dumps(content, indent=2).encode()


EXPORTS: dict[str, tuple[str, str, Callable[[Entry, Result], bytes]]] = {
    "code cell": (".py", "text/x-python", lambda entry, _: code(entry).encode()),
    "machine file": (
        "-topology.yaml",
        "application/yaml",
        lambda entry, _: yaml.safe_dump(dict(entry.machine.spec), sort_keys=False).encode(),
    ),
    "figure of the timeline": ("-timeline.png", "image/png", _timeline),
    "figure of the links": ("-links.png", "image/png", _links),
    "figure of the roofline": ("-roofline.png", "image/png", lambda entry, x: png_of(roofline_figure(entry, x))),
    "result and why (JSON)": (".json", "application/json", _json),
    "trace for ui.perfetto.dev": ("-trace.json", "application/json", _trace),
    "log for kb.read": (".npz", "application/octet-stream", _log),
}
