"""Plots of a result in a user's axes by matplotlib; all other figures are `viz.figures` and `viz.charts`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernbench.analysis._roofline import placed
from kernbench.analysis._stages import STAGE_LABELS
from kernbench.analysis.trace import last_pe, tracks_by_stage
from kernbench.analysis.trace import timeline as pieces_of
from kernbench.errors import StateError
from kernbench.viz import _palette as palette

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from kernbench.analysis.result import Result

_COLOURS = {STAGE_LABELS[stage]: colour for stage, colour in palette.STAGE_COLOURS.items()}


def stages(result: Result, ax: Axes) -> None:
    rows = result.summary()[::-1]
    names = [row["stage"] for row in rows]
    ax.barh(names, [row["busy_ns"] for row in rows], color=[_COLOURS[name] for name in names])
    ax.set_xlabel(f"{result.busy_title} [ns]")


def timeline(result: Result, ax: Axes) -> None:
    pe = last_pe(result.records)
    if pe is None:
        raise StateError(f"{result.name}: no PE worked, so that it has no timeline")
    found = tracks_by_stage(pieces_of(result.records, pe))
    for y, (stage, tracks) in enumerate(found.items()):
        height = 0.84 / len(tracks)
        for i, track in enumerate(tracks):
            for odd, alpha in ((0, 1.0), (1, 0.55)):
                spans = [(x["start_ns"], x["end_ns"] - x["start_ns"]) for x in track if max(0, x["tile"]) % 2 == odd]
                low = y - 0.42 + i * height
                ax.broken_barh(spans, (low, height), facecolor=palette.STAGE_COLOURS[stage], alpha=alpha, linewidth=0)
    ax.set_yticks(range(len(found)), [STAGE_LABELS[stage] for stage in found])
    ax.set_ylim(len(found) - 0.5, -0.5)
    ax.set_xlabel("time [ns]")


def roofline(result: Result, ax: Axes) -> None:
    at, roofs = placed(result.records, result.name)
    for level, line in roofs.lines(at.intensities.values()).items():
        ax.plot(*zip(*line, strict=True), color=palette.DARK_GREY, linewidth=1.2)
        ax.annotate(f"{level} {roofs.levels_gbs[level]:g} GB/s", line[0], (3, 0), textcoords="offset points", va="top")
    for (level, x), colour, marker in zip(at.intensities.items(), palette.SERIES, "os", strict=False):
        ax.plot(x, at.gflops, marker, color=colour, label=f"bytes of {level}")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ax.xaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_major_formatter("{x:,g}")
    ax.set_xlabel("flop per byte moved at the memory level")
    ax.set_ylabel("rate [Gflop/s]")
    ax.legend()
