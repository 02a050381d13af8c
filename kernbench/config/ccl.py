"""ccl.yaml: the collective algorithms by name, and what each uses of the queues between PEs (IPCQ)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

from kernbench.config.values import After, Before, Bytes, Count, Model, described, expected
from kernbench.registry import MAPPERS, TOPOLOGIES, VALIDATORS, Registry

AUTO = "auto"
COLLECTIVES = (
    "all_reduce", "broadcast", "reduce", "reduce_scatter", "all_gather", "all_to_all", "barrier",
)  # fmt: skip
CONTRIBUTIONS = ("rank", "cube", "pe")
BUFFER_KINDS = ("tcm", "sram", "hbm")
ROOTS = ("corner", "centre")
# What `kernel_args` gets of its participants when it names it; options may state the grid.
FACTS = (
    "n_sips", "n_cubes", "n_pes", "sip_w", "sip_h", "sip_wraps", "cube_w", "cube_h", "root_cube", "grid_w", "grid_h",
)  # fmt: skip
GRID = ("grid_w", "grid_h")

_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


def _module(name: str) -> str:
    if not _MODULE.fullmatch(name):
        raise expected("must be the dotted path of a module, as in kernbench.ccl.algorithms.ring")
    return name


def _named(registry: Registry) -> Callable[[str], str]:
    def check(name: str) -> str:
        if (fault := registry.fault(name)) is not None:
            raise expected(fault)
        return name

    return check


def _root(value: object) -> object:
    if value in ROOTS or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    raise expected(f"must be {', '.join(ROOTS)}, or the number of a cube")


BufferKind = Literal[BUFFER_KINDS]  # type: ignore[valid-type]
Backpressure = Literal["credit"]
Root = Annotated[Any, Before(_root)]


# What an entry may leave to the defaults, and those to the machine file.
_SLOTS = "Slots of a ring; else pe_ipcq.n_slots of the machine file"
_SLOT = "Each slot; else pe_ipcq.slot_bytes of the machine file"
_CREDIT = "The message that gives a slot back; else pe_ipcq.credit_bytes of the machine file"
_WORLD = "Participants; else as many as the machine, or the group, has"


class CclDefaults(Model):
    """What an algorithm uses unless it says otherwise."""

    n_slots: Count | None = described(_SLOTS, default=None)
    slot_size: Bytes | None = described(_SLOT, default=None)
    ipcq_credit_size_bytes: Bytes | None = described(_CREDIT, default=None)
    world_size: Count | None = described(_WORLD, default=None)
    algorithm: str = described("The algorithm to take: a name, or auto")
    buffer_kind: BufferKind = described("Memory of a receiver's ring")
    backpressure: Backpressure = described("How a sender knows that a slot is free")
    vc_chunk_size: Bytes = described("Between turns of bulk and queue traffic at a PE's source link")
    n_elem: Count = described("Elements of each participant, for benches")
    root_cube: Root = described("The cube that represents its SIP: corner, centre, or its number")


class CclEntry(Model):
    """One algorithm."""

    n_slots: Count | None = described(_SLOTS, default=None)
    slot_size: Bytes | None = described(_SLOT, default=None)
    ipcq_credit_size_bytes: Bytes | None = described(_CREDIT, default=None)
    world_size: Count | None = described(_WORLD, default=None)
    module: Annotated[str, After(_module)] = described("Holds `kernel` and `kernel_args`")
    collective: Literal[COLLECTIVES] = described("What it does", default="all_reduce")  # type: ignore[valid-type]
    contribution: Literal[CONTRIBUTIONS] = described("Whose data are one term of a sum", default="rank")  # type: ignore[valid-type]
    topology: Annotated[str, After(_named(TOPOLOGIES))] = described("Who talks to whom")
    mapper: Annotated[str, After(_named(MAPPERS))] = described("Who takes part")
    validator: Annotated[str, After(_named(VALIDATORS))] = described("What it asks of the shards")
    buffer_kind: BufferKind | None = described("Memory of a receiver's ring", default=None)
    backpressure: Backpressure | None = described("How a sender knows that a slot is free", default=None)
    vc_chunk_size: Bytes | None = described("Between turns of bulk and queue traffic", default=None)
    n_elem: Count | None = described("Elements of each participant, for benches", default=None)
    root_cube: Root | None = described("The cube that represents its SIP", default=None)
    options: dict[str, Any] = described("Passed to the module's kernel_args", default_factory=dict)


class CclConfig(Model):
    """The content of ccl.yaml."""

    defaults: CclDefaults
    algorithms: dict[str, CclEntry] = described("Entries by name")

    def setting(self, name: str, key: str) -> Any:
        """Return what `key` is for the algorithm `name`: its entry's value, else the default; None if unsaid."""
        value = getattr(self.algorithms[name], key)
        return getattr(self.defaults, key) if value is None else value
