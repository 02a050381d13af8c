"""The definition of time on a machine: links, arbiters and memory channels, as docs/model.md states them.

A machine is a graph of FIFO links. A message is a sequence of flits. A flit that reaches a link at t leaves it at
max(t, free) + bytes / bandwidth and reaches the next link one latency later. Memories serve bursts by the same rule,
one server for each channel. There are no shortcuts here: every flit costs one calendar entry per link. The
compiled core (`_core.pyx`) gives the same picoseconds faster, and is tested against this module.

The calendar holds entries (time, priority, key, fn, arg). Entries of one instant are processed in this order:

- ordinary callbacks and SimPy events (priority 0 and 1), in the order in which they were scheduled;
- replies that are ready at a memory (`ARRIVAL`), by transaction key: node of the requester, then its count;
- arrivals over links, by the rank of the link, the node behind it, and the order in which flits left it (M4.4);
- calls of `call_last` (`LAST`).

So the structure of the machine decides ties, never the order in which a program creates objects.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import simpy
from simpy.events import NORMAL

from kernbench._units import ServiceTimes, ns_to_ps
from kernbench.sim_engine._callee import Callee
from kernbench.sim_engine._waits import UNKNOWN, Waits

if TYPE_CHECKING:
    from kernbench.config._schema import Hbm
    from kernbench.sim_engine._memory_store import MemoryStore
    from kernbench.sim_engine._network import Network
    from kernbench.sim_engine._transaction import Route, Transaction
    from kernbench.topology._graph import Edge

_Callback = Callable[[Any], None]
_Hook = Callable[[int, int], int]

ARRIVAL = 2
LAST = 1 << 62
BULK, QUEUE = 0, 1
_READ, _WRITE = 0, 1
SLICE_S = 0.02  # host time after which `drain` returns, so that a run can be watched and interrupted
_NUMBER_BITS = 40


class Hop(NamedTuple):
    """One flit on one link: it waited from `arrival_ps`, service ended at `end_ps`; `key` is its transaction's."""

    key: int
    link: str
    nbytes: int
    arrival_ps: int
    start_ps: int
    end_ps: int


class Link:
    """A directed link: a FIFO server of flits, followed by a latency.

    `edge_ps` is the part of its latency that the graph gives. `free` is the end of its last service. `priority` and
    `base` order its output among simultaneous arrivals. `hook(nbytes, t_ps) -> extra_ps` is the component behind it, if
    that processes every flit: it is FIFO, too, and its last flit so far leaves it at `behind`. `memory` is notified of
    every flit of a write. With credits, `legs` are the legs of the routes over it, by the identity of their links;
    `pending` flits wait in front of the network, and `arbiter` is notified when there are none. `served_key` and
    `served_wait` are the message of the last flit so far and that flit's last wait. `lanes` are for the compiled core.
    """

    __slots__ = (
        "arbiter", "base", "behind", "busy_ps", "bw_gbs", "dst", "edge_ps", "flit_bytes", "free", "header_bytes",
        "hook", "lat", "legs", "memory", "merges", "number", "pending", "priority", "served_key", "served_wait", "src",
        "times",
    )  # fmt: skip

    def __init__(
        self, src: str, dst: str, like: Edge, to: int, rank: int, extra_ps: int, hook: _Hook | None, merges: bool,
        times: ServiceTimes, flit_bytes: int, number: int, lanes: tuple[int, int],
    ) -> None:  # fmt: skip
        self.src, self.dst = src, dst
        _, _, self.bw_gbs, self.edge_ps, _, _, self.header_bytes = like
        self.lat, self.hook, self.merges, self.times = self.edge_ps + extra_ps, hook, merges, times
        self.flit_bytes, self.number = flit_bytes, number
        self.priority = ARRIVAL + 1 + rank
        self.base = to << _NUMBER_BITS
        self.free = self.behind = self.busy_ps = self.pending = 0
        self.served_key, self.served_wait = -1, UNKNOWN
        self.legs: dict[int, Any] | None = None
        self.arbiter: Arbiter | None = None
        self.memory: HbmSlice | None = None

    @property
    def name(self) -> str:
        return f"{self.src}->{self.dst}"

    def take(self, t: int, nbytes: int) -> int:
        """Serve a flit that arrives at `t`; return the end of its service."""
        service = self.times[nbytes]
        self.free = end = max(t, self.free) + service
        self.busy_ps += service
        return end


