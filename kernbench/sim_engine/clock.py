"""SimPy's environment on the core's calendar, in integer picoseconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import simpy
from simpy.core import EmptySchedule
from simpy.events import NORMAL, Event

from kernbench.sim_engine.backend import Core

Callback = Callable[[Any], None]


class Clock(simpy.Environment):
    """A `simpy.Environment` whose events share one calendar with the flits and callbacks of `core`."""

    def __init__(self) -> None:
        self.core = Core()
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
        """Return how many calendar entries have been processed."""
        return self.core.events

    def schedule(self, event: Event, priority: int = NORMAL, delay: float = 0) -> None:
        """Process `event` after `delay` [ps]."""
        self.core.event_at(self.core.now + int(delay), int(priority), event)

    def peek(self) -> float:
        """Return the time of the next calendar entry [ps], infinity if there is none."""
        return self.core.peek()

    def timer(self, t: int, value: object = None) -> Event:
        """Return an event that succeeds with `value` at time `t` [ps]."""
        event = Event(self)
        event._ok, event._value = True, value
        self.core.event_at(t, NORMAL, event)
        return event

    def step(self) -> None:
        """Process the next calendar entry.

        Raises
        ------
        simpy.core.EmptySchedule
            If there is none.
        """
        if not len(self.core):
            raise EmptySchedule
        self.core.drain(1)
