"""Drawings of a machine's views: SVG text for notebooks and files, and PNG."""

from __future__ import annotations

from html import escape
from math import dist
from typing import TYPE_CHECKING

from kernbench.viz import _palette as palette

if TYPE_CHECKING:
    from kernbench.topology._views import Box, Line, View
    from kernbench.topology.builder import Machine

_COLOURS = {
    "pe": palette.BLUE, "sip": palette.BLUE, "cube": palette.BLUE, "pe_gemm": palette.BLUE,
    "hbm": palette.GREEN, "hbm_ctrl": palette.GREEN, "pe_tcm": palette.GREEN, "sram": palette.GREEN,
    "ucie": palette.ORANGE, "pcie_ep": palette.ORANGE, "switch": palette.ORANGE, "pe_dma": palette.ORANGE,
    "m_cpu": palette.PURPLE, "io_cpu": palette.PURPLE, "pe_cpu": palette.PURPLE, "pe_scheduler": palette.PURPLE,
    "pe_math": palette.SKY, "pe_fetch_store": palette.SKY, "pe_ipcq": palette.VERMILION,
}  # fmt: skip
_LINE_COLOURS = {"host": palette.ORANGE, "pcie": palette.ORANGE, "sip": palette.BLUE}
_LINE_WIDTH = {"host": 3.0, "pcie": 2.0, "sip": 2.5, "ucie": 2.0}
_LARGEST, _LINE_TEXT, _SMALLEST = 13.0, 10.0, 5.5  # text [px]
_BOLD, _PLAIN, _LEADING = 0.72, 0.58, 1.25  # width of a character, and height of a line, in text sizes
_STANDALONE = (
    "<style>svg{color:#222;background:#fff}"
    "@media(prefers-color-scheme:dark){svg{color:#ddd;background:#1e1e1e}}</style>"
)


def view_svg(view: View, *, width: int = 760, machine: str = "") -> str:
    """Return one view as SVG text in the colours of the page around it."""
    scale = width / view.width
    notes = (*view.notes, f"machine {machine[:12]}") if machine else view.notes
    head, foot = 24.0, 8 + 16.0 * len(notes)
    height = head + view.height * scale + foot
    shape = f'viewBox="0 0 {width} {height:.0f}" width="{width}" style="max-width:100%;height:auto"'
    look = f'role="img" aria-label="{escape(view.title)}" font-family="system-ui,sans-serif" fill="currentColor"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {shape} {look}>',
        _STANDALONE if machine else "",
        f'<text x="4" y="16" font-size="14" font-weight="600">{escape(view.title)}</text>',
        f'<g transform="translate(0 {head:g})" text-anchor="middle">',
        *(_line_svg(line, scale) for line in view.lines),
        *(_box_svg(box, scale) for box in view.boxes),
        *(_line_label_svg(line, scale) for line in view.lines),
        "</g>",
    ]
    for i, note in enumerate(notes):
        y = head + view.height * scale + 16 * (i + 1)
        parts.append(f'<text x="4" y="{y:.0f}" font-size="12" opacity=".75">{escape(note)}</text>')
    return "".join([*parts, "</svg>"])


def view_png(view: View, machine: str) -> bytes:
    """Return one view as the content of a PNG file, on white."""
    import vl_convert

    svg = view_svg(view, machine=machine)
    on_white = svg.replace("<text ", '<rect width="100%" height="100%" fill="white"/><text ', 1)
    png: bytes = vl_convert.svg_to_png(on_white, scale=2)
    return png


def machine_html(machine: Machine) -> str:
    """Return how a machine shows itself in a notebook: its name, the system, and the other views to unfold."""
    views = machine.views
    unfold = "".join(
        f"<details><summary>{escape(view.title)}</summary>{view_svg(view)}</details>"
        for view in (views["sip"], views["cube"], views["pe"])
    )
    return f"<div><code>{escape(repr(machine))}</code></div>{view_svg(views['system'], width=560)}{unfold}"


