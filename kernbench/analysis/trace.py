"""A run as Chrome trace events, for ui.perfetto.dev: a track per component, flows and counters.

Overlapping work of a component (outstanding requests, launches) is spread over as many tracks as it needs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from heapq import heappush, heapreplace
from pathlib import Path
from typing import Any, TypeVar

from kernbench.analysis._critical_path import critical_path
from kernbench.analysis._occupancy import QUANTITIES, occupancy
from kernbench.analysis._records import CREDIT, FETCH, MESSAGE, PART, READ, Records
from kernbench.analysis._stages import ENGINE_KINDS, PE_KINDS, PE_STAGES, STAGE_KINDS, STAGE_OF
from kernbench.analysis._transfer import RouteBreakdown
from kernbench.analysis.breakdown import whole_composites
from kernbench.config._files import write_text

_Event = dict[str, Any]
_T = TypeVar("_T")
_PATH = "critical path"


class Tracks:
    """Slices by component and the flows between them; slices are assigned to tracks at the end, in `events`."""

    def __init__(self) -> None:
        self._slices: dict[str, list[_Event]] = {}
        self._flows: list[tuple[_Event, _Event, str]] = []
        self._counters: list[tuple[str, str, _Event]] = []

    def slice(self, component: str, name: str, start_ps: int, end_ps: int, kind: str, **args: Any) -> _Event:
        event = {"ph": "X", "name": name, "cat": kind, "ts": start_ps, "dur": end_ps - start_ps, "args": args}
        self._slices.setdefault(component, []).append(event)
        return event

    def flow(self, src: _Event, dst: _Event, name: str) -> None:
        self._flows.append((src, dst, name))

    def counter(self, component: str, name: str, t_ps: int, value: int) -> None:
        """Set a counter of a component; its name is that of a track of the component's process."""
        event = {"ph": "C", "cat": "counter", "ts": t_ps, "tid": 0, "args": {"value": value}}
        self._counters.append((component, name, event))

    def events(self) -> list[_Event]:
        found: list[_Event] = []
        pids: dict[str, int] = {}
        tids: dict[int, int] = {}

        def pid_of(process: str) -> int:
            if process not in pids:
                pids[process] = len(pids) + 1
                found.extend(_named("process", pids[process], 0, process))
            return pids[process]

        for component in sorted(self._slices, key=_order):
            process, thread = _names(component)
            pid = pid_of(process)
            for track, events in enumerate(spread(self._slices[component], lambda x: (x["ts"], x["ts"] + x["dur"]))):
                tid = tids[pid] = tids.get(pid, 0) + 1
                found += _named("thread", pid, tid, f"{thread} #{track}" if track else thread)
                for event in events:
                    event.update(pid=pid, tid=tid)
                    found.append(event)
        for number, (src, dst, name) in enumerate(self._flows, 1):
            for event, phase in ((src, {"ph": "s"}), (dst, {"ph": "f", "bp": "e"})):
                place = {"ts": event["ts"], "pid": event["pid"], "tid": event["tid"]}
                found.append({**phase, "id": number, "name": name, "cat": "flow", **place})
        for component, name, event in self._counters:
            process, thread = _names(component)
            found.append({**event, "name": f"{thread} {name}", "pid": pid_of(process)})
        for event in found:
            event.update({key: event[key] / 1_000_000 for key in ("ts", "dur") if key in event})  # ps to us
        return found


def trace_events(records: Records) -> dict[str, Any]:
    """Trace of a run in the JSON object format of trace events; times in microseconds, with picosecond resolution."""
    tracks = Tracks()
    work: dict[tuple[int, int, int, int, bool], _Event] = {}
    for op in records:
        args = {"command": op.command.name, "nbytes": op.nbytes, "flops": op.flops, "tile": op.tile}
        if op.command.shape:
            args["shape"] = "x".join(map(str, op.command.shape))
        name = op.command.name if op.tile < 0 else f"{op.kind} {op.tile}"
        shown = {key: value for key, value in args.items() if value not in (0, -1, "")}
        event = tracks.slice(op.component, name, op.start_ps, op.end_ps, op.kind, **shown)
        work.setdefault((op.start_ps, op.end_ps, op.nbytes, op.tile, op.kind in STAGE_KINDS["dma_in"]), event)
    _moves(records, tracks, work)
    for component, quantity, *columns in occupancy(records):
        label, unit = QUANTITIES[quantity]
        name = f"{label} [{unit}]" if unit else label
        for t, value in zip(*(column.tolist() for column in columns), strict=True):
            tracks.counter(component, name, t, value)
    if records.spec:
        for step in critical_path(records).steps:
            parts = {f"{part.kind} at {part.resource}": part.ps / 1000 for part in step.parts}
            tracks.slice(_PATH, step.what, step.start_ps, step.end_ps, _PATH, because=step.because, ns=parts)
    about = {"machine": records.machine, "makespan_ns": records.makespan_ps / 1000}
    return {"traceEvents": tracks.events(), "displayTimeUnit": "ns", "otherData": about}


def write_trace(records: Records, path: str | Path) -> Path:
    return write_text(Path(path), json.dumps(trace_events(records), separators=(",", ":")) + "\n")


