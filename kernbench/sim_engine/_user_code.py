"""Lines of the user's code that call the package, now or at the origin of an error."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import CodeType, FrameType, TracebackType

Line = tuple[CodeType, int]

# Machinery that programs call; kernels, studies and benches of the package are programs themselves.
_MACHINERY = (
    *(
        f"kernbench.{name}."
        for name in ("analysis", "components", "policy", "runtime_api", "sim_engine", "triton", "triton_emu")
    ),
    "kernbench._dtypes",
)

_PYTHON = ("<frozen ", str(Path(os.__file__).parent) + os.sep)
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")

# Cache by file name: whether its code is machinery.
_ours: dict[str, bool] = {}


def is_ours(frame: FrameType) -> bool:
    """Whether a frame belongs to the package's machinery: neither to user code nor to a kernel."""
    file = frame.f_code.co_filename
    found = _ours.get(file)
    if found is None:
        found = str(frame.f_globals.get("__name__", "")).startswith((*_MACHINERY, "simpy."))
        if not file.startswith("<"):  # a file's name, not executed text
            _ours[file] = found
    return found


def is_library(frame: FrameType) -> bool:
    """Whether a frame belongs to Python or to another installed package: not a line that the user can fix."""
    file = frame.f_code.co_filename
    if not file.startswith(_PYTHON) and not any(part in file for part in _INSTALLED):
        return False
    return not str(frame.f_globals.get("__name__", "")).startswith("kernbench.")


def user_frame(frame: FrameType | None) -> FrameType | None:
    """Find the innermost frame of user code or a kernel among `frame` and its callers."""
    while frame is not None and is_ours(frame):
        frame = frame.f_back
    return frame


def user_line() -> Line | None:
    """Find the line that calls the package, to be formatted by `line_text`; cheap."""
    frame = user_frame(sys._getframe(1))
    return None if frame is None else (frame.f_code, frame.f_lasti)


def line_text(line: Line | None) -> str:
    """Format a line as file:line."""
    return "an unknown line" if line is None else f"{line[0].co_filename}:{line_number(line)}"


def line_number(line: Line) -> int:
    code, instruction = line
    number = next((n for start, end, n in code.co_lines() if start <= instruction < end), None)
    return number or code.co_firstlineno


def place_of(trace: TracebackType | None) -> str:
    """File, line and function of the user's code that a traceback comes from; empty if there is none."""
    place = ""
    while trace is not None:
        if not is_ours(trace.tb_frame) and not (place and is_library(trace.tb_frame)):
            place = _place(trace.tb_frame, trace.tb_lineno)
        trace = trace.tb_next
    return place


def place_in(frame: FrameType | None) -> str:
    """File, line and function of the innermost frame of the user's code; empty if there is none."""
    frame = user_frame(frame)
    return "" if frame is None else _place(frame, frame.f_lineno)


def _place(frame: FrameType, line: int) -> str:
    return f"{frame.f_code.co_filename}:{line}, in {frame.f_code.co_name}"
