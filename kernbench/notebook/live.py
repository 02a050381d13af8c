"""What a frame looks like: time and progress, the stages so far, the busiest links. Text only, for any thread."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from kernbench.viz import palette
from kernbench.viz.html import stage_bar_svg

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
        parts += [_clock(frame, end_ns), stage_bar_svg(frame.exclusive_ns), _links(frame)]
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


def _links(frame: Frame) -> str:
    rows = "".join(
        f'<tr><td style="text-align:left;font-family:monospace;font-size:90%">{escape(x.name)}</td>'
        f'<td style="text-align:right;min-width:110px;background:linear-gradient(90deg,{_BAR} {x.share:.1%},'
        f'transparent {x.share:.1%})">{x.share:.1%}</td>'
        f'<td style="text-align:right">{x.nbytes:,} B</td></tr>'
        for x in frame.links
    )
    head = '<tr><th style="text-align:left">busiest links</th><th>busy</th><th>carried</th></tr>'
    return f'<table class="kb-table">{head}{rows}</table>' if rows else ""
