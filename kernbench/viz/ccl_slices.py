"""Figures of the collectives study, one for each further slice: kinds of rings, roots, scaling, slots, lists, marks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kernbench.viz import palette
from kernbench.viz.ccl import Row, by, draw_times, name_lines, short, size_axis, size_label, styles, time_axis
from kernbench.viz.figure import Table, caption, new_figure, rows_of, tidy

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_KINDS = {"tcm": palette.BLUE, "sram": palette.ORANGE, "hbm": palette.GREEN}


def buffer_kinds(table: Table | pd.DataFrame, *, machine: str) -> Figure:
    """Draw latency by size with rings in TCM, SRAM and HBM, and below it what the latter two cost over TCM.

    Parameters
    ----------
    table : list of dict or DataFrame
        Columns algorithm, buffer_kind, bytes_per_pe, latency_ns, closed_form_ns, n_sips, sip_topology.
    machine : str
        Hash of the machine.
    """
    rows = sorted(rows_of(table), key=lambda row: row["bytes_per_pe"])
    algorithms = by(rows, "algorithm")
    title = f"Where the rings of slots lie: {rows[0]['n_sips']} SIPs, {rows[0]['sip_topology']}"
    figure = new_figure(4.2 * len(algorithms) + 1.0, 5.2, title, caption(len(rows), machine, "dotted: closed form"))
    panels = figure.subplots(2, len(algorithms), squeeze=False, sharex=True, height_ratios=[2, 1])
    for (upper, lower), (algorithm, own) in zip(panels.T, algorithms.items(), strict=True):
        tcm = {row["bytes_per_pe"]: row["latency_ns"] for row in own if row["buffer_kind"] == "tcm"}
        for kind, chosen in by(own, "buffer_kind").items():
            x, y = _xy(chosen, "bytes_per_pe", "latency_ns")
            upper.plot(x, y, "o-", ms=3.5, lw=1.2, color=_KINDS[kind], label=kind)
            upper.plot(*_xy(chosen, "bytes_per_pe", "closed_form_ns"), lw=1, ls=(0, (1, 1.5)), color=_KINDS[kind])
            lower.plot(x, [t / tcm[size] for size, t in zip(x, y, strict=True)], "o-", ms=3, lw=1, color=_KINDS[kind])
        time_axis(upper)
        upper.set_ylabel("latency [ns]")
        upper.set_title(short(algorithm).removesuffix("_tcm"), fontsize=8, loc="left")
        lower.set(ylabel="latency / that in TCM")
        size_axis(lower, [row["bytes_per_pe"] for row in own])
        tidy(upper)
        tidy(lower)
    panels[0, 0].legend(fontsize=7, frameon=False, title="ring in", title_fontsize=7)
    return figure


def root_placement(table: Table | pd.DataFrame, *, machine: str, cube_columns: int) -> Figure:
    """Draw latency with each cube as the one that stands for its SIP, on the mesh of cubes.

    Parameters
    ----------
    table : list of dict or DataFrame
        Columns root_cube (a number), latency_ns, bytes_per_pe, n_sips, sip_topology, algorithm.
    machine : str
        Hash of the machine.
    cube_columns : int
        Cubes in a row of the mesh.
    """
    rows = sorted(rows_of(table), key=lambda row: row["root_cube"])
    times = [row["latency_ns"] for row in rows]
    grid = [times[i : i + cube_columns] for i in range(0, len(times), cube_columns)]
    first = rows[0]
    title = (
        f"{first['algorithm']} by root cube: {size_label(first['bytes_per_pe'])} of each cube, {first['n_sips']} SIPs"
    )
    note = "number: latency [ns], and over the fastest   the IO chiplet lies in the west"
    figure = new_figure(5.6, 0.95 * len(grid) + 1.3, title, caption(len(rows), machine, note))
    axes = figure.subplots()
    image = axes.imshow(grid, cmap="YlOrRd")
    least, most = min(times), max(times)
    for i, t in enumerate(times):
        y, x = divmod(i, cube_columns)
        dark = t > least + 0.65 * (most - least)
        said = f"cube {rows[i]['root_cube']}\n{t:,.0f}\n{t / least - 1:+.1%}"
        axes.text(x, y, said, ha="center", va="center", fontsize=7, color="white" if dark else "black")
    axes.set(xticks=[], yticks=[])
    bar = figure.colorbar(image, ax=axes, shrink=0.8)
    bar.set_label("latency [ns]", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    return figure


def scaling(table: Table | pd.DataFrame, *, machine: str) -> Figure:
    """Draw latency and bus bandwidth over the number of SIPs, with the lower bound.

    Parameters
    ----------
    table : list of dict or DataFrame
        Columns algorithm, n_sips, sip_topology, bytes_per_pe, latency_ns, busbw_gbs, closed_form_ns, bound_ns.
    machine : str
        Hash of the machine.
    """
    rows = sorted(rows_of(table), key=lambda row: row["n_sips"])
    looks = styles(row["algorithm"] for row in rows)
    sizes = sorted({row["bytes_per_pe"] for row in rows})
    note = f"{rows[0]['sip_topology']}, one PE of each SIP   dotted: closed form   grey: lower bound"
    under = caption(len(rows), machine, note)
    figure = new_figure(4.0 * len(sizes) + 1.8, 5.6, "All-reduce over ever more SIPs", under)
    panels = figure.subplots(2, len(sizes), squeeze=False, sharex=True)
    for (upper, lower), size in zip(panels.T, sizes, strict=True):
        chosen = [row for row in rows if row["bytes_per_pe"] == size]
        upper.plot(*_xy(chosen, "n_sips", "bound_ns"), color=palette.GREY, lw=2.5, label="bound", zorder=1)
        for algorithm, own in by(chosen, "algorithm").items():
            draw_times(upper, own, "n_sips", looks[algorithm])
            lower.plot(*_xy(own, "n_sips", "busbw_gbs"), lw=1.2, **looks[algorithm])
        upper.set_title(f"{size_label(size)} of each", fontsize=8, loc="left")
        time_axis(upper)
        upper.set_ylabel("latency [ns]")
        lower.set(xscale="log", ylabel="busbw [GB/s]", xlabel="SIPs")
        counts = sorted({row["n_sips"] for row in chosen})
        lower.set_xticks(counts, [str(n) for n in counts])
        lower.minorticks_off()
        tidy(upper)
        tidy(lower)
    name_lines(figure, panels.ravel())
    return figure


def slots(table: Table | pd.DataFrame, *, machine: str) -> Figure:
    """Draw latency over the number of slots, with the closed form, which knows the window, and the lower bound.

    Parameters
    ----------
    table : list of dict or DataFrame
        Columns algorithm, n_slots, slot_size, bytes_per_pe, latency_ns, closed_form_ns, bound_ns.
    machine : str
        Hash of the machine.
    """
    rows = sorted(rows_of(table), key=lambda row: row["n_slots"])
    looks = styles(row["algorithm"] for row in rows)
    note = f"slots of {rows[0]['slot_size']:,} B   dotted: closed form"
    title = f"Slots: {size_label(rows[0]['bytes_per_pe'])} of each, {rows[0]['n_sips']} SIPs, {rows[0]['sip_topology']}"
    figure = new_figure(6.4, 3.8, title, caption(len(rows), machine, note))
    axes = figure.subplots()
    for algorithm, own in by(rows, "algorithm").items():
        look = looks[algorithm]
        axes.plot(*_xy(own, "n_slots", "latency_ns"), lw=1.2, label=short(algorithm), **look)
        axes.plot(*_xy(own, "n_slots", "closed_form_ns"), lw=1, ls=(0, (1, 1.5)), color=look["color"])
        axes.plot(*_xy(own, "n_slots", "bound_ns"), lw=2.5, color=palette.GREY, zorder=1)
    axes.plot([], [], lw=2.5, color=palette.GREY, label="lower bound")
    axes.set(xscale="log", xlabel="slots of each ring", ylabel="latency [ns]")
    time_axis(axes)
    counts = sorted({row["n_slots"] for row in rows})
    axes.set_xticks(counts, [str(n) for n in counts])
    axes.minorticks_off()
    axes.legend(fontsize=7, frameon=False)
    tidy(axes)
    return figure


def limits(table: Table | pd.DataFrame, *, machine: str) -> Figure:
    """Draw by how much latency grows when each thing that might limit is halved (a latency: doubled), one at a time.

    Parameters
    ----------
    table : list of dict or DataFrame
        Columns what ("nothing" for the machine as it is), algorithm, bytes_per_pe, latency_ns, n_sips, sip_topology.
    machine : str
        Hash of the machine.
    """
    rows = rows_of(table)
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["algorithm"], row["bytes_per_pe"]), []).append(row)
    texts = [what for what in dict.fromkeys(row["what"] for row in rows) if what != "nothing"]
    title = f"What limits: {rows[0]['n_sips']} SIPs, {rows[0]['sip_topology']}"
    note = "latency with the thing halved (a latency: doubled) over latency of the machine as it is"
    figure = new_figure(9.0, 4.0, title, caption(len(rows), machine, note))
    axes = figure.subplots()
    width = 0.84 / len(groups)
    for i, ((algorithm, size), own) in enumerate(groups.items()):
        times = {row["what"]: row["latency_ns"] for row in own}
        at = [x + (i - (len(groups) - 1) / 2) * width for x in range(len(texts))]
        growth = [times[what] / times["nothing"] - 1 for what in texts]
        label = f"{short(algorithm)}, {size_label(size)}"
        axes.bar(at, growth, 0.9 * width, color=palette.SERIES[i % len(palette.SERIES)], label=label)
    axes.set_xticks(range(len(texts)), texts, rotation=20, ha="right")
    axes.set_ylabel("latency grows by")
    axes.yaxis.set_major_formatter("{x:.0%}")
    axes.axhline(0, color=palette.GREY, lw=0.6)
    axes.legend(fontsize=7, frameon=False)
    tidy(axes)
    return figure


def lists(table: Table | pd.DataFrame, *, machine: str) -> Figure:
    """Draw the all-reduces of real programs: latency of each algorithm, and the bound.

    Parameters
    ----------
    table : list of dict or DataFrame
        Columns what, algorithm, bytes_per_sip, latency_ns, bound_ns, n_sips, sip_topology.
    machine : str
        Hash of the machine.
    """
    rows = sorted(rows_of(table), key=lambda row: row["bytes_per_sip"])
    looks = styles(row["algorithm"] for row in rows)
    texts = list(dict.fromkeys((row["what"], row["bytes_per_sip"]) for row in rows))
    at = {what: i for i, (what, _) in enumerate(texts)}
    note = f"{rows[0]['n_sips']} SIPs, {rows[0]['sip_topology']}   bar: lower bound"
    title = "All-reduces of DeepBench (f32) and Llama-3 70B (bf16, tensor parallel)"
    figure = new_figure(9.5, 4.6, title, caption(len(rows), machine, note))
    axes = figure.subplots()
    bounds = {row["what"]: row["bound_ns"] / 1000 for row in rows}
    axes.hlines(
        list(bounds.values()), [at[w] - 0.4 for w in bounds], [at[w] + 0.4 for w in bounds], color="black", lw=1
    )
    algorithms = by(rows, "algorithm")
    for i, (algorithm, own) in enumerate(algorithms.items()):
        look, aside = looks[algorithm], (i - (len(algorithms) - 1) / 2) * 0.16
        mark = {"marker": look["marker"], "color": look["color"], "ls": "", "ms": 5}
        x = [at[row["what"]] + aside for row in own]
        axes.plot(x, [row["latency_ns"] / 1000 for row in own], label=short(algorithm), **mark)
    time_axis(axes)
    axes.set_ylabel("latency [us]")
    axes.set_xticks(
        range(len(texts)), [f"{what}\n{size_label(nbytes)}" for what, nbytes in texts], rotation=35, ha="right"
    )
    axes.legend(fontsize=7, frameon=False)
    tidy(axes)
    axes.tick_params(axis="x", labelsize=7)
    return figure


def published_marks(table: Table | pd.DataFrame, marks: Sequence[Row], *, machine: str, note: str) -> Figure:
    """Draw simulated all-reduces beside the reference design's published figures.

    Parameters
    ----------
    table : list of dict or DataFrame
        Columns bytes_per_pe, buffer_kind, latency_ns, bound_ns.
    marks : sequence of dict
        Columns bytes_per_pe, buffer_kind, latency_us, source.
    machine : str
        Hash of the machine.
    note : str
        What the figures are of.
    """
    rows = sorted(rows_of(table), key=lambda row: row["bytes_per_pe"])
    figure = new_figure(7.6, 4.4, "All-reduce by cubes, beside published figures", caption(len(rows), machine, note))
    axes = figure.subplots()
    for kind, own in by(rows, "buffer_kind").items():
        x, y = _xy(own, "bytes_per_pe", "latency_ns")
        axes.plot(x, [t / 1000 for t in y], "o-", ms=4, lw=1.2, color=_KINDS[kind], label=f"simulated, {kind}")
    x, y = _xy([row for row in rows if row["buffer_kind"] == "tcm"], "bytes_per_pe", "bound_ns")
    axes.plot(x, [t / 1000 for t in y], color=palette.GREY, lw=1.2, label="lower bound")
    _published(axes, marks)
    time_axis(axes)
    axes.set_ylabel("latency [us]")
    size_axis(axes, [row["bytes_per_pe"] for row in rows])
    axes.legend(fontsize=7, frameon=False)
    tidy(axes)
    return figure


def _published(axes: Axes, marks: Sequence[Row]) -> None:
    for source, own in by([dict(mark) for mark in marks], "source").items():
        for kind, chosen in by(own, "buffer_kind").items():
            x, y = _xy(chosen, "bytes_per_pe", "latency_us")
            look = {"ls": "--", "lw": 0.8} if "model" in source else {"marker": "x", "ls": ""}
            colour = _KINDS.get(kind, palette.DARK_GREY)
            axes.plot(x, y, color=colour, ms=6, label=f"{source}{f', {kind}' if kind else ''}", **look)


def _xy(rows: Sequence[Row], x: str, y: str) -> tuple[list[Any], list[Any]]:
    """Return two columns of the rows that have both; of several rows with one x, the first."""
    found = {row[x]: row[y] for row in reversed(rows) if row[y] is not None}
    return sorted(found), [found[at] for at in sorted(found)]
