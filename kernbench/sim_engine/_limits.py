"""Limits of a run on events, simulated time and host time, and the watchdog that holds Python code to the last."""

from __future__ import annotations

import ctypes
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from kernbench._interrupts import LONGEST_DELAY_S, Repeated, hold, is_in_import, release
from kernbench._registry import hint
from kernbench.errors import ConfigError, LimitError, quote
from kernbench.sim_engine._observer import Observer
from kernbench.sim_engine._user_code import place_in, place_of

if TYPE_CHECKING:
    from kernbench.sim_engine.engine import GraphEngine

_GRACE_S = 0.25  # the engine checks the limit itself every few thousand events
# A loop may catch the exception: it is raised again, ever sooner, until it is noticed; then there is time to clean up.
_FIRST_S, _SHORTEST_S, _CLEAN_UP_S = 0.1, 0.001, 2.0
_MOST_PROGRAMS = 4


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a run may take; `None` means unlimited.

    Parameters
    ----------
    events : int or None
        Events that the engine processes, and commands of the kernels that run. Their number depends on the engine,
        so leave a margin.
    simulated_ns : float or None
        Simulated time [ns].
    host_s : float or None
        Time on the host [s], from the start of the with-block of the session. It also ends Python code that never
        returns to the engine, such as `while True: pass` in a kernel or a rank. A call into C is not interrupted.

    Raises
    ------
    ConfigError
        If a limit is not a number > 0.

    Examples
    --------
    >>> Limits(host_s=60)
    Limits(events=None, simulated_ns=None, host_s=60)
    """

    events: int | None = None
    simulated_ns: float | None = None
    host_s: float | None = None

    def __post_init__(self) -> None:
        for name, value in self._given().items():
            if type(value) not in (int, float) or not 0 < value < math.inf:
                raise ConfigError(f"limits.{name} = {quote(value)} must be a number > 0; leave it out for no limit")

    def _given(self) -> dict[str, float]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def __bool__(self) -> bool:
        return bool(self._given())

    @classmethod
    def of(cls, limits: Limits | Mapping[str, float] | None) -> Limits:
        """Return `limits`, or those of a mapping with the same names.

        Raises
        ------
        ConfigError
            If a name is unknown or a value is not a number > 0.

        Examples
        --------
        >>> Limits.of({"events": 1000})
        Limits(events=1000, simulated_ns=None, host_s=None)
        """
        if isinstance(limits, Limits):
            return limits
        given: Any = {} if limits is None else limits
        if not isinstance(given, Mapping):
            raise ConfigError(f"limits = {quote(given)} must be kb.Limits(...) or a mapping with the same names")
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                raise ConfigError(f"limits.{name} is unknown; {hint(name, known)}")
        return cls(**given)

    def within(self, other: Limits) -> Limits:
        """Combine two sets of limits: the stricter value of each."""
        mine, others = self._given(), other._given()
        least = {name: min(x for x in (mine.get(name), others.get(name)) if x is not None) for name in mine | others}
        return Limits(**least)  # type: ignore[arg-type]


NO_LIMITS = Limits()
_AROUND: ContextVar[Limits] = ContextVar("limits", default=NO_LIMITS)


@contextmanager
def limited(limits: Limits) -> Iterator[None]:
    """Hold each session that this thread opens inside the with-block to `limits`, in addition to the session's."""
    token = _AROUND.set(limits.within(_AROUND.get()))
    try:
        yield
    finally:
        _AROUND.reset(token)


class Expired(Repeated):
    """Raised by a watchdog in the thread that it watches; `except Exception` in a loop does not catch it."""

    watchdog: Watchdog

    def error(self, running: str) -> LimitError:
        """Convert to the user's error; `running` names what was interrupted."""
        return self.watchdog.noticed(self.watchdog.tell(running))


