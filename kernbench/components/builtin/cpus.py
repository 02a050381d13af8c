"""The CPUs between the host and the PEs (IO CPU, M_CPU, PE_CPU): they distribute a launch and start programs."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from kernbench._registry import COMPONENTS
from kernbench._units import ns_to_ps
from kernbench.components._pe import Pe, Program
from kernbench.sim_engine._host_requests import Broadcast, Launch
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import _naming as naming

if TYPE_CHECKING:
    from kernbench.components.builtin.pe_scheduler import Stage


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


class PeCpu:
    """The control processor of a PE: `command_ns` for each launch it takes and each command it issues.

    Maps go into its MMU; the engines behind it are made when something is first asked of them, which of most PEs of a
    large machine nothing is.
    """

    def __init__(self, engine: GraphEngine, node_id: str) -> None:
        place = naming.parse(node_id)
        assert place.sip is not None
        assert place.cube is not None
        assert place.pe is not None
        self.engine, self.name, self.place = engine, node_id, (place.sip, place.cube, place.pe)
        config = engine.machine.config.cube.pe
        self.command_ps = ns_to_ps(config.pe_cpu.command_ns)
        self.mmu = COMPONENTS.resolve(config.pe_mmu.impl)(naming.pe(*self.place), config.pe_mmu)
        self.free = 0

    @cached_property
    def pe(self) -> Pe:
        return Pe(self.engine, *self.place, self.mmu)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Return the stages of its pipeline; none while it has no engines."""
        if "pe" not in vars(self):
            return ()
        pipeline = self.pe.pipeline
        return pipeline.fetch, pipeline.gemm, pipeline.math, pipeline.store

    def on_broadcast(self, message: Broadcast) -> None:
        """Take a copy of a launch or of a map; continue when the CPU has decoded it."""
        now = self.engine.env._now
        self.free = max(now, self.free) + self.command_ps
        self.engine.env.call_at(self.free, self._decoded, message)

    def _decoded(self, message: Broadcast) -> None:
        message.taken(self)

    def start(self, launch: Launch) -> None:
        Program(self.pe, launch, self.command_ps).resume(None)
