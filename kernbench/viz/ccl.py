"""Figures of the collectives study, by size: latency with bounds and closed forms, and bus bandwidth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle, pairwise
from math import cos, dist, exp, log, pi, sin
from typing import TYPE_CHECKING, Any

from matplotlib.ticker import LogLocator, NullLocator

from kernbench.viz import palette
from kernbench.viz.figure import Table, caption, new_figure, rows_of, tidy

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from kernbench.topology.builder import Machine
    from kernbench.topology.sips import SipNetwork

Row = dict[str, Any]
_LINES = ("-", "--", ":")


def latency_by_size(table: Table | pd.DataFrame, *, machine: str, title: str = "All-reduce") -> Figure:
    """Draw latency over bytes of a PE: one panel for each number and shape of SIPs, one line for each algorithm.

    Parameters
    ----------
    table : list of dict or DataFrame
        Columns contribution, algorithm, sip_topology, n_sips, bytes_per_pe, latency_ns, bound_ns, closed_form_ns (None
        where there is none).
    machine : str
        Hash of the machine.
    title : str
        What the rows are about.
    """
    rows = rows_of(table)
    looks = styles(row["algorithm"] for row in rows)
    several = len({row.get("collective") for row in rows}) > 1
    grey = "the least of their lower bounds" if several else "lower bound"
    note = f"line: simulated   dotted: closed form   grey: {grey}{other_slots(rows)}"
    figure, panels = _panels(rows, f"{title}: latency by size", caption(len(rows), machine, note))
    for axes, chosen in panels:
        for contribution, bound in by(chosen, "contribution").items():
            least = {size: min(row["bound_ns"] for row in own) for size, own in by(bound, "bytes_per_pe").items()}
            axes.plot(
                list(least),
                list(least.values()),
                color=palette.GREY,
                lw=2.5,
                zorder=1,
                label=f"{'least bound' if several else 'bound'} by {named(contribution)}",
            )
        for algorithm, own in by(chosen, "algorithm").items():
            draw_times(axes, own, "bytes_per_pe", looks[algorithm])
        time_axis(axes)
        axes.set_ylabel("latency [ns]")
    name_lines(figure, (axes for axes, _ in panels))
    return figure


def busbw_by_size(table: Table | pd.DataFrame, *, machine: str, link_gbs: float, title: str = "All-reduce") -> Figure:
    """Draw bus bandwidth over bytes of a PE, with the bandwidth of a link between SIPs; crossovers are marked.

    Parameters
    ----------
    table : list of dict or DataFrame
        Columns as for `latency_by_size`, and busbw_gbs.
    machine : str
        Hash of the machine.
    link_gbs : float
        Bandwidth of a link between SIPs, each way.
    title : str
        What the rows are about.

    Notes
    -----
    busbw = algbw f, f as in nccl-tests (2 (n - 1) / n for an all-reduce), n counting contributions. A crossover is
    where the fastest algorithm changes, on the straight line between two sizes.
    """
    rows = rows_of(table)
    looks = styles(row["algorithm"] for row in rows)
    note = (
        f"busbw as in nccl-tests   black: a link between SIPs, {link_gbs:g} GB/s each way   dotted: the fastest changes"
        f"{other_slots(rows)}"
    )
    figure, panels = _panels(rows, f"{title}: bus bandwidth by size", caption(len(rows), machine, note))
    for axes, chosen in panels:
        axes.axhline(link_gbs, color="black", lw=0.8)
        for algorithm, own in by(chosen, "algorithm").items():
            look = looks[algorithm]
            x = [row["bytes_per_pe"] for row in own]
            axes.plot(x, [row["busbw_gbs"] for row in own], label=algorithm, lw=1.2, **look)
        # What one contribution sums is not what another does: only their own algorithms are compared.
        changes = [change for own in by(chosen, "contribution").values() for change in crossovers(own)]
        for nbytes, _, after in changes:
            axes.axvline(nbytes, color=looks[after]["color"], lw=1.0, ls=(0, (1, 2)), zorder=1)
            axes.annotate(
                f" {size_label(nbytes)}: {short(after)}", (nbytes, 0.02), xycoords=("data", "axes fraction"),
                fontsize=6, rotation=90, ha="right", va="bottom", color=palette.DARK_GREY,
            )  # fmt: skip
        axes.set_ylabel("busbw [GB/s]")
    name_lines(figure, (axes for axes, _ in panels))
    return figure


def crossovers(rows: Sequence[Mapping[str, Any]]) -> list[tuple[float, str, str]]:
    """Return where the fastest algorithm changes with size: (bytes of a PE, the one before, the one after)."""
    chosen = by([dict(row) for row in rows], "bytes_per_pe")
    sizes = sorted(chosen)
    times = {size: {row["algorithm"]: row["latency_ns"] for row in chosen[size]} for size in sizes}
    best = {size: min(times[size], key=lambda name, at=size: times[at][name]) for size in sizes}  # type: ignore[misc]
    found = []
    for low, high in pairwise(sizes):
        a, b = best[low], best[high]
        if a != b and b in times[low] and a in times[high]:
            # On log-log axes both are straight lines between the sizes.
            lead, lag = log(times[low][b] / times[low][a]), log(times[high][a] / times[high][b])
            found.append((exp(log(low) + lead / (lead + lag) * log(high / low)) if lead + lag else float(low), a, b))
    return found


def topologies(machines: Mapping[str, Machine], *, machine: str) -> Figure:
    """Draw the SIPs and links of machines, by title.

    Parameters
    ----------
    machines : mapping of str to Machine
    machine : str
        Hash of the machine whose SIPs were changed.
    """
    across = min(4, len(machines))
    down = -(-len(machines) // across)
    link = next(iter(machines.values())).config.system.sip_link
    note = f"a line: one link each way, {link.bw_gbs:g} GB/s, {link.latency_ns:g} ns"
    under = caption(len(machines), machine, note)
    figure = new_figure(2.7 * across, 2.6 * down + 0.6, "How the SIPs are joined", under)
    panels = figure.subplots(down, across, squeeze=False).ravel()
    for axes, (title, there) in zip(panels, machines.items(), strict=False):
        net = there.graph.sips
        at = _stand(net)
        for sip, beside in enumerate(net.neighbours):
            for other in beside:
                if other > sip:
                    _link(axes, at[sip], at[other], arc=net.h > 1)
        axes.plot(*zip(*at.values(), strict=True), "s", ms=13, mfc="white", mec=palette.BLUE, mew=1.5, zorder=3)
        for sip, (x, y) in at.items():
            axes.text(x, y, str(sip), ha="center", va="center", fontsize=7, zorder=4)
        xs, ys = zip(*at.values(), strict=True)
        axes.set(xlim=(min(xs) - 0.6, max(xs) + 0.6), ylim=(min(ys) - 0.6, max(ys) + 0.6), aspect="equal")
        axes.set_title(title, fontsize=8, loc="left")
    for axes in panels:
        axes.axis("off")
    return figure


def _stand(net: SipNetwork) -> dict[int, tuple[float, float]]:
    """Return where SIPs are drawn: on their grid, or on a circle."""
    if net.h > 1:
        return {sip: (sip % net.w, -(sip // net.w)) for sip in range(net.count)}
    turn, wide = 2 * pi / net.count, max(0.6, net.count / 6)
    return {sip: (wide * cos(pi - sip * turn), wide * sin(pi - sip * turn)) for sip in range(net.count)}


def _link(axes: Axes, a: tuple[float, float], b: tuple[float, float], *, arc: bool) -> None:
    """Draw a link: straight, or in an arc over the SIPs between."""
    bend = "arc3,rad=-0.35" if arc and dist(a, b) > 1 else "arc3,rad=0"
    arrow = {"arrowstyle": "-", "connectionstyle": bend, "color": palette.GREY, "lw": 0.8}
    axes.annotate("", a, b, arrowprops=arrow, zorder=1)


def short(algorithm: str) -> str:
    """Return an algorithm's name without what all have in common."""
    return algorithm.replace("_allreduce", "")


