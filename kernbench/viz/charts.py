"""Charts of reports by Altair: one specification, drawn as SVG and PNG, and interactive in a page.

A `Chart` names its kind, the columns it shows and the rows it takes. Charts are Altair's: hover shows a point's values,
a click on a legend entry keeps one series.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import log10
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from kernbench.config._files import write_text
from kernbench.errors import ArgumentError
from kernbench.viz import _palette as palette
from kernbench.viz.still import Still

if TYPE_CHECKING:
    import pandas as pd

    from kernbench.analysis._roofline import Roofs
    from kernbench.topology.builder import Machine


ChartRow = Mapping[str, Any]
FONT = "Liberation Sans"  # bundled with the renderer, so that a figure has the same bytes everywhere
MOST_LINES = 5
SHOWN_SHARE = 0.06  # parts of a bar that are smaller have no label
MOST_TICKS = 10
TEXT = 12  # the smallest text of a figure [px]
_WIDTH, _HEIGHT = 440, 250
_LABEL = 40  # room for the label of a bar to the left [px]
_TFLOPS = 100_000  # peak [Gflop/s] from which on rates are in Tflop/s
_TITLE, _CAPTION = 100, 125  # characters of a line
_DASHES = ([1, 0], [6, 2], [2, 2], [8, 2, 2, 2], [4, 4])


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a study's table."""

    description: str
    unit: str = ""

    @property
    def title(self) -> str:
        return f"{self.description} [{self.unit}]" if self.unit else self.description


def first_upper(text: str) -> str:
    """Capitalize the first letter only.

    >>> first_upper("halving UCIe of a SIP")
    'Halving UCIe of a SIP'
    """
    return text[:1].upper() + text[1:]


def rows_of(table: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in table.to_dict("records")]


Draw = Callable[[Sequence[ChartRow], Mapping[str, Column], "Machine"], Any]
_Kind = Callable[..., Any]  # a `Draw` that needs no machine
_NONE = Column("")


@dataclass(frozen=True, slots=True)
class Chart:
    """One figure of a report.

    Parameters
    ----------
    name
        Stem of the file names.
    draw
        Returns the picture of some rows: `lines(...)`, `bars(...)`, `parts(...)`, `points(...)` or `heat(...)`, or a
        function `(rows, columns, machine) -> alt.Chart | Still` for another picture.
    title
        What the figure shows or finds; a function of the rows where it states a number.
    where
        Which rows it takes; by default all.
    caption
        How to read it, in words.
    derive
        Returns what is drawn from the rows that it takes; by default these rows.
    """

    name: str
    draw: Draw
    title: str | Callable[[Sequence[ChartRow]], str]
    where: Callable[[ChartRow], bool] = field(default=lambda row: True)
    caption: str = ""
    derive: Callable[[Sequence[ChartRow]], Sequence[ChartRow]] = field(default=lambda rows: rows)

    def heading(self, rows: Sequence[ChartRow]) -> str:
        taken = self.taken(rows)
        return self.title(taken) if callable(self.title) else self.title

    def taken(self, rows: Sequence[ChartRow]) -> list[ChartRow]:
        return [row for row in rows if self.where(row)]

    def show(self, rows: Sequence[ChartRow], columns: Mapping[str, Column], machine: Machine) -> Any:
        taken = self.taken(rows)
        if not taken:
            raise ArgumentError(f"{self.name}: no row to draw")
        try:
            picture = self.draw(self.derive(taken), columns, machine)
        except ArgumentError as error:
            raise ArgumentError(f"chart {self.name!r}: {error}") from error
        if isinstance(picture, Still):
            return picture
        return themed(picture, self.heading(rows), self.caption, count(len(taken), machine.hash))

    def finding(self, claim: str, rows: Sequence[ChartRow]) -> Chart:
        """Use a finding as the title; what the chart shows then begins the caption."""
        return replace(self, title=claim.rstrip("."), caption=f"{self.heading(rows)}. {self.caption}".rstrip())

    def image(self, rows: Sequence[ChartRow], columns: Mapping[str, Column], machine: Machine, png: bytes = b"") -> Any:
        """Picture for a notebook cell, which needs no kernel; a sentence if no row is for it.

        `png` is the picture, where it is already drawn.
        """
        from IPython import display

        if not self.taken(rows):
            return display.Markdown(f"*{self.name}: this run has no point for this figure.*")
        if not png:
            with TemporaryDirectory() as folder:
                png = self.save(rows, columns, machine, Path(folder))[1].read_bytes()
        return display.Image(png, width=720)

    def save(
        self, rows: Sequence[ChartRow], columns: Mapping[str, Column], machine: Machine, folder: Path
    ) -> list[Path]:
        """Write the figure and return the paths, SVG and PNG first, none without rows.

        A chart is also written as its specification for interactive pages (`NAME.vl.json`).
        """
        if not self.taken(rows):
            return []
        finished = self.show(rows, columns, machine)
        svg, png, vl = (folder / f"{self.name}.{suffix}" for suffix in ("svg", "png", "vl.json"))
        still = finished if isinstance(finished, Still) else drawn(finished)
        still.save(svg)
        still.save(png)
        if still is finished:
            return [svg, png]
        return [svg, png, write_text(vl, json.dumps(finished.to_dict(), sort_keys=True) + "\n")]


