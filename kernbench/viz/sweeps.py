"""Figures of a design space: the front, two axes as a map, and how a metric answers to each factor."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from kernbench.viz import palette
from kernbench.viz.figure import Figure, Table, caption, new_figure, rows_of, tidy

if TYPE_CHECKING:
    import pandas as pd


_UNITS = {"mm2": "mm2", "uj": "uJ", "gbs": "GB/s", "pct": "%", "mib": "MiB", "bytes": "B"}
_TITLE = 60  # characters over the narrowest figure
_UNITS |= {unit: unit for unit in ("ps", "ns", "us", "ms", "s")}


def tornado(table: Table | pd.DataFrame, metric: str, *, machine: str, change: float = 0.2, of: str = "") -> Figure:
    """Draw how a metric answers to each factor, down and up, the strongest on top.

    Parameters
    ----------
    table : list of dict or DataFrame
        Columns factor, down_pct, up_pct: what `Sensitivity.ranked` returns.
    metric : str
        What the percentages are of.
    machine : str
        Hash of the machine.
    change : float
        The share by which factors were changed.
    of : str
        What ran, for the title.
    """
    rows = sorted(rows_of(table), key=lambda row: max(_width(row["down_pct"]), _width(row["up_pct"])))
    note = f"one factor at a time, +-{change:.0%} or the nearest step; less is better"
    title = f"What moves the {said(metric)[0]}{_of(of)}"
    figure = new_figure(8, 1.5 + 0.36 * len(rows), title, caption(len(rows), machine, note))
    axes = figure.subplots()
    for column, colour, label in (("down_pct", palette.ORANGE, "less of it"), ("up_pct", palette.BLUE, "more of it")):
        values = [row[column] if _width(row[column]) else 0 for row in rows]
        axes.barh(range(len(rows)), values, 0.7, color=colour, alpha=0.85, label=label)
    axes.axvline(0, color=palette.DARK_GREY, linewidth=0.8)
    axes.set_yticks(range(len(rows)), [row["factor"] for row in rows])
    axes.set_xlabel(f"change of {said(metric)[0]} [%]")
    widest = max((_width(row[column]) for row in rows for column in ("down_pct", "up_pct")), default=0)
    widest = widest or 1
    axes.set_xlim(-1.15 * widest, 1.15 * widest)
    tidy(axes)
    axes.legend(fontsize=7, frameon=False, loc="lower right")
    return figure


def pareto_front(
    table: Table | pd.DataFrame,
    front: Table | pd.DataFrame,
    metrics: tuple[str, str],
    *,
    machine: str,
    label: Sequence[str] = (),
    of: str = "",
) -> Figure:
    """Draw all points in two metrics, and the front that none of them beats.

    Parameters
    ----------
    table, front : list of dict or DataFrame
        All points, and those of the front, as `answers.pareto` returns them.
    metrics : (str, str)
        Columns of the axes; less is better.
    machine : str
        Hash of the machine that points change.
    label : sequence of str
        Columns that name a point of the front.
    of : str
        What ran, for the title.
    """
    x, y = metrics
    rows = [row for row in rows_of(table) if not (np.isnan(row[x]) or np.isnan(row[y]))]
    best = sorted(rows_of(front), key=lambda row: (row[x], row[y]))
    note = f"{len(best)} on the front; less is better in both"
    title = f"{_first_upper(said(y)[0])} against {said(x)[0]}{_of(of)}"
    figure = new_figure(9, 5, title, caption(len(rows), machine, note))
    axes = figure.subplots()
    axes.plot([row[x] for row in rows], [row[y] for row in rows], "o", color=palette.GREY, markersize=4, alpha=0.6)
    axes.step([row[x] for row in best], [row[y] for row in best], where="post", color=palette.BLUE, linewidth=1)
    axes.plot([row[x] for row in best], [row[y] for row in best], "o", color=palette.BLUE, markersize=6)
    for i, row in _apart(best, rows, metrics):
        axes.annotate(str(i), (row[x], row[y]), (4, 4), textcoords="offset points", fontsize=7)
    names = [f"{i}  {', '.join(_value(row[column]) for column in label)}" for i, row in enumerate(best, 1)]
    if label:
        head = f"front: {', '.join(_short(column) for column in label)}"
        axes.text(1.02, 1, "\n".join([head, *names]), transform=axes.transAxes, fontsize=6.5, va="top")
    for values, scale in (([row[x] for row in rows], axes.set_xscale), ([row[y] for row in rows], axes.set_yscale)):
        if min(values) > 0 and max(values) > 20 * min(values):
            scale("log")
    for axis, label_of, column in ((axes.xaxis, axes.set_xlabel, x), (axes.yaxis, axes.set_ylabel, y)):
        label_of(_label(column))
        axis.set_major_formatter("{x:,g}")
    tidy(axes)
    axes.grid(visible=True, color=palette.LIGHT_GREY, linewidth=0.5)
    return figure


def heat_map(table: Table | pd.DataFrame, axes: tuple[str, str], metric: str, *, machine: str, of: str = "") -> Figure:
    """Draw a metric over two axes: in each field the least that any setting of the others gives.

    Parameters
    ----------
    table : list of dict or DataFrame
        Columns of both axes and of the metric; rows without a value are left out.
    axes : (str, str)
        Columns across and up.
    metric : str
        Less is better.
    machine : str
        Hash of the machine that points change.
    of : str
        What ran, for the title.
    """
    rows = [row for row in rows_of(table) if not np.isnan(row[metric])]
    across, up = (list(dict.fromkeys(row[axis] for row in rows)) for axis in axes)
    grid = np.full((len(up), len(across)), np.nan)
    for row in rows:
        at = up.index(row[axes[1]]), across.index(row[axes[0]])
        grid[at] = np.fmin(grid[at], row[metric])
    note = "of several settings of other axes the least; empty: no result"
    figure = new_figure(
        max(6.5, 2.4 + 1.1 * len(across)),
        1.9 + 0.55 * len(up),
        fill(f"{_first_upper(_label(metric))} by {axes[1]} and {axes[0]}{_of(of)}", _TITLE),
        caption(len(rows), machine, note),
    )
    canvas = figure.subplots()
    image = canvas.imshow(grid, origin="lower", aspect="auto", cmap="viridis_r")
    middle = (np.nanmin(grid) + np.nanmax(grid)) / 2
    for (i, j), value in np.ndenumerate(grid):
        if not np.isnan(value):
            colour = "white" if value > middle else "black"
            canvas.text(j, i, _digits(value), ha="center", va="center", fontsize=7, color=colour)
    canvas.set_xticks(range(len(across)), [_value(value) for value in across])
    canvas.set_yticks(range(len(up)), [_value(value) for value in up])
    canvas.set_xlabel(axes[0])
    canvas.set_ylabel(axes[1])
    canvas.tick_params(labelsize=8)
    bar = figure.colorbar(image, ax=canvas, format="{x:,g}")
    bar.set_label(_label(metric), fontsize=8)
    bar.ax.tick_params(labelsize=7)
    return figure


def said(column: str) -> tuple[str, str]:
    """Return the quantity and the unit of a column, whose name ends with the unit.

    >>> said("run_ns"), said("cube mesh")
    (('run', 'ns'), ('cube mesh', ''))
    """
    name, _, unit = column.rpartition("_")
    return (name.replace("_", " "), _UNITS[unit]) if name and unit in _UNITS else (column, "")


def _label(column: str) -> str:
    name, unit = said(column)
    return f"{name} [{unit}]" if unit else name


def _first_upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _of(what: str) -> str:
    return f": {what}" if what else ""


def _digits(value: float) -> str:
    """Return a number with four digits that count, and all before the point."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.4g}"


def _apart(
    best: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]], metrics: tuple[str, str]
) -> list[tuple[int, dict[str, Any]]]:
    """Return the points of a front that can be numbered without one number on top of another."""
    spans = [max(row[m] for row in rows) - min(row[m] for row in rows) or 1.0 for m in metrics]
    kept: list[tuple[int, dict[str, Any]]] = []
    for i, row in enumerate(best, 1):
        if all(
            max(abs(row[m] - other[m]) / span for m, span in zip(metrics, spans, strict=True)) > 0.03
            for _, other in kept
        ):
            kept.append((i, row))
    return kept


def _width(value: float | None) -> float:
    return 0.0 if value is None or np.isnan(value) else abs(value)


def _short(column: str) -> str:
    """Return the last two words of a field's path: they tell it apart in a figure."""
    return ".".join(column.split(".")[-2:])


def _value(value: object) -> str:
    return f"{value:,g}" if isinstance(value, float) else str(value)
