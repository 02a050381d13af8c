"""A PE: its parts, the programs that run on it, and the path of a command from a program to the engines."""

from __future__ import annotations

import sys
import threading
from bisect import bisect_right
from collections.abc import Sequence
from contextvars import Context
from typing import TYPE_CHECKING, Any

import numpy as np
from greenlet import getcurrent, greenlet

from kernbench._registry import COMPONENTS, RUNNERS
from kernbench.analysis._records import NONE, CommandInfo
from kernbench.components._command import (
    AccessSpan,
    Command,
    Composite,
    Dot,
    Load,
    Recv,
    Ref,
    Send,
    Stopped,
    Store,
    Value,
    Vector,
    VectorOp,
)
from kernbench.components.builtin.pe_tcm import Space
from kernbench.errors import KernbenchError, KernelError, LimitError
from kernbench.sim_engine._callee import Callee
from kernbench.sim_engine._host_requests import LaunchBroadcast
from kernbench.sim_engine._op_log import STEP_KIND
from kernbench.sim_engine._user_code import user_frame, user_line
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import _naming as naming

if TYPE_CHECKING:
    from kernbench.analysis._roofline import MatrixEngine
    from kernbench.components.builtin.pe_dma import PeDma
    from kernbench.components.builtin.pe_math import PeMath
    from kernbench.components.builtin.pe_mmu import PeMmu
    from kernbench.components.builtin.pe_scheduler import PeScheduler
    from kernbench.components.builtin.pe_tcm import PeFetchStore, PeTcm


class _Piece:
    """Bytes `start` to `end`: the last writer, and the readers since then, among commands in flight."""

    def __init__(self, start: int, end: int, writer: Command | None, readers: dict[Command, None]) -> None:
        self.start, self.end, self.writer, self.readers = start, end, writer, readers


class AccessOrder:
    """Program order of conflicting memory accesses, as disjoint pieces by address of the commands in flight.

    A command follows the last writer of each byte it accesses. A write follows the readers since then instead, which
    themselves follow that writer.

    A read has no pieces until a write comes near it: `_reads` and `_writes` hold the range (first, end) of a command.
    """

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._pieces: list[_Piece] = []
        self._spans: dict[Command, Sequence[AccessSpan]] = {}
        self._reads: dict[Command, tuple[int, int]] = {}
        self._writes: dict[Command, tuple[int, int]] = {}

    def add(self, command: Command, spans: Sequence[AccessSpan]) -> list[Command]:
        """Return the command's distinct predecessors."""
        self._spans[command] = spans
        lo, hi = min(spans)[0], max([end for _, end, _ in spans])
        if any(writes for _, _, writes in spans):
            near = [read for read, (start, end) in self._reads.items() if start < hi and lo < end]
            for read in near:
                del self._reads[read]
                self._enter(read, self._spans[read])
            earlier = dict.fromkeys(self._writes) if command.releases else {}
            self._writes[command] = lo, hi
            return list(earlier | dict.fromkeys(self._enter(command, spans)))
        if not any(start < hi and lo < end for start, end in self._writes.values()):
            self._reads[command] = lo, hi
            return []
        return self._enter(command, spans)

    def _enter(self, command: Command, spans: Sequence[AccessSpan]) -> list[Command]:
        first: dict[Command, None] = {}
        pieces = self._pieces
        for start, end, writes in spans:
            i = self._cut(start)
            while start < end:
                if i == len(pieces) or pieces[i].start > start:
                    piece = _Piece(start, min(end, pieces[i].start) if i < len(pieces) else end, None, {})
                    self._insert(i, piece)
                else:
                    piece = pieces[i]
                    if piece.end > end:
                        self._cut(end)
                if writes:
                    first.update(piece.readers)
                    if not piece.readers and piece.writer is not None:
                        first[piece.writer] = None
                    piece.writer, piece.readers = command, {}
                elif command is not piece.writer:
                    if piece.writer is not None:
                        first[piece.writer] = None
                    piece.readers[command] = None
                start = piece.end
                i += 1
        first.pop(command, None)
        return list(first)

    def under_way(self) -> list[AccessSpan]:
        return [span for spans in self._spans.values() for span in spans]

    def remove(self, command: Command) -> None:
        spans = self._spans.pop(command, None)
        if spans is None or self._reads.pop(command, None) is not None:
            return
        self._writes.pop(command, None)
        if not self._spans:
            self._starts.clear()
            self._pieces.clear()
            return
        pieces = self._pieces
        for start, end, _ in spans:
            i = bisect_right(self._starts, start) - 1
            if i < 0 or pieces[i].end <= start:
                i += 1
            kept = i
            while i < len(pieces) and pieces[i].start < end:
                piece = pieces[i]
                piece.readers.pop(command, None)
                if piece.writer is command:
                    piece.writer = None
                if piece.readers or piece.writer is not None:
                    pieces[kept], self._starts[kept] = piece, piece.start
                    kept += 1
                i += 1
            del pieces[kept:i], self._starts[kept:i]

    def _cut(self, at: int) -> int:
        """Split a piece that contains `at`; return the index of the first piece that begins at `at` or later."""
        i = bisect_right(self._starts, at)
        if i and self._pieces[i - 1].start == at:
            return i - 1
        if i and self._pieces[i - 1].end > at:
            piece = self._pieces[i - 1]
            self._insert(i, _Piece(at, piece.end, piece.writer, dict(piece.readers)))
            piece.end = at
        return i

    def _insert(self, i: int, piece: _Piece) -> None:
        self._pieces.insert(i, piece)
        self._starts.insert(i, piece.start)


