"""The links and routes of a machine, and its clock: those of the compiled core, or of its definition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Any

import simpy
from simpy.core import EmptySchedule
from simpy.events import NORMAL, Event, Initialize, Timeout

from kernbench._engine_selection import CORE, engine
from kernbench._registry import COMPONENTS
from kernbench._units import ACK_BYTES, ServiceTimes, service_times
from kernbench.errors import ArgumentError
from kernbench.policy._routing import Part, reverse, router_of
from kernbench.sim_engine._python_core import Hop
from kernbench.sim_engine._router_networks import REPLY, REQUEST, RouterNetworks
from kernbench.sim_engine._transaction import COUNT_BITS, Memory, Reply, Route, Transaction
from kernbench.topology._graph import Graph, Node

ENGINE = engine()

if TYPE_CHECKING:
    from kernbench.sim_engine._memory_store import MemoryStore

if TYPE_CHECKING or ENGINE != CORE:
    from kernbench.sim_engine._python_core import BULK, QUEUE, Arbiter, Core, HbmSlice, Link
else:
    from kernbench.sim_engine._core import BULK, QUEUE, Arbiter, Core, HbmSlice, Link

__all__ = ["Arbiter", "BULK", "Clock", "Core", "ENGINE", "HbmSlice", "Hop", "Link", "Network", "QUEUE"]  # noqa: RUF022  as a test sorts

_Callback = Callable[[Any], None]
_Hook = Callable[[int, int], int]

_TRANSIT = ("router", "ucie", "switch", "pcie_ep", "io_noc", "sip_switch", "nic", "nic_switch")


def _lane(node_id: str) -> int:
    """Lane of a node: each SIP has one, and everything between SIPs, the host included, has lane 0."""
    sip, _, rest = node_id.partition(".")
    return int(sip[3:]) + 1 if sip[:3] == "sip" and rest else 0


class Network:
    """The links and routes of one machine, created on first use."""

    def __init__(self, graph: Graph, core: Core, *, trace: bool = False, tie_seed: int | None = None) -> None:
        self.graph, self.core, self.tie_seed = graph, core, tie_seed
        self.flit_bytes, self.command_bytes = graph.config.system.flit_bytes, graph.config.system.command_bytes
        self.links: dict[tuple[str, str], Link] = {}
        self.routes: list[Route] = []
        self._by_ends: dict[tuple[str, str], Route] = {}
        self._router = router_of(graph)
        self._there: dict[Part, tuple[Link, ...]] = {}
        self._back: dict[Part, tuple[Link, ...]] = {}
        self._first: dict[int, Route] = {}
        self._hooks: dict[str, tuple[int, _Hook]] = {}
        self._kinds: dict[int, tuple[bool, ServiceTimes]] = {}  # of links, by the edge that equal cubes share
        self.routers = None
        if graph.clocks:
            self.routers = RouterNetworks(core, graph, self.link)
            core.credits = True
        self._names: tuple[str, ...] = ()
        self._split = False
        if trace:
            core.hops = []
        elif graph.config.n_sips > 1 and not core.live and not graph.clocks:
            crossing = [edge for edge in graph.trunk() if _lane(edge.src) != _lane(edge.dst)]
            ahead_ps = min(edge.latency_ps + self._look_behind(graph.node(edge.dst))[0] for edge in crossing)
            if ahead_ps > 0:
                self._split = True
                core.split(graph.config.n_sips + 1, ahead_ps)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the links so far; the identical tuple while no link is added."""
        if len(self._names) != len(self.links):
            self._names = tuple([link.name for link in self.links.values()])
        return self._names

    @property
    def hops(self) -> list[Hop] | None:
        """Every hop of every flit so far; None without `trace`."""
        return self.core.hops

    def link(self, src: str, dst: str) -> Link:
        """Get a link, created on first use; its latency includes that of the node behind it."""
        link = self.links.get((src, dst))
        if link is None:
            like, node = self.graph.like(src, dst), self.graph.node(dst)
            rank = like.rank if self.tie_seed is None else Random(f"{self.tie_seed}:{src}->{dst}").getrandbits(40)
            kind = self._kinds.get(id(like))
            if kind is None:
                times = service_times(like.bw_gbs, like.header_bytes)
                kind = self._kinds[id(like)] = self._router.merges(src, dst), times
            behind = self._look_behind(node)
            lanes = (_lane(src), _lane(dst)) if self._split else (0, 0)
            link = Link(src, dst, like, node.index, rank, *behind, *kind, self.flit_bytes, len(self.links), lanes)
            self.links[src, dst] = link
        return link

    def into(self, node_id: str) -> Link:
        """Get the only link into a memory."""
        (edge,) = self.graph.out(node_id)
        return self.link(edge.dst, node_id)

    def _look_behind(self, node: Node) -> tuple[int, _Hook | None]:
        """Latency that a node's transit component adds to links into it [ps], and its hook."""
        if node.kind not in _TRANSIT:
            return 0, None
        if node.id in self._hooks:
            return self._hooks[node.id]
        part = COMPONENTS.resolve(node.impl)(node)
        extra_ps, hook = part.latency_ps() - node.overhead_ps, getattr(part, "on_head", None)
        if hook is not None:  # the links into the node share its state
            self._hooks[node.id] = extra_ps, hook
        return extra_ps, hook

    def route(self, src: str, dst: str) -> Route:
        """Route of the next message, cached; drawn from equally long routes if there are several."""
        route = self._by_ends.get((src, dst))
        if route is None:
            alternatives = [self._make(parts) for parts in self._router.ways(src, dst)]
            if len(alternatives) > 1:
                for each in alternatives:
                    each.alternatives = tuple(alternatives)
            route = self._by_ends[src, dst] = alternatives[0]
        return route.drawn()

    def back(self, route: Route) -> Route:
        """Reverse route, for replies, acknowledgements and credits; cached."""
        if route.reply is None:
            route.reply = self._make(route.parts, REPLY)
            if route.alternatives:
                route.reply.alternatives = tuple([self.back(each) for each in route.alternatives])
        return route.reply

    def _make(self, parts: Sequence[Part], message_class: int = REQUEST) -> Route:
        found: list[Link] = []
        for part in parts if message_class == REQUEST else reversed(parts):
            found += self._links_of(part, message_class)
        links = tuple(found)
        links[0].merges = True
        if self.routers is not None:
            self.routers.attach((links[0].src, *[link.dst for link in links]), links, message_class)
        node = self.graph.index(links[0].src)
        route = Route(links, node << COUNT_BITS, self._first.get(node), self.flit_bytes, parts)
        self._first.setdefault(node, route)
        self.routes.append(route)
        return route

    def _links_of(self, part: Part, message_class: int) -> tuple[Link, ...]:
        """Links along a part, or back."""
        known = self._there if message_class == REQUEST else self._back
        links = known.get(part)
        if links is None:
            nodes = part.nodes if message_class == REQUEST else reverse(part.nodes)
            links = known[part] = tuple([self.link(*ends) for ends in pairwise(nodes)])
        return links

    def send(self, route: Route, nbytes: int, key: int, fn: _Callback, arg: object, each: bool = False) -> None:
        """Send `nbytes` (>= 0) now; `fn(arg)` is called when the last byte has arrived."""
        n = route.count(nbytes)
        self.core.put(route.links, n, min(nbytes, route.flit_bytes), key, fn, arg, each)

    def read(self, txn: Transaction, route: Route, memory: Memory) -> None:
        """Send the command of a read over `route`."""
        self.begin(txn, route)
        self.send(route, self.command_bytes, txn.key, memory.on_read, txn)

    def write(self, txn: Transaction, route: Route, memory: Memory) -> None:
        """Send the data of a write over `route`."""
        self.begin(txn, route)
        self.send(route, txn.nbytes, txn.key, memory.on_write, txn, memory.by_flit)

    def begin(self, txn: Transaction, route: Route) -> None:
        """Prepare a transaction over `route`, which is sent now or later."""
        txn.back = self.back(route)
        txn.key = route.key()
        if txn.number >= 0 and self.core.waits is not None:
            self.core.waits.follow(txn.key)

    def train(self, route: Route, n: int, size: int, key: int, fn: _Callback | None, arg: object) -> None:
        """Send `n` flits of `size` bytes now; `fn(arg)` is called when the last one has arrived."""
        route.count_flits(n, size)
        self.core.put(route.links, n, size, key, fn, arg)

    def reply(self, reply: Reply, memory: MemoryStore | None) -> None:
        """Send the flits of a read that are ready; the data are those of `memory` when the last one leaves."""
        n, txn = reply.ready(), reply.txn
        if not n:
            return
        last, size = reply.sent == reply.flits, min(txn.nbytes, txn.back.flit_bytes)
        if last and memory is not None and txn.pieces:
            txn.data = memory.peek(txn.pieces)
        self.train(txn.back, n, size, txn.key, txn.fn if last else None, txn if last else None)

    def acknowledge(self, txn: Transaction) -> None:
        """Send the acknowledgement of a write; one that is posted ends here."""
        if txn.posted:
            txn.fn(txn)
        else:
            self.send(txn.back, ACK_BYTES, txn.key, txn.fn, txn)


