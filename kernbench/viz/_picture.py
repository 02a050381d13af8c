"""The picture's module and style sheet, and the picture as a page that works from disk."""

from __future__ import annotations

import json
from base64 import b64encode
from functools import cache
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernbench.viz._scene import Scene

_FILES = ("shared.js", "loads.js", "machine.js", "details.js", "picture.js")


@cache
def module_js() -> str:
    """Return the ES module: its files one after the other."""
    return "\n".join(_read(name) for name in _FILES)


@cache
def style_css() -> str:
    """Return the style sheet."""
    return _read("tokens.css")


def picture_html(scene: Scene) -> str:
    """Return a page with the picture of a scene; it needs neither kernel nor network."""
    header, buffers = scene
    title = escape(header.get("run", {}).get("name") or header["machine"]["name"])
    data = {"header": header, "buffers": {name: b64encode(content).decode() for name, content in buffers.items()}}
    text = json.dumps(data, separators=(",", ":")).replace("</", "<\\/")
    return (
        f'<!doctype html>\n<html class="kbp-page" lang="en"><head><meta charset="utf-8"><title>{title}</title>\n'
        f'<meta name="viewport" content="width=device-width">\n<style>{style_css()}</style></head>\n'
        f'<body><main id="kbp-root"></main>\n<script type="application/json" id="kbp-scene">{text}</script>\n'
        f'<script type="module">{module_js()}\nopenPage();\n</script></body></html>\n'
    )


def _read(name: str) -> str:
    return (files(__package__) / "picture" / name).read_text("utf-8")
