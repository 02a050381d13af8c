"""ccl.yaml: the collective algorithms by name, their queues between PEs (IPCQ), and the rules for both."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.machinery import ModuleSpec, PathFinder
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, Literal

from kernbench._registry import MAPPERS, PROGRAMS, TOPOLOGIES, VALIDATORS, Registry, hint, locate
from kernbench.config._kinds import Bytes, Count, Fault, KeyPath, Kind, Model, described, expected
from kernbench.config._rules import components
from kernbench.config._schema import MachineConfig, Protocol
from kernbench.errors import quote

AUTO = "auto"
COLLECTIVES = (
    "all_reduce", "broadcast", "reduce", "reduce_scatter", "all_gather", "all_to_all", "barrier",
)  # fmt: skip
OUT_OF_PLACE = ("reduce_scatter", "all_gather", "all_to_all")
CONTRIBUTIONS = ("rank", "cube", "pe")
BUFFER_KINDS = ("tcm", "sram", "hbm")
_ROOTS = ("corner", "centre")
# Facts about the participants that `kernel_args` gets if it names them; options may state the grid.
FACTS = (
    "n_sips", "n_cubes", "n_pes", "sip_w", "sip_h", "sip_wraps", "cube_w", "cube_h", "root_cube", "grid_w", "grid_h",
)  # fmt: skip
GRID_SIZES = ("grid_w", "grid_h")
PROGRAM = ".xml"
# Keys that an MSCCL program states itself; its entry leaves them out.
STATED = {"topology": "none", "mapper": "leader_only", "validator": "single_shard_per_rank"}

_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


def _module(name: str) -> str:
    if not name.endswith(PROGRAM) and not _MODULE.fullmatch(name):
        raise expected(
            "must be the dotted path of a module, as in kernbench.ccl.algorithms.ring; or the path of an MSCCL "
            "program, as in ring.xml"
        )
    return name


def _named(registry: Registry) -> Callable[[str], str]:
    def check(name: str) -> str:
        if (fault := registry.fault(name)) is not None:
            raise expected(fault)
        return name

    return check


def _root(value: object) -> object:
    if value in _ROOTS or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    raise expected(f"must be {', '.join(_ROOTS)}, or the number of a cube")


BufferKind = Literal[BUFFER_KINDS]  # type: ignore[valid-type]
Backpressure = Literal["credit"]
_Root = Annotated[Any, Kind(before=_root)]


# Descriptions of keys: the fallback comes after the semicolon.
_SLOTS = "Slots of a ring; else pe_ipcq.n_slots of the machine file"
_SLOT = "Each slot; else pe_ipcq.slot_bytes of the machine file"
_CREDIT = "The message that gives a slot back; else pe_ipcq.credit_bytes of the machine file"
_CHANNELS = "PEs of a die that take part at least, where PEs share memory; else pe_ipcq.channels of the machine file"
_PROTOCOL = "The protocol of calls of up to ll.up_to_bytes; then ll128, then simple; else those of pe_ipcq"
_WORLD = "Participants; else as many as the machine, or the group, has"


class _Readable(Mapping[str, Any]):
    """A group of keys that can also be read as a mapping: `group["n_elem"]`; keys without a value are missing."""

    def __getitem__(self, key: str) -> Any:
        if (value := self.__dict__.get(key)) is None:
            raise KeyError(key)
        return value

    def __iter__(self) -> Iterator[str]:
        return (key for key, value in self.__dict__.items() if value is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class CclDefaults(Model, _Readable):
    n_slots: Count | None = described(_SLOTS, default=None)
    slot_size: Bytes | None = described(_SLOT, default=None)
    ipcq_credit_size_bytes: Bytes | None = described(_CREDIT, default=None)
    channels: Count | None = described(_CHANNELS, default=None)
    ll: Protocol | None = described(_PROTOCOL, default=None)
    ll128: Protocol | None = described(_PROTOCOL, default=None)
    simple: Protocol | None = described(_PROTOCOL, default=None)
    world_size: Count | None = described(_WORLD, default=None)
    algorithm: str = described("The algorithm to take: a name, or auto")
    buffer_kind: BufferKind = described("Memory of a receiver's ring")
    backpressure: Backpressure = described("How a sender knows that a slot is free")
    vc_chunk_size: Bytes = described("Between turns of bulk and queue traffic at a PE's source link")
    n_elem: Count = described("Elements of each participant, for benches")
    root_cube: _Root = described("The cube that represents its SIP: corner, centre, or its number")


class CclEntry(Model, _Readable):
    n_slots: Count | None = described(_SLOTS, default=None)
    slot_size: Bytes | None = described(_SLOT, default=None)
    ipcq_credit_size_bytes: Bytes | None = described(_CREDIT, default=None)
    channels: Count | None = described(_CHANNELS, default=None)
    ll: Protocol | None = described(_PROTOCOL, default=None)
    ll128: Protocol | None = described(_PROTOCOL, default=None)
    simple: Protocol | None = described(_PROTOCOL, default=None)
    world_size: Count | None = described(_WORLD, default=None)
    module: Annotated[str, Kind(after=_module)] = described("Holds `kernel` and `kernel_args`; or an MSCCL program")
    collective: Literal[COLLECTIVES] = described("What it does", default="all_reduce")  # type: ignore[valid-type]
    contribution: Literal[CONTRIBUTIONS] = described("Whose data are one term of a sum", default="rank")  # type: ignore[valid-type]
    topology: Annotated[str, Kind(after=_named(TOPOLOGIES))] = described("Who talks to whom")
    mapper: Annotated[str, Kind(after=_named(MAPPERS))] = described("Who takes part", default="by_shard")
    validator: Annotated[str, Kind(after=_named(VALIDATORS))] = described(
        "What it asks of the shards", default="multi_pe_sip_local"
    )
    buffer_kind: BufferKind | None = described("Memory of a receiver's ring", default=None)
    backpressure: Backpressure | None = described("How a sender knows that a slot is free", default=None)
    vc_chunk_size: Bytes | None = described("Between turns of bulk and queue traffic", default=None)
    n_elem: Count | None = described("Elements of each participant, for benches", default=None)
    root_cube: _Root | None = described("The cube that represents its SIP", default=None)
    options: dict[str, Any] = described("Passed to the module's kernel_args", default_factory=dict)


class CclConfig(Model, _Readable):
    defaults: CclDefaults
    algorithms: dict[str, CclEntry] = described("Entries by name")

    def setting(self, name: str, key: str) -> Any:
        value = getattr(self.algorithms[name], key)
        return getattr(self.defaults, key) if value is None else value


_OURS = "kernbench."
_LONGEST_CHAIN = 8  # of modules that import a name from one another

Takes = tuple[tuple[str, ...], bool]  # names of parameters, and whether any other name is taken


class _MissingModuleError(Exception):
    """The module does not exist, or its source cannot be read; the text gives the reason."""


@dataclass(frozen=True)
class Outline:
    """The names at the top level of one module, or those of an object in it, such as `pkg.mod.name`.

    A module of kernbench is imported, and one that has been imported already is inspected; of any other, only the
    source is read. What only running it decides, such as a star import, is assumed to be right.
    """

    name: str

    def has(self, name: str) -> bool:
        """Whether the module may define a function `name`."""
        if self._module is not None:
            return callable(getattr(self._module, name, None))
        return self._tree is None or self._is_dynamic or name in self._bound

    def takes(self, name: str, depth: int = 0) -> Takes | None:
        """Parameters of the function `name`; None if the source does not determine them."""
        if self._module is not None:
            found = signature(getattr(self._module, name)).parameters
            return tuple(found), any(p.kind is Parameter.VAR_KEYWORD for p in found.values())
        node = self._bound.get(name)
        if isinstance(node, ast.FunctionDef) and not node.decorator_list:
            args = node.args
            names = [arg.arg for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs)]
            return tuple(names), args.kwarg is not None
        if isinstance(node, ast.ImportFrom) and node.module and not node.level and depth < _LONGEST_CHAIN:
            (origin,) = (alias.name for alias in node.names if (alias.asname or alias.name) == name)
            try:
                return Outline(node.module).takes(origin, depth + 1)
            except (_MissingModuleError, AttributeError):
                return None
        return None

    @cached_property
    def _module(self) -> object:
        if not self.name.startswith(_OURS):
            parent, _, name = self.name.rpartition(".")
            return sys.modules.get(self.name) or getattr(sys.modules.get(parent), name, None)
        try:
            return locate(self.name)
        except ImportError as error:
            raise _MissingModuleError(f"{type(error).__name__}: {error}") from error

    @cached_property
    def _tree(self) -> ast.Module | None:
        """Source of the module; None for a compiled module, and for an object in a module."""
        spec, path = None, None
        parts = self.name.split(".")
        for i in range(len(parts)):
            here = ".".join(parts[: i + 1])
            spec = module_spec(here, path)
            if spec is None:
                if i and i == len(parts) - 1 and parts[i] in Outline(".".join(parts[:i]))._bound:
                    return None  # only running the module decides what the object has
                if i and i == len(parts) - 1:
                    raise _MissingModuleError(f"{'.'.join(parts[:i])} has no {parts[i]!r}")
                raise _MissingModuleError(f"ModuleNotFoundError: No module named {here!r}")
            path = list(spec.submodule_search_locations or ())
        source = getattr(spec.loader, "get_source", None) if spec is not None else None
        try:
            text = source(self.name) if source is not None else None
            return None if text is None else ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError, OSError, ImportError) as error:
            raise _MissingModuleError(f"{type(error).__name__}: {error}") from error

    @cached_property
    def _bound(self) -> dict[str, ast.stmt]:
        found: dict[str, ast.stmt] = {}
        for node in self._statements():
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                found[node.name] = node
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                found.update({(alias.asname or alias.name.partition(".")[0]): node for alias in node.names})
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = [x for target in targets for x in ast.walk(target) if isinstance(x, ast.Name)]
                found.update({x.id: node for x in names})
        return found

    @cached_property
    def _is_dynamic(self) -> bool:
        return "*" in self._bound or "__getattr__" in self._bound

    def _statements(self) -> list[ast.stmt]:
        """Statements of the module, including those in branches."""
        found: list[ast.stmt] = []
        left: list[ast.AST] = [self._tree] if self._tree is not None else []
        while left:
            node = left.pop()
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.stmt):
                    found.append(child)
                if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.expr)):
                    left.append(child)
        return found


def module_spec(name: str, path: list[str] | None) -> ModuleSpec | None:
    """Find a module without importing its parents, which would run them."""
    module = sys.modules.get(name)
    if module is not None and module.__spec__ is not None:
        return module.__spec__
    return PathFinder.find_spec(name, path)


_HOLDS = "kernel(t_ptr, ..., *, tl) and kernel_args(*, n_elem, world_size)"
# Packaged topologies that need the grid of all participants.
_ON_A_GRID = ("mesh_2d", "torus_2d", "mesh_2d_no_wrap", "mesh_cycle", "double_torus")


# Keys that the algorithm's module determines.
_STRUCTURE = ("collective", "contribution", "topology", "mapper", "validator")
_TREE = "kernbench.ccl.algorithms."
# Modes of the reference design in which a sender learns of a free slot.
_UNMODELLED = ("sleep", "poll")


def fill_in(content: dict[str, Any], packaged: Mapping[str, Any]) -> list[str]:
    """Fill in missing keys from `packaged`; return a note for each value that is replaced by another."""
    notes: list[str] = []
    defaults = content.setdefault("defaults", {})
    if isinstance(defaults, dict):
        notes += _credited("defaults", defaults)
        defaults.update({key: value for key, value in packaged["defaults"].items() if key not in defaults})
    known = packaged["algorithms"]
    entries = content.setdefault("algorithms", {})
    if isinstance(entries, dict):
        for name, entry in entries.items():
            if isinstance(entry, dict):
                notes += _credited(f"algorithms.{name}", entry)
                notes += _complete_entry(name, entry, known)
        entries.update({name: entry for name, entry in known.items() if name not in entries})
    return notes


def _credited(where: str, group: dict[str, Any]) -> Iterator[str]:
    if group.get("backpressure") in _UNMODELLED:
        yield f"{where}.backpressure = {group['backpressure']} is not modelled; credit is used instead"
        group["backpressure"] = "credit"


def _complete_entry(name: str, entry: dict[str, Any], known: Mapping[str, Any]) -> Iterator[str]:
    module = _ours(entry.get("module"), known)
    like = known.get(name, {})
    if module not in (None, like.get("module")):
        same: Mapping[str, Any] = next((other for other in known.values() if other["module"] == module), {})
        like = {key: same[key] for key in _STRUCTURE if key in same}
    if module != entry.get("module"):
        entry["module"] = module
        own = like.get("topology")
        if (asked := entry.pop("topology", None)) not in (None, own):
            yield f"algorithms.{name}.topology = {asked} is not that of {module}; {own} is used instead"
    entry.update({key: value for key, value in like.items() if key not in entry})


def _ours(module: Any, known: Mapping[str, Any]) -> Any:
    """Map a module path of the reference design's tree, kernbench.ccl.algorithms.NAME, to ours."""
    if not isinstance(module, str) or not module.startswith(_TREE):
        return module
    name = module.removeprefix(_TREE)
    short = _TREE + name.removesuffix("_allreduce")
    if name in known:
        return known[name]["module"]
    return short if any(entry["module"] == short for entry in known.values()) else module


