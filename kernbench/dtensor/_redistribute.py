"""Redistribution: each move by its collective, on the parts of the ranks."""

from __future__ import annotations

from collections.abc import Sequence

from kernbench.dtensor._device_mesh import DeviceMesh
from kernbench.dtensor._placements import Move, Partial, Placement, Replicate, Shard, local_part, plan_moves
from kernbench.errors import PlacementError
from kernbench.kernels.partition import chunk
from kernbench.ops.matmul import BY_ROWS
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api._device_tensor import DeviceTensor, deploy
from kernbench.runtime_api._layout import along
from kernbench.runtime_api._process_group import CopyRoute, checked_runs, copying
from kernbench.runtime_api.tensor import Tensor

_MOST_RUNS = 1 << 15  # rows of a tensor split by rows, and then along its last dim (chosen: seconds of host time)


def on_device(tensor: Tensor) -> DeviceTensor:
    """Return `tensor`; raise if it is on the host, or was reshaped or transposed after its placement."""
    if not isinstance(tensor, DeviceTensor):
        raise PlacementError(
            f'a tensor of shape {tuple(tensor.shape)} on the host; expected one on a device: .to("ahbm")'
        )
    if tuple(tensor.shape) != tensor.layout.shape or not tensor.is_contiguous():
        transposed = "" if tensor.is_contiguous() else "transposed to "
        raise PlacementError(
            f"{tensor.name}: {transposed}shape {tuple(tensor.shape)}, placed as {tensor.layout.shape}; use it as it "
            "was placed, or copy it: .contiguous()"
        )
    return tensor


def allocate(like: DeviceTensor, shape: Sequence[int], dp: DPPolicy | None = None) -> DeviceTensor:
    """Allocate a tensor with the type and device of `like`, placed by `dp` or by the policy of `like`.

    A part of a tensor has no policy; it is placed by rows then.
    """
    return deploy(like._host, shape, like.dtype, like.device, dp or like.layout.dp or BY_ROWS)


def joined(
    parts: Sequence[tuple[Tensor, int, int]], dim: int, room: int | None = None, dp: DPPolicy | None = None
) -> DeviceTensor:
    """Concatenate parts of tensors, as (tensor, start, size) along `dim`.

    The result has `room` indices along `dim` (default: as many as the parts), and is placed as by `allocate`.
    """
    first = on_device(parts[0][0])
    shape = [*first.shape]
    shape[dim] = sum(size for *_, size in parts) if room is None else room
    out, at = allocate(first, shape, dp), 0
    routes, handles = [], [out._handle]
    for tensor, start, size in parts:
        source = on_device(tensor)
        of, to = along(source.layout, dim, start, start + size), along(out.layout, dim, at, at + size)
        runs = checked_runs(of, to, _MOST_RUNS)
        routes.append(CopyRoute(0, 0, source, out, runs))
        handles.append(source._handle)
        at += size
    if any(route.runs for route in routes):
        host = out._host
        host.start(out.sip, copying(host, routes, "join" if len(parts) > 1 else "cut"), handles)
    return out


def _cut(tensor: Tensor, dim: int, start: int, size: int, room: int | None = None) -> DeviceTensor:
    """Copy indices start..start+size-1 along `dim` to the front of a tensor with `room` indices."""
    return joined([(tensor, start, size)], dim, room)


def relaid(tensor: Tensor, dp: DPPolicy) -> DeviceTensor:
    """Return `tensor` placed by `dp`, copied only if its placement differs."""
    source = on_device(tensor)
    return source if source.layout.dp == dp else joined([(source, 0, source.shape[0])], 0, dp=dp)


def redistribute(
    local: Tensor, shape: Sequence[int], mesh: DeviceMesh, source: Sequence[Placement], target: Sequence[Placement],
    *, in_place: bool = False,
) -> Tensor:  # fmt: skip
    """Redistribute a tensor of `shape`; return this rank's part, placed by the policy of `local`.

    `in_place`: an all-reduce leaves the sum in `local`.
    """
    now = list(source)
    for move in plan_moves(source, target):
        now[move.axis] = Replicate()
        whole, _ = local_part(shape, mesh.shape, mesh.coordinate(), now)
        now[move.axis] = move.target
        if mesh.shape[move.axis] > 1:
            local = _moved(local, whole, mesh, move, in_place)
    return local


def _moved(local: Tensor, whole: Sequence[int], mesh: DeviceMesh, move: Move, in_place: bool) -> Tensor:
    """Make one move; `whole` is the shape of the ranks' parts together, along the axis."""
    dist, group = mesh.torch.distributed, mesh.get_group(move.axis)
    n, rank = group.size(), group.rank()
    match move.source, move.target:
        case Shard(0), Replicate() if whole[0] % n == 0:
            joint = allocate(on_device(local), whole)
            dist.all_gather_into_tensor(joint, local, group=group)
            return joint
        case Shard(dim), Replicate():
            # Smaller parts are padded for the collective.
            sizes = [size for _, size in _chunks(whole[dim], n)]
            own = local if local.shape[dim] == sizes[0] else _cut(local, dim, 0, local.shape[dim], sizes[0])
            parts = [allocate(on_device(own), own.shape) for _ in sizes]
            dist.all_gather(parts, own, group=group)
            return joined([(part, 0, size) for part, size in zip(parts, sizes, strict=True)], dim)
        case Shard(dim), Shard(to):
            spans = _chunks(whole[to], n)
            sent: list[Tensor] = [_cut(local, to, start, size) for start, size in spans]
            shapes = [[*whole] for _ in range(n)]
            for shape, (_, size) in zip(shapes, _chunks(whole[dim], n), strict=True):
                shape[dim], shape[to] = size, spans[rank][1]
            got = [allocate(on_device(local), shape) for shape in shapes]
            dist.all_to_all(got, sent, group=group)
            return joined([(part, 0, part.shape[dim]) for part in got], dim)
        case Partial(), Replicate():
            total = local if in_place else local.clone()
            dist.all_reduce(total, group=group)
            return total
        case Partial(), Shard(0) if whole[0] % n == 0:
            out = allocate(on_device(local), (whole[0] // n, *whole[1:]))
            dist.reduce_scatter_tensor(out, local, group=group)
            return out
        case Partial(), Shard(dim):
            padded = padded_parts(local, dim, n)
            out = allocate(padded[0], padded[0].shape)
            dist.reduce_scatter(out, padded, group=group)
            return trimmed(out, dim, chunk(whole[dim], n, rank)[1])
        case Replicate(), Shard(dim):
            return _cut(local, dim, *chunk(whole[dim], n, rank))
        case _:
            # Replicate to Partial: the first rank keeps the tensor, the others have zeros.
            return local if rank == 0 else mesh.torch.zeros_like(local)


def _chunks(n: int, parts: int) -> list[tuple[int, int]]:
    """Split `n` as torch.chunk does: the first part is the largest."""
    return [chunk(n, parts, i) for i in range(parts)]


def padded_parts(whole: Tensor, dim: int, n: int) -> list[DeviceTensor]:
    """Split along `dim` into `n` parts, padded to equal sizes, as torch does for collectives."""
    parts = _chunks(whole.shape[dim], n)
    return [_cut(whole, dim, start, size, parts[0][1]) for start, size in parts]


def trimmed(part: DeviceTensor, dim: int, size: int) -> DeviceTensor:
    return part if part.shape[dim] == size else _cut(part, dim, 0, size)