def _box_svg(box: Box, scale: float) -> str:
    colour = _COLOURS.get(box.kind, palette.GREY)
    opacity = 0 if box.holds else 0.25
    x, y, w, h = (value * scale for value in (box.x, box.y, box.w, box.h))
    place = f'x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" rx="3"'
    parts = [
        f"<g><title>{escape('; '.join((box.id, *box.detail)))}</title>",
        f'<rect {place} fill="{colour}" fill-opacity="{opacity}" stroke="{colour}"/>',
    ]
    for i, (text, size, y) in enumerate(_text(box, scale)):
        weight = ' font-weight="600"' if i == 0 else ""
        at = f'x="{box.centre[0] * scale:.1f}" y="{y * scale:.1f}" font-size="{size:.1f}"'
        parts.append(f"<text {at}{weight}>{escape(text)}</text>")
    return "".join([*parts, "</g>"])


def _line_svg(line: Line, scale: float) -> str:
    points = " ".join(f"{x * scale:.1f},{y * scale:.1f}" for x, y in line.points)
    stroke = _LINE_COLOURS.get(line.kind, "currentColor")
    opacity = ".45" if stroke == "currentColor" else "1"
    width = _LINE_WIDTH.get(line.kind, 1.2)
    rate = f", {line.bw_gbs:g} GB/s each way" if line.bw_gbs else ""
    return (
        f'<polyline points="{points}" fill="none" stroke="{stroke}" stroke-opacity="{opacity}" '
        f'stroke-width="{width:g}"><title>{escape(f"{line.src} - {line.dst}{rate}")}</title></polyline>'
    )


def _line_label_svg(line: Line, scale: float) -> str:
    place = _label_place(line, scale)
    if place is None:
        return ""
    x, y, angle, size = place
    x, y = x * scale, y * scale
    turn = f' transform="rotate({angle:.0f} {x:.1f} {y:.1f})"' if angle else ""
    return f'<text x="{x:.1f}" y="{y - 4:.1f}" font-size="{size:.1f}"{turn}>{escape(line.label)}</text>'


def _label_place(line: Line, scale: float) -> tuple[float, float, float, float] | None:
    """Return the place of a line's label: the middle of the longest piece, the angle [degrees], and the size.

    None where the piece is too short for it; the tip of the line has it then.
    """
    (ax, ay), (bx, by) = max(zip(line.points, line.points[1:], strict=False), key=lambda piece: dist(*piece))
    upright = abs(by - ay) > abs(bx - ax)
    room = max(abs(bx - ax), abs(by - ay)) * scale * 0.94
    size = min(_LINE_TEXT, room / (_PLAIN * max(1, len(line.label))))
    if not line.label or size < _SMALLEST:
        return None
    return (ax + bx) / 2, (ay + by) / 2, -90.0 if upright else 0.0, size


def _text(box: Box, scale: float) -> list[tuple[str, float, float]]:
    """Return the lines that fit into the box as (text, size in scaled units, y of the baseline in units).

    Without detail, or empty, where the box is too small to read it.
    """
    across, down = box.w * scale * 0.94, box.h * scale * 0.92
    head = min(_LARGEST, across / (_BOLD * max(1, len(box.label))))
    for detail in (box.detail, ()):
        body = min([head, *(across / (_PLAIN * len(line)) for line in detail)])
        sizes = [head, *(body for _ in detail)]
        shrink = min(1.0, down / (_LEADING * sum(sizes)))
        sizes = [size * shrink for size in sizes]
        if min(sizes) >= _SMALLEST:
            break
    else:
        return []
    y = box.y if box.holds else box.centre[1] - _LEADING * sum(sizes) / scale / 2
    lines = []
    for text, size in zip((box.label, *detail), sizes, strict=True):
        lines.append((text, size, y + size * (_LEADING + 0.7) / 2 / scale))
        y += _LEADING * size / scale
    return lines
