"""What a table is asked: which points nothing beats, and which axis matters."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from kernbench.errors import ArgumentError
from kernbench.registry import hint

if TYPE_CHECKING:
    import pandas as pd


def pareto(table: pd.DataFrame, metrics: Sequence[str], *, maximize: Sequence[str] = ()) -> pd.DataFrame:
    """Return the rows that no other row beats: none is as good in every metric and better in one.

    Parameters
    ----------
    table : DataFrame
        Rows without a value for a metric are left out.
    metrics : sequence of str
        Columns with numbers; less is better.
    maximize : sequence of str
        Those of them of which more is better.

    Returns
    -------
    DataFrame
        Rows of `table`, sorted by the first metric; of equal rows the first.
    """
    check_columns(table, [*metrics, *maximize])
    rows = table.dropna(subset=list(metrics))
    values = rows[list(metrics)].to_numpy(float)
    values = values * np.array([-1.0 if name in maximize else 1.0 for name in metrics])
    order = np.lexsort(values.T[::-1])
    front: list[int] = []
    for i in order:
        # Sorted by the first metric: only rows before can beat this one.
        if not any((values[j] <= values[i]).all() for j in front):
            front.append(int(i))
    return rows.iloc[front]


def effects(table: pd.DataFrame, axes: Sequence[str], metric: str) -> pd.DataFrame:
    """Return how much each axis moves a metric while the others stand still, the strongest first.

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
        others = [name for name in axes if name != axis]
        groups = [group for _, group in rows.groupby(others, sort=False)] if others else [rows]
        groups = [group for group in groups if len(group[axis].drop_duplicates()) > 1]
        ratios = [float(group[metric].max() / group[metric].min()) for group in groups]
        least = [group[axis].tolist()[int(group[metric].to_numpy().argmin())] for group in groups]
        winners = pd.Series(least, dtype=object)
        found.append(
            {
                "axis": axis,
                "factor": float(np.exp(np.mean(np.log(ratios)))) if ratios else 1.0,
                "best": winners.mode().iloc[0] if len(winners) else None,
                "settings": len(groups),
            }
        )
    return pd.DataFrame(found).sort_values("factor", ascending=False, kind="stable", ignore_index=True)


def steps(table: pd.DataFrame, axes: Sequence[str], metric: str, cost: str = "area_mm2") -> pd.DataFrame:
    """Return what each step along an axis buys, and costs, while the other axes stand still.

    Parameters
    ----------
    table : DataFrame
    axes : sequence of str
        Columns that were varied; their values in the order of the table.
    metric, cost : str
        Columns with positive numbers of which less is better.

    Returns
    -------
    DataFrame
        For each axis and each two neighbouring values: `axis`, `step`, `gain_pct`, how much less the metric is by it
        (the geometric mean over all settings of the other axes, with `least_pct` and `most_pct`), `cost_pct`, how much
        more the cost is, and `settings`, of how many settings.
    """
    import pandas as pd

    check_columns(table, [*axes, metric, cost])
    rows = table.dropna(subset=[metric])
    found = []
    for axis in axes:
        others = [name for name in axes if name != axis]
        groups = [group for _, group in rows.groupby(others, sort=False)] if others else [rows]
        groups = [group.set_index(axis) for group in groups]
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


def check_columns(table: pd.DataFrame, names: Sequence[str]) -> None:
    """Refuse columns that a table does not have.

    Raises
    ------
    ArgumentError
        With the ones that it has.
    """
    for name in names:
        if name not in table:
            raise ArgumentError(f"column {name!r} is not in the table; {hint(name, map(str, table.columns))}")
