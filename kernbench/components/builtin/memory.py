"""The memories of a cube: slices of its HBM stack, and its shared SRAM."""

from __future__ import annotations

from kernbench.sim_engine._dram import DramSlice
from kernbench.sim_engine._network import HbmSlice
from kernbench.sim_engine._transaction import Transaction
from kernbench.sim_engine.engine import GraphEngine


class HbmCtrl(HbmSlice):
    """The controller of an HBM slice whose channels have a fixed rate."""

    def __init__(self, engine: GraphEngine, node_id: str) -> None:
        self.name = node_id
        memory = engine.memory if engine.data else None
        super().__init__(engine.network, engine.network.into(node_id), engine.machine.config.cube.hbm, memory)


class DramCtrl(DramSlice):
    """The controller of an HBM slice with the timing of a DRAM standard."""

    def __init__(self, engine: GraphEngine, node_id: str) -> None:
        self.name = node_id
        super().__init__(engine.network, engine.machine.config.cube.hbm, engine.memory if engine.data else None)


def hbm_ctrl(engine: GraphEngine, node_id: str) -> HbmCtrl | DramCtrl:
    """Create the controller of an HBM slice, by `cube.hbm.timing`."""
    return (HbmCtrl if engine.machine.config.cube.hbm.timing == "simple" else DramCtrl)(engine, node_id)


class Sram:
    """Shared memory without banks: contention is on its link only."""

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
        self.network.acknowledge(txn)
