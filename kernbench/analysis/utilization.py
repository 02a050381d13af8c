"""Occupancy of links, utilization of matrix engines, and max-min fair shares of links."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kernbench.analysis._records import LinkTable, Records
from kernbench.analysis._stages import PE_KINDS
from kernbench.analysis._transfer import RouteBreakdown
from kernbench.analysis.breakdown import breakdown


def shares(links: LinkTable, span_ps: int) -> dict[str, float]:
    """Return the share of `span_ps` that each link was busy, without links that never were."""
    busy = zip(links.names, links.busy_ps.tolist(), strict=True)
    return {name: ps / span_ps for name, ps in busy if ps} if span_ps else {}


def hottest(share: Mapping[str, float]) -> str:
    """Return the link with the longest busy time; of several, the first by name, with numbers in numeric order."""
    return min(share, key=lambda name: (-share[name], _natural(name)))


class LinkTraffic:
    """Bytes that crossed each link of a run, in any part of it."""

    def __init__(self, records: Records) -> None:
        self._records = records
        index = {name: i for i, name in enumerate(records.links.names)}
        routes = RouteBreakdown(records)
        numbers = range(len(records.dependencies.routes))
        pairs = [(number, index[link]) for number in numbers for link in routes.links(number) if link in index]
        table = np.array(pairs, np.int64).reshape(-1, 2)
        self._route, self._link = table[:, 0], table[:, 1]

    def between(self, start_ps: int, end_ps: int) -> LinkTable:
        """Traffic of every link in a part of the run; transfers count in proportion to their overlap with it."""
        table, moves, whole_ps = self._records.links, self._records.dependencies.transfers, self._records.makespan_ps
        if start_ps <= 0 and end_ps >= whole_ps:
            return table
        length = np.maximum(1, moves["end_ps"] - moves["start_ps"])
        before, after = (np.clip((t - moves["start_ps"]) / length, 0, 1) for t in (start_ps, end_ps))
        inside, in_all = self._crossed(after - before), self._crossed(np.ones(len(length)))
        share = np.where(in_all > 0, inside / np.maximum(1, in_all), (end_ps - start_ps) / whole_ps)
        busy, nbytes = (np.rint(column * share).astype(np.int64) for column in (table.busy_ps, table.nbytes))
        return LinkTable(table.names, nbytes, busy, table.bw_gbs)

    def _crossed(self, share: np.ndarray) -> np.ndarray:
        """Bytes on each link if of each transfer only this share counts; shape (links,)."""
        moves, dependencies = self._records.dependencies.transfers, self._records.dependencies
        by_route = np.bincount(moves["route"], moves["nbytes"] * share, len(dependencies.routes))
        return np.bincount(self._link, by_route[self._route], len(self._records.links.names))


def _natural(name: str) -> list[str | int]:
    return [int(word) if word.isdigit() else word for word in re.split(r"(\d+)", name)]


_Flow = Sequence[Hashable]


def max_min_rates(flows: Sequence[_Flow], capacity: Mapping[Hashable, float]) -> list[float]:
    """Max-min fair rate of each flow, a sequence of resources, in the unit of their capacity.

    Notes
    -----
    Progressive filling: all rates grow equally until a resource is full; its flows keep their rate, and the others
    continue to grow. The result is the only allocation in which no rate can grow except at the cost of a smaller one
    (Bertsekas and Gallager, Data Networks, 6.5.2).

    Examples
    --------
    >>> max_min_rates([["a"], ["a", "b"], ["b"]], {"a": 10, "b": 4})
    [8.0, 2.0, 2.0]
    """
    users: dict[Hashable, set[int]] = {}
    for i, flow in enumerate(flows):
        for resource in flow:
            users.setdefault(resource, set()).add(i)
    left = {resource: float(capacity[resource]) for resource in users}
    rates = [0.0] * len(flows)
    while users:
        full, share = min(((r, left[r] / len(users[r])) for r in users), key=lambda item: item[1])
        for i in users.pop(full):
            rates[i] = share
            for resource in set(flows[i]) & users.keys():
                users[resource].discard(i)
                left[resource] -= share
                if not users[resource]:
                    del users[resource]
    return rates


def drain(flows: Sequence[_Flow], capacity: Mapping[Hashable, float], amount: float) -> list[float]:
    """When each flow has moved `amount`, if all start at 0 and share fairly the capacity that finished ones leave.

    Examples
    --------
    >>> drain([["a"], ["a", "b"], ["b"]], {"a": 10, "b": 4}, 40)
    [5.0, 20.0, 20.0]
    """
    ends = [0.0] * len(flows)
    missing = dict.fromkeys(range(len(flows)), float(amount))
    now = 0.0
    while missing:
        active = list(missing)
        rates = dict(zip(active, max_min_rates([flows[i] for i in active], capacity), strict=True))
        step = min(missing[i] / rates[i] for i in active)
        now += step
        for i in active:
            missing[i] -= step * rates[i]
            if missing[i] <= 1e-9 * amount:
                ends[i] = now
                del missing[i]
    return ends


@dataclass(frozen=True, slots=True)
class Utilization:
    """Useful and issued MACs of the matrix engines in one window, and both as a share of their peak."""

    window_ps: int
    useful_macs: int
    issued_macs: float
    useful: float
    issued: float


def pe_window(records: Records, pe: tuple[int, int, int] | None = None) -> tuple[int, int]:
    """Return (start_ps, end_ps) of everything the PE did, loads included; by default of all PEs."""
    return _window_span((records.of_pe(*pe) if pe else records).of_kind(*PE_KINDS))


def composite_window(records: Records, pe: tuple[int, int, int] | None = None) -> tuple[int, int]:
    """Return (start_ps, end_ps) of the PE's composites, up to the acknowledgement of the last write."""
    return _window_span((records.of_pe(*pe) if pe else records).of_kind("composite"))


def utilization(
    records: Records,
    macs_per_ns: float,
    *,
    pe: tuple[int, int, int] | None = None,
    window: tuple[int, int] | None = None,
) -> Utilization:
    """Utilization of the matrix engine of one PE, or of all PEs that did work; the window is `pe_window` by default.

    Notes
    -----
    useful = useful MACs / (rate x window); issued = busy time / window, as a ragged tile occupies the engine like a
    full one. Work counts in the window in which it ends.
    """
    window = window or pe_window(records, pe)
    parts = breakdown(records, pe=pe, window=window)
    gemm = (records.of_pe(*pe) if pe else records).of_kind("gemm")
    inside = (gemm.end_ps > window[0]) & (gemm.end_ps <= window[1])
    useful_macs = int(gemm.flops[inside].sum()) // 2
    span_ns = parts.window_ps * parts.n_pes / 1000
    issued_macs = parts.busy_ps["gemm"] / 1000 * macs_per_ns
    peak = macs_per_ns * span_ns
    return Utilization(
        window_ps=parts.window_ps,
        useful_macs=useful_macs,
        issued_macs=issued_macs,
        useful=useful_macs / peak if peak else 0.0,
        issued=issued_macs / peak if peak else 0.0,
    )


def _window_span(rows: Records) -> tuple[int, int]:
    if not len(rows):
        return 0, 0
    return int(rows.start_ps.min()), int(rows.end_ps.max())
