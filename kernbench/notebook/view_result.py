"""The result in tabs, each drawn when it is looked at."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets

from kernbench.analysis.launches import calls
from kernbench.analysis.why import Why
from kernbench.errors import KernbenchError
from kernbench.notebook.export import EXPORTS, export, png_of
from kernbench.notebook.roof import roofline_figure, utilization_line
from kernbench.notebook.style import NOTHING, button, download, row, told
from kernbench.notebook.view_history import HistoryTab
from kernbench.notebook.view_timeline import TimelineTab
from kernbench.notebook.words import why_html

if TYPE_CHECKING:
    from kernbench.notebook.frames import Film
    from kernbench.notebook.model import Explorer
    from kernbench.notebook.state import Finished

WHOLE = "the whole run"


class ResultPanel:
    """Tabs about the last run that ended well.

    Parameters
    ----------
    explorer : Explorer
    machine : Widget
        The drawing of the machine, for a tab of its own.
    """

    def __init__(self, explorer: Explorer, machine: widgets.Widget) -> None:
        self._explorer = explorer
        self._drawn: dict[str, object] = {}
        self._film: Film | None = None
        self.timeline, self.history = TimelineTab(explorer), HistoryTab(explorer)
        self.subject = widgets.HTML()
        self.subject.add_class("kb-subject")
        self.html = {name: widgets.HTML(NOTHING) for name in ("Why", "Stages", "Links", "Roofline")}
        for name, html in self.html.items():
            html.add_class(f"kb-{name.lower()}")
        self.of = widgets.Dropdown(options=[WHOLE], tooltip="what took the time: all, or one launch or collective")
        self.of.add_class("kb-of")
        self.of.observe(lambda _: self._draw(), "value")
        self.what = widgets.Dropdown(options=list(EXPORTS), tooltip="what to make a file of", layout={"width": "220px"})
        self.what.add_class("kb-what")
        self.prepare = button("Prepare", "Make the file, to be downloaded", "download", self._export)
        self.prepare.add_class("kb-prepare")
        self.file = widgets.HTML()
        self.file.add_class("kb-file")
        parts: dict[str, widgets.Widget] = {
            "Machine": machine,
            "Why": self._of_a_run(row("of", self.of), self.html["Why"]),
            "Stages": self._of_a_run(self.html["Stages"]),
            "Timeline": self._of_a_run(self.timeline.root),
            "Links": self._of_a_run(self.html["Links"]),
            "Roofline": self._of_a_run(self.html["Roofline"]),
            "Compare": self.history.root,
            "Export": self._of_a_run(row("file", self.what, self.prepare), self.file),
        }
        self._names = list(parts)
        self.root = widgets.Tab(list(parts.values()), titles=self._names, selected_index=0)
        self.root.add_class("kb-tabs")
        self.root.observe(lambda _: self._draw(), "selected_index")
        self._draw()

    def _of_a_run(self, *parts: widgets.Widget) -> widgets.VBox:
        """Return a tab about one run, which it names."""
        return widgets.VBox([self.subject, *parts])

    def refresh(self) -> None:
        """Show the state as it is; may be called from any thread."""
        finished = self._explorer.state.finished
        self.subject.value = _subject(self._explorer)
        if finished is not None and "Why" not in self._drawn:
            self.root.selected_index = self._names.index("Why")
        if finished is not None and finished.film is not self._film:
            self._film = finished.film
            self.of.options = (WHOLE, *calls(finished.film.records.launches))
            self.file.value = ""
        self.history.refresh()
        self._draw()

    def show(self, name: str) -> None:
        """Turn to a tab."""
        self.root.selected_index = self._names.index(name)

    def _draw(self) -> None:
        """Draw the tab that is looked at, unless it is drawn already."""
        name = self._names[self.root.selected_index or 0]
        finished = self._explorer.state.finished
        if finished is None:
            return
        seen = (finished.film, finished.why, self.of.value) if name == "Why" else finished.film
        draw: Callable[[Finished], str] | None = {
            "Why": self._why, "Stages": self._stages, "Links": self._links, "Roofline": self._roofline
        }.get(name)  # fmt: skip
        if self._drawn.get(name) == seen:
            return
        self._drawn[name] = seen
        if name == "Timeline":
            self.timeline.refresh()
        elif draw is not None:
            self.html[name].value = "<p>drawing ...</p>"
            try:
                self.html[name].value = draw(finished)
            except (KernbenchError, ValueError) as error:
                self.html[name].value = told(str(error), wrong=True)

    def _why(self, finished: Finished) -> str:
        why, outcome = finished.why, finished.outcome
        checked = f"{outcome.checks} result{'s' * (outcome.checks != 1)} compared with a reference: right"
        if isinstance(why, Why) and self.of.value != WHOLE:
            why = finished.result.why(self.of.value)
        if why is None:
            found = "<p>looking for the critical path ...</p>"
        else:
            found = told(why, wrong=True) if isinstance(why, str) else why_html(why)
        printed = f"<pre>{escape(outcome.printed)}</pre>" if outcome.printed else ""
        return "".join([told(checked) if outcome.checks else "", found, _shown(outcome.shown), printed])

    def _stages(self, finished: Finished) -> str:
        return finished.result._repr_html_()

    def _links(self, finished: Finished) -> str:
        from kernbench.notebook.heat import heat_svg  # matplotlib's colours, which take a while to import

        return heat_svg(finished.result.records, finished.entry.machine)

    def _roofline(self, finished: Finished) -> str:
        result, entry = finished.result, finished.entry
        png = b64encode(png_of(roofline_figure(entry, result))).decode()
        line = utilization_line(entry, result)
        return f'<p>{line}</p><img alt="roofline" style="max-width:100%" src="data:image/png;base64,{png}">'

    def _export(self) -> None:
        finished = self._explorer.state.finished
        if finished is None:
            self.file.value = told("nothing has run yet: press Run first", wrong=True)
            return
        try:
            made = export(self.what.value, finished.entry, finished.result)
        except KernbenchError as error:
            self.file.value = told(str(error), wrong=True)
            return
        text = f"<pre>{escape(made.content.decode())}</pre>" if made.name.endswith((".py", ".yaml")) else ""
        self.file.value = f"{download(*made)} ({len(made.content):,} B){text}"


def _subject(explorer: Explorer) -> str:
    """Return which run a tab shows, and whether it is not the one that the form or the status is about."""
    state = explorer.state
    if state.finished is None:
        return ""
    entry = state.finished.entry
    machine = ", ".join([entry.source, *entry.overrides])
    what = f"<b>Run {entry.number}</b>: {escape(entry.title)} on {escape(machine)}, {entry.latency_ns:,.1f} ns"
    if state.entry is not None and state.entry.number != entry.number:
        said = f"run {state.entry.number} is {state.status}: {state.entry.title}"
    elif explorer.changes:
        said = f"outdated: {'; '.join(explorer.changes)}"
    else:
        return f"<div>{what}</div>"
    return f'<div class="kb-outdated">{what}<br>{escape(said)}</div>'


def _shown(value: Any) -> str:
    """Return what a program returned, where that can be shown."""
    html = getattr(value, "_repr_html_", None)
    if callable(html):
        return str(html())
    return told(value) if isinstance(value, str) else ""
