"""Figures of the probe; each row of a table is one case at one size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernbench.analysis.transfer import PARTS
from kernbench.viz import palette
from kernbench.viz.figure import Figure, Table, caption, new_figure, rows_of, tidy

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_COLOURS = {
    "wire": palette.SKY, "nodes": palette.BLUE, "fill": palette.PURPLE, "serialization": palette.ORANGE,
    "memory": palette.GREEN, "queueing": palette.VERMILION,
}  # fmt: skip
_SUFFIX = {0: "B", 10: "KiB", 20: "MiB"}


def single_bandwidth(table: Table | pd.DataFrame, *, machine: str) -> Figure:
    """Draw the effective bandwidth of single transfers against their size, with the closed form behind it.

    Parameters
    ----------
    table : list of dict or DataFrame
        Columns case, kind, nbytes, bandwidth_gbs, alone_ns, path_gbs: one transfer a row.
    machine : str
        Hash of the machine.
    """
    rows = rows_of(table)
    under = caption(len(rows), machine, "marks: simulated; lines: closed form; dotted: slowest link of the way")
    kinds = sorted({row["kind"] for row in rows})
    figure = new_figure(1 + 5 * len(kinds), 4.6, "Single transfers: bytes / time, against size", under)
    for axes, kind in zip(figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0], kinds, strict=True):
        chosen = [row for row in rows if row["kind"] == kind]
        for i, case in enumerate(_cases(chosen)):
            mine = [row for row in chosen if row["case"] == case]
            x, colour = [row["nbytes"] for row in mine], palette.SERIES[i % len(palette.SERIES)]
            marker = palette.MARKERS[i % len(palette.MARKERS)]
            axes.plot(x, [row["nbytes"] / row["alone_ns"] for row in mine], color=colour, linewidth=1)
            measured = [row["bandwidth_gbs"] for row in mine]
            axes.plot(x, measured, marker, color=colour, markersize=4.5, label=case)
        for limit in sorted({row["path_gbs"] for row in chosen}):
            axes.axhline(limit, color=palette.DARK_GREY, linewidth=0.7, linestyle=":")
        axes.set_title(f"{kind}s", fontsize=8, loc="left")
        axes.set_yscale("log")
        axes.legend(fontsize=6.5, frameon=False, loc="lower right")
        _sizes(axes, [row["nbytes"] for row in rows])
        axes.set_ylabel("bytes / time [GB/s]")
        tidy(axes)
    return figure


def pattern_saturation(table: Table | pd.DataFrame, *, machine: str) -> Figure:
    """Draw the aggregate bandwidth of patterns against size: absolute, and as a share of fair streams'.

    Parameters
    ----------
    table : list of dict or DataFrame
        Columns case, kind, transfers, nbytes, bandwidth_gbs, fair_gbs, fair_utilization: one pattern a row.
    machine : str
        Hash of the machine.
    """
    rows = rows_of(table)
    note = "all transfers start at once; fair: the same bytes as max-min fair streams without latency"
    under = caption(len(rows), machine, note)
    figure = new_figure(11, 4.6, "Patterns: aggregate bytes / time until the last transfer ends, against size", under)
    left, right = figure.subplots(1, 2)
    names = list(dict.fromkeys(row["case"].rsplit("-", 1)[0] for row in rows))
    for case in _cases(rows):
        mine = [row for row in rows if row["case"] == case]
        name, kind = case.rsplit("-", 1)
        i = names.index(name)
        style: dict[str, Any] = {
            "color": palette.SERIES[i % len(palette.SERIES)],
            "marker": palette.MARKERS[i % len(palette.MARKERS)],
            "linestyle": "-" if kind == "write" else "--",
            "fillstyle": "full" if kind == "write" else "none",
            "markersize": 4.5,
            "linewidth": 1,
        }
        x = [row["nbytes"] for row in mine]
        label = f"{case} ({mine[0]['transfers']})"
        left.plot(x, [row["bandwidth_gbs"] for row in mine], label=label, **style)
        right.plot(x, [row["fair_utilization"] for row in mine], **style)
    for limit in sorted({row["fair_gbs"] for row in rows}):
        left.axhline(limit, color=palette.DARK_GREY, linewidth=0.7, linestyle=":")
    right.axhline(1, color=palette.DARK_GREY, linewidth=0.7, linestyle=":")
    left.set_yscale("log")
    left.set_ylabel("aggregate bytes / time [GB/s] (dotted: fair)")
    right.set_ylim(0, 1.08)
    right.set_ylabel("share of the fair streams' bandwidth")
    for axes in (left, right):
        _sizes(axes, [row["nbytes"] for row in rows])
        tidy(axes)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", fontsize=6.5, frameon=False)
    return figure


def parts(table: Table | pd.DataFrame, *, machine: str, title: str) -> Figure:
    """Draw where the time of each row's transfer went: alone, and, where several meet, among the others.

    Parameters
    ----------
    table : list of dict or DataFrame
        Columns case, nbytes, transfers, <part>_ns for each part, alone_ns, mean_ns, last_end_ns; times of a pattern are
        means over its transfers.
    machine : str
        Hash of the machine.
    title : str
    """
    rows = rows_of(table)
    several = any(row["transfers"] > 1 for row in rows)
    note = "parts sum to the time exactly" + ("; a pattern's bar is the mean over its transfers" if several else "")
    figure = new_figure(11, 1.5 + 0.28 * len(rows), title, caption(len(rows), machine, note))
    panels = figure.subplots(1, 2 if several else 1, sharey=True, squeeze=False)[0]
    at = list(range(len(rows)))
    for axes, chosen in zip(panels, (PARTS[:-1], PARTS) if several else (PARTS,), strict=True):
        reached = [0.0] * len(rows)
        for part in chosen:
            widths = [row[f"{part}_ns"] for row in rows]
            axes.barh(at, widths, 0.75, left=reached, color=_COLOURS[part], label=part)
            reached = [a + b for a, b in zip(reached, widths, strict=True)]
        for y, value in zip(at, reached, strict=True):
            axes.annotate(f"{value:,.1f}", (value, y), (4, 0), textcoords="offset points", fontsize=6.5, va="center")
        axes.set_xlim(0, max(reached) * 1.14)
        axes.set_xlabel("time of a transfer [ns]")
        tidy(axes)
    if several:
        panels[0].set_title("alone (closed form)", fontsize=8, loc="left")
        panels[1].set_title("measured, together", fontsize=8, loc="left")
    left, right = panels[0], panels[-1]
    left.set_yticks(at, [f"{row['case']}, {size_name(row['nbytes'])}" for row in rows], fontsize=7)
    left.invert_yaxis()
    handles, labels = right.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=len(labels), fontsize=7, frameon=False)
    return figure


def size_name(nbytes: int) -> str:
    """Return a size in the largest binary unit that holds it whole.

    >>> size_name(65536), size_name(300)
    ('64 KiB', '300 B')
    """
    bits = next(bits for bits in (20, 10, 0) if not nbytes % (1 << bits))
    return f"{nbytes >> bits} {_SUFFIX[bits]}"


def _cases(rows: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(row["case"] for row in rows))


def _sizes(axes: Axes, sizes: list[int]) -> None:
    """Put the sizes themselves on a logarithmic x axis."""
    ticks = sorted(set(sizes))
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [size_name(size) for size in ticks])
    axes.minorticks_off()
    axes.set_xlabel("bytes of a transfer")
