"""The definition of time in a network of routers with virtual channels and credits, as in docs/model.md, M4.14.

A router has an input for each link into it, with a buffer of `depth` flits for each virtual channel (VC), and an output
for each link out of it. A packet takes four stages: its route is known after `routing` cycles, a VC of the next buffer
is allocated to it, each flit is allocated the switch, and crosses it. A flit leaves only with a credit, a free place in
the next buffer; credits return over the reverse link. Both allocations are separable, output first, with the pointers
of iSLIP and one iteration.

All events are at whole cycles. A router's actions in a cycle depend only on arrivals up to then, and affect others
only in later cycles: the order in which routers are visited has no effect.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

CLASSES = 2  # requests and replies use separate VCs
_IDLE, _WAITS, _ACTIVE = range(3)


class _Arbiter(Protocol):
    """Notified when no flit waits in front of a network."""

    def schedule(self) -> None: ...


class Flit(Protocol):
    """A flit in transit; it reaches link `k` next."""

    size: int
    k: int


class NetworkLink(Protocol):
    """A link that enters, leaves, or is inside a network."""

    src: str
    dst: str
    priority: int
    base: int
    lat: int
    pending: int
    arbiter: _Arbiter | None
    legs: dict[int, Any] | None


class _Core(Protocol):
    """The calendar, and the bookkeeping of links; see `_python_core.Core`."""

    now: int

    def call_after_turns(self, t: int, order: int, fn: Callable[[int], None], arg: int) -> None: ...

    def arrive_at(self, t: int, priority: int, base: int, flit: Any) -> None: ...

    def served(self, link: Any, flit: Any, arrival: int, start: int, least_ps: int) -> int: ...


class _Held:
    """A flit inside the network, at router `hop` of its leg, in its present buffer since `since_ps`."""

    __slots__ = ("first", "flit", "hop", "last", "leg", "number", "since_ps")

    def __init__(self, flit: Flit, leg: Leg, number: int, first: bool, last: bool, now: int) -> None:
        self.flit, self.leg, self.number, self.first, self.last, self.since_ps = flit, leg, number, first, last, now
        self.hop = 0


class _Vc:
    """A virtual channel of an input: its flits, and the output and VC allocated to its packet."""

    __slots__ = ("accept", "flits", "out", "out_vc", "ready", "state")

    def __init__(self) -> None:
        self.flits: deque[_Held] = deque()
        self.state, self.ready, self.out, self.out_vc, self.accept = _IDLE, 0, 0, 0, 0


class _Input:
    __slots__ = ("accept", "next_vc", "router", "upstream", "vcs")

    def __init__(self, router: _Router, n: int) -> None:
        self.router = router
        self.vcs = [_Vc() for _ in range(n)]
        self.upstream: _Sender | None = None
        self.next_vc = self.accept = 0


class _Sender:
    """The sender into a buffer: an output of a router, or a source. `wire` is the latency of its link [cycles]."""

    __slots__ = ("credits", "free", "into", "link", "wire")

    def __init__(self, n: int, depth: int, wire: int, link: NetworkLink) -> None:
        self.credits = [depth] * n
        self.free, self.wire, self.link = 0, wire, link
        self.into: _Input | None = None


class _Output(_Sender):
    __slots__ = ("grant", "taken", "vc_grants")

    def __init__(self, n: int, depth: int, wire: int, link: NetworkLink) -> None:
        super().__init__(n, depth, wire, link)
        self.taken, self.vc_grants, self.grant = [False] * n, [0] * n, 0


class _Source(_Sender):
    """Unbounded injection queues, one per class, in front of a router; sends a flit per cycle."""

    __slots__ = ("last_class", "queues", "vcs")

    def __init__(self, n: int, depth: int, wire: int, link: NetworkLink) -> None:
        super().__init__(n, depth, wire, link)
        self.queues: tuple[deque[_Held], ...] = tuple(deque() for _ in range(CLASSES))
        self.vcs, self.last_class = [n // CLASSES * c for c in range(CLASSES)], CLASSES - 1


class _Router:
    __slots__ = ("inputs", "outputs")

    def __init__(self) -> None:
        self.inputs: list[_Input] = []
        self.outputs: list[_Output] = []


class Leg:
    """The path of one route through the network: an output and a range of VCs at each router.

    Flits leave in order of entry unless `ordered` is cleared. `packet_flits` of them form a packet.
    """

    def __init__(
        self, routers: Routers, source: int, message_class: int, hops: Sequence[tuple[int, int, int]], k: int,
        priority: int, base: int, extra_ps: int,
    ) -> None:  # fmt: skip
        self.routers, self.source, self.message_class = routers, routers.sources[source], message_class
        self.hops, self.k, self.priority, self.base, self.extra_ps = tuple(hops), k, priority, base, extra_ps
        self.ordered, self.packet_flits = True, 1
        self.entered = self.left = self.last_ps = 0
        self.early: dict[int, tuple[int, Flit]] = {}

    def landed(self, flit: Flit) -> None:
        """Enqueue a flit at the source."""
        i = self.entered % self.packet_flits
        held = _Held(flit, self, self.entered, i == 0, i == self.packet_flits - 1, self.routers.core.now)
        self.entered += 1
        self.source.queues[self.message_class].append(held)
        self.source.link.pending += 1
        self.routers.wake(self.source)

    def leave(self, held: _Held, t_ps: int) -> None:
        """Deliver a flit at `t_ps`, or when all earlier flits of the leg have been delivered."""
        t_ps += self.extra_ps
        if not self.ordered:
            self.routers.deliver(self, held.flit, t_ps)
            return
        self.early[held.number] = t_ps, held.flit
        while self.left in self.early:
            t_ps, flit = self.early.pop(self.left)
            self.last_ps = max(self.last_ps, t_ps)
            self.left += 1
            self.routers.deliver(self, flit, self.last_ps)


class Routers:
    """The routers of one network.

    Networks are processed in the order of `number` within an instant. `cycle_ps` is the time of a whole flit on a link
    between routers. Each class of messages has `vcs` virtual channels with buffers of `depth` flits. `stages` are the
    cycles of route computation, VC allocation, switch allocation and switch traversal.
    """

    def __init__(self, core: _Core, number: int, cycle_ps: int, vcs: int, depth: int, stages: Sequence[int]) -> None:
        self.core, self.number, self.cycle_ps, self.vcs, self.depth = core, number, cycle_ps, vcs, depth
        self.n = CLASSES * vcs
        self.routing, self.vc_allocation, self.switch_allocation, self.traversal = stages
        self.routers: list[_Router] = []
        self.sources: list[_Source] = []
        self._busy: dict[_Router, set[tuple[int, int]]] = {}
        self._sending: dict[_Source, None] = {}
        self._arriving: dict[int, list[tuple[_Input, int, _Held]]] = {}
        self._returning: dict[int, list[tuple[_Sender, int]]] = {}
        self._scheduled: set[int] = set()

    def add_router(self, inputs: int, outputs: Iterable[tuple[int, NetworkLink]]) -> int:
        """Add a router; `outputs` are (link latency [cycles], link). Return its number."""
        router = _Router()
        router.inputs = [_Input(router, self.n) for _ in range(inputs)]
        router.outputs = [_Output(self.n, self.depth, wire, link) for wire, link in outputs]
        self.routers.append(router)
        return len(self.routers) - 1

    def join(self, src: int, output: int, dst: int, into: int) -> None:
        """Connect an output of a router to an input of another."""
        sender, to = self.routers[src].outputs[output], self.routers[dst].inputs[into]
        sender.into, to.upstream = to, sender

    def add_source(self, router: int, into: int, wire: int, link: NetworkLink) -> int:
        """Add the source of an input of a router; return its number."""
        source, to = _Source(self.n, self.depth, wire, link), self.routers[router].inputs[into]
        source.into, to.upstream = to, source
        self.sources.append(source)
        return len(self.sources) - 1

    def wake(self, source: _Source) -> None:
        """Activate a source from the next cycle on, which may begin at this instant."""
        self._sending[source] = None
        self._schedule(-(-self.core.now // self.cycle_ps))

    def _schedule(self, t: int) -> None:
        if t not in self._scheduled:
            self._scheduled.add(t)
            self.core.call_after_turns(t * self.cycle_ps, self.number, self._cycle, t)

    def _cycle(self, t: int) -> None:
        """Simulate a cycle, after everything else of this instant."""
        self._scheduled.remove(t)
        for into, vc, held in self._arriving.pop(t, ()):
            self._take(into, vc, held, t)
        for sender, vc in self._returning.pop(t, ()):
            sender.credits[vc] += 1
        for router in list(self._busy):
            self._allocate_vcs(router, t)
            self._allocate_switch(router, t)
            if not self._busy[router]:
                del self._busy[router]
        for source in list(self._sending):
            self._send_from(source, t)
        if self._busy or self._sending:
            self._schedule(t + 1)
        elif self._arriving or self._returning:
            self._schedule(min((*self._arriving, *self._returning)))

    def _take(self, into: _Input, vc: int, held: _Held, t: int) -> None:
        """Buffer a flit that has arrived."""
        channel = into.vcs[vc]
        channel.flits.append(held)
        held.since_ps = t * self.cycle_ps
        if channel.state == _IDLE:
            channel.state, channel.ready, channel.out = _WAITS, t + self.routing, held.leg.hops[held.hop][0]
        self._busy.setdefault(into.router, set()).add((into.router.inputs.index(into), vc))

    def _allocate_vcs(self, router: _Router, t: int) -> None:
        """Allocate free VCs of the next buffers to waiting packets, by one iteration of iSLIP."""
        n, inputs, outputs = self.n, router.inputs, router.outputs
        waiting = [
            (q, v)
            for q, v in sorted(self._busy[router])
            if inputs[q].vcs[v].state == _WAITS and inputs[q].vcs[v].ready <= t
        ]
        granted: dict[tuple[int, int], tuple[int, int]] = {}  # by output VC: the input VC that it is granted to
        for q, v in waiting:
            held = inputs[q].vcs[v].flits[0]
            o, low, high = held.leg.hops[held.hop]
            output = outputs[o]
            for out_vc in range(low, high):
                if output.taken[out_vc]:
                    continue
                pointer, best = output.vc_grants[out_vc], granted.get((o, out_vc))
                turn = (q * n + v - pointer) % (len(inputs) * n)
                if best is None or turn < (best[0] * n + best[1] - pointer) % (len(inputs) * n):
                    granted[o, out_vc] = q, v
        for q, v in waiting:
            channel = inputs[q].vcs[v]
            offered = [place for place, winner in granted.items() if winner == (q, v)]
            if offered:
                o, out_vc = min(offered, key=lambda at: (at[0] * n + at[1] - channel.accept) % (len(outputs) * n))
                channel.state, channel.ready, channel.out_vc = _ACTIVE, t + self.vc_allocation, out_vc
                channel.accept = (o * n + out_vc + 1) % (len(outputs) * n)
                outputs[o].taken[out_vc] = True
                outputs[o].vc_grants[out_vc] = (q * n + v + 1) % (len(inputs) * n)

    def _allocate_switch(self, router: _Router, t: int) -> None:
        """Match inputs to outputs for a cycle, by one iteration of iSLIP."""
        inputs, outputs = router.inputs, router.outputs
        asked: dict[tuple[int, int], int] = {}  # by (input, output): the VC that requests it
        for q, v in sorted(self._busy[router]):
            channel = inputs[q].vcs[v]
            if channel.state != _ACTIVE or channel.ready > t:
                continue
            o, output = channel.out, outputs[channel.out]
            if output.free > t or not output.credits[channel.out_vc]:
                continue
            best, pointer = asked.get((q, o)), inputs[q].next_vc
            if best is None or (v - pointer) % self.n < (best - pointer) % self.n:
                asked[q, o] = v
        granted: dict[int, int] = {}
        for q, o in asked:
            pointer = outputs[o].grant
            if o not in granted or (q - pointer) % len(inputs) < (granted[o] - pointer) % len(inputs):
                granted[o] = q
        for q in sorted(set(granted.values())):
            offered = [o for o, winner in granted.items() if winner == q]
            o = min(offered, key=lambda o: (o - inputs[q].accept) % len(outputs))
            v = asked[q, o]
            outputs[o].grant, inputs[q].accept = (q + 1) % len(inputs), (o + 1) % len(outputs)
            inputs[q].next_vc = (v + 1) % self.n
            self._send(router, q, v, t)

    def _send(self, router: _Router, q: int, v: int, t: int) -> None:
        """Send the first flit of a VC through the switch, and return its credit."""
        source = router.inputs[q]
        channel = source.vcs[v]
        held, output = channel.flits.popleft(), router.outputs[channel.out]
        upstream = source.upstream
        assert upstream is not None
        self._returning.setdefault(t + 1 + upstream.wire, []).append((upstream, v))
        output.credits[channel.out_vc] -= 1
        arrival = t + self.switch_allocation + self.traversal + output.wire
        arrival += self._serve(output, held, t, self.routing + self.vc_allocation)
        held.hop += 1
        if output.into is not None:
            self._arriving.setdefault(arrival, []).append((output.into, channel.out_vc, held))
        else:
            self._returning.setdefault(arrival + 1 + output.wire, []).append((output, channel.out_vc))
            held.leg.leave(held, arrival * self.cycle_ps)
        if held.last:
            output.taken[channel.out_vc] = False
            channel.state = _IDLE
            if channel.flits:
                first = channel.flits[0]
                channel.state, channel.ready, channel.out = _WAITS, t + 1 + self.routing, first.leg.hops[first.hop][0]
        if not channel.flits:
            self._busy[router].discard((q, v))

    def _serve(self, sender: _Sender, held: _Held, t: int, least: int) -> int:
        """Occupy a link with a flit from cycle `t` on; return the cycles beyond the first.

        The flit has spent `least` cycles or more in the router.
        """
        ps = self.core.served(sender.link, held.flit, held.since_ps, t * self.cycle_ps, least * self.cycle_ps)
        cycles = max(1, -(-ps // self.cycle_ps))
        sender.free = t + cycles
        return cycles - 1

    def _send_from(self, source: _Source, t: int) -> None:
        """Send one flit of a source if it has a credit; classes alternate."""
        if source.free > t:
            return
        each = self.vcs
        for i in range(1, CLASSES + 1):
            c = (source.last_class + i) % CLASSES
            if not source.queues[c]:
                continue
            held, vc = source.queues[c][0], source.vcs[c]
            if held.first:
                low = each * c
                turns = [low + (vc - low + j) % each for j in range(1, each + 1)]
                vc = next((turn for turn in turns if source.credits[turn]), -1)
            if vc < 0 or not source.credits[vc]:
                continue
            source.queues[c].popleft()
            source.vcs[c], source.last_class = vc, c
            source.credits[vc] -= 1
            arrival = t + 1 + source.wire + self._serve(source, held, t, 0)
            assert source.into is not None
            self._arriving.setdefault(arrival, []).append((source.into, vc, held))
            source.link.pending -= 1
            if not source.link.pending and source.link.arbiter is not None:
                source.link.arbiter.schedule()
            break
        if not any(source.queues):
            del self._sending[source]

    def deliver(self, leg: Leg, flit: Flit, t_ps: int) -> None:
        flit.k = leg.k
        self.core.arrive_at(t_ps, leg.priority, leg.base, flit)
