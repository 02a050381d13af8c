"""Ctrl-C prints one line and is never lost: neither while modules are imported nor in a finalizer."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

_RAISE_AGAIN_S = 0.01
LONGEST_DELAY_S = 2.0
_first_s = 0.0
_repeat: threading.Thread | None = None  # the latest one that raises an interrupt again

_lock = threading.Lock()
_holders = 0
_hook: Callable[[Any], object] = sys.__unraisablehook__


class Repeated(BaseException):
    """An exception that is raised again in this thread until it is noticed."""


def handle_interrupts() -> None:
    """Install the handlers for a command-line process; a process that ignores Ctrl-C continues to."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _interrupted)
        hold()


def hold() -> None:
    """Preserve interrupts in finalizers, such as that of a tile, until `release`.

    Python drops exceptions raised there. Holders in several threads share the hook; the last one restores it.
    """
    global _holders, _hook  # noqa: PLW0603  the interpreter has one hook
    with _lock:
        _holders += 1
        if _holders == 1:
            _hook, sys.unraisablehook = sys.unraisablehook, _unraisable


def release() -> None:
    """Restore the hook from before the first `hold`, unless the user has changed it meanwhile."""
    global _holders  # noqa: PLW0603  as above
    with _lock:
        _holders -= 1
        if _holders == 0 and sys.unraisablehook is _unraisable:
            sys.unraisablehook = _hook


def wait_for_pending() -> None:
    """Wait for an interrupt that is to be raised again: at the end of a command, it would be lost."""
    if _repeat is not None:
        _repeat.join()


def _interrupted(_number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, but not during an import, which may turn it into another error.

    numpy does: it prints a traceback, and cannot be imported again.
    """
    global _first_s  # noqa: PLW0603  there is one SIGINT
    now = time.monotonic()
    if is_in_import(frame) and (not _first_s or now - _first_s < LONGEST_DELAY_S):
        _first_s = _first_s or now
        _again()
        return
    _first_s = 0.0
    raise KeyboardInterrupt


def is_in_import(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _again() -> None:
    global _repeat  # noqa: PLW0603  as above
    _repeat = threading.Thread(target=_interrupt, daemon=True)
    _repeat.start()


def _interrupt() -> None:
    time.sleep(_RAISE_AGAIN_S)
    _thread.interrupt_main()


def _unraisable(lost: Any) -> None:
    if issubclass(lost.exc_type, KeyboardInterrupt):
        _again()
    elif not issubclass(lost.exc_type, Repeated):
        _hook(lost)
