"""A second opinion on the network: plain SimPy, a process for each hop of each flit, nothing skipped.

It shares the machine's graph, the routes and the rules of docs/model.md (M4.1 to M4.7) with the engine, and no code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import simpy

from kernbench.policy.routing import Router, reverse
from kernbench.topology.builder import Machine
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
