"""Random machines and random traffic, for every simulator of a machine's links and memories."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import accumulate
from random import Random
from typing import NamedTuple, Protocol

from kernbench.topology.builder import Machine, resolve_topology

Done = Callable[[], None]


class Simulator(Protocol):
    """What moves messages and serves memories on one machine; times in ps."""

    @property
    def now(self) -> int:
        """The time."""

    def run(self) -> None:
        """Run until nothing is left to do."""

    def at(self, t: int, fn: Done) -> None:
        """Call `fn()` at `t`."""

    def send(self, src: str, dst: str, nbytes: int, done: Done) -> None:
        """Send a message now."""

    def read(self, src: str, memory: str, offset: int, nbytes: int, done: Done) -> None:
        """Read from a memory now."""

    def write(self, src: str, memory: str, offset: int, nbytes: int, done: Done) -> None:
        """Write to a memory now."""


SIZES = (1, 2, 16, 100, 255, 256, 257, 300, 511, 512, 513, 1000, 1024, 2048, 4095, 4096, 4097)
_GBS = (30.0, 64.0, 77.7, 100.0, 128.0, 205.0, 256.0, 300.0)
_SIPS = (
    {"count": 1, "topology": "ring_1d"},
    {"count": 2, "topology": "ring_1d"},
    {"count": 3, "topology": "ring_1d"},
    {"count": 3, "topology": "fully_connected"},
    {"count": 4, "topology": "torus_2d"},
)


@cache
def random_machine(seed: object) -> Machine:
    """Return a small machine whose bandwidths and latencies share no grid."""
    rng = Random(f"machine {seed}")

    def ns(top: float) -> float:
        return rng.choice((0.0, 1.0, round(rng.uniform(0, top), 3)))

    rows, cols = rng.randint(1, 4), rng.randint(2, 4)
    places = [[r, c] for r in range(rows) for c in range(cols)]
    channels = rng.choice((1, 2, 4, 8))
    return resolve_topology(
        "preset:default",
        {
            "system.sips": dict(rng.choice(_SIPS)),
            "system.sip_link.bw_gbs": rng.choice(_GBS),
            "system.sip_link.latency_ns": ns(50),
            "system.pcie.latency_ns": ns(100),
            "sip.cube_mesh.w": rng.randint(1, 2),
            "sip.cube_mesh.h": rng.randint(1, 2),
            "sip.io.noc.overhead_ns": ns(3),
            "sip.io.noc.port_bw_gbs": rng.choice(_GBS),
            "cube.propagation_ns_per_mm": rng.choice((0.0, 0.01, 0.137)),
            "cube.noc.rows": rows,
            "cube.noc.cols": cols,
            "cube.noc.removed": [],
            "cube.noc.link_bw_gbs": rng.choice(_GBS),
            "cube.noc.router.overhead_ns": ns(2),
            "cube.pe_layout.pe_routers": rng.sample(places, rng.randint(1, min(4, len(places)))),
            "cube.ucie.connections": rng.choice((1, 2, 4)),
            "cube.ucie.bw_gbs": rng.choice(_GBS),
            "cube.ucie.router_bw_gbs": rng.choice(_GBS),
            "cube.ucie.port_ns": ns(8),
            "cube.m_cpu.pos_mm": [0.5, 0.5],
            "cube.sram.pos_mm": [cols * 3 - 0.5, rows * 3 - 0.5],
            "cube.sram.bw_gbs": rng.choice(_GBS),
            "cube.hbm.channels": channels,
            "cube.hbm.channel_bw_gbs": rng.choice((8.0, 16.0, 32.0)),
            "cube.hbm.efficiency": rng.choice((0.8, 0.83, 1.0)),
            "cube.hbm.turnaround_ns": ns(9),
            "cube.hbm.access_ns": ns(40),
            "cube.hbm.bw_gbs": 256.0,
            "cube.pe.pe_dma.bw_gbs": 256.0,
            "system.flit_bytes": rng.choice((64, 256, 256, 320)),
            "system.command_bytes": rng.choice((0, 12)),
            "cube.noc.header_bytes": rng.choice((0, 0, 8)),
            "system.sip_link.header_bytes": rng.choice((0, 20)),
            "system.pcie.efficiency": rng.choice((0.9, 1.0)),
            "cube.ucie.efficiency": rng.choice((0.92, 1.0)),
        },
    )


class Ask(NamedTuple):
    """One transaction of an agent, `wait_ps` after the end of the agent's last one, or in an open loop its start."""

    agent: int
    wait_ps: int
    kind: str
    src: str
    dst: str
    offset: int
    nbytes: int


