"""The result: why, stages, timeline, links, roofline, comparison, history, export; each drawn when looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING

import ipywidgets as widgets

from kernbench.notebook.model import Explorer
from kernbench.notebook.style import told

if TYPE_CHECKING:
    pass


class ResultPanel:
    """Tabs about the last run.

    Parameters
    ----------
    explorer : Explorer
    """

    def __init__(self, explorer: Explorer) -> None:
        self._explorer = explorer
        self.why, self.stages = widgets.HTML(), widgets.HTML()
        self.tabs = widgets.Tab([self.why, self.stages], titles=["Why", "Stages"])
        self.tabs.add_class("kb-tabs")
        self.why.add_class("kb-why")
        self.tabs.observe(lambda _: self.refresh(), "selected_index")
        self.root = self.tabs
        self.refresh()

    def refresh(self) -> None:
        state = self._explorer.state
        if state.why is not None:
            self.why.value = told(state.why, wrong=True) if isinstance(state.why, str) else state.why._repr_html_()
        if self._explorer.result:
            self.stages.value = self._explorer.result._repr_html_()