def drawn(chart: Any) -> Still:
    import vl_convert

    return Still(vl_convert.vegalite_to_svg(chart.to_dict(), vl_version=altair().SCHEMA_VERSION.rpartition(".")[0]))


def count(n: int, machine: str) -> str:
    """Last line of a caption: the number of points, and the hash of the machine."""
    return f"n = {n}; machine {machine[:12]}"


def themed(chart: Any, title: str, *under: str) -> Any:
    """Chart with a title, paragraphs of a caption under it, and the look of a report."""
    alt = altair()

    heading = alt.TitleParams(
        wrap(title, _TITLE), subtitle=[line for text in under for line in wrap(text, _CAPTION)], anchor="start",
        fontSize=15, subtitleFontSize=TEXT, subtitleColor=palette.DARK_GREY, offset=12,
    )  # fmt: skip
    sizes = {"labelFontSize": TEXT, "titleFontSize": TEXT}
    return (
        chart.properties(title=heading)
        .configure(font=FONT, background="white", padding=12)
        .configure_view(stroke=None)
        .configure_axis(**sizes, labelLimit=400, titleFontWeight="normal", gridColor="#E6E6E6", domain=False)
        .configure_header(**sizes)
        .configure_legend(**sizes, orient="top", labelLimit=0, columns=4)
        .configure_text(fontSize=TEXT)
        .configure_line(color=palette.DARK_GREY)
    )


class _Plot:
    """The rows of a picture as a table, and the encodings that the kinds of charts share."""

    def __init__(self, rows: Sequence[ChartRow], columns: Mapping[str, Column]) -> None:
        import pandas as pd

        if not rows:
            raise ArgumentError("no rows to draw; give at least one")
        self.alt, self.columns = altair(), columns
        self.data = pd.DataFrame([{k: v for k, v in row.items() if not isinstance(v, (dict, list))} for row in rows])

    def title(self, name: str) -> str:
        return self.columns[name].title if name in self.columns else name

    def values(self, name: str) -> list[Any]:
        return list(dict.fromkeys(self.data[name]))

    def one_row_each(self, *names: str) -> None:
        """Refuse rows with equal values of all `names`: they would be drawn over one another."""
        for key, rows in self.data.groupby(list(names), sort=False):
            if len(rows) > 1:
                where = ", ".join(f"{name} = {value}" for name, value in zip(names, key, strict=True))
                raise ArgumentError(
                    f"{len(rows)} rows have {where}: their bars would add up; give by= or panel=, or fewer rows"
                )

    def tips(self, *names: str) -> list[Any]:
        return [self.alt.Tooltip(name, title=self.title(name)) for name in dict.fromkeys(filter(None, names))]

    def colour(self, by: str) -> Any:
        names = self.values(by)
        scale = self.alt.Scale(domain=names, range=[_series_colour(i) for i in range(len(names))])
        return self.alt.Color(by, type="nominal", title=self.title(by), scale=scale)

    def rule(self, **at: float | None) -> list[Any]:
        mark = self.alt.Chart().mark_rule(color=palette.DARK_GREY, strokeDash=[3, 3])
        return [mark.encode(**{axis: self.alt.datum(value)}) for axis, value in at.items() if value is not None]

    def panels(self, layers: Sequence[Any], panel: str, height: int | None = None, columns: int = 2) -> Any:
        """Layers as one chart, or one panel for each value of `panel`, `columns` side by side."""
        sized = self.alt.layer(*layers, data=self.data)
        sized = sized.properties(width=_WIDTH, **({"height": height} if height else {}))
        if not panel:
            return sized
        order, heading = self.values(panel), self.alt.Header(title=None, labelFontWeight="bold", labelAnchor="start")
        facet = self.alt.Facet(panel, type="nominal", header=heading, sort=order)
        columns = 2 if len(order) in (2, 4) else columns
        return sized.properties(width=(0.62 if columns == 2 else 0.48) * _WIDTH).facet(facet=facet, columns=columns)


