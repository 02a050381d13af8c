"""Figures of the validation study: the error of every row, and how errors and spreads are distributed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matplotlib.lines import Line2D

from kernbench.viz import palette
from kernbench.viz.figure import Table, caption, new_figure, rows_of, tidy

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_FLOOR = 1e-4  # [%] below it the axis is linear, so that 0 has a place
_HELD, _BROKEN, _REPORTED = palette.GREEN, palette.VERMILION, palette.BLUE


def validation_errors(table: Table | pd.DataFrame, *, machine: str) -> Figure:
    """Draw the largest error of each row, in % of what its rule says.

    Parameters
    ----------
    table : list of dict or DataFrame
        Columns name, rule, n, percent_max, unit, allowed, held, as `studies.validation.sweep` returns them.
    machine : str
        Hash of the machine.
    """
    rows = rows_of(table)
    note = "in brackets: points of the row; |: what its rule allows"
    height = 1.6 + 0.24 * len(rows)
    figure = new_figure(
        9, height, "Largest error of each rule, simulation against formula", caption(len(rows), machine, note)
    )
    axes = figure.subplots()
    for y, row in enumerate(rows):
        axes.plot([0, row["percent_max"]], [y, y], color=palette.LIGHT_GREY, linewidth=3, zorder=1)
        axes.plot(row["percent_max"], y, "o", color=_colour(row), markersize=6, zorder=3, clip_on=False)
        if row["unit"] == "%" and row["allowed"]:
            axes.plot(row["allowed"], y, "|", color=palette.DARK_GREY, markersize=11, zorder=2)
    axes.set_xscale("symlog", linthresh=_FLOOR)
    axes.set_xlim(0, 150)
    axes.set_xticks([0, 1e-4, 1e-3, 1e-2, 0.1, 1, 10, 100], ["0", "0.0001", "0.001", "0.01", "0.1", "1", "10", "100"])
    axes.set_yticks(range(len(rows)), [f"{row['rule']}  {row['name']} ({row['n']:,})" for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.7)
    axes.grid(axis="x", color=palette.LIGHT_GREY, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.set_xlabel("largest difference over expected value [%]")
    axes.legend(
        handles=[
            Line2D([], [], marker="o", linestyle="", color=_HELD, label="holds"),
            Line2D([], [], marker="o", linestyle="", color=_REPORTED, label="reported: no exact formula"),
            Line2D([], [], marker="o", linestyle="", color=_BROKEN, label="does not hold"),
        ],
        fontsize=7,
        loc="lower right",
    )
    tidy(axes)
    return figure


def validation_spread(table: Table | pd.DataFrame, *, machine: str) -> Figure:
    """Draw for every row in % which share of its points stays within which difference.

    Parameters
    ----------
    table : list of dict or DataFrame
        Columns name, rule, what, n, unit, quantiles.
    machine : str
        Hash of the machine.
    """
    rows = [row for row in rows_of(table) if row["unit"] == "%"]
    note = "tie-spread: ranks of simultaneous arrivals permuted against the ranks of the model"
    title = "Where no formula is exact: spread of ties, fair shares, the ideal product"
    figure = new_figure(9, 4, title, caption(len(rows), machine, note))
    axes = figure.subplots()
    for i, row in enumerate(rows):
        shares = [100 * k / (len(row["quantiles"]) - 1) for k in range(len(row["quantiles"]))]
        label = f"{row['rule']} {row['name']} ({row['n']:,})"
        axes.plot(
            row["quantiles"],
            shares,
            color=palette.SERIES[i % len(palette.SERIES)],
            marker=palette.MARKERS[i % len(palette.MARKERS)],
            markersize=4,
            label=label,
            clip_on=False,
        )
    axes.set_xscale("symlog", linthresh=0.001)
    axes.set_xlim(0, 100)
    axes.set_xticks([0, 1e-3, 1e-2, 0.1, 1, 10, 100], ["0", "0.001", "0.01", "0.1", "1", "10", "100"])
    axes.set_ylim(0, 102)
    axes.set_xlabel("difference over expected value, at most [%]")
    axes.set_ylabel("share of points [%]")
    axes.grid(color=palette.LIGHT_GREY, linewidth=0.5)
    axes.legend(fontsize=7, loc="lower right")
    tidy(axes)
    return figure


def _colour(row: dict[str, Any]) -> str:
    if row["allowed"] is None:
        return _REPORTED
    return _HELD if row["held"] else _BROKEN