def complete_programs(content: Mapping[str, Any], folder: Path) -> None:
    """Complete the entries of MSCCL programs: paths are relative to `folder`; a program states its own wiring."""
    entries = content.get("algorithms")
    for entry in entries.values() if isinstance(entries, dict) else ():
        if isinstance(entry, dict) and str(entry.get("module")).endswith(PROGRAM):
            entry["module"] = str((folder / entry["module"]).resolve())
            for key, value in STATED.items():
                entry.setdefault(key, value)


def ccl_faults(config: CclConfig) -> Iterator[Fault]:
    yield from _choice(config)
    for name, entry in config.algorithms.items():
        yield from _python(("algorithms", name), entry)
        yield from _grid(("algorithms", name), entry)


def ccl_misfits(config: CclConfig, machine: MachineConfig) -> Iterator[Fault]:
    cubes = machine.cubes_per_sip
    stated: list[tuple[KeyPath, Any]] = [(("defaults",), config.defaults.root_cube)]
    stated += [(("algorithms", name), entry.root_cube) for name, entry in config.algorithms.items()]
    for path, root in stated:
        if isinstance(root, int) and root >= cubes:
            yield _fault(
                (*path, "root_cube"),
                f"= {root} must be < {cubes}, the cubes of a SIP of this machine; name another, or corner or centre",
            )


