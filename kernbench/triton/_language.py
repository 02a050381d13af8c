"""`triton.language` of one program: Triton's names, arguments and meaning, as commands of the kernel language."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from kernbench import _dtypes as dtypes
from kernbench._registry import hint
from kernbench.errors import KernelError
from kernbench.triton import _extremes as extremes
from kernbench.triton import _functions as functions
from kernbench.triton import _random as random
from kernbench.triton import _tensor
from kernbench.triton._functions import (
    ALIASES,
    BITS,
    CASTS,
    MATH,
    OTHER_RESULTS,
    REFUSED,
    Namespace,
    static_assert_error,
)  # fmt: skip
from kernbench.triton._tensor import Block, is_bool, is_signed_by_unsigned, pointer_of, tensor, tensor_descriptor
from kernbench.triton._types import (
    LANGUAGE_NAMES,
    TYPES,
    block_type,
    const,
    constexpr,
    dtype,
    of,
    of_native,
    pointer_type,
    type_of_sum,
    wide,
)
from kernbench.triton_emu import _tile_ops as tile_ops
from kernbench.triton_emu._handles import Pointer, PointerTile, Tile
from kernbench.triton_emu._program import broadcast as broadcast_shapes
from kernbench.triton_emu.tl_context import TLContext

_SIMPLE = ("simple",)
_INT32, _INT64, _FP32 = TYPES["int32"], TYPES["int64"], TYPES["fp32"]


def _unary_function(name: str) -> Callable[..., Any]:
    def function(self: Language, x: Any, **_: Any) -> Any:
        return self._unary(name, x)

    function.__name__ = name
    return function


def _atomic_function(name: str) -> Callable[..., Any]:
    def function(self: Language, pointer: Any, val: Any, mask: Any = None, sem: Any = None, scope: Any = None) -> Any:
        return self._atomic(name, pointer, (val,), mask, sem, scope)

    function.__name__ = name
    return function


class Language:
    """The language of one program. `grid_place` and `grid_size` say which program of the grid it is now."""

    tensor, dtype, pointer_type, block_type = tensor, dtype, pointer_type, block_type
    constexpr, const, tensor_descriptor, tuple = constexpr, const, tensor_descriptor, builtins.tuple
    static_range = builtins.range
    pi32_t = _INT32
    TRITON_MAX_TENSOR_NUMEL = 1 << 20

    class PropagateNan:
        """Triton's choices of what a maximum of NaN is."""

        NONE, ALL = 0, 0xFFFF

    def __init__(self, tl: TLContext, grid_size: Sequence[int]) -> None:
        self._tl = tl
        self.grid_size = (*grid_size, 1, 1, 1)[:3]
        self.grid_place: Sequence[int] = (0, 0, 0)
        self._counting = False
        self.math, self.libdevice = Namespace(self, "tl.math"), Namespace(self, "libdevice")
        self.extra, self.cuda = Namespace(self, "tl.extra"), Namespace(self, "tl.extra.cuda")
        self.hip = Namespace(self, "tl.extra.hip")
        self.core = self.standard = self.random = self.language = Namespace(self, "tl")

    def __getattr__(self, name: str) -> Any:
        return self._function(name, "tl")

    def _function(self, name: str, module: str) -> Any:
        """Return a function or a type of the language that is not a method, or raise an AttributeError."""
        if name in LANGUAGE_NAMES:
            return LANGUAGE_NAMES[name]
        if name in ALIASES:
            return getattr(self, ALIASES[name])
        if name in MATH:
            return lambda *operands: self._math(name, operands)
        if name in OTHER_RESULTS:
            return lambda *operands: self._result(name, operands)
        if name in CASTS:
            return lambda x: self.cast(x, CASTS[name])
        if name in BITS:
            return lambda x: self.cast(x, BITS[name], bitcast=True)
        if name in REFUSED:
            raise AttributeError(f"{module}.{name} is not supported: {REFUSED[name]}", name=name)
        methods = [n for n in dir(type(self)) if not n.startswith("_")] if module != "libdevice" else []
        known = [*methods, *LANGUAGE_NAMES, *MATH, *OTHER_RESULTS, *CASTS, *BITS, *ALIASES]
        raise AttributeError(f"{module}.{name} is not supported; {hint(name, sorted(known))}", name=name)

    # --- from and to the kernel language

    def _native(self, x: Any) -> Any:
        """Return what the kernel language takes for x."""
        if isinstance(x, tensor):
            handle = x.handle
            if isinstance(handle, (bool, int, float)):
                native = x.dtype.native
                return self._tl._fold(np.asarray(handle, native.carrier), native)
            return handle
        if isinstance(x, np.generic):
            return x.item()
        if isinstance(x, (builtins.tuple, list)):
            return type(x)(map(self._native, x))
        return x

    def _wrap(self, x: Any) -> Any:
        """Return what the kernel language gives as a tensor; scalar integers that are constants as known numbers."""
        if isinstance(x, Tile):
            if x._constant and not x.shape and not self._counting and not x.dtype.is_floating_point:
                return tensor(self, x.item(), of_native(x.dtype))
            return tensor(self, x, of_native(x.dtype))
        if isinstance(x, (Pointer, PointerTile)):
            return tensor(self, x, pointer_type(x.dtype))
        if isinstance(x, builtins.tuple):
            return builtins.tuple(map(self._wrap, x))
        return x

    def _sizes(self, shape: Any) -> list[int]:
        """Return the sizes that `*shape` means."""
        if len(shape) == 1 and isinstance(shape[0], (builtins.tuple, list)):
            shape = shape[0]
        return [int(n) for n in shape]

    def to_tensor(self, x: Any) -> Any:
        """Return a number as a tensor."""
        if isinstance(x, bool):
            return tensor(self, x, TYPES["int1"])
        if isinstance(x, int):
            known = next((TYPES[t] for t in ("int32", "uint32", "int64") if _fits(x, TYPES[t])), TYPES["uint64"])
            return tensor(self, x, known)
        if isinstance(x, (float, np.generic)):
            return self._wrap(self._tl._constant(x))
        return x

    def _tile(self, x: Any) -> Tile:
        return self._tl._constant(self._native(x))

    def _wide(self, x: Any) -> Tile:
        tile = self._tile(x)
        return self._tl.cast(tile, wide(tile.dtype))

    # --- operators

    def _binary(self, name: str, a: Any, b: Any) -> Any:
        if not self._counting:
            known = _tensor._known(name, a, b)
            if known is not None:
                return tensor(self, *known)
        if a is None or b is None:
            return {"eq": a is b, "ne": a is not b}.get(name, NotImplemented)
        if name in ("add", "sub") and is_bool(a) and is_bool(b):
            name = "xor"  # one bit, which wraps
        if name == "shr" and is_signed_by_unsigned(a, b):  # arithmetic, as for the first operand alone
            signed = self.get_int_dtype(b.dtype.int_bitwidth, True)
            return self.cast(self._binary(name, self.cast(a, signed), self.cast(b, signed)), b.dtype)
        x, y = self._native(a), self._native(b)
        if isinstance(x, (Pointer, PointerTile)) or isinstance(y, (Pointer, PointerTile)):
            return self._pointer_binary(name, x, y)
        return self._wrap(self._tl._binary(name, x, y))

    def _pointer_binary(self, name: str, x: Any, y: Any) -> Any:
        pointers = (Pointer, PointerTile)
        if isinstance(x, pointers) and isinstance(y, pointers):
            number = self._binary(name, self._address(x), self._address(y))
            return number // x.dtype.itemsize if name == "sub" else number
        if name in ("eq", "ne", "lt", "le", "gt", "ge"):
            return self._binary(name, *(self._address(v) if isinstance(v, pointers) else v for v in (x, y)))
        if name not in ("add", "sub") or (name == "sub" and isinstance(y, pointers)):
            raise KernelError(f"{name} of {x!r} and {y!r}: a pointer takes + and - of integers only")
        pointer, offset = (y, x) if isinstance(y, pointers) else (x, y)
        if isinstance(offset, float) or (isinstance(offset, Tile) and offset.dtype.is_floating_point):
            raise KernelError(f"{name}: the offset {offset!r} of a pointer is not an integer")
        if isinstance(offset, Tile) and offset._constant and not offset.shape:
            offset = int(offset.item())
        return self._wrap(pointer + offset if name == "add" else pointer - offset)

    def _address(self, pointer: Any) -> Any:
        if isinstance(pointer, Pointer):
            return tensor(self, pointer.va, _INT64)
        wide = self._tl.cast(pointer.offsets, dtypes.int64)
        return self._wrap(wide * pointer.dtype.itemsize + pointer.base.va)

    def _unary(self, name: str, x: Any) -> Any:
        return self._wrap(self._tl._unary(name, self._native(x)))

    def _negative(self, x: Any) -> Any:
        if type(x.handle) is int and x.dtype.is_int_signed() and _fits(-x.handle, x.dtype):
            return tensor(self, -x.handle, x.dtype)
        if x.dtype.is_bool():
            return x
        return self._unary("neg", x)

    def _math(self, name: str, operands: Sequence[Any]) -> Any:
        kinds, function = MATH[name]
        tiles, common = self._tl._unify(name, [self._native(x) for x in operands])
        if not common.is_floating_point:
            raise KernelError(f"tl.{name} takes floats, got {common}; convert them first: x.to(tl.float32)")
        shape = broadcast_shapes(name, *(tile.shape for tile in tiles))
        return self._wrap(self._tl._vector(name, kinds, function, tiles, shape, common, common))

    def _result(self, name: str, operands: Sequence[Any]) -> Any:
        kind, function = OTHER_RESULTS[name]
        tiles = [self._tile(x) for x in operands]
        if len(tiles) > 1:
            tiles, _ = self._tl._unify(name, tiles)
        shape = broadcast_shapes(name, *(tile.shape for tile in tiles))
        taken = tiles[0].dtype
        return self._wrap(self._tl._vector(name, _SIMPLE, function, tiles, shape, kind or taken, taken))

    # --- the program

    def program_id(self, axis: int) -> Any:
        """Return which program of the grid this is."""
        return tensor(self, self.grid_place[self._axis_of_grid(axis)], _INT32)

    def num_programs(self, axis: int) -> Any:
        """Return how many programs the grid has along an axis."""
        return tensor(self, self.grid_size[self._axis_of_grid(axis)], _INT32)

    @staticmethod
    def _axis_of_grid(axis: int) -> int:
        if axis not in (0, 1, 2):
            raise KernelError(f"a grid has the axes 0, 1 and 2, not {axis!r}")
        return axis

    def range(self, *bounds: Any, **_hints: Any) -> Iterator[Any]:
        """Return the integers of a loop; what Triton's hints ask for happens anyway."""
        start, stop, step = (0, bounds[0], 1) if len(bounds) == 1 else (*bounds, 1)[:3]
        kinds = [x.dtype for x in (start, stop, step) if isinstance(x, tensor)]
        kind = _INT64 if any(found.primitive_bitwidth == 64 for found in kinds) else _INT32
        return (tensor(self, i, kind) for i in builtins.range(int(start), int(stop), int(step)))

    @staticmethod
    def static_assert(condition: Any, message: str = "") -> None:
        """Raise a StaticAssertError unless the condition holds."""
        if not condition:
            raise static_assert_error(f"static_assert failed: {message}" if message else "static_assert failed")

    @staticmethod
    def static_print(*values: Any, sep: str = " ", end: str = "\n", file: Any = None, flush: bool = False) -> None:
        """Print now."""
        print(*values, sep=sep, end=end, file=file, flush=flush)

    def device_print(self, prefix: str, *args: Any, hex: bool = False) -> None:
        """Print each value when it is complete."""
        place = builtins.tuple(self.grid_place)
        for arg in args or ("",):
            self._tl._print_when_complete(f"pid {place} {prefix}", self._native(arg))

    def device_assert(self, cond: Any, msg: str = "", mask: Any = None) -> None:
        """Do nothing, as Triton outside of debug mode."""

    assert_of_values = functions.assert_of_values

    def assume(self, cond: Any) -> None:
        """Do nothing: a hint."""

    def debug_barrier(self) -> None:
        """Do nothing: a program is one thread."""

    @staticmethod
    def multiple_of(x: Any, *_: Any) -> Any:
        """Return x: a hint."""
        return x

    max_contiguous = max_constancy = multiple_of

    @staticmethod
    def expect_zero(x: Any) -> Any:
        """Return x: a hint."""
        return x

    # --- making tensors

    def arange(self, start: Any, end: Any) -> Any:
        """Return start, start + 1, ... end - 1."""
        return self._wrap(self._tl.arange(int(start), int(end)))

    def full(self, shape: Any, value: Any, dtype: Any) -> Any:
        """Return a tensor filled with a value."""
        return self._wrap(self._tl.full(self._sizes((shape,)), self._native(value), of(dtype).native))

    def zeros(self, shape: Any, dtype: Any) -> Any:
        """Return a tensor of zeros."""
        return self.full(shape, 0, dtype)

    def zeros_like(self, input: Any) -> Any:
        """Return zeros of the shape and type of another tensor."""
        return self.zeros(input.shape, input.dtype)

    def cast(self, input: Any, dtype: Any, fp_downcast_rounding: str | None = None, bitcast: bool = False) -> Any:
        """Return the values in another type, or with `bitcast` their bits."""
        if fp_downcast_rounding not in (None, "rtne"):
            raise KernelError(f"fp_downcast_rounding={fp_downcast_rounding!r} is not supported; use rtne")
        target, x = of(dtype), self.to_tensor(input)
        handle = x.handle
        if isinstance(target, pointer_type):
            return pointer_of(self, handle, target)
        if isinstance(handle, (Pointer, PointerTile)):
            return self.cast(self._address(handle), target)
        if x.dtype == target:
            return x
        if type(handle) is int and target.is_int() and not target.is_bool() and _fits(handle, target):
            return tensor(self, handle, target)
        tile = self._tile(x)
        if not bitcast:
            return self._wrap(self._tl.cast(tile, target.native))
        if tile.dtype.itemsize != target.itemsize:
            raise KernelError(f"a bitcast keeps the number of bits, got {x.dtype} and {target}")
        source = tile.dtype.numpy

        def bits(a: np.ndarray) -> np.ndarray:
            found: np.ndarray = np.ascontiguousarray(a.astype(source)).view(target.native.numpy)
            return found.reshape(a.shape)

        return self._wrap(self._tl._vector("bitcast", (), bits, (tile,), tile.shape, target.native, None))

    # --- memory

    def make_block_ptr(
        self, base: Any, shape: Any, strides: Any, offsets: Any, block_shape: Any, order: Any = None
    ) -> Block:
        """Return a pointer to a block of a matrix."""
        return Block(self, base, shape, strides, offsets, block_shape)

    def advance(self, base: Block, offsets: Any) -> Block:
        """Return the block that is further by `offsets`."""
        return base.at([a + b for a, b in zip(base.offsets, offsets, strict=True)])

    def make_tensor_descriptor(
        self, base: Any, shape: Any, strides: Any, block_shape: Any, padding_option: str = "zero", **_: Any
    ) -> Any:
        """Return a descriptor of a matrix in memory."""
        return tensor_descriptor(self, base, shape, strides, [0] * len(shape), block_shape, padding_option)

    def load_tensor_descriptor(self, desc: Any, offsets: Any) -> Any:
        """Return the block of a descriptor at `offsets`."""
        return desc.load(offsets)

    def store_tensor_descriptor(self, desc: Any, offsets: Any, value: Any) -> None:
        """Store a block of a descriptor at `offsets`."""
        desc.store(offsets, value)

    def load(
        self, pointer: Any, mask: Any = None, other: Any = None, boundary_check: Any = (), padding_option: str = "",
        cache_modifier: str = "", eviction_policy: str = "", volatile: bool = False,
    ) -> Any:  # fmt: skip
        """Return the values behind pointers."""
        if isinstance(pointer, Block):
            if mask is not None or other is not None:
                raise KernelError("load: a block pointer takes boundary_check instead of mask and other")
            return pointer.load_checked([int(dim) for dim in boundary_check], padding_option)
        if mask is not None and isinstance(self.to_tensor(mask).handle, bool):
            if not self.to_tensor(mask).handle:
                kind = pointer.dtype.element_ty
                value = self.cast(0 if other is None else other, kind)
                return self.broadcast_to(value, *pointer.shape) if pointer.shape else value
            mask = other = None
        handle = self._pointer("load", pointer)
        return self._wrap(self._tl.load(handle, self._native(mask), self._native(other)))

    def store(
        self, pointer: Any, value: Any, mask: Any = None, boundary_check: Any = (), cache_modifier: str = "",
        eviction_policy: str = "",
    ) -> None:  # fmt: skip
        """Store values behind pointers."""
        if isinstance(pointer, Block):
            pointer.store_checked(value, [int(dim) for dim in boundary_check])
            return
        if mask is not None and isinstance(self.to_tensor(mask).handle, bool):
            if not self.to_tensor(mask).handle:
                return
            mask = None
        handle = self._pointer("store", pointer)
        if isinstance(handle, Pointer) and isinstance(value, tensor) and value.shape:
            raise KernelError(f"store: {value!r} does not fit a scalar pointer; add offsets to the pointer")
        self._tl.store(handle, self._native(value), self._native(mask))

    @staticmethod
    def _pointer(name: str, pointer: Any) -> Any:
        handle = getattr(pointer, "handle", pointer)
        if not isinstance(handle, (Pointer, PointerTile)):
            raise KernelError(f"{name} takes a pointer, got {pointer!r}")
        return handle

    def _atomic(self, name: str, pointer: Any, values: Any, mask: Any, sem: Any, scope: Any) -> Any:
        handle = self._pointer(name, pointer)
        operands = [self._native(value) for value in values]
        if name == "atomic_cas":
            expected, new = operands
            return self._wrap(self._tl.atomic_cas(handle, expected, new, sem, scope))
        return self._wrap(_ATOMICS[name](self._tl, handle, *operands, self._native(mask), sem, scope))

    atomic_add, atomic_max, atomic_min = map(_atomic_function, ("atomic_add", "atomic_max", "atomic_min"))
    atomic_and, atomic_or, atomic_xor = map(_atomic_function, ("atomic_and", "atomic_or", "atomic_xor"))
    atomic_xchg = _atomic_function("atomic_xchg")
    atomic_store = _atomic_function("atomic_xchg")

    def atomic_cas(self, pointer: Any, cmp: Any, val: Any, sem: Any = None, scope: Any = None) -> Any:
        """Replace a value that equals `cmp`; return what was there."""
        return self._atomic("atomic_cas", pointer, (cmp, val), None, sem, scope)

    def atomic_load(self, pointer: Any, mask: Any = None, sem: Any = None, scope: Any = None) -> Any:
        """Return the values behind pointers as one step."""
        return self._atomic("atomic_add", pointer, (0,), mask, sem, scope)

    # --- matrices

    def dot(
        self, input: Any, other: Any, acc: Any = None, input_precision: Any = None, allow_tf32: Any = None,
        max_num_imprecise_acc: Any = None, out_dtype: Any = None,
    ) -> Any:  # fmt: skip
        """Return the product of two matrices, or of each pair in two stacks of them."""
        a, b = self._tile(input), self._tile(other)
        if len(a.shape) == 3:
            return self._batched_dot(a, b, acc, out_dtype)
        c = None if acc is None else self._tile(acc)
        wanted = of(out_dtype).native if out_dtype is not None else None if c is None else c.dtype
        if c is not None and c.dtype is not dtypes.int32:
            c = self._tl.cast(c, dtypes.float32)
        out = self._tl.dot(a, b, c)
        return self._wrap(out if wanted is None else self._tl.cast(out, wanted))

    def _batched_dot(self, a: Tile, b: Tile, acc: Any, out_dtype: Any) -> Any:
        count, m, _ = a.shape
        n = b.shape[2]
        parts = []
        for i in builtins.range(count):
            x, y = self._slice(a, i), self._slice(b, i)
            parts.append(self._tl.dot(x, y))
        kind = parts[0].dtype
        flat = [part.reshape(m * n) for part in parts]
        out = self._tl._vector(
            "stack", _SIMPLE, lambda *arrays: np.stack(arrays), flat, (count, m * n), kind, None
        ).reshape(count, m, n)
        found = self._wrap(out)
        if acc is not None:
            found = found + acc
        return found if out_dtype is None else self.cast(found, out_dtype)

    def _slice(self, x: Tile, i: int) -> Tile:
        return self._tl._vector("slice", _SIMPLE, lambda a: a[i], (x,), x.shape[1:], x.dtype, None)

    # --- element by element

    exp, exp2, log, log2, sqrt, rsqrt = map(_unary_function, ("exp", "exp2", "log", "log2", "sqrt", "rsqrt"))
    sin, cos, tanh, erf, floor, ceil, abs = map(_unary_function, ("sin", "cos", "tanh", "erf", "floor", "ceil", "abs"))
    sigmoid = _unary_function("sigmoid")

    def add(self, x: Any, y: Any, sanitize_overflow: bool = True) -> Any:
        """Return x + y."""
        return self._binary("add", x, y)

    def sub(self, x: Any, y: Any, sanitize_overflow: bool = True) -> Any:
        """Return x - y."""
        return self._binary("sub", x, y)

    def mul(self, x: Any, y: Any, sanitize_overflow: bool = True) -> Any:
        """Return x * y."""
        return self._binary("mul", x, y)

    def fdiv(self, x: Any, y: Any, ieee_rounding: bool = False, approx: bool = False) -> Any:
        """Return x / y."""
        return self._binary("div", x, y)

    def cdiv(self, x: Any, div: Any) -> Any:
        """Return x / div rounded up."""
        if not isinstance(x, tensor) and not isinstance(div, tensor):
            return -(-x // div)
        return (x + (div - 1)) // div

    @staticmethod
    def next_power_of_2(n: int) -> int:
        """Return the smallest power of two that is not below n."""
        return 1 << (int(n) - 1).bit_length() if n > 0 else 0

    maximum, minimum, clamp = extremes.maximum, extremes.minimum, extremes.clamp

    def fma(self, x: Any, y: Any, z: Any) -> Any:
        """Return x * y + z, rounded once."""
        return self._wrap(self._tl.fma(self._native(x), self._native(y), self._native(z)))

    def where(self, condition: Any, x: Any, y: Any) -> Any:
        """Return x where the condition holds, else y."""
        x, y = self._native(x), self._native(y)
        if isinstance(x, (Pointer, PointerTile)):
            chosen = self.where(condition, self._address(x), self._address(y))
            return pointer_of(self, self._native(chosen), pointer_type(x.dtype))
        return self._wrap(self._tl.where(self._native(condition), x, y))

    umulhi, popc, ldexp, get_int_dtype = (
        functions.umulhi, functions.popc, functions.ldexp, staticmethod(functions.get_int_dtype),
    )  # fmt: skip
    _log2 = staticmethod(functions.log2)

    # --- shape

    def reshape(self, input: Any, *shape: Any, can_reorder: bool = False) -> Any:
        """Return the values in another shape."""
        handle = self._native(input)
        sizes = self._sizes(shape)
        if isinstance(handle, PointerTile):
            return self._wrap(PointerTile(handle.base, handle.offsets.reshape(*sizes)))
        return self._wrap(self._tl.reshape(self._tl._constant(handle), *sizes))

    view = reshape

    def ravel(self, x: Any, can_reorder: bool = False) -> Any:
        """Return the values in one dim."""
        return self.reshape(x, x.numel)

    def expand_dims(self, input: Any, axis: Any) -> Any:
        """Return the values with a dim of size 1 inserted at each of `axis`."""
        axes = [axis] if not isinstance(axis, (builtins.tuple, list)) else list(axis)
        rank = len(input.shape) + len(axes)
        places = {int(a) % rank for a in axes}
        return input[builtins.tuple(None if i in places else slice(None) for i in builtins.range(rank))]

    def unsqueeze(self, x: Any, dim: int) -> Any:
        """Return the values with a dim of size 1 inserted."""
        return self.expand_dims(x, dim)

    def squeeze(self, x: Any, dim: int) -> Any:
        """Return the values without a dim of size 1."""
        shape = list(x.shape)
        if shape.pop(dim) != 1:
            raise KernelError(f"squeeze: dim {dim} of {x!r} has not the size 1")
        return self.reshape(x, *shape)

    def broadcast_to(self, input: Any, *shape: Any) -> Any:
        """Return the values repeated to a shape."""
        handle = self._native(input)
        sizes = self._sizes(shape)
        if isinstance(handle, PointerTile):
            return self._wrap(PointerTile(handle.base, self._tl.broadcast_to(handle.offsets, *sizes)))
        if isinstance(handle, Pointer):
            return self._wrap(handle + self._tl.zeros(sizes, dtypes.int32))
        return self._wrap(self._tl.broadcast_to(handle, *sizes))

    def broadcast(self, input: Any, other: Any) -> Any:
        """Return both tensors repeated to their common shape."""
        shape = broadcast_shapes("broadcast", self.to_tensor(input).shape, self.to_tensor(other).shape)
        return self.broadcast_to(input, *shape), self.broadcast_to(other, *shape)

    def trans(self, input: Any, *dims: Any) -> Any:
        """Return the tensor with its dims exchanged."""
        return self._wrap(self._tl.trans(self._tile(input), *(self._sizes(dims) if dims else ())))

    def permute(self, input: Any, *dims: Any) -> Any:
        """Return the tensor with its dims in another order."""
        return self._wrap(self._tl.permute(self._tile(input), *self._sizes(dims)))

    def cat(self, input: Any, other: Any, can_reorder: bool = False, dim: int = 0) -> Any:
        """Return one tensor after the other."""
        tiles, common = self._tl._unify("cat", (self._tile(input), self._tile(other)))
        shape = list(tiles[0].shape)
        shape[dim] += tiles[1].shape[dim]

        def joined(*arrays: np.ndarray) -> np.ndarray:
            return np.concatenate(arrays, axis=dim)

        return self._wrap(self._tl._vector("cat", _SIMPLE, joined, tiles, builtins.tuple(shape), common, common))

    def join(self, a: Any, b: Any) -> Any:
        """Return two tensors along a new last dim."""
        return self._wrap(self._tl.join(self._native(a), self._native(b)))

    def split(self, a: Any) -> Any:
        """Return the two halves of a last dim of size 2."""
        return self._wrap(self._tl.split(self._tile(a)))

    def interleave(self, a: Any, b: Any) -> Any:
        """Return the values of two tensors in turn."""
        return self._wrap(self._tl.interleave(self._native(a), self._native(b)))

    def flip(self, x: Any, dim: int | None = None) -> Any:
        """Return the values in opposite order."""
        return self._wrap(self._tl.flip(self._tile(x), dim))

    def gather(self, src: Any, index: Any, axis: int) -> Any:
        """Return the values at places along an axis."""
        return self._wrap(self._tl.gather(self._tile(src), self._tile(index), axis))

    def item(self, input: Any) -> Any:
        """Return the one value of a tensor as a scalar."""
        return self.reshape(input, [])

    def swizzle2d(self, i: Any, j: Any, size_i: Any, size_j: Any, size_g: Any) -> Any:
        """Return where a row-major place is if rows are visited in groups."""
        place = i * size_j + j
        in_group = size_g * size_j
        first = place // in_group * size_g
        rows = self.minimum(size_i - first, size_g)
        return first + place % in_group % rows, place % in_group // rows

    # --- reductions and scans

    def sum(self, input: Any, axis: Any = None, keep_dims: bool = False, dtype: Any = None) -> Any:
        """Return the sum."""
        x = self._tile(input)
        return self._wrap(self._tl.sum(x, axis, keep_dims, type_of_sum(x.dtype, dtype)))

    max, min, argmax, argmin = extremes.max, extremes.min, extremes.argmax, extremes.argmin

    def xor_sum(self, input: Any, axis: Any = None, keep_dims: bool = False) -> Any:
        """Return the exclusive or of all values."""
        x = self._tile(input)
        return self._wrap(self._tl._reduce("xor_sum", np.bitwise_xor.reduce, x, axis, keep_dims, x.dtype))

    def reduce_or(self, input: Any, axis: Any = None, keep_dims: bool = False) -> Any:
        """Return the bitwise or of all values."""
        x = self._tile(input)
        return self._wrap(self._tl._reduce("reduce_or", np.bitwise_or.reduce, x, axis, keep_dims, x.dtype))

    def _combining(self, combine_fn: Callable[..., Any]) -> Callable[..., Any]:
        """Return the user's function of tensors as one of tiles."""

        def combine(*tiles: Tile) -> Any:
            counting, self._counting = self._counting, True
            try:
                found = combine_fn(*[tensor(self, tile, of_native(tile.dtype)) for tile in tiles])
            finally:
                self._counting = counting
            return self._native(builtins.tuple(found) if isinstance(found, list) else found)

        return combine

    def reduce(self, input: Any, axis: Any, combine_fn: Callable[..., Any], keep_dims: bool = False) -> Any:
        """Return what a function makes of all values along an axis."""
        tiles = self._tiles(input)
        return self._wrap(self._tl.reduce(tiles, axis, self._combining(combine_fn), keep_dims))

    def associative_scan(self, input: Any, axis: int, combine_fn: Callable[..., Any], reverse: bool = False) -> Any:
        """Return the running results of a function along an axis."""
        tiles = self._tiles(input)
        return self._wrap(self._tl.associative_scan(tiles, axis, self._combining(combine_fn), reverse))

    def _tiles(self, input: Any) -> Any:
        if isinstance(input, (builtins.tuple, list)):
            return builtins.tuple(self._tile(x) for x in input)
        return self._tile(input)

    def cumsum(self, input: Any, axis: int = 0, reverse: bool = False, dtype: Any = None) -> Any:
        """Return the running sum."""
        return self._cumulative(tile_ops.cumsum, input, axis, reverse, dtype)

    def cumprod(self, input: Any, axis: int = 0, reverse: bool = False, dtype: Any = None) -> Any:
        """Return the running product."""
        return self._cumulative(tile_ops.cumprod, input, axis, reverse, dtype)

    def _cumulative(self, function: Any, input: Any, axis: int, reverse: bool, dtype: Any) -> Any:
        x = self._tile(input)
        return self._wrap(function(self._tl, x, axis, reverse, type_of_sum(x.dtype, dtype)))

    def softmax(self, x: Any, dim: int | None = None, keep_dims: bool = False, ieee_rounding: bool = False) -> Any:
        """Return softmax along a dim, the first unless given."""
        return self._wrap(self._tl.softmax(self._wide(x), dim))

    def sort(self, x: Any, dim: int | None = None, descending: bool = False) -> Any:
        """Return the values sorted along the last dim."""
        return self._wrap(self._tl.sort(self._tile(x), dim, bool(descending)))

    def topk(self, x: Any, k: int, dim: int | None = None, descending: bool = True) -> Any:
        """Return the largest values along the last dim, sorted."""
        return self._wrap(self._tl.topk(self._wide(x), int(k), dim, bool(descending)))

    histogram = functions.histogram
    randint, randint4x, rand, rand4x = random.randint, random.randint4x, random.rand, random.rand4x
    randn, randn4x, philox = random.randn, random.randn4x, random.philox
    pair_uniform_to_normal, uint_to_uniform_float = random.pair_uniform_to_normal, random.uint_to_uniform_float


def _fits(value: int, kind: Any) -> bool:
    low: int = kind.get_int_min_value()
    high: int = kind.get_int_max_value()
    return low <= value <= high


def _any_tensor(*values: Any) -> bool:
    return any(isinstance(value, tensor) for value in values)


def _method(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of the language as a method of a tensor."""

    def method(self: tensor, *args: Any, **options: Any) -> Any:
        return function(self._lang, self, *args, **options)

    return method


def _of_descriptor(function: Callable[..., Any]) -> Callable[..., None]:
    """Return an atomic operation as a method of a tensor descriptor."""

    def method(self: tensor_descriptor, offsets: Sequence[Any], value: Any) -> None:
        pointers, mask = self.at(offsets).pointers(builtins.range(len(self.block_shape)))
        function(self.lang, pointers, value, mask)

    return method


_ATOMICS = {
    "atomic_add": TLContext.atomic_add, "atomic_max": TLContext.atomic_max, "atomic_min": TLContext.atomic_min,
    "atomic_and": TLContext.atomic_and, "atomic_or": TLContext.atomic_or, "atomic_xor": TLContext.atomic_xor,
    "atomic_xchg": TLContext.atomic_xchg,
}  # fmt: skip
_ON_BLOCKS = (
    Language.atomic_add, Language.atomic_max, Language.atomic_min, Language.atomic_and, Language.atomic_or,
    Language.atomic_xor,
)  # fmt: skip
for _function in _ON_BLOCKS:
    setattr(tensor_descriptor, _function.__name__, _of_descriptor(_function))
for _function in (
    *_ON_BLOCKS, Language.atomic_xchg, Language.atomic_cas, Language.abs, Language.argmax, Language.argmin,
    Language.associative_scan, Language.broadcast_to, Language.cast, Language.cdiv, Language.ceil, Language.cos,
    Language.cumprod, Language.cumsum, Language.erf, Language.exp, Language.exp2, Language.expand_dims, Language.flip,
    Language.floor, Language.gather, Language.histogram, Language.item, Language.log, Language.log2, Language.max,
    Language.min, Language.permute, Language.ravel, Language.reduce, Language.reduce_or, Language.reshape,
    Language.rsqrt, Language.sigmoid, Language.sin, Language.softmax, Language.split, Language.sqrt, Language.squeeze,
    Language.store, Language.sum, Language.trans, Language.unsqueeze, Language.xor_sum,
):  # fmt: skip
    setattr(tensor, _function.__name__, _method(_function))
tensor.view = _method(Language.reshape)  # type: ignore[attr-defined]
tensor.sqrt_rn = _method(Language.sqrt)  # type: ignore[attr-defined]
