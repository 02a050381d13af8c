"""Figures of the attention study; each row of a table is one run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kernbench.analysis.breakdown import ORDER
from kernbench.analysis.result import LABELS
from kernbench.viz import palette
from kernbench.viz.figure import Figure, Table, caption, new_figure, rows_of, tidy

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_PARTS = {
    "work_ns": ("work, no message under way", palette.BLUE), "hidden_ns": ("message hidden behind work", palette.GREEN),
    "exposed_ns": ("message exposed", palette.VERMILION), "idle_ns": ("neither", palette.LIGHT_GREY),
}  # fmt: skip
_CLEAR = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}  # numbers that may stand on a line


def op_counts(table: Table | pd.DataFrame, *, machine: str) -> Figure:
    """Draw how many commands of each kind the panels take.

    Parameters
    ----------
    table : list of dict or DataFrame
        Columns panel, n_ranks, and a counter for each kind of command, ending in _count.
    machine : str
        Hash of the machine.
    """
    rows = rows_of(table)
    kinds = [key for key in rows[0] if key.endswith("_count")]
    figure = new_figure(9, 3.6, "Attention: commands of all programs", caption(len(rows), machine, "validation scale"))
    axes = figure.subplots()
    width = 0.8 / len(kinds)
    for i, kind in enumerate(kinds):
        at = [x + (i - (len(kinds) - 1) / 2) * width for x in range(len(rows))]
        bars = axes.bar(
            at, [row[kind] for row in rows], width, color=palette.SERIES[i], label=kind.removesuffix("_count")
        )
        axes.bar_label(bars, fontsize=6)
    axes.set_yscale("log", base=2)
    axes.set_ylabel("commands")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xticks(range(len(rows)), [f"{row['panel']}\n{row['n_ranks']} ranks" for row in rows], fontsize=7)
    tidy(axes)
    figure.legend(loc="outside right upper", fontsize=7, frameon=False)
    return figure


def stage_breakdown(table: Table | pd.DataFrame, *, machine: str) -> Figure:
    """Draw where the time of each run went: exclusive time that sums to the makespan, and busy time beside it.

    Parameters
    ----------
    table : list of dict or DataFrame
        Columns label, makespan_ns, exclusive_<stage>_ns, busy_<stage>_ns.
    machine : str
        Hash of the machine.
    """
    rows = rows_of(table)
    note = (
        "mean over PEs; exclusive: an instant goes to the first busy stage in the order of the legend; "
        "composite: products, from fetch to store"
    )
    figure = new_figure(11, 1.8 + 0.26 * len(rows), "Attention: stage breakdown", caption(len(rows), machine, note))
    left, right = figure.subplots(1, 2, sharey=True)
    _stacked(left, rows, "exclusive", ORDER)
    _stacked(right, rows, "busy", [stage for stage in ORDER if stage not in ("wait", "launch")])
    for y, row in enumerate(rows):
        left.text(1.01, y, f"{row['makespan_ns'] / 1000:,.1f} us", va="center", fontsize=7)
    left.set_xlim(0, 1.25)
    left.set_xlabel("exclusive time / makespan")
    right.axvline(1, color=palette.DARK_GREY, linewidth=0.8, linestyle="--")
    right.set_xlabel("busy time / makespan (beyond 1: engines at work at once)")
    _rows_axis(left, rows)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=len(labels), fontsize=6, frameon=False)
    return figure


def overlap(table: Table | pd.DataFrame, *, machine: str) -> Figure:
    """Draw how much of the communication is hidden behind work.

    Parameters
    ----------
    table : list of dict or DataFrame
        Columns label, makespan_ns, work_ns, hidden_ns, exposed_ns, idle_ns.
    machine : str
        Hash of the machine.
    """
    rows = rows_of(table)
    note = "mean over PEs; neither: launch, dependences, waiting for slower ranks at the end"
    title = "Attention: communication hidden and exposed"
    figure = new_figure(9, 1.8 + 0.26 * len(rows), title, caption(len(rows), machine, note))
    axes = figure.subplots()
    left = [0.0] * len(rows)
    for key, (label, colour) in _PARTS.items():
        share = [row[key] / row["makespan_ns"] for row in rows]
        axes.barh(range(len(rows)), share, 0.75, left=left, color=colour, label=label)
        left = [a + b for a, b in zip(left, share, strict=True)]
    axes.set_xlabel("share of the makespan")
    _rows_axis(axes, rows)
    tidy(axes)
    figure.legend(loc="outside right upper", fontsize=7, frameon=False)
    return figure


def latency(table: Table | pd.DataFrame, *, machine: str, x: str, label: str, title: str, note: str = "") -> Figure:
    """Draw the makespan of each series against one column, with the lower bound of each point.

    Parameters
    ----------
    table : list of dict or DataFrame
        Columns `x`, line (which line a point belongs to), makespan_ns, bound_ns.
    machine : str
        Hash of the machine.
    x, label, title, note : str
        The column, what stands at its axis, the figure's title, more for its caption.
    """
    rows = rows_of(table)
    under = caption(len(rows), machine, f"dashed: lower bound (HBM, matrix or vector engine){note}")
    figure = new_figure(8, 4.6, title, under)
    axes = figure.subplots()
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    for i, line in enumerate(dict.fromkeys(row["line"] for row in rows)):
        chosen = sorted((row for row in rows if row["line"] == line), key=lambda row: row[x])
        at, colour, mark = [row[x] for row in chosen], palette.SERIES[i % 7], palette.MARKERS[i % 7]
        axes.plot(at, [row["makespan_ns"] / 1000 for row in chosen], f"-{mark}", color=colour, label=line, markersize=5)
        axes.plot(at, [row["bound_ns"] / 1000 for row in chosen], "--", color=colour, linewidth=0.9)
    axes.set_xlabel(label)
    axes.set_ylabel("makespan of one layer's attention [us]")
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.grid(visible=True, which="major", color=palette.LIGHT_GREY, linewidth=0.5)
    axes.legend(fontsize=7, frameon=False)
    tidy(axes)
    return figure


def bars(table: Table | pd.DataFrame, *, machine: str, title: str, note: str = "") -> Figure:
    """Draw the makespan of each row, with its lower bound as a line.

    Parameters
    ----------
    table : list of dict or DataFrame
        Columns label, makespan_ns, bound_ns.
    machine : str
        Hash of the machine.
    title, note : str
        The figure's title, and more for its caption.
    """
    rows = rows_of(table)
    figure = new_figure(8, 1.6 + 0.3 * len(rows), title, caption(len(rows), machine, f"line: lower bound{note}"))
    axes = figure.subplots()
    for y, row in enumerate(rows):
        axes.barh(y, row["makespan_ns"] / 1000, 0.7, color=palette.BLUE)
        axes.vlines(row["bound_ns"] / 1000, y - 0.4, y + 0.4, color="black", linewidth=1.2)
        axes.text(row["makespan_ns"] / 1000, y, f" {row['makespan_ns'] / 1000:,.2f}", fontsize=7, va="center")
    axes.set_xlim(0, 1.08 * max(row["makespan_ns"] for row in rows) / 1000)
    axes.set_xlabel("makespan of one layer's attention [us]")
    _rows_axis(axes, rows)
    tidy(axes)
    return figure


def halving(table: Table | pd.DataFrame, *, machine: str) -> Figure:
    """Draw how much longer each run takes when one part of the machine is half as fast.

    Parameters
    ----------
    table : list of dict or DataFrame
        Columns label, part, slowdown.
    machine : str
        Hash of the machine.
    """
    rows = rows_of(table)
    labels, parts = (list(dict.fromkeys(row[key] for row in rows)) for key in ("label", "part"))
    note = "2: this part alone sets the time; 1: it does not matter"
    figure = new_figure(
        9, 3.6, "Attention: each part of the machine at half its speed", caption(len(rows), machine, note)
    )
    axes = figure.subplots()
    width = 0.8 / len(parts)
    for i, part in enumerate(parts):
        chosen = [row for row in rows if row["part"] == part]
        at = [labels.index(row["label"]) + (i - (len(parts) - 1) / 2) * width for row in chosen]
        axes.bar(at, [row["slowdown"] - 1 for row in chosen], width, 1, color=palette.SERIES[i], label=part)
        for x, row in zip(at, chosen, strict=True):
            y = max(1, row["slowdown"]) + 0.015
            axes.text(x, y, f"{row['slowdown']:.2f}", ha="center", fontsize=6, bbox=_CLEAR)
    axes.axhline(2, color=palette.DARK_GREY, linewidth=0.8, linestyle="--", zorder=0)
    axes.set_ylim(min(1, *(row["slowdown"] for row in rows)), 2.1)
    axes.set_ylabel("makespan / makespan of the machine as it is")
    axes.set_xticks(range(len(labels)), labels, fontsize=7)
    tidy(axes)
    figure.legend(loc="outside right upper", fontsize=7, frameon=False)
    return figure


def _stacked(axes: Axes, rows: Sequence[dict[str, Any]], kind: str, stages: Sequence[str]) -> None:
    left = [0.0] * len(rows)
    for stage in stages:
        share = [row[f"{kind}_{stage}_ns"] / row["makespan_ns"] for row in rows]
        if not any(share):
            continue
        axes.barh(
            range(len(rows)), share, 0.75, left=left, color=palette.STAGES.get(stage), label=LABELS.get(stage, stage)
        )
        left = [a + b for a, b in zip(left, share, strict=True)]
    tidy(axes)


def _rows_axis(axes: Axes, rows: Sequence[dict[str, Any]]) -> None:
    axes.set_yticks(range(len(rows)), [row["label"] for row in rows], fontsize=7)
    axes.set_ylim(len(rows) - 0.4, -0.6)