class _Flit:
    """A flit that reaches link `k` of `links` next; its last wait is `wait`.

    `fn(arg)` is called at the end; with `each`, the memory there is notified, too.
    """

    __slots__ = ("arg", "each", "fn", "k", "key", "links", "size", "wait")

    def __init__(
        self, links: tuple[Link, ...], size: int, key: int, fn: _Callback | None, arg: object, each: bool, wait: int
    ) -> None:
        self.links, self.size, self.key, self.fn, self.arg, self.each = links, size, key, fn, arg, each
        self.k, self.wait = 0, wait


class Core:
    """The calendar of one machine, and the movement of flits.

    `now` is in ps; `events` counts processed entries, `reservations` the flits served by links. With `hops` (a list)
    every service of a flit is kept. `live` enables `busy_by` during a run, which needs no bookkeeping here. `waits`
    records where messages waited. `running` is the program that runs now.
    """

    def __init__(self) -> None:
        self.now = self.events = self.reservations = 0
        self.live = self.credits = False
        self.hops: list[Hop] | None = None
        self.waits: Waits | None = None
        self.running: object = None
        self._calendar: list[tuple[int, int, int, _Callback, Any]] = []
        self._scheduled = count(1)
        self._left = count(1)

    def __len__(self) -> int:
        return len(self._calendar)

    def call_at(self, t: int, fn: _Callback, arg: Any = None) -> None:
        heappush(self._calendar, (t, NORMAL, next(self._scheduled), fn, arg))

    def call_last(self, t: int, fn: _Callback, arg: Any = None) -> None:
        """Call `fn(arg)` at time `t` [ps], after everything else of that instant."""
        heappush(self._calendar, (t, LAST, next(self._scheduled), fn, arg))

    def call_ordered(self, t: int, key: int, fn: _Callback, arg: Any) -> None:
        """Call `fn(arg)` at time `t` [ps], before arrivals over links, in the order of transaction keys."""
        heappush(self._calendar, (t, ARRIVAL, key, fn, arg))

    def call_after_turns(self, t: int, order: int, fn: _Callback, arg: Any) -> None:
        """Call `fn(arg)` at time `t` [ps], after the calls of `call_last`; `order` is unique at that time."""
        heappush(self._calendar, (t, LAST + 1, order, fn, arg))

    def arrive_at(self, t: int, priority: int, base: int, flit: _Flit) -> None:
        """Deliver a flit at time `t` [ps] behind a credit-based network."""
        heappush(self._calendar, (t, priority, base + next(self._left), self._arrive, flit))

    def served(self, link: Link, flit: _Flit, arrival: int, start: int, least_ps: int) -> int:
        """Serve a flit that a router sends at `start`, >= `least_ps` after its arrival; return the service time."""
        self._waited(link, flit, arrival + least_ps, start)
        end = link.take(start, flit.size)
        self.reservations += 1
        if self.hops is not None:
            self.hops.append(Hop(flit.key, link.name, flit.size, arrival, start, end))
        return end - start

    def wake_at(self, t: int, callee: Callee, what: int, arg: Any) -> None:
        self.call_at(t, lambda arg: callee.woken(what, arg), arg)

    def wake_ordered(self, t: int, key: int, callee: Callee, what: int, arg: Any) -> None:
        self.call_ordered(t, key, lambda arg: callee.woken(what, arg), arg)

    def event_at(self, t: int, priority: int, event: simpy.Event) -> None:
        heappush(self._calendar, (t, priority, next(self._scheduled), self._process, event))

    def _process(self, event: simpy.Event) -> None:
        callbacks, event.callbacks = event.callbacks, None  # type: ignore[assignment]  # SimPy's mark of a processed event
        for callback in callbacks:
            callback(event)
        if not event._ok and not hasattr(event, "_defused"):
            raise event._value

    def peek(self) -> float:
        """Time of the next entry [ps], infinity if there is none."""
        return self._calendar[0][0] if self._calendar else float("inf")

    def split(self, lanes: int, lookahead_ps: int) -> None:
        """Process the entries of each lane apart, in windows of `lookahead_ps`: the compiled core's way to be quick."""

    def couple(self, more: int) -> None:
        """Add `more` to the number of causes for which lanes may affect each other without a message."""

    def clear(self) -> None:
        self._calendar.clear()

    def drain(self, limit: int, until: simpy.Event | None = None) -> bool:
        """Process up to `limit` entries, for some 20 ms of host time; return True if more remain.

        Stops early, and returns False, when `until` has been processed or the calendar is empty.
        """
        calendar, done, deadline = self._calendar, 0, monotonic() + SLICE_S
        try:
            while calendar and not (until is not None and until.callbacks is None):
                if done == limit or (not done & 63 and monotonic() > deadline):
                    return True
                done += 1
                self.now, _, _, fn, arg = heappop(calendar)
                fn(arg)
            return False
        finally:
            self.events += done

    def busy_by(self, links: Sequence[Link]) -> np.ndarray:
        """Busy time of each link until now [ps]; a link has no gap between now and `free`."""
        return np.array([link.busy_ps - max(0, link.free - self.now) for link in links], np.int64)

    def put(
        self,
        links: tuple[Link, ...],
        n: int,
        size: int,
        key: int,
        fn: _Callback | None,
        arg: object,
        each: bool = False,
    ) -> None:
        """Send `n` flits of `size` bytes over `links` now; `fn(arg)` is called when the last one arrives.

        With `each` the memory behind the last link is notified of every flit.
        """
        wait = UNKNOWN if self.waits is None else self.waits.of(key)
        for last in (False,) * (n - 1) + (True,):
            self._reach(_Flit(links, size, key, fn if last else None, arg, each, wait))

    def _waited(self, link: Link, flit: _Flit, arrival: int, start: int) -> None:
        """Record the wait of a flit whose service starts at `start`, behind its own message or another one."""
        if self.waits is not None and flit.wait != UNKNOWN:
            front, since = -1, arrival
            if link.served_key == flit.key and link.free >= arrival:
                flit.wait, since = link.served_wait, link.free
            elif link.free > arrival:
                front = link.served_key
            if start > since:
                flit.wait = self.waits.add(flit.wait, link.number, front, start - since)
        link.served_key, link.served_wait = flit.key, flit.wait

    def _reach(self, flit: _Flit) -> None:
        link, now = flit.links[flit.k], self.now
        if link.legs is not None:
            link.legs[id(flit.links)].landed(flit)
            return
        self._waited(link, flit, now, max(now, link.free))
        end = link.take(now, flit.size)
        self.reservations += 1
        if self.hops is not None:
            self.hops.append(Hop(flit.key, link.name, flit.size, now, end - link.times[flit.size], end))
        t = end + link.lat
        if link.hook is not None:
            link.behind = t = max(link.behind, t + link.hook(flit.size, t))
        flit.k += 1
        heappush(self._calendar, (t, link.priority, link.base + next(self._left), self._arrive, flit))

    def _arrive(self, flit: _Flit) -> None:
        if flit.k < len(flit.links):
            self._reach(flit)
            return
        memory = flit.links[-1].memory
        if flit.each and memory is not None:
            memory.on_flit(flit.arg)  # type: ignore[arg-type]  # `each` is set for transactions only
        if flit.fn is not None:
            if flit.wait != UNKNOWN:
                assert self.waits is not None
                self.waits.landed(flit.key, flit.wait)
            flit.fn(flit.arg)

    def turned(self, link: Link, key: int, asked: int) -> None:
        """Record a message's wait since `asked` for its first turn at an arbiter."""
        if self.waits is not None and asked < self.now and (wait := self.waits.of(key)) != UNKNOWN:
            front = link.served_key if link.free > asked else -1
            self.waits.landed(key, self.waits.add(wait, link.number, front, self.now - asked))


