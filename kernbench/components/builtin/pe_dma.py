"""The DMA engine: a read and a write channel, each in program order with a few requests outstanding."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

from kernbench.sim_engine.transfer import Transaction

if TYPE_CHECKING:
    from kernbench.components.pe import Pe


class Source(Protocol):
    """What feeds a channel with requests, in their order."""

    def next_ps(self) -> int | None:
        """Return when the next request may be issued, or None if that is not known yet."""

    def issue(self) -> bool:
        """Issue it now; return True if it was the last one."""


class Channel:
    """Issues the requests of its sources in program order, at most `limit` at a time."""

    def __init__(self, pe: Pe, limit: int) -> None:
        self.clock = pe.engine.env
        self.limit, self.outstanding = limit, 0
        self.queue: deque[Source] = deque()
        self._wake: int | None = None
        self._pumping = False

    def pump(self) -> None:
        """Issue what can be issued now. A call from within one is left to that one."""
        if self._pumping:
            return
        self._pumping = True
        while self.queue and self.outstanding < self.limit:
            source = self.queue[0]
            t = source.next_ps()
            if t is None:
                break
            if t > self.clock._now:
                if self._wake != t:
                    self._wake = t
                    self.clock.call_at(t, self._woken, t)
                break
            self.outstanding += 1
            if source.issue():
                self.queue.popleft()
        self._pumping = False

    def _woken(self, t: int) -> None:
        if self._wake == t:
            self._wake = None
        self.pump()

    def done(self) -> None:
        """Count a request as complete."""
        self.outstanding -= 1
        self.pump()


class PeDma:
    """Reads and writes of one PE. Descriptor set-up is part of PE_CPU's command time."""

    def __init__(self, pe: Pe, node_id: str) -> None:
        config = pe.config.pe_dma
        self.pe, self.node_id = pe, node_id
        self.component = pe.engine.log.component(node_id)
        self.reader = Channel(pe, config.outstanding_reads)
        self.writer = Channel(pe, config.outstanding_writes)

    def read(self, txn: Transaction, node_id: str) -> None:
        """Send a read to the memory at `node_id`."""
        engine = self.pe.engine
        txn.read(engine.fabric, engine.fabric.route(self.node_id, node_id), engine.part(node_id))

    def write(self, txn: Transaction, node_id: str) -> None:
        """Send a write to the memory at `node_id`."""
        engine = self.pe.engine
        txn.write(engine.fabric, engine.fabric.route(self.node_id, node_id), engine.part(node_id))
