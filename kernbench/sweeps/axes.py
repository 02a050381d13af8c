"""What is varied: values of a field of the machine or of a parameter of the study, named settings, or a range."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from kernbench.errors import ConfigError, quote
from kernbench.sweeps.checks import is_number, mapping

Settings = Mapping[str, Any]  # machine fields (with dots) and study parameters (without), with their values


@dataclass(frozen=True, slots=True)
class Span:
    """A range of numbers, for a Latin hypercube.

    Parameters
    ----------
    low, high : float
        Its ends, both within.
    log : bool
        Spread evenly over the logarithm.
    step : float or None
        Values are whole multiples of this, of which one at least lies within.
    """

    low: float
    high: float
    log: bool = False
    step: float | None = None

    def at(self, share: float) -> float:
        """Return the value at a share of the range between 0 and 1."""
        ratio, width = self.high / self.low if self.log else 1.0, self.high - self.low
        value = self.low * ratio**share if self.log else self.low + width * share
        if self.step is not None:
            first, last = self.multiples()
            # The ends again: a multiple may be off by a rounding.
            value = min(max(min(max(round(value / self.step), first), last) * self.step, self.low), self.high)
        return int(value) if float(value).is_integer() else value

    def multiples(self) -> tuple[int, int]:
        """Return the first and the last multiple of the step within: how many steps each is."""
        step = self.step or 1
        return math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis: a name, its values as the table shows them, and what each sets.

    Parameters
    ----------
    name : str
        A field of the machine, a parameter of the study, or a word of your own for a group of them.
    values : tuple
        As the table shows them; a `Span` has none.
    settings : tuple of mapping
        What each value sets.
    span : Span or None
        The range, in place of values.
    """

    name: str
    values: tuple[Any, ...] = ()
    settings: tuple[Settings, ...] = ()
    span: Span | None = None

    @classmethod
    def of(cls, name: str, given: object) -> Axis:
        """Return the axis that a plan writes as a list of values, a mapping of labels to settings, or a range.

        Raises
        ------
        ConfigError
            If it is none of these.
        """
        if isinstance(given, Span):
            return cls(name, span=_checked(name, given))
        if isinstance(given, Mapping) and {"low", "high"} <= set(given):
            return cls(name, span=_span(name, given))
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
        """Return the value and its settings at a share of the axis between 0 and 1."""
        if self.span is not None:
            value = self.span.at(share)
            return value, {self.name: value}
        place = min(int(share * len(self.values)), len(self.values) - 1)
        return self.values[place], self.settings[place]


def _span(name: str, given: Mapping[str, Any]) -> Span:
    unknown = set(given) - {"low", "high", "log", "step"}
    if unknown:
        raise ConfigError(f"axis {name}: {min(unknown)} is unknown; known: low, high, log, step")
    return _checked(name, Span(given["low"], given["high"], given.get("log", False), given.get("step")))


def _checked(name: str, span: Span) -> Span:
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


Choice = tuple[dict[str, Any], dict[str, Any]]  # what the table shows, what is set


def grid(axes: Sequence[Axis]) -> list[Choice]:
    """Return every combination of the values, the last axis varying fastest.

    Raises
    ------
    ConfigError
        If an axis is a range, which has no values of its own.
    """
    ranges = [axis.name for axis in axes if axis.span is not None]
    if ranges:
        raise ConfigError(f"axis {ranges[0]} is a range: give its values, or a number of samples for the plan")
    combinations = product(*(zip(axis.values, axis.settings, strict=True) for axis in axes))
    return [_choice(axes, picks) for picks in combinations]


def latin_hypercube(axes: Sequence[Axis], samples: int, seed: int) -> list[Choice]:
    """Return `samples` choices: each axis is cut into as many equal parts, and each part is used once.

    Notes
    -----
    McKay, Beckman, Conover (1979). A part of a list of values is one of them, so each is used equally often, to one.
    """
    rng = np.random.default_rng(seed)
    shares = [(rng.permutation(samples) + rng.random(samples)) / samples for _ in axes]
    return [
        _choice(axes, [axis.pick(float(column[i])) for axis, column in zip(axes, shares, strict=True)])
        for i in range(samples)
    ]


def _choice(axes: Sequence[Axis], picks: Sequence[tuple[Any, Settings]]) -> Choice:
    shown = {axis.name: value for axis, (value, _) in zip(axes, picks, strict=True)}
    return shown, {name: value for _, settings in picks for name, value in settings.items()}
