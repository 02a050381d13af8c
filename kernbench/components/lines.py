"""Lines of kernels: where, outside of the language, a command comes from."""

from __future__ import annotations

import sys
from types import CodeType, FrameType

# What is between a kernel and the machine.
_LANGUAGE = ("kernbench.triton_emu.", "kernbench.components.", "kernbench.sim_engine.")

Line = tuple[CodeType, int]


def kernel_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost of `frame` and its callers that is not part of the language."""
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_LANGUAGE):
        frame = frame.f_back
    return frame


def kernel_line() -> Line | None:
    """Return the line that is calling the language now."""
    frame = kernel_frame(sys._getframe())
    return None if frame is None else (frame.f_code, frame.f_lineno)


def line_text(line: Line | None) -> str:
    """Return a line as messages name it: file:line."""
    return "an unknown line" if line is None else f"{line[0].co_filename}:{line[1]}"
