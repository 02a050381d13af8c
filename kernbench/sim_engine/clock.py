"""One clock for everything: SimPy's environment, whose heap also takes bare callbacks.

A heap entry is (time, priority, key, item). SimPy's own events and ordinary callbacks have priority 0 or 1
and a running number as key; what arrives over a link has priority 2 + the link's rank and the key of its
transaction, so that simultaneous arrivals are decided by the machine's structure and never by the order in
which the program happened to create them.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

import simpy
from simpy.core import EmptySchedule
from simpy.events import NORMAL

Callback = Callable[[Any], None]
ARRIVAL = 2
LAST = 1 << 62


class Clock(simpy.Environment):
    """A `simpy.Environment` in integer picoseconds; `events` counts what it has processed."""

    _now: int

    def __init__(self) -> None:
        super().__init__(0)
        self.events = 0
        self.heap: list[tuple[int, int, int, Any]] = self._queue  # type: ignore[assignment]

    def call_at(self, t: int, fn: Callback, arg: Any = None) -> None:
        """Call `fn(arg)` at time `t` [ps]."""
        heappush(self.heap, (t, NORMAL, next(self._eid), (fn, arg)))

    def call_last(self, t: int, fn: Callback, arg: Any = None) -> None:
        """Call `fn(arg)` at time `t` [ps], after all else that happens then."""
        heappush(self.heap, (t, LAST, next(self._eid), (fn, arg)))

    def timer(self, t: int, value: object = None) -> simpy.Event:
        """Return an event that succeeds with `value` at time `t` [ps]."""
        event = simpy.Event(self)
        event._ok, event._value = True, value
        heappush(self.heap, (t, NORMAL, next(self._eid), event))
        return event

    def step(self) -> None:
        """Process the next entry.

        Raises
        ------
        simpy.core.EmptySchedule
            If there is none.
        """
        if not self.heap:
            raise EmptySchedule
        self.drain(1)

    def drain(self, limit: int, until: simpy.Event | None = None) -> bool:
        """Process up to `limit` entries; return True while there is more to do.

        Stops early when `until` has been processed or the heap is empty, and then returns False.
        """
        heap = self.heap
        done = 0
        try:
            while heap:
                if done == limit:
                    return until is None or until.callbacks is not None
                done += 1
                self._now, _, _, item = heappop(heap)
                if item.__class__ is tuple:
                    item[0](item[1])
                    continue
                callbacks, item.callbacks = item.callbacks, None
                for callback in callbacks:
                    callback(item)
                if not item._ok and not hasattr(item, "_defused"):
                    raise item._value
                if item is until:
                    return False
            return False
        finally:
            self.events += done
