"""Streams of accesses to one pseudo channel of an HBM slice, for a comparison with a simulator of DRAM controllers."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from kernbench._units import serialization_ps
from kernbench.config._dram import dram
from kernbench.sim_engine._dram import DramSlice
from kernbench.sim_engine._network import Clock, Network
from kernbench.sim_engine._transaction import Reply, Route, Transaction
from kernbench.topology.builder import Machine

SPAN_BYTES = 64 << 20  # of random addresses
FULL = "full"
_NEVER_PS = 1 << 60


class _Arrival(NamedTuple):
    clock: int
    write: bool
    address: int


def stream(
    pattern: str, requests: int, access_bytes: int, *, stride: int, reads: float, load: str, seed: int
) -> Iterator[_Arrival]:
    """Yield accesses, each of which takes two clocks of the data bus.

    `load` is the share of the channel's bandwidth, with random gaps between arrivals, or `full`: all arrive at once.
    """
    rng = Random(seed)
    t = 0.0
    for i in range(requests):
        if pattern == "random":
            address = rng.randrange(SPAN_BYTES // access_bytes) * access_bytes
        else:
            address = i * (stride if pattern == "strided" else access_bytes)
        write = rng.random() >= reads
        if load != FULL:
            t += rng.expovariate(float(load) / 2)
        yield _Arrival(int(t), write, address)


class _Replies(Network):
    """Reply network of a slice: records when the last flit of each read is ready."""

    def __init__(self) -> None:
        self.env = Clock()
        self.core = self.env.core
        self.ends: dict[int, int] = {}

    def reply(self, reply: Reply, _: object) -> None:
        if reply.ready():
            self.ends[reply.txn.key] = self.core.now

    def acknowledge(self, txn: Transaction) -> None:
        """Ignore the end of a write."""


def measure(
    machine: Machine,
    *,
    timing: str,
    pattern: str,
    requests: int | str,
    metric: str,
    load: str = FULL,
    stride: int | str = 0,
    reads: float | str = 1,
    seed: int | str = 1,
    channel_bw_gbs: float | str,
    mapping: str = "RoBaCoBg",
    refresh: str = "on",
) -> float:
    """Throughput until the last access is done [GB/s], or mean latency of reads from arrival to data [ns].

    The stream is on one pseudo channel. `timing`, `channel_bw_gbs` and `mapping` replace those of the machine's HBM.
    `pattern` is sequential, strided (by `stride` bytes) or random. `load` is as for `stream`, `reads` a share.
    `refresh` is `on`, `off`, or `bank`: only the bank waits until a refresh that is due is issued.
    """
    access_bytes, bw = dram(timing).access_bytes, float(channel_bw_gbs)
    chosen = {
        "timing": timing, "mapping": mapping, "hash": "none", "channels": 1, "channel_bw_gbs": bw,
        "burst_bytes": access_bytes,
    }  # fmt: skip
    hbm = machine.with_({f"cube.hbm.{key}": value for key, value in chosen.items()}).config.cube.hbm
    replies = _Replies()
    part = DramSlice(replies, hbm, None)
    if refresh == "off":
        part.timing.ref_every = _NEVER_PS
    part.timing.refresh_alone &= refresh != "bank"
    clock_ps = serialization_ps(access_bytes, bw) // 2
    arrivals = list(
        stream(
            pattern, int(requests), access_bytes,
            stride=int(stride), reads=float(reads), load=load, seed=int(seed),
        )
    )  # fmt: skip
    for key, arrival in enumerate(arrivals):
        txn = Transaction(access_bytes, arrival.address, lambda _: None)
        txn.key, txn.back = key, Route((), 0, None, access_bytes)
        replies.core.call_at(arrival.clock * clock_ps, part.on_write if arrival.write else part.on_read, txn)
    replies.env.run()
    if metric == "throughput":
        return len(arrivals) * access_bytes * 1000 / max(channel.busy for channel in part.channels)
    waits = [replies.ends[i] - a.clock * clock_ps for i, a in enumerate(arrivals) if not a.write]
    return sum(waits) / len(waits) / 1000
