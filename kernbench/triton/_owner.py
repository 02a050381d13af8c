"""Programs tried before a launch: for `placement="owner"`, on the PE they store to first, and for static asserts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import redirect_stdout, suppress
from io import StringIO

import numpy as np

from kernbench.components._command import Command, Store
from kernbench.errors import KernelError, OutOfBoundsError
from kernbench.runtime_api._device_tensor import DeviceTensor
from kernbench.triton._arguments import tensor_at
from kernbench.triton._language import StaticAssertError
from kernbench.triton_emu._runner import run_program
from kernbench.triton_emu.testing import Memory, MockBackend
from kernbench.triton_emu.tl_context import TLContext

Target = tuple[int, int]
Body = Callable[[TLContext], Callable[[int], None]]
_ATOMICS, _COMMANDS = 2_000, 100_000  # of one program: more is taken for a wait that does not end
UNKNOWN = "this run computes times only"  # in the error of a program that needs values which there are not


class _Endless(Exception):  # noqa: N818 : it becomes an error
    """Raised where a program does not end without those after it."""


class _Found(Exception):  # noqa: N818 : it is none
    """Raised at the first store of a program."""


class _Snapshot(Memory):
    """The memory of tensors as it is when it is first asked for; what is written to it stays here."""

    def __init__(self, tensors: Sequence[DeviceTensor]) -> None:
        super().__init__()
        self._tensors, self._copies = list(tensors), dict[int, np.ndarray]()

    def bytes(self, va: int, nbytes: int) -> np.ndarray:
        """Return bytes of a tensor."""
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
    """Notes where a program stores first; an atomic operation counts if there is no other store."""

    def __init__(self, memory: Memory | None) -> None:
        super().__init__(memory, data=memory is not None)
        self.begin()

    def begin(self) -> None:
        """Begin with a new program."""
        self.first: int | None = None
        self.first_atomic: int | None = None
        self._left, self._atomics_left = _COMMANDS, _ATOMICS

    def submit(self, command: Command) -> None:
        """Stop at a store, unless later programs may wait for the values."""
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
    """Return the tensor that an address is in: one of these, or another of their session."""
    for x in tensors:
        if x._handle.va <= va < x._handle.va + x._handle.nbytes:
            return x
    found = tensor_at(va, *{x._host for x in tensors})
    return found if isinstance(found, DeviceTensor) else None


def _place(va: int, tensors: Sequence[DeviceTensor]) -> Target | None:
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
    """Refuse a kernel that fails a `static_assert`, as Triton's compiler: a failure in the run would end the session.

    A program is tried without values, up to its first store or where its way depends on a value.
    """
    with redirect_stdout(StringIO()):
        try:
            run_program(program, (), _Finder(None), (0, 0), (1, 1))
        except StaticAssertError:
            raise
        except Exception:  # noqa: BLE001, S110 : the launch itself tells what else is wrong with the kernel
            pass


def owners(
    name: str, body: Body, count: int, targets: Sequence[Target], tensors: Sequence[DeviceTensor],
    settle: Callable[[], bool],
) -> list[Sequence[int]]:  # fmt: skip
    """Return the programs of each PE; those that store nothing, or elsewhere, are dealt out in turn.

    Where a program stores follows from its code, if need be with the values in memory: `settle` completes what is
    queued, and returns whether there are values.

    Raises
    ------
    KernelError
        If it depends on values that the session does not have, or a program waits for later ones.
    """
    first: list[int | None] = [None] * count
    refusal = f'placement "owner" of {name}: where a program stores cannot be told before the launch'
    with redirect_stdout(StringIO()):
        try:
            first = _run(body, count, _Finder(None))
        except Exception as error:  # noqa: BLE001 : the launch itself tells what is wrong with the kernel
            if UNKNOWN in str(error):
                if not settle():
                    raise KernelError(f'{refusal} ({error}); use "round-robin" or "blocks"') from None
                try:
                    first = _run(body, count, _Finder(_Snapshot(tensors)))
                except _Endless as endless:
                    raise KernelError(f'{refusal} ({endless}); use "round-robin" or "blocks"') from None
                except Exception:  # noqa: BLE001, S110
                    pass
    shares: dict[Target, list[int]] = {pe: [] for pe in targets}
    for number, va in enumerate(first):
        place = None if va is None else _place(va, tensors)
        shares[targets[number % len(targets)] if place is None or place not in shares else place].append(number)
    return list(shares.values())
