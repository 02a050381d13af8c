"""Operators on device tensors: each is a launch of a shipped kernel, so that it costs simulated time.

The result of an element-wise operator has the layout of the first operand of its shape. A matrix product is split by
rows over all PEs, or on the one PE that computes it; every other result is split by rows over as many PEs as the
operands are on. These PEs read the operands from any place on the same SIP.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from math import prod
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from kernbench._dtypes import DType, as_dtype, bool_, float16, float32, float64, int64
from kernbench.errors import ArgumentError, quote
from kernbench.ops import attention
from kernbench.ops._routes import host_ns
from kernbench.ops._stored import Piece, Stored
from kernbench.ops.attention import Attention, Heads
from kernbench.ops.copy import Joined, copy
from kernbench.ops.elementwise import elementwise
from kernbench.ops.matmul import BY_ROWS, ONE_PE, PlacementLike, Product
from kernbench.ops.norm import norm as normalize
from kernbench.ops.reduce import index_of_max
from kernbench.ops.reduce import reduce as reduce_rows
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api._device_tensor import DeviceTensor, deploy
from kernbench.runtime_api._layout import row_major
from kernbench.runtime_api._products import chosen_placement, is_alone, launch_product
from kernbench.runtime_api.tensor import Tensor
from kernbench.triton_emu._promotion import kind, promote

TensorLike = Tensor | bool | int | float


class MaxResult(NamedTuple):
    values: Tensor
    indices: Tensor


# -- element by element


def binary(name: str, x: TensorLike, y: TensorLike) -> Tensor:
    """`name` is "add", "sub", "mul" or "div"; operands broadcast, and the result has torch's promoted type."""
    return _elementwise(name, (x, y), _type_of(name, x, y))


def in_place(name: str, x: Tensor, y: TensorLike) -> Tensor:
    """Set `x` to `x` op `y`, computed in torch's promoted type, and return it."""
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
    dtype = _common(x, y)
    if name == "div" and not dtype.is_floating_point:
        dtype = float32
    if name == "sub" and dtype is bool_:
        raise RuntimeError("Subtraction, the `-` operator, with a bool tensor is not supported; convert it first")
    if dtype is bool_:
        raise ArgumentError(f"{name}: two bool tensors; convert one first: x.to(torch.int32)")
    return dtype


def activation(name: str, x: Tensor) -> Tensor:
    """`name` is "relu", "silu" or "gelu" (the tanh form)."""
    return _elementwise(name, (x,), _one(name, x).dtype)


def cast(x: DeviceTensor, dtype: DType, name: str | None = None) -> DeviceTensor:
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
    wide = dtype if dtype.itemsize >= 4 or not dtype.is_floating_point else float32
    out._run(name, elementwise, out, tuple(zip(operands, places, strict=True)), name, wide, out._parts())
    return out


# -- products


def matmul(
    input: Tensor, other: Tensor, *, out: Tensor | None = None, placement: PlacementLike | None = None
) -> Tensor:
    """Return torch's matrix product: of vectors, matrices, or batches of matrices, which broadcast.

    `placement` says which PE computes which part of the result; by default, the one with the lowest estimate is used;
    with "best", those with the lowest estimates are simulated, once and cached on disk, for the fastest. `choice`
    of the result says which, and why. `out` receives the result, and must have its shape.
    """
    return biased_matmul(input, other, None, out, placement)


