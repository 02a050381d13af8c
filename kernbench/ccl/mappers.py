"""Who takes part in a collective: from the shards of a group to lanes of participants, in the order of their numbers.

What a mapper counts is what `world_size` counts: devices (`leader_only`, `by_shard`), cubes (`by_cube`) or PEs
(`all_pes`).
"""

from __future__ import annotations

from kernbench.ccl.lane import Group, Place
from kernbench.errors import ConfigError

Lanes = list[tuple[Place, ...]]


def leader_only(group: Group) -> Lanes:
    """Return one lane with the first PE of each device that holds a shard."""
    return [tuple(shards[0] for shards in group.shards)]


def by_shard(group: Group) -> Lanes:
    """Return a lane for each shard: the PEs that hold it, one on each device."""
    return list(zip(*_alike(group), strict=True))


def by_cube(group: Group) -> Lanes:
    """Return a lane for each PE that a cube's shard is spread over: that PE of every cube, device by device."""
    held = [_by_pe(shards) for shards in _alike(group)]
    return [tuple(place for device in held for place in device[pe]) for pe in held[0]]


def all_pes(group: Group) -> Lanes:
    """Return one lane with every PE that holds a shard: device by device, cube by cube."""
    devices = _alike(group)
    for shards in devices:
        _by_pe(shards)
    return [tuple(place for shards in devices for place in shards)]


def _alike(group: Group) -> tuple[tuple[Place, ...], ...]:
    """Return the shards, the same PEs of each device."""
    first = [place[1:] for place in group.shards[0]]
    for shards in group.shards:
        if [place[1:] for place in shards] != first:
            raise ConfigError(
                f"SIP {shards[0][0]} holds its shards on other PEs than SIP {group.shards[0][0][0]}; place the tensor "
                "with the same DPPolicy on every device"
            )
    return group.shards


def _by_pe(shards: tuple[Place, ...]) -> dict[int, list[Place]]:
    """Return the places of each PE number, the same PEs of every cube."""
    found: dict[int, list[Place]] = {}
    for place in shards:
        found.setdefault(place[2], []).append(place)
    cubes = {pe: [cube for _, cube, _ in places] for pe, places in found.items()}
    if len({tuple(own) for own in cubes.values()}) > 1:
        raise ConfigError(
            f"the cubes of SIP {shards[0][0]} hold shards on different PEs; spread the tensor evenly over cubes and PEs"
        )
    return found
