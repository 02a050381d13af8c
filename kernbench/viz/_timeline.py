"""The timeline of a scene: rows of intervals, arrows from senders to receivers, counters, and the critical path.

A row has the work of one stage on one component, the accesses of a memory, or the messages of a CPU. Intervals are
sorted by row and start. Data that grow with the log are in buffers; `types` has the numpy type of each.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from kernbench.analysis._critical_path import CriticalPath, PathStep
from kernbench.analysis._launches import calls, span
from kernbench.analysis._occupancy import ALLOCATED, QUANTITIES, READS, REQUESTS, SLOTS, WRITES, occupancy
from kernbench.analysis._records import FETCH, MESSAGE, MOVE, PART, READ, STEP, WRITE, Records, candidates
from kernbench.analysis._stages import LAUNCH, PE_STAGES, STAGE_LABELS, STAGE_OF
from kernbench.analysis.trace import trace_events

_Scene = tuple[dict[str, Any], dict[str, bytes]]

# From the host to the stages of a PE, in the order in which a tile passes them. Memories and messages of CPUs are not
# stages.
_LABELS = {
    stage: STAGE_LABELS.get(stage, stage) for stage in ("host", LAUNCH, "messages", "composite", *PE_STAGES, "memory")
}
_NUMBER = {stage: number for number, stage in enumerate(_LABELS)}
_MOST = 400_000  # intervals of a run; above, short neighbours are merged
_MOST_CHANGES = 200_000  # of the counters of a run; above, those of a short time are merged
# Stages whose colours the counters have.
_COLOURS = {READS: "dma_in", WRITES: "dma_out", SLOTS: "recv", REQUESTS: "memory", ALLOCATED: "fetch"}
_PLACE = re.compile(r"(?:sip(\d+))?(?:\.cube(\d+))?(?:\.(?:hbm_ctrl\.)?pe(\d+))?")
_TYPES = ("u1", "i1", "u2", "i2", "u4", "i4", "f8")
_COLUMNS = ("start", "end", "component", "stage", "sip", "text", "nbytes", "flops", "tile")


def timeline_sections(runs: Sequence[tuple[str, Records]]) -> _Scene:
    """Section `timeline` of a scene, with its buffers, for one run, or for two to be compared.

    The last run is the one that the rest of the scene shows.
    """
    kinds = {quantity: [*QUANTITIES[quantity], stage] for quantity, stage in _COLOURS.items()}
    header: dict[str, Any] = {"timeline": {"stages": _LABELS, "counters": kinds, "runs": []}}
    buffers: dict[str, bytes] = {}
    for number, (name, records) in enumerate(runs):
        timeline = Timeline(records)
        counters, changes = _counters(records)
        columns = {key: _packed(column) for key, column in (timeline.columns | changes).items()}
        buffers |= {f"timeline{number}_{key}": column.tobytes() for key, column in columns.items()}
        header["timeline"]["runs"].append(
            {
                "name": name,
                "end_ps": records.makespan_ps,
                "rows": timeline.rows,
                "labels": timeline.labels,
                "counters": counters,
                "launches": [[label, *span(each)] for label, each in calls(records.launches).items()],
                "types": {key: column.dtype.str[1:] for key, column in columns.items()},
            }
        )
    return header, buffers


def path_section(records: Records, path: CriticalPath) -> dict[str, Any]:
    return Timeline(records).path(path)


def packed_trace(records: Records) -> bytes:
    """Trace of a run for Perfetto, gzipped: the buffer `trace` of a scene, or an answer to `open_trace`."""
    return gzip.compress(json.dumps(trace_events(records), separators=(",", ":")).encode(), mtime=0)


class Timeline:
    """One run as rows of intervals: `rows` are [component, stage, sip, cube, pe], `labels` [text, bytes, flops].

    `columns` are arrays. `first`: the first interval of each row, and the number of all. `start`, `end` [ps], `label`
    and `tile` (-1: none) of each interval. `arrow_from` and `arrow_to`: the intervals of a send and of the receive of
    a part that it sent; `arrow_ps`: when that part left. If intervals are merged, `count`: how many each one is, and
    `busy`: how much of it they cover [ps].
    """

    def __init__(self, records: Records) -> None:
        self._components: dict[str, int] = {}
        self._texts: dict[str, int] = {}
        sources = self._work(records), self._memories(records), self._messages(records)
        table = {name: np.concatenate([source[name] for source in sources]) for name in _COLUMNS}
        self.rows, row = self._rows(table)
        order = np.lexsort((table["end"], table["start"], row))
        self.labels, label = self._labels({name: table[name][order] for name in ("text", "nbytes", "flops")})
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        self.columns = {name: table[name][order] for name in ("start", "end", "tile")} | {"label": label}
        self.columns |= _arrows(records, place)
        row = self._merged(row[order])
        self.columns["first"] = np.searchsorted(row, np.arange(len(self.rows) + 1))

    def path(self, path: CriticalPath) -> dict[str, Any]:
        """Resources of a critical path, and its steps.

        A step is [start_ps, end_ps, row, interval, what, because, parts]: the row that shows its work and the interval
        that contains it, -1 for none; a part is [index of its resource, kind, ps].
        """
        resources: dict[str, int] = {}
        rows_of: dict[str, list[int]] = {}
        for row, (component, *_) in enumerate(self.rows):
            rows_of.setdefault(component, []).append(row)
        steps = []
        for step in path.steps:
            parts = [[resources.setdefault(x.resource, len(resources)), x.kind, x.ps] for x in step.parts]
            steps.append([step.start_ps, step.end_ps, *self._place(step, rows_of), step.what, step.because, parts])
        return {"resources": list(resources), "steps": steps}

    def _place(self, step: PathStep, rows_of: dict[str, list[int]]) -> tuple[int, int]:
        """Row and interval of a step: the shortest interval on one of its resources that contains it."""
        names = [name for part in step.parts for name in part.resource.split("->")]
        for part in step.parts:  # a send occupies the links of PE_DMA, a receive a port of TCM
            src, arrow, _ = part.resource.partition("->")
            if (arrow and src.endswith(".pe_dma")) or (part.kind == "slot" and src.endswith(".pe_fetch_store.fetch")):
                names.append(f"{src.split('.pe_')[0]}.pe_ipcq")
        rows = [row for name in dict.fromkeys(names) for row in rows_of.get(name, ())]
        start, end, first = (self.columns[name] for name in ("start", "end", "first"))
        found = []
        for row in rows:
            mine = slice(first[row], first[row + 1])
            inside = np.flatnonzero((start[mine] <= step.start_ps) & (end[mine] >= step.end_ps)) + first[row]
            found += [(end[i] - start[i], row, i) for i in inside.tolist()]
        if found:
            return min(found)[1:]
        longest = max(step.parts, key=lambda part: part.ps).resource
        return next(iter(rows_of.get(longest, (-1,)))), -1

    # The contents of the log, as tables of `_COLUMNS`: components and texts are numbers.

    def _work(self, records: Records) -> dict[str, np.ndarray]:
        stages = np.array([_NUMBER[STAGE_OF[kind]] for kind in records.kinds] or [0])[records.kind]
        components = np.array([self._component(name) for name in records.components] or [0])
        on_host = components[records.component] == self._component("host")
        return {
            "start": records.start_ps, "end": records.end_ps, "component": components[records.component],
            "stage": stages, "sip": np.where(on_host, records.location[:, 0], -1),
            "text": records.per_row(lambda c: self._text(f"{c.name} {c.tag}".strip()), self._text("")),
            "nbytes": records.nbytes, "flops": records.flops,
            "tile": records.tile,
        }  # fmt: skip

    def _memories(self, records: Records) -> dict[str, np.ndarray]:
        """All accesses of memories, each from its arrival, or from the end of the previous one."""
        moves, ends = records.dependencies.transfers, _ends(records)
        rows = np.flatnonzero(np.isin(moves["kind"], (READ, WRITE, FETCH)) & (moves["served_ps"] >= 0))
        memories = np.array([self._component(name) for name in records.dependencies.memories] or [0])
        rows = rows[np.lexsort((moves["served_ps"][rows], memories[moves["route"][rows]]))]
        route, served = moves["route"][rows], moves["served_ps"][rows]
        again = np.diff(memories[route], prepend=-1) == 0
        before = np.where(again, np.concatenate([[0], served])[:-1], 0)
        reads, writes = (
            np.array([self._text(f"{what} {dst}") for _, dst in ends] or [0]) for what in ("read for", "write of")
        )
        text = np.where(moves["kind"][rows] == WRITE, writes[route], reads[route])
        start = np.minimum(np.maximum(moves["arrived_ps"][rows], before), served)
        return _moved(moves, rows, "memory", memories[route], text) | {"start": start, "end": served}

    def _messages(self, records: Records) -> dict[str, np.ndarray]:
        moves, ends = records.dependencies.transfers, _ends(records)
        rows = np.flatnonzero(moves["kind"] == MESSAGE)
        senders = np.array([self._component(src) for src, _ in ends] or [0])
        keys = zip(moves["command"][rows].tolist(), moves["route"][rows].tolist(), strict=True)
        text = [self._text(f"{records.commands[command].name} to {ends[route][1]}") for command, route in keys]
        return _moved(moves, rows, "messages", senders[moves["route"][rows]], np.array(text, np.int64))

    def _component(self, name: str) -> int:
        return self._components.setdefault(name, len(self._components))

    def _text(self, text: str) -> int:
        return self._texts.setdefault(text, len(self._texts))

    def _rows(self, table: dict[str, np.ndarray]) -> tuple[list[list[Any]], np.ndarray]:
        shape = len(self._components), len(_LABELS), int(table["sip"].max(initial=-1)) + 2
        key = np.ravel_multi_index((table["component"], table["stage"], table["sip"] + 1), shape)
        keys, number = np.unique(key, return_inverse=True)
        names, stages, found = list(self._components), list(_LABELS), []
        for component, stage, sip in zip(*(x.tolist() for x in np.unravel_index(keys, shape)), strict=True):
            place = _place(names[component])
            found.append([names[component], stages[stage], max(place[0], sip - 1), *place[1:]])
        order = sorted(
            range(len(found)), key=lambda i: (found[i][0] != "host", *found[i][2:], _NUMBER[found[i][1]], found[i][0])
        )
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        return [found[i] for i in order], rank[number]

    def _labels(self, columns: dict[str, np.ndarray]) -> tuple[list[list[Any]], np.ndarray]:
        """Distinct combinations of text, bytes and flops, and the index of each interval's."""
        code = np.zeros(len(columns["text"]), np.int64)
        for column in columns.values():
            values, number = np.unique(column, return_inverse=True)
            code = np.unique(code * len(values) + number, return_inverse=True)[1]
        example = np.unique(code, return_index=True)[1]
        texts = list(self._texts)
        given = zip(*(column[example].tolist() for column in columns.values()), strict=True)
        return [[texts[text], nbytes, flops] for text, nbytes, flops in given], code

    def _merged(self, row: np.ndarray) -> np.ndarray:
        """Merge short neighbours of a row until `_MOST` intervals are left; return the rows of all intervals."""
        start, end = self.columns["start"], self.columns["end"]
        cell = 1
        first = np.arange(len(start))
        while len(first) > _MOST and cell < end.max():
            cell *= 2
            where = np.where(end - start < cell, start // cell, -1 - np.arange(len(start)))  # long ones stay
            first = np.flatnonzero((np.diff(where, prepend=-1) != 0) | (np.diff(row, prepend=-1) != 0))
        if cell == 1:
            return row
        shift = row * (int(end.max()) + 1)
        before = np.concatenate([[0], np.maximum.accumulate(end + shift)[:-1]])
        covers = np.maximum(0, end + shift - np.maximum(start + shift, before))
        number = np.searchsorted(first, np.arange(len(start)), side="right") - 1
        self.columns |= {name: number[self.columns[name]] for name in ("arrow_from", "arrow_to")}
        self.columns |= {name: self.columns[name][first] for name in ("start", "label", "tile")}
        self.columns |= {
            "end": np.maximum.reduceat(end, first),
            "count": np.diff(first, append=len(start)),
            "busy": np.add.reduceat(covers, first),
        }
        return row[first]


def _place(component: str) -> list[int]:
    """SIP, cube and PE of a component; -1 where it belongs to none."""
    match = _PLACE.match(component)
    return [-1 if x is None else int(x) for x in match.groups()] if match else [-1, -1, -1]


def _counters(records: Records) -> tuple[list[list[Any]], dict[str, np.ndarray]]:
    """[component, quantity, SIP, cube, PE, largest value, whether changes are merged] of each counter, and columns.

    `counter_first`: the first change of each counter, and the number of all; time and value of each change.
    """
    tracks = list(occupancy(records))
    changes = [(track.t_ps, track.value) for track in tracks]
    cell = 1
    while sum(len(t) for t, _ in changes) > _MOST_CHANGES and cell < records.makespan_ps:
        cell *= 2
        changes = [_coarse(*each, cell) for each in changes]
    counters = [
        [x.component, x.quantity, *_place(x.component), int(x.value.max()), len(t) < len(x.t_ps)]
        for x, (t, _) in zip(tracks, changes, strict=True)
    ]
    times, values = ([np.zeros(0, np.int64), *(each[i] for each in changes)] for i in (0, 1))
    first = np.cumsum([len(t) for t in times])
    return counters, {
        "counter_first": first, "counter_time": np.concatenate(times), "counter_value": np.concatenate(values),
    }  # fmt: skip


def _coarse(t: np.ndarray, value: np.ndarray, cell: int) -> tuple[np.ndarray, np.ndarray]:
    """Keep of the changes in each cell of time the first, with the largest value in it, and the last."""
    if not len(t):
        return t, value
    first = np.flatnonzero(np.diff(t // cell, prepend=-1))
    last = np.append(first[1:], len(t)) - 1
    keep = np.unique(np.concatenate([first, last]))
    value = value.copy()
    several = last > first + 1
    value[first[several]] = np.maximum.reduceat(value, first)[several]
    return t[keep], value[keep]


def _ends(records: Records) -> list[tuple[str, str]]:
    nodes = records.dependencies.nodes
    return [(nodes[route[0]], nodes[route[-1]]) for route in records.dependencies.routes]


def _moved(
    moves: dict[str, np.ndarray], rows: np.ndarray, stage: str, component: np.ndarray, text: np.ndarray
) -> dict[str, np.ndarray]:
    start, end, nbytes, tile = (moves[name][rows] for name in ("start_ps", "end_ps", "nbytes", "tile"))
    same = {"stage": _NUMBER[stage], "sip": -1, "flops": 0}
    constant = {name: np.full(len(rows), value, np.int64) for name, value in same.items()}
    return {"start": start, "end": end, "component": component, "text": text, "nbytes": nbytes, "tile": tile} | constant


def _arrows(records: Records, place: np.ndarray) -> dict[str, np.ndarray]:
    """Arrow for each received part of a message, from its send to the row that received it."""
    d = records.dependencies
    kind, command = d.transfers["kind"], d.transfers["command"]
    received, sent = (np.flatnonzero(records.is_kind(name)) for name in ("recv", "send"))
    received = received[: len(d.causes)]  # older records have no causes
    send_row = np.full(len(records.commands), -1)
    send_row[records.command[sent]] = sent
    by = candidates(d.causes)[received, 0]
    read = by & 7 == MOVE  # from a ring in memory, on its way out of the slot
    by[read] = candidates(d.sent)[by[read] >> 3, 0]
    slots = candidates(np.stack([d.steps["cause"], d.steps["more"]], axis=1))[np.where(by & 7 == STEP, by >> 3, 0)]
    is_part = (
        (slots & 7 == MOVE) & (kind[np.where(slots & 7 == MOVE, slots >> 3, 0)] == PART) & (by & 7 == STEP)[:, None]
    )
    row, which = np.nonzero(is_part)
    parts = slots[row, which] >> 3
    ended = send_row[command[parts]] >= 0
    return {
        "arrow_from": place[send_row[command[parts[ended]]]],
        "arrow_to": place[received[row[ended]]],
        "arrow_ps": d.transfers["start_ps"][parts[ended]],
    }


def _packed(column: np.ndarray) -> np.ndarray:
    """Convert to the smallest type of JavaScript's typed arrays that holds the values."""
    low, high = (int(x) for x in (column.min(initial=0), column.max(initial=0)))
    for name in _TYPES:
        info = np.iinfo(name) if name != "f8" else None
        if info is None or (info.min <= low and high <= info.max):
            return column.astype(f"<{name}")
    raise AssertionError