def lines(
    x: str,
    y: str,
    by: str,
    *,
    panel: str = "",
    log_x: bool = True,
    log_y: bool = False,
    rule: float | None = None,
    rank: Callable[[Sequence[float]], float] = min,
) -> _Kind:
    """Return a kind of chart: one line for each value of `by`, labelled at its end, in a panel for each of `panel`.

    A panel shows at most five lines: those whose `rank` of `y` is smallest; the caption of the chart says what the rest
    is. `rule` is a horizontal reference. Series also differ by dash and shape, so that they differ in grey.
    """

    def draw(rows: Sequence[ChartRow], columns: Mapping[str, Column], _: object = None) -> Any:
        plot = _Plot([row for row in rows if row.get(y) is not None], columns)
        alt = plot.alt
        plot.data = _best_lines(plot.data, by, y, panel, rank)
        names, unit = plot.values(by), columns.get(x, _NONE).unit
        plot.data = _with_labels(plot.data, x, y, by, panel, log_y)
        colour = alt.Color(by, type="nominal", scale=alt.Scale(domain=names, range=list(palette.SERIES)), legend=None)
        dash = alt.StrokeDash(
            by, type="nominal", scale=alt.Scale(domain=names, range=[list(d) for d in _DASHES]), legend=None
        )
        x_scale = alt.Scale(type="log", base=2) if log_x else alt.Undefined
        x_axis = _bytes_axis(plot.data[x]) if unit == "B" else alt.Axis(grid=False, **_ticks(plot.data[x], log_x))
        y_scale = alt.Scale(type="log", nice=False, padding=8) if log_y else alt.Undefined
        y_axis = log_axis(plot.data[y]) if log_y else alt.Undefined
        chosen = alt.selection_point(fields=[by], bind="legend")
        opacity = alt.when(chosen).then(alt.value(1)).otherwise(alt.value(0.15))
        base = alt.Chart().encode(
            x=alt.X(x, type="quantitative", title=plot.title(x), scale=x_scale, axis=x_axis),
            y=alt.Y(y, type="quantitative", title=plot.title(y), scale=y_scale, axis=y_axis),
            color=colour,
        )
        layers = [
            base.mark_line(strokeWidth=2).encode(strokeDash=dash, opacity=opacity),
            base.mark_point(filled=True, size=40, opacity=1)
            .encode(shape=alt.Shape(by, type="nominal", legend=None), tooltip=plot.tips(by, x, y))
            .add_params(chosen),
            base.transform_filter("datum._label != ''")
            .mark_text(align="left", dx=8)
            .encode(y=alt.Y("_label_y", type="quantitative"), text="_label:N"),
        ]
        return plot.panels([*layers, *plot.rule(y=rule)], panel, _HEIGHT)

    return draw


def _with_labels(data: pd.DataFrame, x: str, y: str, by: str, panel: str, log_y: bool) -> pd.DataFrame:
    """Label the end of each line; labels that would overlap are moved apart."""
    data = data.sort_values(x, kind="stable").assign(_label="", _label_y=lambda rows: rows[y])
    ends = data.groupby([by, panel] if panel else [by], sort=False).tail(1)
    height = data[y].map(log10) if log_y else data[y]
    least = height.min() if log_y else min(0, height.min())  # a linear axis begins at zero
    apart = max(float(height.max() - least), 1e-12) * (0.075 if log_y else 0.05)
    for _, group in ends.groupby(panel) if panel else [("", ends)]:
        at = float("-inf")
        for index in group.sort_values(y).index:
            at = max(float(height[index]), at + apart)
            data.loc[index, "_label"], data.loc[index, "_label_y"] = str(data.loc[index, by]), 10**at if log_y else at
    return data


