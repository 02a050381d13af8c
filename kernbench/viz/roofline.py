"""Roofline: achieved rate against arithmetic intensity, under the machine's roofs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kernbench.analysis.result import LABELS
from kernbench.analysis.trace import LANES
from kernbench.viz import palette
from kernbench.viz.figure import Table, caption, new_figure, rows_of, tidy

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from kernbench.analysis.roofline import Roofs


def roofline(table: Table | pd.DataFrame, roofs: Roofs, *, machine: str, title: str = "Roofline") -> Figure:
    """Draw measured points, model points where there are any, and one roof per memory level.

    Parameters
    ----------
    table : list of dict or DataFrame
        Columns name, series (one colour each, optional), intensity [flop/B], gflops, model_gflops (optional).
    roofs : Roofs
        Peak rate and bandwidths.
    machine : str
        Hash of the machine.
    title : str
    """
    rows = [row for row in rows_of(table) if np.isfinite(row["intensity"])]
    hollow = "filled: measured; hollow: model; " if any(row.get("model_gflops") for row in rows) else ""
    under = caption(len(rows), machine, f"{hollow}dotted: ridge of each memory level")
    figure = new_figure(8, 5.4, title, under)
    axes = figure.subplots()
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)

    ridges = [roofs.ridge(level) for level in roofs.levels_gbs]
    low = min([row["intensity"] for row in rows] + ridges) / 2
    high = max([row["intensity"] for row in rows] + ridges) * 4
    x = np.geomspace(low, high, 200)
    for level, bw in roofs.levels_gbs.items():
        y = [roofs.attainable_gflops(at, level) for at in x]
        axes.plot(x, y, color=palette.DARK_GREY, linewidth=1.2)
        axes.text(
            low * 1.2, low * 1.2 * bw * 1.12, f"{level} {bw:g} GB/s", fontsize=7,
            rotation=np.degrees(np.arctan(bw)), rotation_mode="anchor", transform_rotates_text=True,
        )  # fmt: skip
        axes.axvline(roofs.ridge(level), color=palette.GREY, linewidth=0.8, linestyle=":")
    axes.text(high / 1.1, roofs.peak_gflops * 1.08, f"peak {roofs.peak_gflops:,.0f} Gflop/s", fontsize=8, ha="right")

    for i, series in enumerate(dict.fromkeys(row.get("series", "measured") for row in rows)):
        chosen = [row for row in rows if row.get("series", "measured") == series]
        colour, marker = palette.SERIES[i % len(palette.SERIES)], palette.MARKERS[i % len(palette.MARKERS)]
        at = [row["intensity"] for row in chosen]
        axes.plot(at, [row["gflops"] for row in chosen], marker, color=colour, markersize=6, label=series)
        model = [(row["intensity"], row["model_gflops"]) for row in chosen if row.get("model_gflops")]
        axes.plot(*zip(*model, strict=True), marker, mfc="none", mec=colour, markersize=9) if model else None
    names = list(dict.fromkeys(row["name"] for row in rows))
    for spot, label in labels(rows, names):
        axes.annotate(label, spot, (5, -3), textcoords="offset points", fontsize=7, va="top")
    key = "\n".join(f"{i}  {name}" for i, name in enumerate(names, 1))
    axes.text(1.02, 1, key, transform=axes.transAxes, fontsize=7, va="top")
    axes.set_xlim(low, high)
    axes.set_xlabel("arithmetic intensity [flop / B moved by DMA]")
    axes.set_ylabel("rate [Gflop/s]")
    axes.legend(fontsize=7, frameon=False, loc="lower right")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:,g}")
    tidy(axes)
    axes.grid(visible=True, which="major", color=palette.LIGHT_GREY, linewidth=0.5)
    return figure


def labels(rows: list[dict[str, Any]], names: list[str]) -> list[tuple[tuple[float, float], str]]:
    """Return the place and the numbers of each cloud of points: those whose labels would lie on each other."""
    clouds: list[list[dict[str, Any]]] = []
    for row in sorted(rows, key=lambda row: (row["intensity"], row["gflops"])):
        near = [cloud for cloud in clouds if any(_close(row, other) for other in cloud)]
        clouds = [cloud for cloud in clouds if cloud not in near]
        clouds.append([*(other for cloud in near for other in cloud), row])
    lowest = [min(cloud, key=lambda row: row["gflops"]) for cloud in clouds]
    return [
        (
            (row["intensity"], row["gflops"]),
            ", ".join(str(i) for i, name in enumerate(names, 1) if any(other["name"] == name for other in cloud)),
        )
        for row, cloud in zip(lowest, clouds, strict=True)
    ]


def _close(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return all(abs(np.log2(a[key] / b[key])) < octaves for key, octaves in (("intensity", 0.3), ("gflops", 0.2)))


def tile_timeline(table: Table | pd.DataFrame, *, machine: str, title: str, zoom_ns: float | None = None) -> Figure:
    """Draw what each engine of one PE did when; tiles alternate in shade.

    Parameters
    ----------
    table : list of dict or DataFrame
        Columns stage, start_ns, end_ns, tile, as `analysis.timeline.timeline` returns them.
    machine : str
        Hash of the machine.
    title : str
        What ran.
    zoom_ns : float, optional
        A second panel shows this much time from the first tile on.
    """
    rows = rows_of(table)
    begin = min(row["start_ns"] for row in rows)
    rows = [{**row, "start_ns": row["start_ns"] - begin, "end_ns": row["end_ns"] - begin} for row in rows]
    under = caption(len(rows), machine, "each box: one tile or transfer")
    figure = new_figure(11, 5.2 if zoom_ns else 2.9, title, under)
    panels = figure.subplots(2 if zoom_ns else 1, 1, squeeze=False)[:, 0]
    for axes in panels:
        _gantt(axes, rows)
    panels[0].set_xlim(0, max(row["end_ns"] for row in rows))
    if zoom_ns:
        first = min((row["start_ns"] for row in rows if row["tile"] >= 0), default=0.0)
        panels[0].axvspan(first, first + zoom_ns, color=palette.LIGHT_GREY, alpha=0.5, zorder=0)
        panels[0].set_title("everything the PE did (shaded: the part below)", fontsize=8, loc="left")
        panels[1].set_xlim(first, first + zoom_ns)
        panels[1].set_title(f"{zoom_ns:g} ns from the first tile on", fontsize=8, loc="left")
    panels[-1].set_xlabel("time since the PE's first work [ns]")
    return figure


def _gantt(axes: Axes, rows: list[dict[str, Any]]) -> None:
    lanes = [stage for stage in LANES if any(row["stage"] == stage for row in rows)]
    for y, stage in enumerate(lanes):
        boxes = sorted((row for row in rows if row["stage"] == stage), key=lambda row: row["start_ns"])
        tracks = _tracks(boxes)
        height = 0.84 / (max(tracks) + 1)
        for parity, alpha in ((0, 1.0), (1, 0.55)):
            for track in range(max(tracks) + 1):
                spans = [
                    (box["start_ns"], box["end_ns"] - box["start_ns"])
                    for box, place in zip(boxes, tracks, strict=True)
                    if place == track and max(0, box["tile"]) % 2 == parity
                ]
                at = (y - 0.42 + track * height, height)
                axes.broken_barh(spans, at, facecolor=palette.STAGES[stage], alpha=alpha, linewidth=0)
    axes.set_yticks(range(len(lanes)), [LABELS[stage] for stage in lanes])
    axes.set_ylim(len(lanes) - 0.5, -0.5)
    tidy(axes)


def _tracks(boxes: list[dict[str, Any]]) -> list[int]:
    """Return for each box, in order of start, the first track that is free: overlapping work lies side by side."""
    ends: list[float] = []
    tracks = []
    for box in boxes:
        track = next((i for i, end in enumerate(ends) if end <= box["start_ns"]), len(ends))
        if track == len(ends):
            ends.append(0.0)
        ends[track] = box["end_ns"]
        tracks.append(track)
    return tracks
