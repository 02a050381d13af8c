"""Where the time of one move over the fabric went: latency and bandwidth of each link, and waiting on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from kernbench.analysis.causes import Causes
from kernbench.analysis.records import LinkTable
from kernbench.units import FLIT_BYTES, flits, serialization_ps


@dataclass(frozen=True, slots=True)
class Part:
    """A share of a step's time: what it was spent on, and the component or link it was spent at."""

    kind: str
    resource: str
    ps: int


class Ways:
    """The routes of one run, and what crossing them costs."""

    def __init__(self, causes: Causes, links: LinkTable) -> None:
        self._causes = causes
        self._busy = dict(zip(links.names, links.busy_ps.tolist(), strict=True))

    def ends(self, route: int) -> tuple[str, str]:
        """Return the nodes at the beginning and the end of a route."""
        nodes, path = self._causes.nodes, self._causes.routes[route]
        return nodes[path[0]], nodes[path[-1]]

    def links(self, route: int) -> list[str]:
        """Return the names of a route's links, in both directions."""
        path = self._causes.routes[route]
        return [self._name(a, b) for way in (path, path[::-1]) for a, b in pairwise(way)]

    def rate_gbs(self, route: int) -> float:
        """Return the bandwidth of the slowest link of a route."""
        return min(bw for _, bw in self._bandwidths(self._causes.routes[route]))

    def parts(self, route: int, nbytes: int, ps: int, *, reverse: bool = False) -> list[Part]:
        """Return the parts of the `ps` that `nbytes` took over a route (or its reverse); they sum to `ps`.

        Latencies and a flit's time on each link come first, then the rest of the bytes on the slowest link; what
        is left is queueing, of which the log does not say where: it goes to the link that was busiest.
        """
        path = self._causes.routes[route]
        if reverse:
            path = path[::-1]
        rates = self._bandwidths(path)
        times = [(name, serialization_ps(min(nbytes, FLIT_BYTES), bw)) for name, bw in rates]
        slowest = max(times, key=lambda x: x[1])
        wanted = []
        for a, b in pairwise(path):
            wire, node, _ = self._causes.links[a, b]
            wanted += [("wire", self._name(a, b), wire), ("nodes", self._causes.nodes[b], node)]
        wanted += [("fill", name, t) for name, t in times if name != slowest[0]]
        wanted.append(("serialization", slowest[0], slowest[1] * flits(nbytes)))
        found = []
        for kind, resource, want in wanted:
            share = min(want, ps)
            ps -= share
            if share:
                found.append(Part(kind, resource, share))
        if ps:
            busiest = max((name for name, _ in rates), key=lambda name: self._busy.get(name, 0))
            found.append(Part("queueing", busiest, ps))
        return found

    def _bandwidths(self, path: Sequence[int]) -> list[tuple[str, float]]:
        return [(self._name(a, b), self._causes.links[a, b][2]) for a, b in pairwise(path)]

    def _name(self, a: int, b: int) -> str:
        return f"{self._causes.nodes[a]}->{self._causes.nodes[b]}"
