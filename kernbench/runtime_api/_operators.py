"""Operators on device tensors: each is a launch of a shipped kernel, so that it costs simulated time.

The result of an element-wise operator has the layout of the first operand of its shape; every other result is cut by
rows over as many PEs as the operands are on. Its PEs read the operands from wherever these are on the same SIP.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import prod, sqrt
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from kernbench._dtypes import DType, as_dtype, bool_, float16, float32, float64, int64
from kernbench.errors import ArgumentError, quote
from kernbench.kernels import tensor_ops
from kernbench.kernels.partition import Pe
from kernbench.kernels.tensor_ops import Block, Part, Rows
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api._device_tensor import DeviceTensor
from kernbench.runtime_api.tensor import Tensor
from kernbench.triton_emu._program import kind, promote

TensorLike = Tensor | bool | int | float


class MaxResult(NamedTuple):
    """What `max` along a dim returns: torch's `values` and `indices`."""

    values: Tensor
    indices: Tensor


# -- element by element


def binary(name: str, x: TensorLike, y: TensorLike) -> Tensor:
    """Return `x` op `y`, broadcast, in torch's common type; `name` is "add", "sub", "mul" or "div"."""
    return _elementwise(name, (x, y), _type_of(name, x, y))


def in_place(name: str, x: Tensor, y: TensorLike) -> Tensor:
    """Set `x` to `x` op `y`, computed in torch's common type, and return it."""
    out, *others = _checked(name, (x, y))
    dtype = _type_of(name, x, y)
    if dtype.is_floating_point and not out.dtype.is_floating_point:
        raise RuntimeError(f"result type {dtype} can't be cast to the desired output type {out.dtype}")
    shape = _broadcast(name, [tuple(t.shape) for t in (out, *others)])
    if shape != tuple(out.shape):
        raise RuntimeError(f"output with shape {tuple(out.shape)} doesn't match the broadcast shape {shape}")
    for other in others:
        own, read = _where(out), _where(other)
        if other._handle is out._handle and not np.array_equal(own, read) and np.intersect1d(own, read).size:
            raise RuntimeError(f"{name}: both sides hold some elements of {out.name!r}; copy one first: .clone()")
    return _elementwise(name, (x, y), dtype, out)


def _type_of(name: str, x: TensorLike, y: TensorLike) -> DType:
    """Return torch's type of `x` op `y`."""
    dtype = _common(x, y)
    if name == "div" and not dtype.is_floating_point:
        dtype = float32
    if name == "sub" and dtype is bool_:
        raise RuntimeError("Subtraction, the `-` operator, with a bool tensor is not supported; convert it first")
    if dtype is bool_:
        raise ArgumentError(f"{name}: two bool tensors; convert one first: x.to(torch.int32)")
    return dtype


def unary(name: str, x: Tensor) -> Tensor:
    """Return a function of each element: "relu", "silu", "gelu" (its tanh form)."""
    return _elementwise(name, (x,), _one(name, x).dtype)


def cast(x: DeviceTensor, dtype: DType, name: str | None = None) -> DeviceTensor:
    """Return `x` in another type, on the same PEs."""
    return _elementwise("copy", (x,), dtype, x._like(dtype, name))


def _elementwise(
    name: str, operands: Sequence[TensorLike], dtype: DType, out: DeviceTensor | None = None
) -> DeviceTensor:
    tensors = _checked(name, operands)
    shape = _broadcast(name, [tuple(t.shape) for t in tensors])
    if out is None:
        like = next((t for t in tensors if tuple(t.shape) == shape), None)
        out = _result(tensors, shape, dtype) if like is None else like._like(dtype)
    order = _order(out)
    places = [
        np.broadcast_to(_places(x), shape).reshape(-1)[order] if isinstance(x, DeviceTensor) else None for x in operands
    ]
    tasks = {
        pe: [Part(first, n, [None if p is None else p[first : first + n] for p in places]) for first, n in parts]
        for pe, parts in out._parts().items()
    }
    wide = dtype if dtype.itemsize >= 4 or not dtype.is_floating_point else float32
    out._run(name, tensor_ops.elementwise, out, tuple(operands), name, wide, tasks)
    return out


