"""Moves between placements, each by its collective, on the parts that the ranks hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

from kernbench.dtensor._device_mesh import DeviceMesh
from kernbench.dtensor._placements import Move, Partial, Placement, Replicate, Shard, local_part, plan
from kernbench.errors import PlacementError
from kernbench.kernels.partition import At, chunk, columns_at, rows_at
from kernbench.policy.placement.dp import DPPolicy, resolve_dp_policy
from kernbench.runtime_api._device_tensor import DeviceTensor
from kernbench.runtime_api._layout import along
from kernbench.runtime_api._process_group import copying, route
from kernbench.runtime_api.tensor import Tensor

if TYPE_CHECKING:
    from kernbench.runtime_api._process_group import ProcessGroup
    from kernbench.runtime_api.distributed import Distributed

COLUMNS = DPPolicy(cube="column_wise", pe="column_wise")


@dataclass(frozen=True, slots=True)
class Copy:
    """`size` indices along a dim, from `start` in one tensor, that go to `at` in another."""

    source: DeviceTensor
    start: int
    target: DeviceTensor
    at: int
    size: int


def on_device(tensor: Tensor) -> DeviceTensor:
    """Return `tensor`, refused if it is on the host, or reshaped or transposed after it was placed."""
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


def copy(copies: Sequence[Copy], dim: int, name: str) -> None:
    """Queue copies between tensors of one device, all cut along `dim`, as one launch."""
    routes = []
    for c in copies:
        of = along(c.source.layout, dim, c.start, c.start + c.size)
        routes.append(route(0, 0, c.source, c.target, of, along(c.target.layout, dim, c.at, c.at + c.size)))
    if not any(r.runs for r in routes):
        return
    host = copies[0].target._host
    handles = [t._handle for c in copies for t in (c.source, c.target)]
    host.start(copies[0].target.sip, copying(host, routes, name), handles)


def empty(like: DeviceTensor, shape: Sequence[int], dp: DPPolicy | None = None) -> DeviceTensor:
    """Return a new tensor of the type of `like` on its device, placed by `dp`, or by the policy of `like`."""
    return like._host.deploy(shape, like.dtype, like.device, dp or policy_of(like), None)


def cut(tensor: Tensor, dim: int, start: int, size: int, room: int | None = None) -> DeviceTensor:
    """Return indices start..start+size-1 along `dim`, at the front of a tensor with `room` of them (default: size).

    It is placed by the policy of `tensor`.
    """
    whole = on_device(tensor)
    shape = [*whole.shape]
    shape[dim] = size if room is None else room
    part = empty(whole, shape)
    copy([Copy(whole, start, part, 0, size)], dim, "cut")
    return part


def join(tensors: Sequence[Tensor], dim: int, sizes: Sequence[int] | None = None) -> DeviceTensor:
    """Return tensors one after the other along `dim`; `sizes` says how much of each counts, from the front.

    The result is placed by the policy of the first of them.
    """
    parts = [on_device(t) for t in tensors]
    counts = [p.shape[dim] for p in parts] if sizes is None else list(sizes)
    shape = [*parts[0].shape]
    shape[dim] = sum(counts)
    out = empty(parts[0], shape)
    starts = [sum(counts[:i]) for i in range(len(parts))]
    copy([Copy(p, 0, out, at, n) for p, at, n in zip(parts, starts, counts, strict=True)], dim, "join")
    return out


def relaid(tensor: Tensor, dp: DPPolicy) -> DeviceTensor:
    """Return `tensor` placed by `dp`: itself where it is already."""
    source = on_device(tensor)
    if _is_placed_by(source, dp):
        return source
    target = empty(source, source.shape, dp)
    copy([Copy(source, 0, target, 0, source.shape[0])], 0, "relay")
    return target


def policy_of(tensor: DeviceTensor) -> DPPolicy:
    """Return the policy that a tensor was placed by; of a part of one, a policy that gives its layout."""
    if tensor.layout.dp is not None:
        return tensor.layout.dp
    config = tensor._host.config
    cubes, pes = {c for c, _ in tensor.pes}, {p for _, p in tensor.pes}
    counts = [(len(cubes), len(pes))]
    if counts[0] != (1, 1):
        counts.insert(0, (config.cubes_per_sip, config.pes_per_cube))
    names = ("column_wise", "row_wise", "replicate")
    for (n_cubes, n_pes), (cube, pe) in product(counts, product(names, names)):
        dp = DPPolicy(cube=cube, pe=pe, num_cubes=n_cubes, num_pes=n_pes)
        if _is_placed_by(tensor, dp):
            return dp
    raise PlacementError(
        f"{tensor.name}: a part of a tensor, as no policy places it; expected one placed by itself: "
        '.cpu().to("ahbm", dp=...)'
    )


def places_of(tensor: Tensor) -> At:
    """Return the places of the elements of a tensor as a matrix: all dims but the last by the last."""
    whole = on_device(tensor)
    columns = whole.shape[-1]
    if whole.layout.is_row_major:
        return rows_at(columns)
    dp, config = policy_of(whole), whole._host.config
    cubes, pes = dp.num_cubes or config.cubes_per_sip, dp.num_pes or config.pes_per_cube
    if not _is_placed_by(whole, replace(COLUMNS, num_cubes=cubes, num_pes=pes)):
        raise PlacementError(
            f"{whole.name}: expected row-major order or column_wise over cubes and PEs, got cube={dp.cube!r}, "
            f"pe={dp.pe!r}"
        )
    return columns_at(whole.numel() // columns, columns, pes, cubes)


def _is_placed_by(tensor: DeviceTensor, dp: DPPolicy) -> bool:
    config = tensor._host.config
    if not tensor.shape:
        return dp.cube == dp.pe == "replicate" and len(tensor.pes) == (dp.num_cubes or 1) * (dp.num_pes or 1)
    specs = resolve_dp_policy(
        dp, shape=tensor.shape, itemsize=tensor.element_size(), num_pe=config.pes_per_cube,
        num_cubes=config.cubes_per_sip, target_sip=tensor.sip,
    )  # fmt: skip
    own = sorted((s.offset_bytes, s.cube, s.pe, s.nbytes, str(s.index)) for s in tensor.shards)
    return own == sorted((s.offset_bytes, s.cube, s.pe, s.nbytes, str(s.index)) for s in specs)


def redistribute(
    local: Tensor, shape: Sequence[int], mesh: DeviceMesh, source: Sequence[Placement], target: Sequence[Placement]
) -> Tensor:
    """Return this rank's part of a tensor of `shape` under other placements, placed by the policy of `local`."""
    now = list(source)
    for move in plan(source, target):
        now[move.axis] = Replicate()
        whole, _ = local_part(shape, mesh.shape, mesh.coordinate(), now)
        now[move.axis] = move.target
        local = _moved(local, whole, mesh, move)
    return local


