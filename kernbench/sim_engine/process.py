"""What a run changes in the process that it runs in, and sets back."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from kernbench.interrupts import hold, release

_COLLECT_EVERY = 500_000

_lock = threading.Lock()
_runs = 0
_thresholds: tuple[int, int, int] = (0, 0, 0)


@contextmanager
def running() -> Iterator[None]:
    """Let the cycle collector look rarely, and lose no interrupt, during the with-block.

    A run makes millions of objects and hardly a cycle. Runs in other threads share both settings; the last one to end
    sets them back.
    """
    global _runs, _thresholds  # noqa: PLW0603  the interpreter has one collector
    with _lock:
        _runs += 1
        if _runs == 1:
            _thresholds = gc.get_threshold()
            if 0 < _thresholds[0] < _COLLECT_EVERY:
                gc.set_threshold(_COLLECT_EVERY, *_thresholds[1:])
    hold()
    try:
        yield
    finally:
        release()
        with _lock:
            _runs -= 1
            if _runs == 0 and gc.get_threshold()[0] == _COLLECT_EVERY:  # unless the user has changed it meanwhile
                gc.set_threshold(*_thresholds)
