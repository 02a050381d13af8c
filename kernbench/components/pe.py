"""A PE: its parts, and the way of a command from the program to the engines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from kernbench.components.access import LoadJob, StoreJob
from kernbench.components.command import Command, Composite, Dot, Load, Recv, Ref, Send, Span, Store, Value, Vector
from kernbench.components.jobs import Engines, Job, VectorJob
from kernbench.components.order import AccessOrder
from kernbench.components.pipeline import Pipeline
from kernbench.components.queues import Slot
from kernbench.registry import COMPONENTS
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import naming

if TYPE_CHECKING:
    from kernbench.components.builtin.pe_cpu import Program
    from kernbench.components.builtin.pe_dma import PeDma
    from kernbench.components.builtin.pe_fetch_store import PeFetchStore
    from kernbench.components.builtin.pe_gemm import PeGemm
    from kernbench.components.builtin.pe_ipcq import PeIpcq
    from kernbench.components.builtin.pe_math import PeMath
    from kernbench.components.builtin.pe_mmu import PeMmu
    from kernbench.components.builtin.pe_scheduler import PeScheduler
    from kernbench.components.builtin.pe_tcm import PeTcm


class Pe(Engines):
    """One processing element.

    `order` is that of the commands under way that touch memory, None before the first; `placed` holds the values that
    have a place, and whose they are.
    """

    def __init__(self, engine: GraphEngine, sip: int, cube: int, pe: int, mmu: PeMmu) -> None:
        self.engine, self.place, self.mmu = engine, (sip, cube, pe), mmu
        self.core, self.log, self.data = engine.env.core, engine.log, engine.data
        self.name = naming.pe(sip, cube, pe)
        self.config = config = engine.machine.config.cube.pe
        self.gather = engine.machine.config.cube.hbm.gather
        heap = engine.allocators.pe(sip, cube, pe).tcm

        def part(kind: str) -> Any:
            return COMPONENTS.resolve(getattr(config, kind).impl)

        self.gemm: PeGemm = part("pe_gemm")(config.pe_gemm)
        self.math: PeMath = part("pe_math")(config.pe_math)
        self.fetch_store: PeFetchStore = part("pe_fetch_store")(config.pe_tcm)
        self.tcm: PeTcm = part("pe_tcm")(self.name, config.pe_tcm, heap)
        self.dma: PeDma = part("pe_dma")(self, naming.pe_dma(sip, cube, pe))
        self.ipcq: PeIpcq = part("pe_ipcq")(self, naming.pe_ipcq(sip, cube, pe))
        self.scheduler: PeScheduler = part("pe_scheduler")(self, f"{self.name}.pe_scheduler")
        self.pipeline = Pipeline(self.name, engine.log, config.pe_tcm.stage_buffers, engine.live)
        self.order: AccessOrder | None = None
        self.placed: dict[Value, Program] = {}
        self._jobs: dict[type[Command], Callable[[Any, Program | None], Job]] = {
            Load: partial(LoadJob, self),
            Store: partial(StoreJob, self),
            Vector: partial(VectorJob, self),
            Dot: self.scheduler.job,
            Composite: self.scheduler.job,
        }

    def job(self, command: Command, program: Program | None = None) -> Job:
        """Return what its engines make of a command of `program` (None: nobody asks for its end)."""
        if isinstance(command, Send):
            return self.ipcq.message(command, program)
        if isinstance(command, Recv):
            return self.ipcq.receive(command, program)
        return self._jobs[type(command)](command, program)

    def add(self, job: Job, issued: int) -> None:
        """Take a job whose command PE_CPU has issued at `issued`; it goes to the engines in program order."""
        command = job.command
        job.ready = issued
        touches = command.touches()
        first = self._order(job, touches) if touches else []
        for value in command.inputs:
            value.pending += 1
            job.after(value)
        if command.output is not None:
            command.output.pending += 1
        if self.log.operation:
            self._log(job, issued, first)
        job.enter()

    def _order(self, job: Job, mine: Sequence[Span]) -> list[Command]:
        """Let conflicting accesses to memory happen in program order; return the commands that come first."""
        if self.order is None:
            self.order = AccessOrder()
        first = self.order.add(job.command, mine)
        for other in first:
            job.after(other)
        return first

    def _log(self, job: Job, issued: int, first: list[Command]) -> None:
        command, log = job.command, self.log
        made = command.out if isinstance(command, Composite) else command.output
        shape = made.shape if made is not None else ()
        sip, cube, pe = self.place
        command.id = job.id = made_by = log.command(command.name, sip, cube, pe, shape, command.tag)
        launch = -1 if job.program is None else job.program.launch.id
        log.issued.append((made_by, issued, launch))
        for other in first:
            if other.id >= 0:
                log.after.append((made_by, other.id))
        for value in command.inputs:
            if value.maker >= 0:
                log.after.append((made_by, value.maker))
        if command.output is not None:
            command.output.maker = made_by

    def pump(self) -> None:
        """Move everything that can move."""
        scheduler, dma = self.scheduler, self.dma
        if scheduler.queue:
            scheduler.advance()
        self.pipeline.advance()
        if dma.reader.queue:
            dma.reader.pump()
        if dma.writer.queue:
            dma.writer.pump()

    def completed(self, command: Command, t: int) -> None:
        """Forget a command that is complete at `t`, and free what nobody needs any more."""
        if self.order is not None:
            self.order.remove(command)
        output = command.output
        if output is not None:
            output.pending -= 1
            if output.dropped and not output.pending:
                self.free(output, t)
        for value in command.inputs:
            value.pending -= 1
            if value.dropped and not value.pending:
                self.free(value, t)

    def free(self, value: Value, t: int) -> None:
        """Take back the place of `value`, if it has one, at `t`: in TCM, or the slot that it came in."""
        self.placed.pop(value, None)
        if isinstance(value.space, Slot):
            slot, value.space = value.space, None
            self.ipcq.release(slot, t)
        elif value.space is not None:
            self.tcm.free(value, t)

    def array(self, operand: Ref | Value) -> np.ndarray | None:
        """Return the values of an operand as they are now, in the carrier type."""
        if isinstance(operand, Value):
            return operand.array
        raw = self.engine.memory.peek(self.mmu.translate(operand.va, operand.nbytes))
        return raw.view(operand.dtype.numpy).astype(operand.dtype.carrier).reshape(operand.shape)

    def commit(self, out: Ref, values: np.ndarray) -> None:
        """Put `values` into memory, rounded to the type of `out`."""
        raw = np.ascontiguousarray(values.astype(out.dtype.numpy)).reshape(-1).view(np.uint8)
        self.engine.memory.poke(self.mmu.translate(out.va, raw.size), raw)
