"""The state of the explorer, without widgets: selection, runs, result, and history."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from kernbench._registry import hint
from kernbench.analysis._manifest import Manifest
from kernbench.analysis.compare import Comparison, compare, machine_changes, value_text
from kernbench.analysis.result import Result
from kernbench.analysis.why import Why
from kernbench.benches._parameters import ParameterValue
from kernbench.errors import ArgumentError, ConfigError, KernbenchError, StateError
from kernbench.notebook._job import READING_RESULT, Options, RunJob, RunOutcome, cached_run, read_log
from kernbench.notebook._live import Frame
from kernbench.notebook._machine_form import MachineForm
from kernbench.notebook._serve import Quota
from kernbench.notebook._workloads import Workload, not_here, workloads
from kernbench.points._cache import default_cache
from kernbench.points._keys import Row, machine_of
from kernbench.sim_engine._limits import NO_LIMITS, Limits
from kernbench.sweeps._saved import read_content
from kernbench.topology.builder import Machine, resolve_topology

IDLE, RUNNING, DONE, FAILED, CANCELLED = "idle", "running", "done", "failed", "cancelled"
OUTDATED = "outdated"


@dataclass(frozen=True, slots=True)
class Entry:
    """A run of the history. `key` is its key in the cache, if any; `logged` if its log is there; `row` is its row.

    `label` and `note` are texts of the user.
    """

    number: int
    workload: Workload
    values: dict[str, ParameterValue]
    machine: Machine = field(repr=False)
    source: str
    overrides: tuple[str, ...]
    options: Options
    latency_ns: float = 0.0
    seconds: float = 0.0
    key: str = ""
    logged: bool = False
    row: Row = field(default_factory=dict, repr=False, compare=False)
    label: str = ""
    note: str = ""

    @property
    def title(self) -> str:
        return " ".join([self.workload.name, *(f"{name}={value}" for name, value in self.values.items())])

    @property
    def name(self) -> str:
        return f"#{self.number} {self.title}"

    @property
    def dtype(self) -> str:
        return str(self.values.get("dtype", "f16"))


@dataclass(frozen=True, slots=True)
class Finished:
    entry: Entry
    outcome: RunOutcome
    why: Why | str | None = None

    @property
    def result(self) -> Result:
        assert self.outcome.result is not None
        return self.outcome.result


@dataclass(frozen=True, slots=True)
class State:
    """The present run, with its last frame while it is in progress, and the finished one that the tabs display."""

    status: str = IDLE
    message: str = ""
    frame: Frame | None = None
    entry: Entry | None = None
    finished: Finished | None = None

    @property
    def busy(self) -> bool:
        """A run is in progress, or its result is about to be displayed."""
        return self.status == RUNNING

    @property
    def ending(self) -> bool:
        """The run has succeeded, and its result is about to be displayed."""
        return self.busy and self.finished is not None and self.finished.entry is self.entry


_OPTIONS: dict[str, tuple[Any, ...]] = {"data": (True, False), "log": ("tile", "operation", "off")}
AUTO_RUN_S = 1.0
KEPT_ROWS = 1_000_000
HISTORY = 100  # runs
_PLACE = re.compile(r"^([\w.]+) = ")


class Explorer:
    def __init__(
        self,
        machine: str | Path | Machine | None = None,
        own: Iterable[Callable[..., object]] = (),
        *,
        limits: Limits = NO_LIMITS,
        page: bool = False,
        quota: Quota | None = None,
    ) -> None:
        self.form = MachineForm(machine, page=page)
        self.limits, self.quota = limits, quota
        self.workloads = workloads(own)
        self.options = Options()
        self.state = State()
        self.history: list[Entry] = []
        self.baseline: Entry | None = None
        self.auto = True
        self.on_change: list[Callable[[], None]] = []
        self.on_beat: list[Callable[[], None]] = []  # called more than twice a second during a run
        self._job: RunJob | None = None
        self._behind: RunJob | None = None
        self._took_s: dict[str, float] = {}  # by the last run of each workload
        self._runs = 0
        self._again = False
        self._lock = threading.Lock()
        self._results: dict[int, Result] = {}
        for name in self.workloads:
            self.choose(name)
            if not self.wrong:
                break

    # -- what to run

    def choose(self, name: str) -> None:
        if name not in self.workloads:
            raise ConfigError(f"{name!r} cannot be run; {hint(name, self.workloads)}")
        self.workload = self.workloads[name]
        self._unread: dict[str, str] = {}
        self._checked: tuple[object, dict[str, str]] = (None, {})
        self._usual = {x.name: x.usual(self.form.machine) for x in self.workload.parameters}
        self.values: dict[str, ParameterValue] = dict(self._usual)

    def settle(self) -> None:
        """Update parameters that still have the previous machine's default to that of the new machine."""
        before, self._usual = self._usual, {x.name: x.usual(self.form.machine) for x in self.workload.parameters}
        for name, value in self._usual.items():
            if self.values[name] == before[name] and name not in self._unread:
                self.values[name] = value

    def set(self, name: str, given: object) -> bool:
        [parameter] = [x for x in self.workload.parameters if x.name == name]
        try:
            self.values[name] = parameter.parse(given, self.form.machine)
        except ConfigError as error:
            self._unread[name] = str(error)
            return False
        self._unread.pop(name, None)
        return True

    @property
    def wrong(self) -> dict[str, str]:
        """Message for each invalid parameter or field of the machine; key "" for faults of several.

        All faults of a study are known before it runs; of other programs, only texts that are not values.
        """
        return self._unread or self._faults()

    @property
    def machine(self) -> Machine:
        """The machine of a run: that of the form, with the workload's changes; a ConfigError if it is invalid."""
        changes = self.workload.changes(self.form.machine, self.values)
        return self.form.machine.with_(changes) if changes else self.form.machine

    def _faults(self) -> dict[str, str]:
        point = (self.workload, dict(self.values), self.form.machine.hash)
        if self._checked[0] != point:
            wrong: dict[str, str] = {}
            try:
                self.workload.check(self.machine, **self.values)
            except ConfigError as error:
                for fault in error.faults:
                    found = _PLACE.match(fault)
                    place = found[1] if found and (found[1] in self.values or found[1] in self.form.fields()) else ""
                    wrong[place] = "; ".join(x for x in (wrong.get(place), fault) if x)
            self._checked = (point, wrong)
        return self._checked[1]

    def set_option(self, name: str, value: Any) -> None:
        if name not in _OPTIONS:
            raise ConfigError(f"option {name!r} is unknown; {hint(name, _OPTIONS)}")
        if value not in _OPTIONS[name]:
            raise ConfigError(f"{name} = {value!r} is unknown; {hint(value, map(str, _OPTIONS[name]))}")
        self.options = replace(self.options, **{name: value})

    @property
    def obstacle(self) -> str:
        if self.state.busy:
            return "a run is under way"
        if self._job is not None and not self._job.ended:
            return "the cancelled run is ending"
        if self.form.wrong:
            return "the machine has wrong values"
        if self.wrong:
            return "a parameter is wrong"
        if self.quota is not None and self.quota.spent:
            runs = f"{self.quota.most:,} run{'s' * (self.quota.most != 1)}"
            return f"you have started {runs} within an hour, as many as this page allows; try later"
        return ""

    @property
    def runs_by_itself(self) -> bool:
        """Whether a change of a control starts a run: the result is outdated, and the workload's last run was quick."""
        quick = self._took_s.get(self.workload.name, inf) < AUTO_RUN_S
        return self.auto and quick and bool(self.changes) and not self.obstacle

    @property
    def changes(self) -> list[str]:
        if self.state.finished is None:
            return []
        entry = self.state.finished.entry
        before: dict[str, Any] = {"run": entry.workload.name, **asdict(entry.options)}
        now: dict[str, Any] = {"run": self.workload.name, **asdict(self.options)}
        if entry.workload == self.workload:
            before, now = before | entry.values, now | self.values
        found = [f"{name} was {before[name]}, is {now[name]}" for name in now if before[name] != now[name]]
        if self.form.wrong or self.wrong:
            return [*found, "a value is wrong"]
        machine = machine_changes(entry.machine.spec, self.machine.spec)
        return found + [f"{x.field} was {value_text(x.before)}, is {value_text(x.after)}" for x in machine]

    @property
    def current(self) -> bool:
        return self.state.finished is not None and not self.changes

    @property
    def status(self) -> str:
        return OUTDATED if self.state.status == DONE and self.changes else self.state.status

    @property
    def now_ns(self) -> float | None:
        state = self.state
        if state.frame is not None:
            return state.frame.now_ns
        shown = state.finished if state.status == DONE or state.ending else None
        return shown.entry.latency_ns if shown is not None else None

    @property
    def phase(self) -> str:
        return READING_RESULT if self.state.ending or self._job is None else self._job.phase

    @property
    def seconds(self) -> float:
        return self._job.seconds if self._job is not None else 0.0

    @property
    def message(self) -> str:
        return "; ".join(self.changes) if self.status == OUTDATED else self.state.message

    # -- running

    def run(self, *, again: bool = False) -> bool:
        with self._lock:
            if self.obstacle:
                return False
            if self.quota is not None:
                self.quota.take()
            self._runs += 1
            form, values, machine = self.form, dict(self.values), self.machine
            overrides = (*form.overrides(), *self.workload.changes(form.machine, values))
            entry = Entry(self._runs, self.workload, values, machine, machine.source, overrides, self.options)
            before = (lambda: None) if again else partial(self._found, entry)
            self._job = RunJob(
                entry.machine,
                self.workload.program(values),
                entry.name,
                self.options,
                partial(self._observed, entry),
                partial(self._ended, entry),
                before,
                self.limits,
                self._beat,
            )
            self.state = State(RUNNING, entry=entry, finished=self.state.finished)
            behind = self._behind
            if behind is not None:
                behind.cancel()
        self._changed()
        self._job.start(behind)
        return True

    def latency_behind(self, entry: Entry) -> float | None:
        """Latency of a background run [ns]: from the cache, or simulated while no other runs.

        None if a run of the user preempted it; a StateError if the run fails.
        """
        place = cached_run(entry)
        row = place.cache.get([place.key]).get(place.key) if place is not None else None
        if row is not None:
            return float(row["run_ns"])
        ended: list[RunOutcome] = []
        job = RunJob(
            entry.machine, entry.workload.program(entry.values), entry.name, entry.options, None, ended.append,
            limits=self.limits,
        )  # fmt: skip
        with self._lock:
            if self.state.busy or (self._job is not None and not self._job.ended):
                return None
            self._behind = job
            job.start(self._job)
        job.wait()
        [outcome] = ended
        if outcome.cancelled:
            return None
        if outcome.result is None:
            raise StateError(outcome.error)
        if place is not None:
            place.keep_row(outcome)
        return outcome.result.latency_ns

    def stop_behind(self) -> None:
        behind = self._behind
        if behind is not None:
            behind.cancel()

    def touched(self) -> None:
        """React to a changed control: start a run if it is automatic, now or when this one ends."""
        self._again = self.state.busy
        if self.runs_by_itself:
            self.run()

    def cancel(self) -> bool:
        """End the run; False if none is in progress.

        Until its thread has noticed, its output is discarded, and no other run begins.
        """
        with self._lock:
            if self._job is None or not self.state.busy or self.state.ending:
                return False
            self._job.cancel()
            self.state = replace(self.state, status=CANCELLED, message="")
        self._changed()
        return True

    def wait(self, timeout_s: float | None = None) -> bool:
        return self._job is None or self._job.wait(timeout_s)

    def _found(self, entry: Entry) -> RunOutcome | None:
        """Look up a run in the cache; for a point of a sweep, whose log was not stored, display only the time."""
        place = cached_run(entry)
        found = place.find() if place is not None else None
        if isinstance(found, dict):
            message = f"in the cache: {found['run_ns']:,.1f} ns; its log is not there, so it is simulated for that"
            self._replace(entry, message=message)
            return None
        return found

    def _beat(self) -> None:
        for listener in self.on_beat:
            listener()

    def _observed(self, entry: Entry, frame: Frame) -> None:
        self._replace(entry, frame=frame)

    def _replace(self, entry: Entry, **fields: Any) -> bool:
        """Change the state of a run in progress; False if it is not in progress any more."""
        with self._lock:
            if self.state.entry is not entry or not self.state.busy:
                return False
            self.state = replace(self.state, **fields)
        self._changed()
        return True

    def _ended(self, entry: Entry, outcome: RunOutcome) -> None:
        name = entry.workload.name
        least = self._took_s.get(name, inf) if outcome.result is None else 0.0  # a run without a result ended early
        self._took_s[name] = max(outcome.seconds, least)
        if outcome.result is None:
            if not self._replace(entry, status=FAILED, message=outcome.error):
                self._changed()  # cancelled: now another run may begin
        else:
            self._done(entry, outcome)
        if self._again:
            self.touched()

    def _done(self, entry: Entry, outcome: RunOutcome) -> None:
        result = outcome.result
        assert result is not None
        entry_done = replace(entry, latency_ns=result.latency_ns, seconds=outcome.seconds)
        place = cached_run(entry_done)
        if place is not None:
            for same in self.history:
                if same.key == place.key:
                    entry_done = replace(entry_done, label=same.label, note=same.note)
            place = replace(place, entry=entry_done)
            # First, so that a run that is displayed as done is stored even if the process ends.
            kept = outcome.made > 0 or place.keep(outcome)
            entry_done = replace(entry_done, key=place.key, logged=kept)
        with self._lock:
            if self.state.entry is not entry or not self.state.busy:
                return
            self._show(Finished(entry_done, outcome), _origin(outcome))
        self._explain()

    def _show(self, finished: Finished, message: str) -> None:
        self.history = [*self.history, finished.entry][-HISTORY:]
        self._keep(finished.entry, finished.result)
        self.state = State(RUNNING, message, None, finished.entry, finished)

    def _explain(self) -> None:
        """Display the run, then compute its critical path and display it, too."""
        finished = self.state.finished
        assert finished is not None
        self._changed()
        with self._lock:
            done = self.state = replace(self.state, status=DONE)
        self._changed()
        try:
            why: Why | str = finished.result.why()
        except KernbenchError as error:
            why = str(error)
        with self._lock:
            if self.state is not done:
                return
            self.state = replace(done, finished=replace(finished, why=why))
        self._changed()

    def open(self, name: str, content: bytes) -> None:
        """Display a saved result as a run of the history, and select its workload, if that is available here.

        A ConfigError if it is damaged, or is no result of kernbench, or does not contain its machine; a StateError if a
        run is in progress.
        """
        result = read_content(name, content)
        manifest, spec = result.manifest, result.records.spec
        if not spec:
            raise ConfigError(f"{name}: does not contain its machine; run it again")
        machine = Machine(resolve_topology(spec).config, manifest.machine or name)
        if self.form.page:
            self.form.refuse_code(name, machine)
        with self._lock:
            if self.state.busy:
                raise StateError(f"a run is under way; open {name} when it has ended")
            self._runs += 1
            self._choose_as(manifest, machine)
            program = self.workloads.get(manifest.program) or not_here(manifest.program or result.name)
            options = _options(manifest)
            entry = Entry(
                self._runs,
                program,
                {**manifest.parameters},
                machine,
                machine.source,
                manifest.overrides,
                options,
                result.latency_ns,
                label=result.name,
            )
            outcome = RunOutcome(replace(result, name=entry.name))
            self._show(Finished(entry, outcome), f"from {name}: {manifest}")
        self._explain()

    def _choose_as(self, manifest: Manifest, machine: Machine) -> None:
        """Select the workload of a saved result, if available; a file from elsewhere may name anything."""
        changes = dict(override.partition("=")[::2] for override in manifest.overrides)
        known = manifest.machine in self.form.sources().values() and manifest.program in self.workloads
        if not known or not changes.keys() <= self.form.fields().keys():
            return
        try:
            if resolve_topology(manifest.machine, manifest.overrides).hash != machine.hash:
                return
        except ConfigError:
            return
        self.form.load(manifest.machine)
        for path, text in changes.items():
            self.form.set(path, text)
        self.choose(manifest.program)
        for name in manifest.parameters.keys() & self.values.keys():
            self.set(name, manifest.parameters[name])
        self.options = _options(manifest)

    def _changed(self) -> None:
        for listener in self.on_change:
            listener()

    # -- looking back

    @property
    def result(self) -> Result | None:
        return self.state.finished.result if self.state.finished else None

    def result_of(self, entry: Entry) -> Result:
        """From memory or the cache; a StateError if the log is no longer stored."""
        if entry.number not in self._results:
            result = read_log(entry.key, entry.name) if entry.logged else None
            if result is None:
                raise StateError(f"the log of run {entry.number} is no longer kept; run it again")
            self._keep(entry, result)
        return self._results[entry.number]

    def with_results(self) -> list[Entry]:
        return [entry for entry in self.history if entry.logged or entry.number in self._results]

    def restore(self) -> None:
        """Start the history with the latest runs in the cache; their results are read on demand."""
        cache = default_cache()
        for key, point in reversed((cache.noted(HISTORY) if cache is not None else {}).items()):
            said = point.notes.get("run")
            if not isinstance(said, dict):
                continue  # a run that was stored by an earlier version
            try:
                machine = Machine(machine_of(said["spec"]).config, said["source"])
                workload = self.workloads.get(said["workload"]) or not_here(said["workload"])
                entry = Entry(
                    self._runs + 1, workload, said["values"], machine, said["source"], tuple(said["overrides"]),
                    Options(**said["options"]), float(said["latency_ns"]), point.seconds, key,
                    point.log is not None, point.row, str(said.get("label", "")), str(said.get("note", "")),
                )  # fmt: skip
            except (ConfigError, LookupError, TypeError, ValueError):
                continue
            self._runs += 1
            self._took_s[workload.name] = entry.seconds
            self.history.append(entry)

    def delete(self, *entries: Entry) -> None:
        gone = {entry.number for entry in entries or self.history}
        cache = default_cache() if not self.form.page else None  # visitors of a page share its cache
        if cache is not None:
            cache.delete(entry.key for entry in self.history if entry.number in gone and entry.key)
        with self._lock:
            self.history = [entry for entry in self.history if entry.number not in gone]
            for number in gone:
                self._results.pop(number, None)
            if self.baseline is not None and self.baseline.number in gone:
                self.baseline = None
        self._changed()

    def annotate(self, number: int, changes: dict[str, Any]) -> None:
        """Set `label` or `note` of a run, also where the same run is in the history again, and in the cache."""
        with self._lock:
            [entry] = [x for x in self.history if x.number == number]
            same = {x.number for x in self.history if x.number == number or (entry.key and x.key == entry.key)}
            self.history = [replace(x, **changes) if x.number in same else x for x in self.history]
            finished = self.state.finished
            if finished is not None and finished.why is not None and finished.entry.number in same:
                entry_now = replace(finished.entry, **changes)
                self.state = replace(self.state, finished=replace(finished, entry=entry_now))
        cache = default_cache() if not self.form.page else None  # visitors of a page share its cache
        if cache is not None and entry.key:
            cache.annotate(entry.key, {"run": changes})
        self._changed()

    def compared(self, after: Entry, before: Entry) -> Comparison:
        """Compare two runs of one workload; an ArgumentError for others."""
        if after.workload.name != before.workload.name:
            said = " and ".join(f"run {x.number} is of {x.workload.name}" for x in (before, after))
            raise ArgumentError(f"{said}: only runs of one workload are compared")
        return compare(self.result_of(before), self.result_of(after))

    def _keep(self, entry: Entry, result: Result) -> None:
        """Keep a result in memory, and drop the oldest above `KEPT_ROWS`; the baseline stays."""
        self._results[entry.number] = result
        rows = 0
        for number in sorted(self._results, reverse=True):
            rows += len(self._results[number].records)
            if rows > KEPT_ROWS and number != entry.number and (not self.baseline or number != self.baseline.number):
                del self._results[number]


def _options(manifest: Manifest) -> Options:
    given: dict[str, Any] = {name: value for name, value in manifest.options.items() if value in _OPTIONS.get(name, ())}
    return replace(Options(), **given)


def _origin(outcome: RunOutcome) -> str:
    if not outcome.made:
        return ""
    made = time.strftime("%Y-%m-%d %H:%M", time.localtime(outcome.made))
    return f"from the cache: simulated {made} in {outcome.seconds:,.1f} s"
