"""The CPUs between the host and the PEs (IO CPU, M_CPU, PE_CPU): they distribute a launch and start programs."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from kernbench._registry import COMPONENTS
from kernbench._units import ns_to_ps
from kernbench.analysis._records import NONE
from kernbench.components._pe import Pe, PeProgram
from kernbench.sim_engine._host_requests import Broadcast, LaunchBroadcast
from kernbench.sim_engine._op_log import STEP_KIND
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import _naming as naming

if TYPE_CHECKING:
    from kernbench.components.builtin.pe_scheduler import StageServer


_CPU = STEP_KIND["cpu"]


class _Server:
    """A CPU that processes messages one at a time."""

    def __init__(self, engine: GraphEngine, node_id: str) -> None:
        self.engine, self.place = engine, engine.log.place(node_id)
        self.free, self.free_by = 0, NONE

    def take(self, service_ps: int, command: int, by: int) -> tuple[int, int]:
        """Return (decode time [ps], its event) of a message that arrived with the event `by`."""
        now, log = self.engine.env._now, self.engine.log
        cause, second = (self.free_by, by) if self.free > now else (by, self.free_by)
        self.free = max(now, self.free) + service_ps
        if log.operation:
            self.free_by = log.step(self.free, service_ps, self.place, _CPU, command, -1, cause, second)
        return self.free, self.free_by


class _Relay:
    """Occupied once per message, whatever its fan-out; copies leave back to back in the order of targets."""

    def __init__(self, engine: GraphEngine, node_id: str, service_ns: float) -> None:
        self.engine, self.name = engine, node_id
        self.service_ps = ns_to_ps(service_ns)
        self._server = _Server(engine, node_id)

    def on_broadcast(self, message: Any, by: int) -> None:
        command = message[0].id if isinstance(message, tuple) else message.id
        t, event = self._server.take(self.service_ps, command, by)
        self.engine.env.call_at(t, self._forward, (message, event))

    def _forward(self, what: tuple[Any, int]) -> None:
        self.forward(*what)

    def forward(self, message: Any, by: int) -> None:
        raise TypeError(f"{type(self).__name__} does not say where it sends copies")


class IoCpu(_Relay):
    """The CPU of an IO chiplet: forwards messages of the host to the cubes."""

    def __init__(self, engine: GraphEngine, node_id: str) -> None:
        super().__init__(engine, node_id, engine.machine.config.sip.io.io_cpu.service_ns)

    def forward(self, message: Broadcast, by: int) -> None:
        message.stamp(self.engine.env._now, by)
        for cube in message.cubes:
            dst = naming.m_cpu(message.sip, cube)
            self.engine.message(self.name, dst, message.nbytes_of(cube), (message, cube), message.id, by)


class MCpu(_Relay):
    """A cube's management processor: forwards messages to the PEs."""

    def __init__(self, engine: GraphEngine, node_id: str) -> None:
        super().__init__(engine, node_id, engine.machine.config.cube.m_cpu.service_ns)

    def forward(self, message: tuple[Broadcast, int], by: int) -> None:
        broadcast, cube = message
        for pe in broadcast.cubes[cube]:
            dst = naming.pe_cpu(broadcast.sip, cube, pe)
            self.engine.message(self.name, dst, broadcast.nbytes_of(cube, pe), broadcast, broadcast.id, by)


class PeCpu:
    """The control processor of a PE: `command_ns` for each launch it receives and each command it issues.

    Maps go into its MMU. The engines are created on first use, since most PEs of a large machine are idle.
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
        self._server = _Server(engine, node_id)

    @cached_property
    def pe(self) -> Pe:
        return Pe(self.engine, *self.place, self.mmu)

    @property
    def stages(self) -> tuple[StageServer, ...]:
        if "pe" not in vars(self):
            return ()
        pipeline = self.pe.pipeline
        return pipeline.fetch, pipeline.gemm, pipeline.math, pipeline.store

    def on_broadcast(self, message: Broadcast, by: int) -> None:
        t, event = self._server.take(self.command_ps, message.id, by)
        message.comes(t, event)
        self.engine.env.call_at(t, self._decoded, (message, event))

    def _decoded(self, what: tuple[Broadcast, int]) -> None:
        message, by = what
        message.taken(self, by)

    def start(self, what: tuple[LaunchBroadcast, int]) -> None:
        launch, by = what
        PeProgram(self.pe, launch, self.command_ps, launch.begins(by)).resume(None)
