"""Figures as stills: the timeline of a PE, the roofline of a run, load curves, and those of a design space."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from math import ceil, floor, log10
from typing import TYPE_CHECKING, Any

from kernbench.analysis._roofline import placed
from kernbench.analysis._stages import STAGE_LABELS
from kernbench.analysis.trace import tracks_by_stage
from kernbench.viz import _palette as palette
from kernbench.viz import charts as kinds
from kernbench.viz.charts import Column, first_upper, rows_of
from kernbench.viz.still import Still, still_page

if TYPE_CHECKING:
    import pandas as pd

    from kernbench.analysis._records import Records

_Row = Mapping[str, Any]
_Table = Iterable[_Row]
_UNITS = {"mm2": "mm2", "uj": "uJ", "gbs": "GB/s", "pct": "%", "mib": "MiB", "bytes": "B"}
_UNITS |= {unit: unit for unit in ("ps", "ns", "us", "ms", "s")}
TIMELINE_WIDTH = 640  # of a timeline [px], as all sizes
_NAMES, _STAGE, _TRACK, _GAP, _DIGIT = 64, 60, 15, 3, 7


def tile_timeline(table: _Table | pd.DataFrame, *, machine: str, title: str, zoom_ns: float | None = None) -> Still:
    """Draw the activity of each engine of a PE over time; consecutive tiles alternate in shade.

    Parameters
    ----------
    table : list of dict or DataFrame
        Columns stage, start_ns, end_ns, tile, as `analysis.trace.timeline` returns them.
    machine : str
        Hash of the machine.
    title : str
        What ran.
    zoom_ns : float, optional
        A second panel shows this much time from the first tile on.
    """
    rows = _frame(table)
    rows[["start_ns", "end_ns"]] -= rows["start_ns"].min()
    pieces = rows_of(rows)
    end = max(piece["end_ns"] for piece in pieces)
    panels = [("everything that the PE did" if zoom_ns else "", 0.0, end)]
    if zoom_ns:
        first = min((piece["start_ns"] for piece in pieces if piece["tile"] >= 0), default=0.0)
        panels.append((f"{zoom_ns:g} ns from the first tile on", first, first + zoom_ns))
    drawn, y = "", 0.0
    for name, start, stop in panels:
        inside, height = timeline_svg(pieces, start, stop)
        drawn += (
            f'<text class="m" x="12" y="{y + 11:g}">{name}</text><g transform="translate(12 {y + 18:g})">{inside}</g>'
        )
        y += height + 26
    under = f"Time since the PE's first work; each box: one tile or transfer; {kinds.count(len(pieces), machine)}"
    return Still(still_page(title, drawn, y, [under]))


def timeline_svg(pieces: _Table, start_ns: float, end_ns: float) -> tuple[str, float]:
    """Stages of a timeline in a window, and below them the time, as a part of an SVG; and its height [px].

    Boxes that are together narrower than a pixel are drawn as one.
    """
    scale = (TIMELINE_WIDTH - _NAMES) / max(1e-3, end_ns - start_ns)
    drawn, grid, y = [], [], 0.0
    inside = [piece for piece in pieces if piece["end_ns"] > start_ns and piece["start_ns"] < end_ns]
    for stage, tracks in tracks_by_stage(inside).items():
        each, colour = min(_TRACK, _STAGE / len(tracks)), palette.STAGE_COLOURS[stage]
        shades: tuple[list[str], list[str]] = [], []
        inks, numbers = (kinds.ink(colour), "currentColor"), []
        for i, track in enumerate(tracks):
            top = y + i * each
            for tile, start, end in _boxes(track, 1 / scale):
                left, right = (_NAMES + (min(max(at, start_ns), end_ns) - start_ns) * scale for at in (start, end))
                wide = max(right - left - (0.5 if right - left > 2 else 0), 0.3)
                box = f"M{left:.1f} {top:.1f}h{wide:.1f}v{0.92 * each:.1f}H{left:.1f}z"
                shades[odd := max(0, tile) % 2].append(box)
                if tile >= 0 and each == _TRACK and right - left > _DIGIT * (len(str(tile)) + 0.5):
                    middle = f'x="{(left + right) / 2:.1f}" y="{top + 11:.1f}" text-anchor="middle"'
                    numbers.append(f'<text {middle} style="fill:{inks[odd]}">{tile}</text>')
        name = y + each * len(tracks) / 2 + 4
        drawn.append(f'<text y="{name:.1f}" fill="currentColor">{escape(STAGE_LABELS[stage])}</text>')
        drawn += [
            f'<path d="{"".join(boxes)}" fill="{colour}" fill-opacity="{opacity}"/>'
            for boxes, opacity in zip(shades, (1, 0.55), strict=True)
            if boxes
        ]
        drawn += numbers
        y += each * len(tracks) + _GAP
    for at in _ticks(start_ns, end_ns):
        x = _NAMES + (at - start_ns) * scale
        anchor = "middle" if x < TIMELINE_WIDTH - 30 else "end"
        grid.append(f'<path d="M{x:.1f} 0V{y:.1f}" stroke="currentColor" stroke-opacity=".2" fill="none"/>')
        drawn.append(
            f'<text x="{x:.1f}" y="{y + 11:.1f}" text-anchor="{anchor}" fill="currentColor">{at:,.10g} ns</text>'
        )
    return f'<g font-size="11">{"".join(grid + drawn)}</g>', y + 14


def _boxes(track: Iterable[_Row], pixel_ns: float) -> Iterator[tuple[int, float, float]]:
    box = None
    for piece in track:
        if box and piece["end_ns"] - box[1] < pixel_ns:
            box = (*box[:2], piece["end_ns"])
            continue
        if box:
            yield box
        box = (piece["tile"], piece["start_ns"], piece["end_ns"])
    if box:
        yield box


def _ticks(start: float, end: float) -> list[float]:
    """Round times in a window, at most seven."""
    least = max(end - start, 1e-3) / 6
    decade = 10.0 ** floor(log10(least))
    step = next(x * decade for x in (1, 2, 5, 10) if x * decade >= least)
    return [i * step for i in range(ceil(start / step), floor(end / step) + 1)]


def roofline(records: Records, *, name: str) -> Still:
    """Draw a run under the roofs of the PEs that did work, with a dot at its intensity for each memory level.

    Parameters
    ----------
    records : Records
        Logged at tile level.
    name : str
        What ran.

    Raises
    ------
    StateError
        If the run computed nothing or moved no bytes.
    """
    at, roofs = placed(records, name)
    title, pes = f"{name}: {at.gflops:,.0f} Gflop/s, {roofs.reached(at)}", len(records.pes())
    under = f"Roofs of {pes} PE{'s' * (pes > 1)}."
    return _still(kinds.roofline(at.levels(), roofs, label="level"), title, 1, records.machine, under)


def agreement_figure(
    table: _Table | pd.DataFrame, measured: str, predicted: str, *, by: str, unit: str, machine: str, title: str
) -> Still:
    """Draw predictions over measurements, with the line of equality and a band of 10 %."""
    rows, columns = _frame(table), {name: Column(name, unit) for name in (measured, predicted)}
    chart = kinds.agreement(measured, predicted, by=by)(rows_of(rows), columns)
    return _still(chart, title, len(rows), machine, "The band is 10 % each way.")


Curve = tuple[str, str, Sequence[tuple[float, float]], float, float]


def load_curves(curves: Sequence[Curve], *, machine: str, n: int, note: str) -> Still:
    """Draw mean latency against load, and the load at which each curve saturates.

    Parameters
    ----------
    curves : sequence of tuple
        Name, panel, (load [flits per cycle and terminal], latency [ns]) of loads that do not saturate, latency without
        load [ns], and load of saturation.
    machine : str
        Hash of the machine.
    n : int
        Number of loads simulated.
    note : str
        What else the caption says.
    """
    rows = [
        {"curve": f"{name}, saturates at {saturation:.2f}", "panel": panel, "load": load, "latency": latency}
        for name, panel, points, alone, saturation in curves
        for load, latency in ((0.0, alone), *points)
    ]
    columns = {"load": Column("load", "flits per cycle and terminal"), "latency": Column("mean latency", "ns")}
    chart = kinds.lines("load", "latency", "curve", panel="panel", log_x=False, log_y=True)(rows, columns)
    return _still(chart, "Latency against load", n, machine, note)


def tornado(table: _Table | pd.DataFrame, metric: str, *, machine: str, change: float = 0.2, of: str = "") -> Still:
    """Draw the effect of each factor on a metric, down and up, the strongest on top.

    Parameters
    ----------
    table : list of dict or DataFrame
        Columns factor, down_pct, up_pct: what `Sensitivity.ranked` returns.
    metric : str
        What the percentages are of.
    machine : str
        Hash of the machine.
    change : float
        The share by which factors were changed.
    of : str
        What ran, for the title.
    """
    rows = _frame(table)
    sides = {"down_pct": "less of it", "up_pct": "more of it"}
    order = rows[list(sides)].astype(float).abs().max(axis=1).sort_values(ascending=False, kind="stable").index
    bars = [
        {"factor": row["factor"], "side": side, "pct": row[column]}
        for row in rows_of(rows.loc[order])
        for column, side in sides.items()
    ]
    name = _quantity(metric).description
    columns = {"pct": Column(f"change of {name}", "%"), "side": Column("")}
    chart = kinds.bars("pct", "factor", by="side", label="+.1f", rule=0)(bars, columns)
    note = f"One factor at a time, +-{change:.0%} or the nearest step; less is better."
    return _still(chart, f"What moves the {name}{_of(of)}", len(rows), machine, note)


def pareto_front(
    table: _Table | pd.DataFrame,
    front: _Table | pd.DataFrame,
    metrics: tuple[str, str],
    *,
    machine: str,
    label: Sequence[str] = (),
    of: str = "",
) -> Still:
    """Draw all points in two metrics, and the front that no other point dominates.

    Parameters
    ----------
    table, front : list of dict or DataFrame
        All points, and those of the front, as `kernbench.sweeps.pareto.pareto` returns them.
    metrics : (str, str)
        Columns of the axes; less is better.
    machine : str
        Hash of the machine that points change.
    label : sequence of str
        Columns that name a point of the front.
    of : str
        What ran, for the title.
    """
    x, y = metrics
    rows, best = _frame(table).dropna(subset=[x, y]), _frame(front).sort_values([x, y])
    columns = {"x": _quantity(x), "y": _quantity(y), "which": Column("")}
    numbers = {tuple(place): str(i) for i, place in enumerate(best[[x, y]].to_numpy().tolist(), 1)}
    shown = [{"x": at[0], "y": at[1], "which": "on the front", "number": number} for at, number in numbers.items()]
    others = [tuple(place) for place in rows[[x, y]].to_numpy().tolist()]
    shown += [{"x": at[0], "y": at[1], "which": "other", "number": ""} for at in others if at not in numbers]
    log_x, log_y = (0 < 20 * rows[column].min() < rows[column].max() for column in metrics)
    dots = kinds.points("x", "y", by="which", label="number", log_x=log_x, log_y=log_y)(shown, columns)
    line = dots.layer[0].transform_filter("datum.number != ''").mark_line(interpolate="step-after")
    title = f"{first_upper(columns['y'].description)} against {columns['x'].description}{_of(of)}"
    names = [f"{i}: {', '.join(map(str, row))}" for i, row in enumerate(best[list(label)].itertuples(index=False), 1)]
    front_is = f"Front by {', '.join(label)}. {'; '.join(names)}." if label else ""
    return _still(kinds.layered(line, dots), title, len(rows), machine, "Less is better in both.", front_is)


def heat_map(table: _Table | pd.DataFrame, axes: tuple[str, str], metric: str, *, machine: str, of: str = "") -> Still:
    """Draw a metric over two axes; each cell is the minimum over the settings of the others.

    Parameters
    ----------
    table : list of dict or DataFrame
        Columns of both axes and of the metric; rows without a value are left out.
    axes : (str, str)
        Columns across and up.
    metric : str
        Less is better.
    machine : str
        Hash of the machine that points change.
    of : str
        What ran, for the title.
    """
    rows = _frame(table).dropna(subset=[metric])
    least = (
        rows.groupby(list(axes), sort=False)[metric].min().reset_index().set_axis(["x", "y", "value"], axis="columns")
    )
    columns = {"x": Column(axes[0]), "y": Column(axes[1])}
    title = f"{first_upper(_quantity(metric).title)} by {axes[1]} and {axes[0]}{_of(of)}"
    note = "Of several settings of other axes the least; empty: no result."
    return _still(
        kinds.heat("x", "y", "value", label=",.4~r")(rows_of(least), columns), title, len(rows), machine, note
    )


def _quantity(column: str) -> Column:
    """Return the quantity and the unit of a column, whose name ends with the unit.

    >>> _quantity("run_ns").title, _quantity("cube mesh").title
    ('run [ns]', 'cube mesh')
    """
    name, _, unit = column.rpartition("_")
    return Column(name.replace("_", " "), _UNITS[unit]) if name and unit in _UNITS else Column(column)


def _still(chart: Any, title: str, n: int, machine: str, *under: str) -> Still:
    return kinds.drawn(kinds.themed(chart, title, *filter(None, under), kinds.count(n, machine)))


def _frame(table: _Table | pd.DataFrame) -> pd.DataFrame:
    """Table with a fresh index; a ValueError without rows."""
    import pandas as pd

    given: Any = table
    rows = pd.DataFrame(given).reset_index(drop=True)
    if rows.empty:
        raise ValueError("no rows to draw; give at least one")
    return rows


def _of(what: str) -> str:
    return f": {what}" if what else ""