def biased_matmul(
    input: Tensor, other: Tensor, bias: Tensor | None, out: Tensor | None, placement: PlacementLike | None
) -> Tensor:
    a, b = _checked("matmul", (input, other))
    if a.dtype is not b.dtype:
        raise RuntimeError(f"expected m1 and m2 to have the same dtype, but got: {a.dtype} != {b.dtype}")
    if not a.dtype.is_floating_point or a.dtype is float64:
        raise ArgumentError(f"matmul: {a.dtype} is not a type of PE_GEMM; convert both to torch.float32 or smaller")
    if not a.dim() or not b.dim():
        raise RuntimeError("both arguments to matmul need to be at least 1D, but they are 0D")
    if a.shape[-1] != b.shape[-2 if b.dim() > 1 else 0]:
        raise RuntimeError(f"matmul: shapes {tuple(a.shape)} and {tuple(b.shape)} cannot be multiplied")
    batch = _broadcast("matmul", [tuple(a.shape[:-2]), tuple(b.shape[:-2])])
    shape = (*batch, *a.shape[-2:-1], *(b.shape[-1:] if b.dim() > 1 else ()))
    if out is not None and tuple(out.shape) != shape:
        raise ArgumentError(f"matmul: out has the shape {tuple(out.shape)}, the result has {shape}")
    target = None if out is None else _one("matmul", out)
    fits = isinstance(bias, DeviceTensor) and (bias.dtype, tuple(bias.shape)) == (a.dtype, shape[-1:])
    if 0 in (*shape, a.shape[-1]):
        found: Tensor = _result((a, b), shape, a.dtype) if target is None else target
        if 0 not in shape:
            found.fill_(0)
        fits = False
    else:
        left = a
        if b.dim() <= 2 and a.dim() > 2 and a.is_contiguous():  # one matrix product with more rows
            left, batch = a.view(-1, a.shape[-1]), ()  # type: ignore[assignment]
        found = _launched(left, b, bias if fits else None, target, batch, shape, placement)  # type: ignore[arg-type]
    return found if bias is None or fits else in_place("add", found, bias)


