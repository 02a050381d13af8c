"""Predicted savings if the resources on the critical path were twice as good: alone, and together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

from kernbench.analysis._records import Records
from kernbench.analysis._resources import Reason
from kernbench.analysis._what_if._predictions import COVERED, Prediction, is_time, what_if
from kernbench.config._overrides import leaves
from kernbench.errors import ConfigError

_EVENTS = 20_000  # rows and transfers of a log whose graph is built within a second
_PAIRED = 3  # reasons of the device: each alone, and in pairs
_BORNE_OUT = 0.005  # share of the run's time that a field must save in addition with others
_MORE = 0.02  # share of the run's time that resources must save in addition together


@dataclass(frozen=True, slots=True)
class Savings:
    """Predictions for a run with fields twice as good: those of a reason `alone`, and the `whole` with those it needs.

    `needed` are the fields without which a reason's fields save less, `pairs` the reasons that save more together than
    separately. Empty where a prediction is impossible or takes long.
    """

    alone: Mapping[Reason, Prediction] = field(default_factory=dict)
    whole: Mapping[Reason, Prediction] = field(default_factory=dict)
    needed: Mapping[Reason, tuple[str, ...]] = field(default_factory=dict)
    pairs: Sequence[tuple[Reason, Reason, Prediction]] = ()

    def borne_out(self, reason: Reason) -> Reason:
        """Add to a reason the fields that it needs according to the predictions."""
        return replace(reason, together=self.needed[reason]) if reason in self.needed else reason

    def of(self, reason: Reason) -> str:
        if reason not in self.alone:
            return ""
        alone, whole = self.alone[reason], self.whole.get(reason)
        if whole is None:
            return f"twice as fast: saves {_saved(alone)} of the run (prediction{_range(alone)})"
        return (
            f"twice as fast together: saves {_saved(whole)} of the run, {reason.fields[0]} alone {_saved(alone)} "
            f"(prediction{_range(whole)})"
        )

    def together(self) -> list[str]:
        return [
            f"{a.what} and {b.what} limit together: twice as fast, both save {_saved(both)} of the run, "
            f"alone {_saved(self.alone[a])} and {_saved(self.alone[b])} (prediction{_range(both)})"
            for a, b, both in self.pairs
        ]

    def to_dict(self) -> list[dict[str, Any]]:
        found = [([reason.what], made) for of in (self.alone, self.whole) for reason, made in of.items()]
        found += [([a.what, b.what], made) for a, b, made in self.pairs]
        return [
            {"resources": names, "overrides": made.overrides, "saved": saved(made), "range": saved_range(made)}
            for names, made in found
        ]


def saved(made: Prediction | None) -> float:
    return 1 - made.ratio if made else 0.0


def saved_range(made: Prediction) -> tuple[float, float]:
    """Least and the largest share of the run that exact runs of such changes saved."""
    return 1 - made.high_ns / (made.simulated_ns or 1), 1 - made.low_ns / (made.simulated_ns or 1)


def _saved(made: Prediction) -> str:
    return f"{saved(made):.1%}".replace("-0.0%", "0.0%")


def _range(made: Prediction) -> str:
    return ", {:.0%} to {:.0%}".format(*saved_range(made)) if made.doubt else ""


def savings(records: Records, reasons: Sequence[Reason]) -> Savings:
    """Predict the savings for the first reasons of the device and of the host; empty for a long log."""
    if len(records) + len(records.dependencies.transfers["kind"]) > _EVENTS:
        return Savings()
    values = leaves(records.spec)

    def twice(*fields: str) -> Prediction | None:
        try:
            return what_if(records, {x: values[x] / 2 if is_time(x) else values[x] * 2 for x in fields})
        except ConfigError:  # cannot be predicted
            return None

    def needs(reason: Reason, field: str, among: Sequence[str]) -> bool:
        others = twice(*reason.fields, *(x for x in among if x != field))
        return saved(twice(*reason.fields, *among)) - saved(others) >= saved(twice(field)) + _BORNE_OUT

    device, host = ([x for x in reasons if x.host is of and _can(x, values)][:_PAIRED] for of in (False, True))
    alone = {reason: made for reason in (*device, *host) if (made := twice(*reason.fields))}
    whole, needed = {}, {}
    for reason, made in alone.items():
        implied = [change.field for change in made.changes if change.implied]
        others = [x for x in reason.together if x not in implied and x in COVERED and values.get(x)]
        more = [x for x in others if needs(reason, x, others)]
        needed[reason] = *implied, *more
        if more and (found := twice(*reason.fields, *more)):
            whole[reason] = found
    pairs = []
    for a, b in combinations([x for x in device if x in alone], 2):
        both = twice(*dict.fromkeys((*a.fields, *b.fields)))
        if both and saved(both) >= saved(alone[a]) + saved(alone[b]) + _MORE:
            pairs.append((a, b, both))
    return Savings(alone, whole, needed, pairs)


def _can(reason: Reason, values: Mapping[str, Any]) -> bool:
    return bool(reason.fields) and all(x in COVERED and values.get(x) for x in reason.fields)
