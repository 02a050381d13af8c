"""Lower bounds of a collective on a machine: no algorithm between these PEs can be faster.

They are independent of each other, and the largest one counts. *Latency*: the data of one PE must reach another over
the shortest path. *Cut*: data that a region lacks must cross its border. *Traffic*: all that must be sent, over the
bandwidth of the borders of equal regions. *Arithmetic*: every value is added somewhere. *Memory*: shards are in HBM.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from kernbench._registry import hint
from kernbench.ccl._group import Place
from kernbench.components._command import VectorOp
from kernbench.components.builtin.pe_math import PeMath
from kernbench.errors import ArgumentError
from kernbench.policy._routing import RouteTable
from kernbench.topology import _naming as naming
from kernbench.topology.builder import Machine

_PASSED = ("router", "ucie", "io_noc", "pe_dma")


class Needs(NamedTuple):
    """Minimum data volumes of a collective of n ranks, in vectors.

    `crossing(m, n)` cross the border of a region with m of the ranks in one direction; `sent(ms, n)` are sent between
    regions with `ms` ranks each; `added(n)` are added; `moved(n)` pass between a PE and its memory.
    """

    crossing: Callable[[int, int], float]
    sent: Callable[[Sequence[int], int], float]
    added: Callable[[int], float]
    moved: Callable[[int], float]


def _once(ms: Sequence[int], n: int) -> float:
    return len(ms) - 1


def _larger_part(m: int, n: int) -> float:
    return max(m, n - m) / n


_NEEDS = {
    # Patarasuk and Yuan (2009): every rank but one sends a vector's worth before, and one after, it is summed.
    "all_reduce": Needs(lambda m, n: 1, lambda ms, n: 2 * (len(ms) - 1), lambda n: n - 1, lambda n: 2),
    "reduce_scatter": Needs(_larger_part, _once, lambda n: n - 1, lambda n: 1 + 1 / n),
    "all_gather": Needs(_larger_part, _once, lambda n: 0, lambda n: 1),
    "broadcast": Needs(lambda m, n: 1, _once, lambda n: 0, lambda n: 1),
    "reduce": Needs(lambda m, n: 1, _once, lambda n: n - 1, lambda n: 1),
    "all_to_all": Needs(
        lambda m, n: m * (n - m) / n,
        lambda ms, n: sum(m * (n - m) for m in ms) / n,
        lambda n: 0,
        lambda n: 2 * (n - 1) / n,
    ),
    "barrier": Needs(lambda m, n: 0, lambda ms, n: 0, lambda n: 0, lambda n: 0),
}
# Of an all-reduce where a switch adds: every rank sends a vector and receives one.
_AT_SWITCH = Needs(lambda m, n: 1, _once, lambda n: 0, lambda n: 2)


@dataclass(frozen=True, slots=True)
class Bound:
    """The lower bounds of one collective [ns]; `where` names the border of the cut."""

    latency_ns: float
    cut_ns: float
    traffic_ns: float
    arithmetic_ns: float
    memory_ns: float
    where: str = ""

    @property
    def ns(self) -> float:
        return max(self._all.values())

    @property
    def by(self) -> str:
        largest = max(self._all, key=lambda name: self._all[name])
        return f"cut at {self.where}" if largest == "cut" else largest

    @property
    def _all(self) -> dict[str, float]:
        return {
            "latency": self.latency_ns, "cut": self.cut_ns, "traffic": self.traffic_ns,
            "arithmetic": self.arithmetic_ns, "memory": self.memory_ns,
        }  # fmt: skip


class _Region(NamedTuple):
    """Some of the PEs, and the bandwidth across the border of their area, in one direction."""

    name: str
    places: Sequence[Place]
    bw_gbs: float


class Bounds:
    """The bounds of collectives between some PEs of a machine.

    Parameters
    ----------
    machine : Machine
    places : sequence of (sip, cube, pe)
        The PEs that take part.
    contribution : str
        "rank": PEs at the same place of every SIP have the same shard of a vector; "cube": those at the same
        place of every cube; "pe": all of them.
    root : (sip, cube, pe), optional
        Where a broadcast begins.
    """

    def __init__(
        self, machine: Machine, places: Sequence[Place], contribution: str = "rank", root: Place | None = None
    ) -> None:
        self.machine, self.places, self.root = machine, list(places), root
        shards: dict[str, Callable[[Place], Hashable]] = {
            "rank": lambda place: place[1:],
            "cube": lambda place: place[2],
            "pe": lambda place: 0,
        }
        if contribution not in shards:
            raise ArgumentError(f"contribution {contribution!r} is unknown; {hint(contribution, shards)}")
        self._shard = shards[contribution]
        self._graph = machine.graph
        self._router = RouteTable(machine.graph)
        self._links: dict[int, set[tuple[str, str]]] = {}
        self._bw_gbs: dict[object, float] = {}
        self._sips = sorted({place[0] for place in self.places})
        self._in_cube: dict[tuple[int, int], list[Place]] = defaultdict(list)
        self._in_sip: dict[int, list[Place]] = defaultdict(list)
        for place in self.places:
            self._in_cube[place[:2]].append(place)
            self._in_sip[place[0]].append(place)
        # SIPs with the same participating PEs have the same bounds.
        self._members = {sip: tuple(place[1:] for place in places) for sip, places in self._in_sip.items()}
        self._counts: dict[Hashable, int] = defaultdict(int)
        for place in self.places:
            self._counts[self._shard(place)] += 1
        found = self._pes(), self._cubes(), self._whole_sips(), self._hosts()
        self._partitions = [regions for regions in found if len(regions) > 1]
        self._regions = [region for regions in self._partitions for region in regions] + list(self._slabs())
        self._latency_ns = self._farthest_ps() / 1000
        self._found: dict[tuple[str, int, int], Bound] = {}

    def of(self, collective: str, nbytes: int, itemsize: int = 2) -> Bound:
        """Bounds of `collective` on shards of `nbytes` (the larger side of a gather or scatter)."""
        if collective not in _NEEDS:
            raise ArgumentError(f"collective {collective!r} is unknown; {hint(collective, _NEEDS)}")
        asked = (collective, nbytes, itemsize)
        if asked not in self._found:
            self._found[asked] = self._bound(*asked)
        return self._found[asked]

    def _bound(self, collective: str, nbytes: int, itemsize: int) -> Bound:
        summed = collective == "all_reduce" and self.machine.config.system.sip_switch.reduce == "sum"
        needs = _AT_SWITCH if summed else _NEEDS[collective]
        cuts = {region.name: self._cut_ns(needs, region, nbytes) for region in self._regions}
        where = max(cuts, key=lambda name: cuts[name], default="")
        n = min(self._counts.values())
        hbm, math = self.machine.config.cube.hbm, PeMath(self.machine.config.cube.pe.pe_math)
        elements = int(needs.added(n) * nbytes / itemsize / n)
        return Bound(
            latency_ns=self._latency_ns,
            cut_ns=cuts.get(where, 0.0),
            traffic_ns=max((self._traffic_ns(needs, regions, nbytes) for regions in self._partitions), default=0.0),
            arithmetic_ns=math.ps([VectorOp("simple", elements, itemsize)]) / 1000,
            memory_ns=needs.moved(n) * nbytes / hbm.slice_gbs,
            where=where,
        )

    def _cut_ns(self, needs: Needs, region: _Region, nbytes: int) -> float:
        inside = self._inside(region)
        crossing = sum(needs.crossing(m, self._counts[shard]) for shard, m in inside.items() if m < self._counts[shard])
        return crossing * nbytes / region.bw_gbs

    def _traffic_ns(self, needs: Needs, regions: Sequence[_Region], nbytes: int) -> float:
        by_shard: dict[Hashable, list[int]] = defaultdict(list)
        for region in regions:
            for shard, m in self._inside(region).items():
                by_shard[shard].append(m)
        sent = sum(needs.sent(ms, self._counts[shard]) for shard, ms in by_shard.items())
        return sent * nbytes / sum(region.bw_gbs for region in regions)

    def _inside(self, region: _Region) -> dict[Hashable, int]:
        found: dict[Hashable, int] = defaultdict(int)
        for place in region.places:
            found[self._shard(place)] += 1
        return found

    # -- regions

    def _pes(self) -> list[_Region]:
        first = self._sips[0]
        bw = {at: self._graph.out(naming.pe_dma(first, *at))[0].bw_gbs for at in {place[1:] for place in self.places}}
        return [_Region(naming.pe(*place), [place], bw[place[1:]]) for place in self.places]

    def _cubes(self) -> list[_Region]:
        return [self._region(naming.cube(*cube), [cube]) for cube in sorted({place[:2] for place in self.places})]

    def _whole_sips(self) -> list[_Region]:
        """Each SIP; data that leave it cross the border of its IO chiplet, and the links between SIPs."""
        cubes = range(self.machine.config.cubes_per_sip)
        shores = [self._region(naming.sip(sip), [(sip, cube) for cube in cubes]) for sip in self._sips]
        borders = [self._sip_region(naming.sip(sip), [sip]) for sip in self._sips]
        return [min(pair, key=lambda region: region.bw_gbs) for pair in zip(shores, borders, strict=True)]

    def _hosts(self) -> list[_Region]:
        """Each host; data that leave it cross the links of its NICs."""
        net, members = self._graph.sips, defaultdict[int, list[int]](list)
        for sip in self._sips if net.hosts > 1 else ():
            members[sip // net.of_host].append(sip)
        found = []
        for host, sips in members.items():
            nics = {
                (near, out)
                for sip in sips
                for near in net.neighbours[sip]
                if net.kind(near) == "nic"
                for out in net.neighbours[near]
                if out >= net.count
            }
            bw_gbs = sum(net.link(*ends).bw_gbs for ends in nics)
            found.append(_Region(f"host {host}", [place for sip in sips for place in self._in_sip[sip]], bw_gbs))
        return found

    def _slabs(self) -> Iterator[_Region]:
        """First rows and columns of SIPs, and of the cubes of the first SIP."""
        sips, mesh = self._graph.sips, self.machine.config.sip.cube_mesh
        for name, members in _prefixes(*sips.grid, "SIPs"):
            chosen = [sip for sip in self._sips if sip in members]
            if 0 < len(chosen) < len(self._sips):
                yield self._sip_region(name, chosen)
        first = self._sips[0]
        for name, members in _prefixes(mesh.w, mesh.h, f"cubes of {naming.sip(first)}"):
            region = self._region(name, [(first, cube) for cube in sorted(members)])
            if region.bw_gbs:
                yield region

    def _region(self, name: str, cubes: Sequence[tuple[int, int]]) -> _Region:
        """Region of some cubes of one SIP; its border is the UCIe links that routes use."""
        sip, inside = cubes[0][0], {cube for _, cube in cubes}
        key = self._members[sip], frozenset(inside)
        if key not in self._bw_gbs:
            ends = [(src, dst, naming.parse(src).cube, naming.parse(dst).cube) for src, dst in self._used(sip)]
            out = [self._graph.edge(src, dst).bw_gbs for src, dst, a, b in ends if a in inside and b not in inside]
            self._bw_gbs[key] = sum(out)
        return _Region(name, [place for cube in cubes for place in self._in_cube.get(cube, ())], self._bw_gbs[key])

    def _used(self, sip: int) -> set[tuple[str, str]]:
        """Links between UCIe ports of a SIP on routes between the PEs, in both directions."""
        if sip not in self._links:
            connections = self.machine.config.cube.ucie.connections
            # PEs of one cube and connection number cross the same ports.
            some = {(place[1], place[2] % connections): naming.pe_dma(*place) for place in self._in_sip[sip]}
            ends = {place[1]: naming.pe_dma(*place) for place in self._in_sip[sip]}.values()
            paths = [self._router.path(src, dst) for src in some.values() for dst in ends if src != dst]
            if len(self._sips) > 1:
                paths += [self._router.path(src, naming.io_noc(sip)) for src in some.values()]
            links = {pair for path in paths for pair in pairwise(path)}
            ports = {(a, b) for a, b in links if naming.parse(a).kind == naming.parse(b).kind == "ucie"}
            self._links[sip] = ports | {(b, a) for a, b in ports}
        return self._links[sip]

    def _sip_region(self, name: str, sips: Sequence[int]) -> _Region:
        """Region of whole SIPs; its border is the links of its IO chiplets to others and to switches."""
        bw_gbs = 0.0
        for sip in sips:
            for edge in self._graph.out(naming.io_noc(sip)):
                at = naming.parse(edge.dst)
                bw_gbs += edge.bw_gbs * (at.kind in ("io_noc", "sip_switch", "nic") and at.sip not in sips)
        return _Region(name, [place for sip in sips for place in self._in_sip[sip]], bw_gbs)

    # -- latency

    def _farthest_ps(self) -> int:
        """Latency between two distant PEs with the same shard.

        From the root, or from the PE farthest from its IO chiplet. Any two PEs give a bound, these a tight one.
        """
        home = self._sips[0]
        down = self._latencies(naming.io_noc(home))
        here = [place for place in self.places if place[0] == home]
        start = self.root or max(here, key=lambda place: down[naming.pe_dma(*place)])
        near = self._latencies(naming.pe_dma(*start))
        if start[0] != home:
            down = self._latencies(naming.io_noc(start[0]))
        farthest = 0
        for place in self.places:
            if self._shard(place) != self._shard(start):
                continue
            if place[0] == start[0]:
                farthest = max(farthest, near[naming.pe_dma(*place)])
                continue
            # All SIPs have the same latencies: from the IO chiplet to the PE as to that PE of the first SIP.
            path = map(self._graph.sips.node_id, self._graph.sips.path(start[0], place[0]))
            links_ps = sum(self._graph.edge(*ends).latency_ps for ends in pairwise(path))
            there = near[naming.io_noc(start[0])] + links_ps
            farthest = max(farthest, there + down[naming.pe_dma(start[0], *place[1:])])
        return farthest

    def _latencies(self, start: str) -> dict[str, int]:
        """Least latency from a node to every other of its SIP (Dijkstra, 1959)."""
        sip = naming.parse(start).sip
        best, heap = {start: 0}, [(0, start)]
        while heap:
            t, node = heapq.heappop(heap)
            if t > best[node]:
                continue
            for edge in self._graph.out(node):
                at = naming.parse(edge.dst)
                if at.kind not in _PASSED or at.sip != sip:
                    continue
                then = t + edge.latency_ps
                if then < best.get(edge.dst, then + 1):
                    best[edge.dst] = then
                    heapq.heappush(heap, (then, edge.dst))
        return best


def _prefixes(w: int, h: int, what: str) -> Iterator[tuple[str, set[int]]]:
    for k in range(1, w):
        yield f"column {k} of {w} of the {what}", {i for i in range(w * h) if i % w < k}
    for k in range(1, h):
        yield f"row {k} of {h} of the {what}", {i for i in range(w * h) if i // w < k}
