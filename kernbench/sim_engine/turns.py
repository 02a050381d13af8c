"""Two request queues at one link: bulk traffic and queue traffic of a PE take turns at the PE's own link.

A turn is a chunk of one message. While the other queue is empty, a message gets the link whole, and is cut short at
the end of the chunk under way should the other queue get something meanwhile. Whole messages (`Fabric.whole`) cannot
be cut: where they would have to be, the link is flagged.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from kernbench.units import FLIT_BYTES

if TYPE_CHECKING:
    from kernbench.sim_engine.fabric import Fabric
    from kernbench.sim_engine.link import Link, Route
    from kernbench.sim_engine.trains import Lines, Train

BULK, QUEUE = 0, 1
_FLIT = FLIT_BYTES


class _Message:
    """A message of which `count` flits still wait for their turn."""

    __slots__ = ("arg", "count", "each", "fn", "key", "kind", "route", "size")

    def __init__(
        self, kind: int, route: Route, count: int, size: int, key: int, fn: Any, arg: object, each: bool
    ) -> None:
        self.kind, self.route, self.count, self.size, self.key = kind, route, count, size, key
        self.fn, self.arg, self.each = fn, arg, each


class Turns:
    """The queues in front of one link.

    Parameters
    ----------
    fabric : Fabric
    link : Link
        The first link of whatever is put here; nothing else uses it.
    chunk_bytes : int
        Between turns; at least one flit.
    """

    def __init__(self, fabric: Fabric, link: Link, chunk_bytes: int) -> None:
        self.fabric, self.core, self.link = fabric, fabric.core, link
        self.nbytes = chunk_bytes
        self.chunk = max(1, chunk_bytes // FLIT_BYTES)
        self._whole = fabric.whole
        self._busy_until = [0, 0]
        self._waiting: tuple[deque[_Message], deque[_Message]] = deque(), deque()
        self._turn_ps = -1
        self._granted: _Message | None = None
        self._last = QUEUE
        self._waits = 0
        self._count = self._start = 0
        self._train: Train | None = None

    def send(self, kind: int, route: Route, nbytes: int, key: int, fn: Any, arg: object, each: bool = False) -> None:
        """Send `nbytes` over `route`; `fn(arg)` is called at the arrival of the last flit."""
        route.nbytes += nbytes
        if nbytes < _FLIT:
            route.small[nbytes] = route.small.get(nbytes, 0) + 1
            self.start(kind, route, 1, nbytes, key, fn, arg, each)
        else:
            count = (nbytes + _FLIT - 1) // _FLIT
            route.flits += count
            self.start(kind, route, count, _FLIT, key, fn, arg, each)

    def start(self, kind: int, route: Route, count: int, size: int, key: int, fn: Any, arg: object, each: bool) -> None:
        """Put `count` flits of `size` bytes on the link, now or when their turn comes."""
        now, link = self.core.now, self.link
        if self._whole:
            if self._busy_until[1 - kind] > now:
                self.fabric.flag(link)
            route.start(route, count, size, key, fn, arg, each)
            self._busy_until[kind] = link.free
            return
        if self._turn_ps < 0 and link.free <= now:
            if count <= self.chunk and route.direct and not self._waits:
                self._granted, self._last = None, kind
                self.core.put(route.links, count, size, key, fn, arg, each)
                return
            self._grant(_Message(kind, route, count, size, key, fn, arg, each))
            return
        message = _Message(kind, route, count, size, key, fn, arg, each)
        self._waits += 1
        self._waiting[kind].append(message)
        if self._granted is not None and self._granted.kind != kind:
            self._cut()
        self._next_turn()

    def _next_turn(self) -> None:
        """Have the next turn when the link is free, if anything waits."""
        if self._waits:
            t = max(self.link.free, self.core.now)
            if t != self._turn_ps:
                self._turn_ps = t
                self.core.call_at(t, self._turn, t)

    def _turn(self, t: int) -> None:
        if t != self._turn_ps:
            return
        self._turn_ps = -1
        bulk, queue = self._waiting
        kind = (QUEUE if queue else BULK) if not (bulk and queue) else 1 - self._last
        self._waits -= 1
        self._grant(self._waiting[kind].popleft())

    def _grant(self, message: _Message) -> None:
        """Give the link to a message: whole if nothing of the other kind waits, else for a chunk or in turns."""
        route, count, free, now = message.route, message.count, self.link.free, self.core.now
        lazy = route.direct
        others = self._waiting[1 - message.kind]
        if others and lazy and self._alternate(message, others):
            return
        if others or not lazy:
            count = min(count, self.chunk)
        self._start = free if free > now else now
        self._granted, self._count, self._last = message, count, message.kind
        self._train = self._put(message, count)
        self._next_turn()

    def _alternate(self, first: _Message, others: deque[_Message]) -> bool:
        """Let two messages whose ways part behind the link take turns of a flit until one is through, if they can.

        Nothing that comes meanwhile changes these turns. Return whether they do.
        """
        second, link = others[0], self.link
        apart = first.route.links[:2] != second.route.links[:2]
        if self.chunk > 1 or not apart or not second.route.direct:
            return False
        others.popleft()
        self._waits -= 1
        rounds = min(first.count, second.count)
        t = max(self.core.now, link.free)
        times = [link.times[message.size] for message in (first, second)]
        for message, after in ((first, 0), (second, times[0])):
            link.free = t + after
            self._put(message, rounds, (((t + after, sum(times)),),))
        self._granted, self._train, self._last = second, None, second.kind
        self._next_turn()
        return True

    def _put(self, message: _Message, count: int, lines: tuple[Lines, ...] = ()) -> Train | None:
        """Put `count` flits of a message on the link, now or by `lines`; the others wait."""
        message.count -= count
        fn = message.fn
        if message.count:
            self._waiting[message.kind].appendleft(message)
            self._waits += 1
            fn = None
        route = message.route
        if route.direct and not lines:
            return self.core.put(route.links, count, message.size, message.key, fn, message.arg, message.each)
        return route.start(route, count, message.size, message.key, fn, message.arg, message.each, *lines)

    def _cut(self) -> None:
        """Take back what lies behind the chunk under way."""
        message, train = self._granted, self._train
        if message is None or train is None or self._count <= self.chunk:
            return
        link = self.link
        d = link.times[message.size]
        started = -(-(self.core.now - self._start) // d)
        keep = max(1, -(-started // self.chunk)) * self.chunk
        rest = self._count - keep
        if rest <= 0:
            return
        self.fabric.reservations -= train.cut(keep)
        self._count = keep
        message.count += rest
        self._waiting[message.kind].appendleft(message)
        self._waits += 1
