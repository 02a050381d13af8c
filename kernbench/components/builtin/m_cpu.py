"""M_CPU: a cube's management processor; hands launches and maps on to the PEs, gathers their completions."""

from __future__ import annotations

from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.host import Broadcast
from kernbench.topology import naming
from kernbench.units import ns_to_ps


class MCpu:
    """Occupied once per message, whatever its fan-out; copies leave back to back in the order of targets."""

    def __init__(self, engine: GraphEngine, node_id: str) -> None:
        self.engine, self.name = engine, node_id
        self.service_ps = ns_to_ps(engine.machine.config.cube.m_cpu.service_ns)
        self.free = 0

    def on_broadcast(self, copy: tuple[Broadcast, int]) -> None:
        """Take a copy from the IO chiplet."""
        now = self.engine.env._now
        self.free = max(now, self.free) + self.service_ps
        self.engine.env.call_at(self.free, self.hand_on, copy)

    def hand_on(self, copy: tuple[Broadcast, int]) -> None:
        """Send a copy to each PE of the cube."""
        message, cube = copy
        for pe in message.cubes[cube]:
            dst = naming.pe_cpu(message.sip, cube, pe)
            self.engine.message(self.name, dst, message.nbytes_of(cube, pe), message, message.id)
