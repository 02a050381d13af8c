"""PE_CPU: takes launches, runs programs on greenlets, and issues their commands in order."""

from __future__ import annotations

import sys
from functools import cached_property
from typing import Any

from greenlet import getcurrent, greenlet

from kernbench.components.command import Command, Stopped, Value
from kernbench.components.jobs import Issuer, Job
from kernbench.components.pe import Pe
from kernbench.components.pipeline import Stage
from kernbench.errors import KernbenchError, KernelError, LimitError
from kernbench.registry import COMPONENTS, RUNNERS
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.host import Broadcast, Launch
from kernbench.sim_engine.lines import user_frame, user_line
from kernbench.topology import naming
from kernbench.units import ns_to_ps

_PULSE_EVERY = 256  # a program may issue commands without ever waiting for the clock


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
        """Return its engines."""
        return Pe(self.engine, *self.place, self.mmu)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Return the stages of its pipeline; none while it has no engines."""
        if "pe" not in vars(self):
            return ()
        pipeline = self.pe.pipeline
        return pipeline.fetch, pipeline.gemm, pipeline.math, pipeline.store

    def on_broadcast(self, message: Broadcast) -> None:
        """Take a copy of a launch or of a map; go on when the CPU has decoded it."""
        now = self.engine.env._now
        self.free = max(now, self.free) + self.command_ps
        self.engine.env.call_at(self.free, self._decoded, message)

    def _decoded(self, message: Broadcast) -> None:
        message.taken(self)

    def start(self, launch: Launch) -> None:
        """Run the launch's program from now on."""
        Program(self, launch).resume(None)


