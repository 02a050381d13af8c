"""What every part of the language stands on: one program, its backend, and how tiles come to be."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod
from operator import index
from typing import Any, cast

import numpy as np

from kernbench.components.command import Backend, Command, Value, Vector, VectorOp
from kernbench.dtypes import DType
from kernbench.errors import KernelError
from kernbench.triton_emu.handles import Shape, Tile, shape_text
from kernbench.triton_emu.promotion import dtype_of


@lru_cache(maxsize=4096)
def work_of(kinds: tuple[str, ...], elements: int, itemsize: int) -> tuple[VectorOp, ...]:
    """Return the vector engine's work for operations of these kinds, one after the other."""
    return tuple(VectorOp(kind, elements, itemsize) for kind in kinds)


def shape_of(shape: int | Sequence[int]) -> Shape:
    """Return `shape` as a tuple of sizes, each at least 1."""
    sizes = tuple(map(index, shape)) if isinstance(shape, (tuple, list)) else (index(cast("int", shape)),)
    for size in sizes:
        if size < 1:
            raise KernelError(f"shape {tuple(sizes)}: every size must be at least 1")
    return sizes


def broadcast(name: str, *shapes: Shape) -> Shape:
    """Return the shape that `shapes` broadcast to."""
    if len(set(shapes)) == 1:
        return shapes[0]
    wide = [shape for shape in shapes if shape]
    if not wide or all(shape == wide[0] for shape in wide):
        return wide[0] if wide else ()
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        texts = " and ".join(map(shape_text, shapes))
        raise KernelError(
            f"{name}: shapes {texts} do not broadcast; sizes must agree or be 1, from the right"
        ) from None


def when_complete(value: Value, tell: Callable[[Value, int], None]) -> None:
    """Call `tell(value, done_ps)` when `value` is complete: now, if it is."""
    if value.done_ps is not None:
        tell(value, value.done_ps)
        return
    # The command that makes the value holds it until then; a strong reference here would be a cycle.
    held = weakref.ref(value)

    def complete(t: int) -> None:
        done = held()
        assert done is not None
        tell(done, t)

    value.waiters += (complete,)


class _Ended:
    """The backend of a program that has ended: it takes nothing any more."""

    def __init__(self, data: bool) -> None:
        self.data = data

    def submit(self, _command: Command) -> None:
        raise _ended()

    def block(self, _on: Value | Command) -> None:
        raise _ended()

    def drop(self, _value: Value) -> None:
        """Do nothing: the program's end has freed all that it held."""


def _ended() -> KernelError:
    return KernelError(
        "this tl, or tile, belongs to a program that has ended; use the tl that the kernel gets, and keep values in "
        "memory between launches"
    )


class Program:
    """One program of a launch: who it is, and the backend that takes its commands."""

    def __init__(self, backend: Backend, program_id: tuple[int, int], num_programs: tuple[int, int]) -> None:
        self._backend = backend
        self._data = backend.data
        self._ids, self._counts = program_id, num_programs
        self._open = True

    def _end(self) -> None:
        """Refuse whatever is asked from now on."""
        self._open, self._backend = False, _Ended(self._data)

    def _own(self, *operands: object) -> None:
        """Refuse tiles of another program."""
        for x in operands:
            if isinstance(x, Tile) and x._tl is not self and not x._constant:
                if not (self._open and x._tl._open):
                    raise _ended()
                raise KernelError(f"{x!r} belongs to another program; pass values through memory or queues")

    def _tile(self, value: Value) -> Tile:
        return Tile(self, value)

    def _fold(self, array: np.ndarray, dtype: DType) -> Tile:
        """Return a constant; `array` is in the carrier type, rounded to `dtype`."""
        return Tile(self, Value(array.shape, dtype, array, 0), constant=True)

    def _constant(self, x: Any) -> Tile:
        """Return `x` as a tile: itself, or a Python number as a constant."""
        if isinstance(x, Tile):
            return x
        if isinstance(x, np.generic):
            x = x.item()
        if not isinstance(x, (bool, int, float)):
            raise KernelError(
                f"expected a tile or a number, got {x!r} ({type(x).__name__}); load what a pointer points to first"
            )
        dtype = dtype_of(x)
        with np.errstate(all="ignore"):
            return self._fold(np.asarray(x, dtype.numpy), dtype)

    def _vector(
        self,
        name: str,
        kinds: tuple[str, ...],
        function: Callable[..., np.ndarray],
        operands: Sequence[Tile],
        shape: Shape,
        dtype: DType,
        operand_dtype: DType | None,
        elements: int | None = None,
    ) -> Tile:
        """Return `function` of the operands: folded if all are constants, else a command for the vector engine.

        Each operand is rounded to `operand_dtype` first (None: as it is), the result to `dtype`. `kinds` are the
        operations that it takes, on `elements` (those of the result unless given) of the wider of the two types.
        """
        constant = all(operand._constant for operand in operands)
        compute = None
        if constant or self._data:
            takes = [(t.shape, None if t.dtype is operand_dtype else operand_dtype) for t in operands]
            # What takes values as they are, of the type of its result, only moves them.
            moves = operand_dtype is None and all(t.dtype is dtype for t in operands)

            def compute(*arrays: np.ndarray) -> np.ndarray:
                with np.errstate(all="ignore"):
                    args = [
                        a.reshape(s) if d is None else d.round(a.reshape(s))
                        for a, (s, d) in zip(arrays, takes, strict=True)
                    ]
                    values = function(*args)
                    return (values if moves else dtype.round(values)).reshape(shape)

        if constant:
            assert compute is not None
            return self._fold(compute(*[t._array() for t in operands]), dtype)
        self._own(*operands)
        out = Value(shape, dtype)
        count = prod(shape) if elements is None else elements
        itemsize = max(dtype.itemsize, operand_dtype.itemsize) if operand_dtype is not None else dtype.itemsize
        values = tuple([t._value for t in operands])
        self._backend.submit(Vector(name, values, out, compute, count, "", work_of(kinds, count, itemsize)))
        return self._tile(out)
