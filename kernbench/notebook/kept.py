"""Runs of the explorer in the cache that milestones and sweeps share: what is found there is not simulated again."""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from kernbench.analysis.records import Records
from kernbench.analysis.result import Result
from kernbench.benches.env import env_settings
from kernbench.errors import ConfigError
from kernbench.notebook.job import Outcome
from kernbench.sweeps import outcome as rows
from kernbench.sweeps.cache import Cache, Kept, default_cache
from kernbench.sweeps.keys import Row, Study, only_ours, study_name, study_version, sweep_key
from kernbench.sweeps.studies import complete, resolve_study, row_of

if TYPE_CHECKING:
    from kernbench.notebook.state import Entry

STUDIES, BENCHES = "kernbench.studies.", "kernbench.benches."
_NOTES = {"checks": int, "printed": str, "events": int}
LOG_ROWS = 300_000  # some 10 MB; of a longer run only the row is kept


@dataclass(frozen=True, slots=True)
class Shown:
    """What a program returned, as it was shown."""

    html: str

    def _repr_html_(self) -> str:
        return self.html


@dataclass(frozen=True, slots=True)
class Shared:
    """The place of a run in the cache: that of the same point in a sweep.

    Attributes
    ----------
    cache : Cache
    key, study, version : str
        As of the points of a sweep.
    entry : Entry
        The run.
    parameters : dict
        Of the study, and how it is run.
    """

    cache: Cache
    key: str
    study: str
    version: str
    entry: Entry
    parameters: Row

    def find(self) -> Outcome | Row | None:
        """Return what a finished run of this came to; of one whose log is not kept, as of a sweep, only its row."""
        kept = self.cache.find(self.key)
        if kept is None:
            return None
        if kept.log is None:
            return kept.row
        try:
            return self._outcome(kept, kept.log)
        except (ConfigError, LookupError, TypeError):
            self.cache.drop(self.key)
        except OSError as error:
            warnings.warn(f"the log of a run in the cache is not read: {error}", RuntimeWarning, stacklevel=2)
        return None

    def _outcome(self, kept: Kept, log: bytes) -> Outcome:
        notes: Any = dict(kept.notes)
        shown = notes.pop("shown")
        if {name: type(value) for name, value in notes.items()} != _NOTES:
            raise TypeError("not the notes on a run")
        return Outcome(
            Result(_unpacked(log), self.entry.name),
            shown=Shown(str(shown["html"])) if isinstance(shown, dict) else shown,
            seconds=kept.seconds,
            made=kept.made,
            **notes,
        )

    def keep(self, outcome: Outcome) -> None:
        """Keep what a run came to; whoever asks for the same point finds it."""
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


def shared(entry: Entry) -> Shared | None:
    """Return the place of a run in the cache; None where it has none.

    Studies and benches of the package have one, with the packaged ccl.yaml, on machines of built-in components; a
    bench's settings in the environment are part of it. What code of a user's own reads is not known: it runs each time.
    """
    cache, work, options = default_cache(), entry.work, asdict(entry.options)
    module = getattr(work.function, "__module__", "")
    if cache is None or not module.startswith((STUDIES, BENCHES)) or not only_ours(entry.machine):
        return None
    try:
        fn: Study = resolve_study(work.function)
    except ConfigError:  # its parameters cannot be told from those of the run
        return None
    version = study_version(fn)
    parameters = complete(fn, {**entry.values, **options})
    if module.startswith(BENCHES):
        parameters["environment"] = env_settings()
    return Shared(
        cache, sweep_key(study_name(fn), version, entry.machine, parameters), study_name(fn), version, entry, parameters
    )


def _notes(outcome: Outcome) -> Row:
    """Return what the panel shows beside the result."""
    shown, html = outcome.shown, getattr(outcome.shown, "_repr_html_", None)
    return {
        "checks": outcome.checks,
        "printed": outcome.printed,
        "events": outcome.events,
        "shown": {"html": str(html())} if callable(html) else shown if isinstance(shown, str) else None,
    }


def _packed(records: Records) -> bytes:
    with TemporaryDirectory() as aside:
        return records.save(Path(aside) / "log").read_bytes()


def _unpacked(log: bytes) -> Records:
    with TemporaryDirectory() as aside:
        path = Path(aside) / "log"
        path.write_bytes(log)
        return Records.load(path)
