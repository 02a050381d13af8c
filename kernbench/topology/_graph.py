"""The graph of a machine: nodes and directed links, created on demand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import zip_longest
from typing import NamedTuple

from kernbench._units import decimal_product, ns_to_ps, serialization_ps
from kernbench.config import MachineConfig
from kernbench.errors import ArgumentError
from kernbench.topology import _naming as naming
from kernbench.topology._mesh import OFFSETS, OPPOSITE, SIDES, At, CubeLayout
from kernbench.topology._sip_network import SIP_SIDES, SipNetwork


@dataclass(frozen=True, slots=True)
class Node:
    """A component at which links meet."""

    id: str
    kind: str
    impl: str
    overhead_ps: int
    pos_mm: tuple[float, float] | None
    index: int


class Edge(NamedTuple):
    src: str
    dst: str
    bw_gbs: float
    latency_ps: int
    distance_mm: float
    rank: int
    header_bytes: int = 0

    def service_ps(self, nbytes: int) -> int:
        return serialization_ps(nbytes + self.header_bytes, self.bw_gbs)


@dataclass(frozen=True, slots=True)
class RouterClock:
    """Cycle time of a network of routers with credits [ps], and the cycles of a router's stages."""

    cycle_ps: int
    stages: tuple[int, int, int, int]

    def cycles(self, ps: int) -> int:
        return max(1, -(-ps // self.cycle_ps))

    def latency_ps(self, wire_ps: int, service_ps: int, *, enters: bool) -> int:
        """Latency of a link at a router, rounded so that it and a flit's service together are whole cycles [ps]."""
        return (self.cycles(wire_ps) + self.cycles(service_ps) - 1 + enters) * self.cycle_ps - service_ps


def clocks_of(config: MachineConfig) -> dict[str, RouterClock]:
    noc, sip_link = config.cube.noc, config.system.sip_link
    links = (
        ("router", noc.link_bw_gbs, noc.header_bytes, noc.router),
        ("io_noc", sip_link.bw_gbs, sip_link.header_bytes, sip_link.router),
        ("sip_switch", sip_link.bw_gbs, sip_link.header_bytes, sip_link.router),
    )
    return {
        kind: RouterClock(serialization_ps(config.system.flit_bytes + header_bytes, bw_gbs), router.pipeline)
        for kind, bw_gbs, header_bytes, router in links
        if router.flow == "credits"
    }


# Placeholder for the port across a cube's edge: it keeps the port's rank in the template; `_crossing` is the link.
_PEER = ""


@dataclass(frozen=True, slots=True)
class _Wire:
    """A link before it has its rank: `side` is the direction of `src` as seen from `dst`, "" for a local one."""

    src: str
    dst: str
    bw_gbs: float
    side: str = ""
    distance_mm: float = 0.0
    latency_ns: float = 0.0
    header_bytes: int = 0


Leaving = dict[str, dict[str, Edge]]  # links by source and destination


def _leaving(nodes: Iterable[str], edges: Iterable[Edge]) -> Leaving:
    found: Leaving = {node: {} for node in nodes}
    for edge in edges:
        found[edge.src][edge.dst] = edge
    return found


class Graph:
    """Nodes and links of a machine, by id.

    Host, switch and IO chiplets exist from the start; a node of a cube and its links are created on first use, so that
    a machine costs only what a run uses. Cubes with neighbours on the same sides share a template of links.
    """

    def __init__(self, config: MachineConfig) -> None:
        self.config = config
        self.clocks = clocks_of(config)
        self.layout = CubeLayout(config)
        self.sips = SipNetwork(config)
        self.w, self.h = config.sip.cube_mesh.w, config.sip.cube_mesh.h
        self._cube_nodes = {node.id: node for node in self._local_nodes()}
        self._ports = {_local(naming.ucie(0, 0, *port)): port for port in self.layout.ports}
        self._sizes = config.n_sips, config.cubes_per_sip
        self._places: dict[str, tuple[int, int, str]] = {}  # of the nodes of cubes so far: SIP, cube, local id
        self._io_nodes = 3 + self.h * config.cube.ucie.connections
        ucie = config.cube.ucie
        # Only its peer reaches a port from a side, so the crossing ranks before the local link.
        self._crossing = Edge("", "", ucie.flit_gbs, ns_to_ps(ucie.port_ns), 0.0, rank=0)
        self._templates: dict[frozenset[str], Leaving] = {}
        self._cubes: dict[int, Leaving] = {}
        nodes, edges = self._make_trunk()
        self._nodes = {node.id: node for node in nodes}
        self._trunk = _leaving([node.id for node in nodes], edges)

    def node(self, node_id: str) -> Node:
        node = self._nodes.get(node_id)
        if node is None:
            sip, cube, local = self.place(node_id)
            like = self._cube_nodes[local]
            index = self._sip_index(sip) + self._io_nodes + cube * len(self._cube_nodes) + like.index
            node = self._nodes[node_id] = Node(node_id, like.kind, like.impl, like.overhead_ps, like.pos_mm, index)
        return node

    def index(self, node_id: str) -> int:
        """Return the unique number of a node, independent of the order of creation."""
        return self.node(node_id).index

    def trunk(self) -> Iterator[Edge]:
        """Links that are in no cube."""
        return (edge for links in self._trunk.values() for edge in links.values())

    def edge(self, src: str, dst: str) -> Edge:
        return Edge(src, dst, *self.like(src, dst)[2:])

    def like(self, src: str, dst: str) -> Edge:
        """Return a link equal to the one from `src` to `dst`, except for its ends."""
        links = self._trunk.get(src)
        if links is not None:
            found = links.get(dst)
        else:
            _, cube, local = self.place(src)
            n = len(src) - len(local)
            like = self._links(cube)[local].get(dst[n:]) if dst[:n] == src[:n] else None
            found = self._crossing if like is None and dst == self._beyond(src) else like
        if found is None:
            self.node(dst)
            known = ", ".join(edge.dst for edge in self.out(src))
            raise ArgumentError(f"no link from {src} to {dst}; {src} leads to {known}")
        return found

    def out(self, node_id: str) -> tuple[Edge, ...]:
        return tuple(self._leaving(node_id))

    def _leaving(self, node_id: str) -> Iterator[Edge]:
        if node_id in self._trunk:
            yield from self._trunk[node_id].values()
            return
        sip, cube, local = self.place(node_id)
        prefix = naming.cube(sip, cube) + "."
        for edge in self._links(cube)[local].values():
            yield Edge(node_id, prefix + edge.dst, *edge[2:])
        peer = self._beyond(node_id)
        if peer is not None:
            yield Edge(node_id, peer, *self._crossing[2:])

    def _beyond(self, node_id: str) -> str | None:
        """Find the port across the cube's edge to which a UCIe port is connected; None for other nodes."""
        sip, cube, local = self.place(node_id)
        port = self._ports.get(local)
        return None if port is None else self._peer(sip, cube, *port)

    def memory(self, sip: int, cube: int, number: int) -> str:
        """Node of HBM slice `number`, modulo their count: the slice, or the cache in front of it."""
        kind = "llc" if self.config.cube.llc.size_mib else "hbm_ctrl"
        return naming.memory(sip, cube, kind, number % self.config.hbm_slices, apart=self.config.memory_apart)

    def _slice(self, kind: str, number: int) -> str:
        return _local(naming.memory(0, 0, kind, number, apart=self.config.memory_apart))

    def nodes(self) -> Iterator[Node]:
        """All nodes by index; creates them all."""
        for sip in range(self.config.n_sips):
            for cube in range(self.config.cubes_per_sip):
                for local in self._cube_nodes:
                    self.node(f"{naming.cube(sip, cube)}.{local}")
        return iter(sorted(self._nodes.values(), key=lambda node: node.index))

    def edges(self) -> Iterator[Edge]:
        return (edge for node in self.nodes() for edge in self.out(node.id))

    def place(self, node_id: str) -> tuple[int, int, str]:
        """Split the id of a cube's node into SIP, cube and local id; ArgumentError if the machine has no such node."""
        found = self._places.get(node_id)
        if found is not None:
            return found
        sips, cubes = self._sizes
        found = naming.in_cube(node_id)
        if found is None or found[0] >= sips or found[1] >= cubes or found[2] not in self._cube_nodes:
            place = naming.parse(node_id)
            cube = naming.cube(place.sip or 0, place.cube or 0)
            known = [*self._trunk, *(f"{cube}.{local}" for local in self._cube_nodes)]
            near = get_close_matches(node_id, known, n=3)
            raise ArgumentError(
                f"no node {node_id} in this machine of {sips} SIPs x {cubes} cubes x {len(self.layout.pes)} PEs"
                + (f"; nearest: {', '.join(near)}" if near else "")
            )
        self._places[node_id] = found
        return found

    def _sip_index(self, sip: int) -> int:
        return 2 + sip * (self._io_nodes + self._sizes[1] * len(self._cube_nodes))

    def _peer(self, sip: int, cube: int, side: str, conn: int) -> str | None:
        """Find the port connected to a cube's UCIe port; None at the edge of the SIP."""
        row, col = divmod(cube, self.w)
        to_row, to_col = row + OFFSETS[side][0], col + OFFSETS[side][1]
        if 0 <= to_row < self.h and 0 <= to_col < self.w:
            return naming.ucie(sip, to_row * self.w + to_col, OPPOSITE[side], conn)
        return naming.io_ucie(sip, row, conn) if side == "w" else None

    def _links(self, cube: int) -> Leaving:
        """Links inside a cube, by source, with local ids."""
        found = self._cubes.get(cube)
        if found is None:
            linked = frozenset(side for side in SIDES if self._peer(0, cube, side, 0) is not None)
            if linked not in self._templates:
                self._templates[linked] = _leaving(self._cube_nodes, self._local_edges(linked))
            found = self._cubes[cube] = self._templates[linked]
        return found

    def _make_trunk(self) -> tuple[list[Node], list[Edge]]:
        system, io, ucie = self.config.system, self.config.sip.io, self.config.cube.ucie
        nodes = [
            Node(naming.HOST, "host", "host", 0, None, 0),
            Node(naming.SWITCH, "switch", system.switch.impl, ns_to_ps(system.switch.overhead_ns), None, 1),
        ]
        host_link = system.host_link
        host_gbs = decimal_product(host_link.bw_gbs_per_sip, self.config.n_sips)
        wires = _both_ways(naming.HOST, naming.SWITCH, host_gbs, latency_ns=host_link.latency_ns)
        for sip in range(self.config.n_sips):
            pcie_ep, io_cpu, noc = naming.pcie_ep(sip), naming.io_cpu(sip), naming.io_noc(sip)
            at = self._sip_index(sip)
            nodes += [
                Node(pcie_ep, "pcie_ep", io.pcie_ep.impl, ns_to_ps(io.pcie_ep.overhead_ns), None, at),
                Node(io_cpu, "io_cpu", io.io_cpu.impl, 0, None, at + 1),
                Node(noc, "io_noc", io.noc.impl, self._overhead_ps("io_noc", io.noc.overhead_ns), None, at + 2),
            ]
            pcie_gbs = decimal_product(system.pcie.bw_gbs, system.pcie.efficiency)
            wires += _both_ways(naming.SWITCH, pcie_ep, pcie_gbs, latency_ns=system.pcie.latency_ns)
            wires += _both_ways(pcie_ep, noc, io.noc.port_bw_gbs)
            wires += _both_ways(io_cpu, noc, io.noc.port_bw_gbs)
            for row in range(self.h):
                for conn in range(ucie.connections):
                    port, to = naming.io_ucie(sip, row, conn), naming.ucie(sip, row * self.w, "w", conn)
                    index = at + 3 + row * ucie.connections + conn
                    nodes.append(Node(port, "ucie", ucie.impl, ns_to_ps(ucie.port_ns), None, index))
                    wires += _both_ways(port, noc, io.noc.port_bw_gbs)
                    wires += [_Wire(port, to, ucie.flit_gbs, side="w"), _Wire(to, port, ucie.flit_gbs, side="e")]
        switch, net, first = system.sip_switch, self.sips, self._sip_index(self.config.n_sips)
        for number in range(len(net.neighbours) - net.count):
            node_id, kind = net.node_id(net.count + number), net.kind(net.count + number)
            overhead_ps = self._overhead_ps(kind, 0.0 if kind == "nic" else switch.overhead_ns)
            nodes.append(Node(node_id, kind, switch.impl, overhead_ps, None, first + number))
        for vertex, near in enumerate(net.neighbours):
            for other, side in near.items():
                link = net.link(vertex, other)
                wires.append(
                    _Wire(
                        net.node_id(other), net.node_id(vertex), link.bw_gbs, side,
                        latency_ns=link.latency_ns, header_bytes=link.header_bytes,
                    )
                )  # fmt: skip
        local = {node.id for node in nodes}
        clocked = {node.id: self.clocks[node.kind] for node in nodes if node.kind in self.clocks}
        edges = _ranked(wires, {node.id: node.overhead_ps for node in nodes}, 0.0, clocked, system.flit_bytes)
        edges += [Edge(wire.src, wire.dst, *self._crossing[2:]) for wire in wires if wire.dst not in local]
        return nodes, [edge for edge in edges if edge.src in local]

    def _local_nodes(self) -> list[Node]:
        """Nodes of any cube, with local ids and indexes."""
        cube, layout, position = self.config.cube, self.layout, self.layout.position_mm
        made: list[tuple[str, str, str, float, tuple[float, float]]] = []
        for at in layout.routers:
            router = cube.noc.router
            made.append(
                (
                    _local(naming.router(0, 0, *at)),
                    "router",
                    router.impl,
                    router.overhead_ns,
                    position(at),
                )
            )
        for (side, conn), at in layout.ports.items():
            port = _local(naming.ucie(0, 0, side, conn))
            made.append((port, "ucie", cube.ucie.impl, cube.ucie.port_ns, position(at)))
        m_cpu, sram, pe = cube.m_cpu, cube.sram, cube.pe
        made.append((_local(naming.m_cpu(0, 0)), "m_cpu", m_cpu.impl, 0.0, m_cpu.pos_mm))
        made.append((_local(naming.sram(0, 0)), "sram", sram.impl, 0.0, sram.pos_mm))
        slices = [("hbm_ctrl", cube.hbm.impl), *([("llc", cube.llc.impl)] if cube.llc.size_mib else [])]
        for number, (home, at) in enumerate(zip_longest(layout.memories, layout.pes)):
            for kind, impl in slices if home else ():
                made.append((self._slice(kind, number), kind, impl, 0.0, position(home)))
            if at:
                made.append((_local(naming.pe_cpu(0, 0, number)), "pe_cpu", pe.pe_cpu.impl, 0.0, position(at)))
                made.append((_local(naming.pe_dma(0, 0, number)), "pe_dma", pe.pe_dma.impl, 0.0, position(at)))
        return [
            Node(node_id, kind, impl, self._overhead_ps(kind, overhead_ns), pos, index)
            for index, (node_id, kind, impl, overhead_ns, pos) in enumerate(made)
        ]

    def _local_edges(self, linked: frozenset[str]) -> list[Edge]:
        """Links inside a cube whose ports on the sides `linked` have a peer."""
        cube, layout = self.config.cube, self.layout
        wires = []

        def router(at: At) -> str:
            return _local(naming.router(0, 0, *at))

        for at in layout.routers:
            for side in SIDES:
                neighbour = layout.neighbour(at, side)
                if neighbour is not None:
                    wires.append(
                        _Wire(router(neighbour), router(at), cube.noc.link_bw_gbs, side, distance_mm=cube.noc.link_mm)
                    )
        for (side, conn), at in layout.ports.items():
            port = _local(naming.ucie(0, 0, side, conn))
            wires += [_Wire(port, router(at), cube.ucie.router_bw_gbs, side)]
            wires += [_Wire(router(at), port, cube.ucie.router_bw_gbs)]
            if side in linked:
                wires.append(_Wire(_PEER, port, cube.ucie.flit_gbs, side))
        # The link of a part to its router has no length: pos_mm only selects the router, and places it in drawings.
        wires += _both_ways(_local(naming.m_cpu(0, 0)), router(layout.m_cpu), cube.m_cpu.bw_gbs)
        wires += _both_ways(_local(naming.sram(0, 0)), router(layout.sram), cube.sram.bw_gbs)
        for number, (home, at) in enumerate(zip_longest(layout.memories, layout.pes)):
            if home:
                beyond = router(home)
                if cube.llc.size_mib:
                    wires += _both_ways(self._slice("llc", number), beyond, cube.llc.bw_gbs)
                    beyond = self._slice("llc", number)
                wires += _both_ways(self._slice("hbm_ctrl", number), beyond, cube.hbm.bw_gbs)
            if at:
                wires += _both_ways(_local(naming.pe_cpu(0, 0, number)), router(at), cube.pe.pe_cpu.bw_gbs)
                wires += _both_ways(_local(naming.pe_dma(0, 0, number)), router(at), cube.pe.pe_dma.bw_gbs)
        local = self._cube_nodes.values()
        overheads = {node.id: node.overhead_ps for node in local}
        clocked = {node.id: self.clocks[node.kind] for node in local if node.kind in self.clocks}
        # All of these are at a router, except links between ports, which are dropped below, with _PEER.
        wires = [replace(wire, header_bytes=cube.noc.header_bytes) for wire in wires]
        edges = _ranked(wires, overheads, cube.propagation_ns_per_mm, clocked, self.config.system.flit_bytes)
        return [edge for edge in edges if edge.src != _PEER]

    def _overhead_ps(self, kind: str, overhead_ns: float) -> int:
        """Latency that a node adds to links into it: with credits, the stages of a router."""
        clock = self.clocks.get(kind)
        return ns_to_ps(overhead_ns) if clock is None else sum(clock.stages) * clock.cycle_ps


def _local(node_id: str) -> str:
    return node_id.removeprefix("sip0.cube0.")


def _both_ways(a: str, b: str, bw_gbs: float, *, latency_ns: float = 0.0) -> list[_Wire]:
    return [_Wire(a, b, bw_gbs, latency_ns=latency_ns), _Wire(b, a, bw_gbs, latency_ns=latency_ns)]


def _ranked(
    wires: Iterable[_Wire],
    overhead_ps: dict[str, int],
    ns_per_mm: float,
    clocks: dict[str, RouterClock],
    flit_bytes: int,
) -> list[Edge]:
    """Rank the links among those into the same node; links into nodes outside `overhead_ps` are dropped.

    `clocks` are those of routers with credits.
    """
    into: dict[str, list[_Wire]] = {}
    for wire in wires:
        if wire.dst in overhead_ps:
            into.setdefault(wire.dst, []).append(wire)
    order = {side: place for place, side in enumerate((*SIP_SIDES, ""))}
    edges = []
    for dst, arriving in into.items():
        arriving.sort(key=lambda wire: (order[wire.side], naming.natural_key(wire.src)))
        for rank, wire in enumerate(arriving):
            latency_ps = ns_to_ps(wire.distance_mm * ns_per_mm) + ns_to_ps(wire.latency_ns)
            clock = clocks.get(dst, clocks.get(wire.src))
            if clock is not None:
                service_ps = serialization_ps(flit_bytes + wire.header_bytes, wire.bw_gbs)
                latency_ps = clock.latency_ps(latency_ps, service_ps, enters=wire.src not in clocks)
            latency_ps += overhead_ps[dst]
            edges.append(Edge(wire.src, dst, wire.bw_gbs, latency_ps, wire.distance_mm, rank, wire.header_bytes))
    return edges
