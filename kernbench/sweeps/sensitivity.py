"""One factor at a time, down and up: how a metric answers, and what to change first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernbench.errors import ConfigError, StateError
from kernbench.sweeps.answers import check_columns
from kernbench.sweeps.keys import Study
from kernbench.sweeps.plan import Plan, make_plan
from kernbench.sweeps.sweep import run_plan
from kernbench.sweeps.table import Sweep
from kernbench.topology.builder import Machine, resolve_topology

if TYPE_CHECKING:
    import pandas as pd

Factors = Sequence[str] | Mapping[str, Sequence[str] | Mapping[str, Mapping[str, Any]]]
BASE, DOWN, UP = "base", "down", "up"


@dataclass(frozen=True, eq=False)
class Sensitivity:
    """Answers of a metric to each factor.

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
        """Return what to change first, as the function `ranked` does."""
        return ranked(self.sweep.ok, metric)

    def __repr__(self) -> str:
        return f"sensitivity to +-{self.change:.0%} of each factor\n{self.sweep!r}"


def sensitivity(
    machine: Machine | str | None,
    study: Study | str,
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
        settings for `down` and `up`, for what has no middle.
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
    study: Study | str,
    factors: Factors,
    parameters: Mapping[str, Any] | None = None,
    change: float = 0.2,
) -> Plan:
    """Return the points of `sensitivity`, whose parameters these are.

    Raises
    ------
    ConfigError
        If a factor has no number to change.
    """
    base, fixed = resolve_topology(machine), dict(parameters or {})
    named = factors if isinstance(factors, Mapping) else {name: [name] for name in factors}
    axis: dict[str, Mapping[str, Any]] = {f"{BASE}/": {}}
    for name, given in named.items():
        for direction, scale in ((DOWN, 1 - change), (UP, 1 + change)):
            if isinstance(given, Mapping):
                settings = dict(given.get(direction, {}))
            else:
                settings = {field: _scaled(base, fixed, field, scale) for field in given}
            if settings:
                axis[f"{name}/{direction}"] = settings
    plan = make_plan(base, study, {"point": axis}, parameters=fixed)
    return plan.relabelled(lambda shown: dict(zip(("factor", "direction"), shown["point"].rsplit("/", 1), strict=True)))


def ranked(table: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return what to change first: factors by how much less of the metric their better direction gives.

    Parameters
    ----------
    table : DataFrame
        Points with a result: columns factor and direction, as `sensitivity` has them.
    metric : str
        A column of numbers of which less is better.

    Returns
    -------
    DataFrame
        A row for each factor: the metric's `down_pct` and `up_pct` against the base, `first` (which of the two is
        better), `gain_pct` by it, and what that does to silicon (`area_pct`) and, where it is known, `energy_pct`.

    Raises
    ------
    StateError
        If there is no such column, or the base has no result.
    """
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
        value = machine.spec
        for part in field.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
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
