"""Who was at work when: the engines of a PE and the busiest links over a window of time, as SVG with tips."""

from __future__ import annotations

import itertools
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from kernbench.analysis.breakdown import STAGES
from kernbench.analysis.result import LABELS
from kernbench.analysis.roofline import Roofs, macs_per_ns, point
from kernbench.analysis.trace import LANES
from kernbench.analysis.utilization import hottest, pe_window, shares, utilization
from kernbench.topology import naming
from kernbench.viz import palette
from kernbench.viz.heatmap import MOST_SIPS, Plan, busiest_sips, colour_of, sips_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from kernbench.analysis.records import Records
    from kernbench.analysis.result import Result
    from kernbench.analysis.why import Reason, Why
    from kernbench.notebook.model import Entry
    from kernbench.topology.builder import Machine


_WIDTH, _LABELS, _LANE = 900, 190, 18  # [px]
_MOST_BOXES = 400  # in a lane; beyond, neighbours flow together


def gantt_svg(records: Records, pe: tuple[int, int, int], window: tuple[int, int], links: tuple[str, ...] = ()) -> str:
    """Return a lane for each engine of a PE, and one for each link, over a window."""
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
    dependencies = records.dependencies
    ends = set(link.split("->"))
    crossing = [
        number
        for number, route in enumerate(dependencies.routes)
        if any({dependencies.nodes[a], dependencies.nodes[b]} == ends for a, b in itertools.pairwise(route))
    ]
    chosen = np.isin(dependencies.transfers["route"], crossing)
    names = [records.commands[i].name if i >= 0 else "" for i in dependencies.transfers["command"][chosen]]
    return dependencies.transfers["start_ps"][chosen], dependencies.transfers["end_ps"][chosen], names


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


_ABOVE, _BELOW = 25.0, 8.0  # [mm]


def heat_svg(records: Records, machine: Machine) -> str:
    """Return the mesh of the SIPs with most traffic; links are coloured by the share of the run that they were busy."""
    share = shares(records.links, records.makespan_ps)
    if not share:
        return "<p>No link carried anything.</p>"
    sips = busiest_sips(share)
    shown = sorted(sips[:MOST_SIPS])
    plan = Plan(machine, shown)
    width = len(shown) * plan.pitch + 4
    height = plan.height + _ABOVE + _BELOW
    first = hottest(share)
    cubes = "".join(
        f'<rect x="{x + 0.6:.1f}" y="{y + 0.6:.1f}" width="{plan.view.width - 1.2:.1f}" '
        f'height="{plan.view.height - 1.2:.1f}" rx="1"/>'
        for sip in shown
        for x, y in (plan.cube(sip, cube) for cube in range(plan.w * plan.h))
    )
    chiplets = "".join(
        f'<rect x="{x:.1f}" y="{y:.1f}" width="9" height="{plan.height:.1f}" rx="1"/>'
        f'<text x="{x + 16:.1f}" y="{y - 1.5:.1f}" stroke="none" fill="currentColor" font-size="3.5">SIP {sip}</text>'
        for sip in shown
        for x, y in (plan.chiplet(sip),)
    )
    lines = "".join(
        _line(link, value, plan, link == first)
        for link, value in sorted(share.items(), key=lambda pair: pair[1])
        if sips_of(link) <= set(shown)
    )
    hosts = "".join(
        f'<text x="{x + 2:.1f}" y="{y + 1.5:.1f}" font-size="3.5" fill="currentColor">{name}</text>'
        for name in (naming.HOST, naming.SWITCH)
        for x, y in (plan.place(name),)
    )
    left = f"; {len(sips) - len(shown)} SIPs with less traffic are not drawn" if len(sips) > len(shown) else ""
    alike = sum(value == share[first] for value in share.values()) - 1
    more = f" and {alike} more" if alike else ""
    title = f"hottest: <code>{escape(first)}</code>{more}, busy {share[first]:.1%} of the run{left}"
    view = f'viewBox="-2 {-_ABOVE:g} {width:.1f} {height:.1f}" width="100%" style="max-height:520px"'
    return (
        f'<div class="kb-hottest">{title}</div>{_legend()}'
        f'<svg class="kb-heat" {view} role="img" aria-label="links by how busy they were">'
        f'<g fill="none" stroke="currentColor" stroke-opacity=".35" stroke-width=".4">{cubes}{chiplets}</g>'
        f'<g fill="none">{lines}</g>{hosts}</svg>'
    )


