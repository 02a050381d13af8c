"""One run in a thread, which creates and closes it (greenlets never cross threads), and its entry in the cache."""

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
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from kernbench._engine_selection import PACKAGE
from kernbench.analysis._records import Records
from kernbench.analysis.result import Result
from kernbench.errors import ConfigError, KernbenchError, LimitError
from kernbench.notebook._live import Frame, FrameObserver
from kernbench.points._cache import Cache, CachedPoint, default_cache
from kernbench.points._keys import Row, StudyFn, only_ours, study_name, study_version, sweep_key
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine._limits import NO_LIMITS, Expired, Limits, Watchdog, limited
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sweeps import _worker as rows
from kernbench.sweeps._measure import complete, row_of
from kernbench.sweeps._plan import resolve_study
from kernbench.topology.builder import Machine

if TYPE_CHECKING:
    from kernbench.notebook._model import Entry

_STUDIES, _BENCHES, _COLLECTIVES = "kernbench.studies.", "kernbench.benches.", "kernbench.notebook._collectives"
_NOTES = {"checks": int, "printed": str, "events": int}
FINDING, BUILDING, READING_RESULT = "looking in the cache", "building the machine", "reading the result"
_BEAT_S = 0.25
LOG_ROWS = 2_000_000  # 10 to 60 MB; of a longer run only the row is stored


@dataclass(frozen=True, slots=True)
class Shown:
    html: str

    def _repr_html_(self) -> str:
        return self.html


@dataclass(frozen=True, slots=True)
class CachedRun:
    """A run's key in the cache, shared with the same point of a sweep."""

    cache: Cache
    key: str
    study: str
    version: str
    entry: Entry
    parameters: Row

    def find(self) -> RunOutcome | Row | None:
        """Look up the outcome; only the row if the log was not stored, as for points of a sweep."""
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

    def _outcome(self, found: CachedPoint, log: bytes) -> RunOutcome:
        notes: Any = dict(found.notes)
        shown = notes.pop("shown")
        notes.pop("run", None)
        if {name: type(value) for name, value in notes.items()} != _NOTES:
            raise TypeError("not the notes on a run")
        return RunOutcome(
            Result(_unpacked(log), self.entry.name),
            shown=Shown(str(shown["html"])) if isinstance(shown, dict) else shown,
            seconds=found.seconds,
            made=found.made,
            **notes,
        )

    def keep(self, outcome: RunOutcome) -> bool:
        """Store the outcome for later runs of the same point; return whether its log is stored, too."""
        result, entry = outcome.result, self.entry
        assert result is not None
        if not self.keep_row(outcome):
            return False
        log = None
        if len(result.records) <= LOG_ROWS:
            try:
                log = written(result.records.save, "log")
            except OSError as error:
                warnings.warn(f"the log of a run is not kept: {error}", RuntimeWarning, stacklevel=2)
        self.cache.put_log(self.key, log, {**_notes(outcome), "run": _said(entry, result.latency_ns)})
        return log is not None

    def keep_row(self, outcome: RunOutcome) -> bool:
        result, machine = outcome.result, self.entry.machine
        assert result is not None
        row = rows.attempt(lambda _: row_of(result, machine, outcome.shown, self.parameters.get("dtype", "f16")), {})
        if row.status != rows.OK:  # the program returned values that no table can hold
            return False
        self.cache.put(self.key, row.row, self.study, machine.hash, self.version, outcome.seconds)
        return True


def cached_run(entry: Entry) -> CachedRun | None:
    """Place of a run in the cache; None if it has none.

    Studies and benches of the package have one, with the packaged ccl.yaml, on machines of built-in components.
    User-defined code may read anything, so it runs each time.
    """
    cache, workload, options = default_cache(), entry.workload, asdict(entry.options)
    inner: Any = workload.function
    while isinstance(inner, partial):
        inner = inner.func
    module = getattr(inner, "__module__", "")
    if cache is None or not module.startswith((_STUDIES, _BENCHES, _COLLECTIVES)) or not only_ours(entry.machine):
        return None
    try:
        fn: StudyFn = resolve_study(workload.function)
    except ConfigError:  # its parameters conflict with those of the run
        return None
    version = study_version(fn)
    parameters = complete(fn, {**workload.arguments(entry.values), **options})
    return CachedRun(
        cache, sweep_key(study_name(fn), version, entry.machine, parameters), study_name(fn), version, entry, parameters
    )


def _said(entry: Entry, latency_ns: float) -> Row:
    """Content of a cached run for `Explorer.restore`."""
    return {
        "workload": entry.workload.name,
        "values": dict(entry.values),
        "options": asdict(entry.options),
        "source": entry.source,
        "overrides": list(entry.overrides),
        "spec": dict(entry.machine.spec),
        "latency_ns": latency_ns,
        "label": entry.label,
        "note": entry.note,
    }


def read_log(key: str, name: str) -> Result | None:
    cache = default_cache()
    found = cache.find(key) if cache is not None else None
    return None if found is None or found.log is None else Result(_unpacked(found.log), name)


def _notes(outcome: RunOutcome) -> Row:
    """Everything that the panel displays in addition to the result."""
    shown, html = outcome.shown, getattr(outcome.shown, "_repr_html_", None)
    return {
        "checks": outcome.checks,
        "printed": outcome.printed,
        "events": outcome.events,
        "shown": {"html": str(html())} if callable(html) else shown if isinstance(shown, str) else None,
    }


