"""From a machine file to a `Machine`: its validated configuration, its graph and its drawings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from kernbench import config as configs
from kernbench.config import MachineConfig
from kernbench.topology import naming
from kernbench.topology.graph import Edge, Graph, Node
from kernbench.topology.mesh import OPPOSITE, SIDES, STEP, At, CubeLayout, SipNetwork
from kernbench.units import ns_to_ps

if TYPE_CHECKING:
    from kernbench.topology.views import Views


# Links by the nodes that they leave and lead to.
_Links = dict[str, dict[str, Edge]]

# Stands in a cube's template for the port beyond its edge: it takes its rank, and its link is another block's.
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


class Blocks:
    """Makes the nodes and links of `config`."""

    def __init__(self, config: MachineConfig) -> None:
        self.config = config
        self.layout = CubeLayout(config)
        self.sips = SipNetwork(config)
        self.n_sips = config.n_sips
        self.w, self.h = config.sip.cube_mesh.w, config.sip.cube_mesh.h
        self.cubes_per_sip = self.w * self.h
        self._cube_nodes = {node.id: node for node in self._local_nodes()}
        self._io_nodes = 3 + self.h * config.cube.ucie.connections
        self._templates: dict[frozenset[str], _Links] = {}
        self._cubes: dict[int, tuple[dict[str, int], _Links]] = {}

    def trunk(self) -> tuple[list[Node], list[Edge]]:
        """Return host, switch and all IO chiplets, with the links that leave them."""
        sips, system, io, ucie = range(self.n_sips), self.config.system, self.config.sip.io, self.config.cube.ucie
        nodes = [
            Node(naming.HOST, "host", "host", 0, None, 0),
            Node(naming.SWITCH, "switch", system.switch.impl, ns_to_ps(system.switch.overhead_ns), None, 1),
        ]
        host_link = system.host_link
        wires = _both_ways(
            naming.HOST, naming.SWITCH, host_link.bw_gbs_per_sip * self.n_sips, latency_ns=host_link.latency_ns
        )
        for sip in sips:
            pcie_ep, io_cpu, noc = naming.pcie_ep(sip), naming.io_cpu(sip), naming.io_noc(sip)
            at = self._sip_index(sip)
            nodes += [
                Node(pcie_ep, "pcie_ep", io.pcie_ep.impl, ns_to_ps(io.pcie_ep.overhead_ns), None, at),
                Node(io_cpu, "io_cpu", io.io_cpu.impl, 0, None, at + 1),
                Node(noc, "io_noc", io.noc.impl, ns_to_ps(io.noc.overhead_ns), None, at + 2),
            ]
            wires += _both_ways(naming.SWITCH, pcie_ep, system.pcie.bw_gbs, latency_ns=system.pcie.latency_ns)
            wires += _both_ways(pcie_ep, noc, io.noc.port_bw_gbs)
            wires += _both_ways(io_cpu, noc, io.noc.port_bw_gbs)
            for row in range(self.h):
                for conn in range(ucie.connections):
                    port, to = naming.io_ucie(sip, row, conn), naming.ucie(sip, row * self.w, "w", conn)
                    index = at + 3 + row * ucie.connections + conn
                    nodes.append(Node(port, "ucie", ucie.impl, ns_to_ps(ucie.port_ns), None, index))
                    wires += _both_ways(port, noc, io.noc.port_bw_gbs)
                    wires += [_Wire(port, to, ucie.bw_gbs, side="w"), _Wire(to, port, ucie.bw_gbs, side="e")]
            for other, side in self.sips.neighbours[sip].items():
                link = system.sip_link
                wires.append(_Wire(naming.io_noc(other), noc, link.bw_gbs, side, latency_ns=link.latency_ns))
        local = {node.id for node in nodes}
        edges = _ranked(wires, {node.id: node.overhead_ps for node in nodes}, 0.0)
        edges += [self._port_edge(wire.src, wire.dst) for wire in wires if wire.dst not in local]
        return nodes, [edge for edge in edges if edge.src in local]

    def cube_ids(self) -> Iterable[str]:
        """Return the id of each node of a cube, without the cube's name."""
        return self._cube_nodes

    def has(self, sip: int, cube: int, local: str) -> bool:
        """Return whether the machine has that cube, and the cube a node `local`."""
        return sip < self.n_sips and cube < self.cubes_per_sip and local in self._cube_nodes

    def node(self, sip: int, cube: int, local: str) -> Node:
        """Return the node `local` of a cube."""
        node = self._cube_nodes[local]
        first = self._sip_index(sip) + self._io_nodes + cube * len(self._cube_nodes)
        node_id = f"{naming.cube(sip, cube)}.{local}"
        return Node(node_id, node.kind, node.impl, node.overhead_ps, node.pos_mm, first + node.index)

    def out(self, sip: int, cube: int, local: str) -> tuple[Edge, ...]:
        """Return the links that leave the node `local` of a cube."""
        beside, template = self._cubes.get(cube) or self._cube(cube)
        prefix = naming.cube(sip, cube) + "."
        src = prefix + local
        edges = [Edge(src, prefix + e.dst, *e[2:]) for e in template[local].values()]
        if local.startswith("ucie_"):
            place = naming.parse(src)
            assert place.side is not None
            assert place.conn is not None
            if (other := beside.get(place.side)) is not None:
                edges.append(self._port_edge(src, naming.ucie(sip, other, OPPOSITE[place.side], place.conn)))
            elif place.side == "w" and not cube % self.w:
                edges.append(self._port_edge(src, naming.io_ucie(sip, cube // self.w, place.conn)))
        return tuple(edges)

    def edge(self, src: str, sip: int, cube: int, local: str, dst: str) -> Edge | None:
        """Return the link from a node of a cube, whose id there is `local`, to `dst`; None if there is none."""
        _, template = self._cubes.get(cube) or self._cube(cube)
        prefix = naming.cube(sip, cube) + "."
        if dst.startswith(prefix):
            edge = template[local].get(dst[len(prefix) :])
            return None if edge is None else Edge(src, dst, *edge[2:])
        edge = next((edge for edge in self.out(sip, cube, local) if edge.dst == dst), None)
        return None if edge is None else edge._replace(src=src, dst=dst)

    def _cube(self, cube: int) -> tuple[dict[str, int], _Links]:
        """Return the neighbours of a cube, by side, and the links inside of it, by the node that they leave."""
        row, col = divmod(cube, self.w)
        beside = {
            side: (row + step_r) * self.w + col + step_c
            for side, (step_r, step_c) in STEP.items()
            if 0 <= row + step_r < self.h and 0 <= col + step_c < self.w
        }
        linked = frozenset(beside) | ({"w"} if col == 0 else set())
        template = self._templates.get(linked)
        if template is None:
            template = self._templates[linked] = {node: {} for node in self._cube_nodes}
            for edge in self._local_edges(linked):
                template[edge.src][edge.dst] = edge
        self._cubes[cube] = beside, template
        return beside, template

    def _sip_index(self, sip: int) -> int:
        return 2 + sip * (self._io_nodes + self.cubes_per_sip * len(self._cube_nodes))

    def _port_edge(self, src: str, dst: str) -> Edge:
        # Nothing but its peer reaches a port from a side, so the crossing ranks before the local link.
        ucie = self.config.cube.ucie
        return Edge(src, dst, ucie.bw_gbs, ns_to_ps(ucie.port_ns), 0.0, rank=0)

    def _local_nodes(self) -> list[Node]:
        """Return the nodes of any cube, with ids and indexes as within it."""
        cube, layout = self.config.cube, self.layout
        made: list[tuple[str, str, str, float, tuple[float, float]]] = []
        for at in layout.routers:
            router = cube.noc.router
            made.append((_local(naming.router(0, 0, *at)), "router", router.impl, router.overhead_ns, self._pos(at)))
        for (side, conn), at in layout.ports.items():
            port = _local(naming.ucie(0, 0, side, conn))
            made.append((port, "ucie", cube.ucie.impl, cube.ucie.port_ns, self._pos(at)))
        m_cpu, sram, pe = cube.m_cpu, cube.sram, cube.pe
        made.append((_local(naming.m_cpu(0, 0)), "m_cpu", m_cpu.impl, 0.0, m_cpu.pos_mm))
        made.append((_local(naming.sram(0, 0)), "sram", sram.impl, 0.0, sram.pos_mm))
        for number, at in enumerate(layout.pes):
            made.append((_local(naming.hbm(0, 0, number)), "hbm_ctrl", cube.hbm.impl, 0.0, self._pos(at)))
            made.append((_local(naming.pe_cpu(0, 0, number)), "pe_cpu", pe.pe_cpu.impl, 0.0, self._pos(at)))
            made.append((_local(naming.pe_dma(0, 0, number)), "pe_dma", pe.pe_dma.impl, 0.0, self._pos(at)))
        return [
            Node(node_id, kind, impl, ns_to_ps(overhead_ns), pos, index)
            for index, (node_id, kind, impl, overhead_ns, pos) in enumerate(made)
        ]

    def _local_edges(self, linked: frozenset[str]) -> list[Edge]:
        """Return the links inside a cube whose ports on the sides `linked` have a peer."""
        cube, layout = self.config.cube, self.layout
        wires = []

        def router(at: At) -> str:
            return _local(naming.router(0, 0, *at))

        for at in layout.routers:
            for side in SIDES:
                beside = layout.neighbour(at, side)
                if beside is not None:
                    wires.append(
                        _Wire(router(beside), router(at), cube.noc.link_bw_gbs, side, distance_mm=layout.pitch_mm)
                    )
        for (side, conn), at in layout.ports.items():
            port = _local(naming.ucie(0, 0, side, conn))
            wires += [_Wire(port, router(at), cube.ucie.router_bw_gbs, side)]
            wires += [_Wire(router(at), port, cube.ucie.router_bw_gbs)]
            if side in linked:
                wires.append(_Wire(_PEER, port, cube.ucie.bw_gbs, side))
        # The link of a part to its router has no length: pos_mm chooses the router, and is for drawings.
        wires += _both_ways(_local(naming.m_cpu(0, 0)), router(layout.m_cpu), cube.m_cpu.bw_gbs)
        wires += _both_ways(_local(naming.sram(0, 0)), router(layout.sram), cube.sram.bw_gbs)
        for number, at in enumerate(layout.pes):
            wires += _both_ways(_local(naming.hbm(0, 0, number)), router(at), cube.hbm.bw_gbs)
            wires += _both_ways(_local(naming.pe_cpu(0, 0, number)), router(at), cube.pe.pe_cpu.bw_gbs)
            wires += _both_ways(_local(naming.pe_dma(0, 0, number)), router(at), cube.pe.pe_dma.bw_gbs)
        overheads = {node.id: node.overhead_ps for node in self._cube_nodes.values()}
        return [edge for edge in _ranked(wires, overheads, cube.propagation_ns_per_mm) if edge.src != _PEER]

    def _pos(self, at: At) -> tuple[float, float]:
        return self.layout.position_mm(at)


def _local(node_id: str) -> str:
    return node_id.removeprefix("sip0.cube0.")


def _both_ways(a: str, b: str, bw_gbs: float, *, latency_ns: float = 0.0) -> list[_Wire]:
    return [_Wire(a, b, bw_gbs, latency_ns=latency_ns), _Wire(b, a, bw_gbs, latency_ns=latency_ns)]


def _ranked(wires: Iterable[_Wire], overhead_ps: dict[str, int], ns_per_mm: float) -> list[Edge]:
    """Return the links into the nodes of `overhead_ps`, each with its rank among those into the same node."""
    into: dict[str, list[_Wire]] = {}
    for wire in wires:
        if wire.dst in overhead_ps:
            into.setdefault(wire.dst, []).append(wire)
    order = {side: place for place, side in enumerate((*SIDES, ""))}
    edges = []
    for dst, arriving in into.items():
        arriving.sort(key=lambda wire: (order[wire.side], naming.natural_key(wire.src)))
        for rank, wire in enumerate(arriving):
            latency_ps = ns_to_ps(wire.distance_mm * ns_per_mm) + ns_to_ps(wire.latency_ns) + overhead_ps[dst]
            edges.append(Edge(wire.src, dst, wire.bw_gbs, latency_ps, wire.distance_mm, rank))
    return edges


Overrides = Mapping[str, object] | Sequence[str]
PRESET = "preset:"


class Machine:
    """A machine as its file describes it. Nothing is simulated before an engine is made for it.

    Parameters
    ----------
    config : MachineConfig
        Validated and frozen.
    source : str
        Where it came from, for captions: a path, `preset:NAME`, or "mapping".

    Attributes
    ----------
    graph : Graph
        Nodes and links; cubes are made when first asked for.
    views : Views
        Geometry of the system, a SIP, a cube and a PE.
    """

    def __init__(self, config: MachineConfig, source: str = "mapping") -> None:
        self.config = config
        self.source = source

    @cached_property
    def spec(self) -> Mapping[str, Any]:
        """The machine as a mapping, reading as its file does."""
        return MappingProxyType(self.config.to_spec())

    @property
    def hash(self) -> str:
        """The hash of the validated content, which results carry."""
        return self.config.hash

    @cached_property
    def graph(self) -> Graph:
        """Nodes and links."""
        return Graph(Blocks(self.config))

    @cached_property
    def views(self) -> Views:
        """Geometry of the four views, for drawing."""
        from kernbench.topology.views import Views

        return Views(self.graph)

    def with_(self, overrides: Overrides) -> Machine:
        """Return the machine with some values changed: `{"sip.cube_mesh.w": 2}` or `["sip.cube_mesh.w=2"]`."""
        return Machine(configs.read_machine(self.config.to_spec(), overrides), self.source)

    def __reduce__(self) -> tuple[type[Machine], tuple[MachineConfig, str]]:
        # The graph is made again where it is needed: a few milliseconds against megabytes to send.
        return Machine, (self.config, self.source)

    def __repr__(self) -> str:
        c = self.config
        mesh = c.sip.cube_mesh
        return (
            f"Machine({Path(self.source).name}, {c.n_sips} SIPs {c.system.sips.topology} x {mesh.w}x{mesh.h} cubes x "
            f"{c.pes_per_cube} PEs = {c.n_pes} PEs, hash {self.hash[:12]})"
        )

    def _repr_html_(self) -> str:
        from kernbench.viz.machine import machine_html

        return machine_html(self)


def resolve_topology(
    source: str | Path | Mapping[str, Any] | Machine | None = None, overrides: Overrides = ()
) -> Machine:
    """Return the machine that `source` means.

    Parameters
    ----------
    source : str, Path, Mapping, Machine or None
        A path, `preset:NAME`, the content of a file, or None: the nearest `topology.yaml` upward from the
        working directory, else the packaged default.
    overrides : mapping of path to value, or sequence of "path=value"
        Changes to the file's values.

    Raises
    ------
    ConfigError
        With every fault of the file, one a line.
    """
    if isinstance(source, Machine):
        return source.with_(overrides) if overrides else source
    if isinstance(source, Mapping):
        return Machine(configs.read_machine(source, overrides))
    if source is None:
        return load_topology(configs.find(), overrides)
    if isinstance(source, str) and source.startswith(PRESET):
        path = configs.preset_path(source.removeprefix(PRESET))
        return Machine(configs.read_machine(path, overrides), source)
    return load_topology(source, overrides)


def load_topology(path: str | Path, overrides: Overrides = ()) -> Machine:
    """Return the machine of the file at `path`, validated."""
    return Machine(configs.read_machine(path, overrides), str(path))
