"""A plan: the points of a sweep, and those that cannot be, with their reasons, before anything runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from kernbench.errors import ConfigError, quote
from kernbench.registry import hint
from kernbench.sweeps import checks
from kernbench.sweeps.axes import Axis, grid, latin_hypercube
from kernbench.sweeps.cost import machine_columns
from kernbench.sweeps.keys import Row, Study, machine_of, study_name, study_version, sweep_key
from kernbench.sweeps.runner import Job
from kernbench.sweeps.studies import complete, parameters_of, resolve_study
from kernbench.topology.builder import Machine, resolve_topology

Constraint = str | Callable[[Row], bool]
RESERVED = ("status", "error")  # columns that the table has for every point


@dataclass(frozen=True, slots=True)
class Point:
    """One point: what the table shows of it, its machine, and what the study is given."""

    shown: Row
    machine: Machine
    overrides: Row
    parameters: Row


@dataclass(frozen=True, slots=True)
class Invalid:
    """A point that cannot be, and why."""

    shown: Row
    reason: str


@dataclass(frozen=True, eq=False)
class Plan:
    """Points of a sweep, all valid, and the invalid ones with their reasons.

    Parameters
    ----------
    study : callable
        `study(machine, **parameters)`, giving a row of plain values.
    machine : Machine
        The one that points change.
    axes : tuple of str
        Names of what is varied.
    points : tuple of Point
    invalid : tuple of Invalid
    """

    study: Study
    machine: Machine
    axes: tuple[str, ...]
    points: tuple[Point, ...]
    invalid: tuple[Invalid, ...] = ()
    keys: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        name, version = study_name(self.study), study_version(self.study)
        usual = complete(self.study, {})
        keys = (sweep_key(name, version, point.machine, usual | point.parameters) for point in self.points)
        object.__setattr__(self, "keys", tuple(keys))

    def job(self) -> Job:
        """Return the points as the runner takes them; equal points are one."""
        points = zip(self.keys, self.points, strict=True)
        return Job(
            fn=partial(run_study, self.study, dict(self.machine.spec)),
            points={key: {"set": p.overrides, "parameters": p.parameters} for key, p in points},
            study=study_name(self.study),
            version=study_version(self.study),
            machines={key: p.machine.hash for key, p in zip(self.keys, self.points, strict=True)},
        )

    def relabelled(self, fn: Callable[[Row], Row]) -> Plan:
        """Return the plan with other columns for what was varied: `fn` makes them from those there are."""
        points = tuple(replace(point, shown=fn(point.shown)) for point in self.points)
        invalid = tuple(replace(point, shown=fn(point.shown)) for point in self.invalid)
        axes = tuple(
            dict.fromkeys(name for shown in (*(p.shown for p in points), *(x.shown for x in invalid)) for name in shown)
        )
        return replace(self, points=points, invalid=invalid, axes=axes)

    def __len__(self) -> int:
        return len(self.points)

    def __repr__(self) -> str:
        lines = [f"{len(self.points)} points of {study_name(self.study)} over {', '.join(self.axes)}"]
        if self.invalid:
            lines.append(f"{len(self.invalid)} {'more ' if self.points else ''}cannot be:")
        return "\n".join([*lines, *(f"  {reason}" for reason in self.reasons())])

    def reasons(self, first: int = 10) -> list[str]:
        """Return in words why points cannot be: the first of them, and how many more there are."""
        lines = [f"{', '.join(f'{k} = {v}' for k, v in x.shown.items())}: {x.reason}" for x in self.invalid[:first]]
        more = len(self.invalid) - first
        return lines + ([f"... and {more} more"] if more > 0 else [])


def run_study(study: Study, spec: Row, point: Row) -> Row:
    """Run one point: the study, on the machine of `spec` with the point's settings."""
    row: Any = study(machine_of(spec, point["set"]), **point["parameters"])
    taken = [name for name in RESERVED if isinstance(row, dict) and name in row]
    if taken:
        raise ConfigError(f"{study_name(study)} returns {taken[0]!r}, a column of the table itself: name it otherwise")
    made: Row = row
    return made


