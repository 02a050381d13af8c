"""Figures of layers over a whole SIP; each row of a table is one layer in one placement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernbench.viz import palette
from kernbench.viz.figure import Figure, Table, caption, new_figure, rows_of, tidy

if TYPE_CHECKING:
    import pandas as pd

_SIZES = {"m": "M (rows of A and C)", "n": "N (columns of B and C)", "k": "K (not split)"}


def placement_bars(table: Table | pd.DataFrame, *, machine: str) -> Figure:
    """Draw the makespan of each layer in each placement, with its lower bound; layers left out show the bound only.

    Parameters
    ----------
    table : list of dict or DataFrame
        Columns layer, shape, placement, bound_ns, left_out, and where that is empty makespan_ns, certified.
    machine : str
        Hash of the machine.
    """
    rows = rows_of(table)
    names, placements = _distinct(rows, "layer"), _distinct(rows, "placement")
    note = "line: lower bound (matrix rate, PE links); hollow: not simulated, bound only; *: not certified (mode fast)"
    figure = new_figure(
        9.5, 1.6 + 0.42 * len(names), "Layers over a SIP: makespan by placement", caption(len(rows), machine, note)
    )
    axes = figure.subplots()
    axes.set_xscale("log")
    height = 0.8 / len(placements)
    for i, placement in enumerate(placements):
        chosen = [row for row in rows if row["placement"] == placement]
        at = [names.index(row["layer"]) + (i - (len(placements) - 1) / 2) * height for row in chosen]
        colour = palette.SERIES[i]
        axes.barh(0, 0, color=colour, label=placement)
        for row, y in zip(chosen, at, strict=True):
            bound = row["bound_ns"] / 1000
            if row["left_out"]:
                axes.barh(y, bound, height * 0.9, facecolor="none", edgecolor=colour, linestyle=":")
                continue
            axes.barh(y, row["makespan_ns"] / 1000, height * 0.9, color=colour)
            axes.vlines(bound, y - height / 2, y + height / 2, color="black", linewidth=1)
            label = f" {row['makespan_ns'] / 1000:,.1f}{'' if row['certified'] else ' *'}"
            axes.text(row["makespan_ns"] / 1000, y, label, fontsize=6, va="center")
    shapes = {row["layer"]: row["shape"] for row in rows}
    axes.set_yticks(
        range(len(names)), [f"{name}  {shapes[name]}" if shapes[name] not in name else name for name in names]
    )
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlabel("makespan of the launch [us]")
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.xaxis.set_minor_formatter("")
    tidy(axes)
    axes.tick_params(labelsize=7)
    figure.legend(loc="outside upper right", ncols=len(placements), fontsize=7, frameon=False)
    return figure


def utilization_against_shape(table: Table | pd.DataFrame, *, machine: str) -> Figure:
    """Draw the useful share of the SIP's matrix rate against each size of the product.

    Parameters
    ----------
    table : list of dict or DataFrame
        Columns m, n, k, placement, utilization; rows with left_out are not drawn.
    machine : str
        Hash of the machine.
    """
    rows = [row for row in rows_of(table) if not row["left_out"]]
    figure = new_figure(
        11, 4.2, "Layers over a SIP: utilization against shape", caption(len(rows), machine, "over the makespan")
    )
    panels = figure.subplots(1, 3, sharey=True)
    for axes, (size, title) in zip(panels, _SIZES.items(), strict=True):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        for i, placement in enumerate(_distinct(rows, "placement")):
            chosen = [row for row in rows if row["placement"] == placement]
            axes.plot(
                [row[size] for row in chosen], [row["utilization"] for row in chosen],
                palette.MARKERS[i], color=palette.SERIES[i], markersize=5, alpha=0.7, label=placement,
            )  # fmt: skip
        axes.axhline(1, color=palette.DARK_GREY, linewidth=0.8, linestyle="--")
        axes.set_xlabel(title)
        axes.xaxis.set_major_formatter("{x:g}")
        tidy(axes)
        axes.grid(visible=True, which="major", color=palette.LIGHT_GREY, linewidth=0.5)
    panels[0].set_ylabel("useful MACs / MAC rate of all PEs")
    panels[0].yaxis.set_major_formatter(lambda x, _: f"{x:.4%}".rstrip("0%").rstrip(".") + " %")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper right", ncols=3, fontsize=7, frameon=False)
    return figure


def hottest_links(table: Table | pd.DataFrame, *, machine: str) -> Figure:
    """Draw how busy the hottest link of each run was, and name it.

    Parameters
    ----------
    table : list of dict or DataFrame
        Columns layer, placement, hottest_link, hottest_busy; rows with left_out are not drawn.
    machine : str
        Hash of the machine.
    """
    rows = [row for row in rows_of(table) if not row["left_out"]]
    names, placements = _distinct(rows, "layer"), _distinct(rows, "placement")
    figure = new_figure(
        12,
        1.6 + 0.28 * len(names),
        "Layers over a SIP: the hottest link",
        caption(len(rows), machine, "share of the makespan; of links busy alike, the first by name"),
    )
    panels = figure.subplots(1, len(placements), sharey=True, squeeze=False)[0]
    for i, (axes, placement) in enumerate(zip(panels, placements, strict=True)):
        chosen = [row for row in rows if row["placement"] == placement]
        at = [names.index(row["layer"]) for row in chosen]
        axes.barh(at, [row["hottest_busy"] for row in chosen], 0.8, color=palette.SERIES[i], alpha=0.35)
        for row, y in zip(chosen, at, strict=True):
            text = f"{row['hottest_busy']:.0%}  {row['hottest_link'].replace('sip0.', '').replace('->', ' > ')}"
            axes.text(0.01, y, text, fontsize=6, va="center")
        axes.set_title(placement, fontsize=8, loc="left")
        axes.set_xlim(0, 1)
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:.0%}")
        axes.set_xlabel("busy")
        tidy(axes)
    panels[0].set_yticks(range(len(names)), names, fontsize=7)
    panels[0].set_ylim(len(names) - 0.4, -0.6)
    return figure


def _distinct(rows: list[dict[str, Any]], column: str) -> list[str]:
    return list(dict.fromkeys(row[column] for row in rows))
