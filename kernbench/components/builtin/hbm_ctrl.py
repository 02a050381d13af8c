"""HBM controller: one slice of a cube's stack.

Refresh, row misses and bank conflicts are not modelled: `efficiency` and `access_ns` represent them.
"""

from __future__ import annotations

from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.network import HbmSlice


class HbmCtrl(HbmSlice):
    """The controller of one slice."""

    def __init__(self, engine: GraphEngine, node_id: str) -> None:
        self.name = node_id
        memory = engine.memory if engine.data else None
        super().__init__(engine.fabric, engine.fabric.into(node_id), engine.machine.config.cube.hbm, memory)
