"""What all panels share: the look, rows with labels, buttons, messages, links to download."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from html import escape
from typing import Any

import ipywidgets as widgets

from kernbench.viz import _palette as palette

NOTHING = "<p>Nothing has run yet: press Run, and it is shown here.</p>"
_CSS = f"""<style>
.kb-explorer {{ flex-flow: row wrap; align-items: flex-start; max-width: 1240px; overflow: hidden }}
.kb-explorer .kb-controls {{ flex: 0 1 330px; min-width: 280px; padding: 0 8px 0 0 }}
.kb-explorer .kb-wide {{ flex: 1 1 420px; min-width: 300px; overflow-x: auto; overflow-y: hidden }}
.kb-explorer .kb-row {{ align-items: center; overflow: hidden }}
.kb-explorer .kb-label {{ flex: 0 0 128px; overflow: hidden; text-overflow: ellipsis }}
.kb-explorer .widget-html-content, .kb-explorer .widget-html {{ line-height: 1.45; height: auto; white-space: normal }}
.kb-explorer .kb-unit {{ opacity: .75; font-size: 85%; white-space: nowrap }}
.kb-explorer .kb-message-box {{ border-left: 3px solid {palette.GREEN}; padding-left: 6px; margin: 2px 0 4px }}
.kb-explorer .kb-message-box.kb-bad {{ border-color: {palette.VERMILION} }}
.kb-explorer .kb-outdated {{ border-left: 3px solid {palette.ORANGE}; padding-left: 6px }}
.kb-explorer table {{ border-collapse: collapse; margin: 6px 0; font-size: 90% }}
.kb-explorer td, .kb-explorer th {{ padding: 1px 8px 1px 0; text-align: left }}
.kb-explorer table.kb-table tr {{ border-bottom: 1px solid rgba(128,128,128,.25) }}
.kb-explorer :focus-visible {{ outline: 2px solid {palette.BLUE}; outline-offset: 1px }}
.kb-explorer code {{ font-size: 90%; background: none; color: inherit; overflow-wrap: anywhere }}
.kb-explorer svg {{ max-width: 100%; display: block }}
.kb-explorer .kb-tabs > .lm-TabBar > .lm-TabBar-content > .lm-TabBar-tab {{
  flex: 0 1 auto; min-width: 0; padding: 0 8px }}
.kb-explorer .kb-why td:first-child {{ min-width: 160px }}
.kb-explorer .kb-note {{ align-self: center; opacity: .8; margin-left: 8px }}
.kb-explorer h4 {{ margin: 8px 0 4px }}
.kb-explorer a {{ color: inherit; text-decoration: underline }}
</style>"""


def STYLE() -> widgets.HTML:
    """Return the style sheet of the panels, as a widget."""
    return widgets.HTML(_CSS, layout={"display": "flex", "height": "0", "margin": "0", "width": "0"})


def row(label: str, *parts: widgets.Widget, tip: str = "") -> widgets.HBox:
    """Return widgets in a row, behind their label."""
    title = f' title="{escape(tip)}"' if tip else ""
    head = widgets.HTML(f"<label{title}>{escape(label)}</label>")
    head.add_class("kb-label")
    box = widgets.HBox([head, *parts])
    box.add_class("kb-row")
    return box


def button(text: str, tip: str, icon: str, action: Callable[[], Any], kind: str = "") -> widgets.Button:
    """Return a button."""
    made = widgets.Button(
        description=text, tooltip=tip, icon=icon, button_style=kind, layout={"width": "auto", "flex": "0 0 auto"}
    )
    made.on_click(lambda _: action())
    return made


def message_html(text: str, *, wrong: bool = False) -> str:
    """Return a message to the user; of something wrong, it is read out at once."""
    if not text:
        return ""
    lines = escape(text).replace("\n", "<br>")
    kind, role = ("kb-message-box kb-bad", "alert") if wrong else ("kb-message-box", "status")
    return f'<div class="{kind}" role="{role}">{lines}</div>'


def download(name: str, content: bytes, kind: str) -> str:
    """Return a link that saves `content` as a file on the reader's side."""
    data = b64encode(content).decode()
    return f'<a class="kb-download" download="{escape(name)}" href="data:{kind};base64,{data}">{escape(name)}</a>'


def mimebundle(root: widgets.Widget, text: str) -> dict[str, Any]:
    """Return how a panel shows itself: the widget, and a line where there are none."""
    bundle: dict[str, Any] = dict(root._repr_mimebundle_())
    return bundle | {"text/plain": text}
