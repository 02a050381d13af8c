"""The Pareto front of a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from kernbench.errors import ArgumentError, quote
from kernbench.sweeps._argument_checks import check_columns

if TYPE_CHECKING:
    import pandas as pd


def pareto(table: pd.DataFrame, metrics: Sequence[str], *, maximize: Sequence[str] = ()) -> pd.DataFrame:
    """Return the rows that no other row dominates: none is as good in every metric and better in one.

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

    Raises
    ------
    ArgumentError
        If a column is not in the table, or one of `maximize` is no metric.
    """
    check_columns(table, [*metrics, *maximize])
    for name in maximize:
        if name not in metrics:
            raise ArgumentError(f"maximize = {quote(name)} is none of metrics = {quote(list(metrics))}; add it there")
    rows = table.dropna(subset=list(metrics))
    values = rows[list(metrics)].to_numpy(float)
    values = values * np.array([-1.0 if name in maximize else 1.0 for name in metrics])
    order = np.lexsort(values.T[::-1])
    front: list[int] = []
    for i in order:
        # Rows are sorted by the first metric, so only earlier ones can dominate this one.
        if not any((values[j] <= values[i]).all() for j in front):
            front.append(int(i))
    return rows.iloc[front]
