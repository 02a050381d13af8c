"""A slice of the last-level cache, in front of an HBM slice: set-associative, least recently used, write-back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernbench._units import MIB, ns_to_ps
from kernbench.sim_engine._transaction import Reply, Transaction

if TYPE_CHECKING:
    from kernbench.sim_engine.engine import GraphEngine


_KEPT = 256


class CachedRead(Reply):
    """A read whose parts are lines: `hits` of them were there, `missed` are read from the slice."""

    __slots__ = ("came_ps", "hits", "missed")

    def __init__(self, txn: Transaction, lines: int, now: int) -> None:
        Reply.__init__(self, txn, lines)
        self.hits, self.came_ps = 0, now
        self.missed: list[int] = []


class LlcSlice:
    """The look-up of a request takes `hit_ns`, and any number of requests are looked up at once (M4.15)."""

    by_flit = False
    busy_ps = 0

    def __init__(self, engine: GraphEngine, node_id: str) -> None:
        config = engine.machine.config
        llc = config.cube.llc
        self.engine, self.network, self.core, self.name = engine, engine.network, engine.env.core, node_id
        below = node_id.replace(".llc.", ".hbm_ctrl.")
        self.route = engine.network.route(node_id, below)
        self.below = engine.memory_at(below)
        self.line_bytes, self.hit_ps = llc.line_bytes, ns_to_ps(llc.hit_ns)
        self.line_bits = llc.line_bytes.bit_length() - 1
        self.more_bits = self.line_bits - engine.line_bits
        self.ways = llc.ways
        self.sets = round(llc.size_mib * MIB) // (config.hbm_slices * llc.ways * llc.line_bytes)
        self.held: dict[int, dict[int, bool]] = {}  # whether each line is dirty, by set; the least recently used first
        self.filling: dict[int, list[CachedRead]] = {}
        self.opened: dict[int, int] = {}  # reads for which a line began a busy period of HBM, by the line's key

    def on_read(self, txn: Transaction) -> None:
        lines = self._lines(txn)
        txn.back.nbytes += txn.nbytes
        read = CachedRead(txn, len(lines), self.core.now)
        for line in lines:
            present = self._use(line, False)
            if line in self.filling:
                self.filling[line].append(read)
            elif present:
                read.hits += 1
            else:
                self.filling[line] = [read]
                read.missed.append(line)
        self.core.call_ordered(self.core.now + self.hit_ps, txn.key, self._looked_up, read)

    def on_write(self, txn: Transaction) -> None:
        """Handle the arrival of a write's last flit; its lines count as whole."""
        if self.engine.data and txn.data is not None:
            self.engine.memory.poke(txn.pieces, txn.data)
        for line in self._lines(txn):
            self._use(line, True)
        self.core.call_ordered(self.core.now + self.hit_ps, txn.key, self.network.acknowledge, txn)

    def _lines(self, txn: Transaction) -> list[int]:
        bursts = txn.lines
        if bursts is None:
            return list(range(txn.offset >> self.line_bits, (txn.offset + txn.nbytes - 1 >> self.line_bits) + 1))
        return list(dict.fromkeys([burst >> self.more_bits for burst in bursts]))

    def _use(self, line: int, dirty: bool) -> bool:
        """Make a line the last used one of its set; return whether it was there."""
        number = line % self.sets
        held = self.held.get(number)
        if held is None:
            held = self.held[number] = {}
        before = held.pop(line, None)
        if before is None and len(held) == self.ways:
            victim = next(iter(held))
            if held.pop(victim):
                back = Transaction(self.line_bytes, victim << self.line_bits, _nothing)
                back.posted = True
                back.write(self.network, self.route, self.below)
        held[line] = dirty or bool(before)
        return before is not None

    def _looked_up(self, read: CachedRead) -> None:
        for line in read.missed:
            fill = Transaction(self.line_bytes, line << self.line_bits, self._filled, line)
            fill.read(self.network, self.route, self.below)
        if read.hits:
            self._reply(read, read.hits)

    def _filled(self, fill: Transaction) -> None:
        reads = self.filling.pop(fill.arg)
        if fill.opener == fill.key:
            if len(self.opened) == _KEPT:
                self.opened.clear()
            self.opened[fill.key] = reads[0].txn.key
        for read in reads:
            self._waited(read, fill)
            self._reply(read, 1)

    def _waited(self, read: CachedRead, fill: Transaction) -> None:
        """Log the time in HBM of the line for which a read has waited; the last one counts."""
        txn, arrived = read.txn, max(fill.arrived_ps, read.came_ps)
        if fill.served_ps > arrived:
            txn.arrived_ps, txn.served_ps, txn.since_ps = arrived, fill.served_ps, fill.since_ps
            txn.opener = self.opened.get(fill.opener, -1)

    def _reply(self, read: CachedRead, lines: int) -> None:
        read.done += lines
        self.network.reply(read, self.engine.memory if self.engine.data else None)


def _nothing(_: Transaction) -> None:
    pass