def _line(link: str, share: float, plan: Plan, first: bool) -> str:
    points = " ".join(f"{x:.2f},{y:.2f}" for x, y in plan.line(link))
    width = 0.35 + 1.1 * share + (0.6 if first else 0)
    return (
        f'<polyline points="{points}" stroke="{colour_of(share)}" stroke-width="{width:.2f}">'
        f"<title>{escape(link)}: busy {share:.1%}</title></polyline>"
    )


def _legend() -> str:
    steps = "".join(
        f'<span style="display:inline-block;width:1.2em;height:.8em;background:{colour_of(i / 10)}"></span>'
        for i in range(11)
    )
    return f'<div style="font-size:85%">busy 0 % {steps} 100 %</div>'


def roofs_of(entry: Entry, n_pes: int) -> Roofs:
    """Return the peak of `n_pes` matrix engines for the type at hand, and the bandwidths of their memories."""
    config = entry.machine.config
    hbm = config.cube.hbm
    levels = {
        "HBM": hbm.slice_gbs * n_pes,
        "TCM": config.cube.pe.pe_tcm.read_bw_gbs * n_pes,
    }
    return Roofs(2 * macs_per_ns(config, dtype_of(entry)) * n_pes, levels)


def dtype_of(entry: Entry) -> str:
    """Return the type that the work's parameters name, f16 where they name none."""
    return str(entry.values.get("dtype", "f16"))


def roofline_figure(entry: Entry, result: Result) -> Figure:
    """Draw the run under the roofs of the PEs that did work."""
    from kernbench.viz.roofline import roofline  # matplotlib, which takes a while to import

    pes = max(1, len(result.records.pes()))
    at = point(result.records, entry.work.name, pe_window(result.records))
    row = {"name": f"run {entry.number}", "series": entry.work.name, "intensity": at.intensity, "gflops": at.gflops}
    return roofline([row], roofs_of(entry, pes), machine=entry.machine.hash, title=f"Roofline of {pes} PEs")


def utilization_line(entry: Entry, result: Result) -> str:
    """Return in a line how much of the matrix engines' rate did useful work."""
    used = utilization(result.records, macs_per_ns(entry.machine.config, dtype_of(entry)))
    if not used.useful_macs:
        return "The matrix engines did nothing."
    return (
        f"The matrix engines did useful work for {used.useful:.1%} of their rate, {used.issued:.1%} with padding, "
        f"over the {used.window_ps / 1000:,.1f} ns in which the PEs worked."
    )


SHOWN = 4
_VERBS = {
    "memory": "reading and writing", "serialization": "bytes over bandwidth", "queueing": "waiting for others",
    "slot": "slots of queues", "wire": "the length of the wire",
    "nodes": "passing through", "matrix": "products", "vector": "vector work",
}  # fmt: skip


def sentence(reason: Reason) -> str:
    """Return one reason as a sentence or two."""
    others = f" and {reason.others} more" if reason.others else ""
    spent = ", ".join(_VERBS.get(kind, kind) for kind in reason.kind.split(", "))
    advice = reason.advice()
    todo = f" To shorten it, {advice}." if advice else ""
    return (
        f"{reason.share:.0%} of the time, {reason.ns:,.1f} ns: {reason.what} {reason.resource}{others} ({spent}).{todo}"
    )


def why_html(why: Why) -> str:
    """Return the first reasons in words; then all of them as a table, with the limits that steps waited for below."""
    items = "".join(f"<li>{escape(sentence(reason))}</li>" for reason in why.reasons[:SHOWN])
    return f'<ol class="kb-reasons">{items}</ol>{why._repr_html_()}'
