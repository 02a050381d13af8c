"""Two runs compared: what differs in the machine, and in time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kernbench._registry import html_of
from kernbench.analysis._launches import calls, span
from kernbench.analysis.result import Result
from kernbench.config._overrides import leaves

ABSENT = None


@dataclass(frozen=True, slots=True)
class Change:
    """One value of the machine file in both runs; None where a run's machine does not have it."""

    field: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class Time:
    """One time of both runs [ns]; None where only one run has it."""

    what: str
    before: float | None
    after: float | None

    @property
    def ratio(self) -> float | None:
        return self.after / self.before if self.before and self.after is not None else None


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """The differences between two runs; prints itself, and displays itself in a notebook.

    Attributes
    ----------
    machine : tuple of Change
        Values of the machine file that differ.
    latency : Time
        The whole run.
    launches, path : tuple of Time
        Launches by name, in order; each resource's time on the critical path, those of the host after the device's.
    known : bool
        Whether both results contain their machine; if not, `machine` is empty.
    """

    before: str
    after: str
    machine: tuple[Change, ...]
    latency: Time
    launches: tuple[Time, ...]
    path: tuple[Time, ...]
    known: bool = True

    def to_dict(self) -> dict[str, Any]:
        return {
            "before": self.before,
            "after": self.after,
            "machine_known": self.known,
            "machine": [asdict(x) for x in self.machine],
            **{
                name: [asdict(x) | {"ratio": x.ratio} for x in times]
                for name, times in (("latency", (self.latency,)), ("launches", self.launches), ("path", self.path))
            },
        }

    def _sections(self) -> dict[str, tuple[Time, ...]]:
        return {"latency": (self.latency,), "launches": self.launches, "critical path": self.path}

    def machine_line(self) -> str:
        if not self.known:
            return "machine: not known, at least one result does not hold it"
        n = len(self.machine)
        return "machine: the same" if not n else f"machine: {n} value{'s' * (n > 1)} changed"

    def __repr__(self) -> str:
        lines = [f"{self.before} -> {self.after}", self.machine_line()]
        width = max((len(x.field) for x in self.machine), default=0)
        lines += [f"  {x.field:<{width}}  {value_text(x.before)} -> {value_text(x.after)}" for x in self.machine]
        for title, times in self._sections().items():
            if times:
                lines += ["", f"{title:<28}{'before [ns]':>16}{'after [ns]':>16}{'change':>10}"]
                lines += [f"  {x.what:<26}{ns_text(x.before):>16}{ns_text(x.after):>16}{percent(x):>10}" for x in times]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return html_of("comparison", self)


def compare(a: Result | str | Path, b: Result | str | Path) -> Comparison:
    """Return the differences from run `a` to run `b`.

    Parameters
    ----------
    a, b : Result or path
        Results, or files that `Result.save` wrote.
    """
    before, after = (x if isinstance(x, Result) else Result.load(x) for x in (a, b))
    specs = before.records.spec, after.records.spec
    known = bool(specs[0]) and bool(specs[1])
    return Comparison(
        _title(before),
        _title(after),
        tuple(machine_changes(*specs)) if known else (),
        Time("whole run", before.latency_ns, after.latency_ns),
        _pairs(_launches(before), _launches(after)),
        _pairs(_path(before), _path(after)),
        known,
    )


def machine_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Change]:
    # A saved file has lists where the machine had tuples.
    old, new = ({path: _plain(value) for path, value in leaves(spec).items()} for spec in (before, after))
    for field in {**old, **new}:
        if old.get(field, ABSENT) != new.get(field, ABSENT):
            yield Change(field, old.get(field, ABSENT), new.get(field, ABSENT))


def percent(time: Time) -> str:
    return "-" if time.ratio is None else f"{time.ratio - 1:+.1%}"


def _plain(value: Any) -> Any:
    return [_plain(x) for x in value] if isinstance(value, list | tuple) else value


def _launches(result: Result) -> dict[str, float]:
    spans = {label: span(each) for label, each in calls(result.launches).items()}
    return {label: (end - start) / 1000 for label, (start, end) in spans.items()}


def _path(result: Result) -> dict[str, float]:
    if isinstance(result.explained, str):
        return {}
    return {f"host: {x.what}" if x.host else x.what: x.ns for x in result.explained}


def _pairs(before: dict[str, float], after: dict[str, float]) -> tuple[Time, ...]:
    return tuple(Time(name, before.get(name), after.get(name)) for name in {**before, **after})


def _title(result: Result) -> str:
    return f"{result.name} (machine {result.machine or '?'})"


def value_text(value: Any) -> str:
    return "absent" if value is ABSENT else str(value)


def ns_text(ns: float | None) -> str:
    return "-" if ns is None else f"{ns:,.2f}"
