"""Latency of a network against load: synthetic traffic from every terminal, warmed up, until the network saturates."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, lru_cache
from html import escape
from itertools import pairwise
from typing import Any

import numpy as np

from kernbench._registry import hint
from kernbench._units import ps_to_ns, serialization_ps
from kernbench.errors import ArgumentError
from kernbench.sim_engine._network import Clock, Link, Network
from kernbench.sim_engine._traffic import Terminal
from kernbench.sim_engine._transaction import Route
from kernbench.studies.study import check_slices
from kernbench.topology import _naming as naming
from kernbench.topology.builder import Machine, resolve_topology
from kernbench.viz.still import Still

PATTERNS = ("uniform", "transpose", "tornado", "hotspot")
NETWORKS = ("cube", "sips")
LOADS = tuple(round(0.05 * i, 2) for i in range(1, 19))
HOT_SHARE = 1 / 8  # of the packets of pattern hotspot; the others are uniform
SATURATED = 3  # times the latency without load
_BATCHES = 20
_DRAIN = 0.5  # of the time in which packets are sent
_PRECISION = 0.005  # of the saturation load
_MARGIN = 1.1  # of the next load that is expected to saturate, to one that was and does not
_CYCLES = 12_000  # in which packets are sent, to compare a latency
_PACKETS = 50_000  # so that a mean over routes of any length is good to a quarter of a percent


@dataclass(frozen=True)
class LoadPoint:
    """Measurements at one offered load.

    `load` and `accepted` are the flits that a terminal sends and receives per cycle: 1 is the bandwidth of a link
    between routers. `latency_ns` (mean) and `p99_ns` are from when a packet is made until its last flit arrives;
    `others_ns` is the mean of the packets that do not go to the hot spot. Of the packets that are made after
    `warmup_cycles`, when the mean latency is steady, `packets` are measured. The network is `saturated` if the mean
    latency is more than three times that without load, or packets do not arrive.
    """

    load: float
    accepted: float
    latency_ns: float
    p99_ns: float
    others_ns: float
    packets: int
    warmup_cycles: int
    saturated: bool


@dataclass(frozen=True, repr=False)
class LoadCurve:
    """Latency against load of one network, pattern and packet size; it prints itself and draws itself in a notebook.

    Attributes
    ----------
    points : tuple of LoadPoint
        Loads that were asked for, and those by which the saturation was found.
    zero_load_ns : float
        Mean latency of the pattern's packets, each alone [ns].
    saturation : float
        The highest load at which the mean latency is at most three times that, found by bisection [flits per cycle].
    cycle_ns : float
        The time of a flit on a link between routers [ns].
    """

    machine: str
    network: str
    flow: str
    pattern: str
    packet: int
    terminals: int
    cycle_ns: float
    zero_load_ns: float
    saturation: float
    points: tuple[LoadPoint, ...] = field(default=())

    @property
    def name(self) -> str:
        return f"{self.pattern}, {self.flits}"

    @property
    def flits(self) -> str:
        return f"{self.packet} flit{'s' * (self.packet > 1)}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def figure(self) -> Still:
        return figure([self])

    def __repr__(self) -> str:
        lines = [
            f"{self.network}, {self.flow} flow, {self.terminals} terminals, {self.name}: {self.zero_load_ns:.2f} ns",
            f"saturation at {self.saturation:.3f} flits per cycle and terminal; a cycle is {self.cycle_ns:g} ns",
            f"{'load':>6}{'accepted':>10}{'mean ns':>11}{'p99 ns':>11}{'packets':>10}{'warm-up cycles':>16}",
        ]
        for p in self.points:
            late = "  saturated" if p.saturated else ""
            lines.append(
                f"{p.load:>6.3f}{p.accepted:>10.3f}{p.latency_ns:>11.2f}{p.p99_ns:>11.2f}{p.packets:>10}"
                f"{p.warmup_cycles:>16}{late}"
            )
        return "\n".join(lines)

    def _repr_png_(self) -> bytes:
        return self.figure().png()

    def _repr_html_(self) -> str:
        return f"<pre>{escape(repr(self))}</pre>"


def figure(curves: Sequence[LoadCurve]) -> Still:
    from kernbench.viz.figures import load_curves

    first = curves[0]
    lines = [
        (
            c.pattern,
            c.flits,
            [(p.load, p.latency_ns) for p in c.points if not p.saturated],
            c.zero_load_ns,
            c.saturation,
        )
        for c in curves
    ]
    under = (
        f"{first.network} network, {first.terminals} terminals, flow: {first.flow}, a cycle is {first.cycle_ns:g} ns"
    )
    return load_curves(lines, machine=first.machine, n=sum(len(c.points) for c in curves), note=under)


def load_curve(
    machine: Machine | str | None = None,
    *,
    pattern: str = "uniform",
    packet: int = 1,
    loads: Sequence[float] = LOADS,
    network: str = "cube",
    cycles: int = 10_000,
    seed: int = 0,
) -> LoadCurve:
    """Return the latency of a network against synthetic load, and the load at which it saturates.

    Every terminal sends packets at random times (a Bernoulli process), and queues what the network does not take. The
    warm-up is found by the MSER rule: of 20 batches, as many of the first ten are left out as gives the smallest
    standard error of the mean.

    Parameters
    ----------
    machine : Machine, str or None
        As for `kernbench.load`. Its `cube.noc.router`, or `system.sip_link.router`, says whether buffers are limited.
    pattern : str
        `uniform`: any terminal, itself included; `transpose`: from row r and column c to row c and column r; `tornado`:
        almost half way round each row and column; `hotspot`: one of eight packets to the terminal nearest to the
        middle, the others uniform.
    packet : int
        Flits in a packet, of `system.flit_bytes` each. With credits, the flits of a packet follow each other in the
        same virtual channels.
    loads : sequence of float
        Flits per cycle and terminal, more than 0 and at most 1.
    network : str
        `cube`: each PE of cube 0 sends to HBM slices of this cube. `sips`: each SIP's PCIe end point sends to CPUs of
        IO chiplets.
    cycles : int
        For how long packets are sent at each load.
    seed : int
        Of the random times and destinations.

    Returns
    -------
    LoadCurve

    Raises
    ------
    ArgumentError
        If an argument has no such value, or the pattern has no terminal where it sends to.

    Examples
    --------
    >>> import kernbench as kb
    >>> small = kb.load("preset:default", {"cube.noc.router.flow": "credits"})
    >>> curve = kb.load_curve(small, loads=[0.1], cycles=500)
    >>> curve.points[0].load, curve.points[0].saturated
    (0.1, False)
    """
    _check(pattern, packet, loads, network, cycles)
    traffic = _traffic(resolve_topology(machine), pattern, packet, network, seed)
    points = {load: traffic.point(load, cycles) for load in sorted(set(loads))}
    saturation = _saturation(traffic, points, cycles)
    return LoadCurve(
        traffic.machine.hash,
        network,
        traffic.flow,
        pattern,
        packet,
        len(traffic.ends),
        ps_to_ns(traffic.cycle_ps),
        traffic.alone_ns,
        saturation,
        tuple(points[load] for load in sorted(points)),
    )


@lru_cache(maxsize=32)  # the latency without load is the same for every load
def _traffic(machine: Machine, pattern: str, packet: int, network: str, seed: int = 0) -> _Traffic:
    return _Traffic(machine, pattern, packet, network, seed)


def latency_cycles(
    machine: Machine,
    *,
    pattern: str,
    load: float,
    packet: int,
    network: str,
    others: bool = False,
) -> float:
    """Mean latency of packets at one load [cycles]; with `others`, of those that do not go to the hot spot.

    At a low load, packets are sent for longer.
    """
    _check(pattern, packet, [load], network, _CYCLES)
    traffic = _traffic(machine, pattern, packet, network)
    point = traffic.point(load, max(_CYCLES, math.ceil(_PACKETS * packet / load / len(traffic.ends))))
    return (point.others_ns if others else point.latency_ns) * 1000 / traffic.cycle_ps


def saturation(machine: Machine, *, pattern: str, packet: int, network: str) -> float:
    cycles = 10_000 if packet == 1 else 30_000  # longer packets are rarer, and their queues grow slowly
    _check(pattern, packet, (), network, cycles)
    return _saturation(_traffic(machine, pattern, packet, network), {}, cycles)


def _check(pattern: str, packet: int, loads: Sequence[float], network: str, cycles: int) -> None:
    for name, value, known in (("pattern", pattern, PATTERNS), ("network", network, NETWORKS)):
        if value not in known:
            raise ArgumentError(f"{name} = {value!r} is unknown; {hint(value, known)}")
    if packet < 1:
        raise ArgumentError(f"packet = {packet} must be at least 1 flit")
    if cycles < 10 * _BATCHES:
        raise ArgumentError(f"cycles = {cycles} must be at least {10 * _BATCHES}, so that a warm-up can be found")
    for load in loads:
        if not 0 < load <= 1:
            raise ArgumentError(f"loads: {load:g} must be > 0 and <= 1, in flits per cycle and terminal")


class _Traffic:
    def __init__(self, machine: Machine, pattern: str, packet: int, network: str, seed: int) -> None:
        self.machine, self.packet, self.seed = machine, packet, seed
        graph, config = machine.graph, machine.config
        if network == "cube":
            check_slices(machine, "a load curve of a cube")
            places: list[tuple[int, ...]] = list(graph.layout.pes)
            shape: tuple[int, ...] = (graph.layout.rows, graph.layout.cols)
            self.ends = [(naming.pe_dma(0, 0, pe), naming.hbm(0, 0, pe)) for pe in range(len(places))]
            noc = config.cube.noc
            header_bytes, bw_gbs, self.flow = noc.header_bytes, noc.link_bw_gbs, noc.router.flow
        else:
            places, shape = graph.sips.walk(range(config.n_sips)), graph.sips.shape
            self.ends = [(naming.pcie_ep(sip), naming.io_cpu(sip)) for sip in range(config.n_sips)]
            link = config.system.sip_link
            header_bytes, bw_gbs, self.flow = link.header_bytes, link.bw_gbs, link.router.flow
        self.flit_bytes = config.system.flit_bytes
        self.cycle_ps = serialization_ps(self.flit_bytes + header_bytes, bw_gbs)
        self.hot = _middle(places, shape) if pattern == "hotspot" else -1
        self.hot_share = HOT_SHARE if pattern == "hotspot" else 0.0
        self.to = _partners(places, shape, pattern)

    @cached_property
    def alone_ns(self) -> float:
        """Mean latency of the pattern's packets, each alone in the network."""
        n, run = len(self.ends), _Run(self)
        if self.to is not None:
            return float(np.mean([run.alone(i, j) for i, j in enumerate(self.to)])) / 1000
        times = np.array([[run.alone(i, j) for j in range(n)] for i in range(n)])
        share = self.hot_share
        return float((1 - share) * times.mean() + share * times[:, self.hot].mean()) / 1000

    @cached_property
    def capacity(self) -> float:
        """Load at which the busiest link is busy all the time, by the routes of the pattern."""
        run, shares = _Run(self), self._shares()
        busy_ps: defaultdict[Link, float] = defaultdict(float)  # for a flit of every terminal
        for src, dst in np.argwhere(shares).tolist():
            route = run.route(src, dst)
            alternatives = route.alternatives or (route,)
            for each in alternatives:
                for link in each.links:
                    busy_ps[link] += float(shares[src, dst]) * link.times[self.flit_bytes] / len(alternatives)
        return self.cycle_ps / max(busy_ps.values())

    def _shares(self) -> np.ndarray:
        """Share of a terminal's packets (row) that goes to each terminal (column)."""
        n = len(self.ends)
        if self.to is not None:
            return np.eye(n)[self.to]
        return np.tile((1 - self.hot_share) / n + self.hot_share * (np.arange(n) == self.hot), (n, 1))

    def point(self, load: float, cycles: int) -> LoadPoint:
        run = _Run(self)
        sent = run.offer(load, cycles)
        run.drain(round(cycles * (1 + _DRAIN)))
        made, ended, took, hot = run.arrived()
        ends = [i * cycles // _BATCHES for i in range(_BATCHES + 1)]
        batches = [took[(made >= a) & (made < b)] for a, b in pairwise(ends)]
        means = [float(batch.mean()) if len(batch) else math.nan for batch in batches]
        skipped = warm_up(means)
        start = skipped * cycles // _BATCHES
        measured = made >= start
        received = int(((ended >= start * self.cycle_ps) & (ended < cycles * self.cycle_ps)).sum()) * self.packet
        mean = float(took[measured].mean()) / 1000
        others = took[measured & ~hot]
        return LoadPoint(
            load=load,
            accepted=received / (cycles - start) / len(self.ends),
            latency_ns=mean,
            p99_ns=float(np.percentile(took[measured], 99)) / 1000,
            others_ns=float(others.mean()) / 1000 if len(others) else math.nan,
            packets=int(measured.sum()),
            warmup_cycles=start,
            saturated=len(made) < sent or mean > SATURATED * self.alone_ns,
        )


def warm_up(means: Sequence[float]) -> int:
    """Count the batches to leave out, at most half, for the smallest standard error of the rest (MSER).

    The mean of a batch without packets is NaN; not all are. Source: K. P. White, An effective truncation heuristic for
    bias reduction in simulation output, Simulation 69(6), 1997.

    >>> warm_up([1, 5, 9, 10, 11, 10, 9, 10])
    2
    >>> warm_up([10, 10, 10, 10])
    0
    """
    values = np.array(means, float)
    most = min(len(values) // 2, int(np.flatnonzero(~np.isnan(values))[-1]))
    errors = [float(np.nanvar(values[k:]) / (len(values) - k)) for k in range(most + 1)]
    return int(np.argmin(errors))


def _saturation(traffic: _Traffic, points: dict[float, LoadPoint], cycles: int) -> float:
    """Bisect for the highest load that does not saturate; add the simulated loads to `points`.

    Loads from `expected` on, at first the capacity of the links, count as saturated without a simulation. The upper end
    of the bracket is always simulated: queues stay short for a while at a little more than the capacity.
    """

    def saturated(load: float, expected: float = math.inf) -> bool:
        if load not in points and load < expected:
            points[load] = traffic.point(load, cycles)
        return load not in points or points[load].saturated

    top = min((load for load, p in points.items() if p.saturated), default=1.0)
    bottom = max((load for load, p in points.items() if not p.saturated and load < top), default=0.0)
    expected = traffic.capacity
    if expected >= top and not saturated(top):
        return 1.0
    while True:
        low, high = bottom, top
        while high - low > _PRECISION:
            middle = (low + high) / 2
            low, high = (low, middle) if saturated(middle, expected) else (middle, high)
        if saturated(high):
            return (low + high) / 2
        if high == top:
            return 1.0
        expected = high * _MARGIN


class _Run:
    def __init__(self, traffic: _Traffic) -> None:
        self.traffic, self.clock = traffic, Clock()
        self.core = self.clock.core
        self.network = Network(traffic.machine.graph, self.core)
        self._terminals: list[Terminal] = []
        self._packets: list[np.ndarray] = []  # of each terminal: the cycles in which they are made, and which are hot

    def alone(self, src: int, dst: int) -> int:
        """Latency of a packet in an empty network [ps]."""
        start = (self.core.now // self.traffic.cycle_ps + 1) * self.traffic.cycle_ps
        terminal = self._terminal([self.route(src, dst)], np.zeros(1, np.int64), np.array([start]))
        self.drain()
        return int(terminal.arrived_ps[0]) - start

    def route(self, src: int, dst: int) -> Route:
        ends = self.traffic.ends
        route = self.network.route(ends[src][0], ends[dst][1])
        for each in route.alternatives or (route,):
            legs = each.links[0].legs
            if legs is not None:  # every packet of synthetic traffic arrives by itself
                leg = legs[id(each.links)]
                leg.ordered, leg.packet_flits = False, self.traffic.packet
        return route

    def _terminal(self, routes: Sequence[Route], to: np.ndarray, sent_ps: np.ndarray) -> Terminal:
        return Terminal(self.core, routes, to, sent_ps, self.traffic.packet * self.traffic.flit_bytes)

    def offer(self, load: float, cycles: int) -> int:
        """Make packets at every terminal for `cycles`; return their number."""
        traffic = self.traffic
        for src in range(len(traffic.ends)):
            when = np.flatnonzero(np.random.default_rng([traffic.seed, src]).random(cycles) < load / traffic.packet)
            rng = np.random.default_rng([traffic.seed, src, 1])
            hot = rng.random(len(when)) < HOT_SHARE if traffic.hot >= 0 else np.zeros(len(when), bool)
            any_of = rng.integers(0, len(traffic.ends), len(when))
            to = np.where(hot, traffic.hot, any_of) if traffic.to is None else np.full(len(when), traffic.to[src])
            reached, number = np.unique(to, return_inverse=True)
            routes = [self.route(src, dst) for dst in reached.tolist()]
            self._terminals.append(self._terminal(routes, number, when * traffic.cycle_ps))
            self._packets.append(np.stack([when, hot]))
        return sum(packets.shape[1] for packets in self._packets)

    def arrived(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """For each packet that has arrived: cycle of creation, arrival, latency [ps], and whether it was hot."""
        (made, hot), ended = np.hstack(self._packets), np.concatenate([x.arrived_ps for x in self._terminals])
        there = ended >= 0
        made, hot, ended = made[there], hot[there], ended[there]
        order = np.lexsort((hot, ended, made))
        made, ended = made[order], ended[order]
        return made, ended, ended - made * self.traffic.cycle_ps, hot[order].astype(bool)

    def drain(self, cycles: int | None = None) -> None:
        """Simulate until the network is empty, or for exactly `cycles`, regardless of the host time."""
        end = None if cycles is None else self.clock.timeout(cycles * self.traffic.cycle_ps)
        while self.core.drain(10_000, end):
            pass


def _middle(places: Sequence[tuple[int, ...]], shape: tuple[int, ...]) -> int:
    away = [sum(abs(at - n // 2) for at, n in zip(place, shape, strict=True)) for place in places]
    return min(range(len(places)), key=lambda i: (away[i], i))


def _partners(places: Sequence[tuple[int, ...]], shape: tuple[int, ...], pattern: str) -> list[int] | None:
    """Destination of each terminal, None if it sends to several."""
    if pattern in ("uniform", "hotspot"):
        return None
    number = {place: i for i, place in enumerate(places)}
    partners = []
    for place in places:
        half_round = ((at + (n + 1) // 2 - 1) % n for at, n in zip(place, shape, strict=True))
        to = place[::-1] if pattern == "transpose" else tuple(half_round)
        if to not in number:
            raise ArgumentError(
                f"pattern {pattern}: the terminal at {_named(place)} sends to {_named(to)}, "
                "where none is; use pattern uniform, or give every router a PE (cube.pe_layout.pe_routers)"
            )
        partners.append(number[to])
    return partners


def _named(place: tuple[int, ...]) -> str:
    *layer, row, col = place
    return "".join(f"layer {n}, " for n in layer) + f"row {row} and column {col}"
