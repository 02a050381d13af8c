"""All-reduce over the cubes of all devices, by way of a root cube in each.

Sums go through each device's mesh of cubes to its root cube, root cubes reduce among themselves, and results come back
through the mesh, all in one pipeline.

Queues: N, S, E, W between cubes, global_N, ... between the root cubes of devices: around rings where they wrap (a ring
or a torus of devices), else over a tree. Participants are cubes, device by device.
"""

from __future__ import annotations

from kernbench.ccl.algorithms.in_place import reduce_in_place
from kernbench.ccl.algorithms.levels import Level, mesh_tree, sip_levels
from kernbench.ccl.algorithms.reduction import Operator, Reduction, reduction
from kernbench.triton_emu.handles import Pointer
from kernbench.triton_emu.tl_context import TLContext


def kernel_args(
    *,
    n_elem: int,
    world_size: int,
    cube_w: int,
    cube_h: int,
    root_cube: int,
    sip_w: int,
    sip_h: int,
    sip_wraps: bool,
    op: str | Operator = "sum",
    row: int = 1,
    chunk_bytes: int | None = None,
) -> tuple[object, ...]:
    """Return the kernel's arguments after its pointer."""
    return (
        n_elem,
        reduction(n_elem, world_size, op, row),
        chunk_bytes,
        cube_w,
        cube_h,
        root_cube,
        sip_w,
        sip_h,
        sip_wraps,
    )


def kernel(
    t_ptr: Pointer,
    n_elem: int,
    work: Reduction,
    chunk_bytes: int | None,
    cube_w: int,
    cube_h: int,
    root_cube: int,
    sip_w: int,
    sip_h: int,
    sip_wraps: bool,
    *,
    tl: TLContext,
) -> None:
    """Reduce `n_elem` elements over all participants, in place."""
    sip, cube = divmod(tl.program_id(2), cube_w * cube_h)
    levels: list[Level] = [mesh_tree(cube, cube_w, cube_h, root_cube), *sip_levels(sip, sip_w, sip_h, sip_wraps)]
    reduce_in_place(t_ptr, n_elem, work, chunk_bytes, [levels], tl)