def bars(x: str, y: str, *, by: str = "", panel: str = "", label: str = ",.3~r", rule: float | None = None) -> _Kind:
    """Return a kind of chart: horizontal bars of `x` from zero for each `y`, labelled with their values.

    Rows that share `y` are distinguished by `by`, in one panel, or by `panel`.
    """

    def draw(rows: Sequence[ChartRow], columns: Mapping[str, Column], _: object = None) -> Any:
        plot = _Plot(rows, columns)
        alt = plot.alt
        plot.one_row_each(*filter(None, (y, by, panel)))
        negative = bool((plot.data[x] < 0).any())
        scale = alt.Scale(zero=True, padding=_LABEL if negative else alt.Undefined)
        position = {"yOffset": alt.YOffset(by, type="nominal", sort=plot.values(by))} if by else {}
        base = alt.Chart().encode(
            x=alt.X(x, type="quantitative", title=plot.title(x), scale=scale),
            y=alt.Y(y, type="nominal", title=None, sort=plot.values(y), axis=alt.Axis(ticks=False)),
            **position,
        )
        colour = plot.colour(by) if by else alt.value(palette.BLUE)
        bar = base.mark_bar().encode(color=colour, tooltip=plot.tips(y, by, x))
        texts = [base.mark_text(align="left", dx=4)]
        if negative:
            known, left = base.transform_filter(alt.expr.isNumber(alt.datum[x])), {"align": "right", "dx": -4}
            texts = [
                known.transform_filter(alt.datum[x] >= 0).mark_text(align="left", dx=4),
                known.transform_filter(alt.datum[x] < 0).mark_text(**left),
            ]
        labelled = [text.encode(text=alt.Text(x, format=label)) for text in texts]
        return plot.panels([bar, *labelled, *plot.rule(x=rule)], panel, columns=3)

    return draw


def parts(
    y: str,
    names: Sequence[str],
    *,
    panel: str = "",
    title: str = "",
    colours: Mapping[str, str] | None = None,
    rule: float | None = None,
) -> _Kind:
    """Return a kind of chart: a bar for each `y`, cut into the columns `names`.

    Bars reach from 0 to 100 %, or with a `title` of the axis as far as the parts sum to; `rule` is a reference on it.
    """

    def draw(rows: Sequence[ChartRow], columns: Mapping[str, Column], _: object = None) -> Any:
        keep = [y, panel] if panel else [y]
        used = [(colours or {}).get(part, _series_colour(i)) for i, part in enumerate(names)]
        titles = [columns[part].title if part in columns else part for part in names]
        cut = [
            {name: row[name] for name in keep}
            | {"part": titles[i], "value": row[part] or 0, "rank": i, "ink": ink(used[i])}
            for row in rows
            for i, part in enumerate(names)
        ]
        plot = _Plot(cut, columns)
        alt, long = plot.alt, plot.data
        total = long.groupby(keep)["value"].transform("sum")
        long["share"] = (long["value"] / total.where(total > 0, 1)).round(6)
        shown = SHOWN_SHARE * (2 if panel else 1)
        long["label"] = [f"{share:.0%}" if share >= shown else "" for share in long["share"]]
        base = alt.Chart().encode(
            y=alt.Y(y, type="nominal", title=None, sort=plot.values(y), axis=alt.Axis(ticks=False)),
            order=alt.Order("rank:Q"),
        )
        if title:
            across = alt.X("value:Q", stack="zero", title=title)
        else:
            share_of, whole = alt.Axis(format="%", tickCount=5), alt.Scale(domain=[0, 1])
            across = alt.X("share:Q", stack="zero", title="share of the time", axis=share_of, scale=whole)
        scale, legend = alt.Scale(domain=titles, range=used), alt.Legend(symbolType="square")
        tips = [(y, "N", None), ("part", "N", None), ("value", "Q", ",.4~r"), ("share", "Q", ".1%")]
        bar = base.mark_bar(stroke="white", strokeWidth=0.7).encode(
            x=across,
            color=alt.Color("part:N", title=None, sort=titles, scale=scale, legend=legend),
            tooltip=[alt.Tooltip(f"{name}:{kind}", format=form or alt.Undefined) for name, kind, form in tips],
        )
        text = base.mark_text().encode(
            x=alt.X("share:Q", stack="zero", bandPosition=0.5),
            text="label:N",
            color=alt.Color("ink:N", scale=None),
            detail="part:N",
        )
        return plot.panels([bar, *plot.rule(x=rule)] if title else [bar, text], panel, columns=3)

    return draw


_FEW_DOTS = 150  # more are drawn smaller


