"""Common parts of all panels: style sheet, rows with labels, buttons, messages, download links."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

import anywidget
import ipywidgets as widgets

from kernbench.viz._fields import fields, parameter_label
from kernbench.viz._picture import helpers_js, style_css
from kernbench.viz.charts import altair

NOTHING_RAN = "<p>Nothing has run yet: press Run, and it is shown here.</p>"
HERE = Path(__file__).parent


class _Frame(anywidget.AnyWidget):
    """The style sheet of a page of panels, its theme, and the names of its controls for screen readers."""

    _esm = f"{helpers_js()}\n{(HERE / 'frame.js').read_text('utf-8')}"
    _css = f"{style_css()}\n{(HERE / 'frame.css').read_text('utf-8')}"


@cache
def _chart_widget() -> Any:
    """Altair's widget with its code, so that it needs no network; a subclass, so that users' charts do not change."""

    class Chart(altair().JupyterChart):  # type: ignore[misc]
        pass

    Chart.enable_offline()
    return Chart


def show_chart(box: widgets.Box, drawn: Any) -> None:
    """Display a chart in a box, in place of the one that is there."""
    if box.children:
        box.children[0].chart = drawn
    else:
        made = _chart_widget()(drawn, embed_options={"actions": False, "renderer": "svg"})
        box.children = [made.add_class("kb-chart")]


def page(*parts: widgets.Widget, name: str = "kb-page") -> widgets.VBox:
    inner = widgets.Box(parts).add_class(name)
    return widgets.VBox([_Frame(), inner]).add_class("kb-explorer")


def column(*parts: widgets.Widget, name: str, title: str = "") -> widgets.VBox:
    head = [widgets.HTML(f"<h2>{escape(title)}</h2>")] if title else []
    return widgets.VBox([*head, *parts]).add_class(name)


def labelled_row(label: str, *parts: widgets.Widget, tip: str = "", long: bool = False) -> widgets.HBox:
    title = f' title="{escape(tip)}"' if tip else ""
    head = widgets.HTML(f"<label data-kb{title}>{escape(label)}</label>").add_class("kb-label")
    box = widgets.HBox([head, *parts]).add_class("kb-row")
    if long:
        box.add_class("kb-long")
    return box


class Input:
    """A labelled value: a text with a slider over `stops`, one of `choices`, or a checkbox; refused with a message.

    `on_set` is called with the new value whenever the user changed it.
    """

    def __init__(
        self,
        label: str,
        value: str | bool,
        on_set: Callable[[Any], Any],
        *,
        tip: str = "",
        unit: str = "",
        choices: Sequence[str] = (),
        stops: Sequence[float] = (),
    ) -> None:
        self._on_set = on_set
        self.control: Any = (
            widgets.Checkbox(value, indent=False, tooltip=tip)
            if isinstance(value, bool)
            else widgets.Dropdown(options=choices, value=value, tooltip=tip)
            if choices
            else widgets.Text(value=value, placeholder="not set", continuous_update=False, tooltip=tip)
        )
        self.message = widgets.HTML().add_class("kb-wrong")
        head = labelled_row(
            label, self.control, *([widgets.HTML(escape(unit)).add_class("kb-unit")] if unit else []), tip=tip
        )
        if value and not choices and not isinstance(value, bool) and _number(value) is None:
            head.add_class("kb-words")  # they need more room than a number
        parts = [head, self.message]
        self.slider: Any = None
        self._following = False
        if stops:
            number, self._stops = _number(value), tuple(stops)
            shown = sorted({*stops, *([] if number is None else [number])})
            self.slider = widgets.SelectionSlider(
                options=_named(shown),
                value=shown[0] if number is None else number,
                continuous_update=False,
                tooltip=f"{label}, as a slider",
            ).add_class("kb-slider")
            self.slider.observe(lambda change: self._slid(change["new"]), "value")
            parts.insert(1, self.slider)
        self.control.observe(lambda change: self._changed(change["new"]), "value")
        self.root = widgets.VBox(parts).add_class("kb-field")

    def refuse(self, text: str) -> None:
        self.message.value = message_html(text, wrong=True)

    def _slid(self, value: float) -> None:
        if not self._following and _number(self.control.value) != value:
            self.control.value = str(int(value)) if value.is_integer() else str(value)

    def _changed(self, value: Any) -> None:
        number = _number(value)
        if self.slider is not None and number is not None and number != self.slider.value:
            self._following = True  # new options select the first of them, which is not the user's choice
            self.slider.options = _named(sorted({*self._stops, number}))
            self.slider.value = number
            self._following = False
        self._on_set(value)


def _number(text: object) -> float | None:
    try:
        return float(str(text).replace(",", ""))
    except ValueError:
        return None


def _named(stops: Sequence[float]) -> list[tuple[str, float]]:
    return [(f"{stop:,g}", float(stop)) for stop in stops]


def label_of(name: str) -> str:
    return fields()[name].label if name in fields() else name if "." in name else parameter_label(name)


def button(text: str, tip: str, icon: str, action: Callable[[], Any], kind: str = "") -> widgets.Button:
    made = widgets.Button(
        description=text, tooltip=tip, icon=icon, button_style=kind, layout={"width": "auto", "flex": "0 0 auto"}
    )
    made.on_click(lambda _: action())
    return made


def message_html(text: str, *, wrong: bool = False) -> str:
    """Message to the user; screen readers read an error out at once."""
    if not text:
        return ""
    lines = escape(text).replace("\n", "<br>")
    kind, role = ("kb-message-box kb-bad", "alert") if wrong else ("kb-message-box", "status")
    return f'<div class="{kind}" role="{role}">{lines}</div>'


def download(name: str, content: bytes, kind: str) -> str:
    data = b64encode(content).decode()
    return f'<a class="kb-download" download="{escape(name)}" href="data:{kind};base64,{data}">{escape(name)}</a>'


def mimebundle(root: widgets.Widget, text: str) -> dict[str, Any]:
    bundle: dict[str, Any] = dict(root._repr_mimebundle_())
    return bundle | {"text/plain": text}