class Job:
    """A command in flight: `waiting` counts incomplete dependencies, `ready` is when the last one completed [ps].

    The output takes space in TCM: as an operand if it is `loaded`, none if it `stays` in its slot.
    """

    def __init__(self, pe: Pe, command: Command, program: PeProgram | None) -> None:
        self.begins(pe, command, program)

    def begins(self, pe: Pe, command: Command, program: PeProgram | None) -> None:
        self.pe, self.program = pe, program
        self.command: Any = command
        self.ready = self.ready_by = self.issued_by = self.waiting = 0
        self.id = -1
        self.loaded = self.stays = False

    def enter(self) -> None:
        """Queue for the engines, in program order."""
        raise TypeError(f"{type(self).__name__} does not say how it queues")

    def go(self) -> None:
        """Continue: all dependencies are complete."""
        self.pe.progress()

    def ready_at(self, stage: Any) -> int:
        raise TypeError(f"{type(self).__name__} has no work for stages")

    def serve(self, stage: Any, ready: int) -> None:
        raise TypeError(f"{type(self).__name__} has no work for stages")

    def after(self, value: Value) -> None:
        """Start no earlier than `value` is complete."""
        if value.done_ps < 0:
            self.waiting += 1
            value.waiters += (self._released,)
        elif value.done_ps > self.ready:
            self.ready, self.ready_by = value.done_ps, value.done_by

    def _released(self, t: int, by: int) -> None:
        if t > self.ready:
            self.ready, self.ready_by = t, by
        self.waiting -= 1
        if not self.waiting:
            self.go()

    def pieces(self) -> list[tuple[list[tuple[int, int]], bool]]:
        """Physical memory that the command accesses, as ([(address, bytes), ...], whether it writes)."""
        touches = self.command.touches()
        if not touches:
            return []
        assert self.program is not None
        mmu = self.program.pe.mmu
        return [(mmu.translate(start, end - start), writes) for start, end, writes in touches]

    def result(self) -> np.ndarray | None:
        compute = self.command.compute
        return None if compute is None else compute(*[value.array for value in self.command.inputs])

    def finish(self, t: int, by: int) -> None:
        command = self.command
        output, waiters = command.output, command.waiters
        if output is not None:
            if self.pe.data:
                output.array = self.result()
            output.done_ps, output.done_by = t, by
            if output.waiters:
                waiters += output.waiters
                output.waiters = ()
        command.done_ps, command.done_by = t, by
        if waiters:
            command.waiters = ()
        self.pe.completed(command, t)
        if self.program is not None:
            self.program.completed(t, by)
        for tell in waiters:
            if isinstance(tell, PeProgram):
                program = tell
                program._wake(t, by)
            else:
                tell(t, by)


