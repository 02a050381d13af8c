"""The picture's module and style sheet, and the picture as a page that works from disk."""

from __future__ import annotations

import gzip
import json
from base64 import b64encode
from functools import cache
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING

from kernbench.viz import _palette as palette
from kernbench.viz.still import still_svg, still_title

if TYPE_CHECKING:
    from kernbench.viz._scene import Scene

_FILES = (
    "helpers.js", "clock.js", "loads.js", "machine_part.js", "machine_drawing.js", "machine.js", "details.js",
    "timeline_run.js", "timeline_rows.js", "timeline_place.js", "timeline_comparison.js", "timeline_drawing.js",
    "timeline_trace.js", "timeline_area.js", "timeline.js", "why.js", "page.js", "picture.js",
)  # fmt: skip


@cache
def module_js() -> str:
    return "\n".join(_read(name) for name in _FILES)


@cache
def style_css() -> str:
    """Style sheet of the picture, which begins with the colours of themes and stages."""
    page, root = "var(--jp-layout-color1, var(--vscode-editor-background, {}))", ":where(.kbp-picture, .kbp-tokens)"
    blocks = {
        f'{root}[data-kbp-theme="{name}"]' if name == "dark" else root: theme | {"bg": page.format(theme["bg"])}
        for name, theme in palette.THEMES.items()
    }
    stages = palette.STAGE_COLOURS | {
        "messages": palette.STAGE_COLOURS["host"],
        "memory": palette.GREY,
        "load": palette.GREY,
    }
    blocks[".kbp-picture"] = {f"stage-{name.replace('_', '-')}": colour.lower() for name, colour in stages.items()}
    rules = (
        f"{selector} {{{' '.join(f'--kbp-{name}: {colour};' for name, colour in colours.items())}}}\n"
        for selector, colours in blocks.items()
    )
    return "".join(rules) + _read("tokens.css")


def helpers_js() -> str:
    return _read("helpers.js")


# The page may run its own script and style, and load nothing.
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def picture_html(scene: Scene, note: str = "") -> str:
    """Page with the picture of a scene and a `note` below; it needs neither kernel nor network."""
    header, buffers = scene
    title = escape(still_title(header))
    data = {"header": header, "buffers": {name: b64encode(content).decode() for name, content in buffers.items()}}
    packed = gzip.compress(json.dumps(data, separators=(",", ":")).encode(), mtime=0)
    return (
        f'<!doctype html>\n<html class="kbp-page" lang="en"><head><meta charset="utf-8"><title>{title}</title>\n'
        f'<meta name="viewport" content="width=device-width">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n<style>{style_css()}</style></head>\n'
        f'<body><h1>{title}</h1>\n<main id="kbp-root">{still_svg(scene)}</main>\n<p>{escape(note)}</p>\n'
        f'<script type="text/plain" id="kbp-scene">{b64encode(packed).decode()}</script>\n'
        f'<script type="module">{module_js()}\nopenPage();\n</script></body></html>\n'
    )


def _read(name: str) -> str:
    return (files(__package__) / "picture" / name).read_text("utf-8")
