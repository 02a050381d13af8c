"""The live view: run and cancel, a frame some times a second, and the replay of what was too short to watch."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets

from kernbench.analysis._roofline import macs_per_ns
from kernbench.analysis.result import calls
from kernbench.analysis.utilization import utilization
from kernbench.analysis.why import Reason, Why
from kernbench.errors import KernbenchError
from kernbench.notebook._export import EXPORTS, export, roofline_figure
from kernbench.notebook._job import snapshot_html
from kernbench.notebook._model import DONE, OPTIONS, Explorer
from kernbench.notebook._style import NOTHING, button, download, message_html, row
from kernbench.viz._html import gantt_svg

if TYPE_CHECKING:
    from kernbench.analysis.result import Result
    from kernbench.notebook._job import Replay
    from kernbench.notebook._model import Entry, Finished
    from kernbench.notebook._workloads import Parameter


STEPS = 60
_INTERVAL_MS = 50
SPEEDS = {"x 1/4": 0.25, "x 1": 1.0, "x 4": 4.0}


class RunPanel:
    """Shows the present run."""

    def __init__(self, explorer: Explorer) -> None:
        self._explorer = explorer
        self._replay: Replay | None = None
        self.run = button("Run", "", "play", lambda: explorer.run(again=explorer.current), "primary")
        self.run.add_class("kb-run")
        self.cancel = button("Cancel", "End the run that is under way", "stop", explorer.cancel)
        self.cancel.add_class("kb-cancel")
        self.auto = widgets.Checkbox(
            explorer.auto, description="run again by itself", indent=False, layout={"width": "auto"},
            tooltip="after a change, when the run is estimated to take less than a second",
        )  # fmt: skip
        self.auto.add_class("kb-auto")
        self.auto.observe(lambda change: setattr(explorer, "auto", change["new"]), "value")
        self.note = widgets.HTML()
        self.note.add_class("kb-note")
        self.snapshot = widgets.HTML()
        self.snapshot.add_class("kb-live")
        self.play = widgets.Play(max=STEPS, interval=_INTERVAL_MS, show_repeat=False, tooltip="replay the run")
        self.play.add_class("kb-play")
        self.at = widgets.IntSlider(max=STEPS, tooltip="simulated time", readout=False, layout={"flex": "1 1 200px"})
        self.at.add_class("kb-scrub")
        self.speed = widgets.Dropdown(
            options=SPEEDS, value=1.0, tooltip="speed of the replay", layout={"width": "80px"}
        )
        widgets.jslink((self.play, "value"), (self.at, "value"))
        self.at.observe(lambda _: self._show(), "value")
        self.speed.observe(lambda change: setattr(self.play, "interval", round(_INTERVAL_MS / change["new"])), "value")
        self.replay_row = row("replay", self.play, self.at, self.speed, tip="the run again, from its log")
        buttons = widgets.HBox([self.run, self.cancel, self.auto, self.note])
        self.root = widgets.VBox([buttons, self.snapshot, self.replay_row])
        self.refresh()

    def refresh(self) -> None:
        """Show the state as it is; may be called from any thread."""
        explorer, state = self._explorer, self._explorer.state
        self.run.disabled = bool(explorer.obstacle)
        self.run.description, self.run.tooltip = (
            ("Run again", "Simulate this once more, whatever is in the cache")
            if explorer.current
            else ("Run", "Simulate this workload on this machine, or show it at once if it is in the cache")
        )
        self.cancel.disabled = not state.busy
        estimate = explorer.estimate_s()
        self.note.value = (
            explorer.obstacle
            if not state.busy and explorer.obstacle
            else f"takes about {_rounded(estimate)}"
            if estimate is not None
            else ""
        )
        finished = state.finished
        if finished is not None and finished.replay is not self._replay:
            self._replay = finished.replay
            if finished.autoplays:
                self.play.value = self.at.value = 0
                self.play.playing = True
            else:
                self.play.playing = False
                self.play.value = self.at.value = STEPS
        self.replay_row.layout.display = "flex" if state.status == DONE else "none"
        self._show()

    def _show(self) -> None:
        state, status, message = self._explorer.state, self._explorer.status, self._explorer.message
        if state.status != DONE or state.finished is None:
            self.snapshot.value = snapshot_html(state.snapshot, status, message)
            return
        replay = state.finished.replay
        at = self.at.value
        snapshot = replay.snapshot(round(replay.end_ps * at / STEPS)) if at < STEPS else state.snapshot
        self.snapshot.value = snapshot_html(snapshot, status, message, replay.end_ps / 1000)


def _rounded(seconds: float) -> str:
    """Return a time as well as an estimate knows it: one digit, no unit smaller than 0.1 s."""
    if seconds < 1:
        return f"{max(0.1, seconds):.1f} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:,.0f} min" if seconds < 5400 else f"{seconds / 3600:,.0f} h"


_LOG = "tile: every piece of work; operation: every command; off: only totals"


class WorkloadPanel:
    """Chooses what runs."""

    def __init__(self, explorer: Explorer, on_change: Callable[[], None]) -> None:
        self._explorer, self._on_change = explorer, on_change
        self.workload = widgets.Dropdown(
            options=list(explorer.workloads),
            tooltip="what runs",
            value=explorer.workload.name,
            layout={"width": "auto", "flex": "1 1 0", "min_width": "0"},
        )
        self.workload.add_class("kb-work")
        self.title = widgets.HTML()
        self.fields = widgets.VBox()
        self.inputs: dict[str, widgets.Widget] = {}
        self._messages: dict[str, widgets.HTML] = {}
        self.data = widgets.Checkbox(
            explorer.options.data, description="check the numbers", indent=False, tooltip="compute values, too"
        )
        self.log = widgets.Dropdown(
            options=OPTIONS["log"], value=explorer.options.log, tooltip=_LOG, layout={"width": "110px"}
        )
        self.workload.observe(lambda change: self._choose(change["new"]), "value")
        for name, control in (("data", self.data), ("log", self.log)):
            control.add_class(f"kb-{name}")
            control.observe(lambda change, name=name: self._option(name, change["new"]), "value")
        self._show()
        self.root = widgets.VBox(
            [row("run", self.workload), self.title, self.fields, row("log", self.log, tip=_LOG), row("", self.data)]
        )

    def refresh(self) -> None:
        """Show the choices of the machine as it is now, and what is wrong on it."""
        for parameter in self._explorer.workload.parameters:
            control = self.inputs[parameter.name]
            options = parameter.options(self._explorer.form.machine)
            if options and list(control.options) != options:
                self._show()
                return
        self._mark()

    def _mark(self) -> None:
        wrong = self._explorer.wrong
        for name, message in self._messages.items():
            message.value = message_html(wrong.get(name, ""), wrong=True)

    def _choose(self, name: str) -> None:
        self._explorer.choose(name)
        self._show()
        self._on_change()

    def _option(self, name: str, value: Any) -> None:
        self._explorer.set_option(name, value)
        self._on_change()

    def _show(self) -> None:
        workload = self._explorer.workload
        self.title.value = f'<div class="kb-title">{escape(workload.title)}</div>'
        self.inputs, rows = {}, []
        self._messages = {"": widgets.HTML()}
        for parameter in workload.parameters:
            control, message = self._control(parameter), widgets.HTML()
            message.add_class("kb-wrong")
            self.inputs[parameter.name], self._messages[parameter.name] = control, message
            rows += [row(parameter.name, control, tip=parameter.description), message]
        self.fields.children = [*rows, self._messages[""]]
        self._mark()

    def _control(self, parameter: Parameter) -> widgets.Widget:
        value, options = self._explorer.values[parameter.name], parameter.options(self._explorer.form.machine)
        control: Any
        if parameter.kind is bool:
            control = widgets.Checkbox(value, indent=False, layout={"width": "140px"})
        elif options:
            if str(value) not in options:
                value = options[0]
                self._explorer.set(parameter.name, value)
            control = widgets.Dropdown(
                options=options, value=str(value), layout={"width": "auto", "flex": "1 1 0", "min_width": "0"}
            )
        else:
            control = widgets.Text(value=str(value), continuous_update=False, layout={"width": "140px"})
        control.tooltip = parameter.description
        control.add_class(f"kb-param-{parameter.name}")
        control.observe(lambda change: self._set(parameter.name, change["new"]), "value")
        return control

    def _set(self, name: str, given: object) -> None:
        self._explorer.set(name, given)
        self._mark()
        self._on_change()


_LINKS = 4
_STEPS = 1000


class TimelineTab:
    """Chooses a PE and a window."""

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


class HistoryTab:
    """Pins a baseline, and compares."""

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
        runs = explorer.with_results()
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
            self.comparison.value = "<p>Pin a run, change something, run again: the difference is shown here.</p>"
            return
        try:
            self.comparison.value = self._explorer.compared(after, before)._repr_html_()
        except KernbenchError as error:
            self.comparison.value = message_html(str(error), wrong=True)

    def _tabulate(self) -> None:
        rows = "".join(
            f"<tr><td>{x['run']}</td><td>{escape(x['workload'])}</td><td>{escape(x['machine'])}</td>"
            f'<td style="text-align:right">{x["latency_ns"]:,.1f}</td>'
            f'<td style="text-align:right">{_ratio(x["against_baseline"])}</td>'
            f'<td style="text-align:right">{x["host_s"]:.2f}{" (cache)" * x["found"]}</td></tr>'
            for x in self._explorer.table()
        )
        head = "".join(f"<th>{x}</th>" for x in ("run", "workload", "machine", "latency [ns]", "against A", "took [s]"))
        self.table.value = f'<h4>History</h4><table class="kb-table"><tr>{head}</tr>{rows}</table>' if rows else ""


def _ratio(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio - 1:+.1%}"


WHOLE = "the whole run"


class ResultPanel:
    """Tabs about the last run that ended well."""

    def __init__(self, explorer: Explorer, machine: widgets.Widget) -> None:
        self._explorer = explorer
        self._drawn: dict[str, object] = {}
        self._replay: Replay | None = None
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
        if finished is not None and finished.replay is not self._replay:
            self._replay = finished.replay
            self.of.options = (WHOLE, *calls(finished.replay.records.launches))
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
        seen = (finished.replay, finished.why, self.of.value) if name == "Why" else finished.replay
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
                self.html[name].value = message_html(str(error), wrong=True)

    def _why(self, finished: Finished) -> str:
        why, outcome = finished.why, finished.outcome
        checked = f"{outcome.checks} result{'s' * (outcome.checks != 1)} compared with a reference: right"
        if isinstance(why, Why) and self.of.value != WHOLE:
            why = finished.result.why(self.of.value)
        if why is None:
            found = "<p>looking for the critical path ...</p>"
        else:
            found = message_html(why, wrong=True) if isinstance(why, str) else why_html(why)
        printed = f"<pre>{escape(outcome.printed)}</pre>" if outcome.printed else ""
        return "".join([message_html(checked) if outcome.checks else "", found, _shown(outcome.shown), printed])

    def _stages(self, finished: Finished) -> str:
        return finished.result._repr_html_()

    def _links(self, finished: Finished) -> str:
        from kernbench.viz.heatmap import heat_svg  # matplotlib, which takes a while to import

        return heat_svg(finished.result.records, finished.entry.machine)

    def _roofline(self, finished: Finished) -> str:
        result, entry = finished.result, finished.entry
        png = b64encode(roofline_figure(entry, result).png()).decode()
        line = utilization_line(entry, result)
        return f'<p>{line}</p><img alt="roofline" style="max-width:100%" src="data:image/png;base64,{png}">'

    def _export(self) -> None:
        finished = self._explorer.state.finished
        if finished is None:
            self.file.value = message_html("nothing has run yet: press Run first", wrong=True)
            return
        try:
            made = export(self.what.value, finished.entry, finished.result)
        except KernbenchError as error:
            self.file.value = message_html(str(error), wrong=True)
            return
        text = f"<pre>{escape(made.content.decode())}</pre>" if made.name.endswith((".py", ".yaml")) else ""
        self.file.value = f"{download(*made)} ({len(made.content):,} B){text}"


def utilization_line(entry: Entry, result: Result) -> str:
    """Return in a line how much of the matrix engines' rate did useful work."""
    used = utilization(result.records, macs_per_ns(entry.machine.config, entry.dtype))
    if not used.useful_macs:
        return "The matrix engines did nothing."
    return (
        f"The matrix engines did useful work for {used.useful:.1%} of their rate, {used.issued:.1%} with padding, "
        f"over the {used.window_ps / 1000:,.1f} ns in which the PEs worked."
    )


_REASONS = 4
_VERBS = {
    "memory": "reading and writing", "serialization": "bytes over bandwidth", "queueing": "waiting for others",
    "slot": "slots of queues", "wire": "the length of the wire",
    "nodes": "passing through", "matrix": "products", "vector": "vector work",
}  # fmt: skip


def sentence(reason: Reason) -> str:
    """Return one reason as a sentence or two."""
    others = f" and {reason.others} more" if reason.others else ""
    spent = ", ".join(_VERBS.get(kind, kind) for kind in reason.kind.split(", "))
    advice = reason.advice()
    todo = f" To shorten it, {advice}." if advice else ""
    return (
        f"{reason.share:.0%} of the time, {reason.ns:,.1f} ns: {reason.what} {reason.resource}{others} ({spent}).{todo}"
    )


def why_html(why: Why) -> str:
    """Return the first reasons in words; then all of them as a table, with the limits that steps waited for below."""
    items = "".join(f"<li>{escape(sentence(reason))}</li>" for reason in why.reasons[:_REASONS])
    return f'<ol class="kb-reasons">{items}</ol>{why._repr_html_()}'


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
    return message_html(value) if isinstance(value, str) else ""
