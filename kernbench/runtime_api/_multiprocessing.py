"""`torch.multiprocessing`: one program per SIP, on greenlets of one simulated machine."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any

import simpy
from greenlet import GreenletExit, getcurrent, greenlet

from kernbench.errors import DeadlockError, KernbenchError, LimitError
from kernbench.sim_engine._limits import Expired
from kernbench.sim_engine._user_code import place_in, place_of
from kernbench.triton_emu._runner import check_plain, check_ran

if TYPE_CHECKING:
    from kernbench.runtime_api._devices import HostProgram


class Rank:
    def __init__(self, index: int, program: Callable[[], object]) -> None:
        self.index = index
        self.error: BaseException | None = None
        self.fatal: Exception | None = None
        self.is_stopped = False
        self.what: object = None
        self.since_ps = 0
        self.greenlet = greenlet(self._run)
        self._program = program

    def _run(self) -> None:
        try:
            self._program()
        except SystemExit as exit_:
            self.error = exit_ if exit_.code else None
        except Expired as expired:
            self.error = expired.error(f"rank {self.index} at {place_of(expired.__traceback__)}")
        except GreenletExit as exit_:
            if not self.is_stopped:
                self.error = exit_
        except Exception as error:  # noqa: BLE001  `join` raises the errors of all ranks
            self.error = error

    @property
    def has_ended(self) -> bool:
        return bool(self.greenlet.dead)

    def block(self, what: object, now_ps: int) -> None:
        if self.is_stopped:
            raise GreenletExit
        self.what, self.since_ps = what, now_ps
        self.greenlet.parent.switch()
        self.what = None

    def resume(self) -> None:
        self.greenlet.parent = getcurrent()
        self.greenlet.switch()

    def stop(self) -> None:
        """End the rank where it waits: with `fatal`, with the error of what it waits for, or silently."""
        self.is_stopped = True
        if not self.has_ended:
            error: Exception | None = self.fatal or getattr(self.what, "error", None)
            self.greenlet.parent = getcurrent()
            self.greenlet.throw(error or GreenletExit())
            self.error = self.error or error

    @property
    def place(self) -> str:
        return f"rank {self.index} at {place_in(self.greenlet.gr_frame)}"

    def describe(self) -> str:
        return f"rank {self.index}, in {self.what}, since {self.since_ps / 1000:,.2f} ns"


class ProcessException(Exception):  # noqa: N818  torch's name
    def __init__(self, msg: str, error_index: int, pid: int) -> None:
        super().__init__(msg)
        self.msg, self.error_index, self.pid = msg, error_index, pid
        self.errors: Mapping[int, BaseException] = {}

    @property
    def error_pid(self) -> int:
        return self.pid


class ProcessRaisedException(ProcessException):
    """A rank raised; the message has its traceback, `errors` holds every rank's error.

    `__cause__` is the first of them; None for a deadlock, which is in `errors` and at the end of the message.
    """


class ProcessExitedException(ProcessException):
    """A rank called `sys.exit` with a code other than 0."""

    def __init__(self, msg: str, error_index: int, error_pid: int, exit_code: int) -> None:
        super().__init__(msg, error_index, error_pid)
        self.exit_code = exit_code


class SpawnContext:
    """The ranks of one spawn, and the scheduler that runs them and the clock in turn.

    While ranks are running, the engine passes every wait of the host to `wait`.
    """

    def __init__(self, host: HostProgram, programs: Sequence[Callable[[], object]]) -> None:
        self._host, self._engine = host, host.engine
        self.is_joined = False
        self.ranks = [Rank(i, program) for i, program in enumerate(programs)]
        self._by_greenlet = {rank.greenlet: rank for rank in self.ranks}
        self._ready = list(self.ranks)
        self._yielded: list[Rank] = []
        self._wake = simpy.Event(self._engine.env)
        self.errors: dict[int, BaseException] = {}
        self.is_over = False
        self._engine.waiter = self.wait

    @property
    def current(self) -> Rank | None:
        return self._by_greenlet.get(getcurrent())

    def wait(self, event: simpy.Event, what: object) -> None:
        if event.processed:
            return
        rank = self.current
        if rank is None:
            self._run(event, what)
            return
        self._when(event, rank)
        rank.block(what, self._engine.env._now)

    def yield_turn(self) -> None:
        """Resume the other ready ranks before the calling one, at the same simulated time."""
        rank = self.current
        if rank is not None:
            self._yielded.append(rank)
            rank.block("cooperative_yield", self._engine.env._now)

    def join(self, timeout: float | None = None) -> bool:
        """Run the clock until every rank has ended; return True. `timeout` is torch's, and not used."""
        self.is_joined = True
        self._run(None, None)
        if self.errors:
            first = next(iter(self.errors.values()))
            if isinstance(first, LimitError):  # a limit of the session, not a failure of a rank
                raise first from None
            raise _failure(self.errors)
        return True

    def over(self, indices: Sequence[int]) -> list[int]:
        return [i for i in indices if self.ranks[i].has_ended]

    def stop(self, first: int = 0) -> None:
        interrupt: KeyboardInterrupt | None = None
        for rank in self.ranks[first:] + self.ranks[:first]:
            try:
                rank.stop()
            except KeyboardInterrupt as caught:  # the other ranks still have to end
                interrupt = caught
            if rank.error is not None:
                self.errors.setdefault(rank.index, rank.error)
        self._ready.clear()
        self._yielded.clear()
        if not self.is_over:
            self.is_over = True
            self._engine.waiter = None
            self._host.ranks_ended()
        if interrupt is not None:
            raise interrupt

    def _run(self, event: simpy.Event | None, what: object) -> None:
        """Schedule ranks and the clock until `event` has happened; with None, until every rank has ended."""
        if event is not None:
            self._when(event, None)
        try:
            while not (self.is_over if event is None else event.processed):
                if not self._ready:
                    self._ready, self._yielded = self._yielded, self._ready
                if self._ready:
                    self._turn()
                else:
                    self._advance(event, what)
        except BaseException:
            self.stop()
            raise

    def _turn(self) -> None:
        rank = min(self._ready, key=lambda rank: rank.index)
        self._ready.remove(rank)
        rank.resume()
        if rank.error is not None:
            self.errors[rank.index] = rank.error
        if rank.error is not None or all(other.has_ended for other in self.ranks):
            self.stop()

    def _advance(self, event: simpy.Event | None, what: object) -> None:
        """Run the clock until a rank is ready; an error of the simulated machine is raised in every rank."""
        self._wake = simpy.Event(self._engine.env)
        try:
            if not self._engine.advance(self._wake):
                self._deadlock(what)
        except KernbenchError as error:
            for rank in self.ranks:
                rank.fatal = copy(error)
                rank.fatal.__cause__ = error
            # Rank i drives SIP i, and the message of an error on a PE begins with its name.
            self.stop(first=next((i for i in range(len(self.ranks)) if str(error).startswith(f"sip{i}.")), 0))
            if event is not None:
                raise

    def _deadlock(self, what: object) -> None:
        waiting = [rank.describe() for rank in self.ranks if not rank.has_ended]
        if what is not None:
            waiting.append(f"the host, for {what}")
        if self._engine.programs:
            self._engine.deadlock(waiting)
        lines = "".join(f"\n  {line}" for line in waiting)
        raise DeadlockError(f"deadlock at {self._engine.now_ns:,.2f} ns; waiting:{lines}")

    def _when(self, event: simpy.Event, rank: Rank | None) -> None:
        """Make `rank` (None: the main program) ready when `event` has happened."""
        assert event.callbacks is not None

        def happened(_: simpy.Event) -> None:
            if rank is not None and not rank.has_ended:
                self._ready.append(rank)
            if not self._wake.triggered:
                self._wake.succeed()

        event.callbacks.append(happened)


