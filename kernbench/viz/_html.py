"""Results, comparisons, logs, timelines and critical paths as HTML and SVG, for notebooks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from html import escape
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from kernbench.analysis._domains import validity
from kernbench.analysis._launches import labels, on_sip
from kernbench.analysis.compare import Comparison, ns_text, percent, value_text
from kernbench.analysis.result import INCOMPLETE, SHOWN_LAUNCHES, SHOWN_REASONS, Busy, Result
from kernbench.analysis.trace import last_pe, timeline
from kernbench.analysis.utilization import pe_window
from kernbench.viz import _palette as palette
from kernbench.viz.charts import ink
from kernbench.viz.figures import TIMELINE_WIDTH, timeline_svg

if TYPE_CHECKING:
    import pandas as pd

    from kernbench.analysis._records import Records
    from kernbench.analysis.why import Why


_SHOWN, _SHOWN_ROWS, _BARS = 8, 12, 6  # reasons, rows of the log, segments of the bar
_LEFT = "text-align:left;white-space:nowrap"
_NUMBER = "text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums"
_WARNING = f"border-left:3px solid {palette.VERMILION};padding-left:6px"
_RANK, _RANK_WIDTH = 24, 48  # height of a rank in the timeline of a pipeline, and width of its name [px]
_ACTIONS = {"F": "F: forward", "B": "B: backward", "I": "I: backward, input", "W": "W: backward, weights"}
_COLOURS = [*dict.fromkeys(palette.STAGE_COLOURS.values())]


def compare_html(comparison: Comparison) -> str:
    parts = [
        f"<div><b>{escape(comparison.before)}</b> &rarr; <b>{escape(comparison.after)}</b></div>",
        f"<div>{escape(comparison.machine_line())}</div>",
    ]
    if comparison.machine:
        rows = [[x.field, value_text(x.before), value_text(x.after)] for x in comparison.machine]
        parts.append(_table(["machine", "before", "after"], rows))
    sections = [("run", [comparison.latency]), ("launch", comparison.launches), ("critical path", comparison.path)]
    for title, times in sections:
        if times:
            cells = [[x.what, ns_text(x.before), ns_text(x.after), percent(x)] for x in times]
            parts.append(_table([title, "before [ns]", "after [ns]", "change"], cells))
    return f"<div>{''.join(parts)}</div>"


def records_html(records: Records) -> str:
    kinds = []
    for i, kind in enumerate(records.kinds):
        rows = records.kind == i
        if rows.any():
            ns = int((records.end_ps - records.start_ps)[rows].sum()) / 1000
            kinds.append([kind, f"{np.count_nonzero(rows):,}", f"{ns:,.2f}", f"{int(records.nbytes[rows].sum()):,}"])
    first = [
        [
            op.component, op.kind, op.command.name, f"{op.start_ps / 1000:,.3f}", f"{op.end_ps / 1000:,.3f}",
            f"{op.nbytes:,}" if op.nbytes else "", str(op.tile) if op.tile >= 0 else "",
        ]
        for op in islice(records, _SHOWN_ROWS)
    ]  # fmt: skip
    more = len(records) - len(first)
    return (
        f"<div>{escape(repr(records))}</div>"
        + _table(["kind", "rows", "time in all [ns]", "bytes"], kinds)
        + _table(["component", "kind", "command", "start [ns]", "end [ns]", "bytes", "tile"], first, range(3))
        + (f"<div>... and {more:,} more</div>" if more > 0 else "")
    )


def why_html(why: Why) -> str:
    """Table of reasons, the device's before the host's; the bar behind a share shows it."""
    total = why.path.makespan_ps / 1000
    head = "".join(
        f'<th style="{_NUMBER if i in (1, 2) else _LEFT}">{cell}</th>'
        for i, cell in enumerate(("on the critical path", "time [ns]", "share", "spent on", "to change"))
    )
    rows = []
    for title, ns, shown, rest in why.parts(_SHOWN):
        rows.append(_why_row(f"<b>{title}</b>", f"<b>{ns:,.2f}</b>", f"<b>{ns / total:.1%} of all</b>"))
        for x in shown:
            more = f" and {x.others} more" if x.others else ""
            bar = f";background:linear-gradient(90deg,rgba(0,114,178,.3) {x.share:.1%},transparent {x.share:.1%})"
            advice = "<br>".join(escape(text.removeprefix("-> ").strip()) for text in why.advice(x))
            last = f'<td>{escape(x.kind)}</td><td style="text-align:left">{advice}</td>'
            what = f"{escape(x.what)} <code>{escape(x.resource)}</code>{more}"
            rows.append(_why_row(what, f"{x.ns:,.2f}", f"{x.share:.1%}", f"{bar};min-width:80px", last))
        if rest:
            left = sum(x.ns for x in rest)
            rows.append(_why_row(f"{len(rest)} more", f"{left:,.2f}", f"{left / ns:.1%}"))
    rows.append(_why_row("<b>sum</b>", f"<b>{total:,.2f}</b>", ""))
    limits = [f"<li>{escape(text)}</li>" for text in (*why.limits(), *why.savings.together())]
    title = (
        f"<div><b>{escape(why.name)}</b>: <b>{total:,.2f} ns</b>, a chain of {len(why.path.steps):,} steps without "
        f'gaps <span style="opacity:.7">machine {escape(why.machine)}</span></div>'
    )
    table = f'<table style="margin:8px 0"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    notes = f"<ul>{''.join(limits)}</ul>" if limits else ""
    return f"<div>{title}{table}{notes}</div>"


def _why_row(what: str, ns: str, share: str, bar: str = "", last: str = "<td></td><td></td>") -> str:
    numbers = f'<td style="{_NUMBER}">{ns}</td><td style="{_NUMBER}{bar}">{share}</td>'
    return f'<tr><td style="{_LEFT}">{what}</td>{numbers}{last}</tr>'


def result_html(result: Result) -> str:
    machine = f'<span style="opacity:.7">machine {result.machine}</span>'
    parts = [
        f"<div><b>{escape(result.name)}</b>: <b>{result.latency_ns:,.2f} ns</b> {machine}</div>",
        "" if result.complete else f'<div style="{_WARNING}">{INCOMPLETE}</div>',
        f'<div style="opacity:.7">{escape(validity(result.records))}</div>',
        _path_bar(result),
        _path_table(result),
        _busy_table(result),
        _last_timeline(result.records),
    ]
    if result.launches:
        rows = [
            [label + on_sip(x), ns_text(x.start_ps / 1000), ns_text((x.end_ps - x.start_ps) / 1000)]
            for label, x in zip(labels(result.launches), result.launches, strict=True)
        ][:SHOWN_LAUNCHES]
        more = len(result.launches) - len(rows)
        title = f"launches{f' (first {len(rows)} of {len(result.launches)})' if more else ''}"
        parts.append(_table([title, "start [ns]", "latency [ns]"], rows))
    parts.append(_busiest("busiest components", result.busiest_components(), links=False))
    parts.append(_busiest("busiest links", result.busiest_links(), links=True))
    return f'<div style="max-width:{TIMELINE_WIDTH + 80}px">{"".join(parts)}</div>'


def model_html(
    head: str, ns: Mapping[str, float], modules: Sequence[Mapping[str, str]], launches: Sequence[Mapping[str, str]]
) -> str:
    longest = sorted(ns, key=lambda name: -ns[name])
    pieces = [(escape(name), ns[name], colour) for name, colour in zip(longest[:_BARS], _COLOURS, strict=False)]
    pieces.append(("other", sum(ns[name] for name in longest[_BARS:]), palette.GREY))
    bar = _bar_svg(pieces, "time by module")
    inside = f"<details><summary>{len(launches)} launches</summary>{_named_table(launches)}</details>"
    return f"<div><div>{escape(head)}</div>{bar}{_named_table(modules)}{inside}</div>"


def pipeline_html(title: str, spans: Sequence[tuple[int, str, str, float, float]], table: pd.DataFrame) -> str:
    """Draw a pipeline's actions, (rank, kind, name, start [ns], end [ns]) each, a row a rank, above its table."""
    first, last = min(x[3] for x in spans), max(x[4] for x in spans)
    scale = (TIMELINE_WIDTH - _RANK_WIDTH) / (last - first)
    ranks = sorted({x[0] for x in spans})
    drawn = [f'<text y="{rank * _RANK + 14}" fill="currentColor">rank {rank}</text>' for rank in ranks]
    for rank, kind, name, start, end in spans:
        x, width = _RANK_WIDTH + (start - first) * scale, max(0.5, (end - start) * scale - 0.5)
        drawn.append(
            f'<rect x="{x:.1f}" y="{rank * _RANK}" width="{width:.1f}" height="{_RANK - 4}" '
            f'fill="{palette.ACTION_COLOURS[kind]}"><title>{name}: {start:,.1f} to {end:,.1f} ns</title></rect>'
        )
        if width > 6.5 * len(name):
            place = f'x="{x + width / 2:.1f}" y="{rank * _RANK + 14}" text-anchor="middle"'
            drawn.append(f'<text {place} style="fill:{ink(palette.ACTION_COLOURS[kind])}">{name}</text>')
    height = len(ranks) * _RANK
    for x, anchor, text in ((_RANK_WIDTH, "start", "0"), (TIMELINE_WIDTH, "end", f"{last - first:,.0f} ns")):
        drawn.append(f'<text x="{x}" y="{height + 10}" text-anchor="{anchor}" fill="currentColor">{text}</text>')
    used = [kind for kind in palette.ACTION_COLOURS if kind in {x[1] for x in spans}]
    legend = "".join(_swatch(palette.ACTION_COLOURS[kind], _ACTIONS[kind]) for kind in used)
    rows = [[f"{x:,.1f}" if isinstance(x, float) else str(x) for x in row] for row in table.to_numpy(object)]
    return (
        f"<div><div><b>{escape(title)}</b></div>"
        f'<svg viewBox="0 0 {TIMELINE_WIDTH} {height + 14}" width="100%" role="img" aria-label="actions of each rank '
        f'over {last - first:,.0f} ns" font-size="11">{"".join(drawn)}</svg><div style="font-size:85%">{legend}</div>'
        f"{_table([str(name) for name in table], rows)}</div>"
    )


