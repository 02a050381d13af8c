"""Parts of the explorer: the choice of a workload, the bar with its state, and tabs about the last run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from html import escape
from itertools import groupby
from operator import attrgetter
from typing import Any

import ipywidgets as widgets

from kernbench.analysis._launches import calls
from kernbench.analysis._resources import Reason
from kernbench.analysis._roofline import macs_per_ns, placed
from kernbench.analysis.result import Result
from kernbench.analysis.utilization import utilization
from kernbench.analysis.why import Why
from kernbench.benches._parameters import ProgramParameter
from kernbench.errors import KernbenchError, StateError
from kernbench.notebook._export import EXPORTS, export
from kernbench.notebook._model import DONE, FAILED, IDLE, OUTDATED, RUNNING, Entry, Explorer, Finished
from kernbench.notebook._runs import RunsTab
from kernbench.notebook._style import (
    NOTHING_RAN,
    Input,
    button,
    column,
    download,
    label_of,
    labelled_row,
    message_html,
    show_chart,
)  # fmt: skip
from kernbench.viz._fields import Field, parameter_label
from kernbench.viz._page_charts import roofline_chart


class RunBar:
    """Starts and ends runs, and displays the progress of the present one."""

    def __init__(self, explorer: Explorer) -> None:
        self._explorer = explorer
        self._lock = threading.Lock()  # else a beat could overwrite the final state
        self.run = button("Run", "", "play", lambda: explorer.run(again=explorer.current), "primary")
        self.run.add_class("kb-run")
        self.cancel = button("Cancel", "End the run that is under way", "stop", explorer.cancel).add_class("kb-cancel")
        self.state = widgets.HTML().add_class("kb-state")
        self.note = widgets.HTML().add_class("kb-note")
        self.auto = widgets.Checkbox(
            explorer.auto, description="Run after each change", indent=False, layout={"width": "auto"},
            tooltip="if the last run of this workload took less than a second",
        )  # fmt: skip
        self.auto.add_class("kb-auto")
        self.auto.observe(lambda change: setattr(explorer, "auto", change["new"]), "value")
        self.root = widgets.HBox([self.run, self.cancel, self.state, self.note, self.auto]).add_class("kb-bar")
        self.refresh()

    def refresh(self) -> None:
        """Display the current state; may be called from any thread."""
        with self._lock:
            self._refresh()

    def _refresh(self) -> None:
        explorer = self._explorer
        self.run.disabled = bool(explorer.obstacle)
        self.run.description, self.run.tooltip = (
            ("Run again", "Simulate this once more, whatever is in the cache")
            if explorer.current
            else ("Run", "Simulate this workload on this machine, or show it at once if it is in the cache")
        )
        self.cancel.disabled = not explorer.state.busy or explorer.state.ending
        self.note.value = "" if explorer.state.busy else explorer.obstacle
        self.state.value = state_html(explorer)


_DRAWING = "<p>drawing ...</p>"
_WORDS = {IDLE: "ready", OUTDATED: "outdated"}


def state_html(explorer: Explorer) -> str:
    state, status = explorer.state, explorer.status
    facts, frame = [], state.frame
    if status == IDLE:
        machine = explorer.form.machine.config
        facts.append(f"{explorer.workload.name} on {machine.n_pes:,} PEs")
    elif status == RUNNING:
        facts += [explorer.phase, f"{explorer.seconds:.1f} s"]
        if frame is not None:
            facts.append(f"{frame.events:,} events, {frame.events_per_s:,.0f}/s")
    elif status == DONE and state.finished is not None:
        outcome = state.finished.outcome
        facts += [] if outcome.made else [f"simulated in {outcome.seconds:.1f} s"]
        facts += [] if state.finished.why is not None else ["looking for the critical path"]
    now_ns = explorer.now_ns
    now = f'<b class="kb-now">{now_ns:,.1f} ns</b>' if now_ns is not None else ""
    said = in_words(explorer.changes) if status == OUTDATED else state.message
    role = "alert" if status == FAILED else "status"
    parts = [
        f'<span class="kb-pill kb-{status}"><b>{escape(_WORDS.get(status, status))}</b></span>',
        now,
        f'<span class="kb-facts">{escape(" · ".join(facts))}</span>' if facts else "",
        f'<span class="kb-message" title="{escape(said)}">{escape(said)}</span>' if said else "",
    ]
    return f'<div class="kb-status" role="{role}">{" &nbsp;".join(x for x in parts if x)}</div>'


def in_words(changes: list[str]) -> str:
    """Replace names by labels in changes, each "name was x, is y"."""
    parts = (change.partition(" was ") for change in changes)
    return "; ".join(f"{label_of(name)}{was}{rest}" if was else name for name, was, rest in parts)


WHOLE = "the whole run"
_LOG = {"Every tile": "tile", "Every operation": "operation", "Totals only": "off"}


class WorkloadPanel:
    def __init__(self, explorer: Explorer, on_change: Callable[[], None]) -> None:
        self._explorer, self._on_change = explorer, on_change
        self.workload = widgets.Dropdown(
            options=list(explorer.workloads), tooltip="what runs", value=explorer.workload.name
        ).add_class("kb-work")
        kinds = groupby(explorer.workloads.values(), attrgetter("kind"))
        groups = ",".join(f"{len([*found])}:{kind.replace(' ', '_')}" for kind, found in kinds)
        self.workload.add_class(f"kb-groups-{groups}")  # frame.js
        self.title = widgets.HTML().add_class("kb-title")
        self.fields = widgets.VBox().add_class("kb-fields")
        self.inputs: dict[str, Input] = {}
        self.message = widgets.HTML().add_class("kb-wrong")
        self.log = widgets.Dropdown(options=_LOG, value=explorer.options.log, tooltip="how much of the run is recorded")
        self.data = widgets.Checkbox(
            explorer.options.data, description="Compute and check values", indent=False,
            tooltip="values are computed and compared with a reference; times do not depend on them",
        )  # fmt: skip
        self.workload.observe(lambda change: self._choose(change["new"]), "value")
        for name, control in (("data", self.data), ("log", self.log)):
            control.add_class(f"kb-{name}")
            control.observe(lambda change, name=name: self._option(name, change["new"]), "value")
        self._show()
        self.root = column(
            labelled_row("Run", self.workload, long=True), self.title, self.fields, self.message, name="kb-panel",
            title="Workload",
        )  # fmt: skip
        self.options = column(labelled_row("Record", self.log, long=True), self.data, name="kb-panel", title="Options")

    def refresh(self) -> None:
        for parameter in self._explorer.workload.parameters:
            options = parameter.options(self._explorer.form.machine)
            control, value = self.inputs[parameter.name].control, self._explorer.values[parameter.name]
            settled = parameter.name not in self._explorer.wrong and str(control.value) != str(value)
            if settled or (options and list(control.options) != options):
                self._show()
                return
        self._mark()

    def _mark(self) -> None:
        wrong = self._explorer.wrong
        for name, field in self.inputs.items():
            field.refuse(wrong.get(name, ""))
        elsewhere = [text for name, text in wrong.items() if name not in self.inputs]
        self.message.value = message_html("\n".join(elsewhere), wrong=True)

    def _choose(self, name: str) -> None:
        self._explorer.choose(name)
        self._show()
        self._on_change()

    def _option(self, name: str, value: Any) -> None:
        self._explorer.set_option(name, value)
        self._on_change()

    def _show(self) -> None:
        workload = self._explorer.workload
        self.title.value = escape(workload.title)
        self.inputs = {parameter.name: self._input(parameter) for parameter in workload.parameters}
        self.fields.children = [x.root for x in self.inputs.values()]
        self._mark()

    def _input(self, parameter: ProgramParameter) -> Input:
        name, options = parameter.name, parameter.options(self._explorer.form.machine)
        value = self._explorer.values[name]
        if options and str(value) not in options:
            value = options[0]
            self._explorer.set(name, value)
        number = Field(name, "", "", "", low=1, whole=True)
        made = Input(
            parameter_label(name),
            value if isinstance(value, bool) else "" if value is None else str(value),
            lambda given: self._set(name, given),
            tip=f"{name}: {parameter.description}" if parameter.description else name,
            choices=options,
            stops=number.stops(parameter.default) if type(parameter.default) is int and not options else (),
        )
        made.control.add_class(f"kb-param-{name}")
        return made

    def _set(self, name: str, given: object) -> None:
        self._explorer.set(name, given)
        self._mark()
        self._on_change()


class ResultTabs:
    """Tabs: the runs side by side, then details of the last run that succeeded."""

    def __init__(self, explorer: Explorer, on_pair: Callable[[], None]) -> None:
        self._explorer = explorer
        self.runs = RunsTab(explorer, on_pair)
        self._drawn: dict[str, object] = {}
        self.subject = widgets.HTML().add_class("kb-subject")
        self._number = 0
        self.of = widgets.Dropdown(options=[WHOLE], tooltip="what took the time: all, or one launch or collective")
        self.of.observe(lambda _: self._draw(), "value")
        self._draw_by: dict[str, Callable[[Finished], str]] = {"Why": self._why, "Stages": _stages, "Output": _output}
        self.html = {name: widgets.HTML(NOTHING_RAN) for name in self._draw_by}
        for name, html in self.html.items():
            html.add_class(f"kb-{name.lower()}")
        self.what = widgets.Dropdown(options=list(EXPORTS), tooltip="what to make a file of")
        self.what.observe(lambda _: self._forget(), "value")
        self.prepare = button("Prepare", "Make the file, to be downloaded", "download", self._export)
        self.prepare.add_class("kb-prepare")
        self.file = widgets.HTML().add_class("kb-file")
        export_row = labelled_row("File", self.what, self.prepare, long=True)
        self.roofline, self.roofline_note = widgets.Box(), widgets.HTML(NOTHING_RAN)
        parts: dict[str, widgets.Widget] = {"Runs": self.runs.root}
        parts |= {name: self._of_a_run(html) for name, html in self.html.items()}
        parts["Why"] = self._of_a_run(labelled_row("Of", self.of, long=True), self.html["Why"])
        parts["Roofline"] = self._of_a_run(self.roofline_note, self.roofline)
        parts["Export"] = self._of_a_run(export_row, self.file)
        self._names = list(parts)
        self.root = widgets.Tab(list(parts.values()), titles=self._names, selected_index=0)
        self.root.add_class("kb-tabs")
        self.root.observe(lambda _: self._draw(), "selected_index")

    def _of_a_run(self, *parts: widgets.Widget) -> widgets.VBox:
        return column(self.subject, *parts, name="kb-tab")

    def refresh(self) -> None:
        """Display the current state, a new run once its critical path is known; may be called from any thread."""
        finished = self._explorer.state.finished
        if finished is not None and finished.why is None:
            return
        self.subject.value = subject_html(self._explorer)
        if finished is not None and finished.entry.number != self._number:
            self._number = finished.entry.number
            self.of.options = (WHOLE, *calls(finished.result.records.launches))
            self._drawn.clear()
            for html in (*self.html.values(), self.roofline_note):
                html.value = _DRAWING  # not the previous run's, under the name of this one
            self._forget()
        self.runs.refresh()
        if not self._explorer.state.busy:
            self._draw()

    @property
    def shown(self) -> str:
        return self._names[self.root.selected_index or 0]

    def show(self, name: str) -> None:
        self.root.selected_index = self._names.index(name)

    def _draw(self) -> None:
        name, finished = self.shown, self._explorer.state.finished
        if name == "Runs":
            self.runs.draw()
        if finished is None:
            return
        seen = (self._number, finished.why, self.of.value) if name == "Why" else self._number
        if self._drawn.get(name) == seen:
            return
        self._drawn[name] = seen
        if name == "Roofline":
            self._draw_roofline(finished)
        elif name in self.html:
            self.html[name].value = _DRAWING
            try:
                self.html[name].value = self._draw_by[name](finished)
            except (KernbenchError, ValueError) as error:
                self.html[name].value = message_html(str(error), wrong=True)

    def _why(self, finished: Finished) -> str:
        why = finished.why
        if isinstance(why, Why) and self.of.value != WHOLE:
            why = finished.result.why(self.of.value)
        if why is None:
            return "<p>looking for the critical path ...</p>"
        return message_html(why, wrong=True) if isinstance(why, str) else _why_html(why)

    def _draw_roofline(self, finished: Finished) -> None:
        entry, result = finished.entry, finished.result
        self.roofline_note.value = escape(utilization_line(entry, result))
        try:
            at, roofs = placed(result.records, f"run {entry.number}")
        except StateError:
            self.roofline.children = []
            return
        pes = len(result.records.pes())
        show_chart(self.roofline, roofline_chart(at, roofs, f"Roofline of {pes} PE{'s' * (pes > 1)}"))

    def _forget(self) -> None:
        """Remove the offered file, because the run or the kind of file has changed."""
        self.file.value = ""

    def _export(self) -> None:
        finished = self._explorer.state.finished
        if finished is None:
            self.file.value = message_html("nothing has run yet: press Run first", wrong=True)
            return
        self.file.value = message_html("preparing ...")
        self.prepare.disabled = True
        try:
            made = export(self.what.value, finished.entry, finished.result)
        except KernbenchError as error:
            self.file.value = message_html(str(error), wrong=True)
            return
        finally:
            self.prepare.disabled = False
        text = f"<pre>{escape(made.content.decode())}</pre>" if made.name.endswith((".py", ".yaml")) else ""
        self.file.value = f"{download(*made)} ({len(made.content):,} B){text}"


def _stages(finished: Finished) -> str:
    return finished.result._repr_html_()


def _output(finished: Finished) -> str:
    outcome = finished.outcome
    checked = f"{outcome.checks} result{'s' * (outcome.checks != 1)} compared with a reference: right"
    printed = f"<pre>{escape(outcome.printed)}</pre>" if outcome.printed else ""
    parts = [message_html(checked) if outcome.checks else "", _shown(outcome.shown), printed]
    return "".join(parts) or "<p>The program returned and printed nothing.</p>"


def utilization_line(entry: Entry, result: Result) -> str:
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
    others = f" and {reason.others} more" if reason.others else ""
    spent = ", ".join(_VERBS.get(kind, kind) for kind in reason.kind.split(", "))
    advice = reason.advice()
    todo = f" To shorten it, {advice}." if advice else ""
    return (
        f"{reason.share:.0%} of the time, {reason.ns:,.1f} ns: {reason.what} {reason.resource}{others} ({spent}).{todo}"
    )


def _why_html(why: Why) -> str:
    """First reasons as sentences; then all of them as a table, followed by the limits that steps waited for."""
    items = "".join(f"<li>{escape(sentence(reason))}</li>" for reason in why.reasons[:_REASONS])
    return f'<ol class="kb-reasons">{items}</ol>{why._repr_html_()}'


def subject_html(explorer: Explorer, pair: tuple[Entry, Entry] | None = None) -> str:
    """Names of the run or runs displayed, and a note if the form or the status is about another one."""
    state = explorer.state
    if state.finished is None:
        return "Nothing has run yet."
    if pair is not None:
        return f"{_named(pair[1])}<br>compared with {_named(pair[0])}"
    entry = state.finished.entry
    if state.entry is not None and state.entry.number != entry.number:
        said = f"run {state.entry.number} is {state.status}: {state.entry.title}"
    elif explorer.changes:
        said = f"of the former settings: {in_words(explorer.changes)}"
    else:
        return _named(entry)
    return f'{_named(entry)} <span class="kb-former">{escape(said)}</span>'


def _named(entry: Entry) -> str:
    machine = ", ".join([entry.source, *entry.overrides])
    return f"<b>Run {entry.number}</b> {escape(entry.title)} on {escape(machine)}: <b>{entry.latency_ns:,.1f} ns</b>"


def _shown(value: Any) -> str:
    html = getattr(value, "_repr_html_", None)
    if callable(html):
        return str(html())
    return message_html(value) if isinstance(value, str) else ""
