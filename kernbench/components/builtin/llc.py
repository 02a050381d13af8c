"""A slice of the last-level cache, in front of an HBM slice: set-associative, least recently used, write-back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kernbench._units import MIB, ns_to_ps
from kernbench.sim_engine._callee import Callee
from kernbench.sim_engine._transaction import Reply, Transaction

if TYPE_CHECKING:
    from kernbench.sim_engine.engine import GraphEngine


_KEPT = 256
_EMPTY = -1
_LOOKED_UP, _WRITTEN = 0, 1  # what a slice is woken for


class CachedRead(Reply):
    """A read whose parts are lines: `hits` of them were there, `missed` are read from the slice."""

    def came(self, txn: Transaction, now: int) -> None:
        self.begins(txn, 0)
        self.came_ps, self.hits = now, 0
        self.missed: list[int] = []


class LlcSlice(Callee):
    """The look-up of a request takes `hit_ns`, and any number of requests are looked up at once (M4.15)."""

    by_flit = False
    busy_ps = 0

    def __init__(self, engine: GraphEngine, node_id: str) -> None:
        config = engine.machine.config
        llc = config.cube.llc
        self.network, self.core, self.name = engine.network, engine.env.core, node_id
        self.memory = engine.memory if engine.data else None
        below = node_id.replace(".llc.", ".hbm_ctrl.")
        self.route = engine.network.route(node_id, below)
        self.below = engine.memory_at(below)
        self.line_bytes, self.hit_ps = llc.line_bytes, ns_to_ps(llc.hit_ns)
        self.line_bits = llc.line_bytes.bit_length() - 1
        self.more_bits = self.line_bits - engine.line_bits
        self.ways = llc.ways
        self.sets = round(llc.size_mib * MIB) // (config.hbm_slices * llc.ways * llc.line_bytes)
        # Set after set, the last used one first: twice the line's number, and one more if it is dirty.
        self.held = np.full(self.sets * self.ways, _EMPTY, np.int64).data
        self.filling: dict[int, list[CachedRead]] = {}
        self.opened: dict[int, int] = {}  # reads for which a line began a busy period of HBM, by the line's key

    def on_read(self, txn: Transaction) -> None:
        txn.back.nbytes += txn.nbytes
        read = CachedRead.__new__(CachedRead)
        read.came(txn, self.core.now)
        self._look_up(txn, read)
        self.core.wake_ordered(self.core.now + self.hit_ps, txn.key, self, _LOOKED_UP, read)

    def on_write(self, txn: Transaction) -> None:
        """Handle the arrival of a write's last flit; its lines count as whole."""
        if self.memory is not None and txn.data is not None:
            self.memory.poke(txn.pieces, txn.data)
        self._look_up(txn, None)
        self.core.wake_ordered(self.core.now + self.hit_ps, txn.key, self, _WRITTEN, txn)

    def _look_up(self, txn: Transaction, read: CachedRead | None) -> None:
        """Look up the lines of a transaction; None for a write."""
        bursts = txn.lines
        if bursts is None:
            for line in range(txn.offset >> self.line_bits, (txn.offset + txn.nbytes - 1 >> self.line_bits) + 1):
                self._touch(line, read)
        else:
            for line in dict.fromkeys([burst >> self.more_bits for burst in bursts]):
                self._touch(line, read)

    def _touch(self, line: int, read: CachedRead | None) -> None:
        present = self._use(line, read is None)
        if read is None:
            return
        read.parts += 1
        waiting = self.filling.get(line)
        if waiting is not None:
            waiting.append(read)
        elif present:
            read.hits += 1
        else:
            self.filling[line] = [read]
            read.missed.append(line)

    def _use(self, line: int, dirty: bool) -> bool:
        """Make a line the last used one of its set; return whether it was there."""
        held, first = self.held, line % self.sets * self.ways
        moved = line << 1 | dirty
        for i in range(first, first + self.ways):
            moved, held[i] = held[i], moved
            if moved >> 1 == line:
                held[first] |= moved & 1
                return True
            if moved == _EMPTY:
                return False
        if moved & 1:
            back = Transaction(self.line_bytes, moved >> 1 << self.line_bits, _nothing)
            back.posted = True
            self.network.write(back, self.route, self.below)
        return False

    def woken(self, what: int, arg: Any) -> None:
        if what == _WRITTEN:
            self.network.acknowledge(arg)
            return
        read: CachedRead = arg
        for line in read.missed:
            fill = Transaction(self.line_bytes, line << self.line_bits, self, line)
            self.network.read(fill, self.route, self.below)
        if read.hits:
            self._reply(read, read.hits)

    def landed(self, arg: Any) -> None:
        """Answer the reads that wait for a line, which has arrived from HBM."""
        fill: Transaction = arg
        reads = self.filling.pop(fill.arg)
        if fill.opener == fill.key:
            if len(self.opened) == _KEPT:
                self.opened.clear()
            self.opened[fill.key] = reads[0].txn.key
        opener = self.opened.get(fill.opener, -1)
        for read in reads:
            self._waited(read, fill, opener)
            self._reply(read, 1)

    def _waited(self, read: CachedRead, fill: Transaction, opener: int) -> None:
        """Log the time in HBM of the line for which a read has waited; the last one counts."""
        txn, arrived = read.txn, max(fill.arrived_ps, read.came_ps)
        if fill.served_ps > arrived:
            txn.arrived_ps, txn.served_ps, txn.since_ps = arrived, fill.served_ps, fill.since_ps
            txn.opener = opener

    def _reply(self, read: CachedRead, lines: int) -> None:
        read.done += lines
        self.network.reply(read, self.memory)


def _nothing(_: Transaction) -> None:
    pass
