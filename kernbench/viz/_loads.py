"""Load of each link and component over time, from the log of a run.

The log has the busy time of each link, and the start and end of each transfer, but not the time of each flit on each
link. Here a transfer waits at the busiest link of its route: it passes the links in front of that one as early as it
can, and those behind it as late as its end allows. No server does more than one thing at a time.
"""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple

import numpy as np

from kernbench.analysis._records import FETCH, READ, WRITE, Records
from kernbench.topology import _naming as naming


class _Load(NamedTuple):
    """The busy share, and the mean amount of outstanding work: float64 of shape (servers, bins)."""

    busy: np.ndarray
    under_way: np.ndarray


def used_links(records: Records) -> list[str]:
    return [records.links.names[i] for i in np.flatnonzero(records.links.busy_ps)]


def used_nodes(records: Records) -> dict[str, int]:
    return {name: ps for name, ps in records.busy_by_component().items() if ps and name != naming.HOST}


def link_loads(records: Records, bins: int) -> _Load:
    busy_ps = records.links.busy_ps[records.links.busy_ps > 0]
    early, late, queues = (_Work(len(busy_ps), records.makespan_ps, bins) for _ in range(3))
    moves, hops = records.dependencies.transfers, _Hops(records)
    start, end, route, nbytes = (moves[name] for name in ("start_ps", "end_ps", "route", "nbytes"))
    write, read = moves["kind"] == WRITE, np.isin(moves["kind"], (READ, FETCH)) & (moves["served_ps"] >= 0)
    # Data of a read leave their memory in turn. Data of a write, or of a message's part, exist before they are served.
    first = np.where(read, _served_from(records), start)
    last = np.where(~read & (moves["arrived_ps"] >= 0), moves["arrived_ps"], end)
    supply = np.where(read, moves["served_ps"] - first, 0)
    # A route starts at the memory; a write crosses it in reverse.
    move, hop = hops.of(route + write * len(records.dependencies.routes))
    high = last[move] - hops.behind[hop]
    low = np.minimum(first[move] + hops.before[hop], high - 1)
    length = np.minimum(high - low, np.maximum(supply[move], nbytes[move] * hops.slowest[hop]))
    link, work, before = hops.link[hop], nbytes[move] * hops.ps_per_byte[hop], hops.until_busiest[hop]
    early.add(np.where(before, link, -1), low, low + length, work)
    late.add(np.where(before, -1, link), high - length, high, work)
    queues.add(link, low, high, high - low)
    return _Load(_shares(early, late, busy_ps, records), queues.rates())


def node_loads(records: Records, bins: int) -> _Load:
    busy = used_nodes(records)
    row_of = {name: i for i, name in enumerate(busy)}
    done, queues = (_Work(len(busy), records.makespan_ps, bins) for _ in range(2))
    rows = np.array([row_of.get(name, -1) for name in records.components] or [-1])[records.component]
    done.add(rows, *_disjoint(rows, records.start_ps, records.end_ps))
    queues.add(rows, records.start_ps, records.end_ps, records.end_ps - records.start_ps)
    moves = records.dependencies.transfers
    memory = np.array([row_of.get(name, -1) for name in records.dependencies.memories] or [-1])
    rows = np.where(moves["served_ps"] >= 0, memory[moves["route"]], -1)
    done.add(rows, *_disjoint(rows, moves["since_ps"], moves["served_ps"]))
    queues.add(rows, moves["arrived_ps"], moves["served_ps"], moves["served_ps"] - moves["arrived_ps"])
    none = _Work(len(busy), records.makespan_ps, bins)
    return _Load(_shares(done, none, np.array(list(busy.values()), np.int64), records), queues.rates())


def _shares(early: _Work, late: _Work, busy_ps: np.ndarray, records: Records) -> np.ndarray:
    """Busy share of each bin; the times of a server sum to its `busy_ps`.

    Work that exceeds a bin is moved to later ones or, for late work, to earlier ones. Busy time that no work explains
    belongs to work that the log leaves out: it is spread over the time in which commands of PEs ran.
    """
    before, behind, width = early.per_bin(), late.per_bin(), early.width
    total = before.sum(1) + behind.sum(1)
    for work in (before, behind):
        work *= np.minimum(1, busy_ps / np.maximum(1, total))[:, None]
    before += np.maximum(0, busy_ps - total)[:, None] * _command_weights(records, before.shape[1])
    _pour(behind, width, backwards=True)
    before += behind
    _pour(before, width)
    _pour(before, width, backwards=True)
    return before / width


def _pour(work: np.ndarray, width: float, *, backwards: bool = False) -> None:
    """Move the excess over `width` in a bin to the next ones."""
    over = (work > width).any(axis=1)
    columns = work[over].T.copy()
    left = np.zeros(columns.shape[1])
    for column in columns[:: -1 if backwards else 1]:
        left += column
        np.minimum(left, width, out=column)
        left -= column
    work[over] = columns.T


def _command_weights(records: Records, bins: int) -> np.ndarray:
    spans, rows = _Work(1, records.makespan_ps, bins), records.is_kind("composite", "load", "store", "send", "recv")
    start, end = records.start_ps[rows], records.end_ps[rows]
    spans.add(np.zeros(len(start), np.int64), start, end, end - start)
    work = spans.per_bin()[0]
    return work / work.sum() if work.any() else np.full(bins, 1 / bins)


