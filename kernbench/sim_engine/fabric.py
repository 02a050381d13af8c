"""All links of a machine, and the messages that cross them, in trains of flits or whole.

A message of n bytes is one flit of n bytes (n <= 256) or ceil(n / 256) whole flits. A flit that reaches a link
at t leaves it at max(t, free) + bytes / bandwidth and reaches the next one a latency later: done in order of
arrival, that arithmetic is a FIFO server. Two shortcuts skip events that cannot change the order: flits of a message
move together until something comes between them (`lazy`), and take links ahead (`run_ahead`; see `trains`). Switching
them off changes no result.

With `whole` a message keeps a link even where something does come between its flits, and the link is noted in
`flagged`: results equal those of flits while there is none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from heapq import heappush
from itertools import count, pairwise
from random import Random
from typing import Any, NamedTuple

from kernbench.policy.routing import reverse, router_of
from kernbench.registry import COMPONENTS
from kernbench.sim_engine.clock import ARRIVAL, Callback, Clock
from kernbench.sim_engine.link import COUNT_BITS, HELD, HOP_BITS, Hook, Route
from kernbench.sim_engine.core import Link
from kernbench.sim_engine.trains import Lines, Train
from kernbench.topology.graph import Graph
from kernbench.units import FLIT_BYTES, ServiceTimes, flits

_TRANSIT = ("router", "ucie", "switch", "pcie_ep", "io_noc")


class Hop(NamedTuple):
    """One flit on one link: `key` names its transaction; it waited from `arrival_ps` and was served until `end_ps`."""

    key: int
    link: str
    nbytes: int
    arrival_ps: int
    start_ps: int
    end_ps: int


class Fabric:
    """The links of one machine, made when first used.

    Parameters
    ----------
    graph
        The machine's nodes and edges.
    clock
        The clock that everything runs on.
    run_ahead, lazy
        The two shortcuts.
    trace
        Keep every hop of every flit in `hops`.
    tie_seed
        Permute the ranks by which simultaneous arrivals are ordered, to see how much they decide.
    whole
        Move messages whole.
    """

    def __init__(
        self,
        graph: Graph,
        clock: Clock,
        *,
        run_ahead: bool = True,
        lazy: bool = True,
        trace: bool = False,
        tie_seed: int | None = None,
        whole: bool = False,
    ) -> None:
        self.graph, self.clock, self.lazy = graph, clock, lazy
        self.whole = whole
        self.flagged: dict[str, int] = {}
        self.links: dict[tuple[str, str], Link] = {}
        self.routes: dict[tuple[str, str], Route] = {}
        self.numbers = count(1)
        self.hops: list[Hop] | None = [] if trace else None
        self.rehearsed: dict[Hashable, Any] = {}
        self._router = router_of(graph)
        self.tie_seed = tie_seed
        self._counts: dict[int, list[int]] = {}
        self._behind: dict[str, tuple[int, int, Hook | None]] = {}
        self._times: dict[float, ServiceTimes] = {}
        self.start_train: Callable[..., Any]
        core = self.core = clock.core
        core.whole, core.run_ahead, core.flag = whole, run_ahead, self.flag
        self.start_train, self._make_way, self.told = core.start, core.make_way_, core.told
        self.call_at = core.call_key

    @property
    def reservations(self):
        return self.core.reservations

    @reservations.setter
    def reservations(self, n):
        self.core.reservations = n

    def link(self, src: str, dst: str) -> Link:
        """Return the link from `src` to `dst`, its latency as the node behind it says."""
        link = self.links.get((src, dst))
        if link is None:
            edge = self.graph.edge(src, dst)
            rank = edge.rank if self.tie_seed is None else Random(f"{self.tie_seed}:{src}->{dst}").getrandbits(40)
            times = self._times.get(edge.bw_gbs)
            if times is None:
                times = self._times[edge.bw_gbs] = ServiceTimes(edge.bw_gbs)
            to, extra_ps, hook = self._behind.get(dst) or self._look_behind(dst)
            merges = self._router.merges(src, dst)
            link = self.links[src, dst] = Link(edge, to, extra_ps, rank, hook, merges, times)
        return link

    def into(self, node_id: str, tell: Callable[[Any, Lines, int, int], None]) -> Link:
        """Return the one link into a memory, which hears by `tell` of flits that have come, by `told`."""
        (edge,) = self.graph.out(node_id)
        link = self.link(edge.dst, node_id)
        link.coming, link.tell = deque(), tell
        return link

    def _look_behind(self, node_id: str) -> tuple[int, int, Hook | None]:
        """Return a node's index, what its transit component adds to the latency of links into it, and its hook."""
        node = self.graph.node(node_id)
        found: tuple[int, int, Hook | None] = node.index, 0, None
        if node.kind in _TRANSIT:
            part = COMPONENTS.resolve(node.impl)(node)
            found = node.index, part.latency_ps() - node.overhead_ps, getattr(part, "on_head", None)
        self._behind[node_id] = found
        return found

    def route(self, src: str, dst: str) -> Route:
        """Return the route from `src` to `dst` (cached)."""
        route = self.routes.get((src, dst))
        if route is None:
            route = self._make(self._router.path(src, dst))
            self.routes[src, dst] = route
        return route

    def back(self, route: Route) -> Route:
        """Return the route over the reverse links of `route`: the way of replies, acknowledgements and credits."""
        if route.reply is None:
            path = (route.links[0].src, *(link.dst for link in route.links))
            route.reply = self._make(reverse(path))
            self.routes[f"reply {path[0]}", path[-1]] = route.reply
        return route.reply

    def _make(self, path: tuple[str, ...]) -> Route:
        known, make = self.links.get, self.link
        links = tuple([known(pair) or make(*pair) for pair in pairwise(path)])
        links[0].merges = True
        start: Any
        if self.hops is not None or any(link.hook for link in links):
            start = self._start_observed
        elif self.lazy or self.whole:
            start = self.start_train
        else:
            start = self._start_singly
        node = self.graph.index(path[0])
        route = Route(links, node << COUNT_BITS + HOP_BITS, self._counts.setdefault(node, [0]), start)
        route.direct = start is self.start_train
        return route

    def pairs(self, route: Route) -> bool:
        """Return whether messages over `route` cross just two links each way, in this run's own way and unobserved."""
        return False

    def carries_whole(self, route: Route) -> bool:
        """Return whether messages go over `route` whole."""
        return self.whole and route.start == self.start_train

    def send(self, route: Route, nbytes: int, key: int, fn: Callback, arg: object, each: bool = False) -> None:
        """Send `nbytes` (>= 0) now; `fn(arg)` is called when the last byte has arrived, `told` tells of `each` flit."""
        route.nbytes += nbytes
        if nbytes > FLIT_BYTES:
            self.train(route, flits(nbytes), FLIT_BYTES, key, fn, arg, each)
        else:
            self.train(route, 1, nbytes, key, fn, arg, each)

    def train(
        self, route: Route, count: int, size: int, key: int, fn: Callback | None, arg: object, each: bool = False
    ) -> None:
        """Put `count` flits of `size` bytes on the first link now; `fn` hears of the last, `told` of `each` one."""
        if size == FLIT_BYTES:
            route.flits += count
        elif size in route.small:
            route.small[size] += count
        else:
            route.small[size] = count
        route.start(route, count, size, key, fn, arg, each)

    def _start_singly(
        self, route: Route, count: int, size: int, key: int, fn: Callback | None, arg: object, each: bool
    ) -> None:
        for left in range(count - 1, -1, -1):
            self.start_train(route, 1, size, key, None if left else fn, arg, each)

    def _start_observed(
        self, route: Route, count: int, size: int, key: int, fn: Callback | None, arg: object, each: bool
    ) -> None:
        for left in range(count - 1, -1, -1):
            train = Train(route.links, 0, 1, size, (), key, None if left else fn, arg, each)
            self._observed([route, 0, size, key, train, 0])

    def flag(self, link: Link) -> None:
        """Note that a head has reached `link` before the last flit of the message before it."""
        self.flagged[link.name] = self.flagged.get(link.name, 0) + 1

    def _observed(self, flit: list[Any]) -> None:
        """Move a flit over one link, with hop records and with parts that see every head."""
        route, k, size, key, train, number = flit
        t = self.clock._now
        link = route.links[k]
        came_over, order = (route.links[k - 1].priority, route.links[k - 1].base + number) if k else (ARRIVAL, key)
        if link.free >= HELD:
            link.held((t, came_over, order))
        if k:
            self._make_way(link, t, came_over, order)
        link.ahead, link.last = None, -1
        start = max(t, link.free)
        end = link.free = start + link.times[size]
        self.reservations += 1
        if self.hops is not None:
            self.hops.append(Hop(key, link.name, size, t, start, end))
        t = end + link.lat
        if link.hook is not None:
            t += link.hook(size, t)
        k += 1
        number = flit[5] = next(self.numbers)
        order = link.base + number
        if k < len(route.links):
            flit[1] = k
            heappush(self.clock.heap, (t, link.priority, order, (self._observed, flit)))
            return
        if train.each:
            link.coming.append((order, t, train.arg))
        if train.fn is not None:
            heappush(self.clock.heap, (t, link.priority, order, (self._land, (link, order, train))))