def points(
    x: str, y: str, *, by: str = "", label: str = "", panel: str = "", log_x: bool = False, log_y: bool = False
) -> _Kind:
    """Return a kind of chart: a dot for each row, labelled with the column `label`."""

    def draw(rows: Sequence[ChartRow], columns: Mapping[str, Column], _: object = None) -> Any:
        plot = _Plot(rows, columns)
        alt = plot.alt
        logs = [axis for axis, is_log in ((x, log_x), (y, log_y)) if is_log]
        log = {axis: {"scale": alt.Scale(type="log"), "axis": log_axis(plot.data[axis])} for axis in logs}
        spread = {"scale": alt.Scale(zero=False, padding=12)}
        base = alt.Chart().encode(
            x=alt.X(x, type="quantitative", title=plot.title(x), **log.get(x, spread)),
            y=alt.Y(y, type="quantitative", title=plot.title(y), **log.get(y, spread)),
        )
        colour: dict[str, Any] = {}
        if by:
            shape = alt.Shape(by, type="nominal", title=plot.title(by), scale=alt.Scale(domain=plot.values(by)))
            colour = {"color": plot.colour(by), "shape": shape}
        size, opacity = (60, 1) if len(rows) <= _FEW_DOTS else (16, 0.7)
        dots = base.mark_point(filled=True, size=size, opacity=opacity)
        layers = [dots.encode(tooltip=plot.tips(label, by, x, y), **colour)]
        if label:
            layers.append(base.mark_text(align="left", dx=8, dy=-8).encode(text=label))
        return plot.panels(layers, panel, _HEIGHT)

    return draw


def roofline(
    rows: Sequence[ChartRow],
    roofs: Roofs,
    *,
    by: str = "",
    label: str = "",
    columns: Mapping[str, Column] | None = None,
) -> Any:
    """Draw the roof of each memory level, and a dot for each row at its `intensity` [flop/B] and `gflops`."""
    alt = altair()
    unit, size = ("Tflop/s", 1000) if roofs.peak_gflops >= _TFLOPS else ("Gflop/s", 1)
    titles = {"intensity": Column("flop per byte moved at the memory level"), "rate": Column("rate"), **(columns or {})}
    titles["rate"] = replace(titles["rate"], unit=unit)
    corners: list[dict[str, Any]] = [
        {"level": level, "intensity": x, "rate": y / size}
        for level, line in roofs.lines(row["intensity"] for row in rows).items()
        for x, y in line
    ]
    low, high, peak = corners[0]["intensity"], corners[-1]["intensity"], roofs.peak_gflops / size
    shown = [{**row, "rate": row["gflops"] / size} for row in rows]
    labelled = [row for row in shown if label and row[label]]
    # Texts, each with its look: bandwidths left of their knees, over the lines, where no point is; none overlap.
    knees = {f"{level} {gbs:,g} GB/s": roofs.ridge(level) for level, gbs in roofs.levels_gbs.items()}
    texts: list[tuple[ChartRow, dict[str, Any]]] = [
        ({"intensity": x, "rate": peak, "text": text}, {"align": "right", "dy": -8 - 14 * i})
        for i, (text, x) in enumerate([*knees.items(), (f"peak {peak:,.0f} {unit}", high)])
    ]
    texts += [({**row, "text": row[label]}, {"dx": 8, "dy": -8 - 14 * i}) for i, row in enumerate(labelled)]
    place = {
        "x": alt.X("intensity:Q", scale=alt.Scale(type="log", domain=[low, high], nice=False)),
        "y": alt.Y("rate:Q", scale=alt.Scale(type="log")),
    }
    lines = alt.Chart(alt.Data(values=corners)).mark_line(strokeWidth=1.5).encode(**place, detail="level:N")
    said = [
        alt.Chart(alt.Data(values=[row])).mark_text(**{"align": "left", **look}).encode(**place, text="text:N")
        for row, look in texts
    ]
    return layered(lines, *said, points("intensity", "rate", by=by, log_x=True, log_y=True)(shown, titles))


def layered(*layers: Any) -> Any:
    """Layers, of which the last is a chart of one of the kinds, on top."""
    *below, top = layers
    return altair().layer(*below, *top.layer, data=top.data).properties(width=top.width, height=top.height)