def written(save: Callable[[Path], Path], name: str) -> bytes:
    """Return the content of the file that `save` writes; its ending may matter."""
    with TemporaryDirectory() as folder:
        return save(Path(folder) / name).read_bytes()


def _unpacked(log: bytes) -> Records:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        path.write_bytes(log)
        return Records.load(path)


@dataclass(frozen=True, slots=True)
class Options:
    data: bool = True
    log: str = "tile"


@dataclass(frozen=True, slots=True)
class RunOutcome:
    result: Result | None = None
    error: str = ""
    cancelled: bool = False
    checks: int = 0
    shown: object = None
    printed: str = ""
    events: int = 0
    seconds: float = 0.0
    made: float = 0.0


@dataclass(eq=False)
class RunJob:
    """A run in progress; `on_beat` is called more than twice a second from start to end, even without frames."""

    machine: Machine
    program: Callable[[RuntimeContext], object]
    name: str
    options: Options
    on_frame: Callable[[Frame], None] | None
    on_end: Callable[[RunOutcome], None]
    before: Callable[[], RunOutcome | None] = lambda: None
    limits: Limits = NO_LIMITS
    on_beat: Callable[[], None] = lambda: None
    _begin: float = field(default_factory=time.perf_counter, init=False)
    _phase: str = field(default=FINDING, init=False)
    _watch: FrameObserver | None = field(default=None, init=False)
    _stop: threading.Event = field(default_factory=threading.Event, init=False)
    _ended: threading.Event = field(default_factory=threading.Event, init=False)
    _over: threading.Event = field(default_factory=threading.Event, init=False)
    _watchdog: Watchdog | None = field(default=None, init=False)

    def start(self, after: RunJob | None = None) -> None:
        """Start when `after` has ended, because the output of two concurrent threads cannot be separated."""
        threading.Thread(target=self._to_the_end, args=(after,), name="kernbench run", daemon=True).start()
        if self.on_frame is not None:
            threading.Thread(target=self._beat, name="kernbench beat", daemon=True).start()

    def _beat(self) -> None:
        while not self._over.wait(_BEAT_S):
            self.on_beat()

    @property
    def phase(self) -> str:
        return self._phase or (self._watch.phase if self._watch is not None else "")

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._begin

    def cancel(self) -> None:
        """End the run at the next instruction of its Python code."""
        if not self._stop.is_set():
            self._stop.set()
            if self._watchdog is not None:
                self._watchdog.start(0)

    @property
    def ended(self) -> bool:
        """True even while results are still being read."""
        return self._ended.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        return self._over.wait(timeout_s)

    def _to_the_end(self, after: RunJob | None) -> None:
        if after is not None:
            after.wait()
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
        # An engine is full of cycles, and large. That of a short run is still in the youngest generation.
        gc.collect(2 if seconds > 1 else 1)

    def _outcome(self) -> RunOutcome:
        watchdog = self._watchdog = Watchdog(lambda _: LimitError("cancelled"))
        try:
            outcome = self._attempt()
        except Expired:
            outcome = RunOutcome(cancelled=True)
        while True:
            try:
                watchdog.close()
                break
            except Expired:
                continue
        return RunOutcome(cancelled=True) if self._stop.is_set() else outcome

    def _attempt(self) -> RunOutcome:
        try:
            if self._stop.is_set():
                return RunOutcome(cancelled=True)
            return self.before() or self._run()
        except KernbenchError as error:
            return RunOutcome(error=str(error))
        except BaseException as error:  # noqa: BLE001 - whatever a user's program raises is shown to its user
            return RunOutcome(error=_describe(error))

    def _run(self) -> RunOutcome:
        options, self._phase = self.options, BUILDING
        self._watch = FrameObserver(self.on_frame) if self.on_frame is not None else None
        watched = [self._watch] if self._watch is not None else []
        engine = GraphEngine(self.machine, options.data, log=options.log, observers=watched, live=bool(watched))
        if self._watch is not None:
            self._watch.engine = engine
        with limited(self.limits), RuntimeContext(engine, correlation_id=self.name) as torch:
            self._phase = ""
            shown = self.program(torch)
        self._phase = READING_RESULT
        return RunOutcome(torch.result, checks=torch.checks, shown=shown, events=engine.env.events)


def _describe(error: BaseException) -> str:
    """Return the error, with the innermost line that is not the package's."""
    lines = traceback.extract_tb(error.__traceback__)
    # Compiled modules have relative names.
    frames = [x for x in lines if not (PACKAGE.parent / x.filename).is_relative_to(PACKAGE)]
    where = f" (line {frames[-1].lineno}, in {frames[-1].name})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


class _ThreadOutput(io.TextIOBase):
    """Captures the output of one thread; other threads print as before."""

    def __init__(self, outer: io.TextIOBase) -> None:
        self.outer, self.text, self._thread = outer, io.StringIO(), threading.get_ident()

    def write(self, text: str) -> int:
        return (self.text if threading.get_ident() == self._thread else self.outer).write(text)

    def flush(self) -> None:
        self.outer.flush()


@contextmanager
def _captured() -> Iterator[_ThreadOutput]:
    """Capture the output of this thread, which would reach no cell."""
    printed = _ThreadOutput(sys.stdout)  # type: ignore[arg-type]
    sys.stdout = printed
    try:
        yield printed
    finally:
        if sys.stdout is printed:
            sys.stdout = printed.outer
