"""Jobs: what the engines of a PE have in hand, one for each command of a program."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from kernbench.components.command import Command, Composite, Value, Vector
from kernbench.components.source import Source
from kernbench.sim_engine.op_log import KIND
from kernbench.sim_engine.transfer import Callee

if TYPE_CHECKING:
    from kernbench.components.builtin.pe_cpu import Program
    from kernbench.components.pe import Pe
    from kernbench.components.stream import TileReads, TileWrites


_COMPOSITE = KIND["composite"]


class Engines:
    """What a job knows of its PE; `data` says whether it moves values, too."""

    core: Any
    log: Any
    data: bool

    def completed(self, command: Command, t: int) -> None:
        """Forget a command that is complete at `t`."""

    def pump(self) -> None:
        """Move everything that can move."""


class Issuer(Callee):
    """What a job knows of its program."""

    def completed(self, t: int) -> None:
        """Take note that one of its commands is complete at `t`."""

    def _wake(self, t: int) -> None:
        """Go on at `t`: what it waited for is complete."""


class Job(Source):
    """A command on its way: `waiting` counts what it depends on, `ready` is when the last of it is complete.

    What it makes has a place in TCM: as an operand if it is `loaded`, none of its own if it `stays` in its slot.
    """

    __slots__ = ("command", "id", "loaded", "pe", "program", "ready", "stays", "waiting")

    def __init__(self, pe: Pe, command: Command, program: Program | None) -> None:
        self.begins(pe, command, program)

    def begins(self, pe: Pe, command: Command, program: Program | None) -> None:
        """Set what every job has; cheaper than a chain of constructors."""
        self.pe, self.program = pe, program
        self.command: Any = command
        self.ready = self.waiting = 0
        self.id = -1
        self.loaded = self.stays = False

    def enter(self) -> None:
        """Queue for the engines, behind the commands before it."""
        raise TypeError(f"{type(self).__name__} does not say how it queues")

    def go(self) -> None:
        """Go on: nothing that it depends on is missing any more."""
        self.pe.pump()

    def after(self, what: Value | Command) -> None:
        """Let this job start no earlier than `what` is complete."""
        if what.done_ps is None:
            self.waiting += 1
            what.waiters += (self._released,)
        elif what.done_ps > self.ready:
            self.ready = what.done_ps

    def _released(self, t: int) -> None:
        if t > self.ready:
            self.ready = t
        self.waiting -= 1
        if not self.waiting:
            self.go()

    def pieces(self) -> list[tuple[list[tuple[int, int]], bool]]:
        """Return the physical memory that it touches, as ((address, bytes) of each piece, whether it writes)."""
        touches = self.command.touches()
        if not touches:
            return []
        assert self.program is not None
        mmu = self.program.pe.mmu
        return [(mmu.translate(start, end - start), writes) for start, end, writes in touches]

    def result(self) -> np.ndarray | None:
        """Return the values of the output."""
        compute = self.command.compute
        return None if compute is None else compute(*[value.array for value in self.command.inputs])

    def finish(self, t: int) -> None:
        """Complete the command at `t`: give its output a value and a time, and tell who waits."""
        command = self.command
        output, waiters = command.output, command.waiters
        if output is not None:
            if self.pe.data:
                output.array = self.result()
            output.done_ps = t
            waiters += output.waiters
            output.waiters = ()
        command.done_ps = t
        command.waiters = ()
        self.pe.completed(command, t)
        if self.program is not None:
            self.program.completed(t)
        for tell in waiters:
            if isinstance(tell, Issuer):
                tell._wake(t)
            else:
                tell(t)


class VectorJob(Job):
    """Work of one command on the vector engine."""

    __slots__ = ("service_ps",)

    def __init__(self, pe: Pe, command: Vector, program: Program | None) -> None:
        self.begins(pe, command, program)
        self.service_ps = pe.math.ps(command.work)

    def enter(self) -> None:
        """Queue for the vector engine."""
        self.pe.pipeline.math.queue.append(self)
        self.pe.pump()


class TileJob(Job):
    """A tiled command: its tiles move through the pipeline; counters say how far each stage has come.

    `kt` tiles in a row make one output tile. Streamed operands arrive by `reads` (see `pe_dma`); the tiles of
    pinned ones are there as soon as PE_SCHEDULER has planned them.
    """

    __slots__ = (
        "fetched", "fetches", "gemm_ps", "kt", "matrix", "multiplied", "n", "outputs", "plan", "planned_ps", "reads",
        "start_ps", "stored", "tile_ps", "vector_ps", "vectored", "writes",
    )  # fmt: skip

    def __init__(self, pe: Pe, command: Command, program: Program | None, plan: Any) -> None:
        self.begins(pe, command, program)
        self.plan = plan
        self.n: int = plan.n
        self.kt: int = plan.kt
        self.outputs = self.n // self.kt
        self.fetched = self.multiplied = self.vectored = self.stored = 0
        self.matrix: bool = plan.matrix
        self.gemm_ps: int = plan.gemm_ps
        self.vector_ps: Callable[[int], int] | None = plan.vector_ps
        self.tile_ps = pe.scheduler.tile_ps
        self.planned_ps = self.start_ps = -1  # not yet
        self.reads: TileReads | None = None
        self.writes: TileWrites | None = None
        self.fetches: list[tuple[int, int]] = []

    def enter(self) -> None:
        """Queue for each stage that it uses, for its plan, and for the DMA."""
        pe, pipeline = self.pe, self.pe.pipeline
        pipeline.fetch.queue.append(self)
        if self.matrix:
            pipeline.gemm.queue.append(self)
        if self.vector_ps is not None:
            pipeline.math.queue.append(self)
        pipeline.store.queue.append(self)
        pe.scheduler.queue.append(self)
        if self.reads is not None:
            pe.dma.reader.queue.append(self.reads)
        if self.writes is not None:
            pe.dma.writer.queue.append(self.writes)
        pe.pump()

    def planned(self, i: int) -> int:
        """Return when PE_SCHEDULER has planned tile `i`, or -1 while it cannot begin with the command."""
        return -1 if self.planned_ps < 0 else self.planned_ps + (i + 1) * self.tile_ps

    def operands_ps(self, i: int) -> int:
        """Return when the operands of tile `i` are in TCM, or -1 if that is not known yet."""
        if self.reads is None:
            return self.planned(i)
        return self.reads.arrival(i)

    def fetch_left(self, i: int, start: int, end: int) -> None:
        """Note that the operands of tile `i` have left TCM: their buffers are free from `end` on."""
        if self.start_ps < 0:
            self.start_ps = start
        if self.reads is not None:
            self.reads.freed(i, end)

    def tile_of(self, o: int) -> int:
        """Return the tile that completes output tile `o`."""
        return (o + 1) * self.kt - 1

    def store_left(self, t: int) -> None:
        """Note that an output tile has left the store stage: to the DMA, or for good."""
        if self.writes is not None:
            self.pe.dma.writer.pump()
        elif self.stored == self.outputs:
            self.window(t)
            self.finish(t)

    def written(self, t: int) -> None:
        """End the job: the last write is acknowledged."""
        pe, command = self.pe, self.command
        assert isinstance(command, Composite)
        self.window(t)
        if pe.engine.data and command.compute is not None and command.out is not None:
            arrays = [pe.array(operand) for operand in (command.a, command.b) if operand is not None]
            arrays += [pe.array(operand) for _, operand in command.extra]
            if command.acc is not None:
                arrays.append(command.acc.array)
            pe.commit(command.out, command.compute(*arrays))
        self.finish(t)

    def window(self, end: int) -> None:
        """Log the command as a whole, from its first DMA or fetch to `end`."""
        log = self.pe.log
        if log.operation:
            start = self.start_ps if self.start_ps >= 0 else self.ready
            log.row(start, end, self.pe.scheduler.component, _COMPOSITE, self.id, 0, self.command.flops, -1)
