"""The work panel: what to run, with its parameters and options."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets

from kernbench.notebook.model import OPTIONS, Explorer
from kernbench.notebook.style import row, told

if TYPE_CHECKING:
    from kernbench.notebook.parameters import Parameter

_LOG = "tile: every piece of work; operation: every command; off: only totals"


class WorkPanel:
    """Chooses what runs.

    Parameters
    ----------
    explorer : Explorer
    on_change : callable
        Called when something was changed.
    """

    def __init__(self, explorer: Explorer, on_change: Callable[[], None]) -> None:
        self._explorer, self._on_change = explorer, on_change
        self.work = widgets.Dropdown(
            options=list(explorer.works),
            tooltip="what runs",
            value=explorer.work.name,
            layout={"width": "auto", "flex": "1 1 0", "min_width": "0"},
        )
        self.work.add_class("kb-work")
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
        self.work.observe(lambda change: self._choose(change["new"]), "value")
        for name, control in (("data", self.data), ("log", self.log)):
            control.add_class(f"kb-{name}")
            control.observe(lambda change, name=name: self._option(name, change["new"]), "value")
        self._show()
        self.root = widgets.VBox(
            [
                row("run", self.work),
                self.title,
                self.fields,
                row("log", self.log, tip=_LOG),
                row("", self.data),
            ]
        )

    def refresh(self) -> None:
        """Show the choices of the machine as it is now, and what is wrong on it."""
        for parameter in self._explorer.work.parameters:
            control = self.inputs[parameter.name]
            options = parameter.options(self._explorer.form.machine)
            if options and list(control.options) != options:
                self._show()
                return
        self._mark()

    def _mark(self) -> None:
        wrong = self._explorer.wrong
        for name, message in self._messages.items():
            message.value = told(wrong.get(name, ""), wrong=True)

    def _choose(self, name: str) -> None:
        self._explorer.choose(name)
        self._show()
        self._on_change()

    def _option(self, name: str, value: Any) -> None:
        self._explorer.set_option(name, value)
        self._on_change()

    def _show(self) -> None:
        work = self._explorer.work
        self.title.value = f'<div class="kb-title">{escape(work.title)}</div>'
        self.inputs, rows = {}, []
        self._messages = {"": widgets.HTML()}
        for parameter in work.parameters:
            control, message = self._control(parameter), widgets.HTML()
            message.add_class("kb-wrong")
            self.inputs[parameter.name], self._messages[parameter.name] = control, message
            rows += [row(parameter.name, control, tip=parameter.says), message]
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
        control.tooltip = parameter.says
        control.add_class(f"kb-param-{parameter.name}")
        control.observe(lambda change: self._set(parameter.name, change["new"]), "value")
        return control

    def _set(self, name: str, given: object) -> None:
        self._explorer.set(name, given)
        self._mark()
        self._on_change()
