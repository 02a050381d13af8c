"""A PE: its parts, and the way of a command from the program to the engines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kernbench.analysis.records import CommandInfo
from kernbench.components.access import AccessJob
from kernbench.components.command import Command, Composite, Dot, Load, Recv, Ref, Send, Store, Value, Vector
from kernbench.components.jobs import Job, TileJob, VectorJob
from kernbench.components.pipeline import Pipeline
from kernbench.components.queues import RecvJob, SendJob, Slot
from kernbench.registry import COMPONENTS
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import naming

if TYPE_CHECKING:
    from kernbench.components.builtin.pe_dma import PeDma
    from kernbench.components.builtin.pe_fetch_store import PeFetchStore
    from kernbench.components.builtin.pe_gemm import PeGemm
    from kernbench.components.builtin.pe_ipcq import PeIpcq
    from kernbench.components.builtin.pe_math import PeMath
    from kernbench.components.builtin.pe_mmu import PeMmu
    from kernbench.components.builtin.pe_scheduler import PeScheduler
    from kernbench.components.builtin.pe_tcm import PeTcm


@dataclass(slots=True)
class Touch:
    """Virtual memory that a command under way reads or writes."""

    start: int
    end: int
    writes: bool
    command: Command


class Pe:
    """One processing element. `touched` holds the memory accesses under way, which order those that overlap."""

    def __init__(self, engine: GraphEngine, sip: int, cube: int, pe: int) -> None:
        self.engine, self.place = engine, (sip, cube, pe)
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
        self.mmu: PeMmu = part("pe_mmu")(self.name, config.pe_mmu)
        self.dma: PeDma = part("pe_dma")(self, naming.pe_dma(sip, cube, pe))
        self.ipcq: PeIpcq = part("pe_ipcq")(self, naming.pe_ipcq(sip, cube, pe))
        self.scheduler: PeScheduler = part("pe_scheduler")(self, f"{self.name}.pe_scheduler")
        self.pipeline = Pipeline(self.name, engine.log, config.pe_tcm.stage_buffers)
        self.touched: list[Touch] = []
        self.unfinished = 0

    def add(self, command: Command, issued: int, queues: str | None = None) -> None:
        """Take a command that PE_CPU has issued at `issued`; it goes to the engines in program order.

        `queues` is the key of those that the program sends and receives over.
        """
        job = self._job(command, issued, queues)
        command.id = job.id
        after = self._order(job, command)
        for value in command.inputs:
            value.pending += 1
            job.after(value)
            after.append(value.maker)
        if command.output is not None:
            command.output.pending += 1
            command.output.maker = job.id
        self.engine.log.issue(job.id, issued, after)
        self.unfinished += 1
        if isinstance(job, SendJob | RecvJob):
            self.ipcq.add(job)
            return
        if isinstance(job, AccessJob):
            channel = self.dma.reader if isinstance(command, Load) else self.dma.writer
            channel.queue.append(job)
        else:
            self.pipeline.add(job)
        if isinstance(job, TileJob):
            self.scheduler.queue.append(job)
            if job.reads is not None:
                self.dma.reader.queue.append(job.reads)
            if job.writes is not None:
                self.dma.writer.queue.append(job.writes)
        self.pump()

    def _job(self, command: Command, issued: int, queues: str | None) -> Job:
        shape = command.output.shape if command.output is not None else ()
        if isinstance(command, Composite) and command.out is not None:
            shape = command.out.shape
        info = CommandInfo(command.name, *self.place, shape=shape, tag=command.tag)
        command_id = self.engine.log.command(info)
        if isinstance(command, Send | Recv):
            return self.ipcq.job(command, command_id, issued, queues)
        if isinstance(command, Load | Store):
            return AccessJob(self, command, command_id, issued)
        if isinstance(command, Vector):
            return VectorJob(self, command, command_id, issued, self.math.ps(command.work))
        assert isinstance(command, Dot | Composite)
        return self.scheduler.job(command, command_id, issued)

    def _order(self, job: Job, command: Command) -> list[int]:
        """Let overlapping accesses of a program happen in its order, unless both only read; return what comes first."""
        first = []
        mine = [Touch(start, end, writes, command) for start, end, writes in _accesses(command)]
        for other in self.touched:
            if any(t.start < other.end and other.start < t.end and (t.writes or other.writes) for t in mine):
                job.after(other.command)
                first.append(other.command.id)
        self.touched.extend(mine)
        return first

    def pump(self) -> None:
        """Move everything that can move."""
        self.scheduler.advance()
        self.pipeline.advance()
        self.dma.reader.pump()
        self.dma.writer.pump()

    def completed(self, command: Command, t: int) -> None:
        """Forget a command that is complete at `t`, and free what nobody needs any more."""
        self.unfinished -= 1
        if self.touched:
            self.touched = [touch for touch in self.touched if touch.command is not command]
        if command.output is not None:
            self._unuse(command.output, t)
        for value in command.inputs:
            self._unuse(value, t)

    def _unuse(self, value: Value, t: int) -> None:
        value.pending -= 1
        if value.dropped and not value.pending:
            self.free(value, t)

    def free(self, value: Value, t: int) -> None:
        """Take back the space of `value`, if it has any, at `t`: in TCM, or the slot that it came in."""
        if isinstance(value.space, Slot):
            slot, value.space = value.space, None
            self.ipcq.release(slot, t)
        elif value.space is not None:
            self.tcm.free(value, t)

    def array(self, operand: Ref | Value) -> np.ndarray | None:
        """Return the values of an operand as they are now, in the carrier type."""
        if isinstance(operand, Value):
            return operand.array
        nbytes = int(np.prod(operand.shape)) * operand.dtype.itemsize
        raw = self.engine.memory.peek(self.mmu.translate(operand.va, nbytes))
        return raw.view(operand.dtype.numpy).astype(operand.dtype.carrier).reshape(operand.shape)

    def commit(self, out: Ref, values: np.ndarray) -> None:
        """Put `values` into memory, rounded to the type of `out`."""
        raw = np.ascontiguousarray(values.astype(out.dtype.numpy)).reshape(-1).view(np.uint8)
        self.engine.memory.poke(self.mmu.translate(out.va, raw.size), raw)


def _accesses(command: Command) -> list[tuple[int, int, bool]]:
    """Return (start, end, writes) of the virtual memory that a command touches."""
    if isinstance(command, Load | Store | Send | Recv):
        writes = isinstance(command, Store | Recv)
        return [(run.va, run.va + run.nbytes, writes) for run in command.runs]
    if not isinstance(command, Composite):
        return []
    found = []
    reads = [command.a, command.b, *(operand for _, operand in command.extra)]
    for operand, writes in [*((x, False) for x in reads), (command.out, True)]:
        if isinstance(operand, Ref):
            nbytes = operand.dtype.itemsize
            for size in operand.shape:
                nbytes *= size
            found.append((operand.va, operand.va + nbytes, writes))
    return found
