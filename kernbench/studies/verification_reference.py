"""A second opinion on links and memories: plain SimPy, a process for each link, nothing skipped or computed ahead.

It shares the machine's graph, its routes and the rules of docs/model.md (M4.1 to M4.7) with the engine, and no code.
Random machines and random traffic put both to the test.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from functools import cache, partial
from itertools import accumulate, count
from random import Random
from typing import Any, NamedTuple, Protocol

import simpy

from kernbench._units import ACK_BYTES, FLIT_BYTES, decimal_product, flits, ns_to_ps, serialization_ps
from kernbench.policy._routing import reverse, router_of
from kernbench.topology import _naming as naming
from kernbench.topology._graph import Edge
from kernbench.topology.builder import Machine, resolve_topology

Done = Callable[[], None]
Key = tuple[int, int]  # the number of the source, and how many messages it sent before
Path = tuple[str, ...]
Work = Generator[Any, Any, None]


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


class Hop(NamedTuple):
    """A flit of message `key` on a link."""

    key: Key
    link: str
    nbytes: int
    arrival_ps: int
    start_ps: int
    end_ps: int


class Network:
    """Links, made when first used: `edge(src, dst)` describes one, `index(node)` is a node's place in the machine.

    Flits that arrive at one instant arrive after all else of that instant: those of different links in the order of
    their ranks, then of the nodes behind them, those of one link in the order in which they left it (M4.4).
    """

    def __init__(
        self, env: Any, edge: Callable[[str, str], Edge], index: Callable[[str], int] = lambda _: 0, *,
        flit_bytes: int = FLIT_BYTES,
    ) -> None:  # fmt: skip
        self.env, self._edge, self._index, self.flit_bytes = env, edge, index, flit_bytes
        self._links: dict[tuple[str, ...], Any] = {}
        self.hops: list[Hop] = []

    def send(self, path: Path, nbytes: int, key: Key, done: Done) -> None:
        """Send a message; `done()` is called when its last byte has arrived."""
        self.stream(path, nbytes, key, _last(flits(nbytes, self.flit_bytes), done))

    def stream(self, path: Path, nbytes: int, key: Key, arrived: Done) -> None:
        """Send a message; `arrived()` is called for each of its flits."""
        for _ in range(flits(nbytes, self.flit_bytes)):
            self.put(path, min(nbytes, self.flit_bytes), key, arrived)

    def put(self, path: Path, nbytes: int, key: Key, arrived: Done) -> None:
        """Queue a flit at the first link of its path."""
        link = path[:2]
        if link not in self._links:
            self._links[link] = server(self.env, partial(self._serve, self._edge(*link), count(1)))
        self._links[link].put((path, nbytes, key, arrived, self.env.now))

    def _serve(
        self, edge: Edge, numbers: Iterator[int], path: Path, nbytes: int, key: Key, arrived: Done, arrival: int
    ) -> Work:
        start = self.env.now
        yield self.env.timeout(serialization_ps(nbytes + edge.header_bytes, edge.bw_gbs))
        self.hops.append(Hop(key, f"{edge.src}->{edge.dst}", nbytes, arrival, start, self.env.now))
        onwards = partial(self.put, path[1:], nbytes, key, arrived) if len(path) > 2 else arrived
        self.arrive(edge.latency_ps, 1 + edge.rank, (self._index(edge.dst), next(numbers)), onwards)

    def arrive(self, delay: int, rank: int, order: Key, fn: Done) -> None:
        """Call `fn` in `delay`, after all else of that instant, in the order of `rank`, then of `order`."""
        event = simpy.Event(self.env)
        event._ok, event._value = True, None
        event.callbacks.append(lambda _: fn())
        after_the_rest = simpy.events.NORMAL + 1
        self.env.schedule(event, after_the_rest + (rank << 128 | order[0] << 64 | order[1]), delay)


class Reference:
    """A machine's links, memories and CPUs."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.graph = machine, machine.graph
        self.env: Any = simpy.Environment(0)
        self._system = machine.config.system
        self.network = Network(self.env, self.graph.edge, self.graph.index, flit_bytes=self._system.flit_bytes)
        self._counts: dict[str, Iterator[int]] = {}
        self._servers: dict[object, Any] = {}  # HBM channels and CPUs
        self._directions: dict[object, str] = {}

    @property
    def now(self) -> int:
        return int(self.env.now)

    def run(self) -> None:
        self.env.run()

    def at(self, t: int, fn: Done) -> None:
        self.env.timeout(t - self.env.now).callbacks.append(lambda _: fn())

    def send(self, src: str, dst: str, nbytes: int, done: Done) -> None:
        self.network.send(self._path(src, dst), nbytes, self._key(src), done)

    def answer(self, asked: str, asker: str, nbytes: int, done: Done) -> None:
        """Send a message over the reverse links of the route from `asker` to `asked`."""
        self.network.send(reverse(self._path(asker, asked)), nbytes, self._key(asked), done)

    def read(self, src: str, memory: str, offset: int, nbytes: int, done: Done) -> None:
        path, key = self._path(src, memory), self._key(src)
        if self._is_hbm(memory):
            arrived = partial(self._read_bursts, memory, reverse(path), key, offset, nbytes, done)
        else:
            arrived = partial(self.network.send, reverse(path), nbytes, key, done)
        self.network.send(path, self._system.command_bytes, key, arrived)

    def write(self, src: str, memory: str, offset: int, nbytes: int, done: Done) -> None:
        path, key, q = self._path(src, memory), self._key(src), flits(nbytes, self._system.flit_bytes)
        acknowledge = partial(self.network.send, reverse(path), ACK_BYTES, key, done)
        if not self._is_hbm(memory):
            self.network.send(path, nbytes, key, acknowledge)
            return
        bursts, flits_here = self._bursts(offset, nbytes), count(1)
        served = _last(len(bursts), lambda: self.network.arrive(0, 0, key, acknowledge))

        def arrived() -> None:
            here = next(flits_here)
            for i, burst in enumerate(bursts, 1):
                if -(-i * q // len(bursts)) == here:
                    self._burst(memory, burst, "write", served)

        self.network.stream(path, nbytes, key, arrived)

    def _read_bursts(self, memory: str, back: Path, key: Key, offset: int, nbytes: int, done: Done) -> None:
        """Serve a read at its memory: a flit leaves once its share of the bursts is done (M4.5)."""
        flit_bytes = self._system.flit_bytes
        bursts, q, bursts_done = self._bursts(offset, nbytes), flits(nbytes, flit_bytes), count(1)
        leave = partial(self.network.put, back, min(nbytes, flit_bytes), key, _last(q, done))
        access_ps = ns_to_ps(self.machine.config.cube.hbm.access_ns)

        def served() -> None:
            have = next(bursts_done)
            for j in range(1, q + 1):
                if -(-j * len(bursts) // q) == have:
                    self.network.arrive(access_ps, 0, key, leave)

        for burst in bursts:
            self._burst(memory, burst, "read", served)

    def _bursts(self, offset: int, nbytes: int) -> range:
        burst_bytes = self.machine.config.cube.hbm.burst_bytes
        return range(offset // burst_bytes, (offset + nbytes - 1) // burst_bytes + 1)

    def _burst(self, memory: str, number: int, direction: str, served: Done) -> None:
        channel = memory, number % self.machine.config.cube.hbm.channels
        if channel not in self._servers:
            self._servers[channel] = server(self.env, partial(self._channel, channel))
        self._servers[channel].put((direction, served))

    def _channel(self, channel: object, direction: str, served: Done) -> Work:
        """Serve one burst; a change of direction costs extra."""
        hbm = self.machine.config.cube.hbm
        if self._directions.setdefault(channel, direction) != direction:
            self._directions[channel] = direction
            yield self.env.timeout(ns_to_ps(hbm.turnaround_ns))
        yield self.env.timeout(serialization_ps(hbm.burst_bytes, decimal_product(hbm.channel_bw_gbs, hbm.efficiency)))
        served()

    def through(self, src: str, cpu: str, nbytes: int, then: Done) -> None:
        """Send a message to a CPU; `then()` is called when the CPU has served it, and those before it."""
        config = self.machine.config
        service_ns = {
            "io_cpu": config.sip.io.io_cpu.service_ns,
            "m_cpu": config.cube.m_cpu.service_ns,
            "pe_cpu": config.cube.pe.pe_cpu.command_ns,
        }[self.graph.node(cpu).kind]

        def serve(then: Done) -> Work:
            yield self.env.timeout(ns_to_ps(service_ns))
            then()

        if cpu not in self._servers:
            self._servers[cpu] = server(self.env, serve)
        self.send(src, cpu, nbytes, lambda: self._servers[cpu].put((then,)))

    def forward(self, sip: int, targets: Sequence[tuple[int, int]], nbytes: int, taken: Callable[..., None]) -> None:
        """Send copies from an IO_CPU to PEs (cube, pe), one to each cube on the way; `taken(cube, pe)` at each end."""
        by_cube: dict[int, list[int]] = {}
        for cube, pe in targets:
            by_cube.setdefault(cube, []).append(pe)

        def to_pes(cube: int) -> None:
            for pe in by_cube[cube]:
                self.through(naming.m_cpu(sip, cube), naming.pe_cpu(sip, cube, pe), nbytes, partial(taken, cube, pe))

        for cube in by_cube:
            self.through(naming.io_cpu(sip), naming.m_cpu(sip, cube), nbytes, partial(to_pes, cube))

    def _path(self, src: str, dst: str) -> Path:
        return router_of(self.graph).path(src, dst)

    def _key(self, src: str) -> Key:
        return self.graph.index(src), next(self._counts.setdefault(src, count()))

    def _is_hbm(self, memory: str) -> bool:
        return self.graph.node(memory).kind == "hbm_ctrl"


def server(env: Any, serve: Callable[..., Work]) -> Any:
    """Return a queue whose entries, arguments of `serve`, are served one after another."""
    queue = simpy.Store(env)

    def work() -> Work:
        while True:
            entry = yield queue.get()
            yield from serve(*entry)

    env.process(work())
    return queue


def _last(calls: int, done: Done) -> Done:
    """Return a function whose call number `calls` calls `done`."""
    numbers = count(1)

    def once() -> None:
        if next(numbers) == calls:
            done()

    return once


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