class Clock(simpy.Environment):
    """A `simpy.Environment` in ps whose events share one calendar with the flits and callbacks of `core`.

    A user's processes run on it next to the machine, with either core: `env.process(refresh(env))`, which waits by
    `yield env.timeout(3_900_000)`. `timeouts` counts pending timeouts.
    """

    def __init__(self) -> None:
        self.core = Core()
        self.timeouts = 0
        super().__init__(0)
        self.call_at, self.call_last = self.core.call_at, self.core.call_last

    @property
    def _now(self) -> int:
        return self.core.now

    @_now.setter
    def _now(self, t: int) -> None:
        assert t == self.core.now  # SimPy sets the start time only; the core moves the clock

    @property
    def events(self) -> int:
        return self.core.events

    def schedule(self, event: Event, priority: int = NORMAL, delay: float = 0) -> None:
        """Process `event` after `delay` [ps]."""
        ps = int(delay)
        if ps != delay:
            raise ArgumentError(f"a delay of {delay!r}: the clock counts whole picoseconds; use round({delay!r})")
        if isinstance(event, Initialize):  # a user's process, which may look at everything
            self.core.couple(1)
        if isinstance(event, Timeout) and event.callbacks is not None:
            self.timeouts += 1
            event.callbacks.append(self._elapsed)
        self.core.event_at(self.core.now + ps, int(priority), event)

    def _elapsed(self, _: Event) -> None:
        self.timeouts -= 1

    def peek(self) -> float:
        """Time of the next calendar entry [ps], infinity if there is none."""
        return self.core.peek()

    def timer(self, t: int, value: object = None) -> Event:
        """Create an event that succeeds with `value` at time `t` [ps]."""
        event = Event(self)
        event._ok, event._value = True, value
        self.core.event_at(t, NORMAL, event)
        return event

    def step(self) -> None:
        if not len(self.core):
            raise EmptySchedule
        self.core.drain(1)
