"""Exact runs of a tornado, in the background."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from kernbench.analysis._what_if._predictions import Tornado, new_values, swing, tornado_of
from kernbench.analysis.result import Result
from kernbench.errors import KernbenchError
from kernbench.notebook._model import Entry, Explorer
from kernbench.viz._why import tornado_rows

_PAUSE_S = 1.0


@dataclass(frozen=True, slots=True)
class TornadoProgress:
    """A tornado with the bars simulated so far: `done` of `total` runs; `error` is why no more follow."""

    found: Tornado
    done: int
    total: int
    running: bool
    error: str = ""


class TornadoRuns:
    """Simulates the bars of the tornado of a run one by one, the longest first.

    A run that the user starts preempts the background run, which is cancelled and restarted afterwards. `report` is
    called for each bar, from another thread.
    """

    def __init__(
        self, explorer: Explorer, entry: Entry, result: Result, report: Callable[[TornadoProgress], None]
    ) -> None:
        self._explorer, self._entry, self._result, self._report = explorer, entry, result, report
        self._stopped = threading.Event()
        self._quiet = 0.0
        self._thread = threading.Thread(target=self._fill, name="kernbench tornado", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._explorer.stop_behind()

    def pause(self) -> None:
        """Pause for a moment while the user drags a slider, so that predictions are quick."""
        self._quiet = time.monotonic() + _PAUSE_S
        self._explorer.stop_behind()

    def wait(self, timeout_s: float | None = None) -> bool:
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _fill(self) -> None:
        progress = TornadoProgress(tornado_of(self._result.records, name=self._result.name), 0, 0, running=True)
        bars = {(field, i): bar for field, found in progress.found.rows for i, bar in enumerate(found) if bar}
        progress = replace(progress, total=len(bars))
        self._report(progress)
        for place, bar in sorted(bars.items(), key=lambda item: -abs(swing(item[1]))):
            try:
                machine = self._entry.machine.with_(new_values(bar))
                exact_ns = self._latency_ns(replace(self._entry, machine=machine))
            except KernbenchError as error:
                progress = replace(progress, error=str(error))
                break
            if exact_ns is None:
                break
            found = _with(progress.found, place, exact_ns)
            progress = replace(progress, found=found, done=progress.done + 1)
            self._report(progress)
        self._report(replace(progress, running=False))

    def _latency_ns(self, entry: Entry) -> float | None:
        while not self._stopped.is_set():
            self._explorer.wait()
            if self._stopped.wait(self._quiet - time.monotonic()):
                break
            found = self._explorer.latency_behind(entry)
            if found is not None:
                return found
        return None


def _with(found: Tornado, place: tuple[str, int], exact_ns: float) -> Tornado:
    rows = (
        (name, tuple(replace(x, exact_ns=exact_ns) if x and (name, i) == place else x for i, x in enumerate(bars)))
        for name, bars in found.rows
    )
    return replace(found, rows=tuple(rows))


def message(progress: TornadoProgress, spec: Any) -> dict[str, Any]:
    errors = [abs(x.error) for _, bars in progress.found.rows for x in bars if x and x.error is not None]
    return {
        "do": "tornado", "rows": tornado_rows(progress.found, spec), "done": progress.done, "total": progress.total,
        "running": progress.running, "error": progress.error, "largest": max(errors, default=None),
    }  # fmt: skip
