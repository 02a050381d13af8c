"""The explorer in a notebook: a thin view of `model.Explorer`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets

from kernbench.errors import KernbenchError
from kernbench.notebook._model import Explorer
from kernbench.notebook._panels import ResultTabs, RunBar, WorkloadPanel, subject_html
from kernbench.notebook._picker import TopologyPicker
from kernbench.notebook._picture import Picture
from kernbench.notebook._serve import is_page, page_limits, page_quota
from kernbench.notebook._style import column, message_html, mimebundle, page
from kernbench.sim_engine._limits import NONE, Limits
from kernbench.topology.builder import Machine
from kernbench.viz._scene import scene, scene_of
from kernbench.viz._still import still_svg

if TYPE_CHECKING:
    from kernbench.analysis.result import Result
    from kernbench.notebook._model import Entry


class Stage:
    """The picture of the machine, with the last run on it or two runs compared, below the name of what it shows.

    Parameters
    ----------
    explorer : Explorer
    **answers : callable
        What answers the messages of the picture, by name.
    """

    def __init__(self, explorer: Explorer, **answers: Callable[[dict[str, Any]], object]) -> None:
        self._explorer = explorer
        self._shown: object = None
        self.subject = widgets.HTML()
        self.subject.add_class("kb-subject")
        self.picture = Picture()
        self.picture.add_class("kb-fades")
        self.picture.answer(**answers)
        self.refused = widgets.HTML()
        self.root = column(self.subject, self.refused, self.picture, name="kb-stage")
        self.refresh()

    def refresh(self, pair: tuple[Entry, Entry] | None = None) -> None:
        """Show the machine of the form, the last run, or two runs; may be called from any thread."""
        explorer, finished = self._explorer, self._explorer.state.finished
        stale = finished is not None and bool(explorer.changes)
        (self.root.add_class if stale else self.root.remove_class)("kb-stale")
        self.subject.value = subject_html(explorer, pair)
        if finished is not None and finished.why is None:
            return  # its critical path, which the picture shows, comes in a moment
        shown = pair or (finished.replay if finished is not None else explorer.form.machine.hash)
        if shown == self._shown:
            return
        self._shown = shown
        if pair is not None:
            before, after = (explorer.result_of(entry) for entry in pair)
            self.picture.show(scene_of(pair[1].machine, after, before=before), after.records)
        elif finished is not None:
            self.picture.show(scene_of(finished.entry.machine, finished.result), finished.result.records)
        else:
            self.picture.show(scene(explorer.form.machine))


class ExplorerView:
    """Shows an explorer, and tells it what its user does.

    Parameters
    ----------
    explorer : Explorer

    Attributes
    ----------
    explorer : Explorer
        State and actions.
    """

    def __init__(self, explorer: Explorer) -> None:
        self.explorer = explorer
        self._lock = threading.RLock()  # what is refreshed may choose a run, which refreshes
        self.bar = RunBar(explorer)
        self.workload = WorkloadPanel(explorer, self._touched)
        self.machine_form = TopologyPicker(form=explorer.form, on_change=self._machine_changed)
        self.stage = Stage(explorer, run=lambda _: explorer.run(), set=self._set, open_file=self._open)
        self.tabs = ResultTabs(explorer, self.refresh)
        forms = column(self.workload.root, self.machine_form.controls, self.workload.options, name="kb-forms")
        self.root = page(self.bar.root, forms, self.stage.root, self.tabs.root)
        explorer.on_change.append(self.refresh)

    @property
    def machine(self) -> Machine:
        """The machine as it is shown."""
        return self.explorer.form.machine

    @property
    def result(self) -> Result | None:
        """The last run that ended well; None before the first."""
        return self.explorer.result

    def refresh(self) -> None:
        """Show the state as it is; may be called from any thread."""
        with self._lock:
            self.bar.refresh()
            self.tabs.refresh()
            self.stage.refresh(self.tabs.runs.pair)

    def _set(self, change: dict[str, Any]) -> None:
        self.machine_form.set(change["field"], str(change["value"]))

    def _open(self, file: dict[str, Any]) -> None:
        self.stage.refused.value = ""
        try:
            self.explorer.open(file["name"], file["content"])
        except KernbenchError as error:
            self.stage.refused.value = message_html(str(error), wrong=True)

    def _machine_changed(self) -> None:
        self.workload.refresh()
        self._touched()

    def _touched(self) -> None:
        self.explorer.touched()
        self.refresh()

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        still = {"image/svg+xml": still_svg(scene(self.machine))}
        return mimebundle(self.root, "The explorer: run this cell to open it") | still


def explore(
    machine: str | Path | Machine | None = None, *own: Callable[..., object], limits: Limits = NONE
) -> ExplorerView:
    """Return the explorer, which shows itself in a notebook.

    Parameters
    ----------
    machine : str, Path, Machine, optional
        As for `kb.load`.
    *own : callable
        User-defined functions `f(torch, *, size=64, ...)` to run: kernels, algorithms, components.
    limits : Limits, optional
        Of each run; a served page has its own as well.
    """
    limits = limits.within(page_limits())
    return ExplorerView(Explorer(machine, own, limits=limits, page=is_page(), quota=page_quota()))


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
        self.bar, self.stage = RunBar(self.explorer), Stage(self.explorer, run=lambda _: self.explorer.run(again=True))
        self.explorer.on_change += [self.bar.refresh, self.stage.refresh]
        self.root = page(self.bar.root, self.stage.root, name="kb-single")
        self.explorer.run(again=True)

    @property
    def result(self) -> Result | None:
        """The result of the run; None before its end."""
        return self.explorer.result

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        return mimebundle(self.root, f"a run of {self.explorer.workload.name}, watched")
