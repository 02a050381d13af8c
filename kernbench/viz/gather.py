"""What the layout of operands in memory costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernbench.viz import palette
from kernbench.viz.figure import Table, caption, new_figure, rows_of, tidy

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


def packed_against_strided(table: Table | pd.DataFrame, *, machine: str) -> Figure:
    """Draw the composite's time with tiles stored row by row, relative to tiles stored one after the other.

    Parameters
    ----------
    table : list of dict or DataFrame
        Columns shape, variant, gather, composite_window_ns; each shape and variant in both gathers.
    machine : str
        Hash of the machine.
    """
    rows = rows_of(table)
    shapes = list(dict.fromkeys(row["shape"] for row in rows))
    variants = list(dict.fromkeys(row["variant"] for row in rows))
    time = {(row["shape"], row["variant"], row["gather"]): row["composite_window_ns"] for row in rows}
    under = caption(len(rows), machine, "1: as fast as packed; every 256 B line that a tile touches is served whole")
    figure = new_figure(9, 3.6, "GEMM on one PE: strided against packed operands", under)
    axes = figure.subplots()
    width = 0.8 / len(variants)
    for i, variant in enumerate(variants):
        at = [j + (i - (len(variants) - 1) / 2) * width for j in range(len(shapes))]
        ratio = [time[shape, variant, "strided"] / time[shape, variant, "packed"] for shape in shapes]
        axes.bar(at, ratio, width * 0.95, color=palette.SERIES[i], label=variant)
        for x, y in zip(at, ratio, strict=True):
            axes.text(x, y + 0.03, f"{y:.2f}", ha="center", fontsize=6)
    axes.axhline(1, color=palette.DARK_GREY, linewidth=0.8, linestyle="--")
    axes.set_xticks(range(len(shapes)), shapes, fontsize=7)
    axes.set_xlabel("M x K x N")
    axes.set_ylabel("composite time, strided / packed")
    axes.legend(fontsize=7, frameon=False)
    tidy(axes)
    return figure
