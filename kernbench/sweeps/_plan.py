"""A plan: the points of a sweep, and the invalid ones with their reasons, before anything runs."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from kernbench._registry import STUDIES, hint
from kernbench.config import load_yaml
from kernbench.errors import ConfigError, quote
from kernbench.points._keys import Row, StudyFn, machine_of, study_name, study_version, sweep_key
from kernbench.sim_engine._limits import Limits
from kernbench.sweeps import _argument_checks as checks
from kernbench.sweeps._argument_checks import is_number, mapping
from kernbench.sweeps._energy_area import machine_columns
from kernbench.sweeps._measure import HOW, complete, parameters_of, program_row
from kernbench.sweeps._worker import PointLimits
from kernbench.topology.builder import PRESET, Machine, resolve_topology
from kernbench.triton_emu._runner import check_plain

Settings = Mapping[str, Any]  # machine fields (with dots) and study parameters (without), with their values


@dataclass(frozen=True, slots=True)
class NumberRange:
    """A range of numbers, for a Latin hypercube.

    Parameters
    ----------
    low, high : float
        Its ends, both within.
    log : bool
        Spread evenly over the logarithm.
    step : float or None
        Values are whole multiples of this, of which at least one is within the range.
    """

    low: float
    high: float
    log: bool = False
    step: float | None = None

    def at(self, share: float) -> float:
        ratio, width = self.high / self.low if self.log else 1.0, self.high - self.low
        value = self.low * ratio**share if self.log else self.low + width * share
        if self.step is not None:
            first, last = self.multiples()
            # Clip again: a multiple may be off by a rounding error.
            value = min(max(min(max(round(value / self.step), first), last) * self.step, self.low), self.high)
        return int(value) if float(value).is_integer() else value

    def multiples(self) -> tuple[int, int]:
        step = self.step or 1
        return math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)


@dataclass(frozen=True, slots=True)
class _Axis:
    """An axis: its name, its values as in the table, and the settings of each."""

    name: str
    values: tuple[Any, ...] = ()
    settings: tuple[Settings, ...] = ()
    span: NumberRange | None = None

    @classmethod
    def of(cls, name: str, given: object) -> _Axis:
        if isinstance(given, NumberRange):
            return cls(name, span=_checked(name, given))
        if isinstance(given, Mapping) and {"low", "high"} <= set(given):
            unknown = set(given) - {"low", "high", "log", "step"}
            if unknown:
                raise ConfigError(f"axis {name}: {min(unknown)} is unknown; known: low, high, log, step")
            return cls(name, span=_checked(name, NumberRange(**given)))
        if isinstance(given, Mapping) and given:
            wrong = [label for label, settings in given.items() if not isinstance(settings, Mapping)]
            if wrong:
                raise ConfigError(f"axis {name}: {quote(wrong[0])} must hold settings, as in {{sip.cube_mesh.w: 2}}")
            for label, settings in given.items():
                mapping(f"axis {name}: {label}", settings, "fields and parameters to values")
            return cls(name, tuple(given), tuple(dict(settings) for settings in given.values()))
        if isinstance(given, Sequence) and not isinstance(given, str) and given:
            return cls(name, tuple(given), tuple({name: value} for value in given))
        raise ConfigError(
            f"axis {name} = {quote(given)} must be a list of values, a mapping of labels to settings, or low and high"
        )

    def pick(self, share: float) -> tuple[Any, Settings]:
        if self.span is not None:
            value = self.span.at(share)
            return value, {self.name: value}
        place = min(int(share * len(self.values)), len(self.values) - 1)
        return self.values[place], self.settings[place]


def _checked(name: str, span: NumberRange) -> NumberRange:
    for end, value in (("low", span.low), ("high", span.high)):
        if not is_number(value):
            raise ConfigError(f"axis {name}: {end} = {quote(value)} must be a number")
    if not isinstance(span.log, bool):
        raise ConfigError(f"axis {name}: log = {quote(span.log)} must be true or false")
    if span.step is not None and not (is_number(span.step) and span.step > 0):
        raise ConfigError(f"axis {name}: step = {quote(span.step)} must be a number > 0; leave it out for any value")
    if not span.low < span.high or (span.log and span.low <= 0):
        raise ConfigError(f"axis {name}: low = {span.low} must be < high = {span.high}, and > 0 with log")
    first, last = span.multiples()
    if span.step is not None and first > last:
        raise ConfigError(
            f"axis {name}: step = {span.step} has no multiple from low = {span.low} to high = {span.high}"
        )
    return span


Combination = tuple[dict[str, Any], dict[str, Any]]  # columns of the table, settings


def grid(axes: Sequence[_Axis]) -> list[Combination]:
    """Every combination of the values, the last axis varying fastest."""
    ranges = [axis.name for axis in axes if axis.span is not None]
    if ranges:
        raise ConfigError(f"axis {ranges[0]} is a range: give its values, or a number of samples for the plan")
    combinations = product(*(zip(axis.values, axis.settings, strict=True) for axis in axes))
    return [_choice(axes, picks) for picks in combinations]


def latin_hypercube(axes: Sequence[_Axis], samples: int, seed: int) -> list[Combination]:
    """Each axis is divided into `samples` equal parts, and each part is used once."""
    rng = np.random.default_rng(seed)
    shares = [(rng.permutation(samples) + rng.random(samples)) / samples for _ in axes]
    return [
        _choice(axes, [axis.pick(float(column[i])) for axis, column in zip(axes, shares, strict=True)])
        for i in range(samples)
    ]


def _choice(axes: Sequence[_Axis], picks: Sequence[tuple[Any, Settings]]) -> Combination:
    shown = {axis.name: value for axis, (value, _) in zip(axes, picks, strict=True)}
    return shown, {name: value for _, settings in picks for name, value in settings.items()}


_PROGRAM = "torch"  # the first parameter of a program


def resolve_study(study: Callable[..., Any] | str) -> StudyFn:
    found: Any = STUDIES.resolve(study) if isinstance(study, str) else study
    if hasattr(found, "simulate"):
        return (found() if isinstance(found, type) else found).simulate
    fn: Callable[..., Any] = found
    check_plain(fn, "study")
    names = list(inspect.signature(fn).parameters)
    if names[:1] != [_PROGRAM]:
        return fn
    taken = [name for name in HOW if name in names]
    if taken:
        raise ConfigError(f"parameter {taken[0]} of {study_name(fn)} is one of how it is run: name it otherwise")
    return partial(program_row, fn)


Constraint = str | Callable[[Row], bool]
RESERVED = ("status", "error")  # columns of the table itself


@dataclass(frozen=True, slots=True)
class Point:
    """A valid point: its columns of the table, its machine, the arguments of the study, and its relative duration."""

    shown: Row
    machine: Machine
    overrides: Row
    parameters: Row
    work: float = 1.0

    @property
    def task(self) -> Row:
        return {"set": self.overrides, "parameters": self.parameters}


@dataclass(frozen=True, slots=True)
class Invalid:
    shown: Row
    reason: str


@dataclass(frozen=True, eq=False)
class Plan:
    """Points of a study, all valid, and the invalid ones with their reasons; `axes` are columns that vary."""

    study: StudyFn
    machine: Machine
    points: tuple[Point, ...]
    axes: tuple[str, ...] = ()
    invalid: tuple[Invalid, ...] = ()

    @property
    def name(self) -> str:
        return study_name(self.study)

    @cached_property
    def version(self) -> str:
        return study_version(self.study)

    @cached_property
    def keys(self) -> tuple[str, ...]:
        usual = complete(self.study, {})
        return tuple(sweep_key(self.name, self.version, p.machine, usual | p.parameters) for p in self.points)

    @property
    def distinct(self) -> dict[str, Point]:
        """Points by key; of equal points, one."""
        return dict(zip(self.keys, self.points, strict=True))

    def fn(self) -> Callable[[Row], Row]:
        """Return the function that runs the task of a point, in any process."""
        return partial(run_study, self.study, dict(self.machine.spec))

    def __len__(self) -> int:
        return len(self.points)

    def __repr__(self) -> str:
        lines = [f"{len(self.points)} points of {self.name} over {', '.join(self.axes)}"]
        if self.invalid:
            lines.append(f"{len(self.invalid)} {'more ' if self.points else ''}cannot be:")
        return "\n".join([*lines, *(f"  {reason}" for reason in self.reasons())])

    def reasons(self, first: int = 10) -> list[str]:
        lines = [f"{', '.join(f'{k} = {v}' for k, v in x.shown.items())}: {x.reason}" for x in self.invalid[:first]]
        more = len(self.invalid) - first
        return lines + ([f"... and {more} more"] if more > 0 else [])


def run_study(study: StudyFn, spec: Row, point: Row) -> Row:
    row: Any = study(machine_of(spec, point["set"]), **point["parameters"])
    taken = [name for name in RESERVED if isinstance(row, dict) and name in row]
    if taken:
        raise ConfigError(f"{study_name(study)} returns {taken[0]!r}, a column of the table itself: name it otherwise")
    return row


def make_plan(
    machine: Machine | str | Mapping[str, Any] | None,
    study: StudyFn | str,
    axes: Mapping[str, object],
    *,
    parameters: Mapping[str, Any] | None = None,
    points: Sequence[Mapping[str, Any]] = (),
    where: Constraint | Sequence[Constraint] = (),
    samples: int | None = None,
    seed: int = 0,
) -> Plan:
    checks.mapping("axes", axes, "names to a list of values, settings by label, or low and high")
    checks.mapping("parameters", parameters or {}, "fields and parameters to values")
    checks.listed("points", points)
    if samples is not None:
        checks.whole("samples", samples, 1)
    checks.whole("seed", seed, 0)
    made = [_Axis.of(name, given) for name, given in axes.items()]
    choices = (grid(made) if samples is None else latin_hypercube(made, samples, seed)) if made else []
    choices += [(dict(point), dict(point)) for point in points]
    if not choices:
        raise ConfigError("the plan has no points: give axes, or a list of points")
    return plan_of(resolve_topology(machine), study, choices, dict(parameters or {}), where)


def plan_of(
    base: Machine,
    study: StudyFn | str,
    choices: Sequence[Combination],
    common: Row,
    where: Constraint | Sequence[Constraint] = (),
) -> Plan:
    fn, shown_names = resolve_study(study), dict.fromkeys(name for shown, _ in choices for name in shown)
    names = [name for _, settings in choices for name in settings]
    _check_names(fn, {*names, *common})
    reserved = sorted({*shown_names, *names, *common} & set(RESERVED))
    if reserved:
        raise ConfigError(
            [f"{x} is a column of the table itself: name the axis or parameter otherwise" for x in reserved]
        )
    for settings in (common, *(settings for _, settings in choices)):
        checks.json_values(settings)
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
    return Plan(fn, base, tuple(keep), tuple(shown_names), (*invalid, *refused))


def _check_names(fn: StudyFn, names: set[str]) -> None:
    """Refuse unknown and missing parameters, which would fail at every point."""
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


_PLAN = ("machine", "study", "axes", "parameters", "points", "where", "samples", "seed")
_LIMITS = ("time_limit_s", "memory_limit_mib", "limits")


@dataclass(frozen=True, slots=True)
class PlanFile:
    plan: Plan
    limits: PointLimits


def read_plan(path: str | Path) -> PlanFile:
    path = Path(path)
    content: Any = load_yaml(path)
    known = (*_PLAN, *_LIMITS)
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: must be a mapping with the keys {', '.join(known)}")
    unknown = [f"{path.name}: {key} is unknown; {hint(key, known)}" for key in content if key not in known]
    if "study" not in content:
        unknown.append(f"{path.name}: study is missing: name one of `kernbench list studies`")
    machine, study = content.get("machine"), content.get("study", "")
    if not isinstance(machine, (str, dict, type(None))):
        unknown.append(f"{path.name}: machine = {quote(machine)} must be a path, preset:NAME, or a machine's groups")
    if not isinstance(study, str):
        unknown.append(f"{path.name}: study = {quote(study)} must be a name; see `kernbench list studies`")
    if unknown:
        raise ConfigError(unknown)
    if isinstance(machine, str) and not machine.startswith(PRESET):
        machine = str(path.parent / machine)
    rest = {key: content[key] for key in _PLAN[3:] if content.get(key) is not None}
    try:
        plan = make_plan(machine, study, content.get("axes") or {}, **rest)
        seconds, mib, session = (content.get(key) for key in _LIMITS)
        return PlanFile(plan, PointLimits(seconds, mib, Limits.of(session)))
    except ConfigError as error:
        raise type(error)([f"{path.name}: {fault}" for fault in error.faults]) from error