def agreement(measured: str, predicted: str, *, by: str) -> _Kind:
    """Return a kind of chart: predictions over measurements, with the line of equality and a band of 10 %."""

    def draw(rows: Sequence[ChartRow], columns: Mapping[str, Column], _: object = None) -> Any:
        alt, place = altair(), {"x": f"{measured}:Q", "y": f"{predicted}:Q"}
        both = [row[name] for row in rows for name in (measured, predicted)]
        ends = [{measured: x, predicted: x} for x in (min(both), max(both))]
        band = [end | {predicted: 0.9 * end[measured], "most": 1.1 * end[measured]} for end in ends]
        below = alt.Chart(alt.Data(values=band)).mark_area(color=palette.GREY, opacity=0.3).encode(**place, y2="most:Q")
        line = alt.Chart(alt.Data(values=ends)).mark_line().encode(**place)
        return layered(below, line, points(measured, predicted, by=by, log_x=True, log_y=True)(rows, columns))

    return draw


def heat(x: str, y: str, value: str, *, panel: str = "", label: str = ".3~r") -> _Kind:
    """Return a kind of chart: a matrix of cells coloured by `value`, with the number in each."""

    def draw(rows: Sequence[ChartRow], columns: Mapping[str, Column], _: object = None) -> Any:
        plot = _Plot(rows, columns)
        alt, cells = plot.alt, plot.data[value]
        down = alt.Axis(labelAngle=0)
        base = alt.Chart().encode(
            x=alt.X(x, type="ordinal", title=plot.title(x), sort=plot.values(x), axis=down),
            y=alt.Y(y, type="ordinal", title=plot.title(y), sort=plot.values(y)),
        )
        dark = alt.datum[value] > float((cells.max() + cells.min()) / 2)
        cell = base.mark_rect(stroke="white").encode(
            color=alt.Color(value, type="quantitative", legend=None, scale=alt.Scale(scheme="blues")),
            tooltip=plot.tips(x, y, value),
        )
        text = base.mark_text().encode(
            text=alt.Text(value, type="quantitative", format=label),
            color=alt.when(dark).then(alt.value("white")).otherwise(alt.value("black")),
        )
        return plot.panels([cell, text], panel, columns=3)

    return draw


def _best_lines(
    data: pd.DataFrame, by: str, y: str, panel: str, rank: Callable[[Sequence[float]], float]
) -> pd.DataFrame:
    """Rows of at most five series of each panel, in their order."""
    import pandas as pd

    kept = []
    for _, group in data.groupby(panel) if panel else [("", data)]:
        scores = {name: rank(list(part[y])) for name, part in group.groupby(by, sort=False)}
        best = sorted(scores, key=lambda name: (scores[name], str(name)))[:MOST_LINES]
        kept.append(group[group[by].isin(best)])
    return pd.concat(kept).sort_index().reset_index(drop=True)


def _series_colour(i: int) -> str:
    return palette.SERIES[i % len(palette.SERIES)]


def _bytes_axis(values: pd.Series) -> Any:
    """Axis of sizes that reads 256 B, 4 KiB, 1 MiB; the more the values span, the fewer."""
    words = "v >= 1048576 ? v / 1048576 + ' MiB' : v >= 1024 ? v / 1024 + ' KiB' : v + ' B'".replace("v", "datum.value")
    step = 16 if max(values) > 4**5 * min(values) else 4
    sizes = [step**i for i in range(15)]
    return altair().Axis(
        grid=False, values=sizes, labelExpr=words, labelOverlap="greedy", labelSeparation=8, labelFlush=False
    )


def ink(colour: str) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "white" if 0.3 * red + 0.59 * green + 0.11 * blue < 110 else "black"


def log_axis(values: Iterable[float]) -> Any:
    """Logarithmic axis: a line at 1, 2 and 5 of each decade, or at powers of ten where `values` span many."""
    held = [value for value in values if value > 0]
    steps = (1,) if held and max(held) > 1000 * min(held) else (1, 2, 5)
    label = "datum.value < 1000 ? format(datum.value, '~g') : format(datum.value, '~s')"
    return altair().Axis(values=[step * 10.0**i for i in range(-12, 19) for step in steps], labelExpr=label)


def _ticks(values: pd.Series, log: bool) -> dict[str, Any]:
    ticks = sorted(set(values))
    return {"values": ticks} if log and len(ticks) <= MOST_TICKS else {}


def altair() -> Any:
    """Untyped, since the signatures of altair refuse composed keywords."""
    # Altair imports jsonschema, which takes seconds to prepare a check of addresses where this package is installed.
    missing = "rfc3987_syntax" not in sys.modules
    if missing:
        sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]  # an import of it fails
    try:
        import altair as alt
    finally:
        if missing:
            del sys.modules["rfc3987_syntax"]
    return alt
