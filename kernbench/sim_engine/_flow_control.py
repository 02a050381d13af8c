"""The networks of routers with credits of a machine, and the legs of routes through them; made when first used."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from kernbench._units import FLIT_BYTES
from kernbench.build import CORE, engine
from kernbench.errors import ConfigError
from kernbench.sim_engine._python_core import ARRIVAL
from kernbench.topology import _naming as naming
from kernbench.topology._graph import Clock
from kernbench.topology._mesh import vc_classes

if TYPE_CHECKING or engine() != CORE:
    from kernbench.sim_engine._python_routers import Leg, Routers
else:
    from kernbench.sim_engine._routers import Leg, Routers

if TYPE_CHECKING:
    from kernbench.sim_engine._network import Link, Network

REQUEST, REPLY = 0, 1
_NUMBER_BITS = 40
_SIPS = ""  # the network of the IO chiplets


class FlowControl:
    """The networks of routers with credits of one machine."""

    def __init__(self, network: Network) -> None:
        self._network, self._graph = network, network.graph
        self._networks: dict[str, _RouterNetwork] = {}

    def attach(self, path: Sequence[str], links: tuple[Link, ...], message_class: int) -> list[Leg]:
        """Make the legs of a route through networks of routers with credits."""
        legs, i = [], 0
        while i < len(path):
            name, j = self._network_of(path[i]), i
            while j + 1 < len(path) and name is not None and self._network_of(path[j + 1]) == name:
                j += 1
            if name is not None:
                into, out = links[i - 1] if i else None, links[j] if j < len(links) else None
                leg = self._get(name, path[i]).leg(path[i : j + 1], into, out, message_class, min(j + 1, len(links)))
                for link in links[max(i - 1, 0) : j + 1]:
                    if link.legs is None:
                        link.legs = {}
                if links:
                    legs_of = links[max(i - 1, 0)].legs
                    assert legs_of is not None
                    legs_of[id(links)] = leg
                legs.append(leg)
            i = j + 1
        return legs

    def _network_of(self, node_id: str) -> str | None:
        """Return the name of the network that a node is a router of, None if it is none."""
        kind = self._graph.node(node_id).kind
        if kind not in self._graph.clocks:
            return None
        return _SIPS if kind == "io_noc" else node_id.rpartition(".")[0]

    def _get(self, name: str, node_id: str) -> _RouterNetwork:
        found = self._networks.get(name)
        if found is None:
            node = self._graph.node(node_id)
            found = _RouterNetwork(self._network, self._graph.clocks[node.kind], node.index, name == _SIPS)
            self._networks[name] = found
        return found


class _RouterNetwork:
    """One network: the routers of a cube, or those of all SIPs."""

    def __init__(self, network: Network, clock: Clock, number: int, of_sips: bool) -> None:
        self._network, self._graph, self._clock, self._of_sips = network, network.graph, clock, of_sips
        config = network.graph.config
        self._router = config.system.sip_link.router if of_sips else config.cube.noc.router
        self._classes = (self._graph.sips if of_sips else self._graph.layout).vc_classes
        self._routers = Routers(
            network.core, number, clock.cycle_ps, self._router.vcs, self._router.vc_flits, clock.stages
        )
        self._ports: dict[str, tuple[int, dict[str, int]]] = {}
        self._sources: dict[str, int] = {}

    def leg(self, path: Sequence[str], into: Link | None, out: Link | None, message_class: int, k: int) -> Leg:
        """Make the leg of a route over the routers of `path`, from and to links outside, or from and to a router itself."""
        first = path[0] if into is None else into.src
        source = self._sources.get(f"{first} {path[0]}")
        if source is None:
            number, ports = self._port(path[0])
            if into is None:
                source = self._routers.add_source(number, len(ports), 1, None)
            else:
                source = self._routers.add_source(number, ports[first], self._wire(into.src, path[0]), into)
            self._sources[f"{first} {path[0]}"] = source
        hops = self.hops(path, None if out is None else out.dst, message_class)
        if out is None:
            priority, base, extra_ps = ARRIVAL + 1, self._graph.index(path[-1]) << _NUMBER_BITS, 0
        else:
            wire_ps = self._graph.edge(out.src, out.dst).latency_ps - self._graph.node(out.dst).overhead_ps
            priority, base, extra_ps = out.priority, out.base, out.lat - wire_ps
        return Leg(self._routers, source, message_class, hops, k, priority, base, extra_ps)

    def hops(self, path: Sequence[str], out: str | None, message_class: int) -> list[tuple[int, int, int]]:
        """Return the output at each router, to `out` at the last one, and the range of VCs that may be taken there."""
        hops = []
        low = message_class * self._router.vcs
        for (a, b), vc_class in zip(pairwise(path), self._vc_classes(path, message_class), strict=True):
            self._port(b)
            begin, end = (self._router.vcs * c // self._classes for c in (vc_class, vc_class + 1))
            hops.append((self._port(a)[1][b], low + begin, low + end))
        ports = self._port(path[-1])[1]
        return [*hops, (len(ports) if out is None else ports[out], low, low + self._router.vcs)]

    def _vc_classes(self, path: Sequence[str], message_class: int) -> list[int]:
        """Return the VC class of each step; a reply takes the steps of its request backwards."""
        places = [naming.parse(node_id) for node_id in (path if message_class == REQUEST else path[::-1])]
        if self._of_sips:
            sips = self._graph.sips
            walk = sips.walk([place.sip or 0 for place in places])
            classes = (
                vc_classes(walk, wrapped=sips.wrapped) if sips.topology != "fully_connected" else [0] * (len(path) - 1)
            )
        else:
            classes = vc_classes([(place.row or 0, place.col or 0) for place in places])
        if max(classes, default=0) >= self._classes:
            raise ConfigError(
                [
                    f"the route from {path[0]} to {path[-1]} turns so often that it needs {max(classes) + 1} VC classes, "
                    f"but routes between the parts of this machine need {self._classes}"
                ]
            )
        return classes if message_class == REQUEST else classes[::-1]

    def _port(self, node_id: str) -> tuple[int, dict[str, int]]:
        """Return a router's number, and the port of each neighbour; the port behind the last is the router's own."""
        found = self._ports.get(node_id)
        if found is None:
            near = sorted(self._graph.out(node_id), key=lambda edge: self._network.link(edge.dst, node_id).priority)
            outputs = [(self._wire(node_id, edge.dst), self._network.link(node_id, edge.dst)) for edge in near]
            number = self._routers.add_router(len(near) + 1, [*outputs, (1, None)])
            found = self._ports[node_id] = number, {edge.dst: i for i, edge in enumerate(near)}
            for neighbour in [edge.dst for edge in near]:
                if neighbour in self._ports:
                    other, ports = self._ports[neighbour]
                    self._routers.join(number, found[1][neighbour], other, ports[node_id])
                    self._routers.join(other, ports[node_id], number, found[1][neighbour])
        return found

    def _wire(self, src: str, dst: str) -> int:
        """Return the latency of a link [cycles], without the time of a flit."""
        edge, clock = self._graph.edge(src, dst), self._clock
        service = self._network.link(src, dst).times[FLIT_BYTES]
        whole = edge.latency_ps - self._graph.node(dst).overhead_ps + service
        enters = self._graph.node(src).kind not in self._graph.clocks
        return whole // clock.cycle_ps - clock.cycles(service) + 1 - enters
