"""Quantities: the units of the distances between a run's events, on its machine and on a changed one.

A quantity is a time of the machine file [ps], a slowdown by a rate (1 on the run's machine), or the time of a message
over links [ps].
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from itertools import chain, pairwise
from math import ceil, prod
from operator import getitem
from typing import Any

import numpy as np

from kernbench._dtypes import MATRIX_TYPES
from kernbench._units import decimal_product, flits, ns_to_ps, serialization_ps
from kernbench.analysis._records import Records
from kernbench.analysis._resources import attribution, kind_of
from kernbench.analysis._transfer import flit_bytes_of, flit_ps
from kernbench.config._kinds import RATE
from kernbench.config._schema import settings

_Hop = int
_SLICE = ("cube.hbm.channel_bw_gbs", "cube.hbm.efficiency")
_MATRIX, _MACS, _VECTOR = "cube.pe.pe_gemm", "cube.pe.pe_gemm.macs_per_cycle", "cube.pe.pe_math"
# Parts that may have credits.
_CLOCKED = {
    "router": settings("mesh link", RATE),
    **dict.fromkeys(("noc", "sip_switch"), settings("SIP link", RATE)),
}
_LANES = ("lanes_16bit", "lanes_32bit", "slow_op_cycles")
VectorWork = tuple[tuple[str, int, int], ...]


class Quantities:
    """The quantities of one run, numbered in the order in which they are first requested."""

    def __init__(self, records: Records) -> None:
        self._records = records
        dependencies = records.dependencies
        self._nodes, self._routes = dependencies.nodes, dependencies.routes
        self._number: dict[Any, int] = {}
        self._now: list[float] = []
        self._hop: dict[tuple[int, int], _Hop] = {ends: i for i, ends in enumerate(dependencies.links)}
        self._names = [f"{self._nodes[a]}->{self._nodes[b]}" for a, b in self._hop]
        self._by_name = {name: i for i, name in enumerate(self._names)}
        values = list(dependencies.links.values())
        self._wire, self._node, self._bw, self._header, self._cycle = np.array(values, float).reshape(-1, 5).T
        self.flit_bytes = flit_bytes_of(records.spec)
        self.command_bytes: int = records.spec["system"].get("command_bytes", 0)
        self._latency = (self._wire + self._node).tolist()
        self._hops: dict[tuple[int, bool], tuple[_Hop, ...]] = {}
        self._paths: list[tuple[int, tuple[_Hop, ...], int, int]] = []  # (quantity, hops, bytes of a flit, flits)
        self._flit: dict[tuple[_Hop, int], int] = {}
        hbm = self.spec("cube.hbm")
        self.burst_ps = serialization_ps(hbm["burst_bytes"], decimal_product(hbm["channel_bw_gbs"], hbm["efficiency"]))
        self.wave_bytes: int = hbm["burst_bytes"] * hbm["channels"]
        self._bursts: tuple[float, int] = self.burst_ps / hbm["channels"], hbm["burst_bytes"]
        self.one = self._enter(("one",), 1.0)
        self.memory = self._enter(("memory",), 1.0)
        self._rates = [attribution("serialization", name).fields for name in self._names]
        self._wires = [attribution("wire", name).fields for name in self._names]
        self._ends = [attribution("nodes", self._nodes[b]).fields for _, b in self._hop]
        # At routers with credits, the fields that set the cycle of a link, and whether its end is such a router.
        routers = [[kind_of(self._nodes[end]) in _CLOCKED for end in ends] for ends in self._hop]
        self._clocks = [
            next((_CLOCKED[kind] for end in ends if (kind := kind_of(self._nodes[end])) in _CLOCKED), ())
            if cycle
            else ()
            for ends, cycle in zip(self._hop, self._cycle, strict=True)
        ]
        self._stages = np.array([into and bool(clock) for (_, into), clock in zip(routers, self._clocks, strict=True)])

    def spec(self, path: str) -> Any:
        return reduce(getitem, path.split("."), self._records.spec)

    def now(self, quantity: int) -> float:
        return self._now[quantity]

    def ns(self, field: str) -> int:
        key = "ns", field
        return self._number[key] if key in self._number else self._enter(key, ns_to_ps(float(self.spec(field))))

    def rate(self, *fields: str) -> int:
        """Quantity of the slowdown by rates of the machine file."""
        key = "rate", *fields
        return self._number[key] if key in self._number else self._enter(key, 1.0)

    def matrix(self, dtype: str) -> int:
        key = "matrix", MATRIX_TYPES.get(dtype, "")
        return self._number[key] if key in self._number else self._enter(key, 1.0)

    def vector(self, work: VectorWork) -> int:
        key = "vector", work
        return self._number[key] if key in self._number else self._enter(key, 1.0)

    def bursts_ps(self, nbytes: int) -> float:
        """Time [ps] of a request at an otherwise idle slice that uses all channels."""
        per_burst, size = self._bursts
        return max(1, ceil(nbytes / size)) * per_burst

    def stream(self, route: int, nbytes: int) -> tuple[int, float]:
        """Limit of a stream of bytes over a route, a slice or a link: its slowdown, and the time [ps]."""
        hops = self.hops(route, False)
        slowest = max(hops, key=lambda hop: self.link_ps(hop, self.flit_bytes))
        over_links = self.link_ps(slowest, self.flit_bytes) * nbytes / self.flit_bytes
        if ".hbm_ctrl." in self._nodes[self._routes[route][0]]:
            served = self.bursts_ps(nbytes)
            if served >= over_links:
                return self.memory, served
        return self.link_rate(slowest), over_links

    # -- links

    def hops(self, route: int, reverse: bool) -> tuple[_Hop, ...]:
        key = route, reverse
        if key not in self._hops:
            path = self._routes[route]
            self._hops[key] = tuple(self._hop[pair] for pair in pairwise(path[::-1] if reverse else path))
        return self._hops[key]

    def link_name(self, hop: _Hop) -> str:
        return self._names[hop]

    def hop(self, name: str) -> _Hop:
        """-1 for a link that no route in the log has."""
        return self._by_name.get(name, -1)

    def link_ps(self, hop: _Hop, size: int) -> int:
        found = self._flit.get((hop, size))
        if found is None:
            found = self._flit[hop, size] = flit_ps(
                size, float(self._bw[hop]), int(self._header[hop]), int(self._cycle[hop])
            )
        return found

    def link_rate(self, hop: _Hop) -> int:
        """Slowdown by a link's bandwidth, or by the cycle of routers with credits if that is longer."""
        cycle = int(self._cycle[hop])
        fields = self._clocks[hop] if self.link_ps(hop, self.flit_bytes) <= cycle else self._rates[hop]
        return self.rate(*fields) if fields else self.one

    def transit(
        self, route: int, nbytes: int, *, reverse: bool = False, first: int = 0, last: int | None = None
    ) -> int:
        """Quantity of a message's time over a route, or over its links [first, last)."""
        key = "transit", route, nbytes, reverse, first, last
        found = self._number.get(key)
        if found is not None:
            return found
        hops = self.hops(route, reverse)[first:last]
        size, n = min(nbytes, self.flit_bytes), flits(nbytes, self.flit_bytes)
        times = [self.link_ps(hop, size) for hop in hops]
        now = sum(self._latency[hop] for hop in hops) + sum(times) + (n - 1) * max(times, default=0)
        quantity = self._enter(key, now)
        if hops:
            self._paths.append((quantity, hops, size, n))
        return quantity

    def _enter(self, key: Any, now: float) -> int:
        self._number[key] = len(self._now)
        self._now.append(now)
        return len(self._now) - 1

    # -- on another machine

    def freeze(self) -> None:
        """Prepare the arrays for `on`; no quantity may be added afterwards."""
        lengths = np.array([len(hops) for _, hops, _, _ in self._paths], np.int64)
        self._begins = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64) if len(lengths) else lengths
        self._flat = np.array([hop for _, hops, _, _ in self._paths for hop in hops], np.int64)
        self._sizes = np.repeat(np.array([size for *_, size, _ in self._paths], float), lengths)
        self._sizes += self._header[self._flat]
        self._flits = np.array([n for *_, n in self._paths], float)
        self._at = np.array([quantity for quantity, *_ in self._paths], np.int64)
        self._base = np.array(self._now, float)

    def on(self, ratio: Mapping[str, float], new: Mapping[str, float]) -> np.ndarray:
        """All quantities with some fields changed: to their `new` values, slower by `ratio`."""
        values = self._base.copy()
        memory = 1.0
        for field in _SLICE:
            memory *= ratio.get(field, 1.0)
        values[self.memory] = memory
        for (kind, *what), number in self._number.items():
            if kind == "ns" and what[0] in new:
                values[number] = ns_to_ps(new[what[0]])
            elif kind == "rate":
                values[number] = _slower(ratio, what)
            elif kind == "matrix":
                values[number] = ratio.get(f"{_MATRIX}.clock_ghz", 1.0) * ratio.get(f"{_MACS}.{what[0]}", 1.0)
                if self.spec(_MATRIX).get("model") == "systolic":  # for f16, as many MACs as positions
                    values[number] /= ratio.get(f"{_MACS}.f16", 1.0)
            elif kind == "vector":
                values[number] = ratio.get(f"{_VECTOR}.clock_ghz", 1.0) * self._more_cycles(what[0], new)
        of_links = self._rates, self._wires, self._ends, self._clocks
        slowdown = {fields: _slower(ratio, fields) for fields in set(chain(*of_links))}
        if len(self._flat) and any(x != 1 for x in slowdown.values()):
            slower, longer, node, clock = (np.array([slowdown[fields] for fields in each]) for each in of_links)
            longer, node = np.where(self._cycle > 0, clock, longer), np.where(self._stages, clock, node)
            latency = np.round(self._wire * longer) + np.round(self._node * node)
            times = np.ceil(self._sizes * (1000 * slower / self._bw)[self._flat] - 1e-9)
            if self._cycle.any():
                cycle = np.maximum(self._cycle * clock, 1)[self._flat]
                times = np.ceil(times / cycle - 1e-9) * cycle
            total = np.add.reduceat(latency[self._flat] + times, self._begins)
            values[self._at] = total + (self._flits - 1) * np.maximum.reduceat(times, self._begins)
        return values

    def _more_cycles(self, work: VectorWork, new: Mapping[str, float]) -> float:
        if not work or not any(f"{_VECTOR}.{name}" in new for name in _LANES):
            return 1.0
        now = [float(self.spec(f"{_VECTOR}.{name}")) for name in _LANES]
        then = [new.get(f"{_VECTOR}.{name}", value) for name, value in zip(_LANES, now, strict=True)]
        return _cycles(work, *then) / _cycles(work, *now)


def _slower(ratio: Mapping[str, float], fields: Iterable[str]) -> float:
    return prod(ratio.get(field, 1.0) for field in fields)


def _cycles(work: VectorWork, lanes_16bit: float, lanes_32bit: float, slow_op_cycles: float) -> float:
    """Cycles of the vector engine: elements over lanes; a reduction then combines the lanes."""
    cycles = 0.0
    for kind, elements, itemsize in work:
        lanes = lanes_16bit if itemsize <= 2 else max(1, lanes_32bit * 4 // itemsize)
        rounds = ceil(elements / lanes)
        cycles += rounds * slow_op_cycles if kind == "slow" else rounds
        cycles += (int(lanes) - 1).bit_length() if kind == "reduce" else 0
    return max(1.0, cycles)