_ISSUE, _END = STEP_KIND["issue"], STEP_KIND["end"]
_MOST_IDLE = 512
_PULSE_EVERY = 256  # a program may issue commands without ever waiting for the clock


class _Idle(threading.local):
    """The greenlets of this thread whose programs have ended: a new one takes 10 us, for the memory of its frames."""

    def __init__(self) -> None:
        self.greenlets: list[greenlet] = []


_idle = _Idle()


def _run_programs(program: PeProgram | None) -> None:
    """Run one program after another, each without context variables."""
    while program is not None:
        Context().run(program._run)
        hub, program = program._hub, None
        if len(_idle.greenlets) < _MOST_IDLE:
            _idle.greenlets.append(getcurrent())
            program = hub.switch()


class PeProgram(Callee):
    """One program of a launch: the backend for its kernel's commands. `issued` is PE_CPU's own clock [ps].

    It `waits_for` a completion or, if it is `short` of TCM, for space.
    """

    data: bool

    def __init__(self, pe: Pe, launch: LaunchBroadcast, command_ps: int, by: int) -> None:
        self.pe, self.launch, self.command_ps = pe, launch, command_ps
        self.engine, self.core = pe.engine, pe.core
        self.data = self.engine.data
        self.task: Any = launch.task
        self.races = None if launch.task is None else launch.task.device
        self.queues = self.pe.ipcq.sets.get(launch.queues or "", {})
        self.issued = self.last = self.engine.env._now
        self._cause = self.last_by = self._woken_by = self._end_by = by
        self._second = self._third = NONE
        self._launch_id = launch.id
        self.unfinished = self.commands = 0
        self.ended = self.synchronizes = False
        self.waits_for: Value | Command | None = None
        self.short = False
        self.since = self.issued
        self._greenlet: Any = _idle.greenlets.pop() if _idle.greenlets else greenlet(_run_programs)
        self._enter = self._greenlet.switch
        self.engine.programs[self] = None
        self._hub: Any = None
        self._leave: Any = None

    def _run(self) -> None:
        launch = self.launch
        _, cube, pe = self.pe.place
        args, participant = launch.args_of(cube, pe), (launch.ranks.get((cube, pe), 0), launch.world)
        RUNNERS.resolve("tl")(launch.kernel, args, self, (pe, cube), launch.grid, participant)
        self.ended = True

    def woken(self, what: int, _: object) -> None:
        self.resume(None)

    def resume(self, _: object) -> None:
        """Run the kernel until it blocks or ends."""
        hub = getcurrent()
        if hub is not self._hub:
            self._hub = self._greenlet.parent = hub
            self._leave = hub.switch
        self._follow(self.core.now, self._woken_by)
        self.core.running = self
        try:
            self._enter(self)
        except Exception as error:
            raise _located(error, self.pe) from error
        finally:
            self.core.running = None
        if self.ended:
            self._greenlet = None
            self._maybe_end(self.issued, self._cause)

    def _follow(self, t: int, by: int) -> None:
        """Delay the next command to after `t`, the time of event `by`."""
        cause = self._cause
        if t > self.issued:
            self.issued, self._cause, by = t, by, cause
        if by != self._cause:
            self._second, self._third = by, self._second

    def stop(self) -> None:
        if self._greenlet:  # it is under way
            self.core.running = self
            self._greenlet.throw(Stopped)

    def submit(self, command: Command) -> None:
        """Issue a command: `command_ns` after the previous one, and not before its output has space in TCM."""
        self._check_caller()
        if not self.data:
            command.compute = None  # it may hold the offsets of a large tile
        job = self.pe.job(command, self)
        if command.output is not None:
            self._place(command.output, job)
        if self.races is not None:
            touched = job.pieces()
            if touched:
                self.synchronizes |= command.atomic
                self.races.accesses(self, touched, user_line(), command.atomic)
        self.issued += self.command_ps
        self.unfinished += 1
        self.pe.add(job, self.issued)
        if job.id >= 0:
            self._cause, self._second, self._third = job.issued_by, NONE, NONE
        self.commands += 1
        if not self.commands % _PULSE_EVERY:
            self.engine.ahead(_PULSE_EVERY, self.issued)

    def _place(self, output: Value, job: Job) -> None:
        tcm = self.pe.tcm
        while not job.stays:
            at = tcm.alloc(output, job.loaded, self.issued)
            if at >= 0:
                if at > self.issued:
                    self._follow(at, tcm.freed_by)
                if self.pe.log.operation:
                    self.pe.log.allocated(at, self.pe.tcm_place, output.space.nbytes)
                break
            if not self.unfinished:
                raise tcm.full(output, job.loaded)
            self.short = True
            self._wait(output)
        self.pe.placed[output] = self

    def completed(self, t: int, by: int) -> None:
        self.unfinished -= 1
        if t > self.last:
            self.last, self.last_by = t, by
        if self.ended:
            self._maybe_end(t, by)
        elif self.short:
            self._wake(t, by)

    def block(self, on: Value | Command) -> None:
        self._check_caller()
        if isinstance(on, Command):
            command = on
            t, by = command.done_ps, command.done_by
            if t < 0:
                command.waiters = (*command.waiters, self) if command.waiters else (self,)
        else:
            value: Value = on
            t, by = value.done_ps, value.done_by
            if t < 0:
                value.waiters = (*value.waiters, self) if value.waiters else (self,)
        if t < 0:
            self._wait(on)
        elif t > self.core.now:
            self._wake(t, by)
            self._leave()
        else:
            self._follow(t, by)

    def _check_caller(self) -> None:
        if self.core.running is not self:
            raise KernelError(
                f"a tl or tile of {self.pe.name}, kernel {self.launch.name!r}, is used outside of its program; use the "
                "tl that the kernel gets, and pass values to other programs through memory or queues"
            )

    def _wake(self, t: int, by: int) -> None:
        self.waits_for, self.short, self._woken_by = None, False, by
        self.core.wake_at(max(t, self.core.now), self, 0, None)

    def _wait(self, what: Value | Command) -> None:
        self.waits_for, self.since = what, self.core.now
        self._leave()

    def drop(self, value: Value) -> None:
        value.dropped = True
        if not value.pending:
            if value.done_ps > self.issued:
                self.pe.free(value, value.done_ps, value.done_by)
            else:
                self.pe.free(value, self.issued, self._cause)

    def _maybe_end(self, t: int, by: int) -> None:
        if not self.unfinished:
            end, cause, second = self.last, self.last_by, self._cause
            if self.issued > end:
                end, cause, second = self.issued, second, cause
            if t > end:
                end, cause, second = t, by, cause
            log = self.pe.log
            if log.operation:
                self._end_by = log.step(end, 0, self.pe.cpu, _END, self._launch_id, -1, cause, second)
            self.engine.env.call_at(end, self._end, None)

    def _end(self, _: object) -> None:
        del self.engine.programs[self]
        # A tile that outlives its program (in a cycle, or stored somewhere) keeps no TCM.
        for value in [value for value, program in self.pe.placed.items() if program is self]:
            self.pe.free(value, self.engine.env._now, self._end_by)
        self.launch.program_done(self, self._end_by)

    # -- for the race detector

    @property
    def is_ordered(self) -> bool:
        return self.synchronizes or bool(self.queues)

    def description(self) -> str:
        return f"{self.pe.name}, kernel {self.launch.name!r}"

    def under_way(self, lo: int, hi: int, writes_only: bool) -> bool:
        order, mmu = self.pe.order, self.pe.mmu
        return order is not None and any(
            pa < hi and lo < pa + nbytes
            for start, end, is_write in order.under_way()
            if is_write or not writes_only
            for pa, nbytes in mmu.translate(start, end - start)
        )

    def owner(self, pa: int) -> str:
        return self.pe.mmu.owner_of(pa) or ""

    def receives(self) -> bool:
        return bool(self.pe.ipcq.waiting(self))

    def describe(self) -> str:
        on = self.waits_for
        what = repr(f"a tile of shape {on.shape}" if isinstance(on, Value) else on.name) if on else "its commands"
        if self.short and isinstance(on, Value):
            what = f"{on.nbytes} B of TCM"
        lines = [f"{self.location()}, waits for {what} since {self.since / 1000:,.2f} ns"]
        lines += self.pe.ipcq.waiting(self)
        lines += [f"ring {queue.describe()}" for queue in self.queues.values()]
        return "\n    ".join(lines)

    def location(self) -> str:
        waits_in = self._greenlet.gr_frame if self._greenlet else None
        frame = user_frame(sys._getframe() if self.core.running is self else waits_in)
        line = "" if frame is None else f" at {frame.f_code.co_filename}:{frame.f_lineno}"
        return f"{self.pe.name}, kernel {self.launch.name!r}{line}"


