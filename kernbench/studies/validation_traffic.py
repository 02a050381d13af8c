"""Random machines and random traffic on them, the same for the engine and for whoever it is compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple, Protocol

from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.transfer import Transaction
from kernbench.topology.builder import Machine, resolve_topology

Done = Callable[[], None]
_GBS = (30.0, 64.0, 77.7, 100.0, 128.0, 205.0, 256.0, 300.0)


class Simulator(Protocol):
    """Whatever moves messages on a machine."""

    @property
    def now(self) -> int:
        """The time [ps]."""

    def run(self) -> None:
        """Run until nothing is left to do."""

    def at(self, t: int, fn: Done) -> None:
        """Call `fn()` at `t`."""

    def send(self, src: str, dst: str, nbytes: int, done: Done) -> None:
        """Send a message now."""

    def read(self, src: str, memory: str, offset: int, nbytes: int, done: Done) -> None:
        """Read now."""

    def write(self, src: str, memory: str, offset: int, nbytes: int, done: Done) -> None:
        """Write now."""


class Engine:
    """The engine as a Simulator."""

    def __init__(self, engine: GraphEngine) -> None:
        self.engine = engine

    @property
    def now(self) -> int:
        """The time [ps]."""
        return int(self.engine.env.now)

    def run(self) -> None:
        """Run until nothing is left to do."""
        self.engine.run()

    def at(self, t: int, fn: Done) -> None:
        """Call `fn()` at `t`."""
        self.engine.env.call_at(t, lambda _: fn())

    def send(self, src: str, dst: str, nbytes: int, done: Done) -> None:
        """Send a message now."""
        network = self.engine.network
        route = network.route(src, dst)
        network.send(route, nbytes, route.key(), lambda _: done(), None)

    def read(self, src: str, memory: str, offset: int, nbytes: int, done: Done) -> None:
        """Read now."""
        network = self.engine.network
        Transaction(nbytes, offset, lambda _: done()).read(
            network, network.route(src, memory), self.engine.memory_at(memory)
        )

    def write(self, src: str, memory: str, offset: int, nbytes: int, done: Done) -> None:
        """Write now."""
        network = self.engine.network
        Transaction(nbytes, offset, lambda _: done()).write(
            network, network.route(src, memory), self.engine.memory_at(memory)
        )


class Ask(NamedTuple):
    """One transaction; `wait_ps` counts from the start (open loop), or from the end of the source's one before."""

    source: int
    wait_ps: int
    kind: str
    src: str
    dst: str
    offset: int
    nbytes: int


def random_machine(seed: object) -> Machine:
    """Return a small machine whose bandwidths and latencies share no grid."""
    rng = Random(f"validation machine {seed}")

    def ns(top: float) -> float:
        return rng.choice((0.0, 1.0, round(rng.uniform(0, top), 3)))

    rows, cols = rng.randint(1, 4), rng.randint(2, 4)
    places = [[r, c] for r in range(rows) for c in range(cols)]
    return resolve_topology(
        "preset:default",
        {
            "system.sips.count": rng.randint(1, 3),
            "system.sip_link.bw_gbs": rng.choice(_GBS),
            "sip.cube_mesh.w": rng.randint(1, 2),
            "sip.cube_mesh.h": rng.randint(1, 2),
            "sip.io.noc.port_bw_gbs": rng.choice(_GBS),
            "cube.noc.rows": rows,
            "cube.noc.cols": cols,
            "cube.noc.removed": [],
            "cube.noc.link_bw_gbs": rng.choice(_GBS),
            "cube.noc.router.overhead_ns": ns(2),
            "cube.pe_layout.pe_routers": rng.sample(places, rng.randint(1, min(4, len(places)))),
            "cube.ucie.connections": rng.choice((1, 2, 4)),
            "cube.ucie.bw_gbs": rng.choice(_GBS),
            "cube.ucie.port_ns": ns(8),
            "cube.m_cpu.pos_mm": [0.5, 0.5],
            "cube.sram.pos_mm": [cols * 3 - 0.5, rows * 3 - 0.5],
            "cube.sram.bw_gbs": rng.choice(_GBS),
            "cube.hbm.channels": rng.choice((1, 2, 4, 8)),
            "cube.hbm.channel_bw_gbs": rng.choice((8.0, 16.0, 32.0)),
            "cube.hbm.efficiency": rng.choice((0.8, 0.83, 1.0)),
            "cube.hbm.turnaround_ns": ns(9),
            "cube.hbm.access_ns": ns(40),
        },
    )


def random_traffic(
    machine: Machine, seed: object, rounds: int, *, closed: bool, hot: bool, sources: int = 10
) -> list[Ask]:
    """Return what each of up to `sources` sources asks; with `hot`, often of the same few ends."""
    rng = Random(f"validation traffic {seed}")
    nodes = list(machine.graph.nodes())
    starts = [node.id for node in nodes if node.kind in ("pe_dma", "host", "io_cpu", "m_cpu")]
    memories = [node.id for node in nodes if node.kind in ("hbm_ctrl", "sram")]
    ends = memories + [node.id for node in nodes if node.kind in ("pe_dma", "pe_cpu", "m_cpu")]
    hot_ends = rng.sample(ends, min(3, len(ends))), rng.sample(memories, min(2, len(memories)))
    asks = []
    for source, src in enumerate(rng.sample(starts, min(sources, len(starts)))):
        wait = 0
        for _ in range(rounds):
            kind = rng.choice(("send", "read", "write"))
            some = hot_ends[kind != "send"] if hot and rng.random() < 0.7 else (memories if kind != "send" else ends)
            dst = rng.choice([end for end in some if end != src] or [end for end in memories if end != src])
            nbytes = rng.choice((1, 16, 255, 256, 257, 1000, 1024, 4096, rng.randrange(1, 3000)))
            pause = rng.randrange(1, 2_000 if hot else 5_000_000)
            wait = pause if closed else wait + pause
            asks.append(Ask(source, wait, kind, src, dst, rng.randrange(1 << 14), nbytes))
    return asks


def play(sim: Simulator, asks: Sequence[Ask], *, closed: bool) -> list[int]:
    """Run traffic; return the end of each transaction [ps], in the order of `asks`."""
    ends = [0] * len(asks)
    queues: dict[int, list[int]] = {}
    for i, ask in enumerate(asks):
        queues.setdefault(ask.source, []).append(i)

    def begin(i: int, after: list[int]) -> None:
        ask = asks[i]

        def ended() -> None:
            ends[i] = sim.now
            if closed:
                follow(after, sim.now)

        if ask.kind == "send":
            sim.send(ask.src, ask.dst, ask.nbytes, ended)
        else:
            (sim.read if ask.kind == "read" else sim.write)(ask.src, ask.dst, ask.offset, ask.nbytes, ended)

    def follow(queue: list[int], now: int) -> None:
        if queue:
            i, after = queue[0], queue[1:]
            sim.at(now + asks[i].wait_ps, lambda: begin(i, after))

    for queue in queues.values():
        if closed:
            follow(queue, 0)
        else:
            for i in queue:
                follow([i], 0)
    sim.run()
    return ends
