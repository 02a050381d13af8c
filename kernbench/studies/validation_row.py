"""A check and the row it comes to: what the model's rule says against what the simulation does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kernbench.sweeps.keys import Row
from kernbench.topology.builder import Machine


class Sample(NamedTuple):
    """One point: what the rule says, and what was measured."""

    label: str
    expected: float
    measured: float


@dataclass(frozen=True)
class Check:
    """One row of the validation report."""

    name: str
    rule: str
    what: str
    run: Callable[[Machine, int], Sequence[Sample]]
    unit: str = "ps"
    allowed: float | None = 0.0
    note: str = ""

    def row(self, machine: Machine, repeats: int) -> Row:
        """Run it and return its row."""
        samples = self.run(machine, repeats)
        errors = [self._error(sample) for sample in samples]
        worst = max(range(len(errors)), key=errors.__getitem__)
        sample = samples[worst]
        return {
            "name": self.name,
            "rule": self.rule,
            "what": self.what,
            "n": len(errors),
            "unit": self.unit,
            "error_max": errors[worst],
            "error_mean": sum(errors) / len(errors),
            "percent_max": max(_percent(sample) for sample in samples),
            "allowed": self.allowed,
            "held": None if self.allowed is None else errors[worst] <= self.allowed,
            "worst": sample.label if errors[worst] else "",
            "worst_expected": sample.expected,
            "worst_measured": sample.measured,
            "note": self.note,
            "quantiles": _quantiles(errors),
        }

    def _error(self, sample: Sample) -> float:
        return _percent(sample) if self.unit == "%" else abs(sample.measured - sample.expected)


def _percent(sample: Sample) -> float:
    """Return the difference in % of what was expected; of nothing, any difference is all."""
    difference = abs(sample.measured - sample.expected)
    return 100 * difference / sample.expected if sample.expected else 100.0 * bool(difference)


def _quantiles(errors: Sequence[float]) -> list[Row]:
    """Return the least error, the largest, and 19 between at equal shares of the points."""
    ordered = sorted(errors)
    return [{"points_pct": 5 * i, "error": ordered[round(i * (len(ordered) - 1) / 20)]} for i in range(21)]
