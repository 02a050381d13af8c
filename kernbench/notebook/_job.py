"""One run in a thread, which builds and closes it (greenlets never cross threads), and its place in the cache."""

from __future__ import annotations

import gc
import io
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from kernbench.analysis._records import COLUMNS, Records
from kernbench.analysis.result import LABELS, Result
from kernbench.analysis.utilization import LinkTraffic
from kernbench.benches.registry import env_settings
from kernbench.errors import ConfigError, KernbenchError, LimitError
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine._limits import NONE, Expired, Limits, Watchdog, limited
from kernbench.sim_engine._observer import ENGINES, Observer
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sweeps import _worker as rows
from kernbench.sweeps._cache import Cache, CachedPoint, default_cache
from kernbench.sweeps._keys import Row, Study, only_ours, study_name, study_version, sweep_key
from kernbench.sweeps._measure import complete, row_of
from kernbench.sweeps._plan import resolve_study
from kernbench.viz import _palette as palette

if TYPE_CHECKING:
    from kernbench.notebook._model import Entry
    from kernbench.sim_engine._observer import Counters
    from kernbench.topology.builder import Machine


SHOWN_LINKS = 6


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the live view shows."""

    now_ns: float
    busy_ns: dict[str, float]
    links: dict[str, float]
    n_pes: int
    done: int = 0
    total: int = 0
    events: int = 0
    events_per_s: float = 0.0


def snapshot_of(records: Records) -> Snapshot:
    """Return the snapshot at the end of `records`."""
    result = Result(records)
    busy_ns = result.breakdown.busy_ns()
    return Snapshot(
        result.latency_ns,
        {engine: busy_ns[engine] for engine in ENGINES},
        {link.name: link.share for link in result.busiest_links(SHOWN_LINKS)},
        len(records.pes()),
    )


def live_snapshot(counters: Counters, events_per_s: float) -> Snapshot:
    """Return the snapshot of a run from its counters."""
    now, n_pes = counters.now_ps, len(counters.pes)
    first = np.argsort(-counters.busy_ps, kind="stable")[:SHOWN_LINKS].tolist()
    links = {counters.links[i]: int(counters.busy_ps[i]) / now for i in first if counters.busy_ps[i]}
    busy = counters.engine_busy_ps.sum(axis=0) / (1000 * max(1, n_pes))
    return Snapshot(
        now / 1000,
        dict(zip(ENGINES, busy.tolist(), strict=True)),
        links,
        n_pes,
        done=counters.done,
        total=counters.total,
        events=counters.events,
        events_per_s=events_per_s,
    )


class Replay:
    """A finished run, shown again at any simulated time."""

    def __init__(self, records: Records) -> None:
        self.records = records

    @property
    def end_ps(self) -> int:
        """When the run ended."""
        return self.records.makespan_ps

    def snapshot(self, t_ps: int) -> Snapshot:
        """Return the snapshot at a simulated time: that of the log cut there."""
        return snapshot_of(self.cut(t_ps))

    def cut(self, t_ps: int) -> Records:
        """Return the log up to a time: rows begun by then, cut at it, and the traffic of links."""
        records = self.records
        t = max(0, min(t_ps, records.makespan_ps))
        if t == records.makespan_ps:
            return records
        begun = records.start_ps < t
        columns = {name: getattr(records, name)[begun] for name in COLUMNS}
        columns["end_ps"] = np.minimum(columns["end_ps"], t)
        return replace(
            records,
            **columns,
            links=self._traffic.between(0, t),
            component_busy_ps=None,
            makespan_ps=t,
            launches=tuple(replace(x, end_ps=min(x.end_ps, t)) for x in records.launches if x.start_ps < t),
            complete=False,
        )

    @cached_property
    def _traffic(self) -> LinkTraffic:
        return LinkTraffic(self.records)


_BAR = "rgba(0,114,178,.35)"
_COLOURS = {
    "failed": palette.VERMILION, "outdated": palette.ORANGE, "done": palette.GREEN, "running": palette.BLUE,
}  # fmt: skip


def snapshot_html(snapshot: Snapshot | None, status: str, message: str = "", end_ns: float | None = None) -> str:
    """Return a snapshot as HTML, below the status of the run."""
    parts = [_status(status, message)]
    if snapshot is not None:
        parts += [_clock(snapshot, end_ns), _busy(snapshot)]
    return f'<div class="kb-frame">{"".join(parts)}</div>'


def _status(status: str, message: str) -> str:
    colour = _COLOURS.get(status, palette.GREY)
    lines = escape(message).replace("\n", "<br>")
    return (
        f'<div class="kb-status" role="status" style="border-left:4px solid {colour};padding-left:8px">'
        f"<b>{escape(status)}</b> <span class='kb-message'>{lines}</span></div>"
    )


def _clock(snapshot: Snapshot, end_ns: float | None) -> str:
    facts = [f'<b class="kb-now">{snapshot.now_ns:,.1f} ns</b>']
    if end_ns is not None:
        facts.append(f"of {end_ns:,.1f} ns")
    if snapshot.events:
        facts.append(f"{snapshot.events:,} events, {snapshot.events_per_s:,.0f} a second")
    if snapshot.total:
        facts.append(f"{snapshot.done} of {snapshot.total} programs ended")
    facts.append(f"mean of {snapshot.n_pes} PEs" if snapshot.n_pes > 1 else "")
    return f'<div style="margin:6px 0">simulated time {" &nbsp; ".join(x for x in facts if x)}</div>'


def _busy(snapshot: Snapshot) -> str:
    now = max(snapshot.now_ns, 1e-3)
    engines = "".join(_row(LABELS[name], ns / now) for name, ns in snapshot.busy_ns.items() if ns)
    links = "".join(_row(f"<code>{escape(name)}</code>", share) for name, share in snapshot.links.items())
    return "".join(
        f'<table class="kb-table {kind}"><tr><th>{title}</th><th>busy so far</th></tr>{rows}</table>'
        for kind, title, rows in (
            ("kb-engines", "engines of a PE, mean", engines),
            ("kb-links", "busiest links", links),
        )
        if rows
    )


def _row(name: str, share: float) -> str:
    bar = f"background:linear-gradient(90deg,{_BAR} {share:.1%},transparent {share:.1%})"
    return f'<tr><td>{name}</td><td style="text-align:right;min-width:110px;{bar}">{share:.1%}</td></tr>'


STUDIES, BENCHES = "kernbench.studies.", "kernbench.benches."
_NOTES = {"checks": int, "printed": str, "events": int}
LOG_ROWS = 300_000  # some 10 MB; of a longer run only the row is kept


@dataclass(frozen=True, slots=True)
class Shown:
    """What a program returned, as HTML."""

    html: str

    def _repr_html_(self) -> str:
        return self.html


@dataclass(frozen=True, slots=True)
class CachedRun:
    """The place of a run in the cache: that of the same point in a sweep."""

    cache: Cache
    key: str
    study: str
    version: str
    entry: Entry
    parameters: Row

    def find(self) -> Outcome | Row | None:
        """Return the outcome of a finished run of this; only its row if its log is not kept, as of a sweep."""
        found = self.cache.find(self.key)
        if found is None:
            return None
        if found.log is None:
            return found.row
        try:
            return self._outcome(found, found.log)
        except (ConfigError, LookupError, TypeError):
            self.cache.drop(self.key)
        except OSError as error:
            warnings.warn(f"the log of a run in the cache is not read: {error}", RuntimeWarning, stacklevel=2)
        return None

    def _outcome(self, found: CachedPoint, log: bytes) -> Outcome:
        notes: Any = dict(found.notes)
        shown = notes.pop("shown")
        if {name: type(value) for name, value in notes.items()} != _NOTES:
            raise TypeError("not the notes on a run")
        return Outcome(
            Result(_unpacked(log), self.entry.name),
            shown=Shown(str(shown["html"])) if isinstance(shown, dict) else shown,
            seconds=found.seconds,
            made=found.made,
            **notes,
        )

    def keep(self, outcome: Outcome) -> None:
        """Keep the outcome of a run, for all later runs of the same point."""
        result, entry = outcome.result, self.entry
        assert result is not None
        row = rows.attempt(
            lambda _: row_of(result, entry.machine, outcome.shown, self.parameters.get("dtype", "f16")), {}
        )
        if row.status != rows.OK:  # the program returned what no table can hold
            return
        self.cache.put(self.key, row.row, self.study, entry.machine.hash, self.version, outcome.seconds)
        if len(result.records) <= LOG_ROWS:
            try:
                self.cache.put_log(self.key, _packed(result.records), _notes(outcome))
            except OSError as error:
                warnings.warn(f"the log of a run is not kept: {error}", RuntimeWarning, stacklevel=2)


def cached_run(entry: Entry) -> CachedRun | None:
    """Return the place of a run in the cache; None where it has none.

    Studies and benches of the package have one, with the packaged ccl.yaml, on machines of built-in components; a
    bench's settings in the environment are part of it. User-defined code may read anything, so it runs each time.
    """
    cache, workload, options = default_cache(), entry.workload, asdict(entry.options)
    module = getattr(workload.function, "__module__", "")
    if cache is None or not module.startswith((STUDIES, BENCHES)) or not only_ours(entry.machine):
        return None
    try:
        fn: Study = resolve_study(workload.function)
    except ConfigError:  # its parameters conflict with those of the run
        return None
    version = study_version(fn)
    parameters = complete(fn, {**entry.values, **options})
    if module.startswith(BENCHES):
        parameters["environment"] = env_settings()
    return CachedRun(
        cache, sweep_key(study_name(fn), version, entry.machine, parameters), study_name(fn), version, entry, parameters
    )


def _notes(outcome: Outcome) -> Row:
    """Return what the panel shows in addition to the result."""
    shown, html = outcome.shown, getattr(outcome.shown, "_repr_html_", None)
    return {
        "checks": outcome.checks,
        "printed": outcome.printed,
        "events": outcome.events,
        "shown": {"html": str(html())} if callable(html) else shown if isinstance(shown, str) else None,
    }


def _packed(records: Records) -> bytes:
    with TemporaryDirectory() as folder:
        return records.save(Path(folder) / "log").read_bytes()


def _unpacked(log: bytes) -> Records:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        path.write_bytes(log)
        return Records.load(path)


_EVERY_S = 0.1
_COST = 10  # a snapshot is due again after this many times what the last one took


@dataclass(frozen=True, slots=True)
class Options:
    """How a program is run."""

    data: bool = True
    log: str = "tile"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a run."""

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
    """Reports snapshots of a run some times a second."""

    def __init__(self, report: Callable[[Snapshot], None]) -> None:
        self._report = report
        self._due, self._before = 0.0, (time.perf_counter(), 0)

    def pulse(self, engine: GraphEngine) -> None:
        """Report a snapshot of the engine, if that is due."""
        now = time.perf_counter()
        if now < self._due:
            return
        then, events = self._before
        self._before = now, engine.env.events
        self._report(live_snapshot(engine.counters(), (engine.env.events - events) / max(1e-9, now - then)))
        self._due = time.perf_counter() + max(_EVERY_S, _COST * (time.perf_counter() - now))


