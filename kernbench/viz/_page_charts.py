"""Charts of the explorer by Altair: as wide as the page, in the colours of its theme."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernbench.viz import charts
from kernbench.viz.charts import altair

if TYPE_CHECKING:
    from kernbench.analysis._roofline import RoofPoint, Roofs

_TEXT, _MUTED, _EDGE = "var(--kbp-text)", "var(--kbp-muted)", "var(--kbp-border)"
_ACCENT, _SECOND, _QUIET = "var(--kbp-accent)", "var(--kbp-path)", "var(--kbp-outline)"


@dataclass(frozen=True, slots=True)
class Axis:
    key: str
    title: str


def parallel_coordinates(rows: Sequence[Mapping[str, Any]], axes: Sequence[Axis], a: int | None, b: int | None) -> Any:
    """Draw each run as a line over the axes, each scaled from its smallest to its largest value.

    A row has `run`, `title`, and a value, a text or None under the key of each axis; runs `a` and `b` are drawn in
    colour.
    """
    alt = altair()
    points, ends = [], []
    for place, axis in enumerate(axes):
        values = [row[axis.key] for row in rows if row[axis.key] is not None]
        scale = _Scale(values)
        for row in rows:
            if row[axis.key] is not None:
                which = "A" if row["run"] == a else "B" if row["run"] == b else "other"
                points.append({
                    "run": row["run"], "name": row["title"], "which": which, "axis": axis.title, "place": place,
                    "value": axis_text(row[axis.key]), "at": scale.at(row[axis.key]),
                })  # fmt: skip
        ends += [{"axis": axis.title, "place": place, "at": at, "text": text} for text, at in scale.ticks()]
    order = [axis.title for axis in axes]
    header = alt.Axis(labelAngle=0, orient="top", labelLimit=max(90, 720 // len(order)), domain=False, ticks=False)
    on: dict[str, Any] = {
        "x": alt.X("axis:N", sort=order, title=None, axis=header),
        "y": alt.Y("at:Q", axis=None, scale=alt.Scale(domain=[-0.06, 1.06], nice=False)),
    }
    hover = alt.selection_point(name="hovered", fields=["run"], on="pointerover", clear="pointerout", empty=False)
    shown = {"domain": ["A", "B", "other"], "range": [_SECOND, _ACCENT, _QUIET]}
    colour = alt.Color("which:N", legend=None, scale=alt.Scale(**shown))
    raised = "datum.which != 'other' || (hovered.run && indexof(hovered.run, datum.run) >= 0)"
    width, opacity = (alt.condition(raised, alt.value(of), alt.value(other)) for of, other in ((2.5, 1), (1, 0.7)))
    tips = [alt.Tooltip("run:Q", title="Run"), alt.Tooltip("name:N", title="What")]
    tips += [alt.Tooltip("axis:N", title="Of"), alt.Tooltip("value:N", title="Value")]
    base = _of(alt, points).encode(**on, color=colour)
    lines = base.mark_line().encode(detail="run:N", order="place:Q", strokeWidth=width, opacity=opacity)
    dots = base.mark_point(filled=True, size=70, opacity=1).encode(tooltip=tips).add_params(hover)
    rules = _of(alt, [{"axis": title} for title in order]).mark_rule(color=_EDGE).encode(x=on["x"])
    texts = _of(alt, ends).mark_text(align="left", dx=8, color=_MUTED).encode(**on, text="text:N")
    return _styled(alt.layer(rules, lines, dots, texts).properties(width="container", height=220))


class _Scale:
    """The position of a value on its axis, 0 to 1: numbers by size, words by order."""

    def __init__(self, values: Sequence[Any]) -> None:
        self._numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in values)
        self._known: list[Any] = sorted(set(values)) if self._numbers else sorted({str(x) for x in values})

    def at(self, value: Any) -> float:
        if len(self._known) < 2:
            return 0.5
        if self._numbers:
            low, high = self._known[0], self._known[-1]
            return float((value - low) / (high - low))
        return self._known.index(str(value)) / (len(self._known) - 1)

    def ticks(self) -> list[tuple[str, float]]:
        shown = self._known if not self._numbers else sorted({self._known[0], self._known[-1]})
        return [(axis_text(value), self.at(value)) for value in shown]


def axis_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"


def roofline_chart(at: RoofPoint, roofs: Roofs, title: str) -> Any:
    """Draw one run below one roof for each memory level, with a point at its intensity of each, and name the limit."""
    alt = altair()
    chart = charts.roofline(at.levels(), roofs, label="level")
    under = f"{at.name}: {at.gflops:,.0f} Gflop/s, {roofs.reached(at)}"
    heading = alt.TitleParams(title, subtitle=under, subtitleColor=_MUTED)
    return _styled(chart.properties(width="container", height=280, title=heading))


def _of(alt: Any, values: list[dict[str, Any]]) -> Any:
    return alt.Chart(alt.Data(values=values))


def _styled(chart: Any) -> Any:
    return (
        chart.configure(background="transparent", padding=4, autosize={"type": "fit-x", "contains": "padding"})
        .configure_view(stroke=None)
        .configure_title(color=_TEXT, fontSize=13, anchor="start", fontWeight=600)
        .configure_axis(
            labelColor=_TEXT, titleColor=_MUTED, tickColor=_EDGE, domainColor=_EDGE, gridColor=_EDGE, gridOpacity=0.5,
            labelFontSize=11, titleFontSize=11, titleFontWeight="normal",
        )
        .configure_text(fontSize=11, color=_TEXT)
        .configure_line(color=_QUIET)
        .configure_point(color=_ACCENT)
    )  # fmt: skip