# -- products


def matmul(input: Tensor, other: Tensor) -> Tensor:
    """Return torch's matrix product: of vectors, matrices, or batches of matrices, which broadcast."""
    a, b = _checked("matmul", (input, other))
    if a.dtype is not b.dtype:
        raise RuntimeError(f"expected m1 and m2 to have the same dtype, but got: {a.dtype} != {b.dtype}")
    if not a.dtype.is_floating_point or a.dtype is float64:
        raise ArgumentError(f"matmul: {a.dtype} is not a type of PE_GEMM; convert both to torch.float32 or smaller")
    if not a.dim() or not b.dim():
        raise RuntimeError("both arguments to matmul need to be at least 1D, but they are 0D")
    left, right = _places(a), _places(b)
    left, right = (left[None, :] if a.dim() == 1 else left), (right[:, None] if b.dim() == 1 else right)
    if left.shape[-1] != right.shape[-2]:
        raise RuntimeError(f"matmul: shapes {tuple(a.shape)} and {tuple(b.shape)} cannot be multiplied")
    batch = _broadcast("matmul", [left.shape[:-2], right.shape[:-2]])
    m, n = left.shape[-2], right.shape[-1]
    left = np.broadcast_to(left, (*batch, *left.shape[-2:]))
    right = np.broadcast_to(right, (*batch, *right.shape[-2:]))
    shape = (*batch, m, n)
    out = a.dtype
    result = _result((a, b), shape, out)
    if not left.shape[-1]:
        result.fill_(0)
    places = _places(result)
    tasks: dict[Pe, list[Block]] = {}
    for shard in result.shards if left.shape[-1] else ():
        rows, columns = shard.index[-2:]
        for at in np.ndindex(*(s.stop - s.start for s in shard.index[:-2])):
            where = tuple(s.start + i for s, i in zip(shard.index[:-2], at, strict=True))
            block = Block(left[where][rows], right[where][:, columns], places[where][rows, columns])
            if block.out.size:
                tasks.setdefault((shard.cube, shard.pe), []).append(block)
    result._run("matmul", tensor_ops.matmul, result, a, b, tasks)
    dropped = [size for i, size in enumerate(shape) if not (i == len(shape) - 2 and a.dim() == 1)]
    if b.dim() == 1:
        dropped.pop()
    return result if len(dropped) == len(shape) else result.view(dropped)


# -- reductions


def total(
    input: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False, dtype: DType | str | None = None
) -> Tensor:
    """Return the sum over some dims (all); of integers in int64, as torch has it."""
    given = _one("sum", input)
    out = as_dtype(dtype) if dtype is not None else given.dtype if given.dtype.is_floating_point else int64
    return _reduce("sum", given, dim, keepdim, out, 1)


def mean(
    input: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False, dtype: DType | str | None = None
) -> Tensor:
    """Return the mean over some dims (all), of floats."""
    given = _one("mean", input)
    out = as_dtype(dtype) if dtype is not None else given.dtype
    if not out.is_floating_point:
        raise RuntimeError(
            f"mean(): could not infer output dtype. Input dtype must be either a floating point or complex dtype. Got: "
            f"{out}; convert it first: x.float()"
        )
    count = prod(given.shape[d] for d in _dims(given, dim))
    return _reduce("sum", given, dim, keepdim, out, 1 / max(count, 1))