@dataclass(eq=False)
class Job:
    """A run under way."""

    machine: Machine
    program: Callable[[RuntimeContext], object]
    name: str
    options: Options
    on_snapshot: Callable[[Snapshot], None]
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
        with _captured() as printed:
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
            return Outcome(error=_describe(error))

    def _run(self) -> Outcome:
        options = self.options
        watch = Watch(self.on_snapshot)
        engine = GraphEngine(self.machine, options.data, log=options.log, observers=[watch], live=True)
        with limited(self.limits), RuntimeContext(engine, correlation_id=self.name) as torch:
            shown = self.program(torch)
        return Outcome(torch.result, checks=torch.checks, shown=shown, events=engine.env.events)


def _describe(error: BaseException) -> str:
    """Return the message of an error, and where in the user's program it was raised."""
    frames = [x for x in traceback.extract_tb(error.__traceback__) if "kernbench/" not in x.filename.replace("\\", "/")]
    where = f" (line {frames[-1].lineno}, in {frames[-1].name})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


class _ThreadOutput(io.TextIOBase):
    """Captures what one thread prints; other threads print as before."""

    def __init__(self, outer: io.TextIOBase) -> None:
        self.outer, self.text, self._thread = outer, io.StringIO(), threading.get_ident()

    def write(self, text: str) -> int:
        return (self.text if threading.get_ident() == self._thread else self.outer).write(text)

    def flush(self) -> None:
        self.outer.flush()


@contextmanager
def _captured() -> Iterator[_ThreadOutput]:
    """Capture what this thread prints: text of a thread reaches no cell."""
    printed = _ThreadOutput(sys.stdout)  # type: ignore[arg-type]
    sys.stdout = printed
    try:
        yield printed
    finally:
        if sys.stdout is printed:
            sys.stdout = printed.outer
