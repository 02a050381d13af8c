# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False, nonecheck=False
"""Networks of routers with virtual channels and credits, as in docs/model.md, M4.14.

A router has an input for each link into it, with a buffer of `depth` flits for each virtual channel (VC), and an output
for each link out of it. A packet takes four stages: its route is known after `routing` cycles, a VC of the next buffer
is allocated to it, each flit is allocated the switch, and crosses it. A flit leaves only with a credit, a free place in
the next buffer; credits return over the reverse link. Both allocations are separable, output first, with the pointers
of iSLIP and one iteration.

All events are at whole cycles. A flit that is sent enters the next buffer at once, with the cycle of its arrival, and
its place in the buffer before has the cycle in which the credit arrives: neither needs an event. A router's actions
affect others only in later cycles: the order in which routers are visited has no effect.

VCs, places in buffers, hops of legs and flits are numbers, and arrays hold their state. The compiled core and its
definition share this module: with the types of the `.pxd` file, an array is one of C.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

from kernbench.sim_engine._callee import Callee

_CLASSES = 2  # requests and replies use separate VCs
_NEVER = 1 << 62
_NONE = -1
_IDLE, _WAITS, _ACTIVE = 0, 1, 2


def _longer(values: Any, n: int) -> array[int]:
    """Copy an array, with zeros added, to at least `n` values and at least twice its length."""
    old = memoryview(values)
    copy = array(old.format, old.tobytes())
    copy.extend(array(old.format, [0]) * max(n - len(copy), len(copy)))
    return copy


def _turn(number: int, pointer: int, n: int) -> int:
    """Return how many of `n` come before `number`, in turn from `pointer` on."""
    return number - pointer if number >= pointer else number - pointer + n


class RouterLink:
    """A link, from output `output` of a router or from a source, with the input at its end.

    `server` is the link of the engine, `wire` its latency [cycles], `free` the end of its last service, `vc` the first
    of its VCs. The input is number `into` of `router`, which is None outside the network. `grant` is the pointer of the
    output, `accept` and `next_vc` are those of the input. During an allocation, the output is offered to VC `offered`,
    with `turns` others before it, and the input takes output `taken`.
    """

    def __init__(self, server: Any, output: int, wire: int, vc: int) -> None:
        self.server, self.output, self.wire, self.vc = server, output, wire, vc
        self.router: Router | None = None
        self.free = self.into = self.grant = self.accept = self.next_vc = self.turns = 0
        self.offered = self.taken = _NONE


class Router:
    """A router, whose VCs of outputs begin at `vc`; `n_busy` VCs of its inputs have packets. It acts in cycle `due`."""

    def __init__(self, inputs: int, outputs: list[RouterLink], n: int, vc: int) -> None:
        self.inputs, self.outputs, self.vc, self.listed = inputs, outputs, vc, False
        self.busy, self.n_busy, self.due = array("i", [0] * (inputs * n)), 0, _NEVER


class InjectionQueue:
    """The flits of a source: a queue without limit for each class, from flit `first` to flit `last`.

    It sends a flit per cycle, in cycle `due` next; `vc` is the VC of the flit sent last.
    """

    def __init__(self, output: RouterLink, vcs: int) -> None:
        self.output, self.due, self.last_class = output, _NEVER, _CLASSES - 1
        self.first, self.last = array("i", [_NONE] * _CLASSES), array("i", [_NONE] * _CLASSES)
        self.vc = array("i", [self.output.vc + vcs * c for c in range(_CLASSES)])


class Leg(Callee):
    """The path of one route through the network: an output and a range of VCs at each router.

    Flits leave in order of entry unless `ordered` is cleared. `packet_flits` of them form a packet.
    """

    def __init__(
        self, routers: Routers, source: int, message_class: int, hops: Sequence[tuple[int, int, int]], k: int,
        priority: int, base: int, extra_ps: int,
    ) -> None:  # fmt: skip
        self.routers, self.message_class, self.k = routers, message_class, k
        self.priority, self.base, self.extra_ps = priority, base, extra_ps
        self.ordered, self.packet_flits = True, 1
        self.entered = self.left = self.last_ps = 0
        self.early: dict[int, tuple[int, Any]] = {}
        self.source = self.routers.sources[source]
        self.hop = self.routers.add_hops(self.source.output, hops)

    def landed(self, flit: Any) -> None:
        """Enqueue a flit at the source."""
        position = self.entered % self.packet_flits
        self.routers.enter(self, flit, position == 0, position == self.packet_flits - 1)
        self.entered += 1

    def leave(self, number: int, flit: Any, t_ps: int) -> None:
        """Deliver a flit at `t_ps`, or when all earlier flits of the leg have been delivered."""
        t_ps += self.extra_ps
        if not self.ordered:
            self.deliver(flit, t_ps)
        elif number != self.left:
            self.early[number] = t_ps, flit
        else:
            while True:
                self.last_ps = max(self.last_ps, t_ps)
                self.left += 1
                self.deliver(flit, self.last_ps)
                if self.left not in self.early:
                    break
                t_ps, flit = self.early.pop(self.left)

    def deliver(self, flit: Any, t_ps: int) -> None:
        flit.k = self.k
        self.routers.core.arrive_at(t_ps, self.priority, self.base, flit)


class Routers:
    """The routers of one network.

    Networks are processed in the order of `number` within an instant. `cycle_ps` is the time of a whole flit on a link
    between routers. Each class of messages has `vcs` virtual channels with buffers of `depth` flits. `stages` are the
    cycles of route computation, VC allocation, switch allocation and switch traversal.
    """

    def __init__(self, core: Any, number: int, cycle_ps: int, vcs: int, depth: int, stages: Sequence[int]) -> None:
        self.core, self.number, self.cycle_ps, self.vcs, self.depth = core, number, cycle_ps, vcs, depth
        self.n = _CLASSES * vcs
        self.routing, self.vc_allocation, self.switch_allocation, self.traversal = stages
        self.routers: list[Router] = []
        self.sources: list[InjectionQueue] = []
        self.busy: list[Router] = []
        self.sending: list[InjectionQueue] = []
        self.asked = array("i", [0])  # outputs, during an allocation
        self.scheduled: set[int] = set()
        # Of a VC: its link, and number in the router; the state of its packet, from cycle `ready` on; the hop that it
        # wants, and the VC `out` that it has there; the places of its oldest flit and of the next to arrive.
        self.link_of: list[RouterLink] = []
        self.at, self.state, self.wants, self.out, self.oldest, self.next = [array("i", [0]) for _ in range(6)]
        self.ready = array("q", [0])
        # Of a VC of an output: whether a packet has it, the VC that it is offered to; pointers of VC allocation.
        self.taken, self.offered, self.grant, self.accept = [array("i", [0]) for _ in range(4)]
        # Of a place, `depth` for each VC: its flit, and the cycle from which on it is free, _NEVER while it has one.
        self.flit, self.free = array("i", [0]), array("q", [0])
        # Of a hop: its VCs.
        self.hops, self.low, self.high = 0, array("i", [0]), array("i", [0])
        # Of a flit in the network: its hop; the flit behind it in a source; whether a packet begins or ends with it;
        # when it came to the source, and in which cycle to its buffer; its number in the leg.
        self.flits: list[Any] = []
        self.legs: list[Any] = []
        self.hop, self.following, self.head, self.tail = [array("i", [0]) for _ in range(4)]
        self.entered_ps, self.arrival, self.position = [array("q", [0]) for _ in range(3)]
        self.unused = _NONE

    def add_router(self, inputs: int, outputs: Iterable[tuple[int, Any]]) -> int:
        """Add a router; `outputs` are (link latency [cycles], link). Return its number."""
        first = len(self.link_of)
        links = [self._add_link(i, wire, link) for i, (wire, link) in enumerate(outputs)]
        self.routers.append(Router(inputs, links, self.n, first))
        if len(links) > len(self.asked):
            self.asked = _longer(self.asked, len(links))
        return len(self.routers) - 1

    def join(self, src: int, output: int, dst: int, into: int) -> None:
        """Connect an output of a router to an input of another."""
        router = self.routers[src]
        self._connect(router.outputs[output], self.routers[dst], into)

    def add_source(self, router: int, into: int, wire: int, link: Any) -> int:
        """Add the source of an input of a router; return its number."""
        output = self._add_link(0, wire, link)
        self._connect(output, self.routers[router], into)
        self.sources.append(InjectionQueue(output, self.vcs))
        return len(self.sources) - 1

    def add_hops(self, link: RouterLink, hops: Sequence[tuple[int, int, int]]) -> int:
        """Add hops behind the link of a source, as (output, first VC, end of VCs); return the number of the first."""
        first, end = self.hops, self.hops + len(hops)
        if end > len(self.low):
            self.low, self.high = _longer(self.low, end), _longer(self.high, end)
        for i, (output, low, high) in enumerate(hops):
            router = link.router
            assert router is not None
            link = router.outputs[output]
            self.low[first + i], self.high[first + i] = link.vc + low, link.vc + high
        self.hops = end
        return first

    def _add_link(self, output: int, wire: int, server: Any) -> RouterLink:
        first, end = len(self.link_of), len(self.link_of) + self.n
        if end > len(self.at):
            self.at, self.state, self.ready = _longer(self.at, end), _longer(self.state, end), _longer(self.ready, end)
            self.out, self.oldest, self.next = (
                _longer(self.out, end),
                _longer(self.oldest, end),
                _longer(self.next, end),
            )
            self.taken, self.offered = _longer(self.taken, end), _longer(self.offered, end)
            self.wants, self.grant, self.accept = (
                _longer(self.wants, end),
                _longer(self.grant, end),
                _longer(self.accept, end),
            )
            self.flit, self.free = _longer(self.flit, end * self.depth), _longer(self.free, end * self.depth)
        for vc in range(first, end):
            self.oldest[vc] = self.next[vc] = vc * self.depth
            self.offered[vc] = _NONE
        link = RouterLink(server, output, wire, first)
        self.link_of += [link] * self.n
        return link

    def _connect(self, link: RouterLink, router: Router, into: int) -> None:
        link.router, link.into = router, into
        for v in range(self.n):
            self.at[link.vc + v] = into * self.n + v

    def enter(self, leg: Leg, flit: Any, head: bool, tail: bool) -> None:
        """Enqueue a flit at its source, which acts from the next cycle on; that may begin at this instant."""
        source, c = leg.source, leg.message_class
        i, output = self._number(leg, flit), source.output
        self.hop[i], self.head[i], self.tail[i], self.following[i] = leg.hop, head, tail, _NONE
        self.position[i], self.entered_ps[i] = leg.entered, self.core.now
        if source.first[c] == _NONE:
            source.first[c] = i
        else:
            self.following[source.last[c]] = i
        source.last[c] = i
        output.server.pending += 1
        if source.due == _NEVER:
            source.due = max(output.free, (self.core.now + self.cycle_ps - 1) // self.cycle_ps)
            self.sending.append(source)
            self._schedule(source.due)

    def _number(self, leg: Leg, flit: Any) -> int:
        """Return a number for a flit that enters."""
        i = self.unused
        if i != _NONE:
            self.unused = self.following[i]
            self.legs[i], self.flits[i] = leg, flit
        else:
            i = len(self.flits)
            self.legs.append(leg)
            self.flits.append(flit)
            if i == len(self.hop):
                self.hop, self.following = _longer(self.hop, 0), _longer(self.following, 0)
                self.head, self.tail = _longer(self.head, 0), _longer(self.tail, 0)
                self.position, self.arrival = _longer(self.position, 0), _longer(self.arrival, 0)
                self.entered_ps = _longer(self.entered_ps, 0)
        return i

    def _schedule(self, t: int) -> None:
        if t not in self.scheduled:
            self.scheduled.add(t)
            self.core.call_after_turns(t * self.cycle_ps, self.number, self.cycle, t)

    def cycle(self, t: int) -> None:
        """Simulate a cycle, after everything else of this instant."""
        self.scheduled.remove(t)
        for router in self.busy:  # with those that are added meanwhile, which act later
            if router.due <= t:
                self._allocate_vcs(router, t)
                self._allocate_switch(router, t)
                self._await(router, t)
        for source in self.sending:
            if source.due <= t:
                self._send_from(source, t)
        due, n = _NEVER, 0
        for router in self.busy:
            router.listed = router.due != _NEVER
            if router.listed:
                due = min(due, router.due)
                self.busy[n] = router
                n += 1
        del self.busy[n:]
        n = 0
        for source in self.sending:
            if source.due != _NEVER:
                due = min(due, source.due)
                self.sending[n] = source
                n += 1
        del self.sending[n:]
        if due != _NEVER:
            self._schedule(due)

    def _await(self, router: Router, t: int) -> None:
        """Find the next cycle in which a router acts; VCs without a packet leave its list."""
        due, n = _NEVER, 0
        for i in range(router.n_busy):
            vc = router.busy[i]
            if self.state[vc] != _IDLE:
                router.busy[n] = vc
                n += 1
                due = min(due, max(self.ready[vc], t + 1))
        router.n_busy, router.due = n, due

    def _put(self, i: int, vc: int, arrival: int) -> None:
        """Put a flit into the next place of a VC."""
        place, link = self.next[vc], self.link_of[vc]
        router = link.router
        assert router is not None
        self.next[vc] = self._after(place, vc)
        self.flit[place], self.free[place], self.arrival[i] = i, _NEVER, arrival
        if self.state[vc] == _IDLE:
            router.busy[router.n_busy] = vc
            router.n_busy += 1
            self._begin(i, vc, arrival)
        elif self.ready[vc] == _NEVER:
            self.ready[vc] = arrival
        if not router.listed:
            router.listed = True
            self.busy.append(router)
        router.due = min(router.due, max(self.ready[vc], arrival))

    def _begin(self, i: int, vc: int, t: int) -> None:
        """Compute the route of a packet, which begins with flit `i`, from cycle `t` on."""
        self.state[vc], self.ready[vc], self.wants[vc] = _WAITS, t + self.routing, self.hop[i]

    def _after(self, place: int, vc: int) -> int:
        """Return the place behind one, in the ring of a VC."""
        return place + 1 if place + 1 < (vc + 1) * self.depth else vc * self.depth

    def _allocate_vcs(self, router: Router, t: int) -> None:
        """Allocate free VCs of the next buffers to waiting packets, by one iteration of iSLIP."""
        n_in, n_out, asking = router.inputs * self.n, len(router.outputs) * self.n, False
        for i in range(router.n_busy):
            vc = router.busy[i]
            if self.ready[vc] <= t and self.state[vc] == _WAITS:
                asking, hop = True, self.wants[vc]
                for out in range(self.low[hop], self.high[hop]):
                    if not self.taken[out]:
                        other, pointer = self.offered[out], self.grant[out]
                        if other == _NONE or _turn(self.at[vc], pointer, n_in) < _turn(self.at[other], pointer, n_in):
                            self.offered[out] = vc
        for i in range(router.n_busy if asking else 0):
            vc = router.busy[i]
            if self.ready[vc] <= t and self.state[vc] == _WAITS:
                best, least, hop = _NONE, n_out, self.wants[vc]
                for out in range(self.low[hop], self.high[hop]):
                    if self.offered[out] == vc:
                        self.offered[out] = _NONE
                        turns = _turn(out - router.vc, self.accept[vc], n_out)
                        if turns < least:
                            best, least = out, turns
                if best != _NONE:
                    self.state[vc], self.ready[vc], self.out[vc] = _ACTIVE, t + self.vc_allocation, best
                    self.taken[best] = True
                    self.accept[vc] = (best - router.vc + 1) % n_out
                    self.grant[best] = (self.at[vc] + 1) % n_in

    def _allocate_switch(self, router: Router, t: int) -> None:
        """Match inputs to outputs for a cycle, by one iteration of iSLIP, and send a flit for each match."""
        n_in, n_out, n = router.inputs, len(router.outputs), 0
        for i in range(router.n_busy):
            vc = router.busy[i]
            if self.ready[vc] <= t and self.state[vc] == _ACTIVE and self.free[self.next[self.out[vc]]] <= t:
                output = self.link_of[self.out[vc]]
                if output.free <= t:
                    # An output offers itself to the next input in turn, and there to the next VC in turn.
                    into = self.link_of[vc]
                    turns = _turn(into.into, output.grant, n_in) * self.n + _turn(vc - into.vc, into.next_vc, self.n)
                    if output.offered == _NONE:
                        self.asked[n] = output.output
                        n += 1
                    if output.offered == _NONE or turns < output.turns:
                        output.offered, output.turns = vc, turns
        for i in range(n):
            output = router.outputs[self.asked[i]]
            into = self.link_of[output.offered]
            if into.taken == _NONE or _turn(output.output, into.accept, n_out) < _turn(into.taken, into.accept, n_out):
                into.taken = output.output
        for i in range(n):
            output = router.outputs[self.asked[i]]
            vc = output.offered
            into = self.link_of[vc]
            output.offered = _NONE
            if into.taken == output.output:
                into.taken = _NONE
                output.grant = (into.into + 1) % n_in
                into.accept = (output.output + 1) % n_out
                into.next_vc = (vc - into.vc + 1) % self.n
                self._send(into, vc, output, t)

    def _send(self, into: RouterLink, vc: int, output: RouterLink, t: int) -> None:
        """Send the oldest flit of a VC through the switch, and return its credit."""
        place, out = self.oldest[vc], self.out[vc]
        i = self.flit[place]
        tail, since_ps = self.tail[i], self.arrival[i] * self.cycle_ps
        self.free[place] = t + 1 + into.wire
        self.oldest[vc] = place = self._after(place, vc)
        arrival = t + self.switch_allocation + self.traversal + output.wire
        arrival += self._serve(output, i, since_ps, t, self.routing + self.vc_allocation)
        if output.router is not None:
            self.hop[i] += 1
            self._put(i, out, arrival)
        else:
            self.free[self.next[out]] = arrival + 1 + output.wire
            self.next[out] = self._after(self.next[out], out)
            self._leave(i, arrival * self.cycle_ps)
        self.ready[vc] = self.arrival[self.flit[place]] if self.free[place] == _NEVER else _NEVER
        if tail:
            self.taken[out] = False
            self.state[vc] = _IDLE
            if self.ready[vc] != _NEVER:
                self._begin(self.flit[place], vc, max(t + 1, self.ready[vc]))

    def _leave(self, i: int, t_ps: int) -> None:
        leg, flit = self.legs[i], self.flits[i]
        self.legs[i] = self.flits[i] = None
        self.following[i], self.unused = self.unused, i
        leg.leave(self.position[i], flit, t_ps)

    def _serve(self, link: RouterLink, i: int, since_ps: int, t: int, least: int) -> int:
        """Occupy a link with a flit from cycle `t` on; return the cycles beyond the first.

        The flit has been there since `since_ps`; it spends `least` cycles or more in the router.
        """
        ps: int = self.core.served(link.server, self.flits[i], since_ps, t * self.cycle_ps, least * self.cycle_ps)
        cycles = max(1, (ps + self.cycle_ps - 1) // self.cycle_ps)
        link.free = t + cycles
        return cycles - 1

    def _send_from(self, source: InjectionQueue, t: int) -> None:
        """Send one flit of a source if it has a credit; classes alternate."""
        output, server, each = source.output, source.output.server, self.vcs
        source.due = t + 1
        for n in range(1, _CLASSES + 1):
            c = (source.last_class + n) % _CLASSES
            i = source.first[c]
            if i == _NONE:
                continue
            vc, low = source.vc[c], output.vc + each * c
            for v in range(1, each + 1 if self.head[i] else 1):
                vc = low + (source.vc[c] - low + v) % each
                if self.free[self.next[vc]] <= t:
                    break
            if self.free[self.next[vc]] > t:
                continue
            source.first[c] = self.following[i]
            source.vc[c], source.last_class = vc, c
            self._put(i, vc, t + 1 + output.wire + self._serve(output, i, self.entered_ps[i], t, 0))
            source.due = output.free
            server.pending -= 1
            if not server.pending and server.arbiter is not None:
                server.arbiter.schedule()
            break
        if source.first[0] == _NONE and source.first[1] == _NONE:
            source.due = _NEVER
