"""The slices of the collectives study, as cases: each asks one question of the machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import isqrt
from typing import Any

from kernbench.ccl.algorithm import Algorithm
from kernbench.ccl.install import names
from kernbench.config import CclConfig, MachineConfig
from kernbench.dtypes import as_dtype
from kernbench.studies.ccl import Case
from kernbench.studies.ccl_lists import sizes as list_sizes

# (count, topology) or (count, topology, w, h), as `system.sips` of a machine file has them.
System = Sequence[Any]
Grid = Mapping[str, Any]

SIX = (6, "torus_2d", 3, 2)

INTERCUBE = "intercube_allreduce"
RING = "ring_allreduce_tcm"
ONE_EACH = (RING, "torus_allreduce", "halving_doubling_allreduce", "tree_allreduce", "double_tree_allreduce")
LISTED = (RING, "torus_allreduce", "halving_doubling_allreduce", "tree_allreduce")
CHUNK, LONG = 32 << 10, 128 << 10  # of lists; long vectors go in chunks twice as long
SIZES, OTHERS, KINDS, ROOTS, SCALING, SLOTS, LIMITS, LISTS, MARKS = (
    "sizes", "other collectives", "buffer kinds", "roots", "scaling", "slots", "limits", "lists", "published",
)  # fmt: skip


def study(
    config: CclConfig,
    machine: MachineConfig,
    *,
    by_rank: Sequence[Grid],
    by_cube: Sequence[Grid],
    by_pe: Sequence[Grid],
    others: Grid,
    kinds: Sequence[int],
    root_bytes: int,
    more_sips: Mapping[str, Any],
    more_slots: Mapping[str, Any],
    halved: Sequence[int],
    programs: Mapping[str, Any],
    marks: Sequence[int],
    own: Sequence[Algorithm] = (),
) -> list[Case]:
    """Return the cases of the whole study.

    Parameters
    ----------
    config : CclConfig
        The ccl.yaml.
    machine : MachineConfig
        The machine; its SIPs are changed.
    by_rank, by_cube, by_pe : sequence of mapping
        `systems` and `sizes` of every all-reduce with that contribution; `slot_size` where it is not that of the
        entries.
    others : mapping
        `systems` and `sizes` of every other collective.
    kinds : sequence of int
        Sizes with rings in TCM, SRAM and HBM.
    root_bytes : int
        Size with each cube as root.
    more_sips : mapping
        `counts`, `topology` and `sizes`.
    more_slots : mapping
        `counts` and `nbytes`.
    halved : sequence of int
        Sizes with one thing halved after the other.
    programs : mapping
        `lists` of all-reduces of real programs, and the `system` they run on; `max_bytes`, if only those up to so many.
    marks : sequence of int
        Sizes of published figures.
    own : sequence of Algorithm
        Further ones, which are compared by size with those of the same collective and contribution.
    """
    cases = []
    for contribution, grids in (("rank", by_rank), ("cube", by_cube), ("pe", by_pe)):
        for grid in grids:
            mine = [a.name for a in own if (a.collective, a.contribution) == ("all_reduce", contribution)]
            systems, sizes = grid["systems"], grid["sizes"]
            found = by_size(config, machine, systems, sizes)
            found = [case for case in found if config.algorithms[case.algorithm].contribution == contribution]
            found += [_case(SIZES, system, name, size) for system in systems for name in mine for size in sizes]
            changes = {"slot_size": grid["slot_size"]} if "slot_size" in grid else {}
            cases += [replace(case, changes=changes) for case in found]
    mine = [a.name for a in own if a.collective != "all_reduce"]
    cases += [_case(OTHERS, s, name, size) for s in others["systems"] for name in mine for size in others["sizes"]]
    cases += by_size(config, machine, others["systems"], others["sizes"], others=True)
    cases += buffer_kinds(SIX, kinds)
    if by_cube:
        cases += roots(by_cube[0]["systems"][0], machine, root_bytes)
    cases += scaling(more_sips["counts"], more_sips["topology"], more_sips["sizes"])
    cases += slots(SIX, more_slots["counts"], more_slots["nbytes"])
    cases += limits(SIX, machine, halved, (RING, "tree_allreduce"))
    cases += lists(programs["system"], machine, programs["lists"], max_bytes=programs.get("max_bytes"))
    return cases + published(SIX, marks)


def by_size(
    config: CclConfig,
    machine: MachineConfig,
    systems: Iterable[System],
    sizes: Sequence[int],
    *,
    programs: int = 10**6,
    others: bool = False,
) -> list[Case]:
    """Return every all-reduce (with `others`, every other collective) at every size on every system.

    Algorithms that come with another kind of ring than TCM are left out: the buffer kinds are a slice of their own.
    Those that would run on more than `programs` PEs are left out of a system.
    """
    each = {"rank": 1, "cube": machine.cubes_per_sip, "pe": machine.pes_per_sip}
    return [
        _case(OTHERS if others else SIZES, system, name, nbytes)
        for system in systems
        for name in names(config)
        if (config.algorithms[name].collective != "all_reduce") == others
        and config.setting(name, "buffer_kind") == "tcm"
        and system[0] * each[config.algorithms[name].contribution] <= programs
        for nbytes in ([2] if config.algorithms[name].collective == "barrier" else sizes)
    ]


def buffer_kinds(system: System, sizes: Sequence[int], algorithms: Sequence[str] = (INTERCUBE, RING)) -> list[Case]:
    """Return rings in TCM, SRAM and HBM."""
    return [
        _case(KINDS, system, name, nbytes, changes={"buffer_kind": kind})
        for name in algorithms
        for kind in ("tcm", "sram", "hbm")
        for nbytes in sizes
    ]


def roots(system: System, machine: MachineConfig, nbytes: int) -> list[Case]:
    """Return every cube as the one that stands for its SIP."""
    cubes = range(machine.cubes_per_sip)
    return [_case(ROOTS, system, INTERCUBE, nbytes, changes={"root_cube": cube}) for cube in cubes]


def scaling(
    counts: Sequence[int], topology: str, sizes: Sequence[int], algorithms: Sequence[str] = ONE_EACH
) -> list[Case]:
    """Return ever more SIPs, one PE each; grids as square as they can be."""
    return [
        _case(SCALING, _system(n, topology), name, nbytes) for n in counts for name in algorithms for nbytes in sizes
    ]


def slots(system: System, counts: Sequence[int], nbytes: int, algorithms: Sequence[str] = (RING,)) -> list[Case]:
    """Return ever more slots."""
    return [_case(SLOTS, system, name, nbytes, changes={"n_slots": n}) for name in algorithms for n in counts]


def limits(system: System, machine: MachineConfig, sizes: Sequence[int], algorithms: Sequence[str]) -> list[Case]:
    """Return each thing that might limit at half its value (latencies: at twice), one at a time."""
    cube, sips = machine.cube, machine.system
    halves: dict[str, dict[str, Any]] = {
        "nothing": {},
        "link between SIPs": {"system.sip_link.bw_gbs": sips.sip_link.bw_gbs / 2},
        "latency between SIPs": {"system.sip_link.latency_ns": sips.sip_link.latency_ns * 2},
        "UCIe": {"cube.ucie.bw_gbs": cube.ucie.bw_gbs / 2},
        "latency of UCIe ports": {"cube.ucie.port_ns": cube.ucie.port_ns * 2},
        "slots": {"cube.pe.pe_ipcq.n_slots": cube.pe.pe_ipcq.n_slots // 2},
        "HBM": {"cube.hbm.channel_bw_gbs": cube.hbm.channel_bw_gbs / 2},
        "vector engine": {"cube.pe.pe_math.clock_ghz": cube.pe.pe_math.clock_ghz / 2},
        "issue of commands": {"cube.pe.pe_cpu.command_ns": cube.pe.pe_cpu.command_ns * 2},
    }
    return [
        _case(LIMITS, system, name, nbytes, overrides=overrides, what=what)
        for name in algorithms
        for nbytes in sizes
        for what, overrides in halves.items()
    ]


def lists(
    system: System,
    machine: MachineConfig,
    names: Sequence[str],
    algorithms: Sequence[str] = LISTED,
    max_bytes: int | None = None,
) -> list[Case]:
    """Return the all-reduces of lists: a rank's vector lies on PE 0 of all cubes of its SIP, slots hold a chunk."""
    cases = []
    for size in (size for name in names for size in list_sizes(name)):
        if max_bytes is not None and size.nbytes > max_bytes:
            continue
        item = as_dtype(size.dtype).itemsize
        part = -(-size.nbytes // (machine.cubes_per_sip * item)) * item
        changes: Mapping[str, Any] = {"slot_size": CHUNK}
        if part >= LONG:
            changes = {"slot_size": 2 * CHUNK, "options": {"chunk_bytes": 2 * CHUNK}}
        cases += [
            _case(
                LISTS, system, algorithm, part, dtype=size.dtype, cubes=machine.cubes_per_sip, pes=1,
                changes=changes, what=f"{size.list} {size.name}",
            )
            for algorithm in algorithms
        ]  # fmt: skip
    return cases


def published(system: System, sizes: Sequence[int], others: int = 65536) -> list[Case]:
    """Return the all-reduces that the reference design's figures are of: by cube, and at one size in other memories.

    The largest one keeps its links.
    """
    cases = [_case(MARKS, system, INTERCUBE, nbytes, links=nbytes == max(sizes)) for nbytes in sizes]
    if others in sizes:
        kinds = ("sram", "hbm")
        cases += [_case(MARKS, system, INTERCUBE, others, changes={"buffer_kind": kind}) for kind in kinds]
    return cases


def _system(n: int, topology: str) -> System:
    rows = next(r for r in range(isqrt(n), 0, -1) if n % r == 0)
    return (n, topology, n // rows, rows) if topology in ("torus_2d", "mesh_2d_no_wrap") and n > 1 else (n, topology)


def _case(slice_name: str, system: System, algorithm: str, nbytes: int, **more: Any) -> Case:
    n, topology, *grid = system
    w, h = grid or (None, None)
    return Case(slice_name, n, topology, algorithm, nbytes, w=w, h=h, **more)
