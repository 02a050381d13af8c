"""Runs of one workload side by side: a table, parallel coordinates, and the comparison of two."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any

import anywidget
import ipywidgets as widgets
import traitlets

from kernbench.analysis.compare import machine_changes
from kernbench.config._overrides import value_at
from kernbench.errors import KernbenchError
from kernbench.notebook._model import Entry, Explorer
from kernbench.notebook._style import HERE, NOTHING_RAN, button, column, labelled_row, message_html, show_chart
from kernbench.sweeps._energy_area import energy_columns, machine_columns
from kernbench.sweeps._measure import row_of
from kernbench.viz._fields import fields, parameter_label
from kernbench.viz._page_charts import Axis, axis_text, parallel_coordinates

_METRICS = {
    "latency_ns": "Time [ns]", "energy_uj": "Energy [µJ]", "hbm_bytes": "HBM traffic [B]", "area_mm2": "Area [mm²]",
}  # fmt: skip

_LONGEST = 200  # characters of a name or note
_AXIS_PX = 110  # between two axes, at least


class RunsTable(anywidget.AnyWidget):
    """A table of runs, sorted and filtered by its columns, with names, notes and a selection of two runs."""

    _esm = HERE / "runs.js"
    columns: traitlets.List[Any] = traitlets.List().tag(sync=True)
    rows: traitlets.List[Any] = traitlets.List().tag(sync=True)
    a = traitlets.Int(0).tag(sync=True)
    b = traitlets.Int(0).tag(sync=True)


class RunsTab:
    def __init__(self, explorer: Explorer, on_pair: Callable[[], None]) -> None:
        self._explorer, self._on_pair = explorer, on_pair
        self._metrics: dict[int, dict[str, Any]] = {}
        self._shown: list[Entry] = []
        self._drawn: object = None
        self._followed: tuple[str, int] = ("", 0)  # the workload of the form, and the last run
        self._charted: object = None
        self._refreshing = False
        self.table = RunsTable()
        self.table.add_class("kb-history")
        self.hint = widgets.HTML(NOTHING_RAN)
        self.of = widgets.Dropdown(tooltip="whose runs are shown and compared")
        self.of.observe(self._of_chosen, "value")
        self.of_row = labelled_row("Runs of", self.of, long=True)
        self.of_row.add_class("kb-runs-of").layout.display = "none"
        self.same = widgets.HTML().add_class("kb-same")
        self.comparison = widgets.HTML().add_class("kb-comparison")
        self.coordinates = widgets.Box().add_class("kb-parallel")
        self.both = widgets.Checkbox(
            description="Show A and B in the timeline", indent=False, tooltip="B, with A to compare it with"
        ).add_class("kb-both")
        self.clear = button(
            "Clear history", "Delete all runs", "trash", lambda: self._ask(list(self._explorer.history))
        )
        self.clear.layout.align_self = "flex-start"
        self.clear.layout.display = self.both.layout.display = "none"
        self.question = widgets.HTML()
        self.confirmed = button("Delete", "Delete for good", "", self._delete, "danger")
        self.kept = button("Keep", "Delete nothing", "", lambda: self._ask([]))
        self.confirm = widgets.HBox([self.question, self.confirmed, self.kept], layout={"display": "none"})
        self.confirm.add_class("kb-confirm")
        self._asked: list[Entry] = []
        self.table.on_msg(self._received)
        self.table.observe(lambda _: self._chosen(), ["a", "b"])
        self.both.observe(lambda _: self._on_pair(), "value")
        self.root = column(
            self.hint, self.of_row, self.table, self.same, self.clear, self.confirm, self.both, self.coordinates,
            self.comparison, name="kb-tab",
        )  # fmt: skip

    @property
    def pair(self) -> tuple[Entry, Entry] | None:
        a, b = self._compared()
        return (a, b) if self.both.value and a is not None and b is not None else None

    def refresh(self) -> None:
        """Display the runs of a workload; may be called from any thread."""
        history = list(self._explorer.history)
        kept = {entry.number for entry in self._explorer.with_results()}
        self._follow(history)
        if (history, self.of.value) == self._drawn:
            return
        self._drawn = (history, self.of.value)
        before = [entry.number for entry in self._shown]
        self._shown = runs = [entry for entry in history if entry.workload.name == self.of.value]
        self.clear.layout.display = "" if history else "none"
        self._ask([])
        for entry in runs:
            if entry.number not in self._metrics:
                self._metrics[entry.number] = self._measured(entry)
        self._refreshing = True
        axes, rows = self._axes(runs), [self._row(entry) for entry in runs]
        first = (Axis("run", "Run"), Axis("latency_ns", _METRICS["latency_ns"]), Axis("label", "Name"))
        varied = (axis for axis in axes if axis.key != "latency_ns")
        axes = [*first, *varied, Axis("note", "Notes"), Axis("took_s", "Simulated in [s]")]
        with self.table.hold_sync():
            self.table.columns = [
                {
                    "key": axis.key,
                    "title": axis.title,
                    "number": all(isinstance(row.get(axis.key), int | float | None) for row in rows),
                    "edit": axis.key in ("label", "note"),
                }
                for axis in axes
            ]
            self.table.rows = [
                {
                    "run": row["run"],
                    "kept": row["run"] in kept,
                    "sort": {axis.key: row.get(axis.key) for axis in axes},
                    "text": {axis.key: axis_text(row.get(axis.key)) for axis in axes},
                }
                for row in rows
            ]
            if [entry.number for entry in runs] != before:  # not only a name or note
                self._select(sorted(kept & {entry.number for entry in runs}))
        self._refreshing = False
        self._compare()
        self.same.value = self._same(runs)
        again = "<p>Change something and run again: the runs are compared here.</p>"
        others = len(history) - len(runs)
        elsewhere = f"{others} run{'s' * (others > 1)} of other workloads"
        only = f"<p>Only runs of one workload are compared; not shown here: {elsewhere}.</p>" if others else ""
        self.hint.value = NOTHING_RAN if not runs else only + again * (len(runs) == 1)
        self.coordinates.layout.display = "none" if len(runs) < 2 else ""

    def _follow(self, history: list[Entry]) -> None:
        """Offer the workloads of the history; select that of the form where it changed, else that of a new run."""
        names = [*dict.fromkeys(entry.workload.name for entry in reversed(history))]
        form, last = self._explorer.workload.name, history[-1].number if history else 0
        before, self._followed = self._followed, (form, last)
        wanted = self.of.value
        if form != before[0] and form in names:
            wanted = form
        elif (names and last != before[1]) or wanted not in names:
            wanted = names[0] if names else None
        if (tuple(names), wanted) == (self.of.options, self.of.value):
            return
        self._refreshing = True
        with self.of.hold_sync():
            self.of.options, self.of.value = tuple(names), wanted
        self._refreshing = False
        self.of_row.layout.display = "" if len(names) > 1 else "none"

    def _select(self, kept: list[int]) -> None:
        """Select the last run as B, and the baseline or the run before as A; nothing before a run, as logs are read."""
        finished, baseline = self._explorer.state.finished, self._explorer.baseline
        last = finished.entry.number if finished is not None and finished.entry.number in kept else 0
        earlier = [0, *(number for number in kept if number != last)][-1] if last else 0
        self.table.b = last
        self.table.a = baseline.number if baseline is not None and baseline.number in kept else earlier

    def draw(self) -> None:
        seen = (self._drawn, self.table.a, self.table.b)
        if len(self._shown) < 2 or self._charted == seen:
            return
        self._charted = seen
        axes = self._axes(self._shown)
        rows = [dict.fromkeys(axis.key for axis in axes) | self._row(entry) for entry in self._shown]
        show_chart(self.coordinates, parallel_coordinates(rows, axes, self.table.a, self.table.b))
        self.coordinates.children[0].layout.min_width = f"{_AXIS_PX * len(axes)}px"

    def _axes(self, runs: list[Entry]) -> list[Axis]:
        """Columns that differ among the runs: parameters, fields of the machine, measurements; the time always."""
        found = [Axis(name, parameter_label(name)) for name, values in _values(runs).items() if len(values) > 1]
        paths = dict.fromkeys(
            change.field for entry in runs[1:] for change in machine_changes(runs[0].machine.spec, entry.machine.spec)
        )
        found += [Axis(path, _titled(path)) for path in paths]
        return found + [
            Axis(key, title) for key, title in _METRICS.items()
            if key == "latency_ns" or len({self._metrics[x.number].get(key) for x in runs}) > 1
        ]  # fmt: skip

    def _same(self, runs: list[Entry]) -> str:
        """Parameters with the same value in all runs, folded."""
        found = {name: values for name, values in _values(runs).items() if len(values) == 1}
        if len(runs) < 2 or not found:
            return ""
        said = ", ".join(f"{parameter_label(name)} = {value}" for name, values in found.items() for value in values)
        summary = f"The same in all {len(runs)} runs: {len(found)} parameter{'s' * (len(found) > 1)}"
        return f"<details><summary>{summary}</summary>{escape(said)}</details>"

    def _row(self, entry: Entry) -> dict[str, Any]:
        title = f"{entry.label}: {entry.title}" if entry.label else entry.title
        row: dict[str, Any] = {"run": entry.number, "title": title, "label": entry.label, "note": entry.note}
        row |= entry.values
        for path in fields():
            value = value_at(entry.machine.spec, path)
            row[path] = value if value is None or isinstance(value, int | float | str) else str(value)
        return row | self._metrics[entry.number] | {"latency_ns": entry.latency_ns, "took_s": round(entry.seconds, 2)}

    def _measured(self, entry: Entry) -> dict[str, Any]:
        try:
            row = entry.row or row_of(self._explorer.result_of(entry), entry.machine, None, entry.dtype)
        except (KernbenchError, ValueError):
            return {}
        row = {**row, **machine_columns(entry.machine.config)}
        row |= energy_columns(entry.machine.config, row)
        return {key: row[key] for key in _METRICS if key in row}

    def _received(self, _: RunsTable, message: dict[str, Any], _buffers: object) -> None:
        if message.get("do") == "annotate":
            known = {entry.number for entry in self._shown}  # the run may have been deleted meanwhile
            if message["run"] in known and message["key"] in ("label", "note"):
                self._explorer.annotate(message["run"], {message["key"]: str(message["value"]).strip()[:_LONGEST]})
        elif message.get("do") == "delete":
            self._ask([entry for entry in self._shown if entry.number == message["run"]])

    def _ask(self, entries: list[Entry]) -> None:
        """Ask for confirmation to delete runs; an empty list withdraws the question."""
        self._asked = entries
        self.confirm.layout.display = "" if entries else "none"
        if not entries:
            return
        what = f"run {entries[0].number}, {entries[0].title}" if len(entries) == 1 else f"all {len(entries)} runs"
        stored = sum(bool(entry.key) for entry in entries) if not self._explorer.form.page else 0
        also = " The results and logs in the cache of this computer go with it: another run is simulated again."
        self.question.value = f"Delete {escape(what)}?{also if stored else ''}"

    def _delete(self) -> None:
        if self._asked:
            self._explorer.delete(*self._asked)

    def _of_chosen(self, _: object) -> None:
        if not self._refreshing:
            self.refresh()
            self.draw()

    def _chosen(self) -> None:
        if self._refreshing:
            return
        found = [x for x in self._shown if x.number == self.table.a]
        self._explorer.baseline = found[0] if found else None
        self._compare()
        if self._charted is not None:
            self.draw()
        if self.both.value:
            self._on_pair()

    def _compared(self) -> tuple[Entry | None, Entry | None]:
        """Look up A and B; None if one is not stored, or both are the same."""
        by_number = {entry.number: entry for entry in self._explorer.with_results() if entry in self._shown}
        a, b = by_number.get(self.table.a), by_number.get(self.table.b)
        return (None, None) if a is b else (a, b)

    def _compare(self) -> None:
        a, b = self._compared()
        self.both.layout.display = "none" if a is None or b is None else ""
        if a is None or b is None:
            self.comparison.value = ""
            return
        try:
            self.comparison.value = self._explorer.compared(b, a)._repr_html_()
        except KernbenchError as error:
            self.comparison.value = message_html(str(error), wrong=True)


def _values(runs: list[Entry]) -> dict[str, set[str]]:
    names = dict.fromkeys(name for entry in runs for name in entry.values)
    return {name: {str(entry.values.get(name)) for entry in runs} for name in names}


def _titled(path: str) -> str:
    field = fields().get(path)
    if field is None:
        return path
    return f"{field.label} [{field.unit}]" if field.unit else field.label
