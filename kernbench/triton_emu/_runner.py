"""Runs one program of a kernel, and locates its errors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from types import AsyncGeneratorType, CoroutineType, GeneratorType, TracebackType
from typing import Any

from kernbench.components._command import Backend, Stopped
from kernbench.errors import KernbenchError, KernelError, quote
from kernbench.sim_engine._limits import Expired
from kernbench.sim_engine._user_code import is_library, is_ours
from kernbench.triton_emu._math_ops import function
from kernbench.triton_emu.tl_context import TLContext

_PLAIN = "use a plain function: calls that wait, such as tl.load or x.numpy(), suspend it by themselves"


def run_kernel_program(
    kernel: Callable[..., Any],
    args: Sequence[Any],
    backend: Backend,
    program_id: tuple[int, int],
    num_programs: tuple[int, int],
    participant: tuple[int, int] = (0, 1),
) -> None:
    """Run `kernel(*args, tl=...)` as one program; ids and counts are (PE, cube), `participant` is (number, count).

    A kernel that fails raises a KernelError with its file, line and program; the kernel's own error is the cause.
    """
    tl = TLContext(backend, program_id, num_programs, participant)
    try:
        check_ran(kernel(*args, tl=tl))
    except KernelError as error:
        raise type(error)(f"{_where(kernel, error.__traceback__, program_id, participant)}: {error}") from error
    except (KernbenchError, KeyboardInterrupt, Stopped):
        raise
    except Expired as expired:
        raise expired.error(_where(kernel, expired.__traceback__, program_id, participant)) from None
    except BaseException as error:
        said = f"{type(error).__name__}: {_text_of(_named(error))}"
        text = f"{_where(kernel, error.__traceback__, program_id, participant)}: {said}"
        raise KernelError(text) from error
    finally:
        tl._end()


def check_plain(function: Callable[..., Any], what: str = "kernel") -> None:
    """Refuse a generator function or a coroutine function: calling it would do nothing."""
    if not callable(function):
        raise TypeError(f"{what} {quote(function)} cannot be called; {_PLAIN}")
    while isinstance(function, partial):
        function = function.func
    if not inspect.isroutine(function):
        function = type(function).__call__
    is_generator = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
    if is_generator or inspect.iscoroutinefunction(function):
        code = inspect.unwrap(function).__code__
        kind = "generator: it contains yield" if is_generator else "coroutine: it is defined with async def"
        raise TypeError(f"{code.co_filename}:{code.co_firstlineno}: {what} {code.co_name} is a {kind}; {_PLAIN}")


def check_ran(result: object) -> None:
    """Refuse the generator or coroutine of a function that a wrapper has hidden from `check_plain`."""
    if isinstance(result, AsyncGeneratorType):
        kind, code = "generator", result.ag_code
    elif isinstance(result, GeneratorType):
        kind, code = "generator", result.gi_code
    elif isinstance(result, CoroutineType):
        kind, code = "coroutine", result.cr_code
        result.close()  # or Python warns that it was never awaited
    else:
        return
    raise TypeError(f"{code.co_filename}:{code.co_firstlineno}: it returned a {kind} and did nothing; {_PLAIN}")


def _named(error: BaseException) -> BaseException:
    """Return an error that lists the names of the language, if one was not found in it."""
    if isinstance(error, AttributeError) and isinstance(error.obj, TLContext):
        try:
            function(error.obj, error.name or "", "tl")
        except AttributeError as unknown:
            return unknown
    return error


def _text_of(error: BaseException) -> str:
    """Text of a user's error, whose `__str__` may fail."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001
        return "(its text cannot be read)"


def _where(
    kernel: Callable[..., Any],
    traceback: TracebackType | None,
    program_id: tuple[int, int],
    participant: tuple[int, int],
) -> str:
    """Locate an error: the innermost line of user code (of a library, if there is no other), kernel and program."""
    name = getattr(getattr(kernel, "func", kernel), "__name__", repr(kernel))  # also of a partial
    place = ""
    frame = traceback.tb_next if traceback is not None else None
    while frame is not None and not frame.tb_frame.f_globals.get("__name__", "").startswith("kernbench.triton_emu."):
        if not is_ours(frame.tb_frame) and (not place or not is_library(frame.tb_frame)):
            place = f"{frame.tb_frame.f_code.co_filename}:{frame.tb_lineno}: "
        frame = frame.tb_next
    number, count = participant
    among = f", participant {number} of {count}" if count > 1 else ""
    return f"{place}kernel {name}, program {program_id}{among}"
