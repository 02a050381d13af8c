"""`torch.multiprocessing`: one program for each SIP, on greenlets of one simulated machine."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kernbench.errors import DeadlockError, LimitError
from kernbench.runtime_api.host import Host, Ranks
from kernbench.triton_emu.runner import check_plain, check_ran


class ProcessException(Exception):  # noqa: N818  torch's name
    """A rank did not end well."""

    def __init__(self, msg: str, error_index: int, pid: int) -> None:
        super().__init__(msg)
        self.msg, self.error_index, self.pid = msg, error_index, pid
        self.errors: Mapping[int, BaseException] = {}

    @property
    def error_pid(self) -> int:
        """The process that the rank ran in."""
        return self.pid


class ProcessRaisedException(ProcessException):
    """A rank raised; the message has its traceback, `errors` holds every rank's error.

    `__cause__` is the first of them; None for a deadlock, which is in `errors` and at the end of the message.
    """

    def __init__(self, msg: str, error_index: int, error_pid: int) -> None:
        super().__init__(msg, error_index, error_pid)


class ProcessExitedException(ProcessException):
    """A rank called `sys.exit` with a code other than 0."""

    def __init__(self, msg: str, error_index: int, error_pid: int, exit_code: int) -> None:
        super().__init__(msg, error_index, error_pid)
        self.exit_code = exit_code


class SpawnContext:
    """Ranks that were spawned without waiting for them."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self.is_joined = False

    def join(self, timeout: float | None = None) -> bool:
        """Run the clock until every rank has ended, and return True; `timeout` is of no use in simulated time."""
        self.is_joined = True
        self._ranks.join()
        errors = self._ranks.errors
        if errors:
            first = next(iter(errors.values()))
            if isinstance(first, LimitError):  # of the session, not of a rank
                raise first from None
            raise _failure(errors)
        return True


class Multiprocessing:
    """`torch.multiprocessing`: a rank is a program that drives one SIP."""

    ProcessException = ProcessException
    ProcessExitedException = ProcessExitedException
    ProcessRaisedException = ProcessRaisedException

    def __init__(self, host: Host) -> None:
        self._host = host
        self._last: SpawnContext | None = None

    def spawn(
        self,
        fn: Callable[..., object],
        args: Sequence[Any] = (),
        nprocs: int = 1,
        join: bool = True,
        daemon: bool = False,
        start_method: str = "spawn",
    ) -> SpawnContext | None:
        """Run `fn(rank, *args)` on `nprocs` ranks; the current device of rank i is SIP i.

        A rank gives way only where it waits: in a host read, `synchronize`, `Work.wait`, a collective that is not
        asynchronous. The clock runs when all ranks wait.

        Parameters
        ----------
        fn : callable
            The program of a rank.
        args : sequence
            What it gets besides its rank. Ranks share a process: an object is the same for all.
        nprocs : int
            How many ranks; at most the SIPs of the machine.
        join : bool
            Wait for all to end; else return a context to `join` later. The ranks then run whenever the program waits.
        daemon, start_method : optional
            torch's; without meaning where no process is started.

        Raises
        ------
        TypeError
            If `fn` is a generator or a coroutine.
        ValueError
            If `nprocs` is not a number of ranks that the machine, or the world made before, has.
        LimitError
            If the run is over a limit of its session.
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
        programs = [self._program(fn, i, tuple(args)) for i in range(nprocs)]
        context = self._last = SpawnContext(self._host.start_ranks(programs))
        if not join:
            return context
        context.join()
        return None

    def finish(self) -> None:
        """Join ranks that the program has not joined."""
        if self._last is not None and not self._last.is_joined:
            self._last.join()

    def _program(self, fn: Callable[..., object], rank: int, args: tuple[object, ...]) -> Callable[[], None]:
        def program() -> None:
            self._host.set_current(rank)
            check_ran(fn(rank, *args))

        return program


def _failure(errors: Mapping[int, BaseException]) -> ProcessException:
    """Return the exception that holds `errors`, the first failure first."""
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
    # A deadlock is not an error of one rank: a cause would only print the list of waiters once more.
    failure.__cause__ = None if isinstance(cause, DeadlockError) else cause
    return failure