class Program(Issuer):
    """One program of a launch: the backend that its kernel's commands go to. `issued` is PE_CPU's own clock.

    It `waits_for` the completion of something, or, when `short` of TCM, for a place for it.
    """

    data: bool

    def __init__(self, cpu: PeCpu, launch: Launch) -> None:
        self.cpu, self.pe, self.launch = cpu, cpu.pe, launch
        self.engine = cpu.engine
        self.core, self.command_ps = self.pe.core, cpu.command_ps
        self.data = self.engine.data
        self.task: Any = launch.task
        self.races = None if launch.task is None else launch.task.device
        self.queues = self.pe.ipcq.sets.get(launch.queues or "", {})
        self.issued = self.last = self.engine.env._now
        self.unfinished = self.commands = 0
        self.ended = False
        self.waits_for: Value | Command | None = None
        self.short = False
        self.since = self.issued
        self._greenlet = greenlet(self._run)
        self.engine.programs[self] = None
        self._hub: Any = None

    def _run(self, _: object) -> None:
        launch = self.launch
        _, cube, pe = self.pe.place
        args, participant = launch.args_of(cube, pe), (launch.ranks.get((cube, pe), 0), launch.world)
        RUNNERS.resolve("tl")(launch.kernel, args, self, (pe, cube), launch.grid, participant)

    def woken(self, what: int, _: object) -> None:
        """Go on with the kernel."""
        self.resume(None)

    def resume(self, _: object) -> None:
        """Go on with the kernel until it blocks or ends."""
        hub = getcurrent()
        if hub is not self._hub:
            self._hub = self._greenlet.parent = hub
        self.issued = max(self.issued, self.core.now)
        try:
            self._greenlet.switch(None)
        except Exception as error:
            raise _located(error, self.pe) from error
        if self._greenlet.dead:
            self.ended = True
            self._maybe_end(self.issued)

    def stop(self) -> None:
        """End the kernel where it stands."""
        if not self._greenlet.dead:
            self._greenlet.throw(Stopped)

    def submit(self, command: Command) -> None:
        """Issue a command: `command_ns` after the one before, and not before its output has a place in TCM."""
        self._check_caller()
        job = self.pe.job(command, self)
        if command.output is not None:
            self._place(command.output, job)
        if self.races is not None:
            touched = job.pieces()
            if touched:
                self.races.accesses(self, touched, user_line())
        self.issued += self.command_ps
        self.unfinished += 1
        self.pe.add(job, self.issued)
        self.commands += 1
        if not self.commands % _PULSE_EVERY:
            self.engine.ahead(_PULSE_EVERY, self.issued)

    def _place(self, output: Value, job: Job) -> None:
        tcm = self.pe.tcm
        while not job.stays:
            at = tcm.alloc(output, job.loaded, self.issued)
            if at is not None:
                self.issued = max(self.issued, at)
                break
            if not self.unfinished:
                raise tcm.full(output, job.loaded)
            self.short = True
            self._wait(output)
        self.pe.placed[output] = self

    def completed(self, t: int) -> None:
        """Take note that one of its commands is complete at `t`."""
        self.unfinished -= 1
        if t > self.last:
            self.last = t
        if self.ended:
            self._maybe_end(t)
        elif self.short:
            self._wake(t)

    def block(self, on: Value | Command) -> None:
        """Let the kernel wait until `on` is complete."""
        self._check_caller()
        if on.done_ps is None:
            on.waiters += (self,)
            self._wait(on)
        elif on.done_ps > self.core.now:
            self._wake(on.done_ps)
            self._hub.switch()

    def _check_caller(self) -> None:
        if getcurrent() is not self._greenlet:
            raise KernelError(
                f"a tl or tile of {self.pe.name}, kernel {self.launch.name!r}, is used outside of its program; use the "
                "tl that the kernel gets, and pass values to other programs through memory or queues"
            )

    def _wake(self, t: int) -> None:
        self.waits_for, self.short = None, False
        self.core.wake_at(max(t, self.core.now), self, 0, None)

    def _wait(self, what: Value | Command) -> None:
        self.waits_for, self.since = what, self.core.now
        self._hub.switch()

    def drop(self, value: Value) -> None:
        """Take a value's space back when its last command is complete."""
        value.dropped = True
        if not value.pending:
            self.pe.free(value, max(value.done_ps or 0, self.issued))

    def _maybe_end(self, t: int) -> None:
        if not self.unfinished:
            end = max(self.last, self.issued, t)
            self.engine.env.call_at(end, self._end, None)

    def _end(self, _: object) -> None:
        del self.engine.programs[self]
        # A tile that outlives its program (in a cycle, or stored somewhere) holds no TCM any more.
        for value in [value for value, program in self.pe.placed.items() if program is self]:
            self.pe.free(value, self.engine.env._now)
        self.launch.program_done(self)

    # -- as an actor in a race

    @property
    def is_ordered(self) -> bool:
        """Whether messages order it with the other programs of its launch."""
        return bool(self.queues)

    def says(self) -> str:
        """Return PE and kernel."""
        return f"{self.pe.name}, kernel {self.launch.name!r}"

    def under_way(self, lo: int, hi: int, writes_only: bool) -> bool:
        """Return whether a command under way touches, or writes, physical memory from `lo` to `hi`."""
        order, mmu = self.pe.order, self.pe.mmu
        return order is not None and any(
            pa < hi and lo < pa + nbytes
            for start, end, is_write in order.under_way()
            if is_write or not writes_only
            for pa, nbytes in mmu.translate(start, end - start)
        )

    def owner(self, pa: int) -> str:
        """Return the tensor that a physical address is in."""
        return self.pe.mmu.owner_of(pa) or ""

    def receives(self) -> bool:
        """Return whether the program waits for a message that has not come."""
        return bool(self.pe.ipcq.receiver.describe(self.launch.queues))

    def describe(self) -> str:
        """Return who waits for what since when, for a deadlock's message."""
        on = self.waits_for
        what = repr(f"a tile of shape {on.shape}" if isinstance(on, Value) else on.name) if on else "its commands"
        if self.short and isinstance(on, Value):
            what = f"{on.nbytes} B of TCM"
        lines = [f"{self.stands()}, waits for {what} since {self.since / 1000:,.2f} ns"]
        lines += self.pe.ipcq.receiver.describe(self.launch.queues)
        lines += [f"ring {queue.describe()}" for queue in self.queues.values()]
        return "\n    ".join(lines)

    def stands(self) -> str:
        """Return PE and kernel and, unless it has ended, the line where it, or what it calls, called the language."""
        frame = user_frame(sys._getframe() if getcurrent() is self._greenlet else self._greenlet.gr_frame)
        line = "" if frame is None else f" at {frame.f_code.co_filename}:{frame.f_lineno}"
        return f"{self.pe.name}, kernel {self.launch.name!r}{line}"


def _located(error: Exception, pe: Pe) -> KernbenchError:
    """Return the error of a program, which names the kernel's file and line, as one that names the PE too."""
    kind = type(error) if isinstance(error, (KernelError, LimitError)) else KernelError
    return kind(f"{pe.name}: {str(error).replace(f'{pe.name}: ', '')}")
