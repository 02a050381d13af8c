"""All-reduce over a torus, the bucket algorithm.

Reduce-scatter along rows, all-reduce of the parts along columns, all-gather along rows.

Queues: E, W, N, S. One half of the vector goes E and S, the other, with `both_ways`, at the same time W and N.
"""

from __future__ import annotations

from kernbench.ccl.algorithms.in_place import reduce_in_place
from kernbench.ccl.algorithms.levels import Level, Ring
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
    both_ways: bool = True,
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
    row, column = divmod(tl.program_id(2), grid_w)
    streams: list[list[Level]] = [
        [Ring(column, grid_w, "E", "W"), Ring(row, grid_h, "S", "N")],
        [Ring(grid_w - 1 - column, grid_w, "W", "E"), Ring(grid_h - 1 - row, grid_h, "N", "S")],
    ]
    reduce_in_place(t_ptr, n_elem, work, chunk_bytes, streams if both_ways else streams[:1], tl)
