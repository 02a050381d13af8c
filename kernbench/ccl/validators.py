"""What an algorithm asks of the shards of a group; each validator raises ConfigError where they are not so."""

from __future__ import annotations

from kernbench.ccl.lane import Group
from kernbench.errors import ConfigError


def single_shard_per_rank(group: Group) -> None:
    """Ask that each device holds one shard."""
    for shards in group.shards:
        if len(shards) != 1:
            raise ConfigError(
                f"it takes one shard on each device, and SIP {shards[0][0]} has {len(shards)}; place the tensor on one "
                "PE (the default), or choose an algorithm with mapper by_shard"
                if shards
                else "it takes one shard on each device, and one has none; the tensor is empty"
            )


def multi_pe_sip_local(group: Group) -> None:
    """Ask that each device holds shards, on the same PEs as every other."""
    first = [place[1:] for place in group.shards[0]]
    for shards in group.shards:
        if not shards:
            raise ConfigError("it takes shards on each device, and one has none; the tensor is empty")
        if [place[1:] for place in shards] != first:
            raise ConfigError(
                f"it takes shards on the same PEs of each device, and SIP {shards[0][0]} holds {len(shards)} on other "
                f"PEs than SIP {group.shards[0][0][0]} ({len(first)}); use the same DPPolicy on every device"
            )
