"""All-reduce over two binary trees, half of the vector over each; who passes data on in one is a leaf of the other.

Queues: a_parent, a_child_left, a_child_right, and the same with b_.
"""

from __future__ import annotations

from kernbench.ccl.algorithms.in_place import reduce_in_place
from kernbench.ccl.algorithms.levels import Level, two_trees
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
) -> tuple[object, ...]:
    """Return the kernel's arguments after its pointer."""
    return n_elem, reduction(n_elem, world_size, op, row), chunk_bytes


def kernel(t_ptr: Pointer, n_elem: int, work: Reduction, chunk_bytes: int | None, *, tl: TLContext) -> None:
    """Reduce `n_elem` elements over all participants, in place."""
    streams: list[list[Level]] = [[tree] for tree in two_trees(tl.program_id(2), work.count)]
    reduce_in_place(t_ptr, n_elem, work, chunk_bytes, streams, tl)
