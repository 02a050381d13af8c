"""Operations on DTensors: choose placements by rule, redistribute, and let each rank's PEs do their part."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import TYPE_CHECKING, SupportsFloat

from kernbench.dtensor import rules
from kernbench.dtensor.local import COLUMNS, empty, on_device, places_of, policy_of, relaid
from kernbench.dtensor.placements import Partial, Placement, Replicate
from kernbench.dtensor.scalar import scalar
from kernbench.errors import PlacementError, quote
from kernbench.kernels import parts as kernels
from kernbench.kernels.linear import linear
from kernbench.runtime_api.device_tensor import DeviceTensor

if TYPE_CHECKING:
    from kernbench.dtensor.api import DTensor


def matmul(a: DTensor, b: DTensor) -> DTensor:
    """Return a @ b of two matrices."""
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise PlacementError(f"matmul: shapes {tuple(a.shape)} and {tuple(b.shape)} do not fit")
    (x, y), result = _aligned([a, b], rules.MATMUL)
    return _wrapped(product(x, y), a, result, (a.shape[0], b.shape[1]))


def add(a: DTensor, b: DTensor) -> DTensor:
    """Return a + b, element by element."""
    return _binary("add", a, b, rules.elementwise(a.dim(), 2, linear=True))


def mul(a: DTensor, b: DTensor) -> DTensor:
    """Return a * b, element by element."""
    return _binary("mul", a, b, rules.multiply(a.dim()))


def unary(name: str, a: DTensor) -> DTensor:
    """Return a function of each element: "relu", "silu" or "gelu"."""
    (x,), result = _aligned([a], rules.elementwise(a.dim(), 1, linear=False))
    return _wrapped(_each(name, [x]), a, result, a.shape)


def add_scalar(a: DTensor, value: SupportsFloat) -> DTensor:
    """Return a + value; where `a` is a summand it is reduced first, as each rank would add `value` again."""
    whole = a.redistribute(placements=[Replicate() if isinstance(p, Partial) else p for p in a.placements])
    return _scalar("add", whole, value)


def mul_scalar(a: DTensor, value: SupportsFloat) -> DTensor:
    """Return a * value; the product of summands is a summand of the product."""
    return _scalar("mul", a, value)


def _scalar(name: str, a: DTensor, value: SupportsFloat) -> DTensor:
    if not a.dtype.is_floating_point and not isinstance(value, Integral):
        raise TypeError(f"{name}: {quote(value)} with a DTensor of {a.dtype}; expected an int, or a tensor of floats")
    x = on_device(a.to_local())
    out = empty(x, x.shape)
    if out.shards:
        args = (name, x.pointer, float(value), out.pointer, out._parts())
        out._host.launch(out.sip, out.pes, scalar, args, f"{name} scalar", [x._handle, out._handle])
    return _wrapped(out, a, a.placements, a.shape)


def _binary(name: str, a: DTensor, b: DTensor, allowed: Sequence[rules.Rule]) -> DTensor:
    if a.shape != b.shape:
        raise PlacementError(f"{name}: shapes {tuple(a.shape)} and {tuple(b.shape)} differ; they have to be equal")
    (x, y), result = _aligned([a, b], allowed)
    return _wrapped(_each(name, [x, y]), a, result, a.shape)


def _aligned(
    tensors: Sequence[DTensor], allowed: Sequence[rules.Rule]
) -> tuple[list[DeviceTensor], tuple[Placement, ...]]:
    """Return the parts of the operands, redistributed by the best rule of each axis, and the result's placements."""
    mesh = tensors[0].device_mesh
    if any(t.device_mesh != mesh for t in tensors):
        raise PlacementError(f"operands on different meshes: {', '.join(str(t.device_mesh) for t in tensors)}")
    nbytes = [float(t.to_local().element_size()) * _count(t.shape) for t in tensors]
    chosen = [
        rules.choose(allowed, [t.placements[axis] for t in tensors], nbytes, mesh.shape[axis])
        for axis in range(mesh.ndim)
    ]
    aligned = [t.redistribute(placements=[rule[0][i] for rule in chosen]) for i, t in enumerate(tensors)]
    return [on_device(t.to_local()) for t in aligned], tuple(rule[1] for rule in chosen)


def _count(shape: Sequence[int]) -> int:
    n = 1
    for size in shape:
        n *= size
    return n


def _wrapped(local: DeviceTensor, like: DTensor, placements: Sequence[Placement], shape: Sequence[int]) -> DTensor:
    return type(like)(local, like.device_mesh, placements, shape)


def product(x: DeviceTensor, w: DeviceTensor) -> DeviceTensor:
    """Return x @ w on one device, by columns over the PEs."""
    weight = relaid(w, COLUMNS)
    (rows, inner), n = x.shape, weight.shape[1]
    out = empty(weight, (rows, n), COLUMNS)
    if x.numel() and weight.numel():
        handles = [t._handle for t in (x, weight, out)]
        args = (x.pointer, weight.pointer, None, out.pointer, rows, inner, n, places_of(x))
        out._host.launch(out.sip, weight.pes, linear, args, f"matmul {rows}x{inner}x{n}", handles)
    elif not inner:
        out.fill_(0.0)  # a sum of nothing
    return out


def _each(name: str, tensors: Sequence[DeviceTensor]) -> DeviceTensor:
    """Return a function of each element, placed as the first of the tensors is, every PE on its own parts."""
    dp = policy_of(tensors[0])
    operands = [relaid(t, dp) for t in tensors]
    out = empty(operands[0], operands[0].shape, dp)
    if out.shards:
        handles = [t._handle for t in (*operands, out)]
        args = (name, tuple(t.pointer for t in operands), out.pointer, out._parts())
        out._host.launch(out.sip, out.pes, kernels.elementwise, args, name, handles)
    return out
