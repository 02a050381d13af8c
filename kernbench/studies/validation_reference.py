"""A second opinion on the network: plain SimPy, a process for each hop of each flit, nothing skipped.

It shares the machine's graph, the routes and the rules of docs/model.md (M4.1 to M4.7) with the engine, and no code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, NamedTuple, Protocol

import simpy

from kernbench.policy.routing import Router, reverse
from kernbench.topology.builder import Machine, resolve_topology
from kernbench.units import FLIT_BYTES, flits, ns_to_ps, serialization_ps

Done = Callable[[], None]
Key = tuple[int, int]
Path = tuple[str, ...]


class Reference:
    """A machine's links and memories; times in ps."""

    def __init__(self, machine: Machine) -> None:
        self.graph, self.hbm = machine.graph, machine.config.cube.hbm
        self.env: Any = simpy.Environment(0)
        self._router = Router(self.graph)
        self._counts: dict[str, int] = {}
        self._left: dict[tuple[str, str], int] = {}
        self._servers: dict[object, Any] = {}
        self._direction: dict[object, str] = {}

    @property
    def now(self) -> int:
        """The time."""
        return int(self.env.now)

    def run(self) -> None:
        """Run until nothing is left to do."""
        self.env.run()

    def at(self, t: int, fn: Done) -> None:
        """Call `fn()` at `t`."""
        self.env.timeout(t - self.env.now).callbacks.append(lambda _: fn())

    def send(self, src: str, dst: str, nbytes: int, done: Done) -> None:
        """Send a message now."""
        path, key = self._start(src, dst)
        self._message(path, nbytes, key, _last(flits(nbytes), done))

    def read(self, src: str, memory: str, offset: int, nbytes: int, done: Done) -> None:
        """Read from a memory now."""
        path, key = self._start(src, memory)
        back, landed = reverse(path), _last(flits(nbytes), done)
        if "hbm_ctrl" in memory:
            self._message(path, 0, key, lambda: self._bursts(memory, back, key, offset, nbytes, landed))
        else:
            self._message(path, 0, key, lambda: self._message(back, nbytes, key, landed))

    def write(self, src: str, memory: str, offset: int, nbytes: int, done: Done) -> None:
        """Write to a memory now."""
        path, key = self._start(src, memory)
        q, lines, came = flits(nbytes), self._lines(offset, nbytes), iter(range(1, 1 + flits(nbytes)))
        acknowledge = _last(
            len(lines) if "hbm_ctrl" in memory else q,
            lambda: self._arrive(0, 0, key, lambda: self._message(reverse(path), 16, key, done)),
        )

        def arrived() -> None:
            have = next(came)
            if "hbm_ctrl" not in memory:
                acknowledge()
                return
            for i, line in enumerate(lines):
                if -(-(i + 1) * q // len(lines)) == have:
                    self.env.process(self._burst(memory, line, "write", acknowledge))

        self._message(path, nbytes, key, arrived)

    def _start(self, src: str, dst: str) -> tuple[Path, Key]:
        count = self._counts[src] = self._counts.get(src, 0) + 1
        return self._router.path(src, dst), (self.graph.index(src), count)

    def _lines(self, offset: int, nbytes: int) -> range:
        burst = self.hbm.burst_bytes
        return range(offset // burst, (offset + nbytes - 1) // burst + 1)

    def _server(self, name: object) -> Any:
        if name not in self._servers:
            self._servers[name] = simpy.Resource(self.env, 1)
        return self._servers[name]

    def _arrive(self, delay: int, rank: int, order: Key, fn: Done) -> None:
        """Call `fn` in `delay`, after all else of that instant, in the order of `rank`, then `order` (M4.4)."""
        event = simpy.Event(self.env)
        event._ok, event._value = True, None
        event.callbacks.append(lambda _: fn())
        self.env.schedule(event, 2 + (rank << 128 | order[0] << 64 | order[1]), delay)

    def _message(self, path: Path, nbytes: int, key: Key, arrived: Done) -> None:
        for _ in range(flits(nbytes)):
            self.env.process(self._hop(path, 0, min(nbytes, FLIT_BYTES), key, arrived))

    def _hop(self, path: Path, k: int, size: int, key: Key, arrived: Done) -> Iterator[Any]:
        """One flit on one link: its turn, its service, and a latency that occupies nothing."""
        edge = self.graph.edge(path[k], path[k + 1])
        with self._server((edge.src, edge.dst)).request() as turn:
            yield turn
            yield self.env.timeout(serialization_ps(size, edge.bw_gbs))

        def on() -> None:
            if k + 2 == len(path):
                arrived()
            else:
                self.env.process(self._hop(path, k + 1, size, key, arrived))

        left = self._left[edge.src, edge.dst] = self._left.get((edge.src, edge.dst), 0) + 1
        # A memory's own steps have no rank: they come before what arrives over links.
        self._arrive(edge.latency_ps, 1 + edge.rank, (self.graph.index(edge.dst), left), on)

    def _bursts(self, memory: str, back: Path, key: Key, offset: int, nbytes: int, landed: Done) -> None:
        """Serve a read at its memory: flit j leaves once its share of the bursts is done (M4.5)."""
        lines, q, done = self._lines(offset, nbytes), flits(nbytes), iter(range(1, 1 << 62))

        def served() -> None:
            have = next(done)
            for j in range(q):
                if -(-(j + 1) * len(lines) // q) == have:
                    leave = self._hop(back, 0, min(nbytes, FLIT_BYTES), key, landed)
                    self._arrive(ns_to_ps(self.hbm.access_ns), 0, key, lambda leave=leave: self.env.process(leave))  # type: ignore[misc]

        for line in lines:
            self.env.process(self._burst(memory, line, "read", served))

    def _burst(self, memory: str, line: int, direction: str, served: Done) -> Iterator[Any]:
        channel = (memory, line % self.hbm.channels)
        with self._server(channel).request() as turn:
            yield turn
            if self._direction.setdefault(channel, direction) != direction:
                self._direction[channel] = direction
                yield self.env.timeout(ns_to_ps(self.hbm.turnaround_ns))
            yield self.env.timeout(self.hbm.burst_ps)
        served()


def _last(count: int, done: Done) -> Done:
    """Return a function whose call number `count` calls `done`."""
    left = iter(range(count - 1, -1, -1))

    def once() -> None:
        if next(left) == 0:
            done()

    return once


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
