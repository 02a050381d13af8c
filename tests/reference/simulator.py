"""A second opinion on links and memories: plain SimPy, a process for each link, nothing skipped or computed ahead.

It shares the machine's graph, its routes and the rules of docs/model.md (M4.1 to M4.7) with the engine, and no code.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import simpy

from kernbench._units import ACK_BYTES, FLIT_BYTES, decimal_product, flits, ns_to_ps, serialization_ps
from kernbench.policy._routing import reverse, router_of
from kernbench.topology import _naming as naming
from kernbench.topology._graph import Edge
from kernbench.topology.builder import Machine

Done = Callable[[], None]
Key = tuple[int, int]  # the number of the source, and how many messages it sent before
Path = tuple[str, ...]
Work = Generator[Any, Any, None]


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

    def read(
        self, src: str, memory: str, offset: int, nbytes: int, done: Done, lines: Sequence[int] | None = None
    ) -> None:
        path, key = self._path(src, memory), self._key(src)
        if self._is_hbm(memory):
            bursts = self._bursts(offset, nbytes) if lines is None else lines
            arrived = partial(self._read_bursts, memory, reverse(path), key, bursts, nbytes, done)
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

    def _read_bursts(self, memory: str, back: Path, key: Key, bursts: Sequence[int], nbytes: int, done: Done) -> None:
        """Serve a read at its memory: a flit leaves once its share of the bursts is done (M4.5)."""
        flit_bytes = self._system.flit_bytes
        q, bursts_done = flits(nbytes, flit_bytes), count(1)
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
