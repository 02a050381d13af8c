"""The reference behind the interface that tests drive; the engine has an adapter with the same one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import simpy

from kernbench.policy.routing import Router, reverse
from kernbench.topology.builder import Machine
from tests.reference.memory import HbmSlice, Request, Sram
from tests.reference.network import Key, Network

Done = Callable[[], None]


class Simulator(Protocol):
    """What moves messages and serves memory on one machine; times in ps."""

    @property
    def now(self) -> int:
        """Return the time."""

    def at(self, t: int, fn: Done) -> None:
        """Call `fn()` at `t`."""

    def send(self, src: str, dst: str, nbytes: int, done: Done) -> None:
        """Send a message now."""

    def read(self, src: str, memory: str, offset: int, nbytes: int, done: Done) -> None:
        """Read from a memory, beginning now."""

    def write(self, src: str, memory: str, offset: int, nbytes: int, done: Done) -> None:
        """Write to a memory, beginning now."""

    def run(self) -> None:
        """Run until nothing is left to do."""


class Reference:
    """A machine, flit by flit; knows neither the engine nor its components."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.graph = machine, machine.graph
        self.env = simpy.Environment(0)
        self.network = Network(self.env, self.graph.edge, self.graph.index)
        self._router = Router(self.graph)
        self._counts: dict[str, int] = {}
        self._memories: dict[str, HbmSlice | Sram] = {}

    @property
    def now(self) -> int:
        return self.env.now

    def at(self, t: int, fn: Done) -> None:
        self.env.timeout(t - self.env.now).callbacks.append(lambda _: fn())

    def send(self, src: str, dst: str, nbytes: int, done: Done) -> None:
        self.network.send(self._router.path(src, dst), nbytes, self._key(src), done)

    def answer(self, asked: str, asker: str, nbytes: int, done: Done) -> None:
        """Send a message over the reverse links of the route from `asker` to `asked`."""
        self.network.send(reverse(self._router.path(asker, asked)), nbytes, self._key(asked), done)

    def read(self, src: str, memory: str, offset: int, nbytes: int, done: Done) -> None:
        path = self._router.path(src, memory)
        request = Request(self._key(src), offset, nbytes, reverse(path), done)
        self.network.send(path, 0, request.key, lambda: self._memory(memory).on_read(request))

    def write(self, src: str, memory: str, offset: int, nbytes: int, done: Done) -> None:
        path = self._router.path(src, memory)
        request = Request(self._key(src), offset, nbytes, reverse(path), done)
        self.network.stream(path, nbytes, request.key, lambda: self._memory(memory).on_flit(request))

    def run(self) -> None:
        self.env.run()

    def _key(self, src: str) -> Key:
        count = self._counts.get(src, 0)
        self._counts[src] = count + 1
        return self.graph.index(src), count

    def _memory(self, node_id: str) -> HbmSlice | Sram:
        if node_id not in self._memories:
            kind = self.graph.node(node_id).kind
            slow = kind == "hbm_ctrl"
            hbm = self.machine.config.cube.hbm
            self._memories[node_id] = HbmSlice(self.network, hbm) if slow else Sram(self.network)
        return self._memories[node_id]
