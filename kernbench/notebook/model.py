"""The explorer without its widgets: what is chosen, what runs, what came of it, and what was before."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernbench.analysis.compare import Comparison, compare
from kernbench.errors import ConfigError, KernbenchError
from kernbench.notebook.frames import Film, Frame
from kernbench.notebook.job import Job, Options, Outcome
from kernbench.notebook.kept import shared
from kernbench.notebook.machine import MachineForm
from kernbench.notebook.parameters import Value
from kernbench.notebook.state import CANCELLED, DONE, FAILED, RUNNING, STOPPING, Entry, State
from kernbench.notebook.works import works
from kernbench.registry import hint

if TYPE_CHECKING:
    from kernbench.analysis.result import Result
    from kernbench.analysis.why import Why
    from kernbench.topology.builder import Machine

OPTIONS: dict[str, tuple[Any, ...]] = {
    "data": (True, False),
    "log": ("tile", "operation", "off"),
}
AUTO_RUN_S = 0.5
KEPT_ROWS = 1_000_000


class Explorer:
    """State and actions of the explorer.

    Parameters
    ----------
    machine : str, Path, Machine, optional
        As for `kb.load`.
    own : iterable of callable
        Functions `f(torch, *, size=64, ...)` of the user's own that can be run, too.

    Attributes
    ----------
    form : MachineForm
        The machine.
    work : Work
        What runs, with `values`; `wrong` has the message of each parameter that is wrong.
    state : State
        The present run; replaced as a whole, from any thread.
    history : list of Entry
        Runs that ended well, oldest first.
    baseline : Entry or None
        What others are compared with.
    on_change : list of callable
        Called without arguments, from any thread, when `state` is another.
    """

    def __init__(self, machine: str | Path | Machine | None = None, own: Iterable[Callable[..., object]] = ()) -> None:
        self.form = MachineForm(machine)
        self.works = works(own)
        self.options = Options()
        self.state = State()
        self.history: list[Entry] = []
        self.baseline: Entry | None = None
        self.auto = True
        self.on_change: list[Callable[[], None]] = []
        self._job: Job | None = None
        self._runs = 0
        self._again = False
        self._lock = threading.Lock()
        self._results: dict[int, Result] = {}
        self.choose(next(iter(self.works)))

    # -- what to run

    def choose(self, name: str) -> None:
        """Choose what to run, with its usual parameters.

        Raises
        ------
        ConfigError
            If there is nothing of that name.
        """
        if name not in self.works:
            raise ConfigError(f"{name!r} cannot be run; {hint(name, self.works)}")
        self.work = self.works[name]
        self.wrong: dict[str, str] = {}
        self.values: dict[str, Value] = {}
        for parameter in self.work.parameters:
            options = parameter.options(self.form.machine)
            usual = str(parameter.default) in options or not options
            self.values[parameter.name] = parameter.default if usual else options[0]

    def set(self, name: str, given: object) -> bool:
        """Take the value of a parameter; return whether it means one. `wrong` says why not."""
        [parameter] = [x for x in self.work.parameters if x.name == name]
        try:
            self.values[name] = parameter.parse(given, self.form.machine)
        except ConfigError as error:
            self.wrong[name] = str(error)
            return False
        self.wrong.pop(name, None)
        return True

    def set_option(self, name: str, value: Any) -> None:
        """Set one of `OPTIONS`.

        Raises
        ------
        ConfigError
            If there is no such option or value.
        """
        if name not in OPTIONS:
            raise ConfigError(f"option {name!r} is unknown; {hint(name, OPTIONS)}")
        if value not in OPTIONS[name]:
            raise ConfigError(f"{name} = {value!r} is unknown; {hint(value, map(str, OPTIONS[name]))}")
        self.options = replace(self.options, **{name: value})

    @property
    def obstacle(self) -> str:
        """What keeps a run from starting; empty where nothing does."""
        if self.state.busy:
            return "a run is under way"
        if self.form.wrong:
            return "the machine has wrong values"
        return "a parameter is wrong" if self.wrong else ""

    def estimate_s(self) -> float | None:
        """Return how long a run would take [host s], from the last one of the same work; None where there is none.

        Notes
        -----
        Time is taken to grow with each whole number among the parameters, and with the PEs of the machine.
        """
        last = next((x for x in reversed(self.history) if x.work.name == self.work.name), None)
        if last is None:
            return None
        ratio = self.form.machine.config.n_pes / last.machine.config.n_pes
        for name, value in self.values.items():
            before = last.values.get(name)
            if type(value) is int and type(before) is int:
                ratio *= value / before
        return last.seconds * max(1.0, ratio)

    @property
    def runs_by_itself(self) -> bool:
        """Whether a changed control is to start a run: nothing is in the way, and it would be short."""
        estimate = self.estimate_s()
        return self.auto and not self.obstacle and estimate is not None and estimate < AUTO_RUN_S

    @property
    def shown(self) -> bool:
        """Whether what is to be seen is the result of what is chosen: a run of it would show the same."""
        entry = self.state.entry
        return self.state.status == DONE and entry is not None and self._chosen() == _chosen(entry)

    # -- running

    def run(self, *, again: bool = False) -> bool:
        """Start a run; return False, and do nothing, where one is under way or a value is wrong.

        Parameters
        ----------
        again : bool
            Simulate what is in the cache, too.
        """
        with self._lock:
            if self.obstacle:
                return False
            self._runs += 1
            form, values = self.form, dict(self.values)
            entry = Entry(
                self._runs, self.work, values, form.machine, form.machine.source, tuple(form.overrides()), self.options
            )
            before = (lambda: None) if again else self._found
            self._job = Job(
                entry.machine, self.work.program(values), entry.name, self.options, self._framed, self._ended, before
            )
            self.state = State(RUNNING, entry=entry)
        self._changed()
        self._job.start()
        return True

    def touched(self) -> None:
        """Hear that a control was changed: start a run if that is to happen by itself, now or when this one ends."""
        self._again = self.state.busy
        if self.runs_by_itself:
            self.run()

    def cancel(self) -> bool:
        """Ask the run to end; return whether one is under way."""
        with self._lock:
            if self._job is None or self.state.status != RUNNING:
                return False
            self.state = replace(self.state, status=STOPPING, message="stopping")
            self._job.cancel()
        self._changed()
        return True

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the run has ended; return whether it has."""
        return self._job is None or self._job.wait(timeout_s)

    def _chosen(self) -> tuple[object, ...]:
        return self.work, self.values, self.form.machine.config, self.options

    def _found(self) -> Outcome | None:
        """Return what the cache has of the present run; of a point of a sweep, whose log is not kept, tell the time."""
        assert self.state.entry is not None
        place = shared(self.state.entry)
        found = place.find() if place is not None else None
        if isinstance(found, dict):
            message = f"in the cache: {found['run_ns']:,.1f} ns; its log is not there, so it is simulated for that"
            with self._lock:
                self.state = replace(self.state, message=message)
            self._changed()
            return None
        return found

    def _framed(self, frame: Frame) -> None:
        with self._lock:
            self.state = replace(self.state, frame=frame)
        self._changed()

    def _ended(self, outcome: Outcome) -> None:
        state = self.state
        assert state.entry is not None
        if outcome.result is None:
            status, message = (CANCELLED, "cancelled") if outcome.cancelled else (FAILED, outcome.error)
            with self._lock:
                self.state = replace(state, status=status, message=message, outcome=outcome)
            self._changed()
            return
        film, found = Film(outcome.result.records), outcome.made > 0
        entry = replace(state.entry, latency_ns=outcome.result.latency_ns, seconds=outcome.seconds, found=found)
        done = State(DONE, _origin(outcome), film.frame(film.end_ps), entry, outcome, film)
        with self._lock:
            self.history.append(entry)
            self._keep(entry, outcome.result)
            self.state = done
        self._changed()
        place = None if found else shared(entry)
        if place is not None:
            place.keep(outcome)
        try:
            why: Why | str = outcome.result.why()
        except KernbenchError as error:
            why = str(error)
        with self._lock:
            if self.state is not done:  # another run has begun
                return
            self.state = replace(done, why=why)
        self._changed()
        if self._again:
            self.touched()

    def _changed(self) -> None:
        for listener in self.on_change:
            listener()

    # -- looking back

    @property
    def result(self) -> Result | None:
        """The last run that ended well."""
        return self._results.get(self.history[-1].number) if self.history else None

    def result_of(self, entry: Entry) -> Result:
        """Return the result of a run of the history.

        Raises
        ------
        KernbenchError
            If it is no longer kept: logs are large, and only the latest and the baseline's stay.
        """
        if entry.number not in self._results:
            raise KernbenchError(f"the log of run {entry.number} is no longer kept; run it again")
        return self._results[entry.number]

    def kept(self) -> list[Entry]:
        """Return the runs whose results are kept."""
        return [entry for entry in self.history if entry.number in self._results]

    def pin(self) -> None:
        """Make the last run what others are compared with."""
        self.pin_as(self.history[-1] if self.history else None)

    def pin_as(self, entry: Entry | None) -> None:
        """Make a run what others are compared with; None: nothing."""
        self.baseline = entry

    def compared(self, after: Entry | None = None, before: Entry | None = None) -> Comparison:
        """Return what changed from the baseline (or `before`) to the last run (or `after`).

        Raises
        ------
        KernbenchError
            If there are no two runs to compare.
        """
        before = before or self.baseline
        after = after or (self.history[-1] if self.history else None)
        if before is None or after is None:
            raise KernbenchError("pin a run as the baseline first")
        return compare(self.result_of(before), self.result_of(after))

    def table(self) -> list[dict[str, Any]]:
        """Return the history as rows, latest first."""
        return [
            {
                "run": entry.number,
                "work": entry.title,
                "machine": ", ".join(
                    [entry.source if ":" in entry.source else Path(entry.source).name, *entry.overrides]
                ),
                "latency_ns": entry.latency_ns,
                "against_baseline": entry.latency_ns / self.baseline.latency_ns if self.baseline else None,
                "host_s": entry.seconds,
                "found": entry.found,
                **asdict(entry.options),
            }
            for entry in reversed(self.history)
        ]

    def _keep(self, entry: Entry, result: Result) -> None:
        """Keep a result, and let go of the oldest beyond what memory should hold; the baseline stays."""
        self._results[entry.number] = result
        rows = 0
        for number in sorted(self._results, reverse=True):
            rows += len(self._results[number].records)
            if rows > KEPT_ROWS and number != entry.number and (not self.baseline or number != self.baseline.number):
                del self._results[number]


def _chosen(entry: Entry) -> tuple[object, ...]:
    return entry.work, entry.values, entry.machine.config, entry.options


def _origin(outcome: Outcome) -> str:
    """Return where a result is from, unless it is of this run."""
    if not outcome.made:
        return ""
    made = time.strftime("%Y-%m-%d %H:%M", time.localtime(outcome.made))
    return f"from the cache: simulated {made} in {outcome.seconds:,.1f} s"
