"""Placement of a tensor inside one SIP: which PE holds which part, and its offset in the VA range.

The cube policy splits the tensor, the PE policy splits each cube's part. Sizes that do not divide evenly follow
torch.chunk: parts of ceil(size / parts), the last one smaller, further ones empty (no shard).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from kernbench._registry import hint
from kernbench.errors import PlacementError

_Box = tuple[tuple[int, int], ...]  # start and stop along each dim
Cut = list[list[_Box]]  # the boxes of each part
_Tile = tuple[int, ...]


def replicate(boxes: Sequence[_Box], parts: int, tile: _Tile | None = None) -> Cut:
    return [list(boxes) for _ in range(parts)]


def row_wise(boxes: Sequence[_Box], parts: int, tile: _Tile | None = None) -> Cut:
    return _chunk(boxes, parts, 0)


def column_wise(boxes: Sequence[_Box], parts: int, tile: _Tile | None = None) -> Cut:
    return _chunk(boxes, parts, -1)


def tiled_row_major(boxes: Sequence[_Box], parts: int, tile: _Tile | None = None) -> Cut:
    """Tile i in row-major order goes to part i mod `parts`."""
    return _deal([t for box in boxes for t in itertools.product(*_tile_spans(box, tile))], parts)


def tiled_column_major(boxes: Sequence[_Box], parts: int, tile: _Tile | None = None) -> Cut:
    """Tile i in column-major order goes to part i mod `parts`."""
    return _deal([t[::-1] for box in boxes for t in itertools.product(*_tile_spans(box, tile)[::-1])], parts)


POLICIES: dict[str, Callable[[Sequence[_Box], int, _Tile | None], Cut]] = {
    "column_wise": column_wise,
    "replicate": replicate,
    "row_wise": row_wise,
    "tiled_column_major": tiled_column_major,
    "tiled_row_major": tiled_row_major,
}


@dataclass(frozen=True, slots=True)
class DPPolicy:
    """How a tensor is distributed over the cubes of a SIP and the PEs of a cube.

    Parameters
    ----------
    cube, pe : str
        "replicate", "row_wise" (dim 0), "column_wise" (last dim), "tiled_row_major" or "tiled_column_major".
    num_cubes, num_pes : int, optional
        Use only the first ones; by default all.
    tile : tuple of int, optional
        Size of a tile along each dim, for the tiled policies.
    cubes : tuple of int, optional
        Use these cubes, in this order, instead of the first ones.

    Examples
    --------
    >>> policy = DPPolicy(cube="column_wise", pe="row_wise", num_cubes=2, num_pes=2)
    >>> [s.index for s in resolve_dp_policy(policy, shape=(4, 6), itemsize=2, num_pe=8, num_cubes=16, target_sip=0)]
    [(slice(0, 2, None), slice(0, 3, None)), (slice(2, 4, None), slice(0, 3, None)),
     (slice(0, 2, None), slice(3, 6, None)), (slice(2, 4, None), slice(3, 6, None))]
    """

    cube: str = "replicate"
    pe: str = "replicate"
    num_cubes: int | None = None
    num_pes: int | None = None
    tile: _Tile | None = None
    cubes: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        for field in ("cube", "pe"):
            name = getattr(self, field)
            if name not in POLICIES:
                raise PlacementError(f"DPPolicy: {field} = {name!r} is not a policy; {hint(name, POLICIES)}")
        for field in ("num_cubes", "num_pes"):
            count = getattr(self, field)
            if count is not None and count < 1:
                raise PlacementError(f"DPPolicy: {field} = {count} must be at least 1")
        cubes = self.cubes
        if cubes is not None and (self.num_cubes or not cubes or min(cubes) < 0 or len(set(cubes)) < len(cubes)):
            raise PlacementError(f"DPPolicy: cubes = {cubes}; give different numbers from 0, without num_cubes")
        tiled = any(name.startswith("tiled") for name in (self.cube, self.pe))
        if tiled and (self.tile is None or min(self.tile, default=0) < 1):
            raise PlacementError(
                f"DPPolicy: tile = {self.tile}; a tiled policy needs the size of a tile along each dim"
            )
        if self.tile is not None and not tiled:
            raise PlacementError(
                f"DPPolicy: tile = {self.tile}, but neither cube nor pe is a tiled policy; leave it out"
            )


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """One contiguous part of a tensor and the PE that holds it.

    `offset_bytes` and `nbytes` are its bytes in the tensor's VA range, row-major; replicated shards share them.
    `index` is the part of the tensor, of shape `shape`; empty where it does not matter.
    """

    sip: int
    cube: int
    pe: int
    offset_bytes: int
    nbytes: int
    index: tuple[slice, ...] = ()
    shape: tuple[int, ...] = ()


def resolve_dp_policy(
    policy: DPPolicy,
    *,
    shape: Sequence[int],
    itemsize: int,
    num_pe: int,
    num_cubes: int = 1,
    target_sip: int,
) -> list[ShardSpec]:
    """Return the shards of a tensor, ordered by cube, PE and tile; PlacementError if the policy does not fit."""
    shape = tuple(shape)
    numbers = policy.cubes or range(_count("num_cubes", policy.num_cubes, num_cubes))
    if max(numbers) >= num_cubes:
        raise PlacementError(f"DPPolicy: cubes = {policy.cubes}, but there are {num_cubes}, numbered from 0")
    pes = _count("num_pes", policy.num_pes, num_pe)
    whole: _Box = tuple((0, size) for size in shape)
    shards = []
    offsets: dict[_Box, int] = {}
    used = 0
    for cube, cubes_part in zip(numbers, POLICIES[policy.cube]([whole], len(numbers), policy.tile), strict=True):
        for pe, boxes in enumerate(POLICIES[policy.pe](cubes_part, pes, policy.tile)):
            for box in boxes:
                part = tuple(stop - start for start, stop in box)
                nbytes = prod(part) * itemsize
                if not nbytes:
                    continue
                if box not in offsets:
                    offsets[box], used = used, used + nbytes
                index = tuple(slice(start, stop) for start, stop in box)
                shards.append(ShardSpec(target_sip, cube, pe, offsets[box], nbytes, index, part))
    return shards


def _count(field: str, wanted: int | None, present: int) -> int:
    if wanted is not None and wanted > present:
        raise PlacementError(f"DPPolicy: {field} = {wanted}, but there are {present}; expected at most that")
    return present if wanted is None else wanted


def _chunk(boxes: Sequence[_Box], parts: int, dim: int) -> Cut:
    cut: Cut = [[] for _ in range(parts)]
    for box in boxes:
        if not box:
            raise PlacementError("a 0-d tensor cannot be sharded; use replicate")
        start, stop = box[dim]
        step = -(-(stop - start) // parts)
        for part in range(parts):
            span = min(start + part * step, stop), min(start + (part + 1) * step, stop)
            if span[0] < span[1]:
                piece = list(box)
                piece[dim] = span
                cut[part].append(tuple(piece))
    return cut


def _tile_spans(box: _Box, tile: _Tile | None) -> list[list[tuple[int, int]]]:
    if tile is None or len(tile) != len(box):
        raise PlacementError(f"tile = {tile} does not fit a tensor of {len(box)} dims; give one size for each dim")
    return [
        [(at, min(at + size, stop)) for at in range(start, stop, size)]
        for (start, stop), size in zip(box, tile, strict=True)
    ]


def _deal(tiles: Sequence[_Box], parts: int) -> Cut:
    return [list(tiles[part::parts]) for part in range(parts)]
