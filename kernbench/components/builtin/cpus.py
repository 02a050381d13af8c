"""The CPUs between the host and the PEs (IO CPU, M_CPU, PE_CPU): they distribute a launch and start programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernbench._registry import COMPONENTS
from kernbench._units import ns_to_ps
from kernbench.analysis._records import NONE
from kernbench.components._pe import Pe, PeProgram
from kernbench.sim_engine._callee import Callee
from kernbench.sim_engine._host_requests import Broadcast, LaunchBroadcast
from kernbench.sim_engine._op_log import STEP_KIND
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import _naming as naming

if TYPE_CHECKING:
    from kernbench.components.builtin.pe_scheduler import StageServer


_CPU = STEP_KIND["cpu"]
_DECODED, _START = range(2)  # what a PE's processor does next


class _Server:
    """A CPU that processes messages one at a time; `free_by` is the event of the last one's end."""

    def __init__(self, engine: GraphEngine, node_id: str) -> None:
        self.core, self.log, self.place = engine.env.core, engine.log, engine.log.place(node_id)
        self.free, self.free_by = 0, NONE

    def take(self, service_ps: int, command: int, by: int) -> int:
        """Return the decode time [ps] of a message that arrives now with the event `by`."""
        now = self.core.now
        cause, second = (self.free_by, by) if self.free > now else (by, self.free_by)
        self.free = max(now, self.free) + service_ps
        if self.log.operation:
            self.free_by = self.log.step(self.free, service_ps, self.place, _CPU, command, -1, cause, second)
        return self.free


class _Relay:
    """Occupied once per message, whatever its fan-out; copies leave back to back in the order of targets."""

    def __init__(self, engine: GraphEngine, node_id: str, service_ns: float) -> None:
        self.engine, self.name = engine, node_id
        self.service_ps = ns_to_ps(service_ns)
        self._server = _Server(engine, node_id)

    def on_broadcast(self, message: Any, by: int) -> None:
        command = message[0].id if isinstance(message, tuple) else message.id
        t = self._server.take(self.service_ps, command, by)
        self._server.core.call_at(t, self._forward, (message, self._server.free_by))

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


class PeCpu(Callee):
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
        self._pe: Pe | None = None

    @property
    def pe(self) -> Pe:
        if self._pe is None:
            self._pe = Pe(self.engine, *self.place, self.mmu)
        return self._pe

    @property
    def stages(self) -> tuple[StageServer, ...]:
        if self._pe is None:
            return ()
        pipeline = self._pe.pipeline
        return pipeline.fetch, pipeline.gemm, pipeline.math, pipeline.store

    def on_broadcast(self, message: Broadcast, by: int) -> None:
        t = self._server.take(self.command_ps, message.id, by)
        message.comes(t, self._server.free_by)
        self._server.core.wake_at(t, self, _DECODED, (message, self._server.free_by))

    def start_at(self, t: int, launch: LaunchBroadcast, by: int) -> None:
        self._server.core.wake_at(t, self, _START, (launch, by))

    def woken(self, what: int, arg: tuple[Any, int]) -> None:
        message, by = arg
        if what == _DECODED:
            message.taken(self, by)
        else:
            PeProgram(self.pe, message, self.command_ps, message.begins(by)).resume(None)
