"""Trial runs of programs before a launch: first store addresses for `placement="owner"`, and static asserts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import redirect_stdout, suppress
from io import StringIO

import numpy as np

from kernbench.components._command import Command, Store
from kernbench.errors import KernelError, OutOfBoundsError
from kernbench.runtime_api._device_tensor import DeviceTensor
from kernbench.topology._naming import PeId
from kernbench.triton._arguments import tensor_at
from kernbench.triton._language import StaticAssertError
from kernbench.triton_emu._runner import run_kernel_program
from kernbench.triton_emu.testing import MockBackend, MockMemory
from kernbench.triton_emu.tl_context import TLContext

Body = Callable[[TLContext], Callable[[int], None]]
_ATOMICS, _COMMANDS = 2_000, 100_000  # of one program: more counts as an endless wait
TIMES_ONLY = "this run computes times only"  # in the error of a program that needs missing values


class _Endless(Exception):  # noqa: N818 : it becomes an error
    """A program waits for later ones, or has too many commands."""


class _Found(Exception):  # noqa: N818 : it is none
    """A program has reached its first store."""


class _Snapshot(MockMemory):
    """Copy-on-read memory of tensors: trial programs write to the copy only."""

    def __init__(self, tensors: Sequence[DeviceTensor]) -> None:
        super().__init__()
        self._tensors, self._copies = list(tensors), dict[int, np.ndarray]()

    def bytes(self, va: int, nbytes: int) -> np.ndarray:
        x = holder(va, self._tensors)
        if x is None or va + nbytes > x._handle.va + x._handle.nbytes:
            raise OutOfBoundsError(f"bytes {va:#x} to {va + nbytes:#x} are in no tensor")
        start = x._handle.va
        if start not in self._copies:
            copy = self._copies[start] = np.zeros(x._handle.nbytes, np.uint8)
            for shard in x._handle.layout.shards:
                piece = x._host.engine.memory.peek([(shard.pa, shard.nbytes)])
                copy[shard.offset_bytes : shard.offset_bytes + shard.nbytes] = piece
        return self._copies[start][va - start : va - start + nbytes]


class _Finder(MockBackend):
    """Records where a program stores first; an atomic operation counts if there is no other store."""

    def __init__(self, memory: MockMemory | None) -> None:
        super().__init__(memory, data=memory is not None)
        self.begin()

    def begin(self) -> None:
        self.first: int | None = None
        self.first_atomic: int | None = None
        self._left, self._atomics_left = _COMMANDS, _ATOMICS

    def submit(self, command: Command) -> None:
        """Without data, stop at the first store; with data, go on, since later programs may read the values."""
        self._left -= 1
        self._atomics_left -= command.atomic
        if not self._left or self._atomics_left < 0:
            raise _Endless("one waits, or has too many commands to try it")
        if isinstance(command, Store) and command.runs:
            if command.atomic and self.first_atomic is None:
                self.first_atomic = command.runs[0].va
            if not command.atomic and self.first is None:
                self.first = command.runs[0].va
                if not self.data:
                    raise _Found
        super().submit(command)


def holder(va: int, tensors: Sequence[DeviceTensor]) -> DeviceTensor | None:
    for x in tensors:
        if x._handle.va <= va < x._handle.va + x._handle.nbytes:
            return x
    found = tensor_at(va, *{x._host for x in tensors})
    return found if isinstance(found, DeviceTensor) else None


def _place(va: int, tensors: Sequence[DeviceTensor]) -> PeId | None:
    x = holder(va, tensors)
    if x is None:
        return None
    for shard in x._handle.layout.shards:
        start = x._handle.va + shard.offset_bytes
        if start <= va < start + shard.nbytes:
            return shard.cube, shard.pe
    return None


def _run(body: Body, count: int, finder: _Finder) -> list[int | None]:
    run = body(TLContext(finder, (0, 0), (1, 1)))
    found = []
    for number in range(count):
        finder.begin()
        with suppress(_Found, OutOfBoundsError):  # the launch itself tells what is out of bounds
            run(number)
        found.append(finder.first_atomic if finder.first is None else finder.first)
    return found


def check_constants(program: Callable[..., None]) -> None:
    """Refuse a kernel that fails a `static_assert`, as Triton's compiler does: in the run, it would end the session.

    The trial has no values: it ends at the first store, or where control flow depends on a value.
    """
    with redirect_stdout(StringIO()):
        try:
            run_kernel_program(program, (), _Finder(None), (0, 0), (1, 1))
        except StaticAssertError:
            raise
        except Exception:  # noqa: BLE001, S110 : the launch itself tells what else is wrong with the kernel
            pass


def owners(
    name: str, body: Body, count: int, targets: Sequence[PeId], tensors: Sequence[DeviceTensor],
    settle: Callable[[], bool],
) -> list[Sequence[int]]:  # fmt: skip
    """Assign programs to PEs by their first store; programs that store nothing, or elsewhere, are dealt out in turn.

    If control flow or addresses depend on values, the trial uses those in memory: `settle` completes queued work
    and returns whether there are values. KernelError without values, or if a program waits for later ones.
    """
    first: list[int | None] = [None] * count
    refusal = f'placement "owner" of {name}: where a program stores cannot be told before the launch'
    with redirect_stdout(StringIO()):
        try:
            first = _run(body, count, _Finder(None))
        except Exception as error:  # noqa: BLE001 : the launch itself tells what is wrong with the kernel
            if TIMES_ONLY in str(error):
                if not settle():
                    raise KernelError(f'{refusal} ({error}); use "round-robin" or "blocks"') from None
                try:
                    first = _run(body, count, _Finder(_Snapshot(tensors)))
                except _Endless as endless:
                    raise KernelError(f'{refusal} ({endless}); use "round-robin" or "blocks"') from None
                except Exception:  # noqa: BLE001, S110
                    pass
    shares: dict[PeId, list[int]] = {pe: [] for pe in targets}
    for number, va in enumerate(first):
        place = None if va is None else _place(va, tensors)
        shares[targets[number % len(targets)] if place is None or place not in shares else place].append(number)
    return list(shares.values())
