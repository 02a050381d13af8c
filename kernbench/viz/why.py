"""How the critical path shows itself in a notebook: one bar, and the resources on it with what to change."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernbench.analysis.why import Why

_SHOWN = 8
_NUMBER = "text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums"
_LEFT = "text-align:left"


def why_html(why: Why) -> str:
    """Return the reasons of a run as a table, longest first; the bar behind each share is that share."""
    total = why.path.makespan_ps / 1000
    head = "".join(
        f'<th style="{_NUMBER if i in (1, 2) else _LEFT}">{cell}</th>'
        for i, cell in enumerate(("on the critical path", "time [ns]", "share", "spent on", "to change"))
    )
    rows = []
    for x in why.reasons[:_SHOWN]:
        more = f" and {x.others} more" if x.others else ""
        bar = f"background:linear-gradient(90deg,rgba(0,114,178,.3) {x.share:.1%},transparent {x.share:.1%})"
        rows.append(
            f'<tr><td style="{_LEFT}">{escape(x.what)} <code>{escape(x.resource)}</code>{more}</td>'
            f'<td style="{_NUMBER}">{x.ns:,.2f}</td><td style="{_NUMBER};{bar};min-width:80px">{x.share:.1%}</td>'
            f'<td style="{_LEFT}">{escape(x.kind)}</td><td style="{_LEFT}">{escape(x.advice())}</td></tr>'
        )
    rest = why.reasons[_SHOWN:]
    if rest:
        ns = sum(x.ns for x in rest)
        rows.append(
            f'<tr><td style="{_LEFT}">{len(rest)} more</td><td style="{_NUMBER}">{ns:,.2f}</td>'
            f'<td style="{_NUMBER}">{ns / total if total else 0:.1%}</td><td></td><td></td></tr>'
        )
    rows.append(
        f'<tr><td style="{_LEFT}"><b>sum</b></td><td style="{_NUMBER}"><b>{total:,.2f}</b></td>'
        f'<td style="{_NUMBER}">100.0%</td><td></td><td></td></tr>'
    )
    limits = [f"<li>{escape(limit)}</li>" for limit in why.limits()]
    title = (
        f"<div><b>{escape(why.name)}</b>: <b>{total:,.2f} ns</b>, a chain of {len(why.path.steps):,} steps without "
        f'gaps <span style="opacity:.7">machine {escape(why.machine)}</span></div>'
    )
    table = f'<table style="margin:8px 0"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    notes = f"<ul>{''.join(limits)}</ul>" if limits else ""
    return f"<div>{title}{table}{notes}</div>"
