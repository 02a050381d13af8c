"""One point: its row, or why there is none; and the processes that run points."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import pickle
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from types import ModuleType
from typing import IO, Any

from kernbench.errors import ArgumentError, ConfigError, LimitError, StateError, quote
from kernbench.points._keys import Row
from kernbench.sim_engine._limits import NO_LIMITS, Limits, limited
from kernbench.sweeps import _argument_checks as checks

# An engine is full of cycles. The engine of a long point takes gigabytes, which the next point needs.
_LONG_S = 1

OK, ERROR, TIME, MEMORY_LIMIT, SESSION, DIED = (
    "ok",
    "error",
    "time limit",
    "memory limit",
    "session limit",
    "worker died",
)


@dataclass(frozen=True, slots=True)
class Outcome:
    status: str
    row: Row
    error: str = ""
    trace: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class PointLimits:
    """Limits of a point: time [s], memory of its process [MiB], and limits of its sessions."""

    seconds: float | None = None
    mib: int | None = None
    session: Limits = NO_LIMITS

    def __post_init__(self) -> None:
        if self.seconds is not None and not (checks.is_number(self.seconds) and self.seconds > 0):
            raise ConfigError(f"time_limit_s = {quote(self.seconds)} must be a number > 0 [s]")
        if self.mib is not None:
            checks.whole("memory_limit_mib", self.mib, 1, " [MiB]")
            if sys.platform != "linux":
                raise StateError("a memory limit needs Linux, which holds a process to it; leave it out")

    @property
    def need_process(self) -> bool:
        return self.seconds is not None or self.mib is not None


def attempt(fn: Callable[[Row], Row], point: Row, limits: Limits | None = None) -> Outcome:
    """Outcome of `fn(point)`, its sessions limited by `limits`; raises only on an interrupt."""
    outcome = _attempt(fn, point, limits)
    if outcome.seconds > _LONG_S:
        gc.collect()
    return outcome


def _attempt(fn: Callable[[Row], Row], point: Row, limits: Limits | None) -> Outcome:
    start = time.perf_counter()
    try:
        with limited(limits or NO_LIMITS):
            row = json.loads(json.dumps(fn(point), default=_plain))
        if not isinstance(row, dict):
            raise TypeError(f"a study returns a dict of names to values, not {type(row).__name__}")
    except MemoryError:
        return Outcome(MEMORY_LIMIT, {}, "out of memory", traceback.format_exc(), time.perf_counter() - start)
    except Exception as error:  # noqa: BLE001 - whatever a study raises is its point's alone
        text = f"{type(error).__name__}: {error}"
        status = SESSION if _is_limit(error) else ERROR
        return Outcome(status, {}, text, traceback.format_exc(), time.perf_counter() - start)
    return Outcome(OK, row, seconds=time.perf_counter() - start)


def _is_limit(error: BaseException | None) -> bool:
    return error is not None and (isinstance(error, LimitError) or _is_limit(error.__cause__))


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a row holds plain values, not {type(value).__name__}")


_MAIN = "from kernbench.sweeps._worker import serve; serve()"
# The processes share the cores already; threads of numpy's matrix products would wait for each other.
_ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"), "1")


class Worker:
    """A process that runs `fn` for one point at a time, started on first use.

    It is a new interpreter: a fork would inherit locks and threads, and multiprocessing's spawn imports the caller's
    script again.
    """

    def __init__(self, fn: Callable[[Row], Row] | bytes, limits: PointLimits) -> None:
        self._fn = fn if isinstance(fn, bytes) else packed(fn)
        self._limits = limits
        self._process: subprocess.Popen[bytes] | None = None
        self._served = 0
        self._closed = threading.Event()

    def run(self, point: Row) -> Outcome:
        outcome = self._run(point)
        if outcome.status == MEMORY_LIMIT:
            # Earlier points of this process may have left too much in memory.
            again = self._served > 1
            self._end()
            return self.run(point) if again else outcome
        return outcome

    def close(self) -> None:
        """End the process, even while it runs a point."""
        self._closed.set()
        self._end()

    def _run(self, point: Row) -> Outcome:
        process = self._process or self._start()
        self._served += 1
        late, limit = threading.Event(), self._limits.seconds

        def end() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(limit, end) if limit is not None else None
        if timer is not None:
            timer.daemon = True
            timer.start()
        found: Outcome | None = _exchange(process, point)
        if timer is not None:
            timer.cancel()
        if found is not None:
            return found
        self._end()
        if late.is_set():
            return Outcome(TIME, {}, f"ended after its limit of {limit:g} s", seconds=limit or 0.0)
        return Outcome(DIED, {}, f"its process ended with status {process.returncode}")

    def _start(self) -> subprocess.Popen[bytes]:
        if self._closed.is_set():
            raise StateError("the run is being ended")
        paths = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
        # In a separate group: the parent handles an interrupt at the terminal.
        group = {"process_group": 0} if os.name == "posix" else {"creationflags": 0x200}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _MAIN],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**_ONE_THREAD, **os.environ, "PYTHONPATH": paths},
            **group,  # type: ignore[call-overload]
        )
        self._served = 0
        if self._closed.is_set():
            self._process.kill()
        _exchange(self._process, (self._fn, self._limits))  # waits for the imports, whose time counts for no point
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in filter(None, (process.stdin, process.stdout)):
                with contextlib.suppress(OSError):
                    pipe.close()


def _exchange(process: subprocess.Popen[bytes], message: object) -> Any:
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(OSError, EOFError, pickle.UnpicklingError):
        _send(process.stdin, message)
        return pickle.load(process.stdout)  # noqa: S301 - from our own process
    return None


def _send(pipe: IO[bytes], message: object) -> None:
    pipe.write(pickle.dumps(message))
    pipe.flush()


def packed(fn: Callable[[Row], Row], own: ModuleType | None = None) -> bytes:
    """Pickle `fn`, by value if it is defined in a notebook, a script or `own`."""
    import cloudpickle

    if own is not None:
        cloudpickle.register_pickle_by_value(own)
    try:
        data: bytes = cloudpickle.dumps(fn)
    except Exception as error:
        raise ArgumentError(f"study {fn!r} cannot be given to another process: {error}") from error
    finally:
        if own is not None:
            cloudpickle.unregister_pickle_by_value(own)
    return data


def unpacked(data: bytes) -> Callable[[Row], Row]:
    """Inverse of `packed`; a function that cannot be imported here is replaced by one that raises the error."""
    try:
        fn: Callable[[Row], Row] = pickle.loads(data)  # noqa: S301 - from our own parent or client
    except Exception as error:  # noqa: BLE001 - whatever a module raises when it is imported
        return partial(_refuse, f"the study cannot be imported in another process: {type(error).__name__}: {error}")
    return fn


def serve() -> None:
    """Answer points from stdin until it ends: the main function of a `Worker`'s process."""
    answers = os.fdopen(os.dup(1), "wb")
    points = os.fdopen(os.dup(0), "rb")
    # Output of a study must not mix with the answers.
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        fn_bytes, limits = pickle.load(points)  # noqa: S301 - from our own parent
    except EOFError:
        return
    if limits.mib is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (limits.mib << 20, limits.mib << 20))
    fn = unpacked(fn_bytes)
    inbox: SimpleQueue[Row] = SimpleQueue()
    threading.Thread(target=_listen, args=(points, inbox), daemon=True).start()
    _send(answers, "ready")
    while True:
        _send(answers, attempt(fn, inbox.get(), limits.session))


def _listen(points: IO[bytes], inbox: SimpleQueue[Row]) -> None:
    """Receive points; exit with the parent, even during a point that never ends."""
    try:
        while True:
            inbox.put(pickle.load(points))  # noqa: S301 - from our own parent
    except (EOFError, pickle.UnpicklingError):
        pass
    finally:
        os._exit(0)


def _refuse(why: str, point: Row) -> Row:
    raise ArgumentError(why)
