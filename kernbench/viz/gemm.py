"""Figures of the GEMM study; each row of a table is one shape in one staging."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernbench.analysis.breakdown import ORDER
from kernbench.analysis.result import LABELS
from kernbench.viz import palette
from kernbench.viz.figure import Table, caption, new_figure, rows_of, tidy

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def stage_breakdown(table: Table | pd.DataFrame, *, machine: str) -> Figure:
    """Draw where the time of each run went: exclusive time that sums to the PE window, and busy time beside it.

    Parameters
    ----------
    table : list of dict or DataFrame
        Columns shape, variant, pe_window_ns, exclusive_<stage>_ns, busy_<stage>_ns, and under_tile (bool, optional).
    machine : str
        Hash of the machine.
    """
    rows = rows_of(table)
    note = "exclusive: an instant goes to the first busy of matrix, vector, fetch, store, dma in, dma out"
    under = caption(len(rows), machine, f"{note}{_flag_note(rows)}")
    figure = new_figure(11, 1.8 + 0.24 * len(rows), "GEMM on one PE: stage breakdown", under)
    left, right = figure.subplots(1, 2, sharey=True)
    at = _grouped(rows)
    _stacked(left, rows, at, "exclusive", ORDER)
    _stacked(right, rows, at, "busy", [stage for stage in ORDER if stage not in ("wait", "launch")])
    for row, y in zip(rows, at, strict=True):
        left.text(1.01, y, f"{row['pe_window_ns']:,.0f} ns", va="center", fontsize=7)
    left.set_xlim(0, 1.2)
    left.set_xticks([0, 0.25, 0.5, 0.75, 1])
    left.set_xlabel("exclusive time / PE window (number: PE window [ns])")
    right.axvline(1, color=palette.DARK_GREY, linewidth=0.8, linestyle="--")
    right.set_xlabel("busy time / PE window (beyond 1: engines at work at once)")
    left.set_yticks(at, [f"{_label(row)}  {row['variant']}" for row in rows], fontsize=7)
    left.set_ylim(at[-1] + 0.7, -0.7)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=len(labels), fontsize=7, frameon=False)
    return figure


def mac_utilization_measured(table: Table | pd.DataFrame, *, machine: str) -> Figure:
    """Draw the share of the matrix engine's rate that did useful work, and the share it was given, padding included.

    Parameters
    ----------
    table : list of dict or DataFrame
        Columns shape, variant, composite_useful, composite_issued, pe_useful, pe_issued, under_tile (optional).
    machine : str
        Hash of the machine.
    """
    rows = rows_of(table)
    under = caption(len(rows), machine, f"solid: useful MACs, pale: issued MACs (padding included){_flag_note(rows)}")
    figure = new_figure(11, 5.4, "GEMM on one PE: MAC utilization, measured", under)
    upper, lower = figure.subplots(2, 1, sharex=True, sharey=True)
    for axes, window, title in (
        (upper, "composite", "composite window (its issue to the last write's acknowledgement)"),
        (lower, "pe", "PE window (everything the PE did, loads included)"),
    ):
        for i, (offset, width, x, chosen) in enumerate(_bars(rows)):
            colour, at = palette.SERIES[i], [value + offset for value in x]
            axes.bar(at, [row[f"{window}_issued"] for row in chosen], width, color=colour, alpha=0.3)
            useful = [row[f"{window}_useful"] for row in chosen]
            axes.bar(at, useful, width, color=colour, label=chosen[0]["variant"])
            for place, value in zip(at, useful, strict=True):
                axes.text(place, value + 0.01, f"{value:.0%}", ha="center", fontsize=6)
        _utilization_axis(axes, title)
    _shape_axis(lower, rows)
    upper.legend(fontsize=7, frameon=False, ncols=3, loc="upper left")
    return figure


def mac_utilization_theoretical_vs_measured(table: Table | pd.DataFrame, *, machine: str) -> Figure:
    """Draw measured useful utilization over the composite window against the ideal model of the machine file.

    Parameters
    ----------
    table : list of dict or DataFrame
        Columns shape, variant, composite_useful, ideal_utilization, under_tile (optional).
    machine : str
        Hash of the machine.
    """
    rows = rows_of(table)
    variants = list(dict.fromkeys(row["variant"] for row in rows))
    note = "bar: measured; line: ideal model of the machine file; number: measured / ideal"
    under = caption(len(rows), machine, note + _flag_note(rows))
    figure = new_figure(
        11, 1.2 + 1.9 * len(variants), "GEMM on one PE: MAC utilization, ideal model against measured", under
    )
    panels = figure.subplots(len(variants), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    shapes = _shapes(rows)
    for i, (axes, variant) in enumerate(zip(panels, variants, strict=True)):
        chosen = [row for row in rows if row["variant"] == variant]
        x = [shapes.index(row["shape"]) for row in chosen]
        measured = [row["composite_useful"] for row in chosen]
        ideal = [row["ideal_utilization"] for row in chosen]
        axes.bar(x, measured, 0.6, color=palette.SERIES[i], label="measured")
        axes.hlines(ideal, [at - 0.38 for at in x], [at + 0.38 for at in x], color="black", label="ideal model")
        for at, got, bound in zip(x, measured, ideal, strict=True):
            ratio = f"{got / bound:.2f}" if bound else "-"
            axes.text(at, max(got, bound) + 0.03, ratio, ha="center", fontsize=7)
        _utilization_axis(axes, variant)
    _shape_axis(panels[-1], rows)
    panels[0].legend(fontsize=7, frameon=False, loc="upper left")
    return figure


def _stacked(axes: Axes, rows: list[dict[str, Any]], at: list[float], what: str, stages: Any) -> None:
    """Draw one horizontal bar per row, a piece per stage, in shares of the PE window."""
    reached = [0.0] * len(rows)
    for stage in stages:
        share = [
            row.get(f"{what}_{stage}_ns", 0.0) / row["pe_window_ns"] if row["pe_window_ns"] else 0.0 for row in rows
        ]
        if any(share):
            axes.barh(at, share, 0.8, left=reached, color=palette.STAGES[stage], label=LABELS[stage])
            reached = [a + b for a, b in zip(reached, share, strict=True)]
    tidy(axes)


def _grouped(rows: list[dict[str, Any]]) -> list[float]:
    """Return the height of each row's bar, with a gap where the shape changes."""
    at, y = [], -1.0
    for before, row in zip([None, *rows], rows, strict=False):
        y += 1.0 if before is None or before["shape"] == row["shape"] else 1.6
        at.append(y)
    return at


