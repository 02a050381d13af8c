"""Runs kernels on numpy arrays, without a machine: values only, for tests of kernels."""

from __future__ import annotations

import inspect
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kernbench._dtypes import as_dtype
from kernbench.components._command import Command, Composite, Load, Recv, Ref, Run, Send, Store, Value
from kernbench.errors import IpcqInvalidDirection, OutOfBoundsError
from kernbench.triton_emu._handles import Pointer
from kernbench.triton_emu._runner import run_kernel_program

_PAGE = 1 << 20


class MockMemory:
    """Arrays by virtual address. Each starts on a new page and is followed by at least one unmapped page."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._known: dict[int, int] = {}
        self._held: list[tuple[str, np.ndarray, np.ndarray]] = []
        self._next = _PAGE

    def add(self, name: str, array: np.ndarray) -> Pointer:
        if id(array) in self._known:
            return Pointer(self._known[id(array)], as_dtype(array.dtype))
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        start = self._next
        self._starts.append(start)
        self._known[id(array)] = start
        self._held.append((name, array, raw))
        self._next += (-(-raw.size // _PAGE) + 1) * _PAGE
        return Pointer(start, as_dtype(array.dtype))

    def bytes(self, va: int, nbytes: int) -> np.ndarray:
        """Return a writable view of the bytes at `va`; OutOfBoundsError if they are not all inside one array."""
        at = bisect_right(self._starts, va) - 1
        start = self._starts[at] if at >= 0 else 0
        if at >= 0 and va - start + nbytes <= self._held[at][2].size:
            return self._held[at][2][va - start : va - start + nbytes]
        if at < 0:
            raise OutOfBoundsError(f"bytes {va:#x} to {va + nbytes:#x} are in no tensor; check the pointer")
        name, array, raw = self._held[at]
        raise OutOfBoundsError(
            f"bytes {va - start} to {va - start + nbytes} of tensor argument {name!r}, which has {raw.size} "
            f"({array.shape} {as_dtype(array.dtype)}); check offsets and shape, or mask what is outside"
        )

    def write_back(self) -> None:
        """Copy results back into arrays that are not contiguous, of which `add` made copies."""
        for _, array, raw in self._held:
            if not array.flags.c_contiguous:
                array[...] = raw.view(array.dtype).reshape(array.shape)


class MockBackend:
    """Completes every command at once. With `data` False it has no values, as a machine without data."""

    def __init__(self, memory: MockMemory | None = None, data: bool = True) -> None:
        self.memory, self.data = memory or MockMemory(), data

    def submit(self, command: Command) -> None:
        if isinstance(command, (Send, Recv)):
            raise IpcqInvalidDirection(
                f"{command.name} {command.tag!r}: this program has no queues; run it with "
                "kernbench.ccl.testing.run_kernel_in_mock, or launch it as a collective"
            )
        if self.data:
            assert command.compute is not None
            if isinstance(command, Load):
                arrays = [self._read(command.runs)]
            elif isinstance(command, Composite):
                operands = (command.a, command.b, *(x for _, x in command.extra), command.acc)
                arrays = [self._array(x) for x in operands if x is not None]
            else:
                arrays = [_known(value) for value in command.inputs]
            if isinstance(command, Store) and command.atomic:
                arrays = [self._read(command.runs), *arrays]
            result = command.compute(*arrays)
            if isinstance(command, Store):
                self._write(command.runs, result)
            elif isinstance(command, Composite):
                out = command.out
                assert out is not None
                self._write(out.elements, out.encode(result))
            elif command.output is not None:
                command.output.array = result
        if command.output is not None:
            command.output.done_ps = 1
        command.done_ps = 1

    def block(self, on: Value | Command) -> None:
        """Return: everything is complete."""

    def drop(self, value: Value) -> None:
        value.dropped, value.array = True, None

    def _array(self, operand: Ref | Value) -> np.ndarray:
        if isinstance(operand, Value):
            return _known(operand)
        return operand.decode(self._read(operand.elements))

    def _read(self, runs: Sequence[Run]) -> np.ndarray:
        parts = [self.memory.bytes(run.va, run.nbytes) for run in runs]
        return parts[0].copy() if len(parts) == 1 else np.concatenate(parts)

    def _write(self, runs: Sequence[Run], data: np.ndarray) -> None:
        targets = [self.memory.bytes(run.va, run.nbytes) for run in runs]
        at = 0
        for target in targets:
            target[:] = data[at : at + target.size]
            at += target.size


def _known(value: Value) -> np.ndarray:
    assert value.array is not None, f"{value.shape} {value.dtype} was dropped, or never made"
    return value.array


def run_kernel(kernel: Callable[..., Any], *args: Any, grid: tuple[int, int] = (1, 1)) -> None:
    """Run `kernel` on numpy arrays: every program in order, cube by cube, on values only.

    Parameters
    ----------
    kernel : callable
        Takes `args` and `tl`.
    args : object
        Arrays replace tensors and are written in place (bf16 and f8: ml_dtypes); all else is passed as it is.
    grid : tuple of int
        PEs per cube, cubes.

    Raises
    ------
    KernelError
        If the kernel fails, with file, line and program.

    Examples
    --------
    >>> def double(x_ptr, n, *, tl):
    ...     tl.store(x_ptr, tl.load(x_ptr, shape=(n,)) * 2)
    >>> x = np.arange(4, dtype=np.float16)
    >>> run_kernel(double, x, 4)
    >>> x
    array([0., 2., 4., 6.], dtype=float16)
    """
    memory = MockMemory()
    names = [*inspect.signature(kernel).parameters] + [f"argument {i}" for i in range(len(args))]
    passed = [memory.add(name, x) if isinstance(x, np.ndarray) else x for name, x in zip(names, args, strict=False)]
    backend = MockBackend(memory)
    pes, cubes = grid
    try:
        for cube in range(cubes):
            for pe in range(pes):
                run_kernel_program(kernel, passed, backend, (pe, cube), grid)
    finally:
        memory.write_back()
