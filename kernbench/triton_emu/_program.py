"""One program of a launch: its backend, the creation of tiles, and the functions of PE_MATH.

16- and 8-bit floats are computed in f32 and rounded once per function. A result of constants is a constant, at no cost.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from functools import cache, lru_cache, partial, reduce
from math import prod
from operator import index
from typing import Any, NamedTuple, cast

import numpy as np

from kernbench._dtypes import (
    DType,
    DTypeLike,
    PointerType,
    as_dtype,
    bool_,
    float32,
    int32,
    int64,
)
from kernbench.components._command import Backend, Command, Value, Vector, VectorOp
from kernbench.errors import KernelError
from kernbench.sim_engine._user_code import line_text, user_line
from kernbench.triton_emu._handles import Pointer, PointerTile, Tensor, Tile, address, pointers_of, shape_text
from kernbench.triton_emu._places import Affine, Pieces, Places, Shape, combined, everywhere
from kernbench.triton_emu._promotion import dtype_of, fits, kind, limits, promote, promote_scalar, sum_dtype, wide


@lru_cache(maxsize=4096, typed=True)
def _rounded(x: float, negative: bool, dtype: DType) -> Value:
    """Return a number as a constant; `negative` distinguishes -0.0 from 0.0, which are equal as keys."""
    with np.errstate(all="ignore"):
        array = dtype.round(np.asarray(x))
    array.flags.writeable = False
    return Value((), dtype, array, 0)


@cache
def work_of(kinds: tuple[str, ...], elements: int, itemsize: int) -> tuple[VectorOp, ...]:
    return tuple(VectorOp(kind, elements, itemsize) for kind in kinds)


def shape_of(shape: int | Sequence[int]) -> Shape:
    sizes: Shape = tuple(shape) if isinstance(shape, (tuple, list)) else (cast("int", shape),)
    for size in sizes:
        if type(size) is not int:
            sizes = tuple(map(index, sizes))
            break
    for size in sizes:
        if size < 1:
            raise KernelError(f"shape {tuple(sizes)}: every size must be at least 1")
    return sizes


@cache
def broadcast_shape(name: str, *shapes: Shape) -> Shape:
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
    """Call `tell(value, done_ps)` once `value` is complete; immediately if it is."""
    if value.done_ps >= 0:
        tell(value, value.done_ps)
        return
    # The producing command holds the value until then; a strong reference here would be a cycle.
    held = weakref.ref(value)

    def complete(t: int, _: int) -> None:
        done = held()
        assert done is not None
        tell(done, t)

    value.waiters += (complete,)


class _Ended:
    """The backend of a program that has ended; it refuses commands."""

    def submit(self, _command: Command) -> None:
        raise _ended()

    def block(self, _on: Value | Command) -> None:
        raise _ended()

    def drop(self, _value: Value) -> None:
        """Do nothing: the end of the program has freed all of its space."""


def _ended() -> KernelError:
    return KernelError(
        "this tl, or tile, belongs to a program that has ended; use the tl that the kernel gets, and keep values in "
        "memory between launches"
    )


Function = Callable[..., np.ndarray]

_GENERIC = np.generic
_NUMBERS = (bool, int, float, _GENERIC)
_SIMPLE, _SLOW, _REDUCE = ("simple",), ("slow",), ("reduce",)


def _truncated(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Integer division rounded towards zero, as the hardware and Triton do it."""
    return (a - np.fmod(a, b)) // b


class _Fault(NamedTuple):
    """Second operands for which an integer operation has no result."""

    found: Callable[[np.ndarray], np.ndarray]
    message: str


_FAULTS = {
    "divisor": _Fault(
        lambda b: b == 0,
        "divisors are 0, and an integer has no quotient then; replace them first: tl.where(b == 0, 1, b)",
    ),
    "shift": _Fault(
        lambda b: b < 0,
        "shifts are negative, and a shift by less than 0 bits has no result; shift the other way, or replace them "
        "first: tl.maximum(b, 0)",
    ),
}
_CHECKED = {"floordiv": "divisor", "mod": "divisor", "shl": "shift", "shr": "shift"}


