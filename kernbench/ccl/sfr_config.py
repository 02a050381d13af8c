"""Wiring tables of a machine's physical graphs: cubes and SIPs, and the PEs of a cube.

A table contains for each PE: direction -> (peer, the peer's direction back), as the roles of a plan do. It is for
kernels that are launched over queues without an algorithm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kernbench.ccl import _topologies as topologies
from kernbench.ccl._group import Group, Place, Subgroup
from kernbench.config import MachineConfig

if TYPE_CHECKING:
    from kernbench.ccl.algorithm import Topology
    from kernbench.sim_engine.engine import GraphEngine

Wiring = Mapping[Place, Mapping[str, tuple[Place, str]]]


def configure_sfr_intercube_multisip(
    engine: GraphEngine | MachineConfig,
    spec: Mapping[str, Any] | None = None,
    cfg: Mapping[str, Any] | None = None,
    *,
    sips: Sequence[int] | None = None,
    cubes: Sequence[int] | None = None,
    pes: Sequence[int] | None = None,
    root_cube: int | str | None = None,
) -> Wiring:
    """Return the mesh of each device's cubes (N, S, E, W) and, at the root cubes, the devices (`global_E`, ...).

    Parameters
    ----------
    engine : GraphEngine or MachineConfig
        On an engine, queues of this graph are installed for the launches that name none.
    spec, cfg : mapping, optional
        As in the reference design: the engine's machine, and the queues as `resolve_algorithm_config` returns them.
    sips : sequence of int, optional
        Devices; all of them unless given.
    cubes : sequence of int, optional
        Cubes of each, which fill a rectangle of the mesh; all of them unless given.
    pes : sequence of int
        PEs of each cube, each connected to those of the same number; by default the first one, on an engine all.
    root_cube : int or str, optional
        The root cube of each device: its number, "corner" or "centre"; by default that of `cfg`, else the centre.
    """
    machine = _machine(engine)
    cubes = range(machine.cubes_per_sip) if cubes is None else cubes
    if pes is None:
        pes = (0,) if engine is machine else range(machine.pes_per_cube)
    root = (cfg or {}).get("root_cube", "centre") if root_cube is None else root_cube
    wiring: dict[Place, Mapping[str, tuple[Place, str]]] = {}
    for pe in pes:
        wiring |= _wired(machine, sips, [(cube, pe) for cube in cubes], root, topologies.intercube)
    return _installed(engine, wiring, cfg)


def configure_sfr_intracube_pe_ring(
    engine: GraphEngine | MachineConfig,
    spec: Mapping[str, Any] | None = None,
    cfg: Mapping[str, Any] | None = None,
    *,
    sips: Sequence[int] | None = None,
    cubes: Sequence[int] | None = None,
    pes: Sequence[int] | None = None,
) -> Wiring:
    """Return the ring of each cube's PEs: `local_E` to the next, `local_W` to the one before.

    Parameters
    ----------
    engine, spec, cfg
        As for `configure_sfr_intercube_multisip`.
    sips, cubes, pes : sequence of int, optional
        Devices, their cubes, and the PEs of each; all of them unless given.
    """
    machine = _machine(engine)
    cubes = range(machine.cubes_per_sip) if cubes is None else cubes
    pes = range(machine.pes_per_cube) if pes is None else pes
    wiring = _wired(machine, sips, [(cube, pe) for cube in cubes for pe in pes], "corner", topologies.local_ring)
    return _installed(engine, wiring, cfg)


def _machine(engine: GraphEngine | MachineConfig) -> MachineConfig:
    return engine if isinstance(engine, MachineConfig) else engine.machine.config


def _installed(engine: GraphEngine | MachineConfig, wiring: Wiring, cfg: Mapping[str, Any] | None) -> Wiring:
    if not isinstance(engine, MachineConfig):
        from kernbench import compat

        compat.install_queues(engine, wiring, cfg)
    return wiring


def _wired(
    machine: MachineConfig, sips: Sequence[int] | None, places: Sequence[tuple[int, int]], root: int | str, of: Topology
) -> dict[Place, Mapping[str, tuple[Place, str]]]:
    group = Group.of(machine, range(machine.n_sips) if sips is None else sips, places)
    members = tuple((sip, cube, pe) for sip in group.sips for cube, pe in places)
    subgroup = Subgroup(members, group.sip_grid, group.cube_columns, root)
    return {
        here: {direction: (members[peer], back) for direction, (peer, back) in neighbours.items()}
        for here, neighbours in zip(members, of(subgroup), strict=True)
    }
