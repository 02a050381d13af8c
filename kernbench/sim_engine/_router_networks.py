"""The credit-based router networks of a machine, and the legs of routes through them; created on first use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from kernbench.errors import ArgumentError, ConfigError
from kernbench.sim_engine._routers import Leg, Routers
from kernbench.topology import _naming as naming
from kernbench.topology._graph import Graph, RouterClock

if TYPE_CHECKING:
    from kernbench.sim_engine._network import Link

REQUEST, REPLY = 0, 1

LinkOf = Callable[[str, str], Any]
_SIPS = ""  # the network of the IO chiplets and of the switches between them


class RouterNetworks:
    """The credit-based router networks of one machine; `link` returns the link between two nodes."""

    def __init__(self, core: Any, graph: Graph, link: LinkOf) -> None:
        self._core, self._graph, self._link = core, graph, link
        self._networks: dict[str, RouterNetwork] = {}

    def attach(self, path: Sequence[str], links: tuple[Any, ...], message_class: int) -> list[Leg]:
        """Create the legs of a route; a flit looks its leg up at the link that enters the network."""
        names = [self.name_of(node_id) for node_id in path]
        if names[0] is not None or names[-1] is not None:
            raise ArgumentError(
                f"no route from {path[0]} to {path[-1]}: with credits, a route begins and ends at a part"
            )
        legs, i = [], 0
        for j, (name, following) in enumerate(pairwise(names)):
            if name is None:
                i = j + 1
            elif following != name:
                into, out = links[i - 1], links[j]
                leg = self.network(name, path[i]).leg(path[i : j + 1], into, out, message_class, j + 1)
                if into.legs is None:
                    into.legs = {}
                into.legs[id(links)] = leg
                legs.append(leg)
        return legs

    def name_of(self, node_id: str) -> str | None:
        """Name of the network that a router belongs to; None for a node that is no credit-based router."""
        kind = self._graph.node(node_id).kind
        if kind not in self._graph.clocks:
            return None
        return _SIPS if kind in ("io_noc", "sip_switch") else node_id.rpartition(".")[0]

    def network(self, name: str, node_id: str) -> RouterNetwork:
        """Get the network `name`, created on first use; `node_id` is any of its routers."""
        found = self._networks.get(name)
        if found is None:
            clock, number = self._graph.clocks[self._graph.node(node_id).kind], self._graph.index(node_id)
            found = RouterNetwork(self._core, self._graph, self._link, clock, number, of_sips=name == _SIPS)
            self._networks[name] = found
        return found


class RouterNetwork:
    """One network: the routers of a cube, or those of all SIPs."""

    def __init__(
        self, core: Any, graph: Graph, link: LinkOf, clock: RouterClock, number: int, *, of_sips: bool
    ) -> None:
        self._graph, self._link, self._clock, self._of_sips = graph, link, clock, of_sips
        self._router = graph.config.system.sip_link.router if of_sips else graph.config.cube.noc.router
        self._classes = (graph.sips if of_sips else graph.layout).vc_classes
        self._vcs = self._router.vcs
        self._routers = Routers(core, number, clock.cycle_ps, self._vcs, self._router.vc_flits, clock.stages)
        self._ports: dict[str, tuple[int, dict[str, int]]] = {}
        self._sources: dict[tuple[str, str], int] = {}

    def leg(self, path: Sequence[str], into: Link, out: Link, message_class: int, k: int) -> Leg:
        """Create the leg of a route over the routers of `path`; flits continue at link `k` of the route."""
        source = self._sources.get((into.src, into.dst))
        if source is None:
            number, ports = self._router_of(into.dst)
            source = self._routers.add_source(number, ports[into.src], self._wire(into.src, into.dst), into)
            self._sources[into.src, into.dst] = source
        hops = self.hops(path, out.dst, message_class)
        # The latency of the component at the end: routers count the cycles of the link alone.
        extra_ps = out.lat - self._graph.edge(out.src, out.dst).latency_ps + self._graph.node(out.dst).overhead_ps
        return Leg(self._routers, source, message_class, hops, k, out.priority, out.base, extra_ps)

    def hops(self, path: Sequence[str], out: str, message_class: int) -> list[tuple[int, int, int]]:
        """For each router, (output port, first VC, end of VCs) of the next buffer; the last output leads to `out`."""
        low, hops = message_class * self._vcs, []
        for (a, b), vc_class in zip(pairwise(path), self._vc_classes(path, message_class), strict=True):
            begin, end = (self._vcs * c // self._classes for c in (vc_class, vc_class + 1))
            self._router_of(b)
            hops.append((self._router_of(a)[1][b], low + begin, low + end))
        return [*hops, (self._router_of(path[-1])[1][out], low, low + self._vcs)]

    def _vc_classes(self, path: Sequence[str], message_class: int) -> list[int]:
        """VC class of each hop; a reply traverses the hops of its request in reverse."""
        places = [naming.parse(node_id) for node_id in (path if message_class == REQUEST else path[::-1])]
        sips = self._graph.sips
        if not self._of_sips:
            walk = [(place.row or 0, place.col or 0) for place in places]
            classes = self._graph.layout.classes(walk)
        else:
            classes = sips.classes([place.sip or 0 for place in places])
        need = max(classes, default=0) + 1
        if need > self._classes:
            raise ConfigError(
                [f"the route from {path[0]} to {path[-1]} needs {need} VC classes, this machine has {self._classes}"]
            )
        return classes if message_class == REQUEST else classes[::-1]

    def _router_of(self, node_id: str) -> tuple[int, dict[str, int]]:
        """Find a router's number and its port to each neighbour, by rank of their links; added on first use."""
        found = self._ports.get(node_id)
        if found is None:
            near = sorted(
                (edge.dst for edge in self._graph.out(node_id)), key=lambda other: self._link(other, node_id).priority
            )
            outputs = [(self._wire(node_id, other), self._link(node_id, other)) for other in near]
            number = self._routers.add_router(len(near), outputs)
            found = self._ports[node_id] = number, {other: i for i, other in enumerate(near)}
            for i, other in enumerate(near):
                if other in self._ports:
                    neighbour, ports = self._ports[other]
                    self._routers.join(number, i, neighbour, ports[node_id])
                    self._routers.join(neighbour, ports[node_id], number, i)
        return found

    def _wire(self, src: str, dst: str) -> int:
        """Latency of a link [cycles], without the serialization of a flit."""
        edge, clock = self._graph.edge(src, dst), self._clock
        service = edge.service_ps(self._graph.config.system.flit_bytes)
        whole = edge.latency_ps - self._graph.node(dst).overhead_ps + service
        enters = self._graph.node(src).kind not in self._graph.clocks
        return whole // clock.cycle_ps - clock.cycles(service) + 1 - enters