def _moved(local: Tensor, whole: Sequence[int], mesh: DeviceMesh, move: Move) -> Tensor:
    """Make one move; `whole` is what the ranks along the axis hold together."""
    dist, group = mesh.torch.distributed, mesh.get_group(move.axis)
    n, rank = group.size(), group.rank()
    if n == 1:
        return local
    match move.source, move.target:
        case Shard(dim), Replicate():
            return gathered(local, dim, [size for _, size in chunks(whole[dim], n)], dist, group)
        case Shard(dim), Shard(to):
            parts = chunks(whole[to], n)
            sent: list[DeviceTensor] = [cut(local, to, start, size) for start, size in parts]
            shapes = [[*whole] for _ in range(n)]
            for shape, (_, size) in zip(shapes, chunks(whole[dim], n), strict=True):
                shape[dim], shape[to] = size, parts[rank][1]
            got = [empty(on_device(local), shape) for shape in shapes]
            dist.all_to_all(got, sent, group=group)
            return join(got, dim)
        case Partial(), Replicate():
            total = local.clone()
            dist.all_reduce(total, group=group)
            return total
        case Partial(), Shard(dim):
            padded = padded_parts(local, dim, n)
            out = empty(padded[0], padded[0].shape)
            dist.reduce_scatter(out, padded, group=group)
            return trimmed(out, dim, chunk(whole[dim], n, rank)[1])
        case Replicate(), Shard(dim):
            return cut(local, dim, *chunk(whole[dim], n, rank))
        case _:
            # Replicate to Partial: the first rank keeps the whole, the others have nothing to add.
            return local if rank == 0 else mesh.torch.zeros_like(local)


def chunks(n: int, parts: int) -> list[tuple[int, int]]:
    """Return (start, size) of the parts of `n`, cut as torch.chunk does: the first is the largest."""
    return [chunk(n, parts, i) for i in range(parts)]


def padded_parts(whole: Tensor, dim: int, n: int) -> list[DeviceTensor]:
    """Return the `n` parts along `dim`, the smaller ones padded, as torch pads what it sends."""
    parts = chunks(whole.shape[dim], n)
    return [cut(whole, dim, start, size, parts[0][1]) for start, size in parts]


def trimmed(part: DeviceTensor, dim: int, size: int) -> DeviceTensor:
    """Return a padded part without its padding."""
    return part if part.shape[dim] == size else cut(part, dim, 0, size)


def gathered(local: Tensor, dim: int, sizes: Sequence[int], dist: Distributed, group: ProcessGroup) -> DeviceTensor:
    """Return the parts of all ranks, of `sizes` along `dim`; the smaller ones are padded on their way."""
    most = max(sizes)
    own = on_device(local) if local.shape[dim] == most else cut(local, dim, 0, local.shape[dim], most)
    parts = [empty(own, own.shape) for _ in sizes]
    dist.all_gather(parts, own, group=group)
    return join(parts, dim, sizes)
