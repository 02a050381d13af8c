"""One program of a launch: its backend, how tiles come to be, and the functions of PE_MATH.

Element types of results follow Triton:

- A Python number takes the tile's type unless it is of a higher kind (bool < integer < float): then it counts as i32
  (i64 where it does not fit) or f32.
- f64 over f32 over f16, which bf16 gives way to; bf16 with anything else is f32; two different f8 give f16.
- A float with an integer is the float (bf16: f32). f8 with an integer tile is refused: cast one of them.
- Integers: the wider one; of two of one width the unsigned.
- `/` and `%` on f16 or bf16 give f32, `/` on integers f32.

16- and 8-bit floats are computed in f32 and rounded once per function. What is made from constants only is a
constant itself, at no cost.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from functools import lru_cache, reduce
from math import prod
from operator import index
from typing import Any, NamedTuple, cast

import numpy as np

from kernbench._dtypes import (
    DType,
    as_dtype,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int32,
    int64,
    uint32,
)
from kernbench.components._command import Backend, Command, Value, Vector, VectorOp
from kernbench.errors import KernelError
from kernbench.sim_engine._user_code import line_text, user_line
from kernbench.triton_emu._handles import DTypeLike, Shape, Tile, shape_text

Scalar = bool | int | float

_RANGE = {d.name: np.iinfo(d.numpy) for d in (int32, int64)}


def kind(dtype: DType) -> int:
    """Return 0 for bool, 1 for an integer, 2 for a float."""
    return 2 if dtype.is_floating_point else int(dtype is not bool_)


def dtype_of(scalar: Scalar) -> DType:
    """Return the type that a Python number has where no tile gives it one.

    >>> dtype_of(3), dtype_of(1 << 40), dtype_of(0.5)
    (torch.int32, torch.int64, torch.float32)
    """
    if isinstance(scalar, bool):
        return bool_
    if isinstance(scalar, float):
        return float32
    return int32 if _fits(scalar, int32) else int64


def promote_scalar(tile: DType, scalar: Scalar, division: bool = False) -> DType:
    """Return the type in which a tile of type `tile` and a Python number are combined.

    >>> promote_scalar(float16, 0.1), promote_scalar(int32, 0.5), promote_scalar(int32, 1 << 40)
    (torch.float16, torch.float32, torch.int64)
    """
    other = dtype_of(scalar)
    if kind(other) > kind(tile):
        return promote(tile, other, division)
    if division and tile in (float16, bfloat16):
        return float32
    if kind(tile) == 1 and isinstance(scalar, int) and not _fits(scalar, tile):
        return promote(tile, other)
    return tile


def promote(a: DType, b: DType, division: bool = False) -> DType:
    """Return the type in which tiles of types `a` and `b` are combined; `/` and `%` have no 16-bit form.

    >>> promote(float16, float32), promote(float16, bfloat16), promote(float16, float16, division=True)
    (torch.float32, torch.float16, torch.float32)
    """
    if a is b and not (division and a.itemsize == 2):
        return a
    either = (a, b)
    for wide in (float64, float32):
        if wide in either:
            return wide
    if float16 in either:
        return float32 if division else float16
    if bfloat16 in either:
        return bfloat16 if a == b and not division else float32
    if a.is_floating_point and b.is_floating_point:
        return a if a == b else float16
    if a.is_floating_point or b.is_floating_point:
        raise KernelError(f"{a} and {b} have no common type; cast one of them, e.g. x.to(tl.float32)")
    if a.itemsize != b.itemsize:
        return a if a.itemsize > b.itemsize else b
    if a is bool_ or b is bool_:
        return b if a is bool_ else a
    return a if a.numpy.kind == "u" else b


def _fits(scalar: int, dtype: DType) -> bool:
    limits = _RANGE.get(dtype.name) or np.iinfo(dtype.numpy)
    return int(limits.min) <= scalar <= int(limits.max)


@lru_cache(maxsize=4096, typed=True)
def _rounded(x: float, negative: bool, dtype: str) -> np.ndarray:
    """Return a number as an array of a type; `negative` tells -0.0 from 0.0, which are equal as keys."""
    with np.errstate(all="ignore"):
        array = as_dtype(dtype).round(np.asarray(x))
    array.flags.writeable = False
    return array


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


@lru_cache(maxsize=4096)
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


Function = Callable[..., np.ndarray]

_SIMPLE, _SLOW = ("simple",), ("slow",)


def _truncated(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Integer division rounded towards zero, as the hardware and Triton do it."""
    quotient: np.ndarray = (a - np.fmod(a, b)) // b
    return quotient


