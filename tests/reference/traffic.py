"""Closed-loop traffic over random small machines: each agent's next transaction follows its last one's end."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import NamedTuple

from kernbench.topology.builder import Machine, resolve_topology
from tests.reference.simulator import Simulator

SIZES = (1, 2, 16, 100, 255, 256, 257, 300, 511, 512, 513, 1000, 1024, 2048, 4095, 4096, 4097)
BANDWIDTHS = (30.0, 64.0, 77.7, 100.0, 128.0, 205.0, 256.0, 300.0)
SIPS = (
    {"count": 1, "topology": "ring_1d"},
    {"count": 2, "topology": "ring_1d"},
    {"count": 3, "topology": "ring_1d"},
    {"count": 3, "topology": "fully_connected"},
    {"count": 4, "topology": "torus_2d"},
)


@cache
def random_machine(seed: object) -> Machine:
    """Return a small machine with bandwidths and latencies that share no grid."""
    rng = Random(f"machine {seed}")

    def ns(top: float) -> float:
        return rng.choice((0.0, 1.0, round(rng.uniform(0, top), 3)))

    rows, cols = rng.randint(1, 4), rng.randint(2, 4)
    at = [[r, c] for r in range(rows) for c in range(cols)]
    channels = rng.choice((1, 2, 4, 8))
    overrides = {
        "system.sips": dict(rng.choice(SIPS)),
        "system.sip_link.bw_gbs": rng.choice(BANDWIDTHS),
        "system.sip_link.latency_ns": ns(50),
        "system.pcie.latency_ns": ns(100),
        "sip.cube_mesh.w": rng.randint(1, 2),
        "sip.cube_mesh.h": rng.randint(1, 2),
        "sip.io.noc.overhead_ns": ns(3),
        "sip.io.noc.port_bw_gbs": rng.choice(BANDWIDTHS),
        "cube.propagation_ns_per_mm": rng.choice((0.0, 0.01, 0.137)),
        "cube.noc.rows": rows,
        "cube.noc.cols": cols,
        "cube.noc.removed": [],
        "cube.noc.link_bw_gbs": rng.choice(BANDWIDTHS),
        "cube.noc.router.overhead_ns": ns(2),
        "cube.pe_layout.pe_routers": rng.sample(at, rng.randint(1, min(4, len(at)))),
        "cube.ucie.connections": rng.choice((1, 2, 4)),
        "cube.ucie.bw_gbs": rng.choice(BANDWIDTHS),
        "cube.ucie.router_bw_gbs": rng.choice(BANDWIDTHS),
        "cube.ucie.port_ns": ns(8),
        "cube.m_cpu.pos_mm": [0.5, 0.5],
        "cube.sram.pos_mm": [cols * 3 - 0.5, rows * 3 - 0.5],
        "cube.sram.bw_gbs": rng.choice(BANDWIDTHS),
        "cube.hbm.channels": channels,
        "cube.hbm.channel_bw_gbs": rng.choice((8.0, 16.0, 32.0)),
        "cube.hbm.efficiency": rng.choice((0.8, 0.83, 1.0)),
        "cube.hbm.turnaround_ns": ns(9),
        "cube.hbm.access_ns": ns(40),
        "cube.hbm.bw_gbs": 256.0,
        "cube.pe.pe_dma.bw_gbs": 256.0,
    }
    return resolve_topology("preset:default", overrides)


class Entry(NamedTuple):
    """The end of one transaction."""

    agent: int
    number: int
    what: str
    t_ps: int


@dataclass(eq=False)
class Agent:
    """Asks, waits for the end, thinks, and asks again, `rounds` times."""

    number: int
    src: str
    targets: list[str]
    memories: list[str]
    kinds: tuple[str, ...]
    rounds: int
    thinks: bool
    rng: Random = field(repr=False)

    def start(self, sim: Simulator, log: list[Entry]) -> None:
        """Begin, at a time of its own."""
        self._sim, self._log, self._round = sim, log, 0
        # One agent a source may begin when others do: simultaneous arrivals are what ties are about.
        sim.at(self.rng.randrange(1, 200_000) if self.thinks else 1000 * self.rng.randrange(1, 4), self._ask)

    def _ask(self) -> None:
        sim, rng = self._sim, self.rng
        kind = rng.choice(self.kinds)
        dst = rng.choice(self.targets if kind == "send" else self.memories)
        nbytes = rng.choice((rng.choice(SIZES), rng.randrange(1, 3000)))
        if kind == "send":
            nbytes = rng.choice((0, nbytes, nbytes))
            sim.send(self.src, dst, nbytes, lambda: self._end(f"send {nbytes} to {dst}"))
        else:
            offset = rng.choice((rng.randrange(64) * 256, rng.randrange(1 << 14)))
            ask = sim.read if kind == "read" else sim.write
            ask(self.src, dst, offset, nbytes, lambda: self._end(f"{kind} {nbytes} at {dst} + {offset}"))

    def _end(self, what: str) -> None:
        self._log.append(Entry(self.number, self._round, what, self._sim.now))
        self._round += 1
        if self._round == self.rounds:
            return
        if self.thinks:
            self._sim.at(self._sim.now + self.rng.randrange(1, 20_000), self._ask)
        else:
            self._ask()


def agents(
    machine: Machine, seed: object, kinds: tuple[str, ...], rounds: int, per_source: int = 1, sources: int = 12
) -> list[Agent]:
    """Return agents at random ends of a machine.

    With one agent a source, transactions follow at once; with more they think in between, since which of two
    asked first at the same instant is not the machine's to decide.
    """
    rng = Random(f"agents {seed}")
    nodes = [node for node in machine.graph.nodes() if node.kind in ("pe_dma", "host", "io_cpu", "m_cpu")]
    starts = [n.id for n in rng.sample(nodes, min(sources, len(nodes)))]
    memories = [node.id for node in machine.graph.nodes() if node.kind in ("hbm_ctrl", "sram")]
    targets = [*memories, *(n.id for n in machine.graph.nodes() if n.kind in ("pe_dma", "pe_cpu", "m_cpu", "host"))]

    def some(ids: list[str], src: str, hot: list[str]) -> list[str]:
        # A few draw most of the traffic, so that it meets.
        return [n for n in hot * 2 + rng.sample(ids, min(4, len(ids))) if n != src] or [n for n in ids if n != src]

    hot_targets = rng.sample(targets, min(3, len(targets)))
    hot_memories = rng.sample(memories, min(2, len(memories)))
    made = []
    for i, src in enumerate(s for s in starts for _ in range(per_source)):
        places = some(targets, src, hot_targets), some(memories, src, hot_memories)
        made.append(Agent(i, src, *places, kinds, rounds, per_source > 1, Random(f"agent {seed} {i}")))
    return made


def run_traffic(sim: Simulator, made: list[Agent]) -> list[Entry]:
    """Run all agents to their ends; return every transaction's end, agent by agent."""
    log: list[Entry] = []
    for agent in made:
        agent.start(sim, log)
    sim.run()
    return sorted(log)
