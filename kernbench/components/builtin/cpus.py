"""The CPUs of IO chiplets and cubes: serial servers that distribute messages of the host."""

from __future__ import annotations

from typing import Any

from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.host_requests import Broadcast
from kernbench.topology import naming
from kernbench.units import ns_to_ps


class _Relay:
    """Occupied once per message, whatever its fan-out; copies leave back to back in the order of targets."""

    def __init__(self, engine: GraphEngine, node_id: str, service_ns: float) -> None:
        self.engine, self.name = engine, node_id
        self.service_ps = ns_to_ps(service_ns)
        self.free = 0

    def on_broadcast(self, message: Any) -> None:
        self.free = max(self.engine.env._now, self.free) + self.service_ps
        self.engine.env.call_at(self.free, self.forward, message)

    def forward(self, message: Any) -> None:
        """Send a copy to each target."""
        raise TypeError(f"{type(self).__name__} does not say where it sends copies")


class IoCpu(_Relay):
    """The CPU of an IO chiplet: hands messages of the host on to the cubes."""

    def __init__(self, engine: GraphEngine, node_id: str) -> None:
        super().__init__(engine, node_id, engine.machine.config.sip.io.io_cpu.service_ns)

    def forward(self, message: Broadcast) -> None:
        message.stamp(self.engine.env._now)
        for cube in message.cubes:
            dst = naming.m_cpu(message.sip, cube)
            self.engine.message(self.name, dst, message.nbytes_of(cube), (message, cube), message.id)


class MCpu(_Relay):
    """A cube's management processor: hands messages on to the PEs."""

    def __init__(self, engine: GraphEngine, node_id: str) -> None:
        super().__init__(engine, node_id, engine.machine.config.cube.m_cpu.service_ns)

    def forward(self, message: tuple[Broadcast, int]) -> None:
        broadcast, cube = message
        for pe in broadcast.cubes[cube]:
            dst = naming.pe_cpu(broadcast.sip, cube, pe)
            self.engine.message(self.name, dst, broadcast.nbytes_of(cube, pe), broadcast, broadcast.id)
