"""Figures by matplotlib: roofline, timeline of a PE, and those of a design space. Charts of reports: `viz.charts`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import matplotlib.figure
import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg

from kernbench.analysis._stages import LABELS, LANES
from kernbench.config._files import replacing
from kernbench.viz import _palette as palette

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from kernbench.analysis._roofline import Roofs

Table = Iterable[Mapping[str, Any]]
_UNITS = {"mm2": "mm2", "uj": "uJ", "gbs": "GB/s", "pct": "%", "mib": "MiB", "bytes": "B"}
TEXT = 9  # the smallest text [pt]
_LETTERS = 13  # characters of it per inch
_TITLE = 60  # characters over the narrowest figure
_UNITS |= {unit: unit for unit in ("ps", "ns", "us", "ms", "s")}


class Figure(matplotlib.figure.Figure):
    """A figure that displays itself in a notebook, even if pyplot was never imported there."""

    def png(self) -> bytes:
        png = BytesIO()
        self.savefig(png, format="png", metadata={"Software": None})
        return png.getvalue()

    _repr_png_ = png


def frame_of(table: Table | pd.DataFrame) -> pd.DataFrame:
    """Convert rows to a DataFrame with a fresh index; a ValueError without rows."""
    given: Any = table
    rows = pd.DataFrame(given).reset_index(drop=True)
    if rows.empty:
        raise ValueError("no rows to draw; give at least one")
    return rows


def caption(n: int, machine: str, note: str = "") -> str:
    return "   ".join(part for part in (f"n = {n}", f"machine {machine[:12]}", note) if part)


def new_figure(width: float, height: float, title: str, under: str) -> Figure:
    """Empty figure [inches] with its title and its caption line."""
    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    figure.supxlabel(fill(under, int(_LETTERS * width)), fontsize=TEXT, x=0.01, ha="left", color="#4D4D4D")
    return figure


def tidy(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=TEXT)
    axes.xaxis.label.set_fontsize(TEXT)
    axes.yaxis.label.set_fontsize(TEXT)


def save(figure: matplotlib.figure.Figure, path: str | Path) -> Path:
    """Write a figure as PNG or SVG, by the file's suffix; equal figures give equal bytes."""
    path = Path(path)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # a second layout would start from this one and shift it a little
    undated = {"Software": None} if path.suffix == ".png" else {"Date": None, "Creator": None}
    with mpl.rc_context({"svg.hashsalt": "kernbench", "svg.fonttype": "path"}), replacing(path) as part:
        figure.savefig(part, format=path.suffix.removeprefix("."), metadata=undated)
    return path