def _swatch(colour: str, name: str) -> str:
    return (
        f'<span style="white-space:nowrap;margin-right:12px"><span style="display:inline-block;width:.8em;'
        f'height:.8em;background:{colour}"></span> {name}</span>'
    )


def _named_table(rows: Sequence[Mapping[str, str]]) -> str:
    """Table that scrolls if it is too wide; the first column and "limit" are text."""
    names = list(rows[0]) if rows else []
    text = [i for i, name in enumerate(names) if i == 0 or name == "limit"]
    return f'<div style="overflow-x:auto">{_table(names, [list(row.values()) for row in rows], text)}</div>'


def _path_bar(result: Result) -> str:
    why = result.explained
    if isinstance(why, str):
        return f"<div>{escape(why)}</div>"
    device, latency = why.device_ns, why.path.makespan_ps / 1000
    found = [(x.what, x.ns) for x in why if not x.host]
    rest = sum(ns for _, ns in found[_BARS:])
    pieces = [*found[:_BARS], *([("other", rest)] if rest else [])]
    host = f"; host copies and launches take {latency - device:,.2f} ns" if latency - device > 0 else ""
    title = f"<div>critical path on the device: <b>{device:,.2f} ns</b>{host}</div>"
    named = [(escape(what), ns, _COLOURS[i % len(_COLOURS)]) for i, (what, ns) in enumerate(pieces)]
    return title + _bar_svg(named, "critical path on the device by resource")


