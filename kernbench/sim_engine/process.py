"""What a run changes in the process that it runs in, and sets back."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kernbench.interrupts import is_raised_again
from kernbench.sim_engine.limits import Expired

_COLLECT_EVERY = 500_000

_lock = threading.Lock()
_runs = 0
_thresholds: tuple[int, int, int] = (0, 0, 0)
_hook: Callable[[Any], object] = sys.unraisablehook


@contextmanager
def running() -> Iterator[None]:
    """Let the cycle collector look rarely, and lose no interrupt, during the with-block.

    A run makes millions of objects and hardly a cycle. Runs in other threads share both settings; the last one to end
    sets them back.
    """
    global _runs, _thresholds, _hook  # noqa: PLW0603  the interpreter has one of each
    with _lock:
        _runs += 1
        if _runs == 1:
            _thresholds, _hook = gc.get_threshold(), sys.unraisablehook
            if 0 < _thresholds[0] < _COLLECT_EVERY:
                gc.set_threshold(_COLLECT_EVERY, *_thresholds[1:])
            sys.unraisablehook = _unraisable
    try:
        yield
    finally:
        with _lock:
            _runs -= 1
            if _runs == 0:
                if gc.get_threshold()[0] == _COLLECT_EVERY:  # unless the user has changed it meanwhile
                    gc.set_threshold(*_thresholds)
                if sys.unraisablehook is _unraisable:
                    sys.unraisablehook = _hook


def _unraisable(lost: Any) -> None:
    """Let no interrupt be lost that comes in a finalizer, such as that of a tile."""
    # A watchdog raises `Expired` again by itself.
    if not issubclass(lost.exc_type, Expired) and not is_raised_again(lost):
        _hook(lost)
