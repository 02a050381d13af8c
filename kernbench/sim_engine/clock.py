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
from kernbench.sim_engine.core import Core

Callback = Callable[[Any], None]
ARRIVAL = 2
LAST = 1 << 62


class Clock(simpy.Environment):
    """A `simpy.Environment` in integer picoseconds; `events` counts what it has processed."""

    core = None

    @property
    def _now(self):
        return self.core.now if self.core is not None else 0

    @_now.setter
    def _now(self, t):
        pass

    def __init__(self) -> None:
        super().__init__(0)
        self.core = Core()
        self.heap = self.core
        self.call_at = self.core.call_at
        self.call_last = self.core.call_last
        self.drain = self.core.drain

    @property
    def events(self):
        return self.core.events

    def schedule(self, event, priority=NORMAL, delay=0):
        self.core.event_at(self._now + delay, priority, event)

    def peek(self):
        return self.core.peek()

    def timer(self, t: int, value: object = None) -> simpy.Event:
        event = simpy.Event(self)
        event._ok, event._value = True, value
        self.core.event_at(t, NORMAL, event)
        return event

    def step(self) -> None:
        if not self.heap:
            raise EmptySchedule
        self.core.drain(1)
