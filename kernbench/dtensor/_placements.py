"""Placements of a tensor along each axis of a device mesh, and the moves between them, as in torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernbench.errors import PlacementError
from kernbench.kernels.partition import chunk


@dataclass(frozen=True, slots=True)
class Replicate:
    """Every rank along the axis has the whole tensor."""

    def __repr__(self) -> str:
        return "Replicate()"


@dataclass(frozen=True, slots=True)
class Shard:
    """The ranks along the axis have consecutive parts of dimension `dim`, split as by torch.chunk."""

    dim: int

    def __repr__(self) -> str:
        return f"Shard(dim={self.dim})"


@dataclass(frozen=True, slots=True)
class Partial:
    """Every rank along the axis has a partial sum; the tensor is the total."""

    reduce_op: str = "sum"

    def __post_init__(self) -> None:
        if self.reduce_op != "sum":
            raise PlacementError(f'Partial: reduce_op = {self.reduce_op!r}; expected "sum"')

    def __repr__(self) -> str:
        return f"Partial({self.reduce_op})"


Placement = Replicate | Shard | Partial


@dataclass(frozen=True, slots=True)
class Move:
    axis: int
    source: Placement
    target: Placement


def normalized(placements: Sequence[Placement], axes: int, ndim: int) -> tuple[Placement, ...]:
    if isinstance(placements, Replicate | Shard | Partial):
        raise PlacementError(
            f"placements = {placements}: expected a list with one placement for each axis of the mesh: [{placements}]"
        )
    if len(placements) != axes:
        raise PlacementError(f"placements = {list(placements)}: a mesh of {axes} axes takes one for each")
    found: list[Placement] = []
    for placement in placements:
        if not isinstance(placement, Replicate | Shard | Partial):
            raise PlacementError(f"placements: {placement!r} is none; expected Shard(dim), Replicate() or Partial()")
        if isinstance(placement, Shard):
            if not -ndim <= placement.dim < ndim:
                raise PlacementError(f"placements: {placement} of a tensor with {ndim} dims; expected 0 to {ndim - 1}")
            placement = Shard(placement.dim % ndim)
        found.append(placement)
    return tuple(found)


def local_part(
    shape: Sequence[int], mesh: Sequence[int], coordinate: Sequence[int], placements: Sequence[Placement]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return (shape, first index) of the part of the rank at `coordinate` of a mesh of shape `mesh`.

    Axes split in order: of two that shard one dim, the later splits the parts of the earlier.

    >>> local_part((7, 4), (4,), (3,), [Shard(0)]), local_part((7, 4), (2, 2), (1, 1), [Shard(0), Shard(0)])
    (((1, 4), (6, 0)), ((1, 4), (6, 0)))
    """
    sizes, first = list(shape), [0] * len(shape)
    for parts, i, placement in zip(mesh, coordinate, placements, strict=True):
        if isinstance(placement, Shard):
            start, sizes[placement.dim] = chunk(sizes[placement.dim], parts, i)
            first[placement.dim] += start
    return tuple(sizes), tuple(first)


def box(
    shape: Sequence[int], mesh: Sequence[int], coordinate: Sequence[int], placements: Sequence[Placement]
) -> tuple[slice, ...]:
    """As `local_part`, as slices of the whole tensor.

    >>> box((7, 4), (4,), (3,), [Shard(0)])
    (slice(6, 7, None), slice(0, 4, None))
    """
    sizes, first = local_part(shape, mesh, coordinate, placements)
    return tuple(slice(start, start + size) for start, size in zip(first, sizes, strict=True))


@dataclass(frozen=True, slots=True)
class LinearStyle:
    """Placements of a linear layer y = x w^T + b; w is (outputs, inputs)."""

    w: Shard
    b: Placement
    x: Placement
    y: Placement


COLUMN_PARALLEL = LinearStyle(Shard(0), Shard(0), Replicate(), Shard(-1))
ROW_PARALLEL = LinearStyle(Shard(1), Replicate(), Shard(-1), Partial())


def plan_moves(source: Sequence[Placement], target: Sequence[Placement]) -> list[Move]:
    """Return the moves from `source` to `target`, in execution order.

    If an outer axis changes its sharding of a dim that an inner axis shards, too, the inner one is gathered first:
    its parts are parts of the outer one's.

    >>> plan_moves([Shard(0), Shard(0)], [Replicate(), Shard(0)])
    [Move(axis=1, source=Shard(dim=0), target=Replicate()), Move(axis=0, source=Shard(dim=0), target=Replicate()),
     Move(axis=1, source=Replicate(), target=Shard(dim=0))]
    """
    for wanted, present in zip(target, source, strict=True):
        if isinstance(wanted, Partial) and isinstance(present, Shard):
            raise PlacementError(f"redistribute: {present} cannot become {wanted}: a part is not a summand")
    now, moves = list(source), []

    def move(axis: int, to: Placement) -> None:
        if now[axis] != to:
            moves.append(Move(axis, now[axis], to))
            now[axis] = to

    for axis in reversed(range(len(now))):
        outer_changes = any(
            now[outer] != target[outer] and now[axis] in (now[outer], target[outer]) for outer in range(axis)
        )
        if isinstance(now[axis], Shard) and outer_changes:
            move(axis, Replicate())
    for axis, wanted in enumerate(target):
        move(axis, wanted)
    return moves
