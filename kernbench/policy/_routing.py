"""Routes: one for each pair of nodes, always the same, unless ties between SIPs are drawn.

In a cube, column first, then row, if that is free of removed routers. Between cubes, the same over cubes, through the
meshes of those in between, on one UCIe connection number. To and from the IO chiplet along the row of the cube. Between
SIPs: `SipNetwork.path`, in topology/_sip_network.py; in a cube, `CubeLayout.walk`, in topology/_mesh.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from kernbench._units import ns_to_ps
from kernbench.config._dram import dram
from kernbench.errors import ArgumentError
from kernbench.topology import _naming as naming
from kernbench.topology._graph import Graph
from kernbench.topology._mesh import OPPOSITE, At
from kernbench.topology._naming import ParsedId

_MEMORIES = ("hbm_ctrl", "llc")
_IN_CUBE = ("pe_cpu", "pe_dma", "router", *_MEMORIES, "m_cpu", "sram")
_IN_IO = ("pcie_ep", "io_cpu", "io_noc")


def path_of(parts: Sequence[Part]) -> tuple[str, ...]:
    """Join parts, each of which begins where one ends, to a path."""
    nodes = list(parts[0].nodes)
    for part in parts[1:]:
        nodes += part.nodes[1:]
    return tuple(nodes)


def reverse(path: tuple[str, ...]) -> tuple[str, ...]:
    """Route of replies to requests over `path`: the same links in the other direction."""
    return path[::-1]


@lru_cache(maxsize=4)
def router_of(graph: Graph) -> RouteTable:
    """Share the router of a machine while it is in use."""
    return RouteTable(graph)


class Part:
    """A stretch of a route: node ids. Routes through a cube share its parts, so what is known of one holds for all."""

    __slots__ = ("nodes",)

    def __init__(self, nodes: tuple[str, ...]) -> None:
        self.nodes = nodes


class _Stop(NamedTuple):
    """An end of routes in a cube: where its router is, and the parts from and to that router, if it is none."""

    place: ParsedId
    sip: int
    cube: int
    at: At
    leaves: list[Part]
    enters: list[Part]


class RouteTable:
    """The routes of one machine. Each stretch through a cube is computed once.

    Examples
    --------
    >>> from kernbench.topology.builder import resolve_topology
    >>> router = RouteTable(resolve_topology("preset:default").graph)
    >>> router.path("sip0.cube0.pe0.pe_dma", "sip0.cube0.hbm_ctrl.pe1")
    ('sip0.cube0.pe0.pe_dma', 'sip0.cube0.r0c0', 'sip0.cube0.r0c1', 'sip0.cube0.hbm_ctrl.pe1')
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._layout = graph.layout
        self._w = graph.w
        self._connections = graph.config.cube.ucie.connections
        self._steps = {"e": 1, "w": -1, "n": -self._w, "s": self._w}
        self._paths: dict[tuple[str, str], tuple[str, ...]] = {}
        self._ways: dict[tuple[str, str], list[list[Part]]] = {}
        self._stops: dict[str, _Stop | None] = {}
        self._parts: dict[tuple[int, int, At, str, int | At], Part] = {}
        self._merges: dict[tuple[str, str], bool] = {}

    def path(self, src: str, dst: str) -> tuple[str, ...]:
        """Node ids from `src` to `dst`, both included.

        `src` is the requester: a reply takes `reverse` of this, which is not the path from `dst`.
        """
        found = self._paths.get((src, dst))
        if found is None:
            parts = self._in_sip(src, dst)
            if parts:
                return path_of(parts)
            found = self._known(self._find(src, dst))
            self._paths[found[0], found[-1]] = found
        return found

    def _known(self, node_ids: Iterable[str]) -> tuple[str, ...]:
        """Intern node ids, which many routes and links share."""
        node = self._graph.node
        return tuple([node(node_id).id for node_id in node_ids])

    @cached_property
    def outstanding_reads(self) -> int:
        """Reads under way at a DMA; if `auto`, as many as cover the latency of a PE's memory (M4.16)."""
        graph, config = self._graph, self._graph.config
        cube, dma = config.cube, config.cube.pe.pe_dma
        if dma.outstanding_reads:
            return dma.outstanding_reads
        hbm, apart, slices = cube.hbm, config.memory_apart, config.hbm_slices
        nbytes = 2 * min(x.tile.k * min(x.tile.m, x.tile.n) for x in cube.pe.pe_gemm.by_tile)
        gbs = min(dma.bw_gbs, hbm.slice_gbs * (slices if apart else 1))
        if apart:
            nbytes = -(-nbytes // min(slices, -(-nbytes // hbm.interleave_bytes)))
        flit = min(nbytes, config.system.flit_bytes)
        memory_ps = hbm.burst_ps + ns_to_ps(hbm.access_ns) + (ns_to_ps(cube.llc.hit_ns) if cube.llc.size_mib else 0)
        if hbm.timing != "simple":
            times = dram(hbm.timing).times_ps(hbm.channel_bw_gbs)
            memory_ps += times["tRCDRD"] + times["CL"]
        way_ps = 0
        for pe in range(config.pes_per_cube):
            for number in range(slices) if apart else (pe,):
                path = self.path(naming.pe_dma(0, 0, pe), graph.memory(0, 0, number))
                there_ps = self._alone_ps(path, config.system.command_bytes)
                way_ps = max(way_ps, there_ps + self._alone_ps(reverse(path), flit))
        alone_ns = (way_ps + memory_ps) / 1000 + (nbytes - flit) / gbs
        # Rows, banks and other PEs make a read wait about as long again (chosen).
        waits = 2 if apart or hbm.timing != "simple" else 1
        return math.ceil(round(waits * alone_ns * gbs / nbytes, 6))

    def _alone_ps(self, path: tuple[str, ...], nbytes: int) -> int:
        edges = [self._graph.edge(*link) for link in pairwise(path)]
        return sum(edge.latency_ps + edge.service_ps(nbytes) for edge in edges)

    def ways(self, src: str, dst: str) -> list[list[Part]]:
        """Equally short paths of messages from `src` to `dst`, `path` first, in parts: each begins where one ends."""
        found = self._ways.get((src, dst))
        if found is None:
            found = self._ways[src, dst] = self._new_ways(src, dst)
        return found

    def _new_ways(self, src: str, dst: str) -> list[list[Part]]:
        parts = self._in_sip(src, dst)
        if parts:
            return [parts]
        path = self.path(src, dst)
        a, b = naming.parse(src).sip, naming.parse(dst).sip
        if a is None or b is None or a == b:
            return [[Part(path)]]
        network = self._graph.sips
        i, j = path.index(naming.io_noc(a)), path.index(naming.io_noc(b))
        return [[Part((*path[:i], *map(network.node_id, way), *path[j + 1 :]))] for way in network.paths(a, b)]

    def _in_sip(self, src: str, dst: str) -> list[Part]:
        """Parts of a path between cubes of a SIP; none for others."""
        a, b = self._stop(src), self._stop(dst)
        if a is None or b is None or a.sip != b.sip or src == dst or _is_behind(b.place, a.place):
            return []
        sides, conn = self._cube_sides(a.cube, b.cube), _connection(a.place, b.place) % self._connections
        return [*a.leaves, *self._walk(a.sip, a.cube, a.at, sides, conn, b.at), *b.enters]

    def _stop(self, node_id: str) -> _Stop | None:
        """Return the end of routes that a node of a cube is; None for other nodes."""
        if node_id not in self._stops:
            place = naming.parse(node_id)
            stop = None
            if place.kind in _IN_CUBE:
                own, at = self._graph.node(node_id).id, self._at(place)
                assert place.sip is not None
                assert place.cube is not None
                router = self._graph.node(naming.router(place.sip, place.cube, *at)).id
                leaves, enters = ([], []) if own == router else ([Part((own, router))], [Part((router, own))])
                stop = _Stop(place, place.sip, place.cube, at, leaves, enters)
            self._stops[node_id] = stop
        return self._stops[node_id]

    def merges(self, src: str, dst: str) -> bool:
        """Whether routes and replies reach the link from `src` to `dst` over more than one link.

        If not, the order on that one link is the order on this.
        """
        node = self._graph.node(src)
        if node.kind in _IN_IO:
            return True
        if node.kind != "router":
            return len(self._graph.out(src)) > 2 or node.kind == "sip_switch"
        local = src.rindex(".") + 1
        turn = src[local:], dst[local:]
        found = self._merges.get(turn)
        if found is None:
            found = self._merges[turn] = self._has_several_before(src, dst)
        return found

    def _has_several_before(self, src: str, dst: str) -> bool:
        """Whether routes to `dst` enter a router from several sides; the same in all cubes."""
        place, behind = naming.parse(src), naming.parse(dst)
        to = (behind.row, behind.col) if behind.kind == "router" else None
        before = [naming.parse(edge.dst) for edge in self._graph.out(src) if edge.dst != dst]
        sides = [(p.row, p.col) if p.kind == "router" else None for p in before]
        return sum((side, self._at(place), to) in self._layout.turns for side in sides) > 1

    def _find(self, src: str, dst: str) -> tuple[str, ...]:
        if naming.parse(dst).kind == "sip_switch":
            a, b = self._end(src), naming.parse(dst)
            assert a.sip is not None
            return (*self._up(src, a, a.sip, _connection(a, b) % self._connections), dst)
        a, b = self._end(src), self._end(dst)
        if src == dst:
            return (src,)
        if _is_behind(b, a):
            return src, dst
        first = b.sip if a.sip is None else a.sip
        last = a.sip if b.sip is None else b.sip
        assert first is not None, "host and host are one node"
        assert last is not None
        conn = _connection(a, b) % self._connections
        up = self._up(src, a, first, conn)
        down = self._down(dst, b, last, conn)
        while len(up) > 1 and len(down) > 1 and up[-2] == down[1]:
            up, down = up[:-1], down[1:]
        between = [self._graph.sips.node_id(vertex) for vertex in self._graph.sips.path(first, last)]
        return (*up, *between[1:-1], *(down if up[-1] != down[0] else down[1:]))

    def _end(self, node_id: str) -> ParsedId:
        self._graph.node(node_id)
        place = naming.parse(node_id)
        if place.kind not in (naming.HOST, *_IN_IO, *_IN_CUBE):
            raise ArgumentError(
                f"no route begins or ends at {node_id}; ends are the host, {', '.join((*_IN_IO, *_IN_CUBE))}"
            )
        return place

    def _at(self, place: ParsedId) -> At:
        if place.row is not None and place.col is not None:
            return place.row, place.col
        if place.pe is not None:
            return (self._layout.memories if place.kind in _MEMORIES else self._layout.pes)[place.pe]
        return self._layout.m_cpu if place.kind == "m_cpu" else self._layout.sram

    def _cube_sides(self, src: int, dst: int) -> str:
        """Sides by which a route leaves the successive cubes: column first."""
        (row, col), (to_row, to_col) = divmod(src, self._w), divmod(dst, self._w)
        return ("e" if to_col > col else "w") * abs(to_col - col) + ("s" if to_row > row else "n") * abs(to_row - row)

    def _walk(self, sip: int, cube: int, at: At, sides: str, conn: int, end: At) -> list[Part]:
        """Routers and ports from `at` in `cube`, leaving over `sides`, to `end` in the last cube."""
        parts = []
        for side in sides:
            parts.append(self._part(sip, cube, at, side, conn))
            cube, at = cube + self._steps[side], self._layout.ports[OPPOSITE[side], conn]
        parts.append(self._part(sip, cube, at, "", end))
        return parts

    def _part(self, sip: int, cube: int, at: At, side: str, to: Any) -> Part:
        """Return the part from `at` to the next cube, over connection `to` of a side, or to router `to`."""
        found = self._parts.get((sip, cube, at, side, to))
        if found is None:
            walk = self._layout.walk(at, self._layout.ports[side, to] if side else to)
            nodes = [naming.router(sip, cube, *here) for here in walk]
            if side:
                back, beyond = OPPOSITE[side], cube + self._steps[side]
                nodes += [naming.ucie(sip, cube, side, to), naming.ucie(sip, beyond, back, to)]
                nodes.append(naming.router(sip, beyond, *self._layout.ports[back, to]))
            found = self._parts[sip, cube, at, side, to] = Part(self._known(nodes))
        return found

    def _up(self, src: str, a: ParsedId, sip: int, conn: int) -> tuple[str, ...]:
        """Path from `src` to the network of its SIP's IO chiplet (of `sip` for the host)."""
        stop = self._stop(src)
        if stop is None:
            return reverse(_down_in_io(src, a, sip))
        row, col = divmod(stop.cube, self._w)
        walk = self._walk(sip, stop.cube, stop.at, "w" * col, conn, self._layout.ports["w", conn])
        shore = naming.ucie(sip, row * self._w, "w", conn)
        return (*path_of([*stop.leaves, *walk]), shore, naming.io_ucie(sip, row, conn), naming.io_noc(sip))

    def _down(self, dst: str, b: ParsedId, sip: int, conn: int) -> tuple[str, ...]:
        """Path from the network of the IO chiplet of `dst` (of `sip` for the host) to it."""
        stop = self._stop(dst)
        if stop is None:
            return _down_in_io(dst, b, sip)
        row, col = divmod(stop.cube, self._w)
        first = row * self._w
        walk = self._walk(sip, first, self._layout.ports["w", conn], "e" * col, conn, stop.at)
        shore = naming.ucie(sip, first, "w", conn)
        return (naming.io_noc(sip), naming.io_ucie(sip, row, conn), shore, *path_of([*walk, *stop.enters]))


def _down_in_io(dst: str, b: ParsedId, sip: int) -> tuple[str, ...]:
    noc = naming.io_noc(sip)
    if b.kind == naming.HOST:
        return noc, naming.pcie_ep(sip), naming.SWITCH, dst
    return (noc,) if dst == noc else (noc, dst)


def _is_behind(memory: ParsedId, place: ParsedId) -> bool:
    """Whether a path from the cache at `place` leads straight into its memory."""
    return place.kind == "llc" and memory.kind == "hbm_ctrl"


def _connection(a: ParsedId, b: ParsedId) -> int:
    """UCIe connection of a route, before it wraps: the initiating PE's, else the target PE's."""
    if "m_cpu" in (a.kind, b.kind):
        return 0
    return next((pe for pe in (a.pe, b.pe) if pe is not None), 0)
