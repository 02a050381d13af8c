"""The timeline tab: the engines of one PE and the busiest links, over a window that is chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import ipywidgets as widgets

from kernbench.notebook.gantt import gantt_svg
from kernbench.notebook.style import NOTHING, button, row

if TYPE_CHECKING:
    from kernbench.notebook.model import Explorer

_LINKS = 4
_STEPS = 1000


class TimelineTab:
    """Chooses a PE and a window.

    Parameters
    ----------
    explorer : Explorer
    """

    def __init__(self, explorer: Explorer) -> None:
        self._explorer = explorer
        self.pe = widgets.Dropdown(tooltip="whose engines are shown", layout={"width": "200px"})
        self.pe.add_class("kb-pe")
        self.window = widgets.IntRangeSlider(
            value=(0, _STEPS),
            max=_STEPS,
            tooltip="part of the run that is shown",
            readout=False,
            continuous_update=False,
            layout={"flex": "1 1 200px"},
        )
        self.window.add_class("kb-window")
        zoom = button("Zoom in", "The middle half of the window", "search-plus", lambda: self._zoom(0.5))
        out = button("Zoom out", "Twice the window", "search-minus", lambda: self._zoom(2.0))
        self.picture = widgets.HTML(NOTHING)
        self.picture.add_class("kb-timeline")
        self.pe.observe(lambda _: self._draw(), "value")
        self.window.observe(lambda _: self._draw(), "value")
        self.root = widgets.VBox([row("PE", self.pe, zoom, out), row("window", self.window), self.picture])

    def refresh(self) -> None:
        """Show the last run."""
        result = self._explorer.result
        if result is None:
            return
        names = {"sip{}.cube{}.pe{}".format(*pe): pe for pe in result.records.pes()}
        if tuple(names.items()) != tuple(self.pe.options):
            self.pe.options = tuple(names.items())
            self.pe.index = 0 if names else None
        self.window.value = (0, _STEPS)
        self._draw()

    def _zoom(self, factor: float) -> None:
        low, high = self.window.value
        middle, half = (low + high) / 2, max(1.0, (high - low) * factor / 2)
        self.window.value = (max(0, round(middle - half)), min(_STEPS, round(middle + half)))

    def _draw(self) -> None:
        result = self._explorer.result
        if result is None or self.pe.value is None:
            self.picture.value = NOTHING if result is None else "<p>No PE did any work that was logged.</p>"
            return
        low, high = (round(x * result.records.makespan_ps / _STEPS) for x in self.window.value)
        links = tuple(link.name for link in result.busiest_links(_LINKS))
        self.picture.value = gantt_svg(result.records, self.pe.value, (low, max(high, low + 1)), links)
