"""Ctrl-C is one line, and is not lost, at any moment: while modules are imported, and in a finalizer."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any

_RAISE_AGAIN_S = 0.01
_LONGEST_DELAY_S = 2.0
_first_s = 0.0


def handle_interrupts() -> None:
    """Let a process of the command line take Ctrl-C as this module says; one that ignores it goes on ignoring it."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _interrupted)
        sys.unraisablehook = _unraisable


def is_raised_again(lost: Any) -> bool:
    """Return whether an exception that Python drops, as in a finalizer, is an interrupt; raise that again soon.

    Parameters
    ----------
    lost : sys.UnraisableHookArgs
    """
    if not issubclass(lost.exc_type, KeyboardInterrupt):
        return False
    _again()
    return True


def _interrupted(_number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, but not while a module is imported, which may turn it into another error.

    numpy does: it prints a traceback, and cannot be imported again.
    """
    global _first_s  # noqa: PLW0603  there is one SIGINT
    now = time.monotonic()
    if _is_in_import(frame) and (not _first_s or now - _first_s < _LONGEST_DELAY_S):
        _first_s = _first_s or now
        _again()
        return
    _first_s = 0.0
    raise KeyboardInterrupt


def _is_in_import(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _again() -> None:
    threading.Thread(target=_interrupt, daemon=True).start()


def _interrupt() -> None:
    time.sleep(_RAISE_AGAIN_S)
    _thread.interrupt_main()


def _unraisable(lost: Any) -> None:
    if not is_raised_again(lost):
        sys.__unraisablehook__(lost)