def make_plan(
    machine: Machine | str | Mapping[str, Any] | None,
    study: Study | str,
    axes: Mapping[str, object],
    *,
    parameters: Mapping[str, Any] | None = None,
    points: Sequence[Mapping[str, Any]] = (),
    where: Constraint | Sequence[Constraint] = (),
    samples: int | None = None,
    seed: int = 0,
) -> Plan:
    """Return the plan of a sweep.

    Parameters
    ----------
    machine : Machine, str, mapping or None
        As for `kb.load`.
    study : callable or str
        As for `resolve_study`.
    axes : mapping
        For each name a list of values, a mapping of labels to settings, or a `Span`. A name with a dot is a field of
        the machine, another a parameter of the study.
    parameters : mapping
        Parameters and fields that every point has.
    points : sequence of mapping
        An explicit list of settings, besides the axes' points, or instead of them if there are no axes.
    where : str, callable or sequence of them
        What every point must satisfy: an expression as for `DataFrame.query`, or a function of a point's columns. The
        columns are the axes, the parameters, and those of `machine_columns`.
    samples : int or None
        A Latin hypercube of so many points; None: every combination.
    seed : int
        Of the hypercube.

    Raises
    ------
    ConfigError
        If the plan itself is wrong; points that are wrong are listed in the plan.
    """
    checks.mapping("axes", axes, "names to a list of values, settings by label, or low and high")
    checks.mapping("parameters", parameters or {}, "fields and parameters to values")
    checks.listed("points", points)
    if samples is not None:
        checks.whole("samples", samples, 1)
    checks.whole("seed", seed, 0)
    base, fn = resolve_topology(machine), resolve_study(study)
    made = [Axis.of(name, given) for name, given in axes.items()]
    choices = (grid(made) if samples is None else latin_hypercube(made, samples, seed)) if made else []
    choices += [(dict(point), dict(point)) for point in points]
    if not choices:
        raise ConfigError("the plan has no points: give axes, or a list of points")
    common = dict(parameters or {})
    names = [name for _, settings in choices for name in settings]
    _check_names(fn, {*names, *common})
    _check_columns({*axes, *names, *common})
    for settings in (common, *(settings for _, settings in choices)):
        checks.plain(settings)
    machines: dict[str, Machine | str] = {}
    valid: list[Point] = []
    invalid: list[Invalid] = []
    for shown, settings in choices:
        found = _point(base, machines, shown, common | settings)
        if isinstance(found, Point):
            valid.append(found)
        else:
            invalid.append(found)
    keep, refused = _constrained(valid, where)
    columns = tuple(dict.fromkeys(name for shown, _ in choices for name in shown))
    return Plan(fn, base, columns, tuple(keep), (*invalid, *refused))


def _check_names(fn: Study, names: set[str]) -> None:
    """Refuse parameters that the study does not have: each would fail at every point."""
    taken = parameters_of(fn)
    if any(p.kind is p.VAR_KEYWORD for p in taken.values()):
        return
    known = list(taken)
    unknown = sorted(name for name in names if "." not in name and name not in known)
    faults = [f"parameter {name} of {study_name(fn)} is unknown; {hint(name, known)}" for name in unknown]
    missing = [p.name for p in taken.values() if p.default is p.empty and p.name not in names]
    faults += [f"parameter {name} of {study_name(fn)} is missing: give it in axes or parameters" for name in missing]
    if faults:
        raise ConfigError(faults)


def _check_columns(names: set[str]) -> None:
    """Refuse what would stand in a column that the table has for every point."""
    taken = sorted(names & set(RESERVED))
    if taken:
        raise ConfigError(
            [f"{name} is a column of the table itself: name the axis or parameter otherwise" for name in taken]
        )


def _point(base: Machine, machines: dict[str, Machine | str], shown: Row, settings: Row) -> Point | Invalid:
    overrides = {name: value for name, value in settings.items() if "." in name}
    parameters = {name: value for name, value in settings.items() if "." not in name}
    text = json.dumps(overrides, sort_keys=True)
    if text not in machines:
        try:
            machines[text] = base.with_(overrides) if overrides else base
        except ConfigError as error:
            machines[text] = "; ".join(fault.removeprefix("override: ") for fault in error.faults)
    machine = machines[text]
    if isinstance(machine, str):
        return Invalid(shown, machine)
    return Point(shown, machine, overrides, parameters)


def _constrained(points: list[Point], where: Constraint | Sequence[Constraint]) -> tuple[list[Point], list[Invalid]]:
    import pandas as pd

    rules: Any = [where] if isinstance(where, str) or callable(where) else where
    if not isinstance(rules, Sequence) or not all(isinstance(rule, str) or callable(rule) for rule in rules):
        raise ConfigError(f"where = {quote(where)} must be an expression, as pes <= 256, a function, or a list of them")
    if not rules or not points:
        return points, []
    rows = [{**p.parameters, **p.overrides, **p.shown, **machine_columns(p.machine.config)} for p in points]
    table = pd.DataFrame(rows)
    broken: dict[int, str] = {}
    for rule in rules:
        name = rule if isinstance(rule, str) else getattr(rule, "__name__", repr(rule))
        try:
            holds: Any = table.eval(rule, engine="python") if isinstance(rule, str) else [rule(row) for row in rows]
        except Exception as error:
            raise ConfigError(f"where: {name}: {error}; columns: {', '.join(table.columns)}") from error
        for i, value in enumerate(holds):
            if not value:
                broken.setdefault(i, f"does not satisfy {name}")
    keep = [p for i, p in enumerate(points) if i not in broken]
    return keep, [Invalid(points[i].shown, reason) for i, reason in sorted(broken.items())]
