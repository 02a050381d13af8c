"""`triton.language` of one program of a grid: the kernel language, with Triton's widths of scalars."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from kernbench._dtypes import int32, int64
from kernbench.errors import KernelError
from kernbench.triton_emu._handles import Pointer, Tile
from kernbench.triton_emu.tl_context import TLContext


class StaticAssertError(KernelError):
    """`tl.static_assert` failed: the kernel cannot be compiled with these constants."""


class _TritonsError(StaticAssertError):
    """Also an error of the installed Triton, for tuners and host code that catch Triton's."""

    src = node = None
    message = error_message = property(str)
    __str__ = Exception.__str__

    def __reduce__(self) -> tuple[Any, ...]:
        return static_assert_error, self.args


@cache
def _with_tritons(error: type[Exception]) -> type[_TritonsError]:
    return type(StaticAssertError.__name__, (_TritonsError, error), {"__module__": __name__})


def static_assert_error(text: str) -> StaticAssertError:
    """Make the error of a failed `static_assert`; if Triton is imported, it is also an instance of Triton's."""
    errors = sys.modules.get("triton.compiler.errors")
    return StaticAssertError(text) if errors is None else _with_tritons(errors.CompileTimeAssertionFailure)(text)


class Language:
    """The language of one program of a grid: `tl` at a position in it.

    Grid and loop integers are i32 (i64 if a bound is) and wrap, whereas those of `tl` are Python's.
    """

    def __init__(self, tl: TLContext, grid: tuple[int, int, int]) -> None:
        self._tl = tl
        tl._counts = grid
        self.core = self.standard = self.random = self.language = self

    def move(self, place: tuple[int, int, int]) -> None:
        self._tl._ids = place

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._tl, name)
        setattr(self, name, found)
        return found

    def program_id(self, axis: int) -> Tile:
        return self._tl._constant(self._tl.program_id(axis))

    def num_programs(self, axis: int) -> Tile:
        return self._tl._constant(self._tl.num_programs(axis))

    def range(self, *bounds: Any, **_hints: Any) -> Iterator[Tile]:
        """Integers of a loop, as scalar tiles; Triton's hints have no effect."""
        dtype = int64 if any(isinstance(x, Tile) and x.dtype.itemsize == 8 for x in bounds) else int32
        return (self._tl._fold(np.asarray(i, dtype.numpy), dtype) for i in builtins.range(*bounds))

    @staticmethod
    def static_assert(condition: Any, message: str = "") -> None:
        if not condition:
            raise static_assert_error(f"static_assert failed: {message}" if message else "static_assert failed")

    def store(self, pointer: Any, value: Any, *args: Any, **options: Any) -> None:
        """As `tl.store`, but a scalar pointer takes one value, where `tl` stores a tile."""
        if isinstance(pointer, Pointer) and isinstance(value, Tile) and value.shape:
            raise KernelError(f"store: {value!r} does not fit a scalar pointer; add offsets to the pointer")
        self._tl.store(pointer, value, *args, **options)

    @staticmethod
    def _log2(n: int) -> int:
        return n.bit_length() - 1
