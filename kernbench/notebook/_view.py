"""The explorer in a notebook: a thin view of `model.Explorer`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from kernbench.analysis.result import Result
from kernbench.analysis.why import Why
from kernbench.errors import KernbenchError
from kernbench.notebook._live import Frame
from kernbench.notebook._machine_panel import TopologyPicker
from kernbench.notebook._model import Entry, Explorer
from kernbench.notebook._panels import ResultTabs, RunBar, WorkloadPanel, subject_html
from kernbench.notebook._picture import Picture
from kernbench.notebook._serve import is_page, page_limits, page_quota
from kernbench.notebook._style import column, message_html, mimebundle, page
from kernbench.notebook._tornado import TornadoProgress, TornadoRuns, message
from kernbench.sim_engine._limits import NO_LIMITS, Limits
from kernbench.topology.builder import Machine
from kernbench.viz._scene import explained, scene, scene_of
from kernbench.viz.still import Still, still_svg


class _Stage:
    """The picture of the machine, with the last run on it or two compared runs, below its title.

    `answers` are the callbacks of the picture's messages, by name.
    """

    def __init__(self, explorer: Explorer, **answers: Callable[[dict[str, Any]], object]) -> None:
        self._explorer = explorer
        self._shown: object = None
        self.entry: Entry | None = None  # the run that the picture explains
        self.subject = widgets.HTML().add_class("kb-subject")
        self.picture = Picture()
        self.picture.add_class("kb-fades")
        self.picture.answer(**answers)
        self.refused = widgets.HTML().add_class("kb-wrong")
        self.root = column(self.subject, self.refused, self.picture, name="kb-stage")
        self.refresh()

    def refresh(self, pair: tuple[Entry, Entry] | None = None) -> None:
        """Show the machine of the form, the last run, or two runs; may be called from any thread."""
        explorer, finished = self._explorer, self._explorer.state.finished
        state = explorer.state
        live = state.busy and state.frame is not None
        stale = finished is not None and bool(explorer.changes) and not live
        (self.root.add_class if stale else self.root.remove_class)("kb-stale")
        self.subject.value = subject_html(explorer, pair)
        if live and state.frame is not None and state.entry is not None:
            self._show_live(state.entry.machine, state.frame)
            return
        early = finished is not None and finished.why is None  # the critical path follows
        shown = pair or ((finished.entry.number, early) if finished is not None else explorer.form.machine.hash)
        if shown == self._shown and not self.picture.live:
            return
        before, self._shown = self._shown, shown
        self.entry = pair[1] if pair is not None else finished.entry if finished is not None else None
        if pair is not None:
            before, after = (explorer.result_of(entry) for entry in pair)
            self.picture.show(scene_of(pair[1].machine, after, before=before), after.records)
        elif finished is not None:
            records, why, known = finished.result.records, finished.why, before == (finished.entry.number, True)
            run = (
                (self.picture.header, self.picture.buffers)
                if known
                else scene(finished.entry.machine, records, finished.result.name)
            )
            self.picture.show(explained(run, why, records) if isinstance(why, Why) else run, records)
        else:
            self.picture.show(scene(explorer.form.machine))

    def _show_live(self, machine: Machine, frame: Frame) -> None:
        if machine.hash != self.picture.header["machine"]["hash"]:
            self._shown = None
            self.picture.show(scene(machine))
        self.picture.show_live(frame)


class ExplorerView:
    """Shows an explorer and forwards the actions of its user; `explorer` has state and actions."""

    def __init__(self, explorer: Explorer) -> None:
        self.explorer = explorer
        self._lock = threading.RLock()  # what is refreshed may choose a run, which refreshes
        self.bar = RunBar(explorer)
        self.workload = WorkloadPanel(explorer, self._touched)
        self.machine_form = TopologyPicker(
            form=explorer.form, on_change=self._machine_changed, unfit=lambda: explorer.wrong
        )
        self._tornado: TornadoRuns | None = None
        answers = {"set": self._set, "change": self._change, "open_file": self._open}
        if not explorer.form.page:  # a page counts the runs of its visitors
            answers |= {"exact": self._exact, "what_if": self._dragged}
        self.stage = _Stage(explorer, run=lambda _: explorer.run(), **answers)
        self.tabs = ResultTabs(explorer, self.refresh)
        forms = column(self.workload.root, self.machine_form.controls, self.workload.options, name="kb-forms")
        self.root = page(self.bar.root, forms, self.stage.root, self.tabs.root)
        self.tabs.runs.refresh()
        explorer.on_change += [self.refresh, self._prepare]
        explorer.on_beat.append(self.bar.refresh)

    @property
    def machine(self) -> Machine:
        return self.explorer.form.machine

    @property
    def result(self) -> Result | None:
        """The last successful run; None before the first."""
        return self.explorer.result

    def refresh(self) -> None:
        """May be called from any thread."""
        with self._lock:
            self.bar.refresh()
            explained, pair = self.stage.entry, self.tabs.runs.pair
            self.stage.refresh(pair)
            self.tabs.refresh()  # which takes longer
            if self.tabs.runs.pair != pair:
                self.stage.refresh(self.tabs.runs.pair)
            if self._tornado is not None and self.stage.entry is not explained:
                self._tornado.stop()

    def _prepare(self) -> None:
        """Make the graph of predictions of the last run, so that the first prediction is as fast as later ones."""
        state = self.explorer.state
        if not state.busy and state.finished is not None and isinstance(state.finished.why, Why):
            with suppress(KernbenchError):
                state.finished.result.what_if([])

    def _set(self, change: dict[str, Any]) -> None:
        self.machine_form.set(change["field"], str(change["value"]))

    def _change(self, change: dict[str, Any]) -> None:
        """Set fields that a slider moves together, and run."""
        self.machine_form.change({field: str(value) for field, value in change["values"].items()})
        self.explorer.run()

    def _exact(self, asked: dict[str, Any]) -> None:
        """Simulate the bars of the tornado of the explained run, or stop that."""
        if self._tornado is not None:
            self._tornado.stop()
            self._tornado = None
        entry, picture = self.stage.entry, self.stage.picture
        if not asked["on"] or entry is None:
            return
        try:
            result = self.explorer.result_of(entry)
        except KernbenchError as error:
            picture.send({"do": "tornado", "error": str(error)})
            return

        def report(progress: TornadoProgress) -> None:
            if self.stage.entry is entry:
                picture.send(message(progress, entry.machine.spec))

        self._tornado = TornadoRuns(self.explorer, entry, result, report)

    def _dragged(self, _: dict[str, Any]) -> None:
        if self._tornado is not None:
            self._tornado.pause()

    def _open(self, file: dict[str, Any]) -> None:
        self.stage.refused.value = ""
        try:
            self.explorer.open(file["name"], file["content"])
        except KernbenchError as error:
            self.stage.refused.value = message_html(str(error), wrong=True)

    def _machine_changed(self) -> None:
        self.explorer.settle()
        self.workload.refresh()
        self._touched()

    def _touched(self) -> None:
        self.machine_form.mark()
        self.explorer.touched()
        self.refresh()

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        still = Still(still_svg(scene(self.machine)))
        return mimebundle(self.root, "The explorer: run this cell to open it") | still.bundle


def explore(
    machine: str | Path | Machine | Callable[..., object] | None = None,
    *own: Callable[..., object],
    limits: Limits = NO_LIMITS,
) -> ExplorerView:
    """Return the explorer, which shows itself in a notebook.

    Parameters
    ----------
    machine : str, Path, Machine, optional
        As for `kb.load`; may be left out.
    *own : callable
        What to offer first: programs `f(torch, *, size=64, ...)`, also those of `kb.torch.program` and
        `kb.triton.program`; kernels, which have a parameter `tl`; classes of modules, which have a method `forward`,
        built on `kernbench.tp`. The parameters are fields of the form. A kernel or module gets its tensors by their
        shapes, `64x64`: what has no default and no plain type is a tensor.
    limits : Limits, optional
        Of each run; a served page has its own as well.

    Returns
    -------
    ExplorerView

    Examples
    --------
    >>> import kernbench as kb
    >>> def double(x, y, n: int = 64, *, tl):
    ...     tl.store(y, tl.load(x, shape=(n, n), dtype="f16") * 2)
    >>> view = kb.explore("preset:small", double)
    >>> list(view.explorer.values)
    ['dtype', 'cubes', 'pes', 'x', 'y', 'n']
    """
    if callable(machine):
        own, machine = (machine, *own), None
    limits = limits.within(page_limits())
    explorer = Explorer(machine, own, limits=limits, page=is_page(), quota=page_quota())
    if "cubes" in explorer.values and not own:
        explorer.set("cubes", explorer.form.machine.config.cubes_per_sip)  # the first run shows all of them at work
    if not explorer.form.page:  # visitors of a page share its cache
        explorer.restore()
    return ExplorerView(explorer)


class LiveRun:
    """One program, watched in a cell while it runs.

    Parameters
    ----------
    program : callable
        `program(torch)`.
    machine : str, Path, Machine, optional
        As for `kb.load`.
    """

    def __init__(self, program: Callable[..., object], machine: str | Path | Machine | None = None) -> None:
        self.explorer = Explorer(machine, [program])
        self.bar, self.stage = RunBar(self.explorer), _Stage(self.explorer, run=lambda _: self.explorer.run(again=True))
        self.explorer.on_change += [self.bar.refresh, self.stage.refresh]
        self.explorer.on_beat.append(self.bar.refresh)
        self.root = page(self.bar.root, self.stage.root, name="kb-single")
        self.explorer.run(again=True)

    @property
    def result(self) -> Result | None:
        """The result of the run; None before its end."""
        return self.explorer.result

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        return mimebundle(self.root, f"a run of {self.explorer.workload.name}, watched")
