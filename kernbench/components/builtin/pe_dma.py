"""The DMA engine: a read and a write channel, each in program order with a few requests outstanding."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from kernbench.components.source import Source
from kernbench.sim_engine.network import BULK, Arbiter
from kernbench.sim_engine.transfer import COMMAND_BYTES, Callee, Memory, Transaction

if TYPE_CHECKING:
    from kernbench.components.pe import Pe
    from kernbench.sim_engine.engine import GraphEngine
    from kernbench.sim_engine.transfer import Route


class Channel(Callee):
    """Issues the requests of its sources in program order, at most `limit` at a time."""

    def __init__(self, pe: Pe, limit: int) -> None:
        self.core = pe.engine.env.core
        self.limit, self.outstanding = limit, 0
        self.queue: deque[Source] = deque()
        self._wake = -1
        self._pumping = False

    def pump(self) -> None:
        """Issue what can be issued now. A call from within one is left to that one."""
        if self._pumping or not self.queue:
            return
        self._pumping = True
        while self.queue and self.outstanding < self.limit:
            source = self.queue[0]
            t = source.next_ps()
            if t < 0:
                break
            if t > self.core.now:
                if self._wake != t:
                    self._wake = t
                    self.core.wake_at(t, self, 0, t)
                break
            self.outstanding += 1
            if source.issue():
                self.queue.popleft()
        self._pumping = False

    def woken(self, what: int, t: int) -> None:
        """Issue what may be issued from now on."""
        if self._wake == t:
            self._wake = -1
        self.pump()

    def done(self) -> None:
        """Count a request as complete."""
        self.outstanding -= 1
        if self.queue:
            self.pump()


class Port:
    """The way from a PE's DMA to one memory and back."""

    __slots__ = ("_on_read", "back", "core", "dma", "fabric", "memory", "route")

    def __init__(self, engine: GraphEngine, dma: PeDma, memory: str) -> None:
        self.dma, self.fabric, self.core = dma, engine.fabric, engine.env.core
        self.route: Route = engine.fabric.route(dma.node_id, memory)
        self.back: Route = engine.fabric.back(self.route)
        self.memory: Memory = engine.part(memory)
        self._on_read = self.memory.on_read

    def read(self, txn: Transaction, kind: int = BULK) -> None:
        """Start a read, for bulk or queue traffic.

        Its command is empty: it takes no link's time, so the route need not count it.
        """
        txn.back = self.back
        route = self.route
        txn.key = key = route.key()
        arbiter = self.dma.arbiter
        if arbiter is None:
            self.core.put(route.links, 1, COMMAND_BYTES, key, self._on_read, txn)
        else:
            arbiter.start(kind, route, 1, COMMAND_BYTES, key, self._on_read, txn, False)

    def write(self, txn: Transaction, kind: int = BULK) -> None:
        """Start a write, for bulk or queue traffic."""
        arbiter = self.dma.arbiter
        if arbiter is None:
            txn.write(self.fabric, self.route, self.memory)
        else:
            txn.begin_write(self.fabric, self.route)
            arbiter.send(kind, self.route, txn.nbytes, txn.key, self.memory.on_write, txn, self.memory.by_flit)


class PeDma:
    """Reads and writes of one PE. Descriptor set-up is part of PE_CPU's command time.

    `arbiter` shares the PE's link between these and the PE's queues; None while it has no queues.
    """

    def __init__(self, pe: Pe, node_id: str) -> None:
        config = pe.config.pe_dma
        self.pe, self.node_id = pe, node_id
        self._ports: dict[str, Port] = {}
        self.arbiter: Arbiter | None = None
        self.component = pe.engine.log.component(node_id)
        self.reader = Channel(pe, config.outstanding_reads)
        self.writer = Channel(pe, config.outstanding_writes)

    def port(self, memory: str) -> Port:
        """Return the way to the memory at a node."""
        port = self._ports.get(memory)
        if port is None:
            port = self._ports[memory] = Port(self.pe.engine, self, memory)
        return port
