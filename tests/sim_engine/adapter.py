"""The engine as the oracle and the reference are used: messages, reads and writes between nodes, each with its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernbench.sim_engine._transaction import Transaction
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology.builder import Machine
from tests.reference.traffic import Done


class Engine:
    """The engine as a Simulator; keywords are `GraphEngine`'s."""

    def __init__(self, machine: Machine, **options: Any) -> None:
        self.engine = GraphEngine(machine, log="off", **options)
        self.network = self.engine.network

    @property
    def now(self) -> int:
        return int(self.engine.env.now)

    def run(self) -> None:
        self.engine.run()

    def at(self, t: int, fn: Done) -> None:
        self.engine.env.call_at(t, lambda _: fn())

    def send(self, src: str, dst: str, nbytes: int, done: Done) -> None:
        route = self.network.route(src, dst)
        self.network.send(route, nbytes, route.key(), lambda _: done(), None)

    def read(
        self, src: str, memory: str, offset: int, nbytes: int, done: Done, lines: Sequence[int] | None = None
    ) -> None:
        transaction = Transaction(nbytes, offset, lambda _: done(), lines=lines)
        self.network.read(transaction, self.network.route(src, memory), self.engine.memory_at(memory))

    def write(self, src: str, memory: str, offset: int, nbytes: int, done: Done) -> None:
        transaction = Transaction(nbytes, offset, lambda _: done())
        self.network.write(transaction, self.network.route(src, memory), self.engine.memory_at(memory))
