"""One run in a thread of its own: built, run and closed there, for greenlets never cross threads."""

from __future__ import annotations

import gc
import io
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kernbench.analysis.result import Result
from kernbench.errors import KernbenchError, LimitError
from kernbench.notebook.frames import Frame, live_frame
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.limits import NONE, Expired, Limits, Watchdog, limited
from kernbench.sim_engine.observer import Observer

if TYPE_CHECKING:
    from kernbench.topology.builder import Machine

_EVERY_S = 0.1
_COST = 10  # a frame is due again after this many times what the last one took


@dataclass(frozen=True, slots=True)
class Options:
    """How a program is run.

    Attributes
    ----------
    data : bool
        Compute values, so that the program checks them.
    log : str
        As for `kb.run`.
    """

    data: bool = True
    log: str = "tile"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run.

    Attributes
    ----------
    result : Result or None
        None of a run that was cancelled or failed.
    error : str
        Why it failed.
    cancelled : bool
    checks : int
        Results that the program compared with a reference.
    shown : object
        What the program returned.
    printed : str
        What it printed.
    events : int
        Events processed.
    seconds : float
        Host time.
    made : float
        When it was simulated, of a result that was found in the cache [s since 1970]; else 0.
    """

    result: Result | None = None
    error: str = ""
    cancelled: bool = False
    checks: int = 0
    shown: object = None
    printed: str = ""
    events: int = 0
    seconds: float = 0.0
    made: float = 0.0


class Watch(Observer):
    """Reports frames of a run some times a second."""

    def __init__(self, report: Callable[[Frame], None]) -> None:
        self._report = report
        self._due, self._before = 0.0, (time.perf_counter(), 0)

    def pulse(self, engine: GraphEngine) -> None:
        """Report where the engine stands, if that is due."""
        now = time.perf_counter()
        if now < self._due:
            return
        then, events = self._before
        self._before = now, engine.env.events
        self._report(live_frame(engine.counters(), (engine.env.events - events) / max(1e-9, now - then)))
        self._due = time.perf_counter() + max(_EVERY_S, _COST * (time.perf_counter() - now))


@dataclass(eq=False)
class Job:
    """A run under way.

    Parameters
    ----------
    machine : Machine
    program : callable
        `program(torch)`.
    name : str
        What the result is called.
    options : Options
    on_frame, on_end : callable
        Called in the job's thread, with a Frame some times a second, and in the end with the Outcome.
    before : callable
        Called first, in the job's thread: an Outcome that there is already, or None.
    limits : Limits
        Of the run, and of each session that the program opens.
    """

    machine: Machine
    program: Callable[[RuntimeContext], object]
    name: str
    options: Options
    on_frame: Callable[[Frame], None]
    on_end: Callable[[Outcome], None]
    before: Callable[[], Outcome | None] = lambda: None
    limits: Limits = NONE
    _stop: threading.Event = field(default_factory=threading.Event, init=False)
    _ended: threading.Event = field(default_factory=threading.Event, init=False)
    _over: threading.Event = field(default_factory=threading.Event, init=False)
    _watchdog: Watchdog | None = field(default=None, init=False)

    def start(self) -> None:
        """Begin."""
        threading.Thread(target=self._to_the_end, name="kernbench run", daemon=True).start()

    def cancel(self) -> None:
        """End the run, whatever it does: at the next instruction of its Python code."""
        if not self._stop.is_set():
            self._stop.set()
            if self._watchdog is not None:
                self._watchdog.start(0)

    @property
    def ended(self) -> bool:
        """Whether the run has ended; its results may still be looked at."""
        return self._ended.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end; return whether it has come."""
        return self._over.wait(timeout_s)

    def _to_the_end(self) -> None:
        try:
            self._work()
        finally:
            self._over.set()

    def _work(self) -> None:
        begin = time.perf_counter()
        with _heard() as printed:
            outcome = self._outcome()
        self._ended.set()
        seconds = time.perf_counter() - begin
        if not outcome.made:
            outcome = replace(outcome, printed=printed.text.getvalue(), seconds=seconds)
        self.on_end(outcome)
        # An engine is full of cycles, and what it holds is large. That of a short run is all young still.
        gc.collect(2 if seconds > 1 else 1)

    def _outcome(self) -> Outcome:
        watchdog = self._watchdog = Watchdog(lambda _: LimitError("cancelled"))
        try:
            outcome = self._attempt()
        except Expired:
            outcome = Outcome(cancelled=True)
        while True:
            try:
                watchdog.close()
                break
            except Expired:
                continue
        return Outcome(cancelled=True) if self._stop.is_set() else outcome

    def _attempt(self) -> Outcome:
        try:
            if self._stop.is_set():
                return Outcome(cancelled=True)
            return self.before() or self._run()
        except KernbenchError as error:
            return Outcome(error=str(error))
        except BaseException as error:  # noqa: BLE001 - whatever a user's program raises is shown to its user
            return Outcome(error=_told(error))

    def _run(self) -> Outcome:
        options = self.options
        engine = GraphEngine(self.machine, options.data, log=options.log, observers=[Watch(self.on_frame)], live=True)
        with limited(self.limits), RuntimeContext(engine, correlation_id=self.name) as torch:
            shown = self.program(torch)
        return Outcome(torch.result, checks=torch.checks, shown=shown, events=engine.env.events)


def _told(error: BaseException) -> str:
    """Return what an error says, and where in the user's program it was raised."""
    frames = [x for x in traceback.extract_tb(error.__traceback__) if "kernbench/" not in x.filename.replace("\\", "/")]
    where = f" (line {frames[-1].lineno}, in {frames[-1].name})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


class _Printed(io.TextIOBase):
    """Takes what one thread prints; what others print goes where it always went."""

    def __init__(self, outer: io.TextIOBase) -> None:
        self.outer, self.text, self._thread = outer, io.StringIO(), threading.get_ident()

    def write(self, text: str) -> int:
        return (self.text if threading.get_ident() == self._thread else self.outer).write(text)

    def flush(self) -> None:
        self.outer.flush()


@contextmanager
def _heard() -> Iterator[_Printed]:
    """Take what this thread prints: text of a thread reaches no cell."""
    printed = _Printed(sys.stdout)  # type: ignore[arg-type]
    sys.stdout = printed
    try:
        yield printed
    finally:
        if sys.stdout is printed:
            sys.stdout = printed.outer
