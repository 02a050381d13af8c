"""From a machine file to a `Machine`: its validated configuration and its graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kernbench import config as configs
from kernbench._registry import COMPONENTS, html_of
from kernbench.config import MachineConfig
from kernbench.config._ccl import user_components
from kernbench.config._kinds import dotted
from kernbench.config._rules import methods_of
from kernbench.errors import ConfigError
from kernbench.topology._graph import Graph
from kernbench.topology._sip_network import vc_faults

Overrides = Mapping[str, object] | Sequence[str]
PRESET = "preset:"


class Machine:
    """A machine as its file describes it. Nothing is simulated before an engine is made for it.

    Parameters
    ----------
    config : MachineConfig
        Validated and frozen.
    source : str
        Where it came from, for captions: a path, `preset:NAME`, or "mapping".
    overrides : tuple of str
        What was changed in that, as `kb.load` takes it.

    Attributes
    ----------
    graph : Graph
        Nodes and links; cubes are made when first asked for.
    """

    def __init__(self, config: MachineConfig, source: str = "mapping", overrides: tuple[str, ...] = ()) -> None:
        faults = [f"{Path(source).name}: {fault}" for fault in vc_faults(config)]
        if faults:
            raise ConfigError(faults)
        self.config = config
        self.source = source
        self.overrides = overrides

    @cached_property
    def spec(self) -> Mapping[str, Any]:
        """The machine as a mapping, reading as its file does."""
        return MappingProxyType(self.config.to_spec())

    @property
    def topology_obj(self) -> Machine:
        """The machine itself."""
        return self

    @property
    def hash(self) -> str:
        """The hash of the validated content, which results carry."""
        return self.config.hash

    @cached_property
    def graph(self) -> Graph:
        """Nodes and links."""
        return _graph_of(self.config)

    def import_components(self) -> None:
        """Import the user's own components; a ConfigError names file and key of those that cannot be imported."""
        faults = []
        for path, impl in user_components(self.spec):
            try:
                part = COMPONENTS.resolve(impl)
            except ConfigError as error:
                faults.append(f"{Path(self.source).name}: {dotted(path)}: {error}")
                continue
            if missing := [name for name in methods_of(path) if not hasattr(part, name)]:
                faults.append(
                    f"{Path(self.source).name}: {dotted(path)} = {impl} has no {' and no '.join(missing)}; extend the "
                    "class of kernbench.components that it replaces"
                )
        if faults:
            raise ConfigError(faults)

    def with_(self, overrides: Overrides) -> Machine:
        """Return the machine with some values changed: `{"sip.cube_mesh.w": 2}` or `["sip.cube_mesh.w=2"]`."""
        config = configs.read_machine(self.config.to_spec(), overrides)
        return Machine(config, self.source, (*self.overrides, *_texts(overrides)))

    def __reduce__(self) -> tuple[type[Machine], tuple[MachineConfig, str, tuple[str, ...]]]:
        # The graph is made again where it is needed: a few milliseconds against megabytes to send.
        return Machine, (self.config, self.source, self.overrides)

    def __repr__(self) -> str:
        c = self.config
        mesh = c.sip.cube_mesh
        return (
            f"Machine({Path(self.source).name}, {c.n_sips} SIPs {c.system.sips.topology} x {mesh.w}x{mesh.h} cubes x "
            f"{c.pes_per_cube} PEs = {c.n_pes} PEs, hash {self.hash[:12]})"
        )

    def _repr_html_(self) -> str:
        return html_of("machine", self)


@lru_cache(maxsize=4)
def _graph_of(config: MachineConfig) -> Graph:
    """Share the graph of equal machines, and with it what is derived from it."""
    return Graph(config)


def resolve_topology(
    source: str | Path | Mapping[str, Any] | Machine | None = None, overrides: Overrides = ()
) -> Machine:
    """Return the machine that `source` means.

    Parameters
    ----------
    source : str, Path, Mapping, Machine or None
        A path, `preset:NAME`, the content of a file, or None: the nearest `topology.yaml` upward from the
        working directory, else the packaged default.
    overrides : mapping of path to value, or sequence of "path=value"
        Changes to the file's values.

    Raises
    ------
    ConfigError
        With every fault of the file, one a line.
    """
    if isinstance(source, Machine):
        return source.with_(overrides) if overrides else source
    if isinstance(source, Mapping):
        return Machine(configs.read_machine(source, overrides), overrides=_texts(overrides))
    if source is None:
        return load_topology(configs.find(), overrides)
    if isinstance(source, str) and source.startswith(PRESET):
        path = configs.preset_path(source.removeprefix(PRESET))
        return Machine(configs.read_machine(path, overrides), source, _texts(overrides))
    return load_topology(source, overrides)


def load_topology(path: str | Path, overrides: Overrides = ()) -> Machine:
    return Machine(configs.read_machine(path, overrides), str(path), _texts(overrides))


def _texts(overrides: Overrides) -> tuple[str, ...]:
    if isinstance(overrides, Mapping):
        return tuple(f"{path}={'null' if value is None else value}" for path, value in overrides.items())
    return (overrides,) if isinstance(overrides, str) else tuple(overrides)
