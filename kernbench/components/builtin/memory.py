"""The memories of a cube: slices of its HBM stack, and its shared SRAM."""

from __future__ import annotations

from kernbench.sim_engine._network import HbmSlice
from kernbench.sim_engine._transaction import ACK_BYTES, Transaction
from kernbench.sim_engine.engine import GraphEngine


class HbmCtrl(HbmSlice):
    """The controller of one slice."""

    def __init__(self, engine: GraphEngine, node_id: str) -> None:
        self.name = node_id
        memory = engine.memory if engine.data else None
        super().__init__(engine.network, engine.network.into(node_id), engine.machine.config.cube.hbm, memory)


class Sram:
    """Shared memory without banks: conflicts are those of its link."""

    by_flit = False

    def __init__(self, engine: GraphEngine, node_id: str) -> None:
        self.engine, self.network, self.name = engine, engine.network, node_id
        self.busy_ps = 0

    def on_read(self, txn: Transaction) -> None:
        if self.engine.data:
            txn.data = self.engine.memory.peek(txn.pieces)
        self.network.send(txn.back, txn.nbytes, txn.key, txn.fn, txn)

    def on_write(self, txn: Transaction) -> None:
        if txn.data is not None:
            self.engine.memory.poke(txn.pieces, txn.data)
        if txn.posted:
            txn.fn(txn)
        else:
            self.network.send(txn.back, ACK_BYTES, txn.key, txn.fn, txn)