def _fault(path: KeyPath, text: str) -> Fault:
    return Fault(f"{'.'.join(path)} {text}", (path,))


def _choice(config: CclConfig) -> Iterator[Fault]:
    chosen, known = config.defaults.algorithm, config.algorithms
    fits = [AUTO, *(name for name, entry in known.items() if entry.collective == "all_reduce")]
    if chosen not in (AUTO, *known):
        yield _fault(("defaults", "algorithm"), f"= {quote(chosen)} names no algorithm; {hint(chosen, fits)}")
    elif chosen not in fits:
        yield _fault(
            ("defaults", "algorithm"),
            f"= {chosen!r} does {known[chosen].collective}, and the default is that of all_reduce; {hint('', fits)}",
        )
    if AUTO in known:
        text = f"algorithms.{AUTO}: the name is taken, it means the best for each call; choose another"
        yield Fault(text, (("algorithms", AUTO),))


def _python(path: KeyPath, entry: CclEntry) -> Iterator[Fault]:
    if entry.module.endswith(PROGRAM):
        yield from PROGRAMS.resolve(PROGRAM)(path, entry)
        return
    for key in ("topology", "mapper", "validator"):
        module, _, attribute = str(getattr(entry, key)).partition(":")
        if attribute:
            yield from _missing((*path, key), f"{module}:{attribute}", module, (attribute,), f"a function {attribute}")
    faults = list(_missing((*path, "module"), entry.module, entry.module, ("kernel", "kernel_args"), _HOLDS))
    takes = None if faults else Outline(entry.module).takes("kernel_args")
    yield from faults or (() if takes is None else _options((*path, "options"), entry, takes))


