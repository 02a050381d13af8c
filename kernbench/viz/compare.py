"""How a comparison of two runs shows itself in a notebook."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from kernbench.analysis.compare import percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernbench.analysis.compare import Comparison

_NUMBER = "text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums"
_LEFT = "text-align:left"


def compare_html(comparison: Comparison) -> str:
    """Return both runs: the values of the machine that differ, then times with their change."""
    parts = [
        f"<div><b>{escape(comparison.before)}</b> &rarr; <b>{escape(comparison.after)}</b></div>",
        f"<div>{escape(comparison.machine_line())}</div>",
    ]
    if comparison.machine:
        rows = [
            [x.field, *("absent" if v is None else str(v) for v in (x.before, x.after))] for x in comparison.machine
        ]
        parts.append(_table(["machine", "before", "after"], rows))
    sections = [("", [comparison.latency]), ("launch", comparison.launches), ("stage", comparison.stages)]
    for title, times in sections:
        if times:
            cells = [[x.what, _ns(x.before), _ns(x.after), percent(x)] for x in times]
            parts.append(_table([title, "before [ns]", "after [ns]", "change"], cells))
    return f"<div>{''.join(parts)}</div>"


def _ns(ns: float | None) -> str:
    return "-" if ns is None else f"{ns:,.2f}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f'<th style="{_NUMBER if i else _LEFT}">{escape(x)}</th>' for i, x in enumerate(head))
    body = "".join(
        "<tr>" + "".join(f'<td style="{_NUMBER if i else _LEFT}">{escape(x)}</td>' for i, x in enumerate(row)) + "</tr>"
        for row in rows
    )
    return f'<table style="margin:8px 0"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>'