def _bar_svg(named: Sequence[tuple[str, float, str]], label: str) -> str:
    total = sum(ns for _, ns, _ in named)
    pieces, legend, x = [], [], 0.0
    for name, ns, colour in named:
        share = ns / total if total else 0.0
        if not share:
            continue
        pieces.append(
            f'<rect x="{x:.2f}" width="{share * TIMELINE_WIDTH:.2f}" height="22" fill="{colour}">'
            f"<title>{name}: {ns:,.2f} ns, {share:.1%}</title></rect>"
        )
        legend.append(_swatch(colour, f"{name} {share:.0%}"))
        x += share * TIMELINE_WIDTH
    bar = (
        f'<svg viewBox="0 0 {TIMELINE_WIDTH} 22" width="100%" height="22" preserveAspectRatio="none" role="img" '
        f'aria-label="{label}">{"".join(pieces)}</svg>'
    )
    return f'<div style="margin:6px 0">{bar}<div style="font-size:85%">{"".join(legend)}</div></div>'


def _last_timeline(records: Records) -> str:
    pe = last_pe(records)
    if pe is None:
        return ""
    where = "sip{}.cube{}.pe{}".format(*pe)
    start, end = pe_window(records, pe)
    stages, height = timeline_svg(timeline(records, pe), start / 1000, end / 1000)
    view = f'viewBox="0 0 {TIMELINE_WIDTH} {height:g}" width="100%" role="img" aria-label="timeline of one PE"'
    return (
        f"<div>{where}{', which finished last' if len(records.pes()) > 1 else ''}</div>"
        f'<svg {view} fill="currentColor">{stages}</svg>'
    )


def _path_table(result: Result) -> str:
    why = result.explained
    if isinstance(why, str):
        return ""
    rows = []
    for title, whole, shown, others in why.parts(SHOWN_REASONS):
        rest = sum(x.ns for x in others)
        rows.append([title, ns_text(whole), f"{whole / result.latency_ns:.1%} of all"])
        rows += [[x.what, ns_text(x.ns), f"{x.share:.1%}"] for x in shown]
        rows += [["other", ns_text(rest), f"{rest / whole:.1%}"]] if rest else []
    return _table(["critical path", "time [ns]", "share"], rows)


def _busy_table(result: Result) -> str:
    rows = [[row["stage"], ns_text(row["busy_ns"]), f"{row['share']:.1%}"] for row in result.summary()]
    return _table([result.busy_title, "busy [ns]", "share of the run"], rows) if rows else ""


def _busiest(title: str, busiest: Sequence[Busy], *, links: bool) -> str:
    if not busiest:
        return ""
    head = [title, "busy [ns]", "share"] + (["bytes", "capacity [GB/s]"] if links else [])
    rows = []
    for x in busiest:
        traffic = [f"{x.nbytes:,}", f"{x.bw_gbs:g}"] if links else []
        rows.append([x.name, ns_text(x.busy_ns), f"{x.share:.1%}", *traffic])
    return _table(head, rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], text: Collection[int] = (0,)) -> str:
    """Table whose columns `text` are left-aligned, and whose others are numbers."""

    def line(tag: str, cells: Sequence[str]) -> str:
        return "".join(
            f'<{tag} style="{_LEFT if i in text else _NUMBER}">{escape(x)}</{tag}>' for i, x in enumerate(cells)
        )

    body = "".join(f"<tr>{line('td', row)}</tr>" for row in rows)
    return f'<table style="margin:8px 0"><thead><tr>{line("th", head)}</tr></thead><tbody>{body}</tbody></table>'
