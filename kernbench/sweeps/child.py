"""A process of its own for points, one after the other: it can be ended, and takes nothing else down with it."""

from __future__ import annotations

import contextlib
import os
import pickle
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from types import ModuleType
from typing import IO

from kernbench.errors import ArgumentError, StateError
from kernbench.sweeps.keys import Row
from kernbench.sweeps.outcome import DIED, MEMORY, TIME, Outcome, PointLimits, attempt

_HEAD = struct.Struct(">Q")
_MAIN = "from kernbench.sweeps.child import serve; serve()"
# The processes share the cores already: threads of numpy's matrix products would wait for each other.
_ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"), "1")


class Child:
    """A process that runs `fn` for one point at a time, made when it is first needed.

    It is no fork, which would inherit locks and threads half alive, and does not import the caller's script again.

    Parameters
    ----------
    fn : callable or bytes
        From a point to a row, or what `packed` made of that.
    limits : PointLimits
        Of each point.
    """

    def __init__(self, fn: Callable[[Row], Row] | bytes, limits: PointLimits) -> None:
        self._fn = fn if isinstance(fn, bytes) else packed(fn)
        self._limits = limits
        self._process: subprocess.Popen[bytes] | None = None
        self._served = 0
        self._closed = threading.Event()

    def run(self, point: Row) -> Outcome:
        """Return what becomes of a point; the process is ended if it goes over a limit."""
        outcome = self._run(point)
        if outcome.status == MEMORY:
            # What points before it left in memory is not this one's fault.
            again = self._served > 1
            self._end()
            return self.run(point) if again else outcome
        return outcome

    def close(self) -> None:
        """End the process, whatever it does."""
        self._closed.set()
        self._end()

    def _run(self, point: Row) -> Outcome:
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        self._served += 1
        late = threading.Event()

        def over() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(self._limits.seconds, over) if self._limits.seconds is not None else None
        if timer is not None:
            timer.daemon = True
            timer.start()
        answer = None
        with contextlib.suppress(OSError):
            _send(process.stdin, pickle.dumps(point))
            answer = _receive(process.stdout)
        if timer is not None:
            timer.cancel()
        if answer is not None:
            found: Outcome = pickle.loads(answer)  # noqa: S301 - from our own process
            return found
        self._end()
        if late.is_set():
            limit = self._limits.seconds
            return Outcome(TIME, {}, f"ended after its limit of {limit:g} s", seconds=limit or 0.0)
        return Outcome(DIED, {}, f"its process ended with status {process.returncode}")

    def _start(self) -> subprocess.Popen[bytes]:
        if self._closed.is_set():
            raise StateError("the run is being ended")
        paths = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
        # A group of its own: an interrupt at the terminal is the parent's to handle.
        alone = {"process_group": 0} if os.name == "posix" else {"creationflags": 0x200}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _MAIN],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**_ONE_THREAD, **os.environ, "PYTHONPATH": paths},
            **alone,  # type: ignore[call-overload]
        )
        self._served = 0
        if self._closed.is_set():
            self._process.kill()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            _send(self._process.stdin, pickle.dumps((self._fn, self._limits)))
            # Imports take their time, which is no point's.
            _receive(self._process.stdout)
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    pipe.close() if pipe else None


def packed(fn: Callable[[Row], Row], own: ModuleType | None = None) -> bytes:
    """Return `fn` as bytes, a function of a notebook or script with what it uses.

    Parameters
    ----------
    fn : callable
    own : module or None
        One whose functions go along whole, where they go to has no such file.

    Raises
    ------
    ArgumentError
        If it holds what no other process can be given.
    """
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
    """Return the function of `packed`; one that cannot be had here says so at every point, where it is read."""
    try:
        fn: Callable[[Row], Row] = pickle.loads(data)  # noqa: S301 - from our own parent or client
    except Exception as error:  # noqa: BLE001 - whatever a module raises when it is imported
        return partial(_refuse, f"the study cannot be imported in another process: {type(error).__name__}: {error}")
    return fn


def serve() -> None:
    """Answer points from stdin until it ends: what the process of a `Child` does."""
    answers = os.fdopen(os.dup(1), "wb")
    points = os.fdopen(os.dup(0), "rb")
    # What a study prints must not stand between the answers.
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    head = _receive(points)
    if head is None:
        return
    fn_bytes, limits = pickle.loads(head)  # noqa: S301 - from our own parent
    if limits.mib is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (limits.mib << 20, limits.mib << 20))
    fn = unpacked(fn_bytes)
    inbox: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_listen, args=(points, inbox), daemon=True).start()
    _send(answers, b"ready")
    while True:
        _send(answers, pickle.dumps(attempt(fn, pickle.loads(inbox.get()), limits.session)))  # noqa: S301 - as above


def _listen(points: IO[bytes], inbox: SimpleQueue[bytes]) -> None:
    """Take points in; end with the parent, even in the middle of a point that never ends."""
    while (data := _receive(points)) is not None:
        inbox.put(data)
    os._exit(0)


def _refuse(why: str, point: Row) -> Row:
    raise ArgumentError(why)


def _send(pipe: IO[bytes], data: bytes) -> None:
    pipe.write(_HEAD.pack(len(data)) + data)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> bytes | None:
    """Return the next message, or None if the other side is gone."""
    head = pipe.read(_HEAD.size)
    if len(head) < _HEAD.size:
        return None
    (size,) = _HEAD.unpack(head)
    data = pipe.read(size)
    return data if len(data) == size else None
