"""The network between SIPs: who is next to whom, and the paths, with the rules for ties."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import product
from typing import NamedTuple

from kernbench.config import MachineConfig
from kernbench.config._rules import DIMENSIONS, RINGS, SWITCHED
from kernbench.topology import _naming as naming
from kernbench.topology._fat_tree import FatTree
from kernbench.topology._mesh import CubeLayout, classes_of_rings, shortest_lines, vc_classes

# Sides of a SIP, in the order that breaks ties, and steps to a neighbour: of layer, row and column.
SIP_SIDES = {"e": (0, 0, 1), "w": (0, 0, -1), "n": (0, -1, 0), "s": (0, 1, 0), "u": (1, 0, 0), "d": (-1, 0, 0)}

_KINDS = ("io_noc", "sip_switch", "nic", "nic_switch")


class Speed(NamedTuple):
    """What the machine file says of a link; `kind` is that of `analysis._resources.LINKS`."""

    kind: str
    bw_gbs: float
    latency_ns: float
    header_bytes: int


class SipNetwork:
    """The network between SIPs, with a link each way per edge.

    Its vertices are the SIPs, then the switches between them, host by host; with several hosts, then NICs and the
    switches between these.
    """

    def __init__(self, config: MachineConfig) -> None:
        system, sips = config.system, config.system.sips
        self.count, self.topology, self.of_host, self._system = sips.count, sips.topology, sips.of_host, system
        self._tree: FatTree | None = None
        if sips.topology in SWITCHED:
            self._tree = self._tree_of(self.of_host, 1 if sips.topology == "switch" else system.fat_tree.levels)
        dimensions = DIMENSIONS.get(sips.topology, 0)
        sides = [side for side in (sips.w, sips.h, sips.d) if side is not None]
        sides = sides or [round(self.of_host ** (1 / dimensions))] * dimensions if dimensions else [self.of_host]
        self.w, self.h, self.d = (*sides, 1, 1)[:3]
        self.shape = (self.h, self.w) if self.d == 1 else (self.d, self.h, self.w)
        self.wrapped = sips.topology in RINGS
        router = config.system.sip_link.router
        self._by_dimension, self._both_ways = router.flow == "credits", router.ties == "random"
        self._near = [self._adjacent(s) for s in range(self.of_host)] if self._tree is None else self._tree.neighbours
        self.hosts = self.count // self.of_host
        self._switches = len(self._near) - self.of_host  # of a host
        # The first vertex of each kind.
        self._first = [0, self.count, self.count + self.hosts * self._switches]
        self.neighbours: tuple[dict[int, str], ...] = tuple(self._near)
        if self.hosts > 1:
            self._connect_hosts()

    def _tree_of(self, ends: int, levels: int) -> FatTree:
        return FatTree(ends, self._system.sip_switch.ports, levels, self._system.fat_tree.oversubscription)

    def _connect_hosts(self) -> None:
        nics = self.count // self._system.nic.sips
        self._trees = nics // self.hosts if self._system.nic.wiring == "by_rail" else 1
        self._ends = nics // self._trees
        self._between = self._tree_of(self._ends, self._system.fat_tree.levels)
        self._first.append(self._first[2] + nics)
        edges = [(sip, self._nic(sip), "") for sip in range(self.count)]
        for a, near in enumerate(self._near):
            edges += [
                (self._in_host(h, a), self._in_host(h, b), side) for b, side in near.items() for h in range(self.hosts)
            ]
        for a, up in enumerate(self._between.neighbours):
            edges += [(self._outside(r, a), self._outside(r, b), "") for b in up for r in range(self._trees)]
        self.neighbours = tuple({} for _ in range(1 + max(a for a, _, _ in edges)))
        for a, b, side in edges:
            self.neighbours[a][b] = side
            self.neighbours[b].setdefault(a, "")

    def _in_host(self, host: int, vertex: int) -> int:
        """Vertex of a host's own network."""
        if vertex < self.of_host:
            return host * self.of_host + vertex
        return self.count + host * self._switches + vertex - self.of_host

    def _nic(self, sip: int) -> int:
        return self._first[2] + sip // self._system.nic.sips

    def _outside(self, rail: int, vertex: int) -> int:
        """Vertex of a tree between hosts."""
        if vertex < self._ends:
            return self._first[2] + vertex * self._trees + rail
        return self._first[3] + rail * (len(self._between.neighbours) - self._ends) + vertex - self._ends

    def kind(self, vertex: int) -> str:
        return _KINDS[bisect_right(self._first, vertex) - 1]

    def link(self, a: int, b: int) -> Speed:
        """Describe the link between two neighbours; that of a SIP to its NIC has no latency."""
        near, far = sorted((a, b))
        link, nic = self._system.sip_link, self._system.nic
        if self.hosts == 1 or far < self._first[2]:
            return Speed("sip", link.bw_gbs, link.latency_ns, link.header_bytes)
        return Speed("nic", nic.bw_gbs, 0.0 if near < self.count else nic.latency_ns, 0)

    @property
    def grid(self) -> tuple[int, int]:
        """Columns and rows, in the order of the SIPs; the layers of a third dimension are further rows.

        With several hosts, each is a row.
        """
        if self.hosts > 1:
            return self.of_host, self.hosts
        if self.d == 1:
            return self.w, self.h
        rows = self.h * self.d
        return (self.w, rows) if self.w > 1 else (self.h, self.d) if self.h > 1 else (self.d, 1)

    @property
    def levels(self) -> list[list[int]]:
        """Vertices of the switches of each level, and of the NICs, from the SIPs up."""
        inside = [] if self._tree is None else self._tree.levels
        levels = [[self._in_host(h, self.of_host + i) for h in range(self.hosts) for i in level] for level in inside]
        if self.hosts > 1:
            levels.append(list(range(*self._first[2:])))
            rails = range(self._trees)
            levels += [[self._outside(r, self._ends + i) for r in rails for i in of] for of in self._between.levels]
        return levels

    def node_id(self, vertex: int) -> str:
        if vertex < self.count:
            return naming.io_noc(vertex)
        kind = self.kind(vertex)
        return naming.between_sips(kind, vertex - self._first[_KINDS.index(kind)])

    def switch_of(self, sip: int) -> str:
        """Id of the switch of a SIP, with topology switch."""
        return self.node_id(self._in_host(sip // self.of_host, self.of_host))

    def path(self, src: int, dst: int) -> tuple[int, ...]:
        """Shortest path from `src` to `dst`, both included.

        Ties go to the lower next SIP; with credits the row comes first, and of two equal directions round a ring, even
        SIPs take east, south or up, odd ones the other. In a tree of switches, the destination chooses. A message to
        another host leaves by the NIC of its sender; with rails, by that of the SIP at the receiver's position.
        """
        return self.paths(src, dst)[0]

    def paths(self, src: int, dst: int) -> list[tuple[int, ...]]:
        """Paths of messages from `src` to `dst`: one, except with `ties: random`."""
        if self.hosts == 1:
            return self._paths(src, dst)
        host, here = divmod(src, self.of_host)
        other, there = divmod(dst, self.of_host)
        of_rail = self._system.nic.sips
        proxy = here if self._trees == 1 or here // of_rail == there // of_rail else there
        inside = self._paths(here, there if host == other else proxy)[0]
        path = tuple(self._in_host(host, vertex) for vertex in inside)
        if host == other:
            return [path]
        (start, _), (end, rail) = (divmod(sip // of_rail, self._trees) for sip in (path[-1], dst))
        return [(*path, *(self._outside(rail, vertex) for vertex in self._between.path(start, end)), dst)]

    def _paths(self, src: int, dst: int) -> list[tuple[int, ...]]:
        if self._tree is not None:
            return [self._tree.path(src, dst)]
        if self.topology == "fully_connected" and src != dst:
            return [(src, dst)]
        if self._by_dimension:
            return self._rows_first(src, dst)
        path = [src]
        while path[-1] != dst:
            # On a ring, a grid or a torus at least one neighbour is one hop closer.
            path.append(min(self._near[path[-1]], key=lambda sip: (self._hops(sip, dst), sip)))
        return [tuple(path)]

    @property
    def vc_classes(self) -> int:
        """VC classes that routes with credits need: two where a ring has more than two SIPs."""
        return classes_of_rings(self.shape) if self.wrapped else 1

    def classes(self, path: Sequence[int]) -> list[int]:
        """VC class of each hop of a path; links up and then down a tree never close a circle."""
        if self.topology in (*SWITCHED, "fully_connected"):
            return [0] * (len(path) - 1)
        return vc_classes(self.walk(path), wrapped=self.wrapped)

    def walk(self, path: Iterable[int]) -> list[tuple[int, ...]]:
        return [self._place(sip)[-len(self.shape) :] for sip in path]

    def _place(self, sip: int) -> tuple[int, int, int]:
        """Layer, row and column of a SIP."""
        return sip // (self.w * self.h), sip // self.w % self.h, sip % self.w

    def _at(self, place: Sequence[int]) -> int:
        return (place[0] * self.h + place[1]) * self.w + place[2]

    def _rows_first(self, src: int, dst: int) -> list[tuple[int, ...]]:
        sizes = self.d, self.h, self.w
        ways = [self._lines(*ends, src) for ends in zip(self._place(src), self._place(dst), sizes, strict=True)]
        found = []
        for lines in product(*reversed(ways)):
            path, place = [src], list(self._place(src))
            for axis, line in zip((2, 1, 0), lines, strict=True):
                for position in line[1:]:
                    place[axis] = position
                    path.append(self._at(place))
            found.append(tuple(path))
        return found

    def _lines(self, at: int, to: int, n: int, src: int) -> list[list[int]]:
        """Find the shortest lines between two positions of a row or column of `n`, the preferred one first."""
        if not self.wrapped:
            step = 1 if to > at else -1
            return [list(range(at, to + step, step))]
        lines = shortest_lines(at, to, n, odd=src % 2 == 1)
        return lines if self._both_ways else lines[:1]

    def _adjacent(self, sip: int) -> dict[int, str]:
        if self.topology == "fully_connected":
            return {other: "" for other in range(self.of_host) if other != sip}
        here, sizes = self._place(sip), (self.d, self.h, self.w)
        sides: dict[int, str] = {}
        for side, steps in SIP_SIDES.items():
            there = tuple(at + step for at, step in zip(here, steps, strict=True))
            if self.wrapped:
                there = tuple(at % n for at, n in zip(there, sizes, strict=True))
            if there != here and all(0 <= at < n for at, n in zip(there, sizes, strict=True)):
                sides.setdefault(self._at(there), side)
        return sides

    def _hops(self, a: int, b: int) -> int:
        apart = [abs(x - y) for x, y in zip(self._place(a), self._place(b), strict=True)]
        if not self.wrapped:
            return sum(apart)
        return sum(min(hops, n - hops) for hops, n in zip(apart, (self.d, self.h, self.w), strict=True))


def vc_faults(config: MachineConfig) -> list[str]:
    """Describe each network in which routers with credits could deadlock."""
    mesh, sip = config.cube.noc.router, config.system.sip_link.router
    rings = "pass the edge of a ring"
    on_die = config.cube.noc.topology in ("torus", "rings")
    turns = rings if on_die else "round the removed routers also turn from columns into rows"
    faults = []
    for key, router, reason in (
        ("cube.noc.router", mesh, f"routes {turns}"),
        ("system.sip_link.router", sip, f"routes between SIPs {rings}"),
    ):
        if router.flow == "unbounded":
            continue
        need = (CubeLayout(config) if router is mesh else SipNetwork(config)).vc_classes
        if router.vcs < need:
            faults.append(
                f"{key}.vcs = {router.vcs} must be >= {need}: {reason}, so with fewer virtual channels packets could "
                "wait for each other in a circle; raise vcs, or use flow: unbounded"
            )
    return faults