class _Fault(NamedTuple):
    """Second operands with which an operation on integers has no result."""

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
    """Return an operation that refuses faults, except in `undefined` elements; errors name the line."""
    line, fault = user_line(), _FAULTS[_CHECKED[name]]

    def compute(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        faults = fault.found(b)
        if undefined is not None:
            faults = faults & ~undefined
        n = np.count_nonzero(faults)
        if n:
            raise KernelError(f"{line_text(line)}: {name}: {n} of {faults.size} {fault.message}")
        result: np.ndarray = function(a, b)
        return result

    return compute


def _either(tiles: Sequence[Tile], shape: Shape) -> np.ndarray | None:
    """Return which elements of a result of `shape` depend on undefined ones of its operands; None for none."""
    parts = [t._undefined for t in tiles if t._undefined is not None]
    if not parts:
        return None
    union = reduce(np.logical_or, parts)
    return union if union.shape == shape else np.broadcast_to(union, shape)


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
    "maximum": (_SIMPLE, np.fmax),
    "minimum": (_SIMPLE, np.fmin),
}
_COMPARE = frozenset(("lt", "le", "gt", "ge", "eq", "ne"))
_INTEGER = frozenset(("floordiv", "and", "or", "xor", "shl", "shr", "not"))


def sigmoid(x: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + exp(-x))."""
    y: np.ndarray = 1 / (1 + np.exp(-x))
    return y


def _erf(x: np.ndarray) -> np.ndarray:
    y: np.ndarray = np.frompyfunc(math.erf, 1, 1)(x).astype(x.dtype)
    return y


def _softmax(x: np.ndarray, axis: int) -> np.ndarray:
    e = np.exp(x - np.fmax.reduce(x, axis=axis, keepdims=True))
    y: np.ndarray = e / e.sum(axis=axis, keepdims=True)
    return y


_UNARY: dict[str, tuple[tuple[str, ...], Function]] = {
    "exp": (_SLOW, np.exp),
    "exp2": (_SLOW, np.exp2),
    "log": (_SLOW, np.log),
    "log2": (_SLOW, np.log2),
    "sqrt": (_SLOW, np.sqrt),
    "rsqrt": (_SLOW, lambda x: 1 / np.sqrt(x)),
    "sin": (_SLOW, np.sin),
    "cos": (_SLOW, np.cos),
    "sigmoid": (("slow", "simple", "slow"), sigmoid),
    "tanh": (_SLOW, np.tanh),
    "erf": (_SLOW, _erf),
    "floor": (_SIMPLE, np.floor),
    "ceil": (_SIMPLE, np.ceil),
    "abs": (_SIMPLE, np.abs),
    "neg": (_SIMPLE, np.negative),
    "not": (_SIMPLE, np.invert),
}
_ANY_TYPE = frozenset(("abs", "neg", "not"))


def _wide(dtype: DType) -> DType:
    if dtype.is_floating_point:
        return float32
    return uint32 if dtype.numpy.kind == "u" else int32


def _fused(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Multiply and add with one rounding: f32 products are exact in f64."""
    wide = np.float64 if x.dtype == np.float32 else x.dtype
    result: np.ndarray = x.astype(wide) * y + z
    return result


def _elementwise(name: str, doc: str) -> Callable[[Program, Any], Tile]:
    """Return the function of `tl` that is an operation of PE_MATH on one operand."""

    def function(self: Program, x: Any) -> Tile:
        return self._unary(name, x)

    function.__name__, function.__doc__ = name, doc
    return function