def _bars(rows: list[dict[str, Any]]) -> list[tuple[float, float, list[int], list[dict[str, Any]]]]:
    """Return (offset, width, x, rows) of each variant, for grouped bars over shapes."""
    shapes = _shapes(rows)
    variants = list(dict.fromkeys(row["variant"] for row in rows))
    width = 0.8 / len(variants)
    groups = []
    for i, variant in enumerate(variants):
        chosen = [row for row in rows if row["variant"] == variant]
        x = [shapes.index(row["shape"]) for row in chosen]
        groups.append(((i - (len(variants) - 1) / 2) * width, width * 0.92, x, chosen))
    return groups


def _shapes(rows: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(row["shape"] for row in rows))


def _shape_axis(axes: Axes, rows: list[dict[str, Any]]) -> None:
    labels = {row["shape"]: _label(row) for row in rows}
    axes.set_xticks(range(len(labels)), list(labels.values()))
    axes.set_xlabel("M x K x N")


def _utilization_axis(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=8, loc="left")
    axes.set_ylim(0, 1.12)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0 %", "25 %", "50 %", "75 %", "100 %"])
    axes.set_ylabel("share of MAC rate")
    axes.axhline(1, color=palette.GREY, linewidth=0.6)
    tidy(axes)


def _label(row: dict[str, Any]) -> str:
    return f"{row['shape']}{' *' if row.get('under_tile') else ''}"


def _flag_note(rows: list[dict[str, Any]]) -> str:
    return "   * smaller than one tile in some dimension" if any(row.get("under_tile") for row in rows) else ""
