"""PE_CPU: takes launches, runs programs on greenlets, and issues their commands in order."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from kernbench.components.pe import Pe, Program
from kernbench.registry import COMPONENTS
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.host_requests import Broadcast, Launch
from kernbench.topology import naming
from kernbench.units import ns_to_ps

if TYPE_CHECKING:
    from kernbench.components.builtin.pe_scheduler import Stage


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
