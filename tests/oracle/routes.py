"""Routes as section 3 of docs/model.md states them, found on the graph of the machine alone."""

from __future__ import annotations

from collections import deque

from kernbench.topology import _naming as naming
from kernbench.topology.builder import Machine

At = tuple[int, int]  # (row, column)
STEPS = {"e": (0, 1), "w": (0, -1), "n": (-1, 0), "s": (1, 0)}
OPPOSITE = {"e": "w", "w": "e", "n": "s", "s": "n"}


class Routes:
    """The routes of one machine between the host, IO CPUs, and the parts of cubes."""

    def __init__(self, machine: Machine) -> None:
        self._graph = machine.graph
        self._width = machine.config.sip.cube_mesh.w
        self._connections = machine.config.cube.ucie.connections
        self._nodes = {node.id for node in machine.graph.nodes()}

    def path(self, src: str, dst: str) -> list[str]:
        """Return the nodes from `src`, which asks, to `dst`."""
        a, b = naming.parse(src), naming.parse(dst)
        conn = self._connection(a, b)
        if a.cube is not None and b.cube is not None and a.sip == b.sip:
            return [src, *self._through_cubes(a.sip, a.cube, self._router(src), b.cube, self._router(dst), conn), dst]
        first = b.sip if a.sip is None else a.sip
        last = a.sip if b.sip is None else b.sip
        return [*self._to_noc(src, first, conn), *self._nocs(first, last), *self._from_noc(dst, last, conn)]

    def _connection(self, a: naming.ParsedId, b: naming.ParsedId) -> int:
        """M3.3."""
        if "m_cpu" in (a.kind, b.kind):
            return 0
        pe = b.pe if a.pe is None else a.pe
        return 0 if pe is None else pe % self._connections

    def _to_noc(self, node: str, sip: int, conn: int) -> list[str]:
        """M3.4 and M3.7: from `node` to before the network of the IO chiplet of `sip`."""
        place = naming.parse(node)
        if place.kind == "host":
            return [node, naming.SWITCH, naming.pcie_ep(sip)]
        if place.cube is None:
            return [node]
        row = place.cube // self._width
        edge, port = row * self._width, naming.ucie(sip, row * self._width, "w", conn)
        way = self._through_cubes(sip, place.cube, self._router(node), edge, self._router(port), conn)
        return [node, *way, port, naming.io_ucie(sip, row, conn)]

    def _from_noc(self, node: str, sip: int, conn: int) -> list[str]:
        """M3.4 and M3.7: from behind the network of the IO chiplet of `sip` to `node`."""
        place = naming.parse(node)
        if place.kind == "host":
            return [naming.pcie_ep(sip), naming.SWITCH, node]
        if place.cube is None:
            return [node]
        row = place.cube // self._width
        edge, port = row * self._width, naming.ucie(sip, row * self._width, "w", conn)
        way = self._through_cubes(sip, edge, self._router(port), place.cube, self._router(node), conn)
        return [naming.io_ucie(sip, row, conn), port, *way, node]

    def _nocs(self, first: int, last: int) -> list[str]:
        """M3.5: the fewest links between SIPs; of equals, the next SIP with the lower number, at each SIP.

        Up a fat tree: the port by the destination.
        """
        end = naming.io_noc(last)
        hops, queue = {end: 0}, deque([end])
        while queue:
            here = queue.popleft()
            for node in self._beside(here):
                if node not in hops:
                    hops[node] = hops[here] + 1
                    queue.append(node)
        way = [naming.io_noc(first)]
        while way[-1] != end:
            near = self._beside(way[-1])
            closer = [node for node in near if hops[node] < hops[way[-1]]]
            if len(closer) > 1 and naming.parse(way[-1]).kind == "sip_switch":
                # All ways up are equally short. Before the switch of level l there are l + 1 links.
                level = len(way) - 2
                way.append(closer[last // len(closer) ** level % len(closer)])
            else:
                way.append(closer[0])
        return way

    def _beside(self, node: str) -> list[str]:
        """Return the networks of SIPs and the switches that a node has links to, by number."""
        near = [edge.dst for edge in self._graph.out(node)]
        return sorted((x for x in near if naming.parse(x).kind in ("io_noc", "sip_switch")), key=naming.natural_key)

    def _through_cubes(self, sip: int, cube: int, at: str, goal: int, end: str, conn: int) -> list[str]:
        """M3.2: the routers and ports from router `at` of `cube` to router `end` of cube `goal`."""
        nodes = []
        while cube != goal:
            (row, col), (to_row, to_col) = divmod(cube, self._width), divmod(goal, self._width)
            side = _side(col, to_col, "we") if col != to_col else _side(row, to_row, "ns")
            port = naming.ucie(sip, cube, side, conn)
            step_r, step_c = STEPS[side]
            cube += step_r * self._width + step_c
            entry = naming.ucie(sip, cube, OPPOSITE[side], conn)
            nodes += [*self._walk(at, self._router(port)), port, entry]
            at = self._router(entry)
        return nodes + self._walk(at, end)

    def _router(self, node: str) -> str:
        """Return the router that a part or a port of a cube is attached to."""
        return next(edge.dst for edge in self._graph.out(node) if naming.parse(edge.dst).kind == "router")

    def _walk(self, src: str, dst: str) -> list[str]:
        """M3.1: the routers from `src` to `dst` of the same cube."""
        cube, a, b = src.rpartition(".")[0], naming.parse(src), naming.parse(dst)
        start, end = (a.row, a.col), (b.row, b.col)

        def name(at: At) -> str:
            return f"{cube}.r{at[0]}c{at[1]}"

        for corner in ((a.row, b.col), (b.row, a.col)):
            walk = [*_straight(start, corner), *_straight(corner, end)[1:]]
            if all(name(at) in self._nodes for at in walk):
                return [name(at) for at in walk]
        # Breadth first: of the shortest walks, the first in the order of the steps is found first.
        queue, seen = deque([[start]]), {start}
        while queue:
            walk = queue.popleft()
            if walk[-1] == end:
                return [name(at) for at in walk]
            for step_r, step_c in STEPS.values():
                at = walk[-1][0] + step_r, walk[-1][1] + step_c
                if at not in seen and name(at) in self._nodes:
                    seen.add(at)
                    queue.append([*walk, at])
        raise AssertionError("the routers of a cube are connected")


def _side(at: int, to: int, sides: str) -> str:
    return sides[to > at]


def _straight(a: At, b: At) -> list[At]:
    """Return the places from `a` to `b`, which share a row or a column."""
    step = [(to > at) - (to < at) for at, to in zip(a, b, strict=True)]
    length = abs(b[0] - a[0]) + abs(b[1] - a[1])
    return [(a[0] + i * step[0], a[1] + i * step[1]) for i in range(length + 1)]
