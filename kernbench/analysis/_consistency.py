"""Consistency checks of loaded records: columns and tables must agree, as those of a run do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from kernbench.analysis._records import (
    _LINK_COLUMNS,
    ALLOCATIONS,
    ARRIVED,
    BEGIN,
    CREDIT,
    FETCH,
    LOG_COLUMNS,
    MESSAGE,
    MOVE,
    NONE,
    PART,
    READ,
    ROW,
    SENT,
    STAGE_PATHS,
    STAGES,
    STEP,
    STEP_KINDS,
    STEPS,
    TRANSFERS,
    WAITS,
    WRITE,
    Records,
    StageWork,
    candidates,
)
from kernbench.analysis._stages import STAGE_ENGINES

_MOST = 1 << 60  # of a time [ps] or a size in bytes
_DMA = ("dma_in", "dma_out")
_COPIES, _ORDERS = ("h2d", "d2h"), ("launch", "map", "install")
_CPUS = ("host", "io_cpu", "m_cpu", "pe_cpu")


def check_records(records: Records) -> None:
    """Raise a ValueError or TypeError if records contradict themselves."""
    _check_tables(records)
    n, commands, links = len(records), len(records.commands), records.links
    ends: dict[str, tuple[int, int]] = {
        "component": (0, len(records.components)), "kind": (0, len(records.kinds)),
        "command": (-1, commands), "tile": (-1, _MOST),
    }  # fmt: skip
    for name, dtype in LOG_COLUMNS.items():
        _check_column(name, getattr(records, name), dtype, (n,), *ends.get(name, (0, _MOST)))
    _check_order("rows", records.start_ps, records.end_ps)
    for name, of_link in _LINK_COLUMNS.items():
        _check_column(f"link_{name}", getattr(links, name), of_link, (len(links.names),))
    if not (np.isfinite(links.bw_gbs) & (links.bw_gbs > 0)).all():
        raise ValueError("a link has no bandwidth")
    if records.component_busy_ps is not None:
        _check_column("component_busy_ps", records.component_busy_ps, np.int64, (len(records.components),))
    _check_moves(records)
    _check_waits(records)
    _check_allocations(records)
    _check_causes(records)
    _check_commands(records)
    for kind, engine in STAGE_ENGINES.items():
        there = np.isin(records.component, [i for i, x in enumerate(records.components) if x.endswith(f".{engine}")])
        if not np.isin(records.kind[there], _ids(records.kinds, kind)).all():
            raise ValueError(f"a row of {engine} is no {kind}")


def _ids(names: Sequence[str], *wanted: str) -> list[int]:
    return [i for i, name in enumerate(names) if name.rpartition(".")[2] in wanted]


def _check_tables(records: Records) -> None:
    dependencies = records.dependencies
    names = (records.components, records.kinds, records.links.names, dependencies.nodes, dependencies.places)
    for table in names:
        if not all(isinstance(name, str) for name in table) or len({*table}) < len(table):
            raise ValueError("a table of names holds a name twice, or something else")
    for values in records.drams.values():
        _check_numbers(values)
    for x in records.commands:
        _check_texts((x.name, x.tag, x.dtype, *(kind for kind, *_ in x.vector)))
        _check_numbers((x.sip + 1, x.cube + 1, x.pe + 1, *x.shape, *(n for _, *work in x.vector for n in work)))
    for launch in records.launches:
        _check_texts((launch.name, launch.queues, launch.protocol))
        times = (launch.start_ps, launch.end_ps, records.makespan_ps)
        _check_numbers((*times, times[1] - times[0], times[2] - times[1], launch.sip + 1))
        _check_numbers(
            (
                launch.begin_ps + 1,
                launch.done_ps + 1,
                launch.operation + 1,
                len(records.operations) - launch.operation - 1,
            )
        )
    for i, operation in enumerate(records.operations):
        _check_numbers(
            (
                operation.sip,
                *(i - 1 - number for number in (*operation.after, *operation.waited)),
                *operation.after,
                *operation.waited,
            )
        )
        if operation.communication is not None:
            _check_texts((operation.communication.name,))
            _check_numbers((operation.communication.nbytes, *operation.communication.group))
    _check_texts((records.machine, records.engine))
    _check_numbers((records.makespan_ps,))
    complete: Any = records.complete
    if not isinstance(complete, bool) or not isinstance(records.spec, Mapping):
        raise TypeError("the machine, or whether the run is complete, is something else")


def _check_texts(values: Iterable[Any]) -> None:
    if not all(isinstance(value, str) for value in values):
        raise TypeError("a name is something else")


def _check_numbers(values: Iterable[Any]) -> None:
    for value in values:
        if type(value) is not int or not 0 <= value < _MOST:
            raise ValueError(f"{value!r} is not a whole number from 0 to {_MOST}")


def _check_column(
    name: str, column: np.ndarray, dtype: type, shape: tuple[int, ...], least: int = 0, end: int = _MOST
) -> None:
    if column.shape != shape or column.dtype != dtype:
        raise ValueError(f"column {name} has shape {column.shape} and type {column.dtype}")
    if column.size and not (least <= column.min() and column.max() < end):
        raise ValueError(f"column {name} has values from {column.min()} to {column.max()}")


def _check_order(what: str, *times: np.ndarray) -> None:
    for before, after in pairwise(times):
        if (before > after).any():
            raise ValueError(f"{what} end before they begin")


def _check_moves(records: Records) -> None:
    x = records.dependencies
    moves, n = x.transfers, len(x.transfers["start_ps"])
    ends = {
        "route": (0, len(x.routes)), "command": (0, len(records.commands)), "kind": (0, 6), "tile": (-1, _MOST),
        "start_ps": (0, _MOST), "end_ps": (0, _MOST), "nbytes": (0, _MOST), "wait": (-1, max(1, len(x.waits["ps"]))),
    }  # fmt: skip
    for name, dtype in TRANSFERS.items():
        _check_column(f"move_{name}", moves[name], dtype, (n,), *ends.get(name, (-1, _MOST)))
    _check_order("transfers", moves["start_ps"], moves["end_ps"])
    keys = moves["key"][moves["key"] >= 0]
    if len(np.unique(keys)) < len(keys):
        raise ValueError("two transfers have one key")
    served = np.isin(moves["kind"], (READ, WRITE, FETCH)) & (moves["served_ps"] >= 0) | (moves["kind"] == PART)
    some = {name: column[served] for name, column in moves.items()}
    _check_order("services", some["start_ps"], some["arrived_ps"], some["served_ps"], some["end_ps"])
    nodes = range(len(x.nodes))
    for ends_, (wire, node, bw, header, cycle) in x.links.items():
        if (
            not all(end in nodes for end in ends_)
            or not 0 < bw < np.inf
            or not all(0 <= x < _MOST for x in (wire, node, header, cycle))
        ):
            raise ValueError(f"the link between nodes {ends_} is none")
    cpus = _ids(x.nodes, *_CPUS)
    for number in np.unique(moves["route"][moves["kind"] == MESSAGE]).tolist():
        if not {x.routes[number][0], x.routes[number][-1]} <= {*cpus}:
            raise ValueError("a message is not of a CPU or to one")
    for route in x.routes:
        for a, b in pairwise(route):
            if (a, b) not in x.links or (b, a) not in x.links:
                raise ValueError(f"a route has no link between nodes {a} and {b}")


def _check_waits(records: Records) -> None:
    """Each wait must refer to an existing link and transfer, and to an earlier wait."""
    x = records.dependencies
    waits, n = x.waits, len(x.waits["ps"])
    ends = {"before": (0, max(1, n)), "link": (0, len(records.links.names)), "front": (-1, len(x.transfers["key"]))}
    for name, dtype in WAITS.items():
        _check_column(f"wait_{name}", waits[name][1:], dtype, (max(0, n - 1),), *ends.get(name, (0, _MOST)))
    if (waits["before"][1:] >= np.arange(1, max(1, n))).any():
        raise ValueError("a wait is before the one that it follows")


def _check_allocations(records: Records) -> None:
    allocations, places = records.dependencies.allocations, len(records.dependencies.places)
    n, ends = len(allocations["t_ps"]), {"place": (0, places), "nbytes": (-_MOST, _MOST)}
    for name, dtype in ALLOCATIONS.items():
        _check_column(f"allocation_{name}", allocations[name], dtype, (n,), *ends.get(name, (0, _MOST)))


def _check_causes(records: Records) -> None:
    """Every cause must exist, and be no later than its effect."""
    x, n = records.dependencies, len(records)
    for table, columns, types in (("step", x.steps, STEPS), ("path", x.paths, STAGE_PATHS)):
        length = len(columns["command"])
        ends = {
            "command": (-1, len(records.commands)), "kind": (0, len(STEP_KINDS)), "place": (0, len(x.places)),
            "of": (-1, len(records.commands)),
        }  # fmt: skip
        for name, dtype in types.items():
            _check_column(f"{table}_{name}", columns[name], dtype, (length,), *ends.get(name, (0, 1 << 62)))
    _check_order("steps", x.steps["ps"], x.steps["end_ps"])
    if not len(x.causes) and not len(x.sent):  # written by a version without causes
        return
    moves, steps = x.transfers, x.steps
    _check_column("causes", x.causes, np.int64, (n, 2), 0, 1 << 63)
    _check_column("sent", x.sent, np.int64, (len(moves["end_ps"]), 2))
    times = {
        ROW: records.end_ps, BEGIN: records.start_ps, MOVE: moves["end_ps"], SENT: moves["start_ps"],
        ARRIVED: np.maximum(moves["arrived_ps"], 0), STEP: steps["end_ps"],
        STAGES: np.zeros(len(x.paths["command"]), np.int64),
    }  # fmt: skip
    step_causes = np.stack([steps["cause"], steps["more"]], axis=1)
    tables = (records.end_ps, x.causes), (moves["end_ps"], x.sent), (steps["end_ps"], step_causes)
    for ends_ps, causes in (*tables, (None, x.paths["before"].reshape(-1, 1))):
        events = candidates(causes)
        if (events[events & 7 == NONE] != NONE).any():
            raise ValueError("a cause is of no kind of event")
        for tag, at in times.items():
            row, column = np.nonzero(events & 7 == tag)
            index = events[row, column] >> 3
            if index.size and index.max() >= len(at):
                raise ValueError("a cause is an event that there is not")
            ordered = column < 3 if causes is x.causes else True  # room behind a row is made after its end
            if ends_ps is not None and (at[index] > ends_ps[row])[ordered].any():
                raise ValueError("a cause is later than what followed from it")


def _check_commands(records: Records) -> None:
    x, commands = records.dependencies, len(records.commands)
    tables = (
        ("after", x.after, 2, (0, 1)), ("begin", x.begin, 2, (0,)),
        ("stages", x.stages, len(StageWork._fields), (0,)),
    )  # fmt: skip
    for name, table, width, ids in tables:
        _check_column(f"command_{name}", table, np.int64, (len(table), width), -1)
        for at in ids:
            _check_column(f"command_{name}", table[:, at], np.int64, (len(table),), 0, commands)
    for table in (x.issued, x.begin):
        if len(np.unique(table[:, 0])) < len(table):
            raise ValueError("a command was issued twice")
    if not np.isin(x.issued[:, 2], [-1, *x.begin[:, 0]]).all():
        raise ValueError("a command is of a launch that there is not")
    moves = x.transfers
    ours, queued = np.isin(moves["command"], x.issued[:, 0]), np.isin(moves["kind"], (PART, CREDIT, FETCH))
    messages = moves["kind"] == MESSAGE
    copies, orders = (records.command[records.is_kind(*kinds)] for kinds in (_COPIES, _ORDERS))
    wrong = ours & messages | queued & ~ours
    wrong |= np.isin(moves["command"], copies) & messages | np.isin(moves["command"], orders) & ~messages
    if wrong.any():
        raise ValueError("a transfer is of another kind of command")
    _, kind, start, end, busy, n, nbytes, route = x.stages.T
    if not np.isin(kind, _ids(records.kinds, *_DMA, *STAGE_ENGINES)).all():
        raise ValueError("a stage is of another kind")
    _check_order("stages", np.zeros_like(start), start, end)
    _check_order("stages", np.zeros_like(n), np.minimum(np.minimum(n, nbytes), busy))
    least = np.where(np.isin(kind, _ids(records.kinds, *_DMA)), 0, -1)
    if not ((least <= route) & (route < len(x.routes))).all():
        raise ValueError("a stage has a route that there is not")