def roofline(table: Table | pd.DataFrame, roofs: Roofs, *, machine: str, title: str = "Roofline") -> Figure:
    """Draw measured points, model points where there are any, and one roof per memory level.

    Parameters
    ----------
    table : list of dict or DataFrame
        Columns name, series (one colour each, optional), intensity [flop/B], gflops, model_gflops (optional). A run
        that moves bytes at several levels has a row for each.
    roofs : Roofs
        Peak rate and bandwidths.
    machine : str
        Hash of the machine.
    title : str
    """
    rows = frame_of(table)
    rows = rows[np.isfinite(rows["intensity"])]
    models = rows.dropna(subset="model_gflops") if "model_gflops" in rows else rows[:0]
    under = "dotted: ridge of each memory level"
    if len(models):
        under = f"filled: measured; hollow: model; {under}"
    figure = new_figure(8, 5.4, title, caption(len(rows), machine, under))
    axes = figure.subplots()
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)

    ridges = [roofs.ridge(level) for level in roofs.levels_gbs]
    low = min([*rows["intensity"], *ridges]) / 2
    high = max([*rows["intensity"], *ridges]) * 4
    x = np.geomspace(low, high, 200)
    for level, bw in roofs.levels_gbs.items():
        axes.plot(x, [roofs.attainable_gflops(at, level) for at in x], color=palette.DARK_GREY, linewidth=1.2)
        axes.text(
            low * 1.2, low * 1.2 * bw * 1.12, f"{level} {bw:g} GB/s", fontsize=TEXT,
            rotation=np.degrees(np.arctan(bw)), rotation_mode="anchor", transform_rotates_text=True,
        )  # fmt: skip
        axes.axvline(roofs.ridge(level), color=palette.GREY, linewidth=0.8, linestyle=":")
    peak = f"peak {roofs.peak_gflops:,.0f} Gflop/s"
    axes.text(high / 1.1, roofs.peak_gflops * 1.08, peak, fontsize=TEXT, ha="right")

    series_of = rows["series"].fillna("measured") if "series" in rows else pd.Series("measured", rows.index)
    for i, series in enumerate(series_of.unique()):
        chosen, model = rows[series_of == series], models[series_of[models.index] == series]
        colour, marker = palette.SERIES[i % len(palette.SERIES)], palette.MARKERS[i % len(palette.MARKERS)]
        axes.plot(chosen["intensity"], chosen["gflops"], marker, color=colour, markersize=6, label=series)
        if len(model):
            axes.plot(model["intensity"], model["model_gflops"], marker, mfc="none", mec=colour, markersize=9)
    names = list(rows["name"].unique())
    sizes = np.log2(rows[["intensity", "gflops"]].to_numpy(float)) / (0.3, 0.2)  # size of a label, in octaves
    for cloud in _overlapping(sizes):
        lowest = rows.iloc[min(cloud, key=lambda i: rows["gflops"].iloc[i])]
        numbers = sorted({names.index(rows["name"].iloc[i]) + 1 for i in cloud})
        spot = (lowest["intensity"], lowest["gflops"])
        axes.annotate(", ".join(map(str, numbers)), spot, (5, -3), textcoords="offset points", fontsize=TEXT, va="top")
    key = "\n".join(f"{i}  {name}" for i, name in enumerate(names, 1))
    axes.text(1.02, 1, key, transform=axes.transAxes, fontsize=TEXT, va="top")
    axes.set_xlim(low, high)
    axes.set_xlabel("arithmetic intensity [flop / B moved at the memory level]")
    axes.set_ylabel("rate [Gflop/s]")
    axes.legend(fontsize=TEXT, frameon=False, loc="lower right")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:,g}")
    tidy(axes)
    axes.grid(visible=True, which="major", color=palette.LIGHT_GREY, linewidth=0.5)
    return figure


def _overlapping(places: np.ndarray) -> list[list[int]]:
    """Group points, in units of a label's size, that are closer than a label to each other."""
    groups: list[list[int]] = []
    for i, place in enumerate(places):
        near = [group for group in groups if (abs(places[group] - place) < 1).all(axis=1).any()]
        groups = [group for group in groups if group not in near]
        groups.append([*(j for group in near for j in group), i])
    return groups


def tile_timeline(table: Table | pd.DataFrame, *, machine: str, title: str, zoom_ns: float | None = None) -> Figure:
    """Draw the activity of each engine of a PE over time; consecutive tiles alternate in shade.

    Parameters
    ----------
    table : list of dict or DataFrame
        Columns stage, start_ns, end_ns, tile, as `analysis.trace.timeline` returns them.
    machine : str
        Hash of the machine.
    title : str
        What ran.
    zoom_ns : float, optional
        A second panel shows this much time from the first tile on.
    """
    rows = frame_of(table)
    rows[["start_ns", "end_ns"]] -= rows["start_ns"].min()
    under = caption(len(rows), machine, "each box: one tile or transfer")
    figure = new_figure(11, 5.2 if zoom_ns else 2.9, title, under)
    panels = figure.subplots(2 if zoom_ns else 1, 1, squeeze=False)[:, 0]
    for axes in panels:
        _gantt(axes, rows)
    panels[0].set_xlim(0, rows["end_ns"].max())
    if zoom_ns:
        tiles = rows["start_ns"][rows["tile"] >= 0]
        first = tiles.min() if len(tiles) else 0.0
        panels[0].axvspan(first, first + zoom_ns, color=palette.LIGHT_GREY, alpha=0.5, zorder=0)
        panels[0].set_title("everything the PE did (shaded: the part below)", fontsize=TEXT, loc="left")
        panels[1].set_xlim(first, first + zoom_ns)
        panels[1].set_title(f"{zoom_ns:g} ns from the first tile on", fontsize=TEXT, loc="left")
    panels[-1].set_xlabel("time since the PE's first work [ns]")
    return figure


