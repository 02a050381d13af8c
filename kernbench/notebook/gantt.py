"""Who was at work when: the engines of a PE and the busiest links over a window of time, as SVG with tips."""

from __future__ import annotations

import itertools
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from kernbench.analysis.breakdown import STAGES
from kernbench.analysis.result import LABELS
from kernbench.analysis.timeline import LANES
from kernbench.viz import palette

if TYPE_CHECKING:
    from kernbench.analysis.records import Records

_WIDTH, _LABELS, _LANE = 900, 190, 18  # [px]
_MOST_BOXES = 400  # in a lane; beyond, neighbours flow together


def gantt_svg(records: Records, pe: tuple[int, int, int], window: tuple[int, int], links: tuple[str, ...] = ()) -> str:
    """Return a lane for each engine of a PE, and one for each link, over a window.

    Parameters
    ----------
    records : Records
    pe : (sip, cube, pe)
    window : (start_ps, end_ps)
    links : tuple of str
        Links whose transfers are shown, from the asking to the last byte.
    """
    start, end = window
    rows = records.of_pe(*pe)
    lanes = []
    for stage in (*LANES, "composite"):
        ids = [i for i, kind in enumerate(rows.kinds) if kind in STAGES[stage]]
        chosen = np.isin(rows.kind, ids)
        if chosen.any():
            names = [rows.commands[i].name for i in rows.command[chosen]]
            lanes.append((LABELS[stage], palette.STAGES[stage], rows.start_ps[chosen], rows.end_ps[chosen], names))
    for link in links:
        low, high, names = _transfers(records, link)
        lanes.append((link, palette.GREY, low, high, names))
    body = "".join(_lane(i, *lane, start, end) for i, lane in enumerate(lanes))
    height = len(lanes) * _LANE
    ends = "".join(
        f'<text x="{x}" y="{height + 13}" font-size="11" fill="currentColor" text-anchor="{anchor}">{t:,.1f} ns</text>'
        for x, anchor, t in ((_LABELS, "start", start / 1000), (_WIDTH, "end", end / 1000))
    )
    where = "sip{}.cube{}.pe{}".format(*pe)
    view = f'viewBox="0 0 {_WIDTH} {height + 18}" width="100%" role="img" aria-label="timeline of {where} and of links"'
    return f'<svg class="kb-gantt" {view} fill="currentColor">{body}{ends}</svg>'


def _transfers(records: Records, link: str) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Return start, end and command of each transfer that crossed a link, in either direction of its route."""
    causes = records.causes
    ends = set(link.split("->"))
    crossing = [
        number
        for number, route in enumerate(causes.routes)
        if any({causes.nodes[a], causes.nodes[b]} == ends for a, b in itertools.pairwise(route))
    ]
    chosen = np.isin(causes.moves["route"], crossing)
    names = [records.commands[i].name if i >= 0 else "" for i in causes.moves["command"][chosen]]
    return causes.moves["start_ps"][chosen], causes.moves["end_ps"][chosen], names


def _lane(
    i: int, label: str, colour: str, low: np.ndarray, high: np.ndarray, names: list[str], start: int, end: int
) -> str:
    y = i * _LANE
    order = np.argsort(low, kind="stable")
    order = order[(low[order] < end) & (high[order] > start)]
    scale = (_WIDTH - _LABELS) / max(1, end - start)
    boxes: list[list[float]] = []
    tips: list[str] = []
    gap = 0.0 if len(order) <= _MOST_BOXES else 1.0
    for at in order.tolist():
        a = _LABELS + (max(start, int(low[at])) - start) * scale
        b = _LABELS + (min(end, int(high[at])) - start) * scale
        if boxes and gap and a <= boxes[-1][1] + gap:
            boxes[-1][1] = max(boxes[-1][1], b)
            boxes[-1][2] += 1
            continue
        boxes.append([a, b, 1])
        tips.append(f"{names[at]}: {low[at] / 1000:,.2f} to {high[at] / 1000:,.2f} ns")
    short = label if len(label) <= 28 else f"...{label[-26:]}"
    name = f'<text x="0" y="{y + 13}" font-size="11">{escape(short)}<title>{escape(label)}</title></text>'
    rects = "".join(
        f'<rect x="{a:.1f}" y="{y + 2}" width="{max(0.4, b - a):.1f}" height="{_LANE - 4}" fill="{colour}" '
        f'fill-opacity=".8"><title>{escape(label)}: '
        f"{escape(tip) if n == 1 else f'{n:.0f} pieces of work, zoom in to tell them apart'}</title></rect>"
        for (a, b, n), tip in zip(boxes, tips, strict=True)
    )
    return name + rects