def _moves(records: Records, tracks: Tracks, work: dict[tuple[int, int, int, int, bool], _Event]) -> None:
    """Add the work of memories and the messages between CPUs, with flows to the requests."""
    routes = RouteBreakdown(records)
    sent: dict[tuple[int, str], _Event] = {}
    arrived: list[tuple[int, str, _Event]] = []
    for move in records.dependencies.at(slice(None)):
        start, end, nbytes = move.start_ps, move.end_ps, move.nbytes
        src, dst = routes.ends(move.route)
        if move.kind == MESSAGE:
            name = f"{records.commands[move.command].name} to {dst}"
            event = tracks.slice(src, name, start, end, "message", nbytes=nbytes)
            sent.setdefault((move.command, src), event)
            arrived.append((move.command, dst, event))
        elif move.kind in (PART, CREDIT):
            name, there = (f"part {move.tile}", move.arrived_ps) if move.kind == PART else ("credit", end)
            leaves = tracks.slice(src, f"{name} to {dst}", start, there, "queue", nbytes=nbytes)
            tracks.flow(leaves, tracks.slice(dst, f"{name} from {src}", there, end, "queue"), "queue")
        elif move.served_ps >= 0:
            read = move.kind in (READ, FETCH)
            name = f"{'read' if read else 'write'} for {dst}"
            first = min(move.arrived_ps, move.served_ps)
            src = records.dependencies.memories[move.route]
            memory = tracks.slice(src, name, first, move.served_ps, "memory", nbytes=nbytes)
            asked = work.get((start, end, nbytes, move.tile, read))
            asked = asked or tracks.slice(dst, name, start, end, "request", nbytes=nbytes)
            tracks.flow(asked, memory, "request")
    for command, node, event in arrived:
        onward = sent.get((command, node))
        if onward is not None and onward["ts"] >= event["ts"] + event["dur"]:
            tracks.flow(event, onward, "message")


def spread(pieces: Iterable[_T], span: Callable[[_T], tuple[float, float]]) -> list[list[_T]]:
    """Spread pieces, each with its (start, end), over the fewest tracks on which none overlap."""
    tracks: list[list[_T]] = []
    free: list[tuple[float, int]] = []
    for piece in sorted(pieces, key=span):
        start, end = span(piece)
        if free and free[0][0] <= start:
            track = free[0][1]
            heapreplace(free, (end, track))
        else:
            track = len(tracks)
            tracks.append([])
            heappush(free, (end, track))
        tracks[track].append(piece)
    return tracks


def _names(component: str) -> tuple[str, str]:
    """Process (cube or IO chiplet) and thread (rest of the id) of a component."""
    if component == _PATH:
        return _PATH, _PATH
    place = component.split(".")
    return (".".join(place[:2]), ".".join(place[2:])) if len(place) > 2 else ("host", component)


def _order(component: str) -> tuple[Any, ...]:
    words = "".join(c if c.isdigit() else f" {c} " if c == "." else c for c in component).split()
    number = [int("".join(filter(str.isdigit, word)) or -1) for word in words]
    return (component != _PATH, component != "host", number[:2], component)


def _named(what: str, pid: int, tid: int, name: str) -> list[_Event]:
    meta = {"ph": "M", "pid": pid, "tid": tid}
    order = {"sort_index": tid or pid}
    return [
        {**meta, "name": f"{what}_name", "args": {"name": name}},
        {**meta, "name": f"{what}_sort_index", "args": order},
    ]


def timeline(records: Records, pe: tuple[int, int, int], window: tuple[int, int] | None = None) -> list[dict[str, Any]]:
    """Return a row for each piece of work of one PE, in order of start.

    Parameters
    ----------
    records : Records
        Logged at tile level, to see each tile.
    pe : (sip, cube, pe)
    window : (start_ps, end_ps), optional
        Only work that overlaps it.
    """
    own = records.of_pe(*pe)
    rows = own.where(own.is_kind(*ENGINE_KINDS) | whole_composites(own))
    if window:
        rows = rows.within(*window)
    stages, commands = [STAGE_OF.get(kind, "") for kind in rows.kinds], [command.name for command in rows.commands]
    columns = (rows.kind, rows.start_ps, rows.end_ps, rows.tile, rows.command)
    table = [
        {
            "stage": stages[kind],
            "start_ns": start / 1000,
            "end_ns": end / 1000,
            "tile": tile,
            "command": commands[command] if command >= 0 else "",
        }
        for kind, start, end, tile, command in zip(*(column.tolist() for column in columns), strict=True)
    ]
    return sorted(table, key=lambda row: (row["start_ns"], row["end_ns"], row["stage"]))


def last_pe(records: Records) -> tuple[int, int, int] | None:
    """Return the PE that finished last, of several the first; None if none worked."""
    work = records.of_kind(*PE_KINDS)
    last = work.location[work.end_ps == work.end_ps.max(initial=0)]
    return min(map(tuple, last.tolist()), default=None)


def tracks_by_stage(pieces: Iterable[Mapping[str, Any]]) -> dict[str, list[list[Mapping[str, Any]]]]:
    """Rows of `timeline` by stage, in the order of `PE_STAGES`, each stage on the fewest tracks without overlap."""
    of: dict[str, list[Mapping[str, Any]]] = {stage: [] for stage in (*PE_STAGES, "composite")}
    for piece in pieces:
        of[piece["stage"]].append(piece)
    return {stage: spread(own, lambda x: (x["start_ns"], x["end_ns"])) for stage, own in of.items() if own}