KINDS = ("send", "read", "write")


def random_traffic(
    machine: Machine,
    seed: object,
    kinds: Sequence[str] = KINDS,
    rounds: int = 6,
    *,
    per_source: int = 1,
    sources: int = 12,
    light: bool = False,
) -> list[Ask]:
    """Return what agents at random nodes ask, each `rounds` times; unless `light`, often of the same few ends.

    One agent a source asks again at once. Several wait before they do: which of two asked first at the same instant is
    not the machine's to decide.
    """
    rng = Random(f"agents {seed}")
    nodes = list(machine.graph.nodes())
    possible = [node.id for node in nodes if node.kind in ("pe_dma", "host", "io_cpu", "m_cpu")]
    memories = [node.id for node in nodes if node.kind in ("hbm_ctrl", "sram")]
    targets = memories + [node.id for node in nodes if node.kind in ("pe_dma", "pe_cpu", "m_cpu", "host")]
    starts = rng.sample(possible, min(sources, len(possible)))
    hot_targets = rng.sample(targets, min(3, len(targets)))
    hot_memories = rng.sample(memories, min(2, len(memories)))

    def some(ids: list[str], hot: list[str], src: str) -> list[str]:
        near = ([] if light else hot * 2) + rng.sample(ids, min(4, len(ids)))
        return [end for end in near if end != src] or [end for end in ids if end != src]

    asks = []
    for agent, src in enumerate(src for src in starts for _ in range(per_source)):
        ends = {"send": some(targets, hot_targets, src), "memory": some(memories, hot_memories, src)}
        own = Random(f"agent {seed} {agent}")
        wait = own.randrange(1, 200_000) if per_source > 1 else 1000 * own.randrange(1, 4)
        for _ in range(rounds):
            kind = own.choice(kinds)
            dst, offset = own.choice(ends.get(kind, ends["memory"])), 0
            nbytes = own.choice((own.choice(SIZES), own.randrange(1, 3000)))
            if kind == "send":
                nbytes = own.choice((0, nbytes, nbytes))
            else:
                offset = own.choice((own.randrange(64) * 256, own.randrange(1 << 14)))
            asks.append(Ask(agent, wait, kind, src, dst, offset, nbytes))
            wait = own.randrange(1, 5_000_000 if light else 20_000) if per_source > 1 else 0
    return asks


def play(sim: Simulator, asks: Sequence[Ask], *, closed: bool = True) -> list[int]:
    """Run transactions in a closed or open loop; return the end of each [ps], in the order of `asks`."""
    ends = [0] * len(asks)
    queues: dict[int, list[int]] = {}
    for i, ask in enumerate(asks):
        queues.setdefault(ask.agent, []).append(i)
    left = {agent: iter(queue) for agent, queue in queues.items()}

    def start(i: int) -> None:
        def ended() -> None:
            ends[i] = sim.now
            if closed:
                follow(ask.agent)

        ask = asks[i]
        if ask.kind == "send":
            sim.send(ask.src, ask.dst, ask.nbytes, ended)
        else:
            begin = sim.read if ask.kind == "read" else sim.write
            begin(ask.src, ask.dst, ask.offset, ask.nbytes, ended)

    def follow(agent: int) -> None:
        i = next(left[agent], None)
        if i is not None and asks[i].wait_ps:
            sim.at(sim.now + asks[i].wait_ps, partial(start, i))
        elif i is not None:
            start(i)

    for agent, queue in queues.items():
        if closed:
            follow(agent)
        else:
            for i, t in zip(queue, accumulate(asks[i].wait_ps for i in queue), strict=True):
                sim.at(t, partial(start, i))
    sim.run()
    return ends