def _gantt(axes: Axes, rows: pd.DataFrame) -> None:
    lanes = [stage for stage in LANES if (rows["stage"] == stage).any()]
    for y, stage in enumerate(lanes):
        boxes = rows[rows["stage"] == stage].sort_values("start_ns", kind="stable")
        tracks = _tracks(boxes)
        height = 0.84 / (max(tracks) + 1)
        parity, width = boxes["tile"].clip(lower=0) % 2, boxes["end_ns"] - boxes["start_ns"]
        for odd, alpha in ((0, 1.0), (1, 0.55)):
            for track in range(max(tracks) + 1):
                chosen = (tracks == track) & (parity == odd)
                spans = list(zip(boxes["start_ns"][chosen], width[chosen], strict=True))
                at = (y - 0.42 + track * height, height)
                axes.broken_barh(spans, at, facecolor=palette.STAGES[stage], alpha=alpha, linewidth=0)
    axes.set_yticks(range(len(lanes)), [LABELS[stage] for stage in lanes])
    axes.set_ylim(len(lanes) - 0.5, -0.5)
    tidy(axes)


def _tracks(boxes: pd.DataFrame) -> np.ndarray:
    """First free track of each box, in order of start, so that overlapping work is drawn on several."""
    ends: list[float] = []
    tracks = []
    for start, end in zip(boxes["start_ns"], boxes["end_ns"], strict=True):
        track = next((i for i, busy_until in enumerate(ends) if busy_until <= start), len(ends))
        ends[track : track + 1] = [end]
        tracks.append(track)
    return np.array(tracks)


Curve = tuple[str, Sequence[tuple[float, float]], float, float]


def load_curves(curves: Sequence[Curve], *, machine: str, n: int, note: str) -> Figure:
    """Draw mean latency against load, and the load at which each curve saturates.

    Parameters
    ----------
    curves : sequence of tuple
        Name, (load [flits per cycle and terminal], latency [ns]) of loads that do not saturate, latency without load
        [ns], and load of saturation.
    machine : str
        Hash of the machine.
    n : int
        Number of loads simulated.
    note : str
        What else the caption says.
    """
    figure = new_figure(6, 4, "Latency against load", caption(n, machine, note))
    axes = figure.subplots()
    top = 3.2 * max(alone for _, _, alone, _ in curves)
    for i, (name, points, alone, saturation) in enumerate(curves):
        colour = palette.SERIES[i % len(palette.SERIES)]
        xs, ys = zip((0.0, alone), *points, strict=True)
        axes.plot(xs, ys, color=colour, marker=palette.MARKERS[i % len(palette.MARKERS)], markersize=3, linewidth=1.2)
        axes.axvline(saturation, color=colour, linewidth=0.8, linestyle="--", alpha=0.7)
        axes.plot([], [], color=colour, label=f"{name}: {alone:.1f} ns alone, saturates at {saturation:.2f}")
    axes.set_ylim(0, top)
    axes.set_xlim(0, min(1.0, 1.25 * max(saturation for *_, saturation in curves)))
    axes.set_xlabel("load [flits per cycle and terminal]")
    axes.set_ylabel("mean latency [ns]")
    tidy(axes)
    axes.legend(fontsize=TEXT, frameon=False, loc="upper left")
    return figure


