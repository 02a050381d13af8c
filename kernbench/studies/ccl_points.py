"""The points of the collectives study, by slice, and the sizes of all-reduces in real programs."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from math import isqrt
from typing import Any

from kernbench.ccl.algorithm import Algorithm
from kernbench.ccl.install import names
from kernbench.config import CclConfig, MachineConfig
from kernbench.dtypes import as_dtype
from kernbench.errors import ArgumentError
from kernbench.registry import hint
from kernbench.sweeps.keys import Row

# (count, topology) or (count, topology, w, h), as `system.sips` of a machine file has them.
System = Sequence[Any]

SIX = (6, "torus_2d", 3, 2)
INTERCUBE = "intercube_allreduce"
RING = "ring_allreduce_tcm"
ONE_EACH = (RING, "torus_allreduce", "halving_doubling_allreduce", "tree_allreduce", "double_tree_allreduce")
LISTED = (RING, "torus_allreduce", "halving_doubling_allreduce", "tree_allreduce")
CHUNK, LONG = 32 << 10, 128 << 10  # of lists; long vectors go in chunks twice as long
SIZES, OTHERS, KINDS, ROOTS, SCALING, SLOTS, LIMITS, LISTS, MARKS = (
    "sizes", "other collectives", "buffer kinds", "roots", "scaling", "slots", "limits", "lists", "published",
)  # fmt: skip
SMALL_SLOT = 1024
SMALL = "slots of 1 KiB"
OTHER_KINDS = 65536  # bytes of the reference design's figures with queues in other memories
UNCHANGED = "nothing"  # the machine that those of the slice `limits` are compared with

# Packaged lists, and the types in which they count bytes.
_FILES = {"deepbench": "deepbench_allreduce.csv", "llama3-70b": "llama3_70b_allreduce.csv"}
_TYPES = {"deepbench": "f32", "llama3-70b": "bf16"}


def points(config: CclConfig, machine: MachineConfig, own: Sequence[Algorithm], given: Mapping[str, Any]) -> list[Row]:
    """Return the points of all slices, those included that an algorithm does not admit."""
    return [
        *_sizes(config, machine, own, given),
        *_others(config, own, given["others"]),
        *_kinds(given["kinds"]),
        *_roots(machine, given),
        *_scaling(**given["more_sips"]),
        *(
            _point(SLOTS, SIX, RING, given["more_slots"]["nbytes"], n_slots=n)
            for n in given["more_slots"]["counts"]
        ),
        *_limits(machine, given["halved"]),
        *_lists(machine, given["real"]),
        *_marks(machine, given["marks"]),
    ]  # fmt: skip


def _sizes(config: CclConfig, machine: MachineConfig, own: Sequence[Algorithm], given: Mapping[str, Any]) -> list[Row]:
    """Return every all-reduce at every size on every system."""
    return [
        _point(SIZES, system, name, nbytes, **({"slot_size": grid["slot_size"]} if "slot_size" in grid else {}))
        for contribution in ("rank", "cube", "pe")
        for grid in given[f"by_{contribution}"]
        for system in grid["systems"]
        for name in [
            *(n for n in names(config, "all_reduce", contribution) if config.setting(n, "buffer_kind") == "tcm"),
            *(a.name for a in own if (a.collective, a.contribution) == ("all_reduce", contribution)),
        ]
        for nbytes in grid["sizes"]
    ]


def _others(config: CclConfig, own: Sequence[Algorithm], grid: Mapping[str, Any]) -> list[Row]:
    """Return every other collective; a barrier has one size."""
    known = {n: config.algorithms[n].collective for n in names(config) if config.setting(n, "buffer_kind") == "tcm"}
    known |= {algorithm.name: algorithm.collective for algorithm in own}
    return [
        _point(OTHERS, system, name, nbytes)
        for system in grid["systems"]
        for name, collective in known.items()
        if collective != "all_reduce"
        for nbytes in ([2] if collective == "barrier" else grid["sizes"])
    ]


def _kinds(sizes: Sequence[int]) -> list[Row]:
    return [
        _point(KINDS, SIX, name, nbytes, buffer_kind=kind)
        for name in (INTERCUBE, RING)
        for kind in ("tcm", "sram", "hbm")
        for nbytes in sizes
    ]


def _roots(machine: MachineConfig, given: Mapping[str, Any]) -> list[Row]:
    """Return every cube as the root of its SIP."""
    systems = given["by_cube"][0]["systems"][:1] if given["by_cube"] else []
    return [
        _point(ROOTS, system, INTERCUBE, given["root_bytes"], root_cube=cube)
        for system in systems
        for cube in range(machine.cubes_per_sip)
    ]


def _scaling(counts: Sequence[int], topology: str, sizes: Sequence[int]) -> list[Row]:
    """Return growing numbers of SIPs, one PE each; grids as square as possible."""
    return [
        _point(SCALING, _system(n, topology), name, nbytes) for n in counts for name in ONE_EACH for nbytes in sizes
    ]


def _halved(machine: MachineConfig) -> dict[str, Row]:
    """Return the change of each resource to half its value (of latencies: to twice), after no change."""
    cube, sips = machine.cube, machine.system
    return {
        UNCHANGED: {},
        "link between SIPs": {"system.sip_link.bw_gbs": sips.sip_link.bw_gbs / 2},
        "latency between SIPs": {"system.sip_link.latency_ns": sips.sip_link.latency_ns * 2},
        "UCIe": {"cube.ucie.bw_gbs": cube.ucie.bw_gbs / 2},
        "latency of UCIe ports": {"cube.ucie.port_ns": cube.ucie.port_ns * 2},
        "slots": {"cube.pe.pe_ipcq.n_slots": cube.pe.pe_ipcq.n_slots // 2},
        "HBM": {"cube.hbm.channel_bw_gbs": cube.hbm.channel_bw_gbs / 2},
        "vector engine": {"cube.pe.pe_math.clock_ghz": cube.pe.pe_math.clock_ghz / 2},
        "issue of commands": {"cube.pe.pe_cpu.command_ns": cube.pe.pe_cpu.command_ns * 2},
    }


def _limits(machine: MachineConfig, sizes: Sequence[int]) -> list[Row]:
    return [
        _point(LIMITS, SIX, name, nbytes, what=what, changes=changes)
        for name in (RING, "tree_allreduce")
        for nbytes in sizes
        for what, changes in _halved(machine).items()
    ]


def _lists(machine: MachineConfig, real: Mapping[str, Any]) -> list[Row]:
    """Return the all-reduces of lists: a rank's vector is on PE 0 of all cubes of its SIP, a slot holds a chunk."""
    made, most = [], real.get("max_bytes")
    for size in (size for name in real["lists"] for size in sizes(name) if most is None or size.nbytes <= most):
        item = as_dtype(size.dtype).itemsize
        part = -(-size.nbytes // (machine.cubes_per_sip * item)) * item
        chunk: Row = {"slot_size": CHUNK}
        if part >= LONG:
            chunk = {"slot_size": 2 * CHUNK, "options": {"chunk_bytes": 2 * CHUNK}}
        made += [
            _point(
                LISTS, real["system"], name, part, what=f"{size.list} {size.name}", dtype=size.dtype,
                cubes=machine.cubes_per_sip, pes=1, **chunk,
            )
            for name in LISTED
        ]  # fmt: skip
    return made


def _marks(machine: MachineConfig, sizes: Sequence[int]) -> list[Row]:
    """Return the all-reduces of the reference design's figures: by cube, and at one size in other memories."""
    kinds = [{"buffer_kind": kind} for kind in ("sram", "hbm")] if OTHER_KINDS in sizes else []
    halved = list(_halved(machine).items())[1:] if OTHER_KINDS in sizes else []
    variants: list[tuple[int, Row]] = [*((nbytes, {}) for nbytes in sizes), *((OTHER_KINDS, kind) for kind in kinds)]
    return [
        *(_point(MARKS, SIX, INTERCUBE, n, links=n == max(sizes), **kind) for n, kind in variants),
        *(_point(MARKS, SIX, INTERCUBE, n, what=SMALL, slot_size=SMALL_SLOT, **kind) for n, kind in variants),
        *(_point(MARKS, SIX, INTERCUBE, OTHER_KINDS, what=what, changes=changes) for what, changes in halved),
    ]


def _system(n: int, topology: str) -> System:
    rows = next(r for r in range(isqrt(n), 0, -1) if n % r == 0)
    return (n, topology, n // rows, rows) if topology in ("torus_2d", "mesh_2d_no_wrap") and n > 1 else (n, topology)


def _point(
    slice_name: str,
    system: System,
    algorithm: str,
    nbytes: int,
    *,
    what: str = "",
    changes: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Row:
    n, topology, *grid = system
    w, h = grid or (None, None)
    sips = {"count": n, "topology": topology, "w": w, "h": h}
    return {
        "labels": {"slice": slice_name, "what": what},
        "machine": {f"system.sips.{key}": value for key, value in sips.items()} | dict(changes or {}),
        "algorithm": algorithm,
        "nbytes": nbytes,
        **{name: value for name, value in settings.items() if value is not False},
    }


@dataclass(frozen=True, slots=True)
class Size:
    """An all-reduce of a list: `nbytes` of every rank, in elements of `dtype`."""

    list: str
    name: str
    nbytes: int
    dtype: str


def sizes(name: str) -> list[Size]:
    """Return the sizes of a list: "deepbench", or "llama3-70b" (tensor parallelism, by tokens in flight).

    Raises
    ------
    ArgumentError
        If there is no such list.

    Examples
    --------
    >>> sizes("llama3-70b")[0]
    Size(list='llama3-70b', name='1 token', nbytes=16384, dtype='bf16')
    """
    if name not in _FILES:
        raise ArgumentError(f"list {name!r} is unknown; {hint(name, _FILES)}")
    text = (files("kernbench.studies") / "data" / _FILES[name]).read_text(encoding="utf-8")
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return [Size(name, _title(row), int(row["bytes"]), _TYPES[name]) for row in rows]


def _title(row: dict[str, str]) -> str:
    if "tokens" in row:
        return f"{row['tokens']} token{'s' if row['tokens'] != '1' else ''}"
    return f"{int(row['elements_fp32']):,} elements"
