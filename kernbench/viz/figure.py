"""What all figures share: size, caption, plain tables in, the same bytes out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import matplotlib.figure
from matplotlib.backends.backend_agg import FigureCanvasAgg

from kernbench.config.files import replacing

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

Table = Iterable[Mapping[str, Any]]


class Figure(matplotlib.figure.Figure):
    """A figure that shows itself in a notebook, whether or not pyplot was ever imported there."""

    def _repr_png_(self) -> bytes:
        png = BytesIO()
        self.savefig(png, format="png", metadata={"Software": None})
        return png.getvalue()


def rows_of(table: Table | pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a list of dicts or of a DataFrame."""
    records: Any = table.to_dict("records") if hasattr(table, "to_dict") else table
    rows = [dict(row) for row in records]
    if not rows:
        raise ValueError("no rows to draw; give at least one")
    return rows


def caption(n: int, machine: str, note: str = "") -> str:
    """Return the line that stands under every figure: how many points, on which machine, and what to know."""
    return "   ".join(part for part in (f"n = {n}", f"machine {machine[:12]}", note) if part)


def new_figure(width: float, height: float, title: str, under: str) -> Figure:
    """Return an empty figure [inches] with its title and its caption line."""
    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    figure.supxlabel(under, fontsize=7, x=0.01, ha="left", color="#4D4D4D")
    return figure


def tidy(axes: Axes) -> None:
    """Give `axes` the look of all figures: small text, no box."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    axes.xaxis.label.set_fontsize(8)
    axes.yaxis.label.set_fontsize(8)


def save(figure: matplotlib.figure.Figure, path: str | Path) -> Path:
    """Write a figure as PNG or SVG, by the name of the file: equal figures give equal bytes."""
    path = Path(path)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # laying out again would start from this layout and move it a little
    undated = {"Software": None} if path.suffix == ".png" else {"Date": None, "Creator": None}
    with mpl.rc_context({"svg.hashsalt": "kernbench", "svg.fonttype": "path"}), replacing(path) as part:
        figure.savefig(part, format=path.suffix.removeprefix("."), metadata=undated)
    return path
