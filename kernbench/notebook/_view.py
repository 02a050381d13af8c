"""The explorer in a notebook: a thin view of `model.Explorer`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets

from kernbench.notebook._model import Explorer
from kernbench.notebook._panels import ResultPanel, RunPanel, WorkloadPanel
from kernbench.notebook._picker import TopologyPicker
from kernbench.notebook._serve import is_page, page_limits, page_quota
from kernbench.notebook._style import STYLE, mimebundle
from kernbench.sim_engine._limits import NONE, Limits
from kernbench.topology.builder import Machine
from kernbench.viz._scene import scene
from kernbench.viz._still import still_svg

if TYPE_CHECKING:
    from kernbench.analysis.result import Result


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
        self._lock = threading.Lock()
        self.machine_panel = TopologyPicker(form=explorer.form, on_change=self._machine_changed)
        self.workload_panel = WorkloadPanel(explorer, self._touched)
        self.run_panel = RunPanel(explorer)
        self.result_panel = ResultPanel(explorer, self.machine_panel.picture)
        self.controls = widgets.Accordion(
            [self.workload_panel.root, self.machine_panel.controls], titles=["Workload", "Machine"]
        )
        self.controls.selected_index = 0
        self.controls.add_class("kb-controls")
        self.shown = widgets.VBox([self.run_panel.root, self.result_panel.root])
        self.shown.add_class("kb-wide")
        self.root = widgets.HBox([STYLE(), self.controls, self.shown])
        self.root.add_class("kb-explorer")
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
            self.run_panel.refresh()
            self.result_panel.refresh()

    def _machine_changed(self) -> None:
        self.workload_panel.refresh()
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
    """One program, watched in a cell while it runs, and replayed when it was too short to watch.

    Parameters
    ----------
    program : callable
        `program(torch)`.
    machine : str, Path, Machine, optional
        As for `kb.load`.
    """

    def __init__(self, program: Callable[..., object], machine: str | Path | Machine | None = None) -> None:
        self.explorer = Explorer(machine, [program])
        panel = RunPanel(self.explorer)
        self.explorer.on_change.append(panel.refresh)
        self.root = widgets.HBox([STYLE(), panel.root])
        self.root.add_class("kb-explorer")
        panel.root.add_class("kb-wide")
        self.explorer.run(again=True)

    @property
    def result(self) -> Result | None:
        """The result of the run; None before its end."""
        return self.explorer.result

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        return mimebundle(self.root, f"a run of {self.explorer.workload.name}, watched")