def _engine_work(command: Command) -> tuple[str, tuple[VectorOp, ...]]:
    if isinstance(command, Vector):
        return "", command.work
    if isinstance(command, Dot):
        return command.inputs[0].dtype.name, ()
    if isinstance(command, Composite):
        return command.a.dtype.name if command.op == "gemm" and command.a is not None else "", command.epilogue
    return "", ()


def _located(error: Exception, pe: Pe) -> KernbenchError:
    kind = type(error) if isinstance(error, (KernelError, LimitError)) else KernelError
    return kind(f"{pe.name}: {str(error).replace(f'{pe.name}: ', '')}")


class Pe:
    """One processing element.

    `order` tracks memory accesses in flight (None before the first); `placed` maps values with space to their programs.
    Equal commands share an entry of the log, which `logged` has.
    """

    def __init__(self, engine: GraphEngine, sip: int, cube: int, pe: int, mmu: PeMmu) -> None:
        self.engine, self.extents, self.place, self.mmu = engine, engine.extents, (sip, cube, pe), mmu
        self.core, self.log, self.data = engine.env.core, engine.log, engine.data
        self.name = naming.pe(sip, cube, pe)
        self.cpu, self.mmu_place = (self.log.place(f"{self.name}.{part}") for part in ("pe_cpu", "pe_mmu"))
        self.tcm_place = self.log.place(naming.pe_tcm(sip, cube, pe))
        self.config = config = engine.machine.config.cube.pe
        self.gather = engine.machine.config.cube.hbm.gather
        heap = engine.allocators.pe(sip, cube, pe).tcm

        def part(kind: str) -> Any:
            return COMPONENTS.resolve(getattr(config, kind).impl)

        self.gemm: MatrixEngine = part("pe_gemm")(config.pe_gemm)
        self.math: PeMath = part("pe_math")(config.pe_math)
        self.fetch_store: PeFetchStore = part("pe_fetch_store")(config.pe_tcm)
        self.tcm: PeTcm = part("pe_tcm")(self.name, config.pe_tcm, heap)
        self.dma: PeDma = part("pe_dma")(self, naming.pe_dma(sip, cube, pe))
        self.ipcq = part("pe_ipcq")(self, naming.pe_ipcq(sip, cube, pe))
        self.scheduler: PeScheduler = part("pe_scheduler")(self, f"{self.name}.pe_scheduler")
        self.pipeline = self.scheduler.pipeline
        self.order: AccessOrder | None = None
        self.placed: dict[Value, PeProgram] = {}
        self.logged: dict[tuple[Any, ...], CommandInfo] = {}

    def job(self, command: Command, program: PeProgram | None = None) -> Job:
        queues = {} if program is None else program.queues
        job: Job
        if isinstance(command, Send):
            job = self.ipcq.inbox.message(self, command, program, queues)
        elif isinstance(command, Recv):
            job = self.ipcq.receive(command, program, queues)
        elif isinstance(command, (Load, Store)):
            job = self.dma.job(command, program)
        else:
            job = self.scheduler.job(command, program)
        return job

    def add(self, job: Job, issued: int) -> None:
        """Queue a job whose command PE_CPU issued at `issued`; jobs reach the engines in program order."""
        command = job.command
        job.ready = issued
        touches = command.touches()
        first = self._order(job, touches) if touches else None
        for value in command.inputs:
            value.pending += 1
            job.after(value)
        if command.output is not None:
            command.output.pending += 1
        if self.log.operation:
            self._log(job, issued, first)
            if job.ready == issued:
                job.ready_by = job.issued_by
        job.enter()

    def _order(self, job: Job, mine: Sequence[AccessSpan]) -> list[Command]:
        if self.order is None:
            self.order = AccessOrder()
        first = self.order.add(job.command, mine)
        # What runs is not complete.
        job.waiting += len(first)
        for other in first:
            other.waiters += (job._released,)
        return first

    def _log(self, job: Job, issued: int, first: list[Command] | None) -> None:
        command, log = job.command, self.log
        shape: tuple[int, ...] = ()
        if isinstance(command, Composite):
            if command.out is not None:
                shape = command.out.shape
        elif command.output is not None:
            shape = command.output.shape
        matrix, vector = _engine_work(command)
        fields = (command.name, shape, command.tag, matrix, vector)
        info = self.logged.get(fields)
        if info is None:
            info = self.logged[fields] = CommandInfo(command.name, *self.place, shape, command.tag, matrix, vector)
        command.id = job.id = made_by = log.command(info)
        program = job.program
        if program is None:
            job.issued_by = log.step(issued, 0, self.cpu, _ISSUE, made_by)
        else:
            job.issued_by = log.step(
                issued, program.command_ps, self.cpu, _ISSUE, made_by, program._launch_id,
                program._cause, program._second, program._third,
            )  # fmt: skip
        for other in first or ():
            if other.id >= 0:
                log.after(made_by, other.id)
        for value in command.inputs:
            if value.maker >= 0:
                log.after(made_by, value.maker)
        if command.output is not None:
            command.output.maker = made_by

    def progress(self) -> None:
        scheduler, dma = self.scheduler, self.dma
        if scheduler.queue:
            scheduler.advance()
        self.pipeline.advance()
        if dma.reader.queue:
            dma.reader.progress()
        if dma.writer.queue:
            dma.writer.progress()

    def completed(self, command: Command, t: int) -> None:
        if self.order is not None:
            self.order.remove(command)
        output = command.output
        if output is not None:
            output.pending -= 1
            if output.dropped and not output.pending:
                self.free(output, t, command.done_by)
        for value in command.inputs:
            value.pending -= 1
            if value.dropped and not value.pending:
                self.free(value, t, command.done_by)

    def free(self, value: Value, t: int, by: int) -> None:
        self.placed.pop(value, None)
        if isinstance(value.space, Space):
            if self.log.operation:
                space = value.space
                self.log.allocated(t, self.tcm_place, -space.nbytes)
            self.tcm.free(value, t, by)
        elif value.space is not None:
            slot, value.space = value.space, None
            self.ipcq.release(slot, t, by)

    def array(self, operand: Ref | Value) -> np.ndarray | None:
        if isinstance(operand, Value):
            return operand.array
        return operand.decode(self.engine.memory.peek(self._pieces(operand)))

    def commit(self, out: Ref, values: np.ndarray) -> None:
        self.engine.memory.poke(self._pieces(out), out.encode(values))

    def _pieces(self, ref: Ref) -> list[tuple[int, int]]:
        return [piece for run in ref.elements for piece in self.mmu.translate(run.va, run.nbytes)]
