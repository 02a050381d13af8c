"""What an algorithm comes to on a group of devices: which PE is which participant, and whom it talks to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernbench.ccl.algorithm import Algorithm, Neighbours
from kernbench.ccl.lane import Grid, Group, Lane, Place, Target
from kernbench.errors import ConfigError

if TYPE_CHECKING:
    from kernbench.config import MachineConfig


@dataclass(frozen=True, slots=True)
class Role:
    """What one PE is in a collective.

    Attributes
    ----------
    rank : int
        Its number among the participants of its lane.
    lane : int
        Which lane it is in.
    neighbours : mapping
        Direction to (the PE behind it, what that PE calls the direction).
    """

    rank: int
    lane: int
    neighbours: Mapping[str, tuple[Place, str]]


@dataclass(frozen=True, slots=True, repr=False)
class Plan:
    """An algorithm on a group.

    Attributes
    ----------
    algorithm : Algorithm
    world_size : int
        Participants of each lane.
    programs : mapping
        (sip, cube, pe) to its role, for every PE that runs the kernel.
    lanes : tuple of Lane
    """

    algorithm: Algorithm
    world_size: int
    programs: Mapping[Place, Role]
    lanes: tuple[Lane, ...]

    @property
    def sips(self) -> tuple[int, ...]:
        """Devices, in rank order."""
        return self.lanes[0].sips

    def __repr__(self) -> str:
        a, lanes = self.algorithm, len(self.lanes)
        beside = f" in each of {lanes} lanes" if lanes > 1 else ""
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
        return self.algorithm.arguments(self.lanes[self.programs[place].lane], n_elem, call)


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
        lanes = tuple(_lane(algorithm, group, places) for places in algorithm.mapper(group))
        programs: dict[Place, Role] = {}
        graph: Neighbours = []
        for number, lane in enumerate(lanes):
            if algorithm.world_size not in (None, lane.world_size):
                raise ConfigError(
                    f"world_size = {algorithm.world_size}, but {lane.world_size} take part; give it so many, or leave "
                    "world_size out"
                )
            own = algorithm.topology(lane)
            if own != graph:
                _check(own, lane)
                graph = own
            for rank, (place, beside) in enumerate(zip(lane.places, own, strict=True)):
                neighbours = {way: (lane.places[peer], back) for way, (peer, back) in beside.items()}
                programs[place] = Role(rank, number, neighbours)
    except ConfigError as error:
        raise ConfigError(f"algorithm {algorithm.name!r}: {error}") from error
    return Plan(algorithm, lanes[0].world_size, programs, lanes)


def _lane(algorithm: Algorithm, group: Group, places: tuple[Place, ...]) -> Lane:
    options = algorithm.options
    grid = Grid(options["grid_w"], options["grid_h"]) if {"grid_w", "grid_h"} <= options.keys() else None
    return Lane(places, group.sip_grid, group.cube_columns, algorithm.root_cube, grid)


def _check(graph: Neighbours, lane: Lane) -> None:
    """Refuse a topology whose queues do not join two ends: a user's own may be wrong."""
    for rank, beside in enumerate(graph):
        for way, (peer, back) in beside.items():
            if (other := graph[peer].get(back)) != (rank, way):
                ends = other and (lane.places[other[0]], other[1])
                raise ConfigError(
                    f"{way!r} of PE {lane.places[rank]} leads to {back!r} of {lane.places[peer]}, which leads to "
                    f"{ends}; a topology has to name both ends of each queue"
                )
