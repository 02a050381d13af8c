"""All-reduce over a ring that is laid into a mesh: every hop is one link, no wrap is needed.

The ring follows a Hamiltonian cycle of the mesh, which there is if both sides are at least 2 and one of them is even.
Queues: E, W, N, S, where there is somebody; `both_ways` sends one half of the vector each way.
"""

from __future__ import annotations

from kernbench.ccl.algorithms.in_place import reduce_in_place
from kernbench.ccl.algorithms.levels import Ring, cycle
from kernbench.ccl.algorithms.reduction import Operator, Reduction, reduction
from kernbench.triton_emu.handles import Pointer
from kernbench.triton_emu.tl_context import TLContext


def kernel_args(
    *,
    n_elem: int,
    world_size: int,
    grid_w: int,
    grid_h: int,
    op: str | Operator = "sum",
    row: int = 1,
    chunk_bytes: int | None = None,
    both_ways: bool = False,
) -> tuple[object, ...]:
    """Return the kernel's arguments after its pointer."""
    return n_elem, reduction(n_elem, world_size, op, row), chunk_bytes, grid_w, grid_h, both_ways


def kernel(
    t_ptr: Pointer,
    n_elem: int,
    work: Reduction,
    chunk_bytes: int | None,
    grid_w: int,
    grid_h: int,
    both_ways: bool,
    *,
    tl: TLContext,
) -> None:
    """Reduce `n_elem` elements over all participants, in place."""
    way = cycle(tl.program_id(2), grid_w, grid_h) or Ring(0, 1, "", "")
    streams = [[way], [Ring(way.n - 1 - way.rank, way.n, way.source, way.to)]]
    reduce_in_place(t_ptr, n_elem, work, chunk_bytes, streams if both_ways else streams[:1], tl)
