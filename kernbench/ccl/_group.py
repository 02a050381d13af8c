"""Participants of a collective: the devices of a group, their shards, and subgroups of participants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isqrt

from kernbench.config import MachineConfig
from kernbench.errors import ConfigError
from kernbench.topology._naming import PeId
from kernbench.topology._sip_network import SipNetwork

Place = tuple[int, int, int]
# For each participant: direction -> (peer, the peer's direction back).
Neighbours = list[dict[str, tuple[int, str]]]


@dataclass(frozen=True, slots=True)
class Grid:
    """`w` columns and `h` rows, numbered row by row; `wraps` if first and last are connected."""

    w: int
    h: int
    wraps: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """The devices of a process group, and the PEs of each that hold a shard."""

    shards: tuple[tuple[Place, ...], ...]  # for each device, in rank order: (sip, cube, pe) of every shard, ascending
    sip_grid: Grid  # the grid of the devices: rank r at row r // w, column r % w
    cube_columns: int = 1  # cubes in a row of the machine's mesh
    targets: tuple[PeId, ...] = ()  # (cube, pe) of every PE of a device
    summed: bool = False  # all devices are at one switch, which adds

    @classmethod
    def of(
        cls, machine: MachineConfig, sips: Sequence[int], places: Sequence[PeId] | Mapping[int, Sequence[PeId]]
    ) -> Group:
        missing = [sip for sip in sips if not 0 <= sip < machine.n_sips]
        if missing or not sips or len(set(sips)) != len(sips):
            raise ConfigError(
                f"devices {list(sips)} are not a group: the machine has {machine.n_sips} SIPs, 0 to "
                f"{machine.n_sips - 1}; name some of them, each once"
            )
        own = {sip: places[sip] if isinstance(places, Mapping) else places for sip in sips}
        for sip, targets in own.items():
            for cube, pe in targets:
                if not (0 <= cube < machine.cubes_per_sip and 0 <= pe < machine.pes_per_cube):
                    raise ConfigError(
                        f"SIP {sip} has no PE {pe} of cube {cube}: the machine has {machine.cubes_per_sip} cubes of "
                        f"{machine.pes_per_cube} PEs"
                    )
        shards = tuple(tuple(sorted({(sip, cube, pe) for cube, pe in own[sip]})) for sip in sips)
        targets = tuple((cube, pe) for cube in range(machine.cubes_per_sip) for pe in range(machine.pes_per_cube))
        of_host = machine.system.sips.of_host
        summed = machine.system.sip_switch.reduce == "sum" and len({sip // of_host for sip in sips}) == 1
        return cls(shards, _sip_grid(machine, sips), machine.sip.cube_mesh.w, targets, summed)

    @property
    def sips(self) -> tuple[int, ...]:
        return tuple(shards[0][0] for shards in self.shards)

    @classmethod
    def line(cls, n_sips: int, places: Sequence[PeId] = ((0, 0),), cube_columns: int = 1) -> Group:
        """Group of `n_sips` devices in a ring, on no particular machine."""
        shards = tuple(tuple((sip, cube, pe) for cube, pe in sorted(places)) for sip in range(n_sips))
        return cls(shards, Grid(n_sips, 1, wraps=True), cube_columns)


@dataclass(frozen=True)
class Subgroup:
    """Participants that communicate with each other, in the order of their numbers.

    A collective has one subgroup, or several that run at the same time and share only links. `kernel_args` may request
    the integer attributes by name.
    """

    places: tuple[Place, ...]  # participant number to PE
    sip_grid: Grid  # the devices, in rank order
    cube_columns: int = 1  # cubes in a row of the machine's mesh
    root: int | str = "corner"  # the root cube of each SIP, as in ccl.yaml: its number, "corner" or "centre"
    grid: Grid | None = None  # of all participants, if ccl.yaml gives it

    @property
    def world_size(self) -> int:
        return len(self.places)

    @cached_property
    def sips(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(sip for sip, _, _ in self.places))

    @cached_property
    def cubes(self) -> tuple[int, ...]:
        return tuple(sorted({cube for _, cube, _ in self.places}))

    @cached_property
    def pes(self) -> tuple[int, ...]:
        return tuple(sorted({pe for _, _, pe in self.places}))

    @property
    def n_sips(self) -> int:
        return len(self.sips)

    @property
    def n_cubes(self) -> int:
        return len(self.cubes)

    @property
    def n_pes(self) -> int:
        return len(self.pes)

    @property
    def sip_w(self) -> int:
        return self.sip_grid.w

    @property
    def sip_h(self) -> int:
        return self.sip_grid.h

    @property
    def sip_wraps(self) -> bool:
        return self.sip_grid.wraps

    @property
    def cube_w(self) -> int:
        return self._cube_grid().w

    @property
    def cube_h(self) -> int:
        return self._cube_grid().h

    @property
    def root_cube(self) -> int:
        """Index of the root cube in `cubes`; ConfigError if it does not take part."""
        if self.root == "corner":
            return 0
        if self.root == "centre":
            grid = self._cube_grid()
            return grid.h // 2 * grid.w + grid.w // 2
        if self.root not in self.cubes:
            raise ConfigError(f"root_cube = {self.root} takes no part; expected corner, centre or one of {self.cubes}")
        return self.cubes.index(int(self.root))

    @property
    def grid_w(self) -> int:
        return self.flat_grid().w

    @property
    def grid_h(self) -> int:
        return self.flat_grid().h

    def flat_grid(self) -> Grid:
        """Grid of all participants: the given one, else the devices' own, else the squarest."""
        n, given = self.world_size, self.grid
        if given is not None:
            if given.w * given.h != n:
                raise ConfigError(f"options: grid_w x grid_h = {given.w} x {given.h} are not the {n} participants")
            return given
        if self.n_sips == n and min(self.sip_w, self.sip_h) > 1:
            return self.sip_grid
        rows = next(r for r in range(isqrt(n), 0, -1) if n % r == 0)
        if rows == 1 and n > 1:
            raise ConfigError(f"{n} participants form no grid of at least 2 x 2; choose a number that is a product")
        return Grid(n // rows, rows)

    def _cube_grid(self) -> Grid:
        rows = sorted({cube // self.cube_columns for cube in self.cubes})
        columns = sorted({cube % self.cube_columns for cube in self.cubes})
        if len(rows) * len(columns) != self.n_cubes:
            raise ConfigError(
                f"cubes {list(self.cubes)} fill no rectangle of a mesh with {self.cube_columns} columns; spread the "
                "tensor over whole rows of cubes, with num_cubes of its DPPolicy"
            )
        return Grid(len(columns), len(rows))


def _sip_grid(machine: MachineConfig, sips: Sequence[int]) -> Grid:
    """Grid of all SIPs, or of some that fill a rectangle of it row by row; a ring of any others."""
    net = SipNetwork(machine)
    w, _ = net.grid
    rows, columns = sorted({sip // w for sip in sips}), sorted({sip % w for sip in sips})
    if [r * w + c for r in rows for c in columns] == list(sips):
        return Grid(len(columns), len(rows), wraps=net.topology != "mesh_2d_no_wrap")
    return Grid(len(sips), 1, wraps=True)


# -- mappers: from the shards of a group to subgroups of participants, in the order of their numbers. `world_size`
# counts the units of a mapper: devices (`leader_only`, `by_shard`), cubes (`by_cube`) or PEs (`all_pes`).

Subgroups = list[tuple[Place, ...]]


def leader_only(group: Group) -> Subgroups:
    """One subgroup: the first PE of each device that holds a shard."""
    return [tuple(shards[0] for shards in group.shards)]


def by_shard(group: Group) -> Subgroups:
    """Subgroup for each shard: the PEs that hold it, one on each device."""
    multi_pe_sip_local(group)
    return list(zip(*group.shards, strict=True))


def by_cube(group: Group) -> Subgroups:
    """Subgroup for each PE number: that PE of every cube, device by device."""
    multi_pe_sip_local(group)
    held = [_by_pe(shards) for shards in group.shards]
    return [tuple(place for device in held for place in device[pe]) for pe in held[0]]


def all_pes(group: Group) -> Subgroups:
    """One subgroup: every PE that holds a shard, device by device, cube by cube."""
    multi_pe_sip_local(group)
    for shards in group.shards:
        _by_pe(shards)
    return [tuple(place for shards in group.shards for place in shards)]


def _by_pe(shards: tuple[Place, ...]) -> dict[int, list[Place]]:
    """Places by PE number; ConfigError unless each number is used in the same cubes."""
    found: dict[int, list[Place]] = {}
    for place in shards:
        found.setdefault(place[2], []).append(place)
    cubes = {pe: [cube for _, cube, _ in places] for pe, places in found.items()}
    if len({tuple(local) for local in cubes.values()}) > 1:
        raise ConfigError(
            f"the cubes of SIP {shards[0][0]} hold shards on different PEs; spread the tensor evenly over cubes and PEs"
        )
    return found


# -- validators: requirements of an algorithm on the shards of a group; they raise ConfigError


def single_shard_per_rank(group: Group) -> None:
    for shards in group.shards:
        if len(shards) != 1:
            raise ConfigError(
                f"it takes one shard on each device, and SIP {shards[0][0]} has {len(shards)}; place the tensor on one "
                "PE (the default), or choose an algorithm with mapper by_shard"
                if shards
                else "it takes one shard on each device, and one has none; the tensor is empty"
            )


def multi_pe_sip_local(group: Group) -> None:
    """Each device must have shards, on the same PEs as every other."""
    first = [place[1:] for place in group.shards[0]]
    for shards in group.shards:
        if not shards:
            raise ConfigError("it takes shards on each device, and one has none; the tensor is empty")
        if [place[1:] for place in shards] != first:
            raise ConfigError(
                f"it takes shards on the same PEs of each device, and SIP {shards[0][0]} holds {len(shards)} on other "
                f"PEs than SIP {group.shards[0][0][0]} ({len(first)}); use the same DPPolicy on every device"
            )


def at_a_switch_that_adds(group: Group) -> None:
    """All devices must be at one switch with a reduction."""
    multi_pe_sip_local(group)
    if not group.summed:
        raise ConfigError(
            "it takes SIPs at one switch that adds; set system.sips.topology to switch and system.sip_switch.reduce to "
            "sum, or use another algorithm"
        )