class Watchdog:
    """Raises `Expired` in the thread that created it, even while that runs Python code that never returns."""

    def __init__(self, tell: Callable[[str], LimitError]) -> None:
        self.tell = tell
        self._thread_id = threading.get_ident()
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._noticed = False
        self._raised: type[Expired] | None = None

    def start(self, after_s: float) -> None:
        """Start watching; callable from any thread."""
        threading.Thread(target=self._watch, args=(after_s,), name="kernbench watchdog", daemon=True).start()

    def noticed(self, error: LimitError) -> LimitError:
        """Return `error`, and allow the thread some time to clean up."""
        self._noticed = True
        return error

    def close(self) -> None:
        """Stop, in the watched thread; nothing is raised afterwards."""
        while not self._is_quiet():
            pass

    def _is_quiet(self) -> bool:
        try:
            with self._lock:
                self._closed.set()
            if self._raised is not None:
                # Raised here rather than taken back: CPython 3.11 would look for it at every bytecode as long as the
                # process lives, and hang where a debugger traces.
                _raise_in(self._thread_id, self._raised)
                while True:
                    pass
        except Expired as late:
            if late.watchdog is not self:
                raise
            if not self._closed.is_set():
                return False
            self._raised = None
            release()
        return True

    def _watch(self, after_s: float) -> None:
        if self._closed.wait(after_s):
            return
        # A compiled module whose import is interrupted cannot be imported again.
        latest = time.monotonic() + LONGEST_DELAY_S
        while is_in_import(sys._current_frames().get(self._thread_id)) and time.monotonic() < latest:
            if self._closed.wait(_SHORTEST_S):
                return
        expired = type("Expired", (Expired,), {"watchdog": self})
        again_s = _FIRST_S
        while True:
            if self._noticed:
                self._noticed = False
                if self._closed.wait(_CLEAN_UP_S):
                    return
            with self._lock:
                if self._closed.is_set():
                    return
                if self._raised is None:
                    hold()
                self._raised = expired
                _raise_in(self._thread_id, expired)
            if self._closed.wait(again_s):
                return
            again_s = max(_SHORTEST_S, 0.8 * again_s)


def _raise_in(thread_id: int, kind: type[BaseException]) -> None:
    """Raise `kind` in a thread at its next check for asynchronous exceptions; replaces a pending one."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), ctypes.py_object(kind))


class Guard(Observer):
    """Enforces the limits of one session."""

    def __init__(self, engine: GraphEngine, limits: Limits, ranks: Callable[[], Sequence[str]]) -> None:
        self.limits = limits.within(_AROUND.get())
        self._engine, self._ranks = engine, ranks
        self._start = time.monotonic()
        self._watchdog: Watchdog | None = None
        if self.limits:
            engine.observers.append(self)

    def start(self) -> None:
        """Start counting host time, in the thread of the session."""
        self._start = time.monotonic()
        if self.limits.host_s is not None:
            self._watchdog = Watchdog(lambda running: self._host_time([running]))
            self._watchdog.start(self.limits.host_s + _GRACE_S)

    def stop(self) -> None:
        if self._watchdog is not None:
            self._watchdog.close()

    def pulse(self, engine: GraphEngine) -> None:
        """Raise LimitError if a limit is exceeded."""
        limits = self.limits
        # Programs issue commands ahead of the clock.
        if limits.events is not None and engine.env.events + engine.commands > limits.events:
            raise self._error("events", f"{limits.events:,.12g} events", self._running())
        if limits.simulated_ns is not None and max(engine.env.now, engine.ahead_ps) > limits.simulated_ns * 1000:
            raise self._error("simulated_ns", f"{limits.simulated_ns:,.12g} ns of simulated time", self._running())
        if limits.host_s is not None and time.monotonic() - self._start > limits.host_s:
            error = self._host_time(self._running())
            raise error if self._watchdog is None else self._watchdog.noticed(error)

    def told(self, error: BaseException | None) -> LimitError | None:
        """Convert this session's `Expired` to the error to raise; None for any other error."""
        if not isinstance(error, Expired) or error.watchdog is not self._watchdog:
            return None
        return error.error(place_of(error.__traceback__))

    def _running(self) -> list[str]:
        programs = list(self._engine.programs)
        told = [program.location() for program in programs[:_MOST_PROGRAMS]]
        more = len(programs) - len(told)
        told += [f"{more:,} more programs"] * (more > 0) + list(self._ranks())
        return told or [place_in(sys._getframe())]

    def _host_time(self, running: Sequence[str]) -> LimitError:
        return self._error("host_s", f"{self.limits.host_s:,.12g} s of host time", running)

    def _error(self, name: str, limit: str, running: Sequence[str]) -> LimitError:
        engine = self._engine
        lines = "".join(f"\n  {line}" for line in running)
        return LimitError(
            f"the run is over its limit of {limit} (limits.{name}), at {engine.now_ns:,.2f} ns after "
            f"{engine.env.events:,} events; raise the limit, or look for a loop without an end in:{lines}"
        )
