"""One factor at a time, down and up: its effect on a metric, and what to change first."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kernbench.config._overrides import value_at
from kernbench.errors import ConfigError, StateError
from kernbench.points._keys import StudyFn
from kernbench.sweeps._argument_checks import check_columns
from kernbench.sweeps._plan import Combination, Plan, plan_of
from kernbench.sweeps._sweep import Sweep, run_plan
from kernbench.topology.builder import Machine, resolve_topology

if TYPE_CHECKING:
    import pandas as pd


def effects(table: pd.DataFrame, axes: Sequence[str], metric: str) -> pd.DataFrame:
    """Return the effect of each axis on a metric while the others are fixed, the strongest first.

    Parameters
    ----------
    table : DataFrame
    axes : sequence of str
        Columns that were varied.
    metric : str
        A column with positive numbers.

    Returns
    -------
    DataFrame
        For each axis `factor`, largest over smallest value of the metric, the geometric mean over all settings of the
        other axes; `best`, the value that most often gives the smallest; `settings`, of how many settings that is.
    """
    import pandas as pd

    check_columns(table, [*axes, metric])
    rows = table.dropna(subset=[metric])
    found = []
    for axis in axes:
        groups = [group for group in _groups(rows, axes, axis) if len(group[axis].drop_duplicates()) > 1]
        ratios = [float(group[metric].max() / group[metric].min()) for group in groups]
        least = [group[axis].tolist()[int(group[metric].to_numpy().argmin())] for group in groups]
        factor = float(np.exp(np.mean(np.log(ratios)))) if ratios else 1.0
        best = pd.Series(least, dtype=object).mode().iloc[0] if least else None
        found.append({"axis": axis, "factor": factor, "best": best, "settings": len(groups)})
    return pd.DataFrame(found).sort_values("factor", ascending=False, kind="stable", ignore_index=True)


def steps_along(table: pd.DataFrame, axes: Sequence[str], metric: str, cost: str = "area_mm2") -> pd.DataFrame:
    import pandas as pd

    check_columns(table, [*axes, metric, cost])
    rows = table.dropna(subset=[metric])
    found = []
    for axis in axes:
        groups = [group.set_index(axis) for group in _groups(rows, axes, axis)]
        for before, after in itertools.pairwise(rows[axis].drop_duplicates()):
            both = [group for group in groups if before in group.index and after in group.index]
            if not both:
                continue
            ratios = np.array([[g.loc[after, name] / g.loc[before, name] for name in (metric, cost)] for g in both])
            metric_of, cost_of = np.exp(np.log(ratios).mean(axis=0))
            gains = 100 * (1 - ratios[:, 0])
            found.append(
                {
                    "axis": axis, "step": f"{before} to {after}", "gain_pct": 100 * (1 - metric_of),
                    "least_pct": gains.min(), "most_pct": gains.max(), "cost_pct": 100 * (cost_of - 1),
                    "settings": len(both),
                }
            )  # fmt: skip
    return pd.DataFrame(found)


def _groups(rows: pd.DataFrame, axes: Sequence[str], axis: str) -> list[pd.DataFrame]:
    """Rows that differ along one axis only, grouped by the values of the others."""
    others = [name for name in axes if name != axis]
    return [group for _, group in rows.groupby(others, sort=False, dropna=False)] if others else [rows]


Factors = Sequence[str] | Mapping[str, Sequence[str] | Mapping[str, Mapping[str, Any]]]
BASE, DOWN, UP = "base", "down", "up"


@dataclass(frozen=True, eq=False)
class Sensitivity:
    """The result of a sensitivity study.

    Parameters
    ----------
    sweep : Sweep
        The points: the base, and each factor down and up.
    change : float
        The share by which factors were changed.
    """

    sweep: Sweep
    change: float

    def ranked(self, metric: str) -> pd.DataFrame:
        return ranked(self.sweep.ok, metric)

    def __repr__(self) -> str:
        return f"sensitivity to +-{self.change:.0%} of each factor\n{self.sweep!r}"


def sensitivity(
    machine: Machine | str | None,
    study: StudyFn | str,
    factors: Factors,
    *,
    parameters: Mapping[str, Any] | None = None,
    change: float = 0.2,
    **options: Any,
) -> Sensitivity:
    """Run a study with one factor changed at a time.

    Parameters
    ----------
    machine : Machine, str or None
        As for `kb.load`.
    study : callable or str
        As for `kb.sweep`.
    factors : sequence of str, or mapping
        Fields of the machine or parameters of the study; or for each name the fields that are scaled together, or
        settings for `down` and `up`, for factors that cannot be scaled.
    parameters : mapping
        Parameters and fields that every point has.
    change : float
        The share by which each is changed; whole numbers by one at least.
    **options
        As for `run_plan`: folder, workers, scheduler, limits, cache, progress.
    """
    return Sensitivity(run_plan(sensitivity_plan(machine, study, factors, parameters, change), **options), change)


def sensitivity_plan(
    machine: Machine | str | None,
    study: StudyFn | str,
    factors: Factors,
    parameters: Mapping[str, Any] | None = None,
    change: float = 0.2,
) -> Plan:
    base, fixed = resolve_topology(machine), dict(parameters or {})
    named = factors if isinstance(factors, Mapping) else {name: [name] for name in factors}
    choices: list[Combination] = [({"factor": BASE, "direction": ""}, {})]
    for name, given in named.items():
        for direction, scale in ((DOWN, 1 - change), (UP, 1 + change)):
            if isinstance(given, Mapping):
                settings = dict(given.get(direction, {}))
            else:
                settings = {field: _scaled(base, fixed, field, scale) for field in given}
            if settings:
                choices.append(({"factor": name, "direction": direction}, settings))
    return plan_of(base, study, choices, fixed)


def ranked(table: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Factors by how much their better direction reduces the metric."""
    import pandas as pd

    check_columns(table, [metric])
    rows = table.to_dict("records")
    base = next((row for row in rows if row["factor"] == BASE), None)
    if base is None:
        raise StateError("the base has no result to compare with; see its error in the table")
    found = []
    for name in dict.fromkeys(row["factor"] for row in rows if row is not base):
        sides = {row["direction"]: row for row in rows if row["factor"] == name}
        changes = {side: _percent(row[metric], base[metric]) for side, row in sides.items()}
        first = min(changes, key=lambda side: changes[side])
        one = {"factor": name, "down_pct": changes.get(DOWN), "up_pct": changes.get(UP)}
        one |= {"first": first, "gain_pct": 0.0 - changes[first]}
        for column, short in (("area_mm2", "area_pct"), ("energy_uj", "energy_pct")):
            if column in table and column != metric:
                one[short] = _percent(sides[first][column], base[column])
        found.append(one)
    return pd.DataFrame(found).sort_values("gain_pct", ascending=False, kind="stable", ignore_index=True)


def _scaled(machine: Machine, fixed: Mapping[str, Any], field: str, scale: float) -> float:
    value: Any = fixed.get(field)
    if value is None and "." in field:
        value = value_at(machine.spec, field)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value:
        raise ConfigError(
            f"factor {field} = {value!r} has no number to change; give settings for it: {{down: {{...}}, up: {{...}}}}"
        )
    if isinstance(value, float):
        return value * scale
    step = max(1, round(abs(value * (scale - 1))))
    return value + step if scale > 1 else value - step


def _percent(value: float, base: float) -> float:
    return 100 * (value / base - 1)
