"""Operations on DTensors: choose placements by rule, redistribute, and compute on each rank's part."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, SupportsFloat

from kernbench.dtensor._placements import Partial, Placement, Replicate, Shard
from kernbench.dtensor._redistribute import allocate, on_device
from kernbench.errors import PlacementError, quote
from kernbench.ops.matmul import BY_ROWS
from kernbench.runtime_api import _operators as operators
from kernbench.runtime_api._device_tensor import DeviceTensor
from kernbench.runtime_api.tensor import Tensor

if TYPE_CHECKING:
    from kernbench.dtensor._api import DTensor


Rule = tuple[tuple[Placement, ...], Placement]  # placements of the operands, and that of the result

_R, P = Replicate(), Partial()


def _products(ndim: int) -> tuple[Rule, ...]:
    last = ndim - 1
    rows = tuple(((Shard(dim), _R), Shard(dim)) for dim in range(last))
    return (
        ((_R, _R), _R),
        *rows,
        ((_R, Shard(1)), Shard(last)),
        ((Shard(last), Shard(0)), P),
        ((P, _R), P),
        ((_R, P), P),
    )


MATMUL = _products(2)


def _elementwise(ndim: int, operands: int, linear: bool) -> tuple[Rule, ...]:
    """Rules of an elementwise operation on `operands` tensors of one shape.

    `linear`: f(sum of a_i, sum of b_i) = sum of f(a_i, b_i), as for addition.
    """
    same: list[Placement] = [_R, *(Shard(dim) for dim in range(ndim)), *([P] if linear else [])]
    return tuple(((placement,) * operands, placement) for placement in same)


def _multiply(ndim: int) -> tuple[Rule, ...]:
    """Rules of an elementwise product: one factor may be `Partial`."""
    return (*_elementwise(ndim, 2, linear=False), ((P, _R), P), ((_R, P), P))


def _moved(source: Placement, target: Placement, nbytes: float, ranks: int) -> float:
    """Bytes that a rank sends to redistribute an operand of `nbytes` in total; infinite where it is impossible.

    Local steps are free; collectives count as rings.
    """
    if source == target or isinstance(source, Replicate):
        return 0.0
    if isinstance(target, Partial):
        return float("inf")
    share = nbytes * (ranks - 1) / ranks
    match source, target:
        case Shard(), Shard():
            return share / ranks
        case Partial(), Replicate():
            return 2 * share
    return share


def _choose(
    rules: Sequence[Rule], operands: Sequence[Placement], nbytes: Sequence[float], ranks: int
) -> tuple[tuple[Placement, ...], Placement]:
    """Return the rule for which the fewest bytes move; the first of equals.

    >>> _choose(MATMUL, (Shard(1), _R), (1.0, 1.0), 4)
    ((Shard(dim=1), Shard(dim=0)), Partial(sum))
    """

    def cost(rule: Rule) -> float:
        return sum(_moved(a, b, n, ranks) for a, b, n in zip(operands, rule[0], nbytes, strict=True))

    exact = [rule for rule in rules if rule[0] == tuple(operands)]
    return exact[0] if exact else min(rules, key=cost)


def matmul(a: DTensor, b: DTensor, bias: Tensor | None = None) -> DTensor:
    """Multiply; the result is by rows over the PEs of each rank, and each rank adds its `bias` to its part."""
    _check_operand("@", a, b)
    if not a.dim() or b.dim() != 2 or a.shape[-1] != b.shape[0]:
        raise PlacementError(f"matmul: shapes {tuple(a.shape)} and {tuple(b.shape)} do not fit; b is a matrix")
    (x, y), result = _aligned([a, b], _products(a.dim()))
    out = allocate(x, (*x.shape[:-1], y.shape[1]), BY_ROWS)
    if x.numel() and y.numel():
        operators.biased_matmul(x, y, bias, out, None)
    elif not y.shape[0]:
        out.fill_(0.0)  # a sum over zero elements
    return _wrapped(out, a, result, (*a.shape[:-1], b.shape[1]))


def add(a: DTensor, b: DTensor | SupportsFloat) -> DTensor:
    """Add; a `Partial` operand is reduced before a number is added, which each rank adds."""
    if isinstance(b, Real):
        whole = a.redistribute(placements=[Replicate() if isinstance(p, Partial) else p for p in a.placements])
        return _scalar("add", whole, b)
    return _binary("add", "+", a, b, _elementwise(a.dim(), 2, linear=True))


def mul(a: DTensor, b: DTensor | SupportsFloat) -> DTensor:
    """Multiply; a number leaves the placements unchanged: `Partial` times a number is `Partial`."""
    if isinstance(b, Real):
        return _scalar("mul", a, b)
    return _binary("mul", "*", a, b, _multiply(a.dim()))


def unary(name: str, a: DTensor) -> DTensor:
    (x,), result = _aligned([a], _elementwise(a.dim(), 1, linear=False))
    return _wrapped(operators.activation(name, x), a, result, a.shape)


def _scalar(name: str, a: DTensor, value: Any) -> DTensor:
    if not a.dtype.is_floating_point and not isinstance(value, Integral):
        raise TypeError(f"{name}: {quote(value)} with a DTensor of {a.dtype}; expected an int, or a tensor of floats")
    return _wrapped(operators.binary(name, a.to_local(), value), a, a.placements, a.shape)


def _check_operand(sign: str, like: DTensor, other: object) -> None:
    if isinstance(other, Tensor):
        raise TypeError(
            f"DTensor {sign} a plain tensor of shape {tuple(other.shape)}: distribute it first: "
            "distribute_tensor(tensor, mesh, placements)"
        )
    if not isinstance(other, type(like)):
        raise TypeError(f"DTensor {sign} {quote(other)}: expected a DTensor{'' if sign == '@' else ' or a number'}")


def _binary(name: str, sign: str, a: DTensor, b: Any, allowed: Sequence[Rule]) -> DTensor:
    _check_operand(sign, a, b)
    if a.shape != b.shape:
        raise PlacementError(f"{name}: shapes {tuple(a.shape)} and {tuple(b.shape)} differ; they have to be equal")
    (x, y), result = _aligned([a, b], allowed)
    return _wrapped(operators.binary(name, x, y), a, result, a.shape)


def _aligned(tensors: Sequence[DTensor], allowed: Sequence[Rule]) -> tuple[list[DeviceTensor], tuple[Placement, ...]]:
    """Redistribute the operands by the best rule of each axis; return their local parts and the result's placements."""
    mesh = tensors[0].device_mesh
    if any(t.device_mesh != mesh for t in tensors):
        raise PlacementError(f"operands on different meshes: {', '.join(str(t.device_mesh) for t in tensors)}")
    nbytes = [float(t.dtype.itemsize * t.shape.numel()) for t in tensors]
    chosen = [
        _choose(allowed, [t.placements[axis] for t in tensors], nbytes, mesh.shape[axis]) for axis in range(mesh.ndim)
    ]
    aligned = [t.redistribute(placements=[rule[0][i] for rule in chosen]) for i, t in enumerate(tensors)]
    return [on_device(t.to_local()) for t in aligned], tuple(rule[1] for rule in chosen)


def _wrapped(local: Tensor, like: DTensor, placements: Sequence[Placement], shape: Sequence[int]) -> DTensor:
    return type(like)(local, like.device_mesh, placements, shape)
