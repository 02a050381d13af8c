"""Two request queues at one link: bulk traffic and queue traffic of a PE take turns at the PE's own link.

A turn is a chunk of one message. While the other queue is empty, a message gets the link whole, and is cut short at
the end of the chunk under way should the other queue get something meanwhile. Whole messages (`Fabric.whole`) cannot
be cut: where they would have to be, the link is flagged.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from kernbench.units import FLIT_BYTES, flits

if TYPE_CHECKING:
    from kernbench.sim_engine.fabric import Fabric
    from kernbench.sim_engine.link import Link, Route
    from kernbench.sim_engine.trains import Lines, Train

BULK, QUEUE = 0, 1


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
        self.fabric, self.clock, self.link = fabric, fabric.clock, link
        self.nbytes = chunk_bytes
        self.chunk = max(1, chunk_bytes // FLIT_BYTES)
        self._whole = fabric.whole
        self._busy_until = [0, 0]
        self._waiting: tuple[deque[_Message], deque[_Message]] = deque(), deque()
        self._turn_ps: int | None = None
        self._granted: _Message | None = None
        self._count = self._start = 0
        self._train: Train | None = None

    def send(self, kind: int, route: Route, nbytes: int, key: int, fn: Any, arg: object, each: bool = False) -> None:
        """Send `nbytes` over `route`; `fn(arg)` is called at the arrival of the last flit."""
        route.nbytes += nbytes
        if nbytes < FLIT_BYTES:
            route.small[nbytes] = route.small.get(nbytes, 0) + 1
            self.start(kind, route, 1, nbytes, key, fn, arg, each)
        else:
            count = flits(nbytes)
            route.flits += count
            self.start(kind, route, count, FLIT_BYTES, key, fn, arg, each)

    def start(self, kind: int, route: Route, count: int, size: int, key: int, fn: Any, arg: object, each: bool) -> None:
        """Put `count` flits of `size` bytes on the link, now or when their turn comes."""
        now, link = self.clock._now, self.link
        if self._whole:
            if self._busy_until[1 - kind] > now:
                self.fabric.flag(link)
            route.start(route, count, size, key, fn, arg, each)
            self._busy_until[kind] = link.free
            return
        message = _Message(kind, route, count, size, key, fn, arg, each)
        if self._turn_ps is None and link.free <= now:
            self._grant(message)
            return
        self._waiting[kind].append(message)
        if self._granted is not None and self._granted.kind != kind:
            self._cut()
        self._next_turn()

    def _next_turn(self) -> None:
        """Have the next turn when the link is free, if anything waits."""
        bulk, queue = self._waiting
        if bulk or queue:
            t = max(self.link.free, self.clock._now)
            if t != self._turn_ps:
                self._turn_ps = t
                self.clock.call_at(t, self._turn, t)

    def _turn(self, t: int) -> None:
        if t != self._turn_ps:
            return
        self._turn_ps = None
        bulk, queue = self._waiting
        last = self._granted
        kind = (QUEUE if queue else BULK) if not (bulk and queue) else 1 - (last.kind if last is not None else QUEUE)
        self._grant(self._waiting[kind].popleft())

    def _grant(self, message: _Message) -> None:
        """Give the link to a message: whole if nothing of the other kind waits, else for a chunk or in turns."""
        route, count, free, now = message.route, message.count, self.link.free, self.clock._now
        lazy = route.start is self.fabric.start_train
        others = self._waiting[1 - message.kind]
        if others and lazy and self._alternate(message, others):
            return
        if others or not lazy:
            count = min(count, self.chunk)
        self._start = free if free > now else now
        self._granted, self._count = message, count
        self._train = self._put(message, count)
        self._next_turn()

    def _alternate(self, first: _Message, others: deque[_Message]) -> bool:
        """Let two messages whose ways part behind the link take turns of a flit until one is through, if they can.

        Nothing that comes meanwhile changes these turns. Return whether they do.
        """
        second, link = others[0], self.link
        apart = first.route.links[:2] != second.route.links[:2]
        if self.chunk > 1 or not apart or second.route.start is not self.fabric.start_train:
            return False
        others.popleft()
        rounds = min(first.count, second.count)
        t = max(self.clock._now, link.free)
        times = [link.times[message.size] for message in (first, second)]
        for message, after in ((first, 0), (second, times[0])):
            link.free = t + after
            self._put(message, rounds, ((t + after, sum(times)),))
        self._granted, self._train = second, None
        self._next_turn()
        return True

    def _put(self, message: _Message, count: int, *lines: Lines) -> Train | None:
        """Put `count` flits of a message on the link, now or by `lines`; the others wait."""
        message.count -= count
        fn = message.fn
        if message.count:
            self._waiting[message.kind].appendleft(message)
            fn = None
        route = message.route
        return route.start(route, count, message.size, message.key, fn, message.arg, message.each, *lines)

    def _cut(self) -> None:
        """Take back what lies behind the chunk under way."""
        message, train = self._granted, self._train
        if message is None or train is None or self._count <= self.chunk:
            return
        link = self.link
        d = link.times[message.size]
        started = -(-(self.clock._now - self._start) // d)
        keep = max(1, -(-started // self.chunk)) * self.chunk
        rest = self._count - keep
        if rest <= 0:
            return
        self.fabric.reservations -= train.cut(keep)
        self._count = keep
        message.count += rest
        self._waiting[message.kind].appendleft(message)