@dataclass(slots=True)
class _Waiting:
    """A message with `count` flits left to send at an arbiter; it waits since `asked`, -1 after its first turn."""

    kind: int
    route: Route
    count: int
    size: int
    key: int
    fn: _Callback
    arg: object
    each: bool
    asked: int


class Arbiter:
    """Two request queues in front of a PE's first link: bulk traffic and queue traffic alternate (M8.6).

    A turn is a chunk of `chunk_bytes` of one message, at least one flit. Nothing else uses the link.
    """

    def __init__(self, core: Core, link: Link, chunk_bytes: int) -> None:
        self.core, self.link, self.nbytes = core, link, chunk_bytes
        link.arbiter = self
        self._chunk = max(1, chunk_bytes // link.flit_bytes)
        self._waiting: tuple[deque[_Waiting], deque[_Waiting]] = deque(), deque()
        self._last = QUEUE
        self._turn_ps: int | None = None

    def send(
        self, kind: int, route: Route, nbytes: int, key: int, fn: _Callback, arg: object, each: bool = False
    ) -> None:
        self.start(kind, route, route.count(nbytes), min(nbytes, route.flit_bytes), key, fn, arg, each)

    def start(
        self, kind: int, route: Route, count: int, size: int, key: int, fn: _Callback, arg: object, each: bool
    ) -> None:
        """Send `count` flits of `size` bytes, now or when their turn comes."""
        message = _Waiting(kind, route, count, size, key, fn, arg, each, self.core.now)
        if self._turn_ps is None and self.link.free <= self.core.now and not self.link.pending:
            self._grant(message)
        else:
            self._waiting[kind].append(message)
            self.schedule()

    def schedule(self) -> None:
        """Schedule the next turn for when the link is free, if a message waits."""
        if any(self._waiting) and not self.link.pending:
            t = max(self.link.free, self.core.now)
            if t != self._turn_ps:
                self._turn_ps = t
                self.core.call_last(t, self._turn, t)  # requests of this picosecond take part

    def _turn(self, t: int) -> None:
        if t != self._turn_ps:
            return
        self._turn_ps = None
        bulk, queue = self._waiting
        kind = 1 - self._last if bulk and queue else QUEUE if queue else BULK
        self._grant(self._waiting[kind].popleft())

    def _grant(self, message: _Waiting) -> None:
        """Grant one chunk to a message."""
        if message.asked >= 0:
            self.core.turned(self.link, message.key, message.asked)
            message.asked = -1
        n = min(message.count, self._chunk)
        message.count -= n
        if message.count:
            self._waiting[message.kind].appendleft(message)
        fn = None if message.count else message.fn
        self.core.put(message.route.links, n, message.size, message.key, fn, message.arg, message.each)
        self._last = message.kind
        self.schedule()


class HbmSlice:
    """One slice of a cube's memory stack: bursts over interleaved channels (M4.5).

    A channel serves whole bursts in order of arrival; a change of direction costs the turnaround first. A read returns
    its bursts in the order in which they finish, then by address.
    """

    by_flit = True

    def __init__(self, network: Network, link: Link, hbm: Hbm, memory: MemoryStore | None) -> None:
        self.network, self.core, self.memory = network, network.core, memory
        self.n = hbm.channels
        self.line_bits = hbm.burst_bytes.bit_length() - 1
        self.burst_ps = hbm.burst_ps
        self.turn_ps, self.access_ps = ns_to_ps(hbm.turnaround_ns), ns_to_ps(hbm.access_ns)
        self.free = [0] * self.n
        self.direction: list[int | None] = [None] * self.n
        self.served_ps = 0
        self._turns: list[int] = []  # when channels begin to turn around
        # For each channel: since when it has been busy without a gap, and the transaction that arrived then.
        self._since = [(0, -1)] * self.n
        link.memory = self

    @property
    def busy_ps(self) -> int:
        """Busy time, averaged over the channels [ps]."""
        return self.served_ps // self.n

    def busy_by(self, now: int) -> int:
        """Busy time until `now`, averaged over the channels [ps]; live runs only."""
        # `free` includes turnarounds ahead, during which a channel is not busy.
        self._turns = [turn for turn in self._turns if turn + self.turn_ps > now]
        turning = sum(turn + self.turn_ps - max(turn, now) for turn in self._turns)
        return (self.served_ps - sum(max(0, end - now) for end in self.free) + turning) // self.n

    def on_read(self, txn: Transaction) -> None:
        """Serve a read: all its bursts are requested at once, its flits leave as they become ready."""
        done = sorted(self._serve(self._lines(txn), _READ, txn.key))
        q, m = txn.back.flits(txn.nbytes), len(done)
        groups: list[tuple[int, int]] = []  # (when, flits that are ready then), the last first
        for j in range(q, 0, -1):
            t = done[-(-j * m // q) - 1][0] + self.access_ps
            if groups and groups[-1][0] == t:
                groups[-1] = t, groups[-1][1] + 1
            else:
                groups.append((t, 1))
        txn.pending = groups
        txn.arrived_ps, txn.served_ps = self.core.now, groups[0][0]
        txn.since_ps, txn.opener = self._since[done[-1][1] & (self.n - 1)]
        txn.back.nbytes += txn.nbytes
        self.core.call_ordered(groups[-1][0], txn.key, self._release, txn)

    def _release(self, txn: Transaction) -> None:
        """Send the flits that are ready now on the reply route."""
        _, n = txn.pending.pop()
        size = min(txn.nbytes, txn.back.flit_bytes)
        if txn.pending:
            self.network.train(txn.back, n, size, txn.key, None, None)
            self.core.call_ordered(txn.pending[-1][0], txn.key, self._release, txn)
            return
        if self.memory is not None and txn.pieces:
            txn.data = self.memory.peek(txn.pieces)
        self.network.train(txn.back, n, size, txn.key, txn.fn, txn)

    def on_flit(self, txn: Transaction) -> None:
        """Serve the bursts of a write that are completed by its next flit, which arrives now."""
        lines = self._lines(txn)
        q, m, j = txn.back.flits(txn.nbytes), len(lines), txn.arrived
        txn.arrived += 1
        for end, line in self._serve(lines[j * m // q : (j + 1) * m // q], _WRITE, txn.key):
            if end >= txn.end:
                txn.arrived_ps, txn.end = self.core.now, end
                txn.served_ps = end
                txn.since_ps, txn.opener = self._since[line & (self.n - 1)]

    def on_write(self, txn: Transaction) -> None:
        """Handle the arrival of a write's last flit; it is acknowledged when its bursts are served."""
        if self.memory is not None and txn.data is not None:
            self.memory.poke(txn.pieces, txn.data)
        self.core.call_ordered(txn.end, txn.key, self.network.acknowledge, txn)

    def _lines(self, txn: Transaction) -> Sequence[int]:
        """Lines (bursts) that a transaction touches."""
        if txn.lines is not None:
            return txn.lines
        first = txn.offset >> self.line_bits
        return range(first, (txn.offset + txn.nbytes - 1 >> self.line_bits) + 1)

    def _serve(self, lines: Sequence[int], direction: int, key: int) -> list[tuple[int, int]]:
        """Serve bursts that arrive now; return (completion time, line) of each."""
        now, done = self.core.now, []
        for line in lines:
            channel = line & (self.n - 1)
            start = self.free[channel]
            if start < now:
                start = now
                self._since[channel] = now, key
            if self.direction[channel] not in (None, direction):
                if self.turn_ps and self.core.live:
                    self._turns.append(start)
                start += self.turn_ps
            self.direction[channel] = direction
            self.free[channel] = end = start + self.burst_ps
            done.append((end, line))
        self.served_ps += len(done) * self.burst_ps
        return done
