"""Wiring tables of a machine's physical graphs: cubes and SIPs, and the PEs of a cube.

A table contains for each PE: direction -> (the PE that it leads to, that PE's direction back), as the roles of a plan
do, for kernels that are launched over queues without an algorithm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kernbench.ccl import _topologies as topologies
from kernbench.ccl._group import Group, Place, Subgroup

if TYPE_CHECKING:
    from kernbench.ccl.algorithm import Topology
    from kernbench.config import MachineConfig

Wiring = Mapping[Place, Mapping[str, tuple[Place, str]]]


def configure_sfr_intercube_multisip(
    machine: MachineConfig,
    sips: Sequence[int] | None = None,
    cubes: Sequence[int] | None = None,
    pes: Sequence[int] = (0,),
    root_cube: int | str = "centre",
) -> Wiring:
    """Return the mesh of each device's cubes (N, S, E, W) and, at the root cubes, the devices (`global_E`, ...).

    Parameters
    ----------
    machine : MachineConfig
    sips : sequence of int, optional
        Devices; all of them unless given.
    cubes : sequence of int, optional
        Cubes of each, which fill a rectangle of the mesh; all of them unless given.
    pes : sequence of int
        PEs of each cube; each is connected to those of the same number.
    root_cube : int or str
        The root cube of each device: its number, "corner" or "centre".
    """
    cubes = range(machine.cubes_per_sip) if cubes is None else cubes
    wiring: dict[Place, Mapping[str, tuple[Place, str]]] = {}
    for pe in pes:
        wiring |= _wired(machine, sips, [(cube, pe) for cube in cubes], root_cube, topologies.intercube)
    return wiring


def configure_sfr_intracube_pe_ring(
    machine: MachineConfig,
    sips: Sequence[int] | None = None,
    cubes: Sequence[int] | None = None,
    pes: Sequence[int] | None = None,
) -> Wiring:
    """Return the ring of each cube's PEs: `local_E` to the next, `local_W` to the one before.

    Parameters
    ----------
    machine : MachineConfig
    sips, cubes, pes : sequence of int, optional
        Devices, their cubes, and the PEs of each; all of them unless given.
    """
    cubes = range(machine.cubes_per_sip) if cubes is None else cubes
    pes = range(machine.pes_per_cube) if pes is None else pes
    return _wired(machine, sips, [(cube, pe) for cube in cubes for pe in pes], "corner", topologies.local_ring)


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