def _checked(name: str, function: Function, undefined: np.ndarray | None) -> Function:
    """Wrap an operation to raise on faults, except in `undefined` elements; errors name the user's line."""
    line, fault = user_line(), _FAULTS[_CHECKED[name]]

    def compute(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        faults = fault.found(b)
        if undefined is not None:
            faults = faults & ~undefined
        n = np.count_nonzero(faults)
        if n:
            raise KernelError(f"{line_text(line)}: {name}: {n} of {faults.size} {fault.message}")
        return function(a, b)

    return compute


def _rounding(
    function: Function, operands: Sequence[Tile], shape: Shape, dtype: DType, operand_dtype: DType | None
) -> Function:
    """Wrap `function` to round operands to `operand_dtype` (None: unchanged) and the result to `dtype`."""
    takes = [(t.shape, None if t.dtype is operand_dtype else operand_dtype) for t in operands]
    # A function of unconverted values of the result's type only moves them: no rounding.
    moves = operand_dtype is None and all(t.dtype is dtype for t in operands)

    def compute(*arrays: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            args = [
                a.reshape(s) if d is None else d.round(a.reshape(s)) for a, (s, d) in zip(arrays, takes, strict=True)
            ]
            values = function(*args)
            return (values if moves else dtype.round(values)).reshape(shape)

    return compute


def _either(tiles: Sequence[Tile], shape: Shape) -> np.ndarray | None:
    """Union of the operands' undefined elements, broadcast to `shape`; None if there are none."""
    for t in tiles:
        if t._undefined is not None:
            break
    else:
        return None
    parts = [t._undefined for t in tiles if t._undefined is not None]
    union = reduce(np.logical_or, parts)
    return union if union.shape == shape else np.broadcast_to(union, shape)


def _shape(name: str, tiles: Sequence[Tile]) -> Shape:
    """Shape of an elementwise function of `tiles`."""
    shape: Shape = ()
    for t in tiles:
        if t.shape and t.shape != shape:
            if shape:
                return broadcast_shape(name, *[t.shape for t in tiles])
            shape = t.shape
    return shape


def _are_uniform(tiles: Sequence[Tile]) -> bool:
    """Whether these are constants whose elements are all equal, by their layout."""
    for t in tiles:
        if not t._constant or t._undefined is not None:
            return False
    return not any(stride for t in tiles for stride in t._array().strides)


def _arithmetic_shift(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Arithmetic shift of integers whose common type is unsigned."""
    signed = np.dtype(f"i{a.dtype.itemsize}")
    shifted: np.ndarray = np.right_shift(a.view(signed), b.view(signed))
    return shifted.view(a.dtype)


_BINARY: dict[str, tuple[tuple[str, ...], Function]] = {
    "add": (_SIMPLE, np.add),
    "sub": (_SIMPLE, np.subtract),
    "mul": (_SIMPLE, np.multiply),
    "div": (_SLOW, np.divide),
    "floordiv": (_SLOW, _truncated),
    "mod": (_SLOW, np.fmod),
    "and": (_SIMPLE, np.bitwise_and),
    "or": (_SIMPLE, np.bitwise_or),
    "xor": (_SIMPLE, np.bitwise_xor),
    "shl": (_SIMPLE, np.left_shift),
    "shr": (_SIMPLE, np.right_shift),
    "lt": (_SIMPLE, np.less),
    "le": (_SIMPLE, np.less_equal),
    "gt": (_SIMPLE, np.greater),
    "ge": (_SIMPLE, np.greater_equal),
    "eq": (_SIMPLE, np.equal),
    "ne": (_SIMPLE, np.not_equal),
}
_COMPARE = frozenset(("lt", "le", "gt", "ge", "eq", "ne"))
_KNOWN = frozenset(("add", "sub", "mul", "lt", "le", "gt", "ge", "and"))  # on symbolic constants
_INTEGER = frozenset(("floordiv", "and", "or", "xor", "shl", "shr", "not"))


def _places_of(tile: Tile) -> Places | None:
    """Symbolic form of a constant tile; a scalar integer is affine."""
    if tile._places is None and not tile.shape and tile._constant and kind(tile.dtype) == 1:
        return Affine(int(tile._array()), (), ())
    return tile._places


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _erf(x: np.ndarray) -> np.ndarray:
    return np.frompyfunc(math.erf, 1, 1)(x).astype(x.dtype)


def _softmax(x: np.ndarray, axis: int) -> np.ndarray:
    e = np.exp(x - np.fmax.reduce(x, axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def _fused(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Multiply and add with one rounding: f32 products are exact in f64."""
    wide = np.float64 if x.dtype == np.float32 else x.dtype
    return x.astype(wide) * y + z


def _elementwise(
    name: str, kinds: tuple[str, ...], function: Function, doc: str, takes: str = "float"
) -> Callable[[Program, Any], Tile]:
    """Make a function of `tl`: one operation of PE_MATH on one operand; `takes` is float, integer or either."""

    def operation(self: Program, x: Any) -> Tile:
        tile = self._constant(x)
        if takes == "float" and not tile.dtype.is_floating_point:
            raise KernelError(f"tl.{name} takes a float, got {tile!r}; convert it first: x.to(tl.float32)")
        if takes == "integer" and tile.dtype.is_floating_point:
            raise KernelError(f"~ takes integers, got {tile!r}")
        return self._by_element(name, kinds, function, (tile,), tile.shape, tile.dtype, tile.dtype)

    operation.__name__, operation.__doc__ = name, doc
    return operation


def _operation(name: str, doc: str) -> Callable[..., Tile]:
    def function(self: Program, x: Any, y: Any, sanitize_overflow: bool = True, ieee_rounding: bool = False) -> Tile:
        return self._binary(name, x, y)

    function.__name__, function.__doc__ = name, doc
    return function


class Program:
    """One program of a launch: the backend of its commands, and functions on its tiles."""

    def __init__(self, backend: Backend) -> None:
        self._data, self._open = backend.data, True
        self._use(backend)
        self._trace: list[str] | None = None  # operations on constants, while those of a user's function are counted

    def _end(self) -> None:
        self._open = False
        self._use(_Ended())

    def _use(self, backend: Backend | _Ended) -> None:
        """Keep the methods of a backend: every command calls them."""
        self._submit, self._block, self._drop = backend.submit, backend.block, backend.drop

    def _own(self, *operands: object) -> None:
        for x in operands:
            if isinstance(x, Tile) and x._tl is not self and not x._constant:
                if not (self._open and x._tl._open):
                    raise _ended()
                raise KernelError(f"{x!r} belongs to another program; pass values through memory or queues")

    def _fold(self, array: np.ndarray, dtype: DType) -> Tile:
        """Return a constant; `array` is in the carrier type, rounded to `dtype`."""
        return self._known(Value(array.shape, dtype, array, 0))

    def _known(self, value: Value) -> Tile:
        tile = Tile.__new__(Tile)
        tile.opens(self, value)
        tile._constant = True
        return tile

    def _placed(self, places: Places, dtype: DType, kinds: tuple[str, ...] = ()) -> Tile:
        """Return a symbolic constant; `kinds` are the operations that computed it."""
        if self._trace is not None:
            self._trace += kinds
        return Tile(self, Value(places.shape, dtype, None, 0), True, places=places)

    def _constant(self, x: Any) -> Tile:
        if isinstance(x, Tile):
            return x
        number = x.item() if isinstance(x, np.generic) else x
        if not isinstance(number, (bool, int, float)):
            raise KernelError(
                f"expected a tile or a number, got {x!r} ({type(x).__name__}); load what a pointer points to first"
            )
        return self._scalar(number, dtype_of(number))

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
        fold: bool = True,
    ) -> Tile:
        """Return `function` of the operands: folded if all are constants (and `fold`), else a vector command.

        Each operand is rounded to `operand_dtype` first (None: as it is), the result to `dtype`. `kinds` are the
        operations of PE_MATH, on `elements` (default: those of the result) of the wider of the two types.
        """
        constant = fold
        for t in operands:
            if not t._constant:
                constant = False
        compute = _rounding(function, operands, shape, dtype, operand_dtype) if constant or self._data else None
        if constant:
            assert compute is not None
            if self._trace is not None:
                self._trace += kinds
            return self._fold(compute(*[t._array() for t in operands]), dtype)
        for t in operands:
            if t._tl is not self:
                self._own(t)
        out = Value.__new__(Value)
        out.opens(shape, dtype)
        itemsize = dtype.itemsize
        count = out.nbytes // itemsize if elements is None else elements
        if operand_dtype is not None and operand_dtype is not dtype:
            itemsize = max(itemsize, operand_dtype.itemsize)
        values = tuple([t._held if t._places is None else t._value for t in operands])
        command = Vector.__new__(Vector)
        command.opens(name, values, out, compute, "")
        command.flops, command.work = count, work_of(kinds, count, itemsize)
        self._submit(command)
        tile = Tile.__new__(Tile)
        tile.opens(self, out)
        return tile

    def _by_element(
        self, name: str, kinds: tuple[str, ...], function: Function, operands: Sequence[Tile], shape: Shape,
        dtype: DType, operand_dtype: DType | None,
    ) -> Tile:  # fmt: skip
        """As `_vector`, for an elementwise function: undefined elements propagate."""
        out = self._vector(name, kinds, function, operands, shape, dtype, operand_dtype)
        out._undefined = _either(operands, shape)
        return out

    # --- functions on tiles: Triton's, for floats of all widths

    def _binary(self, operation: str, a: Any, b: Any) -> Tile:
        name, division = operation, operation in ("div", "mod")
        if isinstance(a, Tile) and isinstance(b, Tile):
            first, second = a, b
            dtype = promote(first.dtype, second.dtype, division)
        else:
            (first, second), dtype = self._unify(name, (a, b), division)
        if dtype is bool_ and name in ("add", "sub"):
            name = "xor"  # one bit, which wraps
        kinds, function = _BINARY[name]
        if name == "shr" and first.dtype.is_int_signed() and dtype.is_int_unsigned():
            function = _arithmetic_shift
        if name == "div" and not dtype.is_floating_point:
            dtype = float32
        operands = first, second
        shape, out = _shape(name, operands), bool_ if name in _COMPARE else dtype
        if not dtype.is_floating_point:
            if name in _KNOWN and (first._places is not None or second._places is not None):
                found = combined(name, _places_of(first), _places_of(second), shape, limits(dtype))
                if found is not None:
                    return self._placed(found, out, kinds)
            if name in _CHECKED:
                function = _checked(name, function, _either(operands, shape))
        elif name in _INTEGER:
            raise KernelError(f"{name} takes integers, got {first!r} and {second!r}")
        elif shape and _are_uniform(operands):
            ones = [self._fold(np.asarray(t._array()[(0,) * len(t.shape)]), t.dtype) for t in operands]
            one = self._by_element(name, kinds, function, ones, (), out, dtype)
            return self._fold(np.broadcast_to(one._array(), shape), out)
        return self._by_element(name, kinds, function, operands, shape, out, dtype)

    def _scalar(self, x: float, dtype: DType) -> Tile:
        return self._known(_rounded(x, x < 0 or (x == 0 and math.copysign(1, x) < 0), dtype))

    def _unify(self, name: str, operands: Sequence[Any], division: bool = False) -> tuple[list[Tile], DType]:
        """Convert operands to tiles; numbers are rounded to the common type, which is returned, too."""
        dtype = None
        for x in operands:
            if isinstance(x, Tile):
                tile = x
                if tile.dtype is not dtype:
                    dtype = promote(tile.dtype, tile.dtype if dtype is None else dtype, division)
            elif not isinstance(x, _NUMBERS):
                raise KernelError(
                    f"{name}: expected a tile or a number, got {x!r}; load what a pointer points to first"
                )
        for x in operands:
            if not isinstance(x, Tile):
                number = x.item() if isinstance(x, _GENERIC) else x
                dtype = promote_scalar(dtype_of(number) if dtype is None else dtype, number, division)
        assert dtype is not None
        return [x if isinstance(x, Tile) else self._scalar(x, dtype) for x in operands], dtype

    def to_tensor(self, x: Any) -> Any:
        """Return a number as a scalar tile; a tile or pointer unchanged."""
        return x if isinstance(x, (Pointer, PointerTile)) else self._constant(x)

    # --- making constants

    def arange(self, start: int, end: int) -> Tile:
        """Return start, start + 1, ... end - 1 as i32; any length, not only powers of two."""
        low, high = index(start), index(end)
        shape_of(high - low)
        if not (fits(low, int32) and fits(high - 1, int32)):
            return self._fold(np.arange(low, high, dtype=np.int32), int32)
        return self._placed(Affine(low, (high - low,), (int(high - low > 1),)), int32)

    def constant(self, values: np.ndarray | Affine | Pieces) -> Tile:
        """Return integers that the host knows, as i64: a constant, as the results of `arange`."""
        if isinstance(values, (Affine, Pieces)):
            return self._placed(values, int64)
        return self._fold(np.asarray(values, np.int64), int64)

    def full(self, shape: int | Sequence[int], value: Any, dtype: DTypeLike) -> Tile:
        """Return a tile filled with `value`, a number or a scalar tile."""
        dt, sizes = as_dtype(dtype), shape_of(shape)
        if isinstance(value, Tile) and value.shape:
            raise KernelError(f"full takes a number or a scalar, got {value!r}")
        if isinstance(value, Tile) and not value._constant:
            return self._vector("full", _SIMPLE, lambda x: np.broadcast_to(x, sizes), (value,), sizes, dt, None)
        filled = self._scalar(value._number() if isinstance(value, Tile) else value, dt)._array()
        if sizes and not dt.is_floating_point:
            return self._placed(everywhere(filled.item(), sizes), dt)
        return self._fold(np.broadcast_to(filled, sizes), dt)

    def zeros(self, shape: int | Sequence[int], dtype: DTypeLike) -> Tile:
        """Return a tile of zeros."""
        return self.full(shape, 0, dtype)

    def zeros_like(self, input: Tile) -> Tile:
        """Return a tile of zeros of the shape and type of another."""
        return self.full(input.shape, 0, input.dtype)

    # --- element by element

    exp = _elementwise("exp", _SLOW, np.exp, "Return e to the power x.")
    exp2 = _elementwise("exp2", _SLOW, np.exp2, "Return 2 to the power x.")
    log = _elementwise("log", _SLOW, np.log, "Return the natural logarithm.")
    log2 = _elementwise("log2", _SLOW, np.log2, "Return the logarithm to base 2.")
    sqrt = _elementwise("sqrt", _SLOW, np.sqrt, "Return the square root.")
    rsqrt = _elementwise("rsqrt", _SLOW, lambda x: 1 / np.sqrt(x), "Return 1 / sqrt(x), one slow operation.")
    sigmoid = _elementwise(
        "sigmoid", ("slow", "simple", "slow"), sigmoid, "Return 1 / (1 + exp(-x)): exp, add and divide."
    )
    sin = _elementwise("sin", _SLOW, np.sin, "Return the sine of x [rad].")
    cos = _elementwise("cos", _SLOW, np.cos, "Return the cosine of x [rad].")
    tanh = _elementwise("tanh", _SLOW, np.tanh, "Return the hyperbolic tangent.")
    erf = _elementwise("erf", _SLOW, _erf, "Return the error function.")
    floor = _elementwise("floor", _SIMPLE, np.floor, "Return the largest whole number that is not above x.")
    ceil = _elementwise("ceil", _SIMPLE, np.ceil, "Return the smallest whole number that is not below x.")
    abs = _elementwise("abs", _SIMPLE, np.abs, "Return |x|.", "either")
    _neg = _elementwise("neg", _SIMPLE, np.negative, "Return -x.", "either")
    _not = _elementwise("not", _SIMPLE, np.invert, "Return ~x.", "integer")

    def maximum(self, x: Any, y: Any, propagate_nan: int = 0) -> Tile:
        """Return the elementwise maximum; where one operand is NaN, the other (as Triton, unlike numpy.maximum).

        With `PropagateNan.ALL`, NaN where either is NaN; the same holds for `minimum` and `clamp`.
        """
        return self._mixed("maximum", _SIMPLE, np.maximum if propagate_nan else np.fmax, (x, y))

    def minimum(self, x: Any, y: Any, propagate_nan: int = 0) -> Tile:
        """Return the elementwise minimum; where one operand is NaN, the other (as Triton, unlike numpy.minimum)."""
        return self._mixed("minimum", _SIMPLE, np.minimum if propagate_nan else np.fmin, (x, y))

    def clamp(self, x: Any, min: Any, max: Any, propagate_nan: int = 0) -> Tile:
        """Return x limited to [min, max]: two simple operations."""
        lower, upper = (np.minimum, np.maximum) if propagate_nan else (np.fmin, np.fmax)
        return self._mixed("clamp", ("simple", "simple"), lambda v, lo, hi: lower(upper(v, lo), hi), (x, min, max))

    add = _operation("add", "Return x + y.")
    sub = _operation("sub", "Return x - y.")
    mul = _operation("mul", "Return x * y.")
    fdiv = _operation("div", "Return x / y.")

    def logical_and(self, x: Any, y: Any) -> Any:
        """Return whether both are nonzero."""
        return (x != 0) & (self.to_tensor(y) != 0)

    def logical_or(self, x: Any, y: Any) -> Any:
        """Return whether either is nonzero."""
        return (x != 0) | (self.to_tensor(y) != 0)

    def fma(self, x: Any, y: Any, z: Any) -> Tile:
        """Return x * y + z, rounded once."""
        return self._mixed("fma", _SIMPLE, _fused, (x, y, z))

    def where(self, condition: Any, x: Any, y: Any) -> Tile:
        """Return x where `condition` holds, else y; both are evaluated. Pointers work, too."""
        if isinstance(x, (Pointer, PointerTile)):
            return pointers_of(self.where(condition, self.cast(x, int64), self.cast(y, int64)), x.element_ty, x._tl)
        holds = self._constant(condition)
        if holds.dtype is not bool_:
            holds = self._binary("ne", holds, 0)
        (first, second), dtype = self._unify("where", (x, y))
        shape = broadcast_shape("where", holds.shape, first.shape, second.shape)

        def choose(c: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
            return np.where(c, dtype.round(a), dtype.round(b))

        return self._by_element("where", _SIMPLE, choose, (holds, first, second), shape, dtype, None)

    def cast(
        self, input: Any, dtype: DTypeLike | PointerType, fp_downcast_rounding: str | None = None, bitcast: bool = False
    ) -> Tile:
        """Convert to another type: to nearest even, towards zero for integers, nonzero for bool.

        With `bitcast` the bits are kept, at no cost. Integers become pointers, and pointers integers or other pointers.
        """
        if fp_downcast_rounding not in (None, "rtne"):
            raise KernelError(f"fp_downcast_rounding={fp_downcast_rounding!r} is not supported; use rtne")
        if isinstance(dtype, PointerType):
            return pointers_of(input, dtype.element_ty, input._tl if isinstance(input, Tensor) else None)
        tile, dt = input if isinstance(input, Tile) else self._constant(address(input)), as_dtype(dtype)
        if tile.dtype is dt:
            return tile
        if bitcast:
            return self._bits(tile, dt)
        if isinstance(tile._places, Affine) and kind(dt) == 1 and tile._places.are_in(*limits(dt)):
            return self._placed(tile._places, dt, _SIMPLE)
        function: Function = (lambda a: a != 0) if dt is bool_ else (lambda a: a)
        return self._by_element("cast", _SIMPLE, function, (tile,), tile.shape, dt, tile.dtype)

    def _bits(self, tile: Tile, dtype: DType) -> Tile:
        source = tile.dtype
        if source.itemsize != dtype.itemsize:
            raise KernelError(f"a bitcast keeps the number of bits, got {source} and {dtype}")

        def bits(a: np.ndarray) -> np.ndarray:
            found: np.ndarray = np.ascontiguousarray(a.astype(source.numpy)).view(dtype.numpy)
            return found.reshape(a.shape)

        return self._vector("bitcast", (), bits, (tile,), tile.shape, dtype, None)

    def cdiv(self, x: Any, div: Any) -> Any:
        """Return x / div rounded up, of integers."""
        if isinstance(x, Tile) or isinstance(div, Tile):
            return self._binary("floordiv", self._binary("add", x, self._binary("sub", div, 1)), div)
        return -(-x // div)

    def _mixed(self, name: str, kinds: tuple[str, ...], function: Function, operands: Sequence[Any]) -> Tile:
        tiles, dtype = self._unify(name, operands)
        return self._by_element(name, kinds, function, tiles, _shape(name, tiles), dtype, dtype)

    # --- shape

    def reshape(self, input: Any, *shape: Any, can_reorder: bool = False) -> Any:
        """Return the same values, row by row, under another shape; free. Pointers work, too."""
        if isinstance(input, PointerTile):
            return PointerTile(input.base, self.reshape(input.offsets, *shape))
        x, sizes = self._constant(input), shape_of(shape[0] if len(shape) == 1 else shape)
        if prod(sizes) != prod(x.shape):
            raise KernelError(f"reshape: {x!r} has {prod(x.shape)} values, shape {sizes} takes {prod(sizes)}")
        return x._view(sizes)

    view = reshape

    def item(self, input: Any) -> Any:
        """Return the single value of a tile as a scalar tile; use `float(x)` or `int(x)` for a Python number."""
        return self.reshape(input, [])

    def ravel(self, x: Any, can_reorder: bool = False) -> Any:
        """Flatten; free."""
        return self.reshape(x, x.numel)

    def expand_dims(self, input: Any, axis: Any) -> Any:
        """Insert an axis of size 1 at each of `axis`; free."""
        axes = axis if isinstance(axis, (tuple, list)) else (axis,)
        rank = len(input.shape) + len(axes)
        places = {int(a) % rank for a in axes}
        return input[tuple(None if i in places else slice(None) for i in range(rank))]

    unsqueeze = expand_dims

    def squeeze(self, x: Any, dim: int) -> Any:
        """Remove an axis of size 1; free."""
        shape = list(x.shape)
        if shape.pop(dim) != 1:
            raise KernelError(f"squeeze: dim {dim} of {x!r} has not the size 1")
        return self.reshape(x, shape)

    def trans(self, input: Any, *dims: Any) -> Tile:
        """Return the transpose of a matrix, or the axes of any tile in the order `dims`: one simple operation."""
        if not dims and len(input.shape) != 2:
            raise KernelError(f"trans takes a matrix, or the order of the axes, got {input!r}")
        return self.permute(input, *dims) if dims else self._permuted("trans", self._constant(input), (1, 0))

    def permute(self, input: Any, *dims: Any) -> Tile:
        """Return the axes of a tile in the order `dims`: one simple operation."""
        x = self._constant(input)
        order = tuple(map(index, dims[0] if len(dims) == 1 and isinstance(dims[0], (tuple, list)) else dims))
        if sorted(order) != list(range(len(x.shape))):
            raise KernelError(f"permute: {order} is not an order of the axes of {x!r}")
        return self._permuted("trans" if order == (1, 0) else "permute", x, order)

    def _permuted(self, name: str, x: Tile, order: Shape) -> Tile:
        shape = tuple([x.shape[axis] for axis in order])
        return self._vector(name, _SIMPLE, partial(np.transpose, axes=order), (x,), shape, x.dtype, None)

    def broadcast_to(self, input: Any, *shape: Any) -> Any:
        """Broadcast to `shape`: one simple operation; operators broadcast without it, for free."""
        if isinstance(input, Pointer):
            return input + self.zeros(shape[0] if len(shape) == 1 else shape, int32)
        if isinstance(input, PointerTile):
            return PointerTile(input.base, self.broadcast_to(input.offsets, *shape))
        tile, sizes = self._constant(input), shape_of(shape[0] if len(shape) == 1 else shape)
        if tile.shape == sizes:
            return tile
        if broadcast_shape("broadcast_to", tile.shape, sizes) != sizes:
            raise KernelError(f"broadcast_to: {tile!r} does not broadcast to {shape_text(sizes)}")
        if tile._places is not None and not isinstance(tile._places, Pieces):
            return self._placed(tile._places.spread(sizes), tile.dtype, _SIMPLE)
        return self._vector(
            "broadcast_to", _SIMPLE, lambda a: np.broadcast_to(a, sizes), (tile,), sizes, tile.dtype, None
        )

    def broadcast(self, input: Any, other: Any) -> tuple[Any, Any]:
        """Broadcast both tiles to their common shape."""
        shape = broadcast_shape("broadcast", self.to_tensor(input).shape, self.to_tensor(other).shape)
        return self.broadcast_to(input, shape), self.broadcast_to(other, shape)

    # --- reductions

    def sum(self, input: Any, axis: int | None = None, keep_dims: bool = False, dtype: DTypeLike | None = None) -> Tile:
        """Return the sum; integers below 32 bit give i32 (unsigned and bool: u32), other types are kept.

        Floats accumulate in f32 (f64 in f64) and are rounded once.
        """
        x = self._constant(input)
        out = sum_dtype(x.dtype, dtype)
        return self._reduce("sum", lambda a, **how: np.sum(a, dtype=out.carrier, **how), x, axis, keep_dims, out)

    def max(
        self, input: Any, axis: int | None = None, return_indices: bool = False,
        return_indices_tie_break_left: bool = True, keep_dims: bool = False, propagate_nan: int = 0,
    ) -> Any:  # fmt: skip
        """Return the largest value, in at least 32 bits, or with `return_indices` in x's type, and its index.

        NaN only where all are, or with `PropagateNan.ALL` where one is.
        """
        return self._extreme("max", np.maximum if propagate_nan else np.fmax, input, axis, return_indices, keep_dims)

    def min(
        self, input: Any, axis: int | None = None, return_indices: bool = False,
        return_indices_tie_break_left: bool = True, keep_dims: bool = False, propagate_nan: int = 0,
    ) -> Any:  # fmt: skip
        """Return the smallest value; otherwise as `max`."""
        return self._extreme("min", np.minimum if propagate_nan else np.fmin, input, axis, return_indices, keep_dims)

    def _extreme(self, name: str, function: np.ufunc, input: Any, axis: int | None, places: bool, keep: bool) -> Any:
        x = self._constant(input)
        value = self._reduce(name, function.reduce, x, axis, keep, x.dtype if places else wide(x.dtype))
        return (value, self._place(f"arg{name}", x, axis, keep)) if places else value

    def argmax(self, input: Any, axis: int | None, tie_break_left: bool = True, keep_dims: bool = False) -> Tile:
        """Return the index of the first largest value, ignoring NaN, as i32."""
        return self._place("argmax", self._constant(input), axis, keep_dims)

    def argmin(self, input: Any, axis: int | None, tie_break_left: bool = True, keep_dims: bool = False) -> Tile:
        """Return the index of the first smallest value, ignoring NaN, as i32."""
        return self._place("argmin", self._constant(input), axis, keep_dims)

    def _place(self, name: str, x: Tile, axis: int | None, keep: bool) -> Tile:
        function, nan = (np.argmax, -math.inf) if name == "argmax" else (np.argmin, math.inf)
        floating = x.dtype.is_floating_point

        def find(a: np.ndarray, axis: tuple[int, ...]) -> np.ndarray:
            seen = np.where(np.isnan(a), nan, a) if floating else a
            return np.asarray(function(seen, axis=axis[0]) if len(axis) == 1 else function(seen))

        return self._reduce(name, find, x, axis, keep, int32)

    def xor_sum(self, input: Any, axis: int | None = None, keep_dims: bool = False) -> Tile:
        """Return the exclusive or of all values."""
        return self._reduce("xor_sum", np.bitwise_xor.reduce, self._constant(input), axis, keep_dims)

    def reduce_or(self, input: Any, axis: int | None = None, keep_dims: bool = False) -> Tile:
        """Return the bitwise or of all values."""
        return self._reduce("reduce_or", np.bitwise_or.reduce, self._constant(input), axis, keep_dims)

    def softmax(self, x: Any, dim: int | None = None, keep_dims: bool = False, ieee_rounding: bool = False) -> Tile:
        """Return softmax along `dim` (default 0, as in Triton): max, subtract, exp, sum, divide; rounded once.

        Floats below 32 bit are cast to f32 first.
        """
        tile = self._constant(x)
        if not tile.dtype.is_floating_point:
            raise KernelError(f"tl.softmax takes a float, got {x!r}; convert it first: x.to(tl.float32)")
        axis, dtype = self._axis("softmax", tile, dim or 0), wide(tile.dtype)
        kinds = ("reduce", "simple", "slow", "reduce", "slow")
        inputs = (self.cast(tile, dtype),)
        return self._vector("softmax", kinds, lambda a: _softmax(a, axis), inputs, tile.shape, dtype, dtype)

    @staticmethod
    def _axis(name: str, x: Tile, axis: int) -> int:
        n = len(x.shape)
        if not -n <= axis < n:
            raise KernelError(f"{name}: axis {axis} of {x!r} does not exist; expected {-n} to {n - 1}")
        return axis % n

    def _reduce(
        self, name: str, function: Function, x: Tile, axis: int | None, keep: bool, dtype: DType | None = None
    ) -> Tile:
        if axis is None:
            shape, axes = ((1,) * len(x.shape) if keep else ()), tuple(range(len(x.shape)))
        else:
            at = self._axis(name, x, axis)
            shape, axes = (*x.shape[:at], *((1,) if keep else ()), *x.shape[at + 1 :]), (at,)

        compute = partial(function, axis=axes)
        return self._vector(name, _REDUCE, compute, (x,), shape, dtype or x.dtype, x.dtype, prod(x.shape))
