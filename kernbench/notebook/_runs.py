"""Runs side by side: a table, parallel coordinates, and the comparison of two."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING, Any

import anywidget
import ipywidgets as widgets
import traitlets

from kernbench.analysis.compare import machine_changes
from kernbench.errors import KernbenchError
from kernbench.notebook._machine_form import value_at
from kernbench.notebook._style import HERE, NOTHING_RAN, button, column, message_html, show_chart
from kernbench.sweeps._energy_area import energy_columns, machine_columns
from kernbench.sweeps._measure import row_of
from kernbench.viz._fields import fields, parameter_label
from kernbench.viz._page_charts import Axis, axis_text, parallel_coordinates

if TYPE_CHECKING:
    from kernbench.notebook._model import Entry, Explorer

_METRICS = {
    "latency_ns": "Time [ns]", "energy_uj": "Energy [µJ]", "hbm_bytes": "HBM traffic [B]", "area_mm2": "Area [mm²]",
}  # fmt: skip


class RunsTable(anywidget.AnyWidget):
    """A table of runs, sorted by its columns, with a selection of two runs."""

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
        self._charted: object = None
        self._refreshing = False
        self.table = RunsTable()
        self.table.add_class("kb-history")
        self.hint = widgets.HTML(NOTHING_RAN)
        self.comparison = widgets.HTML().add_class("kb-comparison")
        self.coordinates = widgets.Box().add_class("kb-parallel")
        self.both = widgets.Checkbox(
            description="Show A and B in the timeline", indent=False, tooltip="B, with A to compare it with"
        ).add_class("kb-both")
        self.clear = button("Clear history", "Delete all runs", "trash", lambda: self._ask(list(self._shown)))
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
            self.hint, self.table, self.clear, self.confirm, self.both, self.coordinates, self.comparison, name="kb-tab"
        )

    @property
    def pair(self) -> tuple[Entry, Entry] | None:
        a, b = self._compared()
        return (a, b) if self.both.value and a is not None and b is not None else None

    def refresh(self) -> None:
        """Display the current history; may be called from any thread."""
        runs = list(self._explorer.history)
        kept = {entry.number for entry in self._explorer.with_results()}
        if runs == self._shown:
            return
        self._shown = runs
        self.clear.layout.display = "" if runs else "none"
        self._ask([])
        for entry in runs:
            if entry.number not in self._metrics:
                self._metrics[entry.number] = self._measured(entry)
        self._refreshing = True
        axes, rows = self._axes(runs), [self._row(entry) for entry in runs]
        with self.table.hold_sync():
            self.table.columns = [
                {
                    "key": axis.key,
                    "title": axis.title,
                    "number": all(isinstance(row.get(axis.key), int | float | None) for row in rows),
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
            finished, baseline = self._explorer.state.finished, self._explorer.baseline
            last = finished.entry.number if finished is not None else 0  # the compared log is read, so not before
            earlier = [number for number in sorted(kept) if number != last]
            self.table.b = last
            self.table.a = baseline.number if baseline else (earlier or [0])[-1] if last else 0
        self._refreshing = False
        self._compare()
        again = "<p>Change something and run again: the runs are compared here.</p>"
        self.hint.value = NOTHING_RAN if not runs else again if len(runs) == 1 else ""

    def draw(self) -> None:
        seen = (len(self._shown), self.table.a, self.table.b)
        if len(self._shown) < 2 or self._charted == seen:
            return
        self._charted = seen
        axes = [axis for axis in self._axes(self._shown) if axis.key not in ("run", "took_s")]
        rows = [dict.fromkeys(axis.key for axis in axes) | self._row(entry) for entry in self._shown]
        show_chart(self.coordinates, parallel_coordinates(rows, axes, self.table.a, self.table.b))

    def _axes(self, runs: list[Entry]) -> list[Axis]:
        found = [Axis("run", "Run")]
        if len({entry.workload.name for entry in runs}) > 1:
            found.append(Axis("workload", "Workload"))
        names = dict.fromkeys(name for entry in runs for name in entry.values)
        found += [
            Axis(name, parameter_label(name)) for name in names if len({str(x.values.get(name)) for x in runs}) > 1
        ]
        paths = dict.fromkeys(
            change.field for entry in runs[1:] for change in machine_changes(runs[0].machine.spec, entry.machine.spec)
        )
        found += [Axis(path, _titled(path)) for path in paths]
        found += [
            Axis(key, title) for key, title in _METRICS.items()
            if key == "latency_ns" or len({self._metrics[x.number].get(key) for x in runs}) > 1
        ]  # fmt: skip
        return [*found, Axis("took_s", "Simulated in [s]")]

    def _row(self, entry: Entry) -> dict[str, Any]:
        row: dict[str, Any] = {"run": entry.number, "title": entry.title, "workload": entry.workload.name}
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
        if message.get("do") == "delete":
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
        by_number = {entry.number: entry for entry in self._explorer.with_results()}
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


def _titled(path: str) -> str:
    field = fields().get(path)
    if field is None:
        return path
    return f"{field.label} [{field.unit}]" if field.unit else field.label
