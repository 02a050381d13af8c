"""The comparison tab: two runs against each other, and the history as a table."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import ipywidgets as widgets

from kernbench.errors import KernbenchError
from kernbench.notebook.style import NOTHING, button, row, told

if TYPE_CHECKING:
    from kernbench.notebook.model import Explorer
    from kernbench.notebook.state import Entry


class HistoryTab:
    """Pins a baseline, and compares.

    Parameters
    ----------
    explorer : Explorer
    """

    def __init__(self, explorer: Explorer) -> None:
        self._explorer = explorer
        wide = {"width": "auto", "flex": "1 1 300px", "min_width": "0"}
        self.before = widgets.Dropdown(layout=wide, tooltip="the run to compare with")
        self.after = widgets.Dropdown(layout=wide, tooltip="the run that is compared")
        self.before.add_class("kb-before")
        self.after.add_class("kb-after")
        self.pin = button("Pin the last run", "Compare later runs with this one", "thumb-tack", self._pin)
        self.pin.add_class("kb-pin")
        self.comparison, self.table = widgets.HTML(), widgets.HTML(NOTHING)
        self.comparison.add_class("kb-comparison")
        self.table.add_class("kb-history")
        self._runs: list[Entry] = []
        self.before.observe(self._chosen, "value")
        self.after.observe(lambda _: self._compare(), "value")
        self.root = widgets.VBox(
            [row("A, the baseline", self.before, self.pin), row("B", self.after), self.comparison, self.table]
        )

    def refresh(self) -> None:
        """Show the history as it is; may be called from any thread."""
        explorer = self._explorer
        runs = explorer.kept()
        if runs == self._runs:
            return
        self._runs = runs
        options = [(f"#{run.number}  {run.latency_ns:,.1f} ns  {run.title}", run) for run in reversed(runs)]
        baseline = explorer.baseline
        self.before.options = [("none", None), *options]  # which chooses the first of them
        self.before.value = baseline
        self.after.options = options
        self.after.value = runs[-1]
        self._tabulate()

    def _pin(self) -> None:
        self._explorer.pin()
        self.before.value = self._explorer.baseline
        self._tabulate()

    def _chosen(self, change: dict[str, Entry | None]) -> None:
        self._explorer.pin_as(change["new"])
        self._compare()
        self._tabulate()

    def _compare(self) -> None:
        before, after = self.before.value, self.after.value
        if before is None or after is None:
            self.comparison.value = "<p>Pin a run, change something, run again: the difference stands here.</p>"
            return
        try:
            self.comparison.value = self._explorer.compared(after, before)._repr_html_()
        except KernbenchError as error:
            self.comparison.value = told(str(error), wrong=True)

    def _tabulate(self) -> None:
        rows = "".join(
            f"<tr><td>{x['run']}</td><td>{escape(x['work'])}</td><td>{escape(x['machine'])}</td>"
            f'<td style="text-align:right">{x["latency_ns"]:,.1f}</td>'
            f'<td style="text-align:right">{_ratio(x["against_baseline"])}</td>'
            f'<td style="text-align:right">{x["host_s"]:.2f}{" (cache)" * x["found"]}</td></tr>'
            for x in self._explorer.table()
        )
        head = "".join(f"<th>{x}</th>" for x in ("run", "work", "machine", "latency [ns]", "against A", "took [s]"))
        self.table.value = f'<h4>History</h4><table class="kb-table"><tr>{head}</tr>{rows}</table>' if rows else ""


def _ratio(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio - 1:+.1%}"
