"""An answer in stages: estimates at once, then what simulations add to it, on all cores, until its time is over."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from kernbench.analysis._resources import Reason
from kernbench.analysis.why import Why
from kernbench.errors import ArgumentError, PointError, quote
from kernbench.points._cache import default_cache
from kernbench.points._keys import Row, StudyFn, only_ours
from kernbench.sweeps._argument_checks import is_number
from kernbench.sweeps._plan import Plan, Point
from kernbench.sweeps._runner import Progress, run_points, worker_count
from kernbench.sweeps._worker import OK
from kernbench.topology.builder import Machine

_START_S = 1.5  # imports of a process
_HERE_S = 2.0  # shorter simulations run in this process: starting others takes as long


class Answer(Protocol):
    @property
    def missing(self) -> Mapping[str, str]: ...

    def sections(self) -> dict[str, str]: ...

    def _repr_html_(self) -> str: ...


A = TypeVar("A", bound=Answer)
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class PartialAnswer(Generic[A]):
    answer: A
    progress: Progress | None = None


class Simulations:
    """Runs the simulations of a question in processes; their `work` is their expected time on the host [s].

    `study(machine, **values)` returns a row. `limit_s` counts from now; what has not ended by then is given up.
    `tick` is called with the progress while processes run. `workers` is by default one per core.
    """

    def __init__(
        self,
        machine: Machine,
        study: StudyFn,
        workers: int | None = None,
        limit_s: float | None = None,
        tick: Callable[[Progress], object] | None = None,
    ) -> None:
        if limit_s is not None and not (is_number(limit_s) and limit_s > 0):
            raise ArgumentError(f"limit_s = {quote(limit_s)} must be a number > 0 [s]")
        self._machine, self._study, self._start = machine, study, time.monotonic()
        self._workers = worker_count(workers)
        self._deadline = None if limit_s is None else self._start + limit_s
        # User-defined components and kernels are not part of a key.
        self._cache = default_cache() if only_ours(machine) else None
        self._todo: dict[Any, float] = {}
        self._done: list[float] = []
        self._ran_s = 0.0
        self._tick = tick

    @property
    def over(self) -> bool:
        return self._deadline is not None and time.monotonic() >= self._deadline

    def run(self, points: Mapping[K, Point]) -> Iterator[tuple[K, Row]]:
        """Yield names and rows as simulations end; the longest start first."""
        if not points or self.over:
            return
        plan = Plan(self._study, self._machine, tuple(points.values()))
        names = dict(zip(plan.keys, points, strict=True))
        self._todo = {key: point.work for key, point in plan.distinct.items()}
        self._done, stage_start = [], time.monotonic()
        small = sum(self._todo.values()) < _HERE_S
        outcomes = run_points(
            plan,
            cache=self._cache,
            workers=1 if small else self._workers,
            deadline=self._deadline,
            tick=lambda: self._tick and self._tick(self.progress),
        )
        for key, outcome, kept in outcomes:
            if outcome.status != OK:
                raise PointError(f"a simulation failed: {outcome.error}\n{outcome.trace}".rstrip())
            took = self._todo.pop(key)
            if not kept:
                self._done.append(took)
                self._ran_s = time.monotonic() - stage_start
            yield names[key], outcome.row

    @property
    def progress(self) -> Progress:
        """Progress of the running simulations; the time left follows from their expected times."""
        done, todo = sum(self._done) + self._workers * _START_S, sum(self._todo.values())
        left = self._ran_s / done * todo if self._done else todo / self._workers
        n = len(self._done)
        return Progress(n, n + len(self._todo), 0, 0, time.monotonic() - self._start, left)


def last(stages: Iterator[PartialAnswer[A]], show: bool | Callable[[A], object]) -> A:
    """Return the last answer; show each one in a notebook (True), or pass it to the function `show`.

    After an interrupt, a notebook still displays the latest answer.
    """
    page = _Page() if show is True and _in_notebook() else None
    answer: A | None = None
    for stage in stages:
        answer = stage.answer
        if page is not None:
            page.show(answer._repr_html_())
        elif callable(show):
            show(answer)
    assert answer is not None
    if page is not None:
        page.show("")  # the answer that is returned shows itself
    return answer


def _in_notebook() -> bool:
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return shell is not None and hasattr(shell, "kernel")


class _Page:
    """An output area of a cell, in which each page replaces the one before."""

    def __init__(self) -> None:
        from IPython import display

        self._display: Any = display
        self._handle = self._display.display(self._display.HTML(""), display_id=True)

    def show(self, html: str) -> None:
        self._handle.update(self._display.HTML(html))


@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """The critical path of a simulation whose records are not kept: reasons, text and page of a `Why`."""

    values: Row
    text: str
    html: str

    @classmethod
    def of(cls, row: Row) -> Explanation:
        return cls(**row)

    @property
    def reasons(self) -> tuple[Reason, ...]:
        plain: list[dict[str, Any]] = [
            {name: tuple(value) if isinstance(value, list) else value for name, value in reason.items()}
            for reason in self.values["reasons"]
        ]
        return tuple(Reason(**reason) for reason in plain)

    def __iter__(self) -> Iterator[Reason]:
        return iter(self.reasons)

    def __getitem__(self, i: int) -> Reason:
        return self.reasons[i]

    def __len__(self) -> int:
        return len(self.values["reasons"])

    def to_dict(self) -> Row:
        return self.values

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return self.html


def path_row(why: Why) -> Row:
    return {"values": why.to_dict(), "text": repr(why), "html": why._repr_html_()}
