"""Figures of layers over a whole SIP; each row of a table is one layer in one placement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernbench.viz import palette
from kernbench.viz.figure import Figure, Table, caption, new_figure, rows_of, tidy
from kernbench.viz.roofline import labels

if TYPE_CHECKING:
    import pandas as pd

    from kernbench.analysis.roofline import Roofs

_SIZES = {"m": "M (rows of A and C)", "n": "N (columns of B and C)", "k": "K (not split)"}


def placement_bars(table: Table | pd.DataFrame, *, machine: str) -> Figure:
    """Draw the makespan of each layer in each placement, with its lower bound; layers left out show the bound only.

    Parameters
    ----------
    table : list of dict or DataFrame
        Columns layer, shape, placement, bound_ns, left_out, and where that is empty makespan_ns.
    machine : str
        Hash of the machine.
    """
    rows = rows_of(table)
    names, placements = _distinct(rows, "layer"), _distinct(rows, "placement")
    note = "line: lower bound (matrix rate, PE links); hollow: does not fit, bound only"
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
            axes.text(row["makespan_ns"] / 1000, y, f" {row['makespan_ns'] / 1000:,.1f}", fontsize=6, va="center")
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
    rows = rows_of(table)
    placements = _distinct(rows, "placement")
    rows = [row for row in rows if not row["left_out"]]
    figure = new_figure(
        11, 4.2, "Layers over a SIP: utilization against shape", caption(len(rows), machine, "over the makespan")
    )
    panels = figure.subplots(1, 3, sharey=True)
    for axes, (size, title) in zip(panels, _SIZES.items(), strict=True):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        for i, placement in enumerate(placements):
            chosen = [row for row in rows if row["placement"] == placement]
            axes.plot(
                [row[size] for row in chosen], [row["utilization"] for row in chosen],
                palette.MARKERS[i], color=palette.SERIES[i], markersize=5, alpha=0.7, label=placement,
            )  # fmt: skip
        axes.axhline(1, color=palette.DARK_GREY, linewidth=0.8, linestyle="--")
        axes.set_xlabel(title)
        axes.xaxis.set_major_formatter("{x:g}")
        tidy(axes)
        axes.tick_params(axis="x", labelsize=7)
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
    rows = rows_of(table)
    names, placements = _distinct(rows, "layer"), _distinct(rows, "placement")
    rows = [row for row in rows if not row["left_out"]]
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


def layer_roofline(table: Table | pd.DataFrame, roofs: Roofs, *, machine: str) -> Figure:
    """Draw rate against arithmetic intensity of each simulated layer, a panel for each placement.

    Parameters
    ----------
    table : list of dict or DataFrame
        Columns layer, placement, intensity [flop/B of HBM], gflops; rows with left_out are not drawn.
    roofs : Roofs
        Peak rate and bandwidth of the SIP.
    machine : str
        Hash of the machine.
    """
    rows = rows_of(table)
    names, placements = _distinct(rows, "layer"), _distinct(rows, "placement")
    rows = [row for row in rows if not row["left_out"]]
    note = "numbers: layers; dotted: ridge"
    figure = new_figure(13, 5.6, "Layers over a SIP: roofline", caption(len(rows), machine, note))
    panels = figure.subplots(1, len(placements), sharex=True, sharey=True, squeeze=False)[0]
    [(level, bw)] = roofs.levels_gbs.items()
    ridge = roofs.ridge(level)
    low, high = (f(ridge, *(row["intensity"] for row in rows)) for f in (min, max))
    ends = [low / 2, ridge, high * 2]
    for i, (axes, placement) in enumerate(zip(panels, placements, strict=True)):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.plot(ends, [roofs.attainable_gflops(x, level) for x in ends], color=palette.DARK_GREY, linewidth=1.2)
        axes.axvline(ridge, color=palette.GREY, linewidth=0.8, linestyle=":")
        chosen = [row for row in rows if row["placement"] == placement]
        for row in chosen:
            axes.plot(row["intensity"], row["gflops"], palette.MARKERS[i], color=palette.SERIES[i], markersize=5)
        for spot, label in labels([{**row, "name": row["layer"]} for row in chosen], names):
            axes.annotate(label, spot, (5, -2), textcoords="offset points", fontsize=6, va="top")
        axes.set_title(placement, fontsize=8, loc="left")
        axes.set_xlabel("arithmetic intensity [flop / B of HBM]")
        axes.xaxis.set_major_formatter("{x:g}")
        tidy(axes)
        axes.grid(visible=True, which="major", color=palette.LIGHT_GREY, linewidth=0.5)
    panels[0].set_ylabel(f"rate [Gflop/s]; roofs: {roofs.peak_gflops:,.0f} Gflop/s, {level} {bw:,.0f} GB/s")
    panels[0].yaxis.set_major_formatter("{x:,.12g}")
    key = "\n".join(f"{i}  {name}" for i, name in enumerate(names, 1))
    panels[-1].text(1.02, 1, key, transform=panels[-1].transAxes, fontsize=6.5, va="top")
    return figure


def _distinct(rows: list[dict[str, Any]], column: str) -> list[str]:
    return list(dict.fromkeys(row[column] for row in rows))