def user_components(spec: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    """Yield (key, dotted path) of each component of a machine's spec that is not kernbench's own."""
    return (found for found in components(spec) if ":" in found[1])


def impl_faults(spec: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield the user-defined components of a machine's spec that do not exist; their modules are not run."""
    for path, value in user_components(spec):
        module, _, name = value.partition(":")
        yield from _missing(path, value, module, (name,), f"a class {name}")


def _missing(path: KeyPath, value: str, name: str, functions: Sequence[str], what: str) -> Iterator[Fault]:
    """Yield why a module cannot be read, or which functions it lacks; it is not run. It has to define `what`."""
    try:
        missing = [f for f in functions if not Outline(name).has(f)]
    except _MissingModuleError as error:
        yield _fault(path, f"= {quote(value)} cannot be imported: {error}; correct it, or put it on the Python path")
        return
    if missing:
        yield _fault(path, f"= {quote(value)}: the module has no {' and no '.join(missing)}; it has to define {what}")


def _options(path: KeyPath, entry: CclEntry, kernel_args: Takes) -> Iterator[Fault]:
    takes, takes_all = kernel_args
    has_grid = entry.topology in _ON_A_GRID or ":" in entry.topology or any(name in takes for name in GRID_SIZES)
    known = [name for name in takes if name not in ("n_elem", "world_size", *FACTS)] + [*GRID_SIZES] * has_grid
    for name, value in entry.options.items():
        said = None
        if name in ("n_elem", "world_size", "root_cube"):
            said = "is a key of the entry; write it next to options, not in it"
        elif name in FACTS and name not in GRID_SIZES:
            said = "is the machine's to say; leave it out"
        elif name not in known and (name in GRID_SIZES or not takes_all):
            said = f"is not an option of {entry.module}; {hint(name, known or ['none'])}"
        if said:
            yield _fault((*path, name), f"= {quote(value)} {said}")


def _grid(path: KeyPath, entry: CclEntry) -> Iterator[Fault]:
    given = {name: entry.options[name] for name in GRID_SIZES if name in entry.options}
    for name, value in given.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            yield _fault((*path, "options", name), f"= {quote(value)} must be a whole number >= 1")
            return
    if len(given) == 1:
        [(name, value)], other = given.items(), next(name for name in GRID_SIZES if name not in given)
        yield _fault((*path, "options", name), f"= {value} says half of the grid of participants; add {other}")
    elif given and entry.world_size not in (None, given["grid_w"] * given["grid_h"]):
        w, h = given["grid_w"], given["grid_h"]
        yield _fault(
            (*path, "world_size"),
            f"= {entry.world_size}, but options.grid_w x grid_h = {w} x {h}; make them equal, or leave world_size out",
        )
