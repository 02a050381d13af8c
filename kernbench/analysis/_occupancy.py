"""Occupancy over time: requests under way, slots of queues in use, and bytes allocated, as step functions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kernbench.analysis._records import CREDIT, FETCH, PART, READ, WRITE, Records
from kernbench.analysis.breakdown import whole_composites

if TYPE_CHECKING:
    import pandas as pd

READS, WRITES, SLOTS, ALLOCATED, REQUESTS = "reads", "writes", "slots", "allocated", "requests"
# In the order of a report: the label and the unit of each quantity.
QUANTITIES = {
    READS: ("outstanding reads", ""),
    WRITES: ("outstanding writes", ""),
    SLOTS: ("queue slots in use", ""),
    REQUESTS: ("requests", ""),
    ALLOCATED: ("allocated", "B"),
}
_DMA, _QUEUE = ".pe_dma", ".pe_ipcq"


class OccupancyTrack(NamedTuple):
    """One quantity of a component: `value[i]` from `t_ps[i]` until `t_ps[i + 1]`, and 0 before `t_ps[0]`."""

    component: str
    quantity: str
    t_ps: np.ndarray
    value: np.ndarray


@dataclass(frozen=True, eq=False)
class Occupancy:
    """How much of a run's memories, queues and requests was in use when: an iterable of tracks, and a table.

    Parameters
    ----------
    tracks : tuple of OccupancyTrack
        By component and quantity; each has its component, quantity, times [ps] and values.

    Notes
    -----
    The quantities are, at any time:

    - "reads", "writes": memory accesses that a PE_DMA or the host has sent, until their answer is complete, those of
      queues included.
    - "slots": slots of the rings of a PE that hold a part of a message, from its arrival until the slot is free.
    - "requests": accesses that have arrived at a memory and have not been served.
    - "allocated": bytes of an HBM slice, an SRAM or a TCM that tensors, rings and tiles take, rounded up to their
      alignment; tile buffers are not counted, because their space is reserved.

    What the log does not contain is left out. A log without tiles lacks the accesses of tiled commands, that of an
    interrupted run what was under way: neither has "reads", "writes" and "requests", an interrupted run no "slots".
    Memories that hold rings have no "requests", files of earlier versions no "allocated".

    Examples
    --------
    >>> import kernbench as kb
    >>> result = kb.run("gemm-single-pe", "preset:small", log="tile").result
    >>> reads = next(x for x in result.occupancy if x.quantity == "reads" and "pe0" in x.component)
    >>> int(reads.value.max()) <= kb.load("preset:small").config.cube.pe.pe_dma.outstanding_reads
    True
    """

    tracks: tuple[OccupancyTrack, ...]

    def __iter__(self) -> Iterator[OccupancyTrack]:
        return iter(self.tracks)

    def to_pandas(self) -> pd.DataFrame:
        """Return a row for each change: component, quantity, t_ns, and the value from then on."""
        import pandas as pd

        sizes = [len(track.t_ps) for track in self.tracks]
        names = {name: np.repeat([getattr(x, name) for x in self.tracks], sizes) for name in ("component", "quantity")}
        columns = {
            name: np.concatenate([np.zeros(0, np.int64), *(getattr(x, name) for x in self.tracks)])
            for name in ("t_ps", "value")
        }
        return pd.DataFrame({**names, "t_ns": columns["t_ps"] / 1000, "value": columns["value"]})


class _Changes(NamedTuple):
    quantity: str
    names: list[str]  # of components
    component: np.ndarray  # of each change: an index of `names`, the time and the difference
    t_ps: np.ndarray
    by: np.ndarray


def occupancy(records: Records) -> Occupancy:
    found = [*_allocations(records)]
    if records.complete:
        found += _slots(records)
        if not whole_composites(records).any():
            found += _requests(records)
    tracks = [track for changes in found for track in _tracks(changes)]
    order = list(QUANTITIES)
    return Occupancy(tuple(sorted(tracks, key=lambda x: (x.component, order.index(x.quantity)))))


def _tracks(changes: _Changes) -> Iterator[OccupancyTrack]:
    """Sum the changes of each component in order of time; those of one time are one, and none if they cancel out."""
    names = {name: i for i, name in enumerate(dict.fromkeys(changes.names))}
    index = np.array([names[name] for name in changes.names] or [0])[changes.component]
    order = np.lexsort((changes.t_ps, index))
    index, t, by = index[order], changes.t_ps[order], changes.by[order]
    first = np.flatnonzero((np.diff(index, prepend=-1) != 0) | (np.diff(t, prepend=-1) != 0))
    by = np.add.reduceat(by, first) if len(first) else by
    index, t = index[first][by != 0], t[first][by != 0]
    value = np.cumsum(by[by != 0])  # of components that each end as they began, or are the last
    ends = np.searchsorted(index, np.arange(len(names) + 1))
    for name, i in names.items():
        mine = slice(ends[i], ends[i + 1])
        if ends[i] < ends[i + 1]:
            before = value[ends[i] - 1] if ends[i] else 0
            yield OccupancyTrack(name, changes.quantity, t[mine], value[mine] - before)


def _between(quantity: str, names: list[str], index: np.ndarray, start: np.ndarray, end: np.ndarray) -> _Changes:
    """Count one from each start to each end; an index of -1 has none."""
    known = index >= 0
    index, start, end = index[known], start[known], end[known]
    one = np.ones(len(index), np.int64)
    return _Changes(quantity, names, np.tile(index, 2), np.concatenate([start, end]), np.concatenate([one, -one]))


def _requests(records: Records) -> list[_Changes]:
    moves, nodes = records.dependencies.transfers, records.dependencies.nodes
    routes = records.dependencies.routes
    memories, requesters = [*records.dependencies.memories], [nodes[route[-1]] for route in routes]
    reads, writes = np.isin(moves["kind"], (READ, FETCH)), moves["kind"] == WRITE
    parts = {nodes[routes[i][-1]] for i in np.unique(moves["route"][moves["kind"] == PART]).tolist()}
    counted = np.array([name not in parts for name in memories] or [True])[moves["route"]]
    served = (reads | writes) & (moves["served_ps"] >= 0) & counted
    return [
        _between(quantity, names, np.where(of, moves["route"], -1), moves[start], moves[end])
        for quantity, names, of, start, end in (
            (READS, requesters, reads, "start_ps", "end_ps"),
            (WRITES, requesters, writes, "start_ps", "end_ps"),
            (REQUESTS, memories, served, "arrived_ps", "served_ps"),
        )
    ]


def _slots(records: Records) -> Iterator[_Changes]:
    """Count slots: a part fills one of its receiver at its end; a credit leaves when it is free."""
    dependencies = records.dependencies
    moves, nodes = dependencies.transfers, dependencies.nodes
    queues: dict[str, int] = {}
    to, back = (
        np.array([_number(queues, nodes[route[i]]) for route in dependencies.routes] or [-1])[moves["route"]]
        for i in (-1, 0)
    )
    # A part for a ring in memory goes there; its receive follows its send.
    receiver = np.full(len(records.commands) + 1, -1)
    received = np.unique(records.command[records.is_kind("recv")])
    pairs = dependencies.after[np.isin(dependencies.after[:, 0], received)]
    receiver[pairs[:, 1]] = [_number(queues, f"{records.commands[i].place}{_DMA}") for i in pairs[:, 0].tolist()]
    at_switch = np.array(["sip_switch" in nodes[route[-1]] for route in dependencies.routes] or [False])
    parts, credits = (moves["kind"] == PART) & ~at_switch[moves["route"]], moves["kind"] == CREDIT
    to = np.where(to < 0, receiver[moves["command"]], to)
    index = np.concatenate([to[parts], back[credits]])
    t = np.concatenate([moves["end_ps"][parts], moves["start_ps"][credits]])
    by = np.concatenate([np.ones(parts.sum(), np.int64), -np.ones(credits.sum(), np.int64)])
    known = index >= 0
    yield _Changes(SLOTS, list(queues), index[known], t[known], by[known])


def _number(queues: dict[str, int], node: str) -> int:
    """Index of the queue engine beside a PE_DMA; -1 for other nodes."""
    return queues.setdefault(node.removesuffix(_DMA) + _QUEUE, len(queues)) if node.endswith(_DMA) else -1


def _allocations(records: Records) -> Iterator[_Changes]:
    table = records.dependencies.allocations
    yield _Changes(ALLOCATED, list(records.dependencies.places), table["place"], table["t_ps"], table["nbytes"])
