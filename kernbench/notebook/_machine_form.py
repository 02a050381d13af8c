"""The state of the machine panel, without widgets: a machine file, the changes to it, and their faults."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from kernbench import config
from kernbench.analysis.compare import Change, machine_changes
from kernbench.config._files import write_text
from kernbench.config._overrides import value_at
from kernbench.errors import ConfigError, quote
from kernbench.topology.builder import PRESET, Machine, resolve_topology
from kernbench.viz._fields import Field, fields

# Groups of the panel, each with its keys; the first match applies.
GROUPS = {
    "System": ("system.sips", "sip.cube_mesh", "cube.pe_layout"),
    "Links between SIPs, host": ("system",),
    "Network on chip": ("cube.noc", "cube.propagation_ns_per_mm"),
    "UCIe between cubes": ("cube.ucie",),
    "HBM": ("cube.hbm",),
    "SRAM": ("cube.sram",),
    "Matrix and vector engines": ("cube.pe.pe_gemm", "cube.pe.pe_math"),
    "TCM": ("cube.pe.pe_tcm", "cube.pe.pe_fetch_store"),
    "DMA, scheduler, MMU": ("cube.pe.pe_dma", "cube.pe.pe_scheduler", "cube.pe.pe_mmu"),
    "Message queues": ("cube.pe.pe_ipcq",),
    "CPUs and I/O": ("cube.pe.pe_cpu", "cube.m_cpu", "sip.io"),
    "Energy and area": ("cost",),
}
_OTHER = "Other"
# Fields that name code, or a file of the server: visitors of a page cannot change them.
_NAMES_CODE = (".impl", ".table")

_KEY = re.compile(r"^[^:]*: '?([\w.]+)")


class MachineForm:
    def __init__(self, source: str | Path | Machine | None = None, *, page: bool = False) -> None:
        self.page = page
        self._begin(resolve_topology(source))

    def load(self, source: str | Path | Machine | None) -> None:
        if self.page and source not in (*self.sources().values(), self.file.source):
            raise ConfigError(f"a page loads only what it offers: {', '.join(self.sources())}")
        self._begin(resolve_topology(source))

    def _begin(self, machine: Machine) -> None:
        self.file = self.machine = machine
        self.texts: dict[str, str] = {}
        self.wrong: dict[str, str] = {}

    @staticmethod
    def sources() -> dict[str, str]:
        near = config.find()
        own = {} if near == config.preset_path("default") else {f"file {near.name}": str(near)}
        return own | {f"{PRESET}{name}": f"{PRESET}{name}" for name in config.presets()}

    def text(self, path: str) -> str:
        """Text of a field: the typed one, if any, else the file's value."""
        if path in self.texts:
            return self.texts[path]
        value = self.given(path)
        return "" if value is None else _text(value)

    def given(self, path: str) -> Any:
        return value_at(self.file.spec, path)

    def set(self, path: str, text: str) -> bool:
        """Set a field to a typed text; return whether the machine is valid.

        With an invalid text, `machine` is unchanged, and `wrong` contains the reason.
        """
        if self.page and path not in self.fields():
            raise ConfigError(f"{path} cannot be changed on a page: it names code, or a file of the server")
        self.texts.pop(path, None)
        if text.strip() != self.text(path):
            self.texts[path] = text.strip()
        try:
            self.machine, self.wrong = self.file.with_(self.overrides()), {}
        except ConfigError as error:
            self.wrong = {}
            for fault in error.faults:
                key = _KEY.match(fault)
                place = key[1] if key and key[1] in fields() else ""
                self.wrong[place] = "; ".join(x for x in (self.wrong.get(place), fault.removeprefix("override: ")) if x)
        return not self.wrong

    def fields(self) -> dict[str, Field]:
        return {path: field for path, field in fields().items() if not (self.page and path.endswith(_NAMES_CODE))}

    def refuse_code(self, name: str, machine: Machine) -> None:
        """Raise a ConfigError if a machine names code, which would be imported, that this one does not name."""
        for path in (path for path in fields() if path.endswith(".impl")):
            impl, own = (value_at(spec, path) for spec in (machine.spec, self.file.spec))
            if ":" in str(impl) and impl != own:
                raise ConfigError(
                    f"{name}: {path} = {quote(impl)} names code, which no page runs; open it in a notebook"
                )

    def overrides(self) -> list[str]:
        return [f"{path}={text}" for path, text in self.texts.items()]

    def reset(self) -> None:
        self._begin(self.file)

    def changed(self) -> list[Change]:
        return list(machine_changes(self.file.spec, self.machine.spec))

    def save(self, path: str | Path) -> Path:
        path = Path(path)
        if self.page:
            raise ConfigError("a page writes no files; download the machine file")
        if self.wrong:
            raise ConfigError(list(self.wrong.values()))
        if path.exists():
            raise ConfigError(f"{path} is there already; give another name")
        return write_text(path, machine_yaml(self.machine), "give another name")


def machine_yaml(machine: Machine) -> str:
    return yaml.safe_dump(dict(machine.spec), sort_keys=False)


def field_groups() -> dict[str, list[Field]]:
    found: dict[str, list[Field]] = {name: [] for name in (*GROUPS, _OTHER)}
    for path, field in fields().items():
        found[_group(path)].append(field)
    return {name: fields for name, fields in found.items() if fields}


def _group(path: str) -> str:
    fit = (name for name, keys in GROUPS.items() for key in keys if f"{path}.".startswith(f"{key}."))
    return next(fit, _OTHER)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return str(yaml.safe_dump(value, default_flow_style=True, width=10_000)).removesuffix("...\n").strip()
