"""The links of a run on the machine's mesh, coloured by how busy they were: as SVG with tips."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from kernbench.analysis.links import hottest, shares
from kernbench.topology import naming
from kernbench.viz.heatmap import MOST_SIPS, Plan, busiest_sips, colour_of, sips_of

if TYPE_CHECKING:
    from kernbench.analysis.records import Records
    from kernbench.topology.builder import Machine

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
