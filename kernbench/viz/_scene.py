"""The scene that the picture draws: the machine, and the load of links and components over time.

A scene is a header of JSON values and buffers of bytes.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from kernbench.errors import KernbenchError
from kernbench.viz._loads import link_loads, node_loads, used_links, used_nodes
from kernbench.viz._machine_layout import machine_section
from kernbench.viz._timeline import packed_trace, path_section, timeline_sections
from kernbench.viz._why import predicted, why_section

if TYPE_CHECKING:
    from kernbench.analysis._records import Records
    from kernbench.analysis.result import Result
    from kernbench.analysis.why import Why
    from kernbench.topology.builder import Machine

Scene = tuple[dict[str, Any], dict[str, bytes]]

BINS = 512
_LARGEST = 8_000_000  # bytes of loads and queues


def scene(
    machine: Machine, records: Records | None = None, name: str = "", *, before: tuple[str, Records] | None = None
) -> Scene:
    """Scene of a machine and, with `records`, of a run `name`; its timeline can be compared with the run `before`."""
    header: dict[str, Any] = {"machine": machine_section(machine)}
    buffers: dict[str, bytes] = {}
    if records is not None:
        header["run"], buffers = run_section(records, name)
        sections, columns = timeline_sections([*([before] if before else []), (name, records)])
        header, buffers = header | sections, buffers | columns
    return header, buffers


def scene_of(machine: Machine, result: Result, *, before: Result | None = None, offline: bool = False) -> Scene:
    """Scene of a result, with the critical path if the log has it.

    The timeline can be compared with `before`. With `offline`, the scene contains what a kernel is asked for elsewhere:
    trace, predictions, tornado.
    """
    other = (before.name, before.records) if before is not None else None
    shown = scene(machine, result.records, result.name, before=other)
    with suppress(KernbenchError):  # the log may not tell the critical path
        shown = explained(shown, result.why(), result.records)
    return made_offline(shown, result.records) if offline else shown


def explained(shown: Scene, why: Why, records: Records) -> Scene:
    header, buffers = shown
    return header | {"path": path_section(records, why.path), "why": why_section(why, records)}, buffers


def made_offline(shown: Scene, records: Records) -> Scene:
    header, buffers = shown
    why = {"why": predicted(header["why"], records)} if "why" in header else {}
    return header | why, buffers | {"trace": packed_trace(records)}


def run_section(records: Records, name: str = "") -> Scene:
    """Return the loads of a run: a byte for each link or component and bin.

    A load of 255 means busy for the whole bin; a queue of 255 (work that waits or is served) is its `peak`.
    """
    links, nodes = used_links(records), list(used_nodes(records))
    bins = max(1, min(BINS, _LARGEST // max(1, 2 * (len(links) + len(nodes))), records.makespan_ps))
    header: dict[str, Any] = {
        "name": name, "complete": records.complete, "end_ns": records.makespan_ps / 1000, "bins": bins,
        "links": links, "nodes": nodes,
    }  # fmt: skip
    buffers = {}
    for what, found in (("link", link_loads(records, bins)), ("node", node_loads(records, bins))):
        buffers[f"{what}_load"] = _bytes(found.busy)
        peak = found.under_way.max(axis=1, initial=0)
        header[f"{what}_peak"] = peak.round(3).tolist()
        buffers[f"{what}_queue"] = _bytes(found.under_way / np.maximum(peak, 1e-9)[:, None])
    return header, buffers


def _bytes(shares: np.ndarray) -> bytes:
    rounded: np.ndarray = np.rint(255 * shares)
    return rounded.astype(np.uint8).tobytes()
