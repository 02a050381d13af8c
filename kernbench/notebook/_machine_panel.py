"""The machine panel: the topology picker, which can also be used alone in a cell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from kernbench.analysis.compare import value_text
from kernbench.errors import ConfigError, HostError
from kernbench.notebook._machine_form import MachineForm, field_groups, machine_yaml
from kernbench.notebook._picture import Picture
from kernbench.notebook._serve import is_page
from kernbench.notebook._style import (
    Input,
    button,
    column,
    download,
    label_of,
    labelled_row,
    message_html,
    mimebundle,
    page,
)
from kernbench.topology.builder import Machine
from kernbench.viz._fields import Field
from kernbench.viz._scene import scene


class TopologyPicker:
    """Choose and change a machine with the mouse; `machine` is the one that is shown.

    Parameters
    ----------
    source : str, Path, Machine or None
        As for `kb.load`.
    form : MachineForm, optional
        The one to show, in place of a new one.
    on_change : callable, optional
        Called when a value was changed, right or wrong.
    unfit : callable, optional
        Returns the message for each field that is wrong for what is to run.
    """

    def __init__(
        self,
        source: str | Path | Machine | None = None,
        *,
        form: MachineForm | None = None,
        on_change: Callable[[], None] = lambda: None,
        unfit: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self.form = form or MachineForm(source, page=is_page())
        self._on_change, self._unfit = on_change, unfit
        self._changed_last = ""
        sources = self.form.sources()
        given = self.form.file.source
        self.source = widgets.Dropdown(
            options={**({} if given in sources.values() else {Path(given).name: given}), **sources},
            value=given,
            tooltip="the machine file to begin with",
        ).add_class("kb-source")
        self.group = widgets.Dropdown(options=list(field_groups()), tooltip="which part of the machine is shown")
        self.group.add_class("kb-group")
        self.inputs: dict[str, Input] = {}
        self.fields = widgets.VBox().add_class("kb-fields")
        self.summary = widgets.HTML().add_class("kb-machine")
        self.reset = button("Reset", "All values as in the file", "undo", self._reset)
        self.path = widgets.Text(
            value="topology.yaml", tooltip="name of the machine file to write", continuous_update=False
        )
        self.save = button("Save", "Write the machine file", "save", self._save)
        self.saved = widgets.HTML()
        self.source.observe(lambda change: self._load(change["new"]), "value")
        self.group.observe(lambda _: self._show_group(), "value")
        self._show_group()
        own_file = [] if self.form.page else [self._own_file()]
        self.controls = column(
            labelled_row("Preset", self.source, long=True),
            *own_file,
            labelled_row("Part", self.group, long=True),
            self.fields,
            widgets.HBox([self.summary, self.reset]).add_class("kb-changes"),
            labelled_row("Save as", self.path, self.save, long=True),
            self.saved,
            name="kb-panel",
            title="Machine",
        )

    @cached_property
    def picture(self) -> Picture:
        made = Picture()
        made.answer(set=lambda change: self.set(change["field"], str(change["value"])))
        made.show(scene(self.machine))
        return made

    @cached_property
    def root(self) -> widgets.Widget:
        return page(column(self.controls, name="kb-forms"), column(self.picture, name="kb-stage"))

    @property
    def machine(self) -> Machine:
        """The displayed machine; with an invalid value, the last valid one."""
        return self.form.machine

    def set(self, path: str, text: str) -> None:
        self.change({path: text})

    def change(self, values: Mapping[str, str]) -> None:
        for path, text in values.items():
            self.form.set(path, text)
        self._changed_last = next(iter(values))
        self.group.value = next(
            name for name, found in field_groups().items() if any(x.path == self._changed_last for x in found)
        )
        self._show_group()
        self._changed()

    def _own_file(self) -> widgets.Widget:
        """Field for the path of a file. A page has none, because visitors can set hidden widgets."""
        other = widgets.Text(
            placeholder="path of another YAML file",
            tooltip="path of another YAML file",
            continuous_update=False,
        ).add_class("kb-file-path")
        other.observe(lambda change: self._load(change["new"]), "value")
        return labelled_row("Or a file", other, long=True)

    def _load(self, source: str) -> None:
        if not source:
            return
        try:
            self.form.load(source)
        except ConfigError as error:
            self.saved.value = message_html(str(error), wrong=True)
            return
        self.saved.value = ""
        self._show_group()
        self._changed()

    def _reset(self) -> None:
        self.form.reset()
        self._show_group()
        self._changed()

    def _save(self) -> None:
        try:
            wrote = "" if self.form.page else f"wrote {self.form.save(self.path.value)}"
        except (ConfigError, HostError) as error:
            self.saved.value = message_html(str(error), wrong=True)
            return
        name, text = Path(self.path.value).name, machine_yaml(self.form.machine).encode()
        self.saved.value = message_html(wrote) + download(name, text, "application/yaml")

    def _show_group(self) -> None:
        allowed = self.form.fields()
        self.inputs = {x.path: self._input(x) for x in field_groups()[self.group.value] if x.path in allowed}
        self.fields.children = [x.root for x in self.inputs.values()]
        self._refresh()

    def _input(self, field: Field) -> Input:
        text, low = self.form.text(field.path), f" ({field.bounds})" if field.bounds else ""
        made = Input(
            field.label,
            text,
            lambda value: self._set(field.path, value),
            tip=f"{field.path}: {field.description}{low}",
            unit=field.unit,
            choices=field.choices,
            stops=field.stops(self.form.given(field.path)),
        )
        made.control.add_class("kb-" + field.path.replace(".", "-"))
        return made

    def _set(self, path: str, text: str) -> None:
        self._changed_last = path
        self.form.set(path, text)
        self._changed()

    def _changed(self) -> None:
        self._refresh()
        self._on_change()

    def _refresh(self) -> None:
        self.mark()
        form = self.form
        if form.wrong:
            said = self._changed_last in self.inputs and self._changed_last not in form.wrong
            elsewhere = [] if said else [text for path, text in form.wrong.items() if path not in self.inputs]
            self.summary.value = message_html("\n".join(elsewhere), wrong=True)
            return
        c = form.machine.config
        lines = [f"<b>{c.n_sips} SIPs, {c.n_pes} PEs</b> <code>{form.machine.hash[:12]}</code>"]
        lines += [
            f'<span title="{escape(x.field)}">{escape(label_of(x.field))}</span> '
            f"{escape(value_text(x.before))} &rarr; <b>{escape(value_text(x.after))}</b>"
            for x in form.changed()
        ]
        self.summary.value = f'<div class="kb-changed">{"<br>".join(lines)}</div>'
        if "picture" in vars(self) and self.picture.header["machine"]["hash"] != form.machine.hash:
            self.picture.show(scene(form.machine))

    def mark(self) -> None:
        wrong = self.form.wrong or self._unfit()
        for path, field in self.inputs.items():
            field.refuse(wrong.get(path) or ("\n".join(wrong.values()) if path == self._changed_last else ""))

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        return mimebundle(self.root, f"TopologyPicker({self.machine!r})")
