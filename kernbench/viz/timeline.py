"""Gantt chart of one PE's engines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernbench.analysis.result import LABELS
from kernbench.analysis.timeline import LANES
from kernbench.viz import palette
from kernbench.viz.figure import Table, caption, new_figure, rows_of, tidy

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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