def tornado(table: Table | pd.DataFrame, metric: str, *, machine: str, change: float = 0.2, of: str = "") -> Figure:
    """Draw the effect of each factor on a metric, down and up, the strongest on top.

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
    rows = frame_of(table)
    sides = rows[["down_pct", "up_pct"]].astype(float).fillna(0)
    order = sides.abs().max(axis=1).argsort(kind="stable")
    rows, sides = rows.iloc[order], sides.iloc[order]
    note = f"one factor at a time, +-{change:.0%} or the nearest step; less is better"
    name, places = quantity(metric)[0], range(len(rows))
    figure = new_figure(8, 1.5 + 0.36 * len(rows), f"What moves the {name}{_of(of)}", caption(len(rows), machine, note))
    axes = figure.subplots()
    for column, colour, label in (("down_pct", palette.ORANGE, "less of it"), ("up_pct", palette.BLUE, "more of it")):
        axes.barh(places, sides[column], 0.7, color=colour, alpha=0.85, label=label)
    axes.axvline(0, color=palette.DARK_GREY, linewidth=0.8)
    axes.set_yticks(places, rows["factor"])
    axes.set_xlabel(f"change of {name} [%]")
    widest = sides.abs().to_numpy().max() or 1
    axes.set_xlim(-1.15 * widest, 1.15 * widest)
    tidy(axes)
    axes.legend(fontsize=TEXT, frameon=False, loc="lower right")
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
    """Draw all points in two metrics, and the front that no other point dominates.

    Parameters
    ----------
    table, front : list of dict or DataFrame
        All points, and those of the front, as `kernbench.sweeps.sensitivity.pareto` returns them.
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
    rows = frame_of(table).dropna(subset=[x, y])
    best = frame_of(front).sort_values([x, y])
    note = f"{len(best)} on the front; less is better in both"
    title = f"{_first_upper(quantity(y)[0])} against {quantity(x)[0]}{_of(of)}"
    figure = new_figure(9, 5, title, caption(len(rows), machine, note))
    axes = figure.subplots()
    axes.plot(rows[x], rows[y], "o", color=palette.GREY, markersize=4, alpha=0.6)
    axes.step(best[x], best[y], where="post", color=palette.BLUE, linewidth=1)
    axes.plot(best[x], best[y], "o", color=palette.BLUE, markersize=6)
    spans = rows[[x, y]].max() - rows[[x, y]].min()
    for cloud in _overlapping((best[[x, y]] / (0.03 * spans.replace(0, 1))).to_numpy()):
        numbers = ", ".join(str(i + 1) for i in sorted(cloud))
        axes.annotate(numbers, tuple(best[[x, y]].iloc[min(cloud)]), (4, 4), textcoords="offset points", fontsize=TEXT)
    if label:
        names = [", ".join(map(_value, row)) for row in best[list(label)].itertuples(index=False)]
        head = f"front: {', '.join('.'.join(column.split('.')[-2:]) for column in label)}"
        key = "\n".join([head, *(f"{i}  {name}" for i, name in enumerate(names, 1))])
        axes.text(1.02, 1, key, transform=axes.transAxes, fontsize=TEXT, va="top")
    for column, scale, axis, label_of in (
        (x, axes.set_xscale, axes.xaxis, axes.set_xlabel),
        (y, axes.set_yscale, axes.yaxis, axes.set_ylabel),
    ):
        if rows[column].min() > 0 and rows[column].max() > 20 * rows[column].min():
            scale("log")
        label_of(_label(column))
        axis.set_major_formatter("{x:,g}")
    tidy(axes)
    axes.grid(visible=True, color=palette.LIGHT_GREY, linewidth=0.5)
    return figure


def heat_map(table: Table | pd.DataFrame, axes: tuple[str, str], metric: str, *, machine: str, of: str = "") -> Figure:
    """Draw a metric over two axes; each cell is the minimum over the settings of the others.

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
    rows = frame_of(table).dropna(subset=[metric])
    across, up = (list(rows[axis].unique()) for axis in axes)
    least = rows.pivot_table(metric, index=axes[1], columns=axes[0], aggfunc="min")
    grid = least.reindex(index=up, columns=across).to_numpy(float)
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
            canvas.text(j, i, _digits(value), ha="center", va="center", fontsize=TEXT, color=colour)
    canvas.set_xticks(range(len(across)), [_value(value) for value in across])
    canvas.set_yticks(range(len(up)), [_value(value) for value in up])
    canvas.set_xlabel(axes[0])
    canvas.set_ylabel(axes[1])
    canvas.tick_params(labelsize=TEXT)
    bar = figure.colorbar(image, ax=canvas, format="{x:,g}")
    bar.set_label(_label(metric), fontsize=TEXT)
    bar.ax.tick_params(labelsize=TEXT)
    return figure


def quantity(column: str) -> tuple[str, str]:
    """Return the quantity and the unit of a column, whose name ends with the unit.

    >>> quantity("run_ns"), quantity("cube mesh")
    (('run', 'ns'), ('cube mesh', ''))
    """
    name, _, unit = column.rpartition("_")
    return (name.replace("_", " "), _UNITS[unit]) if name and unit in _UNITS else (column, "")


def _label(column: str) -> str:
    name, unit = quantity(column)
    return f"{name} [{unit}]" if unit else name


def _first_upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _of(what: str) -> str:
    return f": {what}" if what else ""


def _digits(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.4g}"


def _value(value: object) -> str:
    return f"{value:,g}" if isinstance(value, float) else str(value)
