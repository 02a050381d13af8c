"""What every rank's part of a gather, or of a scatter, is for a kernel: one behind the other in each PE's memory.

A tensor that lies so already is used as it is. For any other there is a packed one beside it, and the PEs copy between
the two: inside a device, which is fast beside the links between devices.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernbench.runtime_api.device_tensor import DeviceTensor
from kernbench.runtime_api.exchange import copying, out_of_order, route
from kernbench.runtime_api.host import Host
from kernbench.runtime_api.layout import Layout
from kernbench.runtime_api.regions import Region, chunks, elements, runs, stacked, whole
from kernbench.runtime_api.work import Start

Parts = Sequence[tuple[DeviceTensor, Region]]
Kept = dict[tuple[object, ...], DeviceTensor]


def joint_parts(joint: DeviceTensor, part: DeviceTensor, n: int) -> tuple[Layout, Parts]:
    """Return what `joint`, the concatenation or stack of `n` like `part`, consists of, and how a part is laid out.

    Raises
    ------
    PlacementError
        If the elements of the two cannot be matched.
    """
    base = part.layout
    found = chunks(joint.layout, n, base.shape)
    if found is not None:
        return base, [(joint, region) for region in found]
    size, flat = part.numel(), base.flat()
    pieces = [elements(joint.layout, i * size, (i + 1) * size) for i in range(n)]
    if flat is None or any(piece is None for piece in pieces):
        raise out_of_order(joint, part)
    return flat, [(joint, piece) for piece in pieces if piece is not None]


def list_parts(tensors: Sequence[DeviceTensor], part: DeviceTensor) -> tuple[Layout, Parts]:
    """Return the same for tensors that are a part each."""
    if all(t.layout.shape == part.layout.shape for t in tensors):
        return part.layout, [(t, whole(t.layout)) for t in tensors]
    flat = part.layout.flat()
    pieces = [elements(t.layout, 0, t.numel()) for t in tensors]
    if flat is None or any(piece is None for piece in pieces):
        raise out_of_order(tensors[0], part)
    return flat, [(t, piece) for t, piece in zip(tensors, pieces, strict=True) if piece is not None]


def packed(host: Host, base: Layout, parts: Parts, kept: Kept, *, unpack: bool) -> tuple[DeviceTensor, Sequence[Start]]:
    """Return `parts` as kernels take them, one tensor, and what starts the copies that this needs.

    Parameters
    ----------
    host : Host
    base : Layout
        Of a part: which PE has to do with which elements.
    parts : sequence of (DeviceTensor, Region)
        Where each rank's part is, or is to be.
    kept : dict
        Packed tensors from earlier calls, for more of them.
    unpack : bool
        Whether to copy from the packed tensor to the parts, or the other way.
    """
    n, first = len(parts), parts[0][0]
    layout = stacked(base, n)
    inner = chunks(layout, n, base.shape)
    assert inner is not None, "a stack is the stack of its layers"
    if all(t is first for t, _ in parts) and _same(layout, first.layout, inner, [region for _, region in parts]):
        return first, ()
    key = (base.dtype, n, *((s.cube, s.pe, s.offset, s.nbytes, str(s.index)) for s in base.shards))
    if key not in kept:
        kept[key] = host.deploy_like(layout, first.device, f"packed {first.name}")
    pack = kept[key]
    routes = [
        route(0, 0, pack, t, own, region) if unpack else route(0, 0, t, pack, region, own)
        for own, (t, region) in zip(inner, parts, strict=True)
    ]
    return pack, (copying(host, routes, "unpack" if unpack else "pack"),)


def _same(packed: Layout, joint: Layout, inner: Sequence[Region], regions: Sequence[Region]) -> bool:
    """Return whether every element has its place already."""
    if [(s.cube, s.pe, s.offset) for s in packed.shards] != [(s.cube, s.pe, s.offset) for s in joint.shards]:
        return False
    return all(run.source == run.target for a, b in zip(inner, regions, strict=True) for run in runs(a, b))
