"""All-reduce over a ring: reduce-scatter, then all-gather, each of n - 1 steps of an n-th of the vector.

Queues: E to the next participant, W from the one before. `both_ways` sends one half of the vector each way.
"""

from __future__ import annotations

from kernbench.ccl.algorithms.in_place import reduce_in_place
from kernbench.ccl.algorithms.levels import Ring
from kernbench.ccl.algorithms.reduction import Operator, Reduction, reduction
from kernbench.triton_emu.handles import Pointer
from kernbench.triton_emu.tl_context import TLContext


def kernel_args(
    *,
    n_elem: int,
    world_size: int,
    op: str | Operator = "sum",
    row: int = 1,
    chunk_bytes: int | None = None,
    both_ways: bool = False,
) -> tuple[object, ...]:
    """Return the kernel's arguments after its pointer."""
    return n_elem, reduction(n_elem, world_size, op, row), chunk_bytes, both_ways


def kernel(
    t_ptr: Pointer, n_elem: int, work: Reduction, chunk_bytes: int | None, both_ways: bool, *, tl: TLContext
) -> None:
    """Reduce `n_elem` elements over all participants, in place."""
    rank, n = tl.program_id(2), work.count
    streams = [[Ring(rank, n, "E", "W")], [Ring(n - 1 - rank, n, "W", "E")]]
    reduce_in_place(t_ptr, n_elem, work, chunk_bytes, streams if both_ways else streams[:1], tl)
