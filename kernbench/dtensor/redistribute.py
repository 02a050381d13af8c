"""Moves between placements, each by its collective, on the parts that the ranks hold."""

from __future__ import annotations

from collections.abc import Sequence

from kernbench.dtensor.device_mesh import DeviceMesh
from kernbench.dtensor.local import cut, empty, join, on_device
from kernbench.dtensor.placements import Move, Partial, Placement, Replicate, Shard, local_part, plan
from kernbench.kernels.partition import chunk
from kernbench.runtime_api.device_tensor import DeviceTensor
from kernbench.runtime_api.tensor import Tensor


def redistribute(
    local: Tensor, shape: Sequence[int], mesh: DeviceMesh, source: Sequence[Placement], target: Sequence[Placement]
) -> Tensor:
    """Return this rank's part of a tensor of `shape` under other placements, placed by the policy of `local`.

    Parameters
    ----------
    local : Tensor
        Its part now.
    shape : sequence of int
        Of the whole.
    mesh : DeviceMesh
        The ranks.
    source, target : sequence of Placement
        One for each axis.
    """
    now = list(source)
    for move in plan(source, target):
        now[move.axis] = Replicate()
        at = mesh.get_coordinate()
        assert at is not None, "a rank outside of the mesh has no part"
        whole, _ = local_part(shape, mesh.shape, at, now)
        now[move.axis] = move.target
        local = _moved(local, whole, mesh, move)
    return local


def _moved(local: Tensor, whole: Sequence[int], mesh: DeviceMesh, move: Move) -> Tensor:
    """Make one move; `whole` is what the ranks along the axis hold together."""
    dist, group = mesh.torch.distributed, mesh.get_group(move.axis)
    n, rank = group.size(), group.rank()
    if n == 1:
        return local

    def sizes(dim: int) -> list[int]:
        return [chunk(whole[dim], n, i)[1] for i in range(n)]

    match move.source, move.target:
        case Shard(dim), Replicate():
            return _gathered(local, dim, sizes(dim), dist, group)
        case Shard(dim), Shard(to):
            starts = [chunk(whole[to], n, i) for i in range(n)]
            sent: list[DeviceTensor] = [cut(local, to, start, size) for start, size in starts]
            shapes = [[*whole] for _ in range(n)]
            for i, size in enumerate(sizes(dim)):
                shapes[i][dim], shapes[i][to] = size, starts[rank][1]
            got = [empty(on_device(local), s) for s in shapes]
            dist.all_to_all(got, sent, group=group)
            return join(got, dim)
        case Partial(), Replicate():
            total = local.clone()
            dist.all_reduce(total, group=group)
            return total
        case Partial(), Shard(dim):
            return _reduced(local, dim, sizes(dim), rank, dist, group)
        case Replicate(), Shard(dim):
            return cut(local, dim, *chunk(whole[dim], n, rank))
        case _:
            # Replicate to Partial: the first rank keeps the whole, the others have nothing to add.
            return local if rank == 0 else mesh.torch.zeros_like(local)


def _gathered(local: Tensor, dim: int, sizes: Sequence[int], dist: object, group: object) -> Tensor:
    """Return the parts of all ranks; the smaller ones are padded on their way, as torch does it."""
    most = max(sizes)
    own = local if local.shape[dim] == most else cut(local, dim, 0, local.shape[dim], most)
    parts = [empty(on_device(own), own.shape) for _ in sizes]
    dist.all_gather(parts, own, group=group)  # type: ignore[attr-defined]
    return join(parts, dim, sizes)


def _reduced(local: Tensor, dim: int, sizes: Sequence[int], rank: int, dist: object, group: object) -> Tensor:
    """Return the rank's part of the sum over all ranks; smaller parts are padded on their way."""
    most = max(sizes)
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    parts = [cut(local, dim, start, size, most) for start, size in zip(starts, sizes, strict=True)]
    out = empty(parts[0], parts[0].shape)
    dist.reduce_scatter(out, parts, group=group)  # type: ignore[attr-defined]
    return out if sizes[rank] == most else cut(out, dim, 0, sizes[rank])