class Program:
    """One program of a launch: its place in the grid, the backend of its commands, and functions on its tiles."""

    def __init__(self, backend: Backend, program_id: tuple[int, int], num_programs: tuple[int, int]) -> None:
        self._backend = backend
        self._data = backend.data
        self._ids, self._counts = program_id, num_programs
        self._open = True
        self._trace: list[str] | None = None  # the operations on constants, while a function of the user's is counted

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
        fold: bool = True,
    ) -> Tile:
        """Return `function` of the operands: folded if all are constants (unless not `fold`), else a vector command.

        Each operand is rounded to `operand_dtype` first (None: as it is), the result to `dtype`. `kinds` are the
        operations that it takes, on `elements` (those of the result unless given) of the wider of the two types.
        """
        constant = fold and all(operand._constant for operand in operands)
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
            if self._trace is not None:
                self._trace += kinds
            return self._fold(compute(*[t._array() for t in operands]), dtype)
        self._own(*operands)
        out = Value(shape, dtype)
        count = prod(shape) if elements is None else elements
        itemsize = max(dtype.itemsize, operand_dtype.itemsize) if operand_dtype is not None else dtype.itemsize
        values = tuple([t._value for t in operands])
        self._backend.submit(Vector(name, values, out, compute, count, work=work_of(kinds, count, itemsize)))
        return self._tile(out)

    def _by_element(
        self, name: str, kinds: tuple[str, ...], function: Function, operands: Sequence[Tile], shape: Shape,
        dtype: DType, operand_dtype: DType | None,
    ) -> Tile:  # fmt: skip
        """Return `_vector` of a function of which each result depends on the operands at its own place."""
        out = self._vector(name, kinds, function, operands, shape, dtype, operand_dtype)
        out._undefined = _either(operands, shape)
        return out

    # --- functions on tiles: Triton's, for floats of all widths

    def _binary(self, name: str, a: Any, b: Any) -> Tile:
        kinds, function = _BINARY[name]
        (a, b), dtype = self._unify(name, (a, b), division=name in ("div", "mod"))
        if name == "div" and not dtype.is_floating_point:
            dtype = float32
        if name in _INTEGER and dtype.is_floating_point:
            raise KernelError(f"{name} takes integers, got {a!r} and {b!r}")
        shape = broadcast(name, a.shape, b.shape)
        if name in _CHECKED and not dtype.is_floating_point:
            function = _checked(name, function, _either((a, b), shape))
        out = bool_ if name in _COMPARE else dtype
        return self._by_element(name, kinds, function, (a, b), shape, out, dtype)

    def _unary(self, name: str, x: Any) -> Tile:
        kinds, function = _UNARY[name]
        x = self._constant(x)
        if name not in _ANY_TYPE and not x.dtype.is_floating_point:
            raise KernelError(f"tl.{name} takes a float, got {x!r}; convert it first: x.to(tl.float32)")
        if name == "not" and x.dtype.is_floating_point:
            raise KernelError(f"~ takes integers, got {x!r}")
        return self._by_element(name, kinds, function, (x,), x.shape, x.dtype, x.dtype)

    def _scalar(self, x: float, dtype: DType) -> Tile:
        return self._fold(_rounded(x, str(x).startswith("-"), dtype.name), dtype)

    def _unify(self, name: str, operands: Sequence[Any], division: bool = False) -> tuple[list[Tile], DType]:
        """Return tiles and numbers as tiles, numbers rounded to the common type, and that type."""
        dtype = None
        numbers = []
        for x in operands:
            if isinstance(x, Tile):
                dtype = promote(x.dtype, x.dtype if dtype is None else dtype, division)
            elif isinstance(x, (bool, int, float, np.generic)):
                numbers.append(x.item() if isinstance(x, np.generic) else x)
            else:
                raise KernelError(
                    f"{name}: expected a tile or a number, got {x!r}; load what a pointer points to first"
                )
        for x in numbers:
            dtype = promote_scalar(dtype_of(x) if dtype is None else dtype, x, division)
        assert dtype is not None
        return [x if isinstance(x, Tile) else self._scalar(x, dtype) for x in operands], dtype

    # --- making constants

    def arange(self, start: int, end: int) -> Tile:
        """Return start, start + 1, ... end - 1 as i32; any length, not only powers of two."""
        shape_of(end - start)
        return self._fold(np.arange(start, end, dtype=np.int32), int32)

    def constant(self, values: np.ndarray) -> Tile:
        """Return integers that the host knows, as i64: a constant, as what `arange` and arithmetic make of numbers."""
        return self._fold(np.asarray(values, np.int64), int64)

    def full(self, shape: int | Sequence[int], value: Any, dtype: DTypeLike) -> Tile:
        """Return a tile filled with `value`, a number or a scalar tile."""
        dt, shape = as_dtype(dtype), shape_of(shape)
        if isinstance(value, Tile) and value.shape:
            raise KernelError(f"full takes a number or a scalar, got {value!r}")
        if isinstance(value, Tile) and not value._constant:
            return self._vector("full", _SIMPLE, lambda x: np.broadcast_to(x, shape), (value,), shape, dt, None)
        filled = self._scalar(value.item() if isinstance(value, Tile) else value, dt)._value.array
        assert filled is not None
        return self._fold(np.full(shape, filled), dt)

    def zeros(self, shape: int | Sequence[int], dtype: DTypeLike) -> Tile:
        """Return a tile of zeros."""
        return self.full(shape, 0, dtype)

    # --- element by element

    exp = _elementwise("exp", "Return e to the power x.")
    exp2 = _elementwise("exp2", "Return 2 to the power x.")
    log = _elementwise("log", "Return the natural logarithm.")
    log2 = _elementwise("log2", "Return the logarithm to base 2.")
    sqrt = _elementwise("sqrt", "Return the square root.")
    rsqrt = _elementwise("rsqrt", "Return 1 / sqrt(x), one slow operation.")
    sigmoid = _elementwise("sigmoid", "Return 1 / (1 + exp(-x)): exp, add and divide.")
    sin = _elementwise("sin", "Return the sine of x [rad].")
    cos = _elementwise("cos", "Return the cosine of x [rad].")
    tanh = _elementwise("tanh", "Return the hyperbolic tangent.")
    erf = _elementwise("erf", "Return the error function.")
    floor = _elementwise("floor", "Return the largest whole number that is not above x, one simple operation.")
    ceil = _elementwise("ceil", "Return the smallest whole number that is not below x, one simple operation.")
    abs = _elementwise("abs", "Return |x|.")

    def maximum(self, x: Any, y: Any) -> Tile:
        """Return the larger of each two; where one is NaN, the other (as Triton, unlike numpy.maximum)."""
        return self._binary("maximum", x, y)

    def minimum(self, x: Any, y: Any) -> Tile:
        """Return the smaller of each two; where one is NaN, the other (as Triton, unlike numpy.minimum)."""
        return self._binary("minimum", x, y)

    def clamp(self, x: Any, min: Any, max: Any) -> Tile:
        """Return x limited to [min, max]: two simple operations."""
        return self._mixed("clamp", ("simple", "simple"), lambda v, lo, hi: np.fmin(np.fmax(v, lo), hi), (x, min, max))

    def fma(self, x: Any, y: Any, z: Any) -> Tile:
        """Return x * y + z, rounded once."""
        return self._mixed("fma", _SIMPLE, _fused, (x, y, z))

    def where(self, condition: Any, x: Any, y: Any) -> Tile:
        """Return x where `condition` holds, else y; both are evaluated."""
        condition = self._constant(condition)
        if condition.dtype is not bool_:
            condition = self._binary("ne", condition, 0)
        (x, y), dtype = self._unify("where", (x, y))
        shape = broadcast("where", condition.shape, x.shape, y.shape)

        def choose(c: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
            return np.where(c, dtype.round(a), dtype.round(b))

        return self._by_element("where", _SIMPLE, choose, (condition, x, y), shape, dtype, None)

    def cast(self, x: Any, dtype: DTypeLike) -> Tile:
        """Return x in another type: to nearest even, towards zero for integers, not zero for bool."""
        tile, dt = self._constant(x), as_dtype(dtype)
        if tile.dtype == dt:
            return tile
        function: Function = (lambda a: a != 0) if dt is bool_ else (lambda a: a)
        return self._by_element("cast", _SIMPLE, function, (tile,), tile.shape, dt, tile.dtype)

    def cdiv(self, x: Any, div: Any) -> Any:
        """Return x / div rounded up, of integers."""
        if isinstance(x, Tile) or isinstance(div, Tile):
            return self._binary("floordiv", self._binary("add", x, self._binary("sub", div, 1)), div)
        return -(-x // div)

    def _mixed(self, name: str, kinds: tuple[str, ...], function: Function, operands: Sequence[Any]) -> Tile:
        tiles, dtype = self._unify(name, operands)
        return self._by_element(name, kinds, function, tiles, broadcast(name, *(t.shape for t in tiles)), dtype, dtype)

    # --- shape

    def reshape(self, x: Tile, *shape: Any) -> Tile:
        """Return the same values, row by row, under another shape; free."""
        sizes = shape_of(shape[0] if len(shape) == 1 else shape)
        if prod(sizes) != prod(x.shape):
            raise KernelError(f"reshape: {x!r} has {prod(x.shape)} values, shape {sizes} takes {prod(sizes)}")
        return x._view(sizes)

    def trans(self, x: Tile, *dims: Any) -> Tile:
        """Return the transpose of a matrix, or the axes of any tile in the order `dims`: one simple operation."""
        if not dims and len(x.shape) != 2:
            raise KernelError(f"trans takes a matrix, or the order of the axes, got {x!r}")
        return self.permute(x, *(dims or (1, 0)))

    def permute(self, x: Tile, *dims: Any) -> Tile:
        """Return the axes of a tile in the order `dims`: one simple operation."""
        order = tuple(map(index, dims[0] if len(dims) == 1 and isinstance(dims[0], (tuple, list)) else dims))
        if sorted(order) != list(range(len(x.shape))):
            raise KernelError(f"permute: {order} is not an order of the axes of {x!r}")
        shape = tuple(x.shape[axis] for axis in order)
        name = "trans" if order == (1, 0) else "permute"
        return self._vector(name, _SIMPLE, lambda a: np.transpose(a, order), (x,), shape, x.dtype, None)

    def broadcast_to(self, x: Any, *shape: Any) -> Tile:
        """Return x repeated to `shape`: one simple operation; operators broadcast without it, and free of cost."""
        tile, sizes = self._constant(x), shape_of(shape[0] if len(shape) == 1 else shape)
        if tile.shape == sizes:
            return tile
        if broadcast("broadcast_to", tile.shape, sizes) != sizes:
            raise KernelError(f"broadcast_to: {tile!r} does not broadcast to {shape_text(sizes)}")
        return self._vector(
            "broadcast_to", _SIMPLE, lambda a: np.broadcast_to(a, sizes), (tile,), sizes, tile.dtype, None
        )

    # --- reductions

    def sum(self, input: Any, axis: int | None = None, keep_dims: bool = False, dtype: DTypeLike | None = None) -> Tile:
        """Return the sum; bf16 and f8 give f32, integers below 32 bit i32 (unsigned: u32), bool i32, else x's type.

        Floats accumulate in f32 (f64 in f64) and are rounded once.
        """
        x = self._constant(input)
        out = self._sum_dtype(x.dtype, dtype)
        return self._reduce("sum", lambda a, **how: np.sum(a, dtype=out.carrier, **how), x, axis, keep_dims, out)

    @staticmethod
    def _sum_dtype(x: DType, dtype: DTypeLike | None) -> DType:
        if dtype is not None:
            return as_dtype(dtype)
        narrow = x.itemsize < 4 and (kind(x) < 2 or x is bfloat16 or x.itemsize == 1)
        return _wide(x) if narrow else x

    def max(self, input: Any, axis: int | None = None, keep_dims: bool = False) -> Tile:
        """Return the largest value, NaN only where all are."""
        x = self._constant(input)
        return self._reduce("max", np.fmax.reduce, x, axis, keep_dims, x.dtype)

    def min(self, input: Any, axis: int | None = None, keep_dims: bool = False) -> Tile:
        """Return the smallest value, NaN only where all are."""
        x = self._constant(input)
        return self._reduce("min", np.fmin.reduce, x, axis, keep_dims, x.dtype)

    def softmax(self, x: Any, dim: int | None = None) -> Tile:
        """Return softmax along `dim` (0 unless given, as in Triton): max, subtract, exp, sum, divide; rounded once."""
        x = self._constant(x)
        if not x.dtype.is_floating_point:
            raise KernelError(f"tl.softmax takes a float, got {x!r}; convert it first: x.to(tl.float32)")
        axis = self._axis("softmax", x, dim or 0)
        kinds = ("reduce", "simple", "slow", "reduce", "slow")
        return self._vector("softmax", kinds, lambda a: _softmax(a, axis), (x,), x.shape, x.dtype, x.dtype)

    @staticmethod
    def _axis(name: str, x: Tile, axis: int) -> int:
        n = len(x.shape)
        if not -n <= axis < n:
            raise KernelError(f"{name}: axis {axis} of {x!r} does not exist; expected {-n} to {n - 1}")
        return axis % n

    def _reduce(self, name: str, function: Function, x: Tile, axis: int | None, keep: bool, dtype: DType) -> Tile:
        if axis is None:
            shape, axes = ((1,) * len(x.shape) if keep else ()), tuple(range(len(x.shape)))
        else:
            at = self._axis(name, x, axis)
            shape, axes = (*x.shape[:at], *((1,) if keep else ()), *x.shape[at + 1 :]), (at,)

        def compute(a: np.ndarray) -> np.ndarray:
            return function(a, axis=axes)

        return self._vector(name, ("reduce",), compute, (x,), shape, dtype, x.dtype, elements=prod(x.shape))