class Multiprocessing:
    """`torch.multiprocessing`: a rank is a program that drives one SIP."""

    ProcessException = ProcessException
    ProcessExitedException = ProcessExitedException
    ProcessRaisedException = ProcessRaisedException

    def __init__(self, host: HostProgram) -> None:
        self._host = host

    def spawn(
        self, fn: Callable[..., object], args: Sequence[Any] = (), nprocs: int = 1, join: bool = True,
        daemon: bool = False, start_method: str = "spawn",
    ) -> SpawnContext | None:  # fmt: skip
        """Run `fn(rank, *args)` on `nprocs` ranks; the current device of rank i is SIP i.

        A rank yields only where it waits: in a host read, `synchronize`, `Work.wait`, a collective that is not
        asynchronous. The clock runs when all ranks wait.

        Parameters
        ----------
        fn : callable
            The program of a rank.
        args : sequence
            Its arguments after the rank. Ranks share a process: an object is the same for all.
        nprocs : int
            Number of ranks; at most the SIPs of the machine.
        join : bool
            Wait for all to end; else return a context to `join` later. The ranks then run whenever the program waits.
        daemon, start_method : optional
            As in torch; ignored, as no process is started.

        Raises
        ------
        TypeError
            If `fn` is a generator or a coroutine.
        ValueError
            If `nprocs` exceeds the machine's SIPs, or differs from the size of the world made before.
        LimitError
            If the run exceeds a limit of its session.
        ProcessRaisedException
            If a rank raised: the first failure ends the others.
        """
        self._host.check_open()
        check_plain(fn, "rank")
        running = self._host.ranks
        if running is not None and not running.is_over:
            what = "ranks cannot spawn ranks" if running.current else "ranks still run: join them first"
            raise RuntimeError(f"spawn: {what}")
        if not 1 <= nprocs <= self._host.n_devices:
            raise ValueError(
                f"spawn: nprocs = {nprocs}: a rank drives a SIP, and the machine has {self._host.n_devices}; set "
                "system.sips.count in the machine file"
            )
        for notify in self._host.at_ranks_start:
            notify(nprocs)
        context = SpawnContext(self._host, [partial(self._program, fn, i, tuple(args)) for i in range(nprocs)])
        self._host.ranks = context
        if not join:
            return context
        context.join()
        return None

    def finish(self) -> None:
        """Join the ranks that the program has not joined; called at the end of the session."""
        ranks = self._host.ranks
        if ranks is not None and not ranks.is_joined:
            ranks.join()

    def _program(self, fn: Callable[..., object], rank: int, args: tuple[object, ...]) -> None:
        self._host.set_current(rank)
        check_ran(fn(rank, *args))


def _failure(errors: Mapping[int, BaseException]) -> ProcessException:
    index, cause = next(iter(errors.items()))
    pid = os.getpid()
    failure: ProcessException
    if isinstance(cause, SystemExit):
        code = cause.code if isinstance(cause.code, int) else 1
        failure = ProcessExitedException(f"process {index} terminated with exit code {code}", index, pid, code)
    else:
        is_deadlock = isinstance(cause, DeadlockError)
        text = "".join(traceback.format_exception(cause, chain=not is_deadlock))
        failure = ProcessRaisedException(
            f"\n\n-- Process {index} terminated with the following error:\n{text}", index, pid
        )
    failure.errors = dict(errors)
    # A deadlock is not an error of one rank: a cause would print the list of waiters twice.
    failure.__cause__ = None if isinstance(cause, DeadlockError) else cause
    return failure
