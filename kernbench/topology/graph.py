"""The graph of a machine: nodes and directed links, made cube by cube when first asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, NamedTuple

from kernbench.errors import KernbenchError
from kernbench.topology import naming

if TYPE_CHECKING:
    from kernbench.topology.blocks import Blocks


@dataclass(frozen=True, slots=True)
class Node:
    """A component that links meet at.

    Attributes
    ----------
    kind : str
        As in `kernbench.topology.naming`: host, switch, pcie_ep, io_cpu, io_noc, ucie, router, hbm_ctrl,
        m_cpu, sram, pe_cpu or pe_dma.
    impl : str
        Name or dotted path of the class that models it.
    overhead_ps : int
        What passing through it costs every flit; 0 where transactions end.
    pos_mm : tuple of float or None
        x and y from the north-west corner of its cube.
    index : int
        Its number in the machine, the same in whatever order the graph is made.
    """

    id: str
    kind: str
    impl: str
    overhead_ps: int
    pos_mm: tuple[float, float] | None
    index: int


class Edge(NamedTuple):
    """A directed link.

    Attributes
    ----------
    bw_gbs : float
        Bandwidth in GB/s.
    latency_ps : int
        Propagation, plus the wire's own latency, plus the overhead of the node it leads into.
    distance_mm : float
        Length on the die.
    rank : int
        Place among the links into `dst`, which decides between equal arrivals: by the side that `src`
        lies on (E, W, N, S), then the local ones by id.
    """

    src: str
    dst: str
    bw_gbs: float
    latency_ps: int
    distance_mm: float
    rank: int


class Graph:
    """Nodes and links of a machine, by id.

    Host, switch and IO chiplets exist from the start; a cube's nodes and links are made when the first of
    them is asked for, so that a machine costs what is used of it.
    """

    def __init__(self, blocks: Blocks) -> None:
        self.blocks = blocks
        self.layout = blocks.layout
        self.sips = blocks.sips
        self._nodes: dict[str, Node] = {}
        self._out: dict[str, dict[str, Edge]] = {}
        self._made: set[tuple[int, int]] = set()
        self._add(*blocks.trunk())

    def node(self, node_id: str) -> Node:
        """Return the node called `node_id`."""
        try:
            return self._nodes[node_id]
        except KeyError:
            self._make_cube_of(node_id)
            return self._nodes[node_id]

    def index(self, node_id: str) -> int:
        """Return the node's number: unique, and independent of the order in which nodes were made."""
        return self.node(node_id).index

    def edge(self, src: str, dst: str) -> Edge:
        """Return the link from `src` to `dst`."""
        try:
            return self._out[src][dst]
        except KeyError:
            known = self.out(src)
        for edge in known:
            if edge.dst == dst:
                return edge
        self.node(dst)
        raise KernbenchError(f"no link from {src} to {dst}; {src} leads to {', '.join(e.dst for e in known)}")

    def out(self, node_id: str) -> tuple[Edge, ...]:
        """Return the links that leave `node_id`."""
        self.node(node_id)
        return tuple(self._out[node_id].values())

    def nodes(self) -> Iterator[Node]:
        """Iterate over all nodes by index; makes the whole graph."""
        self._make_all()
        return iter(sorted(self._nodes.values(), key=lambda node: node.index))

    def edges(self) -> Iterator[Edge]:
        """Iterate over all links by the index of their source; makes the whole graph."""
        return (edge for node in self.nodes() for edge in self._out[node.id].values())

    def _make_all(self) -> None:
        for sip in range(self.blocks.n_sips):
            for cube in range(self.blocks.cubes_per_sip):
                self._make_cube(sip, cube)

    def _make_cube(self, sip: int, cube: int) -> None:
        if (sip, cube) not in self._made:
            self._made.add((sip, cube))
            self._add(*self.blocks.cube(sip, cube))

    def _make_cube_of(self, node_id: str) -> None:
        place = naming.parse(node_id)
        sip, cube = place.sip, place.cube
        if sip is not None and cube is not None and sip < self.blocks.n_sips and cube < self.blocks.cubes_per_sip:
            self._make_cube(sip, cube)
        if node_id not in self._nodes:
            near = get_close_matches(node_id, self._nodes, n=3)
            raise KernbenchError(
                f"no node {node_id} in this machine of {self.blocks.n_sips} SIPs x {self.blocks.cubes_per_sip} cubes x "
                f"{len(self.layout.pes)} PEs" + (f"; nearest: {', '.join(near)}" if near else "")
            )

    def _add(self, nodes: list[Node], edges: list[Edge]) -> None:
        for node in nodes:
            self._nodes[node.id] = node
            self._out[node.id] = {}
        for edge in edges:
            self._out[edge.src][edge.dst] = edge
