"""The engine behind the interface of `tests.reference.simulator`."""

from __future__ import annotations

from collections.abc import Callable

from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.transaction import Transaction
from kernbench.topology.builder import Machine

Done = Callable[[], None]


class Engine:
    """A machine in the engine; keywords are `GraphEngine`'s."""

    def __init__(self, machine: Machine, **options) -> None:
        self.engine = GraphEngine(machine, log="off", **options)
        self.network = self.engine.network

    @property
    def now(self) -> int:
        return self.engine.env.now

    def at(self, t: int, fn: Done) -> None:
        self.engine.env.call_at(t, lambda _: fn())

    def send(self, src: str, dst: str, nbytes: int, done: Done) -> None:
        route = self.network.route(src, dst)
        self.network.send(route, nbytes, route.key(), lambda _: done(), None)

    def read(self, src: str, memory: str, offset: int, nbytes: int, done: Done) -> None:
        transaction = Transaction(nbytes, offset, lambda _: done())
        transaction.read(self.network, self.network.route(src, memory), self.engine.memory_at(memory))

    def write(self, src: str, memory: str, offset: int, nbytes: int, done: Done) -> None:
        transaction = Transaction(nbytes, offset, lambda _: done())
        transaction.write(self.network, self.network.route(src, memory), self.engine.memory_at(memory))

    def run(self) -> None:
        self.engine.run()