def styles(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return colour, line and marker of each algorithm, in order of first appearance."""
    looks = {}
    series = list(zip(palette.SERIES, palette.MARKERS, strict=True))
    for i, (name, (colour, marker)) in enumerate(zip(dict.fromkeys(names), cycle(series), strict=False)):
        looks[name] = {"color": colour, "marker": marker, "ls": _LINES[i // len(series) % len(_LINES)], "ms": 3.5}
    return looks


def size_label(nbytes: float) -> str:
    """Return bytes as a label.

    >>> size_label(65536), size_label(16), size_label(1.5 * (1 << 20))
    ('64 KiB', '16 B', '1.5 MiB')
    """
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.3g} {name}"
    return f"{nbytes:.3g} B"


def size_axis(axes: Axes, sizes: Sequence[int], label: str = "bytes of a PE") -> None:
    """Give `axes` a logarithmic axis of sizes, with at most six labels."""
    axes.set_xscale("log", base=2)
    shown = sorted(set(sizes))
    shown = shown[:: -(-len(shown) // 6)]
    axes.set_xticks(shown, [size_label(size) for size in shown])
    axes.minorticks_off()
    axes.set_xlabel(label)


def time_axis(axes: Axes) -> None:
    """Give `axes`, once all is drawn, a logarithmic axis of times: labels as close as its span allows."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    few = (1.0, 2.0, 5.0) if high < 300 * low else (1.0,)
    axes.yaxis.set_major_locator(
        LogLocator(subs=few if high > 12 * low else (1.0, 1.5, 2.0, 3.0, 5.0, 7.0), numticks=12)
    )
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.yaxis.set_minor_locator(NullLocator())


def _panels(rows: list[Row], title: str, under: str) -> tuple[Figure, list[tuple[Axes, list[Row]]]]:
    """Return a figure and its panels, each with its rows: one for each number and shape of SIPs."""
    by_shape: dict[tuple[int, str], list[Row]] = {}
    for row in sorted(rows, key=lambda row: row["bytes_per_pe"]):
        by_shape.setdefault((row["n_sips"], row["sip_topology"]), []).append(row)
    across = 3 if len(by_shape) > 4 else min(2, len(by_shape))
    down = -(-len(by_shape) // across)
    figure = new_figure(4.2 * across + 1.8, 3.8 * down + 0.6, title, under)
    axes = figure.subplots(down, across, squeeze=False, sharey=True).ravel()
    panels = []
    for panel, (n, shape) in zip(axes, sorted(by_shape), strict=False):
        chosen = by_shape[n, shape]
        panel.set_yscale("log")
        panel.set_title(f"{n} SIPs, {shape}", fontsize=8, loc="left")
        size_axis(panel, [row["bytes_per_pe"] for row in chosen])
        tidy(panel)
        panels.append((panel, chosen))
    for panel in axes[len(by_shape) :]:
        panel.axis("off")
    return figure, panels


def draw_times(axes: Axes, own: Sequence[Row], x: str, look: Mapping[str, Any]) -> None:
    """Draw an algorithm's latency as a line, its closed form dotted."""
    axes.plot([r[x] for r in own], [r["latency_ns"] for r in own], label=own[0]["algorithm"], lw=1.2, **look)
    formed = [(row[x], row["closed_form_ns"]) for row in own if row["closed_form_ns"]]
    if formed:
        axes.plot(*zip(*formed, strict=True), color=look["color"], lw=1.0, ls=(0, (1, 1.5)), zorder=1.5)


def other_slots(rows: Sequence[Row]) -> str:
    """Return what a caption says of rows whose slots are of another size than most have."""
    found = Counter(row.get("slot_size") for row in rows)
    usual = found.most_common(1)[0][0] if found else None
    others = [row for row in rows if row.get("slot_size") != usual]
    said = dict.fromkeys((row["slot_size"], row["contribution"], row["bytes_per_pe"]) for row in others)
    return "".join(f"   by {named(who)}, {size_label(n)}: slots of {size_label(slot)}" for slot, who, n in said)


def named(contribution: str) -> str:
    """Return a contribution as words have it."""
    return "PE" if contribution == "pe" else contribution


def name_lines(figure: Figure, panels: Iterable[Axes]) -> None:
    """Name each line once, on the right."""
    handles: dict[str, Artist] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.legend(
        list(handles.values()),
        [short(label) for label in handles],
        loc="outside right upper",
        fontsize=7,
        frameon=False,
    )


def by(rows: list[Row], column: str) -> dict[Any, list[Row]]:
    """Return the rows of each value of a column, in order of appearance."""
    found: dict[Any, list[Row]] = {}
    for row in rows:
        found.setdefault(row[column], []).append(row)
    return found
