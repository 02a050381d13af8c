"""`tl`: what a kernel gets in addition to its arguments. Triton's names have Triton's meaning; a few are new."""

from __future__ import annotations

import builtins
from typing import Any

from kernbench import _dtypes as dtypes
from kernbench._registry import hint
from kernbench.components._command import Backend, Value
from kernbench.errors import KernelError
from kernbench.triton_emu import _atomic_ops as atomic_ops
from kernbench.triton_emu import _matrix_ops as matrix_ops
from kernbench.triton_emu import _memory_ops as memory_ops
from kernbench.triton_emu import _queue_ops as queue_ops
from kernbench.triton_emu import _tile_ops as tile_ops
from kernbench.triton_emu._handles import Tile
from kernbench.triton_emu._program import Program, when_complete


class ProgramIndex(int):
    """An integer known to the program, with the one method that Triton's kernels use on it."""

    def to(self, _dtype: object) -> int:
        """Return the integer: it has no width."""
        return int(self)


class TLContext(Program):
    """The language of one program.

    Commands are issued in program order and do not wait; the program waits in `wait` and `recv`, where Python reads a
    value, and at its end. What is made of `arange`, `program_id` and numbers alone is folded: no command, no time.

    Parameters
    ----------
    backend : Backend
        What runs the commands: a PE, or the harness of `testing`.
    program_id : tuple of int
        The PE in its cube, and the cube.
    num_programs : tuple of int
        PEs per cube, and cubes, of the launch.
    participant : tuple of int
        Number of the program in a collective launch, and how many there are (0 and 1 without queues).

    Examples
    --------
    >>> from kernbench.triton_emu.testing import MockBackend
    >>> tl = TLContext(MockBackend(), (3, 1), (8, 16))
    >>> tl.program_id(0) * 4 + tl.arange(0, 4)[:, None] < 14
    <constant 4x1 bool: [[ True], [ True], [False], [False]]>
    """

    float64 = dtypes.float64
    float32 = dtypes.float32
    float16 = dtypes.float16
    bfloat16 = dtypes.bfloat16
    float8_e4m3fn = float8e4nv = dtypes.float8_e4m3fn
    float8_e5m2 = float8e5 = dtypes.float8_e5m2
    int8 = dtypes.int8
    uint8 = dtypes.uint8
    int16 = dtypes.int16
    int32 = dtypes.int32
    int64 = dtypes.int64
    uint16 = dtypes.uint16
    uint32 = dtypes.uint32
    uint64 = dtypes.uint64
    int1 = dtypes.bool_

    static_range = range

    load, store, ref = memory_ops.load, memory_ops.store, memory_ops.ref
    dot, composite = matrix_ops.dot, matrix_ops.composite
    send, recv, recv_async, recv_no_consume = (
        queue_ops.send, queue_ops.recv, queue_ops.recv_async, queue_ops.recv_no_consume,
    )  # fmt: skip
    wait, copy = queue_ops.wait, queue_ops.copy
    associative_scan, reduce = tile_ops.associative_scan, tile_ops.reduce
    cumsum, cumprod, sort, topk, flip = (
        tile_ops.cumsum, tile_ops.cumprod, tile_ops.sort, tile_ops.topk, tile_ops.flip,
    )  # fmt: skip
    gather, join, split, interleave = tile_ops.gather, tile_ops.join, tile_ops.split, tile_ops.interleave
    randint, randint4x, rand, randn = tile_ops.randint, tile_ops.randint4x, tile_ops.rand, tile_ops.randn
    atomic_add, atomic_max, atomic_min = atomic_ops.atomic_add, atomic_ops.atomic_max, atomic_ops.atomic_min
    atomic_and, atomic_or, atomic_xor = atomic_ops.atomic_and, atomic_ops.atomic_or, atomic_ops.atomic_xor
    atomic_xchg, atomic_cas = atomic_ops.atomic_xchg, atomic_ops.atomic_cas

    def __init__(
        self,
        backend: Backend,
        program_id: tuple[int, int],
        num_programs: tuple[int, int],
        participant: tuple[int, int] = (0, 1),
    ) -> None:
        super().__init__(backend, program_id, num_programs)
        self._participant = participant

    @staticmethod
    def range(
        *bounds: Any,
        num_stages: int | None = None,
        loop_unroll_factor: int | None = None,
        flatten: bool = False,
        warp_specialize: bool = False,
    ) -> Any:
        """Return Python's range of `bounds`; the rest are Triton's hints, without effect: commands overlap anyway."""
        return builtins.range(*bounds)

    def program_id(self, axis: int) -> int:
        """Return the PE in its cube (axis 0), the cube (axis 1), or the number among the participants (axis 2)."""
        return ProgramIndex((*self._ids, self._participant[0])[self._grid_axis("program_id", axis)])

    def num_programs(self, axis: int) -> int:
        """Return the number of PEs per cube (axis 0), of cubes (axis 1), or of participants (axis 2)."""
        return ProgramIndex((*self._counts, self._participant[1])[self._grid_axis("num_programs", axis)])

    @staticmethod
    def constexpr(value: Any) -> Any:
        """Return `value`: every Python value is known when the kernel runs. Also an annotation."""
        return value

    @staticmethod
    def static_assert(condition: Any, message: str = "") -> None:
        """Raise a KernelError unless `condition` holds."""
        if not condition:
            raise KernelError(f"static_assert failed: {message}" if message else "static_assert failed")

    @staticmethod
    def static_print(*values: Any, sep: str = " ", end: str = "\n") -> None:
        """Print now, as Python does."""
        print(*values, sep=sep, end=end)

    def device_print(self, prefix: str, *args: Any) -> None:
        """Print each value when it is complete; costs nothing and waits for nothing."""
        for arg in args or ("",):
            self._print_when_complete(f"pid {self._ids} {prefix}", arg)

    def _print_when_complete(self, prefix: str, arg: Any) -> None:
        if not isinstance(arg, Tile) or arg._constant or not self._data:
            print(prefix, arg._value.array if isinstance(arg, Tile) and arg._constant else arg)
            return
        shape = arg.shape

        def show(value: Value, _done_ps: int) -> None:
            assert value.array is not None
            print(prefix, value.array.reshape(shape))

        when_complete(arg._value, show)

    @staticmethod
    def multiple_of(x: Any, _values: Any) -> Any:
        """Return x: a hint without effect."""
        return x

    max_contiguous = multiple_of

    @staticmethod
    def assume(_condition: Any) -> None:
        """Take note of nothing: a hint without effect."""

    @staticmethod
    def debug_barrier() -> None:
        """Do nothing: a program is one thread."""

    @staticmethod
    def _grid_axis(name: str, axis: int) -> int:
        if axis not in (0, 1, 2):
            known = "0 is the PE in its cube, 1 the cube, 2 the participant of a collective"
            raise KernelError(f"{name}: axis {axis!r} does not exist; {known}")
        return axis

    def __getattr__(self, name: str) -> Any:
        known = [n for n in dir(type(self)) if not n.startswith("_")]
        raise AttributeError(f"tl has no {name!r}; {hint(name, known)}", name=name)