def _served_from(records: Records) -> np.ndarray:
    """Start of each transfer's service by its memory: it has arrived, and the previous one has been served."""
    moves, routes = records.dependencies.transfers, records.dependencies.routes
    memory = np.array([route[0] for route in routes] or [0])[moves["route"]]
    order = np.lexsort((moves["served_ps"], memory))
    same = memory[order][1:] == memory[order][:-1]
    before = np.full(len(order), -1, np.int64)
    before[order[1:][same]] = moves["served_ps"][order[:-1][same]]
    return np.maximum(moves["arrived_ps"], before)


def _disjoint(rows: np.ndarray, start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cut from intervals the parts that earlier ones of the same row cover; return starts, ends and lengths."""
    shift = rows.astype(np.int64) * (int(end.max(initial=0)) + 1)
    order = np.lexsort((start, rows))
    low, high = (start + shift)[order], np.maximum.accumulate((end + shift)[order])
    low = np.minimum(np.maximum(low, np.concatenate([low[:1], high[:-1]])), high)
    begin, stop = np.empty_like(low), np.empty_like(high)
    begin[order], stop[order] = low, high
    return begin - shift, stop - shift, stop - begin


class _Work:
    def __init__(self, n: int, span_ps: int, bins: int) -> None:
        self.width = span_ps / bins
        # The slope of each server's work, and slope x time, where they change.
        self._slope, self._offset = np.zeros((2, n, bins + 1))

    def add(self, rows: np.ndarray, start: np.ndarray, end: np.ndarray, work: np.ndarray) -> None:
        """Add work that is done evenly from `start` to `end` by the servers `rows` (-1: none)."""
        used = (rows >= 0) & (work > 0)
        rows, start, end, work = rows[used], start[used], np.maximum(end[used], start[used] + 1), work[used]
        slope, bins, size = work / (end - start), self._slope.shape[1], self._slope.size
        for at, change in ((start, slope), (end, -slope)):
            index = rows * bins + np.clip(np.ceil(at / self.width), 0, bins - 1).astype(np.int64)
            self._slope += np.bincount(index, change, size).reshape(self._slope.shape)
            self._offset += np.bincount(index, change * at, size).reshape(self._offset.shape)

    def per_bin(self) -> np.ndarray:
        edges = np.arange(self._slope.shape[1]) * self.width
        done = np.cumsum(self._slope, 1) * edges - np.cumsum(self._offset, 1)
        return np.maximum(0, np.diff(done, axis=1))

    def rates(self) -> np.ndarray:
        """Work of each bin per time; for intervals as long as their work, their mean number."""
        return self.per_bin() / self.width


class _Hops:
    """The links of each route, and of each route in reverse: the columns of one table."""

    def __init__(self, records: Records) -> None:
        nodes, known = records.dependencies.nodes, records.dependencies.links
        paths = [*records.dependencies.routes, *(route[::-1] for route in records.dependencies.routes)]
        lengths = np.fromiter(map(len, paths), np.int64, len(paths))
        node, route = np.fromiter(chain.from_iterable(paths), np.int64), np.repeat(np.arange(len(paths)), lengths)
        inside = route[1:] == route[:-1]
        route = route[1:][inside]
        pairs, index = np.unique(node[:-1][inside] * len(nodes) + node[1:][inside], return_inverse=True)
        ends = [divmod(pair, len(nodes)) for pair in pairs.tolist()]
        names = {name: i for i, name in enumerate(records.links.names)}
        place = np.array([names.get(f"{nodes[src]}->{nodes[dst]}", -1) for src, dst in ends], np.int64)
        # Row -1, for a link that was never used, is the last of each table.
        table = records.links
        busy = np.append(table.busy_ps, 0)
        self.link = np.append(np.where(table.busy_ps > 0, np.cumsum(table.busy_ps > 0) - 1, -1), -1)[place][index]
        self.ps_per_byte = (1000 / np.append(table.bw_gbs, np.inf))[place][index]
        latency = np.array([sum(known.get(pair, (0, 0))[:2]) for pair in ends], np.int64)[index]
        self._first = np.searchsorted(route, np.arange(len(paths) + 1))
        until = np.cumsum(latency)
        whole = until - np.concatenate([[0], until])[self._first[route]]
        # Latency in front of the link and behind its service, and the slowest rate up to it.
        self.before = whole - latency
        self.behind = np.bincount(route, latency, len(paths)).astype(np.int64)[route] - self.before
        self.slowest = _running_max(self.ps_per_byte, route)
        time = busy[place][index]
        so_far = _running_max(time, route)
        most = so_far[self._first[1:][route] - 1]
        # A link is behind the busiest one if a link in front of it is as busy as any.
        is_first = np.append(True, route[1:] != route[:-1])[: len(route)]
        self.until_busiest = is_first | (np.append(-1, so_far[:-1])[: len(route)] < most)

    def of(self, routes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For all links of all `routes`: the index into `routes`, and the row of this table."""
        count = self._first[routes + 1] - self._first[routes]
        move = np.repeat(np.arange(len(routes)), count)
        within = np.arange(len(move)) - np.repeat(np.cumsum(count) - count, count)
        return move, self._first[routes[move]] + within


def _running_max(values: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Cumulative maximum within each group; groups are ascending."""
    known, rank = np.unique(values, return_inverse=True)
    shift = group * len(known)
    return known[np.maximum.accumulate(rank + shift) - shift]
