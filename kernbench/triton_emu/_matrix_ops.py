"""dot and composite: the part of `tl` that PE_GEMM and PE_SCHEDULER execute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from math import prod
from typing import Any

import numpy as np

from kernbench._dtypes import (
    DType,
    DTypeLike,
    bfloat16,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    int8,
    int32,
)
from kernbench._registry import hint
from kernbench.components._command import Composite, Dot, Ref, Value, VectorOp
from kernbench.errors import KernelError
from kernbench.triton_emu._handles import Pending, Pointer, Tile, shape_text
from kernbench.triton_emu._memory_ops import as_pointer
from kernbench.triton_emu._places import Shape
from kernbench.triton_emu._program import Function, Program, sigmoid, when_complete


def gelu(x: np.ndarray) -> np.ndarray:
    """GELU in its tanh form: x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3))."""
    inner = np.float32(1.5957691216057308) * x * (1 + np.float32(0.044715) * x * x)
    return x * sigmoid(inner)


# Name -> (operations of PE_MATH, function). With an operand: bias (one row), add (a whole matrix), scale (a number).
PLAIN: dict[str, tuple[tuple[str, ...], Function]] = {
    "relu": (("simple",), lambda x: np.maximum(x, 0)),
    "silu": (("slow", "simple", "slow", "simple"), lambda x: x * sigmoid(x)),
    "gelu": (("simple", "simple", "simple", "slow", "simple", "slow", "simple"), gelu),
    "exp": (("slow",), np.exp),
}
WITH_OPERAND: dict[str, Function] = {"bias": np.add, "add": np.add, "scale": np.multiply}
_FORMS = '"relu", "silu", "gelu", "exp", ("bias", pointer), ("add", pointer), ("scale", number)'


def _parse(item: Any) -> tuple[str, Any]:
    name, operand = item if isinstance(item, (tuple, list)) and len(item) == 2 else (item, None)
    if not isinstance(name, str) or name not in (*PLAIN, *WITH_OPERAND):
        raise KernelError(f"unknown epilogue item {item!r}; {hint(name, sorted((*PLAIN, *WITH_OPERAND)))}")
    if (name in WITH_OPERAND) != (operand is not None):
        raise KernelError(f"epilogue item {item!r} is not complete; the items are {_FORMS}")
    return name, operand


_Operand = Ref | Tile
# A function and its operand: None, a number, or the shape of the next extra operand.
_Step = tuple[Function, Shape | float | None]
_MATRIX = (float16, bfloat16, float8_e4m3fn, float8_e5m2, int8, float32)


def _multiply(a: np.ndarray, b: np.ndarray, acc: np.ndarray | None) -> np.ndarray:
    """Return a @ b (+ acc): f32, or i32 for i8."""
    product: np.ndarray
    if a.dtype == np.int8:
        # Exact in f64, where BLAS can do it.
        product = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.int64).astype(np.int32)
    else:
        with np.errstate(all="ignore"):
            product = np.matmul(a, b)
    if acc is not None:
        with np.errstate(all="ignore"):
            product = product + acc
    return product


def _multiplied(mkn: tuple[int, int, int], a: np.ndarray, b: np.ndarray, acc: np.ndarray | None = None) -> np.ndarray:
    m, k, n = mkn
    return _multiply(a.reshape(m, k), b.reshape(k, n), None if acc is None else acc.reshape(m, n))


def _what(x: _Operand) -> str:
    return _text(x.shape, x.dtype)


def _text(shape: Shape, dtype: DType) -> str:
    return f"{shape_text(shape)} {dtype.name}"


def dot(
    tl: Program,
    input: Tile,
    other: Tile,
    acc: Tile | None = None,
    input_precision: str | None = None,
    allow_tf32: bool | None = None,
    max_num_imprecise_acc: int | None = None,
    out_dtype: DTypeLike | None = None,
) -> Tile:
    """Return input @ other (+ acc), all in TCM: of the type of acc, else f32, or i32 for i8.

    Parameters
    ----------
    input, other : Tile
        M x K and K x N, of one type: f16, bf16, f8, i8 or f32. Or stacks of B such matrices: B products, each with two
        simple operations for the operands and one for the result.
    acc : Tile, optional
        M x N, added in the accumulators; an acc of another type than f32 (i32 for i8) is cast before and after.
        Constant zeros are free.
    input_precision, allow_tf32, max_num_imprecise_acc : object
        Hints of Triton, without effect: f32 is f32.
    out_dtype : DType or str, optional
        Type of the result.
    """
    for x in (input, other):
        if not isinstance(x, Tile):
            raise KernelError(f"dot takes tiles in TCM, got {x!r}; tl.load it, or use tl.composite")
    if len(input.shape) == 3:
        return _stacked(tl, input, other, acc, out_dtype)
    return _dot(tl, input, other, acc, out_dtype)


def _dot(tl: Program, input: Tile, other: Tile, acc: Any, out_dtype: DTypeLike | None) -> Tile:
    if input._tl is not tl or other._tl is not tl:
        tl._own(input, other)
    wanted, summand = out_dtype, acc
    if isinstance(acc, Tile):
        added = acc
        if added._tl is not tl:
            tl._own(added)
        wanted = added.dtype if out_dtype is None else out_dtype
        if added.dtype is not int32 and added.dtype is not float32:
            summand = tl.cast(added, float32)
    mkn, dtype, tag = _product("dot", input.shape, input.dtype, other.shape, other.dtype)
    m, k, n = mkn
    inputs = [input._value, other._value]
    if summand is not None:
        _check_acc("dot", summand, (m, n), dtype)
        if not (summand._constant and not summand._array().any()):
            inputs.append(summand._value)
    out = Value.__new__(Value)
    out.opens((m, n), dtype)
    command = Dot.__new__(Dot)
    command.opens("dot", tuple(inputs), out, partial(_multiplied, mkn) if tl._data else None, tag)
    command.flops, command.mkn = 2 * m * k * n, mkn
    tl._submit(command)
    result = Tile.__new__(Tile)
    result.opens(tl, out)
    return result if wanted is None or wanted is dtype else tl.cast(result, wanted)


def _stacked(tl: Program, input: Tile, other: Tile, acc: Any, out_dtype: DTypeLike | None) -> Tile:
    tl._own(input, other, acc)
    (count, m, _), n = input.shape, other.shape[2]

    def part(x: Tile, i: int) -> Tile:
        return tl._vector("slice", ("simple",), lambda a: a[i], (x,), x.shape[1:], x.dtype, None)

    parts = [dot(tl, part(input, i), part(other, i)).reshape(m * n) for i in range(count)]
    out = tl._vector("stack", ("simple",), lambda *a: np.stack(a), parts, (count, m * n), parts[0].dtype, None)
    found = out.reshape(count, m, n)
    found = found if acc is None else found + acc
    return found if out_dtype is None else tl.cast(found, out_dtype)


def composite(
    tl: Program,
    op: str,
    a: _Operand,
    b: _Operand | None = None,
    out_ptr: Any = None,
    epilogue: Sequence[Any] = (),
    acc: Tile | None = None,
) -> Pending:
    """Start a tiled operation from memory or TCM to memory; return a handle for `tl.wait`.

    Parameters
    ----------
    op : str
        "gemm": a @ b (+ acc), accumulated in f32 (i32 for i8). "math": a, or a + b, in f32.
    a, b : Ref or Tile
        `tl.ref` operands are streamed, tiles are pinned in TCM.
    out_ptr : Pointer, Ref or int
        Where the result goes, rounded once to the type there (of a plain address: the type of `a`).
    epilogue : sequence
        Applied in order, in f32, before rounding: `("bias", x)` with one value per column, `("add", x)` of the
        shape of the result, `("scale", number)`, "relu", "silu", "gelu" (tanh form), "exp".
        x is a pointer, a ref or a tile.
    acc : Tile, optional
        M x N of f32 (i32 for i8), for "gemm".

    Returns
    -------
    Pending
        For `tl.wait`. The kernel's end waits for it too.

    Raises
    ------
    KernelError
        If shapes, types or names do not fit.
    """
    if op not in ("gemm", "math"):
        raise KernelError(f'unknown composite op {op!r}; known: "gemm", "math"')
    for x in (a, b) if op == "gemm" or b is not None else (a,):
        if not isinstance(x, (Ref, Tile)):
            raise KernelError(f"composite {op}: operands are tl.ref(...) or loaded tiles, got {x!r}")
    if out_ptr is None:
        raise KernelError(f"composite {op}: out_ptr is missing: where the result goes in memory")
    target: Any = out_ptr
    if not isinstance(target, Ref):
        target = as_pointer(tl, "composite", out_ptr, None if isinstance(out_ptr, Pointer) else a.dtype)
    if op == "gemm":
        assert b is not None
        (m, k, n), dtype, tag = _product("composite gemm", a.shape, a.dtype, b.shape, b.dtype)
        shape: Shape = (m, n)
        flops = 2 * m * k * n
        if acc is not None:
            _check_acc("composite gemm", acc, shape, dtype)
    else:
        shape = a.shape
        flops, tag = prod(shape), shape_text(shape)
        if acc is not None:
            raise KernelError("composite math takes no acc")
        if b is not None and b.shape != shape:
            raise KernelError(f"composite math: a is {_what(a)}, b is {_what(b)}; their shapes must be equal")
    if not isinstance(target, Ref):
        target = Ref(target.va, shape, target.element_ty)
    elif target.shape != shape:
        raise KernelError(f"composite {op}: out is {_what(target)}, and the result has the shape {shape_text(shape)}")
    kinds, extra, steps = _epilogue(tl, epilogue, shape)
    if op == "math" and b is not None:
        kinds = ("simple", *kinds)
    operands = [x for x in (a, b, *(x for _, x in extra), acc) if x is not None]
    tl._own(*operands)
    command = Composite(op, tuple([x._value for x in operands if isinstance(x, Tile)]), flops=flops, tag=tag, op=op)
    command.a, command.out = _operand(a), target
    command.b = None if b is None else _operand(b)
    command.acc = None if acc is None else _seen(acc)
    command.extra = tuple([(kind, _operand(x)) for kind, x in extra])
    command.epilogue = tuple([VectorOp(kind, prod(shape), 4) for kind in kinds])
    command.compute = _compute(op, b is not None, steps, target.dtype)
    tl._submit(command)
    return Pending(command)


def _epilogue(
    tl: Program, items: Sequence[Any], shape: Shape
) -> tuple[tuple[str, ...], list[tuple[str, _Operand]], list[_Step]]:
    """Return (operations of PE_MATH, memory or TCM operands, functions) of an epilogue."""
    kinds: list[str] = []
    extra: list[tuple[str, _Operand]] = []
    steps: list[_Step] = []
    for name, operand in map(_parse, [items] if isinstance(items, str) else items):
        if name in PLAIN:
            more, function = PLAIN[name]
            kinds += more
            steps.append((function, None))
            continue
        kinds.append("simple")
        if name == "scale":
            if not isinstance(operand, (int, float, np.generic, Tile)):
                raise KernelError(f"epilogue scale takes a number, got {operand!r}")
            steps.append((WITH_OPERAND[name], float(operand)))
            continue
        wanted = shape[-1:] if name == "bias" else shape
        if not isinstance(operand, (Ref, Tile)):
            base = as_pointer(tl, f"epilogue {name}", operand, None)
            operand = Ref(base.va, wanted, base.element_ty)
        elif prod(operand.shape) != prod(wanted):
            raise KernelError(f"epilogue {name}: expected the shape {shape_text(wanted)}, got {_what(operand)}")
        extra.append(("row" if name == "bias" else "tile", operand))
        steps.append((WITH_OPERAND[name], wanted))
    return tuple(kinds), extra, steps


@lru_cache(maxsize=4096)
def _product(name: str, a: Shape, a_dtype: DType, b: Shape, b_dtype: DType) -> tuple[tuple[int, int, int], DType, str]:
    """Return ((M, K, N), accumulator type, "MxKxN") of a product, or raise a KernelError."""
    both = f"{_text(a, a_dtype)} and {_text(b, b_dtype)}"
    if len(a) != 2 or len(b) != 2:
        raise KernelError(f"{name} takes matrices, got {both}; use [:, None], [None, :] or reshape")
    (m, k), (inner, n) = a, b
    if k != inner:
        raise KernelError(f"{name}: the inner sizes of {both} differ: {k} and {inner}")
    if a_dtype not in _MATRIX or b_dtype not in _MATRIX:
        raise KernelError(f"{name} takes {', '.join(d.name for d in _MATRIX)}; got {both}")
    if a_dtype is not b_dtype and not (a_dtype.itemsize == b_dtype.itemsize == 1 and int8 not in (a_dtype, b_dtype)):
        raise KernelError(f"{name}: {both} must have one type; cast one of them")
    return (m, k, n), int32 if a_dtype is int8 else float32, f"{m}x{k}x{n}"


def _check_acc(name: str, acc: Any, shape: Shape, dtype: DType) -> None:
    if not isinstance(acc, Tile) or acc.shape != shape or acc.dtype != dtype:
        got = _what(acc) if isinstance(acc, Tile) else repr(acc)
        raise KernelError(f"{name}: acc must be a tile {shape_text(shape)} {dtype.name}, got {got}")


def _operand(x: _Operand) -> Ref | Value:
    return x if isinstance(x, Ref) else _seen(x)


def _seen(x: Tile) -> Value:
    """Return the value of a tile; for a view of another shape, a value of that shape that completes with it."""
    value = x._value
    if value.shape == x.shape:
        return value
    view = Value(x.shape, x.dtype, None, value.done_ps)
    view.done_by = value.done_by

    def complete(whole: Value, t: int) -> None:
        view.done_ps, view.done_by = t, whole.done_by
        view.array = None if whole.array is None else whole.array.reshape(view.shape)

    when_complete(value, complete)
    return view


def _compute(op: str, two: bool, steps: list[_Step], dtype: DType) -> Callable[..., np.ndarray]:
    """Return the function of a composite: arrays of a, b (if `two`), the extras in order, acc (if any) -> result."""
    count = sum(isinstance(operand, tuple) for _, operand in steps)

    def compute(a: np.ndarray, *arrays: np.ndarray) -> np.ndarray:
        b, rest = (arrays[0], arrays[1:]) if two else (None, arrays)
        extras, acc = iter(rest[:count]), (rest[count] if len(rest) > count else None)
        with np.errstate(all="ignore"):
            if op == "gemm":
                assert b is not None
                x = _multiply(a, b, acc)
            else:
                x = a if b is None else np.add(_exact(a), _exact(b))
            if steps:
                x = _exact(x)
            for function, operand in steps:
                other = next(extras).reshape(operand) if isinstance(operand, tuple) else operand
                x = function(x) if other is None else function(x, other)
            return dtype.round(x)

    return compute


def _exact(x: np.ndarray) -> np.ndarray:
    """Convert integers to f64, which holds every i32 exactly."""
    return x if np.issubdtype(x.dtype, np.floating) else x.astype(np.float64)
