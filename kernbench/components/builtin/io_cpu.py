"""The CPU of an IO chiplet: a serial server that hands launches and maps on to the cubes."""

from __future__ import annotations

from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.host import Broadcast
from kernbench.topology import naming
from kernbench.units import ns_to_ps


class IoCpu:
    """Occupied once per message, whatever its fan-out; copies leave back to back in the order of targets."""

    def __init__(self, engine: GraphEngine, node_id: str) -> None:
        self.engine, self.name = engine, node_id
        self.service_ps = ns_to_ps(engine.machine.config.sip.io.io_cpu.service_ns)
        self.free = 0

    def on_broadcast(self, message: Broadcast) -> None:
        """Take a message from the host."""
        now = self.engine.env._now
        self.free = max(now, self.free) + self.service_ps
        self.engine.env.call_at(self.free, self.hand_on, message)

    def hand_on(self, message: Broadcast) -> None:
        """Send a copy to each cube."""
        message.stamp(self.engine.env._now)
        for cube in message.cubes:
            dst = naming.m_cpu(message.sip, cube)
            self.engine.message(self.name, dst, message.nbytes_of(cube), (message, cube), message.id)
