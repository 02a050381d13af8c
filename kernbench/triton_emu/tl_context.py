"""`tl`, which a kernel gets in addition to its arguments: Triton's language, and a few words of our own."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any

from kernbench import _dtypes as dtypes
from kernbench.components._command import Backend, Value
from kernbench.errors import KernelError
from kernbench.triton_emu import _atomic_ops as atomic_ops
from kernbench.triton_emu import _blocks as blocks
from kernbench.triton_emu import _math_ops as math_ops
from kernbench.triton_emu import _matrix_ops as matrix_ops
from kernbench.triton_emu import _memory_ops as memory_ops
from kernbench.triton_emu import _queue_ops as queue_ops
from kernbench.triton_emu import _tile_ops as tile_ops
from kernbench.triton_emu._handles import KnownInt, Tensor, Tile
from kernbench.triton_emu._program import Program, when_complete


class _Known(type):
    def __instancecheck__(cls, value: object) -> bool:
        return value is None or isinstance(value, (bool, int, float, str, dtypes.DType, dtypes.PointerType))


class constexpr(metaclass=_Known):
    """A value known when the kernel runs, as every Python value is: the value itself. Also an annotation."""

    def __new__(cls, value: Any) -> Any:
        return getattr(value, "value", value)


class const:
    """An annotation of pointers that are only read."""


class PropagateNan:
    """The maximum of NaN and another operand: the other one, or NaN."""

    NONE, ALL = 0, 0xFFFF


class TLContext(Program):
    """The language of one program: Triton's, and the words `ref`, `composite`, `send`, `recv`, `wait` and `copy`.

    Commands are issued in program order and do not wait; the program waits in `wait` and `recv`, where Python reads a
    value, and at its end. Results of `arange`, `program_id` and numbers alone are folded: no command, no time.

    Parameters
    ----------
    backend : Backend
        Runs the commands: a PE, or the harness of `testing`.
    program_id : tuple of int
        The PE in its cube, and the cube.
    num_programs : tuple of int
        PEs per cube, and cubes, of the launch.
    participant : tuple of int
        Number of the program in a collective launch, and the count of participants (0 and 1 without queues).

    Examples
    --------
    >>> from kernbench.triton_emu.testing import MockBackend
    >>> tl = TLContext(MockBackend(), (3, 1), (8, 16))
    >>> tl.program_id(0) * 4 + tl.arange(0, 4)[:, None] < 14
    <constant 4x1 bool: [[ True], [ True], [False], [False]]>
    """

    tensor, dtype, pointer_type, block_type = Tensor, dtypes.DType, dtypes.PointerType, dtypes.BlockType
    constexpr, const, PropagateNan, tensor_descriptor = constexpr, const, PropagateNan, blocks.tensor_descriptor
    tuple = builtins.tuple
    pi32_t = dtypes.int32
    TRITON_MAX_TENSOR_NUMEL = 1 << 20
    static_range = range

    load, store, ref = memory_ops.load, memory_ops.store, memory_ops.ref
    dot, composite = matrix_ops.dot, matrix_ops.composite
    send, recv, recv_async, recv_no_consume = (
        queue_ops.send, queue_ops.recv, queue_ops.recv_async, queue_ops.recv_no_consume,
    )  # fmt: skip
    wait, copy = queue_ops.wait, queue_ops.copy
    make_block_ptr, advance = blocks.make_block_ptr, blocks.advance
    make_tensor_descriptor, load_tensor_descriptor, store_tensor_descriptor = (
        blocks.make_tensor_descriptor, blocks.load_tensor_descriptor, blocks.store_tensor_descriptor,
    )  # fmt: skip
    associative_scan, reduce = tile_ops.associative_scan, tile_ops.reduce
    cumsum, cumprod, sort, topk, flip = (
        tile_ops.cumsum, tile_ops.cumprod, tile_ops.sort, tile_ops.topk, tile_ops.flip,
    )  # fmt: skip
    gather, join, split, interleave = tile_ops.gather, tile_ops.join, tile_ops.split, tile_ops.interleave
    cat, histogram, swizzle2d = tile_ops.cat, tile_ops.histogram, tile_ops.swizzle2d
    randint, randint4x, rand, rand4x = tile_ops.randint, tile_ops.randint4x, tile_ops.rand, tile_ops.rand4x
    randn, randn4x, philox = tile_ops.randn, tile_ops.randn4x, tile_ops.philox
    uint_to_uniform_float, pair_uniform_to_normal = tile_ops.uint_to_uniform_float, tile_ops.pair_uniform_to_normal
    ldexp, assert_of_values = math_ops.ldexp, math_ops.assert_of_values
    atomic_add, atomic_max, atomic_min = atomic_ops.atomic_add, atomic_ops.atomic_max, atomic_ops.atomic_min
    atomic_and, atomic_or, atomic_xor = atomic_ops.atomic_and, atomic_ops.atomic_or, atomic_ops.atomic_xor
    atomic_xchg, atomic_cas = atomic_ops.atomic_xchg, atomic_ops.atomic_cas
    atomic_load, atomic_store = atomic_ops.atomic_load, atomic_ops.atomic_store

    def __init__(
        self,
        backend: Backend,
        program_id: builtins.tuple[int, int],
        num_programs: builtins.tuple[int, int],
        participant: builtins.tuple[int, int] = (0, 1),
    ) -> None:
        super().__init__(backend)
        self._ids, self._counts = (*program_id, participant[0]), (*num_programs, participant[1])

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
        return KnownInt(self._ids[self._grid_axis(axis)])

    def num_programs(self, axis: int) -> int:
        """Return the number of PEs per cube (axis 0), of cubes (axis 1), or of participants (axis 2)."""
        return KnownInt(self._counts[self._grid_axis(axis)])

    @staticmethod
    def static_assert(condition: Any, message: str = "") -> None:
        """Raise a KernelError unless `condition` holds."""
        if not condition:
            raise KernelError(f"static_assert failed: {message}" if message else "static_assert failed")

    static_print = staticmethod(print)

    def device_print(self, prefix: str, *args: Any, hex: bool = False) -> None:
        """Print each value once it is complete; costs nothing and waits for nothing."""
        for arg in args or ("",):
            self._print_when_complete(f"pid {self._ids} {prefix}", arg)

    def _print_when_complete(self, prefix: str, arg: Any) -> None:
        if not isinstance(arg, Tile) or arg._constant or not self._data:
            print(prefix, arg._array() if isinstance(arg, Tile) and arg._constant else arg)
            return
        shape = arg.shape

        def show(value: Value, _done_ps: int) -> None:
            assert value.array is not None
            print(prefix, value.array.reshape(shape))

        when_complete(arg._value, show)

    @staticmethod
    def multiple_of(x: Any, *_values: Any) -> Any:
        """Return x: a hint without effect."""
        return x

    max_contiguous = max_constancy = expect_zero = multiple_of

    @staticmethod
    def debug_barrier(*_: Any, **__: Any) -> None:
        """Do nothing: a program is one thread."""

    assume = device_assert = debug_barrier  # hints, and checks that Triton leaves out

    @staticmethod
    def next_power_of_2(n: int) -> int:
        """Return the smallest power of two that is not below n."""
        return 1 << (int(n) - 1).bit_length() if n > 0 else 0

    @staticmethod
    def get_int_dtype(bitwidth: int, signed: bool) -> dtypes.DType:
        return dtypes.as_dtype(f"{'' if signed else 'u'}int{bitwidth}")

    @staticmethod
    def _grid_axis(axis: int) -> int:
        if axis not in (0, 1, 2):
            raise KernelError(
                f"axis {axis!r} of the grid does not exist; a launch has 0 (the PE in its cube), 1 (the cube) and "
                "2 (the participant of a collective)"
            )
        return axis

    if TYPE_CHECKING:  # what is set below

        def __getattr__(self, name: str) -> Any: ...


for _name in {*dtypes.TRITON, *math_ops.MATH_NAMES, *math_ops.MODULES}.difference(dir(TLContext)):
    setattr(TLContext, _name, math_ops.Named(_name))
