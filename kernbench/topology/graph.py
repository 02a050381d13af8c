"""The graph of a machine: nodes and directed links, made when first asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, NamedTuple

from kernbench.errors import ArgumentError
from kernbench.topology import naming

if TYPE_CHECKING:
    from kernbench.topology.builder import Blocks


@dataclass(frozen=True, slots=True)
class Node:
    """A component that links meet at."""

    id: str
    kind: str
    impl: str
    overhead_ps: int
    pos_mm: tuple[float, float] | None
    index: int


class Edge(NamedTuple):
    """A directed link."""

    src: str
    dst: str
    bw_gbs: float
    latency_ps: int
    distance_mm: float
    rank: int


class Graph:
    """Nodes and links of a machine, by id.

    Host, switch and IO chiplets exist from the start; a node of a cube and its links are made when they are first asked
    for, so that a machine costs what is used of it.
    """

    def __init__(self, blocks: Blocks) -> None:
        self.blocks = blocks
        self.layout = blocks.layout
        self.sips = blocks.sips
        nodes, edges = blocks.trunk()
        self._nodes = {node.id: node for node in nodes}
        self._edges: dict[tuple[str, str], Edge] = {}
        self._trunk: dict[str, dict[str, Edge]] = {node.id: {} for node in nodes}
        for edge in edges:
            self._trunk[edge.src][edge.dst] = edge

    def node(self, node_id: str) -> Node:
        """Return the node called `node_id`."""
        node = self._nodes.get(node_id)
        if node is None:
            node = self._nodes[node_id] = self._make(node_id)
        return node

    def index(self, node_id: str) -> int:
        """Return the node's number: unique, and independent of the order in which nodes were made."""
        return self.node(node_id).index

    def edge(self, src: str, dst: str) -> Edge:
        """Return the link from `src` to `dst`."""
        edge = self._edges.get((src, dst))
        if edge is not None:
            return edge
        trunk = self._trunk.get(src)
        edge = trunk.get(dst) if trunk is not None else self.blocks.edge(src, *self._in_cube(src), dst)
        if edge is not None:
            self._edges[edge.src, edge.dst] = edge
            return edge
        known = self.out(src)
        self.node(dst)
        raise ArgumentError(f"no link from {src} to {dst}; {src} leads to {', '.join(e.dst for e in known)}")

    def out(self, node_id: str) -> tuple[Edge, ...]:
        """Return the links that leave `node_id`."""
        trunk = self._trunk.get(node_id)
        return self.blocks.out(*self._in_cube(node_id)) if trunk is None else tuple(trunk.values())

    def nodes(self) -> Iterator[Node]:
        """Iterate over all nodes by index; makes them all."""
        for sip in range(self.blocks.n_sips):
            for cube in range(self.blocks.cubes_per_sip):
                for local in self.blocks.cube_ids():
                    self.node(f"{naming.cube(sip, cube)}.{local}")
        return iter(sorted(self._nodes.values(), key=lambda node: node.index))

    def edges(self) -> Iterator[Edge]:
        """Iterate over all links by the index of their source."""
        return (edge for node in self.nodes() for edge in self.out(node.id))

    def _make(self, node_id: str) -> Node:
        return self.blocks.node(*self._in_cube(node_id))

    def _in_cube(self, node_id: str) -> tuple[int, int, str]:
        """Return SIP, cube and, without the cube's name, the id of a cube's node."""
        found = naming.in_cube(node_id)
        if found is None or not self.blocks.has(*found):
            place = naming.parse(node_id)
            cube = naming.cube(place.sip or 0, place.cube or 0)
            known = [*self._trunk, *(f"{cube}.{local}" for local in self.blocks.cube_ids())]
            near = get_close_matches(node_id, known, n=3)
            raise ArgumentError(
                f"no node {node_id} in this machine of {self.blocks.n_sips} SIPs x {self.blocks.cubes_per_sip} cubes x "
                f"{len(self.layout.pes)} PEs" + (f"; nearest: {', '.join(near)}" if near else "")
            )
        return found
