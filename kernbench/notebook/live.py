"""What a frame looks like: time and progress, engines and links by how busy they were. Text only, for any thread."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from kernbench.analysis.result import LABELS
from kernbench.viz import palette

if TYPE_CHECKING:
    from kernbench.notebook.frames import Frame

_BAR = "rgba(0,114,178,.35)"
_COLOURS = {
    "failed": palette.VERMILION, "outdated": palette.ORANGE, "done": palette.GREEN, "running": palette.BLUE,
}  # fmt: skip


def frame_html(frame: Frame | None, status: str, message: str = "", end_ns: float | None = None) -> str:
    """Return a frame, under a line that says how the run stands.

    Parameters
    ----------
    frame : Frame or None
        None before the first.
    status, message : str
        As in `State`.
    end_ns : float, optional
        When the run ended, for a frame that looks back.
    """
    parts = [_status(status, message)]
    if frame is not None:
        parts += [_clock(frame, end_ns), _busy(frame)]
    return f'<div class="kb-frame">{"".join(parts)}</div>'


def _status(status: str, message: str) -> str:
    colour = _COLOURS.get(status, palette.GREY)
    lines = escape(message).replace("\n", "<br>")
    return (
        f'<div class="kb-status" role="status" style="border-left:4px solid {colour};padding-left:8px">'
        f"<b>{escape(status)}</b> <span class='kb-message'>{lines}</span></div>"
    )


def _clock(frame: Frame, end_ns: float | None) -> str:
    facts = [f'<b class="kb-now">{frame.now_ns:,.1f} ns</b>']
    if end_ns is not None:
        facts.append(f"of {end_ns:,.1f} ns")
    if frame.events:
        facts.append(f"{frame.events:,} events, {frame.events_per_s:,.0f} a second")
    if frame.total:
        facts.append(f"{frame.done} of {frame.total} programs ended")
    facts.append(f"mean of {frame.n_pes} PEs" if frame.n_pes > 1 else "")
    return f'<div style="margin:6px 0">simulated time {" &nbsp; ".join(x for x in facts if x)}</div>'


def _busy(frame: Frame) -> str:
    now = max(frame.now_ns, 1e-3)
    engines = "".join(_row(LABELS[name], ns / now) for name, ns in frame.busy_ns.items() if ns)
    links = "".join(_row(f"<code>{escape(x.name)}</code>", x.share, f"{x.nbytes:,} B") for x in frame.links)
    return "".join(
        f'<table class="kb-table {kind}"><tr><th>{title}</th><th>busy so far</th><th>{last}</th></tr>{rows}</table>'
        for kind, title, last, rows in (
            ("kb-engines", "engines of a PE, mean", "", engines),
            ("kb-links", "busiest links", "carried", links),
        )
        if rows
    )


def _row(name: str, share: float, last: str = "") -> str:
    bar = f"background:linear-gradient(90deg,{_BAR} {share:.1%},transparent {share:.1%})"
    return (
        f'<tr><td>{name}</td><td style="text-align:right;min-width:110px;{bar}">{share:.1%}</td>'
        f'<td style="text-align:right">{last}</td></tr>'
    )
