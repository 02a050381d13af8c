"""Streams: operations of a device that run one after the other, while the host goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import simpy

from kernbench.runtime_api.types import Device

if TYPE_CHECKING:
    from kernbench.sim_engine.engine import GraphEngine


class Stream:
    """An in-order queue of operations on one device; it never blocks the program that fills it.

    Parameters
    ----------
    engine : GraphEngine
        What runs the operations.
    device : Device
        Whose stream it is.
    """

    def __init__(self, engine: GraphEngine, device: Device) -> None:
        self._engine = engine
        self.device = device
        self._last: simpy.Event | None = None
        assert device.index is not None
        self._races = engine.races(device.index)
        self._submitted = 0
        self._after: dict[object, int] = {}  # of other streams, how many operations come before the next one here

    def submit(self, start: Callable[[], simpy.Event], keep: object = None) -> simpy.Event:
        """Call `start` when all earlier operations are complete; return the event of its own completion.

        The event has the value of the one that `start` returns. `keep`, and what `start` refers to, live until then.
        """
        done = simpy.Event(self._engine.env)
        self._submitted += 1
        task = None if self._races is None else self._races.submit(self, self._submitted, self._after)

        def finished(event: simpy.Event, keep: object = (start, keep)) -> None:
            if task is not None:
                task.finish()
            done.succeed(event.value)

        def begin(_: Any = None) -> None:
            if task is None:
                event = start()
            else:
                task.begin()
                event = task.run(start)
            assert event.callbacks is not None, "what has just been started is not complete"
            event.callbacks.append(finished)

        before, self._last = self._last, done
        if before is None or before.callbacks is None:
            begin()
        else:
            before.callbacks.append(begin)
        return done

    def wait_stream(self, other: Stream) -> None:
        """Let what is submitted from now on start after everything that `other` holds now."""
        self._after = {**self._after, other: other._submitted}
        last = other._last
        if last is not None and last.callbacks is not None:
            self.submit(lambda: self._engine.env.timeout(0) if last.processed else last)

    def wait(self, event: simpy.Event, what: object) -> Any:
        """Run the clock until `event` of this stream has happened; return its value. `what` is for messages."""
        value = self._engine.wait(event, what)
        if event is self._last:
            self._last = None
        return value

    def synchronize(self) -> None:
        """Run the clock until every operation is complete."""
        if self._last is not None:
            self.wait(self._last, f"a synchronize of {self.device}")

    def query(self) -> bool:
        """Return whether every operation is complete."""
        return self._last is None or self._last.callbacks is None

    def __repr__(self) -> str:
        return f"<Stream of {self.device}, {'idle' if self.query() else 'busy'}>"


class Event:
    """A mark in a stream: `record` puts it behind what is queued, `elapsed_time` compares two.

    Parameters
    ----------
    current_stream : callable
        Returns the stream that `record` uses when it is given none.
    enable_timing : bool
        Whether the event tells the time.
    """

    def __init__(self, current_stream: Callable[[], Stream], enable_timing: bool = False) -> None:
        self._current_stream = current_stream
        self._timing = enable_timing
        self._stream: Stream | None = None
        self._done: simpy.Event | None = None

    def record(self, stream: Stream | None = None) -> None:
        """Mark the point behind everything that `stream` (the current device's) holds now."""
        self._stream = stream or self._current_stream()
        engine = self._stream._engine
        self._done = self._stream.submit(lambda: engine.env.timeout(0, engine.now_ns))

    def query(self) -> bool:
        """Return whether the mark has been reached (True also before `record`)."""
        return self._done is None or self._done.callbacks is None

    def synchronize(self) -> None:
        """Run the clock until the mark has been reached."""
        if self._stream is not None and self._done is not None and not self.query():
            self._stream.wait(self._done, "a synchronize with an event")

    def elapsed_time(self, end_event: Event) -> float:
        """Return the simulated time from this mark to `end_event` [ms].

        Raises
        ------
        RuntimeError
            If one of them does not tell the time, or has not been reached.
        """
        if not (self._timing and end_event._timing):
            raise RuntimeError("both events need enable_timing=True before elapsed_time can tell anything")
        if self._done is None or end_event._done is None:
            raise RuntimeError("both events must be recorded before calculating elapsed time")
        if not (self.query() and end_event.query()):
            raise RuntimeError(
                "both events must be completed before calculating elapsed time; call torch.ahbm.synchronize() first"
            )
        return (self._at(end_event._done) - self._at(self._done)) / 1e6

    @staticmethod
    def _at(done: simpy.Event) -> float:
        now_ns: Any = done.value
        return float(now_ns)

    def __repr__(self) -> str:
        state = "not recorded" if self._done is None else "reached" if self.query() else "pending"
        return f"<Event, {state}>"
