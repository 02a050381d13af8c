"""All-reduce over the PEs of all devices, each PE with its slice: no PE passes on more than it has to.

Reduce-scatter over the PEs of a cube, all-reduce of each slice over the cubes and then the devices, all-gather over
the PEs. Queues: local_E, local_W between the PEs of a cube; N, S, E, W between cubes, around a cycle where the mesh
has one and slices are long, else over a tree; global_N, ... between devices, for every PE. Participants are PEs, device
by device, cube by cube.
"""

from __future__ import annotations

from kernbench.ccl.algorithms.hierarchical import kernel_args
from kernbench.ccl.algorithms.in_place import reduce_in_place
from kernbench.ccl.algorithms.levels import Level, Ring, cycle, mesh_tree, sip_levels
from kernbench.ccl.algorithms.reduction import Reduction
from kernbench.triton_emu.handles import Pointer
from kernbench.triton_emu.tl_context import TLContext

__all__ = ["SHORT_SLICE", "kernel", "kernel_args"]

# Bytes of a slice that goes over a tree of cubes: a cycle takes more steps, each with a shorter message. Simulated on
# 2 x 16 cubes, a tree takes 0.6 of the time with 256 B and 2 KiB, and 0.87 with 12 KiB.
SHORT_SLICE = 16384


def kernel(
    t_ptr: Pointer,
    n_elem: int,
    work: Reduction,
    chunk_bytes: int | None,
    n_pes: int,
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
    above, pe = divmod(tl.program_id(2), n_pes)
    sip, cube = divmod(above, cube_w * cube_h)
    levels: list[Level] = [Ring(pe, n_pes, "local_E", "local_W")] if n_pes > 1 else []
    short = -(-n_elem // n_pes) * t_ptr.dtype.itemsize <= SHORT_SLICE
    around = None if short else cycle(cube, cube_w, cube_h)
    levels.append(around or mesh_tree(cube, cube_w, cube_h, root_cube))
    levels += sip_levels(sip, sip_w, sip_h, sip_wraps)
    reduce_in_place(t_ptr, n_elem, work, chunk_bytes, [levels], tl)