def _launched(
    a: DeviceTensor, b: DeviceTensor, bias: DeviceTensor | None, out: DeviceTensor | None, batch: tuple[int, ...],
    shape: tuple[int, ...], placement: PlacementLike | None,
) -> Tensor:  # fmt: skip
    """Compute a @ b (+ bias) in the placement requested or the cheapest by estimate; move operands if that pays."""
    host, dtype, config, machine = a._host, a.dtype, a._host.config, a._host.engine.machine
    (a, left), (b, right) = _stack(a, batch, True), _stack(b, batch, False)
    count, (rows, k), n = prod(batch), left.shape, right.shape[1]
    added = None if bias is None else _stack(bias, (), True)[1]
    at = Stored.of(config, (rows, n), BY_ROWS)
    if out is not None:
        given = _stored(out.view(rows, n), (), True)  # type: ignore[arg-type]
        assert given is not None, "out is no matrix"
        at = given
    ns = host_ns(config) if host.capturing(a.sip) is None else 0.0
    asked = Product(rows // count, n, k, dtype.name, left, right, at, count, added, host_ns=ns)
    choice = chosen_placement(machine, asked, placement)
    alone = is_alone(asked, choice, out is not None)
    if alone:
        asked = replace(asked, c=Stored.of(config, (rows, n), ONE_PE))
    c = deploy(host, (rows, n), dtype, a.device, ONE_PE if alone else BY_ROWS) if out is None else out
    launch_product(asked, choice, {"a": a, "b": b, "c": c} | ({} if bias is None else {"bias": bias}))
    result = c if tuple(c.shape) == shape else c.view(*shape)
    result.choice = choice
    return result


def _stack(x: DeviceTensor, batch: tuple[int, ...], as_rows: bool) -> tuple[DeviceTensor, Stored]:
    """Return a tensor and its `Stored` as a stack of matrices, broadcast to `batch`; a vector is a row or a column.

    A tensor whose parts are not blocks of the matrices is copied first.
    """
    at = _stored(x, batch, as_rows)
    if at is None:
        x = _elementwise("copy", (x,), x.dtype, _result((x,), x.shape, x.dtype))
        at = _stored(x, batch, as_rows)
    assert at is not None
    return x, at


def _stored(x: DeviceTensor, batch: tuple[int, ...], as_rows: bool) -> Stored | None:
    """Return where the elements are as a stack of matrices; None if the parts are not blocks of matrices."""
    layout, item = x.layout, x.dtype.itemsize
    held = layout.held(x._host.config.pes_per_cube)
    sizes, steps = list(x.shape), list(x._stride)
    if len(sizes) == 1:
        sizes, steps = ([1, *sizes], [0, *steps]) if as_rows else ([*sizes, 1], [*steps, 0])
    (m, n), lead = sizes[-2:], len(sizes) - 2
    # Dims of the batch that the tensor lacks, or that have size 1, are broadcast.
    skipped = len(batch) - lead
    if layout.is_row_major:
        parts = [(first // item, nbytes // item, pes) for first, nbytes, pes in held]
        moves = [0 if i < skipped or sizes[i - skipped] == 1 else steps[i - skipped] for i in range(len(batch))]
        offsets = [sum(i * step for i, step in zip(at, moves, strict=True)) for at in np.ndindex(batch)]
        return Stored.strided((m, n), (steps[-2], steps[-1]), parts, offsets)
    if len(layout.shape) > 2 and (m, n) == (prod(layout.shape[:-1]), layout.shape[-1]) and x.is_contiguous():
        # Rows of several dims are blocks if each part contains all dims between the first and the last one.
        between, pieces = prod(layout.shape[1:-1]), []
        for part, (first, nbytes, pes) in zip(layout.parts, held, strict=True):
            top, left = part.index[0], part.index[-1]
            rows, columns = ((top.stop - top.start) * between, left.stop - left.start)
            if nbytes != rows * columns * item:
                return None
            pieces.append(Piece((top.start * between, rows), (left.start, columns), first // item, columns, 1, pes))
        return Stored((m, n), tuple(pieces))
    own = row_major(layout.shape)
    placed, seen = (list(zip(*x, strict=True)) for x in ((layout.shape, own), (sizes, steps)))
    if sorted(placed) != sorted(seen):
        return None
    dims = [placed.index(dim) for dim in seen]
    pieces = []
    for part, (first, _, pes) in zip(layout.parts, held, strict=True):
        inside = row_major([i.stop - i.start for i in part.index])
        box, inner = [part.index[d] for d in dims], [inside[d] for d in dims]
        spans = [(i.start, i.stop - i.start) for i in box[-2:]]
        for i, at in enumerate(np.ndindex(batch)):
            place = first // item
            for d, (span, step) in enumerate(zip(box[:-2], inner, strict=False)):
                where = at[d + skipped] if sizes[d] > 1 else 0
                if not span.start <= where < span.stop:
                    break
                place += (where - span.start) * step
            else:
                rows = i * m + spans[0][0], spans[0][1]
                pieces.append(Piece(rows, spans[1], place, inner[-2], inner[-1], pes))
    return Stored((prod(batch) * m, n), tuple(pieces))


# -- attention

_ATTENTION = "scaled_dot_product_attention"


def _attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, behind: int | None, scale: float | None,
    enable_gqa: bool,
) -> Tensor:  # fmt: skip
    """With `behind`, query token i sees kv tokens up to i + behind."""
    q, k, v, *masks = _checked(_ATTENTION, (query, key, value) if mask is None else (query, key, value, mask))
    _check_attention(q, k, v, masks, enable_gqa)
    three = [tuple(x.shape) if x.dim() > 2 else (1, *x.shape) for x in (q, k, v)]
    lead = _broadcast(_ATTENTION, [shape[:-3] for shape in three])
    if enable_gqa:
        heads, kv_heads = three[0][-3], three[1][-3]
    else:
        (kv_heads,) = _broadcast(_ATTENTION, [shape[-3:-2] for shape in three[1:]])
        (heads,) = _broadcast(_ATTENTION, [three[0][-3:-2], (kv_heads,)])
    (q_len, head_dim), (kv_len, width) = q.shape[-2:], v.shape[-2:]
    host, dtype, rows = q._host, q.dtype, prod(lead) * heads * q_len
    out = deploy(host, (rows, width), dtype, q.device, BY_ROWS)
    result = out.view(*((*lead, heads) if query.dim() > 2 else ()), q_len, width)
    if not out.numel():
        return result
    sizes = {"q": (heads, q_len, head_dim), "k": (kv_heads, kv_len, head_dim), "v": (kv_heads, kv_len, width)}
    tensors = {"out": out}
    at: dict[str, Any] = {"out": _heads(out.view(*lead, heads, q_len, width), (*lead, heads, q_len, width))}  # type: ignore[arg-type]
    for name, x in zip(("q", "k", "v"), (q, k, v), strict=True):
        tensors[name] = _row_major(x)
        at[name] = _heads(tensors[name], (*lead, *sizes[name]))
    for x in masks:
        tensors["mask"] = _row_major(x)
        at["mask"] = _heads(tensors["mask"], (*lead, heads, q_len, kv_len))
    factor = head_dim**-0.5 if scale is None else float(scale)
    asked = Attention(
        heads, kv_heads, q_len, kv_len, head_dim, width, factor, dtype.name, behind=behind,
        host_ns=host_ns(host.config, "attention") if host.capturing(q.sip) is None else 0.0, **at,
    )  # fmt: skip
    machine = host.engine.machine
    for name, (shape, dp) in attention.partial_results(machine, asked).items():
        tensors[name] = deploy(host, shape, float32, q.device, dp)
    reads = [tensors[name]._handle for name in at if name != "out"]
    for step in attention.steps(machine, asked):
        own = [tensors[name] for name in step.tensors]
        args = (*(t.pointer for t in own), *step.sizes)
        host.launch(q.sip, step.pes, step.kernel, args, step.name, [t._handle for t in own], reads=reads)
    return result


def _check_attention(
    q: DeviceTensor, k: DeviceTensor, v: DeviceTensor, masks: Sequence[DeviceTensor], enable_gqa: bool
) -> None:
    shapes = f"query {tuple(q.shape)}, key {tuple(k.shape)} and value {tuple(v.shape)}"
    if min(q.dim(), k.dim(), v.dim()) < 2:
        raise RuntimeError(f"{_ATTENTION}: {shapes}; each needs at least 2 dims: [..., heads, tokens, head_dim]")
    if not q.dtype is k.dtype is v.dtype:
        raise RuntimeError(
            f"{_ATTENTION}: expected query, key and value of one dtype, but got {q.dtype}, {k.dtype} and {v.dtype}; "
            "convert them first: key.to(query.dtype)"
        )
    if not q.dtype.is_floating_point or q.dtype is float64:
        raise ArgumentError(f"{_ATTENTION}: {q.dtype} is not a type of PE_GEMM; convert all three to torch.float32")
    if not 0 < q.shape[-1] == k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise RuntimeError(f"{_ATTENTION}: {shapes}; query and key need one head size, key and value as many tokens")
    heads = [x.shape[-3] if x.dim() > 2 else 1 for x in (q, k, v)]
    if enable_gqa and (heads[1] != heads[2] or heads[0] % max(1, heads[1])):
        raise RuntimeError(f"{_ATTENTION}: {shapes}; heads of key and value need to be equal and divide those of query")
    for mask in masks:
        if mask.dtype is not bool_ and mask.dtype not in (q.dtype, float32):
            raise RuntimeError(
                f"{_ATTENTION}: attn_mask is {mask.dtype}; expected bool, float32 or {q.dtype}, as query is: convert it"
            )


def _row_major(x: DeviceTensor) -> DeviceTensor:
    """Return the tensor, or a copy, such that its strides give the places of its elements."""
    return x if x.layout.is_row_major else _elementwise("copy", (x,), x.dtype, _result((x,), x.shape, x.dtype))


def _heads(x: DeviceTensor, shape: tuple[int, ...]) -> Heads:
    """Return where the elements of a row-major tensor are, broadcast to [..., heads, tokens, width]."""
    if _broadcast(_ATTENTION, [tuple(x.shape), shape]) != shape:
        raise RuntimeError(f"{_ATTENTION}: the shape {tuple(x.shape)} does not broadcast to {shape}")
    skipped = len(shape) - x.dim()
    moves = [0] * skipped + [0 if n == 1 else step for n, step in zip(x.shape, x._stride, strict=True)]
    offsets = tuple(sum(i * step for i, step in zip(at, moves, strict=False)) for at in np.ndindex(shape[:-3]))
    held = x.layout.held(x._host.config.pes_per_cube)
    item = x.dtype.itemsize
    parts = tuple((first // item, nbytes // item, pes) for first, nbytes, pes in held)
    return Heads(offsets, (moves[-3], moves[-2], moves[-1]), parts)


# -- reductions


def total(
    input: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False, dtype: DType | str | None = None
) -> Tensor:
    """Sum over some dims (default: all); of integers in int64, as in torch."""
    given = _one("sum", input)
    out = as_dtype(dtype) if dtype is not None else given.dtype if given.dtype.is_floating_point else int64
    return _reduce("sum", given, dim, keepdim, out, 1)


def mean(
    input: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False, dtype: DType | str | None = None
) -> Tensor:
    """Mean over some dims (default: all); floats only."""
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
    """Without `dim` the largest value; along `dim`, a `MaxResult` with the indices of the first largest."""
    given = _one("max", input)
    if any(not given.shape[d] for d in _dims(given, dim)):
        raise RuntimeError("max(): Expected reduction dim to be specified for input.numel() == 0, and of size > 0")
    values = _reduce("max", given, dim, keepdim, given.dtype, 1)
    if dim is None:
        return values
    places, shape = _rows(given, _dims(given, dim), keepdim)
    indices = _result((given,), shape, int64)
    indices._run("max", index_of_max, indices, (given, places[_order(indices)]), indices._parts())
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
    out._run(name, reduce_rows, out, (x, places[_order(out)]), name, wide, scale, out._parts())
    return out


def _dims(x: Tensor, dim: int | Sequence[int] | None) -> list[int]:
    given = range(x.dim()) if dim is None else [dim] if isinstance(dim, int) else dim
    dims = [x._dim(d) for d in given] if x.dim() else []
    if len(set(dims)) < len(dims):
        raise RuntimeError(f"dim {dim} appears multiple times in the list of dims")
    return dims if dims or dim is None else list(range(x.dim()))


def _rows(x: DeviceTensor, dims: Sequence[int], keepdim: bool) -> tuple[np.ndarray, tuple[int, ...]]:
    """Return the places of each result's operands, one row per result element, and the shape of the result."""
    kept = [d for d in range(x.dim()) if d not in dims]
    places = _places(x).transpose([*kept, *dims])
    shape = tuple(1 if d in dims else x.shape[d] for d in range(x.dim()) if keepdim or d not in dims)
    width = prod(x.shape[d] for d in dims)
    return places.reshape(prod(x.shape[d] for d in kept), width), shape


# -- rows


def softmax(input: Tensor, dim: int | None = None, dtype: DType | str | None = None) -> Tensor:
    given = _one("softmax", input)
    if dim is None:
        raise ArgumentError("softmax: dim is missing: which dim sums to 1")
    out = as_dtype(dtype) if dtype is not None else given.dtype
    return _by_rows("softmax", given, given._dim(dim), out, 0.0)


def _norm(name: str, x: Tensor, size: int | Sequence[int], eps: float) -> Tensor:
    """`name` is "rms_norm" or "layer_norm"; `size` is the last dim, the only one that is normalized."""
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
    places, targets = (np.moveaxis(_places(t), dim, -1).reshape(-1, t.shape[dim]) for t in (x, out))
    out._run(name, normalize, out, (x, places, targets), name, eps, out._parts())
    return out


# -- shape


def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
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
    out._run("cat", copy, out, tuple(given), Joined(source, places, out._parts()))
    return out


# -- shared helpers


def _checked(name: str, operands: Sequence[object]) -> list[DeviceTensor]:
    """Return the tensors among `operands`; raise unless all are on one device."""
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
    """Places of the elements, in the tensor's shape, in elements from the tensor's pointer."""
    base = np.empty(x.layout.shape, np.int64)
    for shard in x.layout.parts:
        key: Any = (*shard.index, ...)  # `...` gives a view, also of a 0-d tensor
        part = base[key]
        first = shard.offset_bytes // x.dtype.itemsize
        part[...] = np.arange(first, first + part.size).reshape(part.shape)
    return x._seen(base)


def _where(x: DeviceTensor) -> np.ndarray:
    return _places(x) + x._offset // x.dtype.itemsize


def _order(x: DeviceTensor) -> np.ndarray:
    """For each element in memory order, its row-major index in the tensor."""
    order = np.empty(x.numel(), np.int64)
    order[_places(x).reshape(-1)] = np.arange(x.numel())
    return order


def _result(operands: Sequence[DeviceTensor], shape: Sequence[int], dtype: DType) -> DeviceTensor:
    """Allocate a result, split by rows over as many PEs as the operands are on."""
    most = max(operands, key=lambda t: len(t.pes))
    dp = None
    if len(most.pes) > 1 and len(shape) and prod(shape):
        cubes, pes = ({pe[i] for pe in most.pes} for i in (0, 1))
        dp = DPPolicy(cube="row_wise", pe="row_wise", num_cubes=len(cubes), num_pes=len(pes))
    return deploy(most._host, tuple(shape), dtype, most.device, dp)


def _broadcast(name: str, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        texts = " and ".join(map(str, shapes))
        raise RuntimeError(
            f"{name}: shapes {texts} do not broadcast: sizes must be equal or 1, from the right"
        ) from None


def _common(x: TensorLike, y: TensorLike) -> DType:
    """Torch's type promotion: a number counts only if it is of a higher category than the tensor."""
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
    if x is y:
        return x
    if x.is_floating_point != y.is_floating_point:
        return x if x.is_floating_point else y
    if not x.is_floating_point:
        return as_dtype(np.result_type(x.numpy, y.numpy))
    found = promote(x, y)
    return float32 if found is float16 and {x.name, y.name} == {"float16", "bfloat16"} else found


class Functional:
    """Names, arguments and meanings of torch; computed in f32 and rounded once."""

    @staticmethod
    def relu(input: Tensor) -> Tensor:
        return activation("relu", input)

    @staticmethod
    def silu(input: Tensor) -> Tensor:
        return activation("silu", input)

    @staticmethod
    def gelu(input: Tensor, approximate: str = "none") -> Tensor:
        """Return gelu(x) in its tanh form, which PE_MATH computes; requires `approximate="tanh"`."""
        if approximate != "tanh":
            raise ArgumentError(f'gelu: approximate = {approximate!r}; only "tanh" has a kernel')
        return activation("gelu", input)

    softmax = staticmethod(softmax)

    @staticmethod
    def linear(
        input: Tensor, weight: Tensor, bias: Tensor | None = None, *, placement: PlacementLike | None = None
    ) -> Tensor:
        """Return x w^T (+ bias); `placement` as of `matmul`."""
        return biased_matmul(input, weight.t(), bias, None, placement)

    @staticmethod
    def rms_norm(
        input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
    ) -> Tensor:
        """Return x / sqrt(mean(x^2) + eps) (* weight) over the last dim; the default eps is that of float32."""
        y = _norm("rms_norm", input, normalized_shape, 1.1920929e-07 if eps is None else eps)
        return y if weight is None else y * weight

    @staticmethod
    def layer_norm(
        input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:  # fmt: skip
        """Return (x - mean) / sqrt(var + eps) (* weight) (+ bias) over the last dim."""
        y = _norm("layer_norm", input, normalized_shape, eps)
        y = y if weight is None else y * weight
        return y if bias is None else y + bias

    @staticmethod
    def scaled_dot_product_attention(
        query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
        is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    ) -> Tensor:  # fmt: skip
        """Return softmax(query key^T scale + attn_mask) value, with the arguments and meaning of torch.

        Parameters
        ----------
        query, key, value : Tensor
            [..., heads, tokens, head_dim], of one float type; the dims before the last two broadcast.
        attn_mask : Tensor, optional
            Broadcast to [..., heads, query tokens, kv tokens]: bool (True: attend), or floats that are added.
        dropout_p : float
            Only 0.
        is_causal : bool
            Whether query token i sees the kv tokens 0 to i only.
        scale : float, optional
            By default 1 / sqrt(head_dim).
        enable_gqa : bool
            Whether several heads of query may share one of key and value.

        Raises
        ------
        ArgumentError, RuntimeError
            If shapes, types or arguments are incompatible.

        Examples
        --------
        >>> import kernbench as kb
        >>> with kb.session() as torch:
        ...     x = torch.ones(2, 4, 16, 64, dtype=torch.float16, device="ahbm")
        ...     torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True).shape
        torch.Size([2, 4, 16, 64])
        """
        if dropout_p:
            raise ArgumentError(f"{_ATTENTION}: dropout_p = {dropout_p}; there is no dropout: use 0.0")
        if is_causal and attn_mask is not None:
            raise RuntimeError(f"{_ATTENTION}: attn_mask and is_causal=True; let the mask say which keys are seen")
        return _attend(query, key, value, attn_mask, 0 if is_causal else None, scale, enable_gqa)


class Nn:
    """`torch.nn`: functions only, no modules."""

    functional = Functional
