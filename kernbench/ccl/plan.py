"""What an algorithm comes to on a group of devices: which PE is which participant, and whom it talks to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernbench.ccl.algorithm import Algorithm, Neighbours
from kernbench.ccl.group import Grid, Group, Place, Subgroup, Target
from kernbench.errors import ConfigError

if TYPE_CHECKING:
    from kernbench.config import MachineConfig


@dataclass(frozen=True, slots=True)
class Role:
    """What one PE is in a collective.

    Attributes
    ----------
    rank : int
        Its number among the participants of its subgroup.
    subgroup : int
        Which subgroup it is in.
    neighbours : mapping
        Direction to (the PE behind it, what that PE calls the direction).
    """

    rank: int
    subgroup: int
    neighbours: Mapping[str, tuple[Place, str]]


@dataclass(frozen=True, slots=True, repr=False)
class Plan:
    """An algorithm on a group.

    Attributes
    ----------
    algorithm : Algorithm
    world_size : int
        Participants of each subgroup.
    programs : mapping
        (sip, cube, pe) to its role, for every PE that runs the kernel.
    subgroups : tuple of Subgroup
    """

    algorithm: Algorithm
    world_size: int
    programs: Mapping[Place, Role]
    subgroups: tuple[Subgroup, ...]

    @property
    def sips(self) -> tuple[int, ...]:
        """Devices, in rank order."""
        return self.subgroups[0].sips

    def __repr__(self) -> str:
        a, subgroups = self.algorithm, len(self.subgroups)
        beside = f" in each of {subgroups} subgroups" if subgroups > 1 else ""
        return f"<Plan of {a.name}: {a.collective}, {self.world_size} participants{beside}, SIPs {list(self.sips)}>"

    def on(self, sip: int) -> dict[Target, Role]:
        """Return the roles of a device's PEs, by (cube, pe)."""
        return {(cube, pe): role for (s, cube, pe), role in self.programs.items() if s == sip}

    def args(self, place: Place, n_elem: int, /, **call: Any) -> tuple[Any, ...]:
        """Return the arguments, after its pointers, of the kernel on one PE.

        Parameters
        ----------
        place : Place
        n_elem : int
            Elements of its shard.
        **call
            What this call asks for, such as `op` or `root`.
        """
        return self.algorithm.arguments(self.subgroups[self.programs[place].subgroup], n_elem, call)


def plan(
    algorithm: Algorithm,
    machine: MachineConfig,
    sips: Sequence[int],
    places: Sequence[Target] | Mapping[int, Sequence[Target]],
) -> Plan:
    """Return what `algorithm` comes to on devices of a machine.

    Parameters
    ----------
    algorithm : Algorithm
    machine : MachineConfig
    sips : sequence of int
        The group's devices, in rank order.
    places : sequence of (cube, pe), or mapping of a SIP to such a sequence
        The PEs that hold a shard, on every device or on each.

    Raises
    ------
    ConfigError
        If the algorithm does not run there; the message says why.
    """
    return plan_group(algorithm.on(machine), Group.of(machine, sips, places))


def devices(algorithm: Algorithm, machine: MachineConfig, places: Sequence[Target]) -> range:
    """Return the devices that an algorithm runs on by itself: the first ones that make up its `world_size`, or all.

    Parameters
    ----------
    algorithm : Algorithm
    machine : MachineConfig
    places : sequence of (cube, pe)
        The PEs of each device that hold a shard.

    Raises
    ------
    ConfigError
        If the machine has fewer participants, or they are no whole devices.
    """
    if algorithm.world_size is None:
        return range(machine.n_sips)
    each = len(algorithm.mapper(Group.of(machine, [0], places))[0])
    n, rest = divmod(algorithm.world_size, each)
    if rest or n > machine.n_sips:
        raise ConfigError(
            f"algorithm {algorithm.name!r}: world_size = {algorithm.world_size} is not to be had: the machine has "
            f"{machine.n_sips} SIPs, with {each} participants each; change the machine, or leave world_size out"
        )
    return range(n)


def plan_group(algorithm: Algorithm, group: Group) -> Plan:
    """Return what `algorithm` comes to on a group, whatever machine that is on.

    Raises
    ------
    ConfigError
        If the algorithm does not run there; the message says why.
    """
    try:
        algorithm.validator(group)
        subgroups = tuple(_subgroup(algorithm, group, places) for places in algorithm.mapper(group))
        programs: dict[Place, Role] = {}
        graph: Neighbours = []
        for number, subgroup in enumerate(subgroups):
            if algorithm.world_size not in (None, subgroup.world_size):
                raise ConfigError(
                    f"world_size = {algorithm.world_size}, but {subgroup.world_size} take part; change it to that, or "
                    "leave world_size out"
                )
            own = algorithm.topology(subgroup)
            if own != graph:
                _check(own, subgroup)
                graph = own
            for rank, (place, beside) in enumerate(zip(subgroup.places, own, strict=True)):
                neighbours = {way: (subgroup.places[peer], back) for way, (peer, back) in beside.items()}
                programs[place] = Role(rank, number, neighbours)
    except ConfigError as error:
        raise ConfigError(f"algorithm {algorithm.name!r}: {error}") from error
    return Plan(algorithm, subgroups[0].world_size, programs, subgroups)


def _subgroup(algorithm: Algorithm, group: Group, places: tuple[Place, ...]) -> Subgroup:
    options = algorithm.options
    grid = Grid(options["grid_w"], options["grid_h"]) if {"grid_w", "grid_h"} <= options.keys() else None
    return Subgroup(places, group.sip_grid, group.cube_columns, algorithm.root_cube, grid)


def _check(graph: Neighbours, subgroup: Subgroup) -> None:
    """Refuse a topology whose queues do not join two ends: a user's own may be wrong."""
    for rank, beside in enumerate(graph):
        for way, (peer, back) in beside.items():
            if (other := graph[peer].get(back)) != (rank, way):
                ends = other and (subgroup.places[other[0]], other[1])
                raise ConfigError(
                    f"{way!r} of PE {subgroup.places[rank]} leads to {back!r} of {subgroup.places[peer]}, which leads "
                    f"to {ends}; a topology has to name both ends of each queue"
                )