def largest(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """Return the largest value; along `dim`, the `values` and their first `indices`."""
    given = _one("max", input)
    if any(not given.shape[d] for d in _dims(given, dim)):
        raise RuntimeError("max(): Expected reduction dim to be specified for input.numel() == 0, and of size > 0")
    values = _reduce("max", given, dim, keepdim, given.dtype, 1)
    if dim is None:
        return values
    places, shape = _rows(given, _dims(given, dim), keepdim)
    indices = _result((given,), shape, int64)
    indices._run("max", tensor_ops.index_of_max, indices, given, _row_tasks(indices, places))
    return MaxResult(values, indices)


def _reduce(
    name: str, x: DeviceTensor, dim: int | Sequence[int] | None, keepdim: bool, dtype: DType, scale: float
) -> DeviceTensor:
    places, shape = _rows(x, _dims(x, dim), keepdim)
    out = _result((x,), shape, dtype)
    if not places.shape[1]:
        out.fill_(0 if scale == 1 else float("nan"))
        return out
    wide = dtype if dtype.itemsize >= 4 else float32 if dtype.is_floating_point else int64
    out._run(name, tensor_ops.reduce, out, x, name, wide, scale, _row_tasks(out, places))
    return out


def _dims(x: Tensor, dim: int | Sequence[int] | None) -> list[int]:
    """Return the dims that a reduction is over."""
    given = range(x.dim()) if dim is None else [dim] if isinstance(dim, int) else dim
    dims = [x._dim(d) for d in given] if x.dim() else []
    if len(set(dims)) < len(dims):
        raise RuntimeError(f"dim {dim} appears multiple times in the list of dims")
    return dims if dims or dim is None else list(range(x.dim()))


def _rows(x: DeviceTensor, dims: Sequence[int], keepdim: bool) -> tuple[np.ndarray, tuple[int, ...]]:
    """Return the places of what each element of a reduction is made of, as rows, and the shape of the result."""
    kept = [d for d in range(x.dim()) if d not in dims]
    places = _places(x).transpose([*kept, *dims])
    shape = tuple(1 if d in dims else x.shape[d] for d in range(x.dim()) if keepdim or d not in dims)
    width = prod(x.shape[d] for d in dims)
    return places.reshape(prod(x.shape[d] for d in kept), width), shape


def _row_tasks(out: DeviceTensor, places: np.ndarray) -> dict[Pe, list[tuple[int, np.ndarray]]]:
    order = _order(out)
    return {pe: [(first, places[order[first : first + n]]) for first, n in parts] for pe, parts in out._parts().items()}


# -- rows


def softmax(input: Tensor, dim: int | None = None, dtype: DType | str | None = None) -> Tensor:
    """Return softmax along `dim`, computed in f32."""
    given = _one("softmax", input)
    if dim is None:
        raise ArgumentError("softmax: dim is missing: which dim sums to 1")
    out = as_dtype(dtype) if dtype is not None else given.dtype
    return _by_rows("softmax", given, given._dim(dim), out, 0.0)


def norm(name: str, x: Tensor, size: int | Sequence[int], eps: float) -> Tensor:
    """Return "rms_norm" or "layer_norm" over the last dim, which has `size` elements."""
    given = _one(name, x)
    sizes = (size,) if isinstance(size, int) else tuple(size)
    if not given.dim() or sizes != tuple(given.shape[-1:]):
        raise ArgumentError(f"{name}: normalized_shape = {sizes}; expected the last dim of {tuple(given.shape)}")
    return _by_rows(name, given, given.dim() - 1, given.dtype, eps)


def _by_rows(name: str, x: DeviceTensor, dim: int, dtype: DType, eps: float) -> DeviceTensor:
    if not dtype.is_floating_point:
        raise RuntimeError(f"{name}: not implemented for {dtype}; convert it first: x.float()")
    out = x._like(dtype)
    if not x.numel():
        return out
    if not x.dim():
        return out.fill_(1.0) if name == "softmax" else _elementwise("copy", (x,), dtype)  # type: ignore[return-value]
    own, targets = (np.moveaxis(_places(t), dim, -1).reshape(-1, t.shape[dim]) for t in (x, out))
    tasks: dict[Pe, list[Rows]] = {}
    for pe, parts in out._parts().items():
        held = np.zeros(targets.shape, bool)
        for first, n in parts:
            held |= (targets >= first) & (targets < first + n)
        rows = held.any(axis=1)
        tasks[pe] = [Rows(own[rows], targets[rows], held[rows])]
    out._run(name, tensor_ops.by_rows, out, x, name, eps, tasks)
    return out


# -- shape


def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Return tensors joined along a dim, in their common type."""
    given = _checked("cat", tuple(tensors))
    if not given:
        raise RuntimeError("torch.cat(): expected a non-empty list of Tensors")
    first = given[0]
    at = first._dim(dim)
    for t in given:
        if t.dim() != first.dim() or (*t.shape[:at], *t.shape[at + 1 :]) != (*first.shape[:at], *first.shape[at + 1 :]):
            raise RuntimeError(
                f"Sizes of tensors must match except in dimension {at}: {tuple(first.shape)} and {tuple(t.shape)}"
            )
    dtype = reduce(_promoted, [t.dtype for t in given])
    shape = [*first.shape]
    shape[at] = sum(t.shape[at] for t in given)
    out = _result(given, shape, dtype)
    order = _order(out)
    source = np.concatenate([np.full(tuple(t.shape), i) for i, t in enumerate(given)], at).reshape(-1)[order]
    places = np.concatenate([_places(t) for t in given], at).reshape(-1)[order]
    tasks: dict[Pe, list[tuple[int, np.ndarray, np.ndarray]]] = {pe: [] for pe in out._parts()}
    for pe, parts in out._parts().items():
        for start, n in parts:
            sources, own = source[start : start + n], places[start : start + n]
            for i in np.unique(sources).tolist():
                tasks[pe].append((i, own[sources == i], start + np.flatnonzero(sources == i)))
    out._run("cat", tensor_ops.move, out, tuple(given), tasks)
    return out


# -- what all share


def _checked(name: str, operands: Sequence[object]) -> list[DeviceTensor]:
    """Return the tensors among some operands, all on one device."""
    found = []
    for x in operands:
        if isinstance(x, DeviceTensor):
            found.append(x)
        elif isinstance(x, Tensor):
            raise ArgumentError(
                f"{name}: a tensor of shape {tuple(x.shape)} is on the host, where there are no operators: move it, "
                '.to("ahbm"), or take its array, .numpy()'
            )
        elif not isinstance(x, Real):
            raise TypeError(f"{name}: expected tensors and numbers, got {quote(x)}")
    devices = {str(t.device) for t in found}
    if len(devices) > 1:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, "
            f"{' and '.join(sorted(devices))}!"
        )
    return found


def _one(name: str, x: Tensor) -> DeviceTensor:
    return _checked(name, (x,))[0]


def _places(x: DeviceTensor) -> np.ndarray:
    """Return where each element is, in elements from the tensor's pointer, in the tensor's shape."""
    base = np.empty(x.layout.shape, np.int64)
    for shard in x.layout.parts:
        key: Any = (*shard.index, ...)  # which gives a view, also of a tensor without dims
        part = base[key]
        first = shard.offset_bytes // x.dtype.itemsize
        part[...] = np.arange(first, first + part.size).reshape(part.shape)
    return x._seen(base)


def _where(x: DeviceTensor) -> np.ndarray:
    """Return where each element is, in elements from the beginning of the memory that views share."""
    return _places(x) + x._offset // x.dtype.itemsize


def _order(x: DeviceTensor) -> np.ndarray:
    """Return the number, in row-major order of the tensor's shape, of each element of its memory."""
    order = np.empty(x.numel(), np.int64)
    order[_places(x).reshape(-1)] = np.arange(x.numel())
    return order


def _result(operands: Sequence[DeviceTensor], shape: Sequence[int], dtype: DType) -> DeviceTensor:
    """Return a new tensor, cut by rows over as many PEs as the operands are on."""
    most = max(operands, key=lambda t: len(t.pes))
    dp = None
    if len(most.pes) > 1 and len(shape) and prod(shape):
        cubes, pes = ({pe[i] for pe in most.pes} for i in (0, 1))
        dp = DPPolicy(cube="row_wise", pe="row_wise", num_cubes=len(cubes), num_pes=len(pes))
    return most._host.deploy(tuple(shape), dtype, most.device, dp, None)


def _broadcast(name: str, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        texts = " and ".join(map(str, shapes))
        raise RuntimeError(
            f"{name}: shapes {texts} do not broadcast: sizes must be equal or 1, from the right"
        ) from None


def _common(x: TensorLike, y: TensorLike) -> DType:
    """Return torch's type of an operator: a number counts only if it is of a higher kind than the tensor."""
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        for wide, other in ((x, y), (y, x)):
            if wide.dim() and not other.dim() and kind(wide.dtype) >= kind(other.dtype):
                return wide.dtype
        return _promoted(x.dtype, y.dtype)
    tensor, number = (x, y) if isinstance(x, Tensor) else (y, x)
    assert isinstance(tensor, Tensor)
    if isinstance(number, float) and not tensor.dtype.is_floating_point:
        return float32
    if isinstance(number, int) and not isinstance(number, bool) and tensor.dtype is bool_:
        return int64
    return tensor.dtype


def _promoted(x: DType, y: DType) -> DType:
    """Return torch's common type of two tensors."""
    if x is y:
        return x
    if x.is_floating_point != y.is_floating_point:
        return x if x.is_floating_point else y
    if not x.is_floating_point:
        return as_dtype(np.result_type(x.numpy, y.numpy))
    found = promote(x, y)
    return float32 if found is float16 and {x.name, y.name} == {"float16", "bfloat16"} else found


class Functional:
    """Names, arguments and meaning are torch's; computed in f32 and rounded once."""

    @staticmethod
    def relu(input: Tensor) -> Tensor:
        """Return max(x, 0)."""
        return unary("relu", input)

    @staticmethod
    def silu(input: Tensor) -> Tensor:
        """Return x sigmoid(x)."""
        return unary("silu", input)

    @staticmethod
    def gelu(input: Tensor, approximate: str = "none") -> Tensor:
        """Return gelu(x) in its tanh form, the one that PE_MATH computes: say `approximate="tanh"`."""
        if approximate != "tanh":
            raise ArgumentError(f'gelu: approximate = {approximate!r}; only "tanh" has a kernel')
        return unary("gelu", input)

    softmax = staticmethod(softmax)

    @staticmethod
    def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return x w^T (+ bias)."""
        product = matmul(input, weight.t())
        return product if bias is None else product + bias

    @staticmethod
    def rms_norm(
        input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
    ) -> Tensor:
        """Return x / sqrt(mean(x^2) + eps) (* weight) over the last dim; eps is that of float32 unless given."""
        y = norm("rms_norm", input, normalized_shape, 1.1920929e-07 if eps is None else eps)
        return y if weight is None else y * weight

    @staticmethod
    def layer_norm(
        input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:  # fmt: skip
        """Return (x - mean) / sqrt(var + eps) (* weight) (+ bias) over the last dim."""
        y = norm("layer_norm", input, normalized_shape, eps)
        y = y if weight is None else y * weight
        return y if bias is None else y + bias

    @staticmethod
    def scaled_dot_product_attention(
        query: Tensor, key: Tensor, value: Tensor, *, scale: float | None = None
    ) -> Tensor:
        """Return softmax(query key^T scale) value; scale is 1 / sqrt(head size) unless given. There is no mask."""
        factor = 1 / sqrt(query.shape[-1]) if scale is None else scale
        scores = matmul(query, key.transpose(-2, -1)) * factor
        return matmul(softmax(scores, -1), value)


class Nn:
    """`torch.nn`: functions only, no modules."""

    functional = Functional
