"""Reduce to one participant over a binary tree, seen from it: chunk after chunk in a pipeline.

Only the root's tensor changes. Queues: parent, child_left, child_right, as the binary heap has them.
"""

from __future__ import annotations

from kernbench.ccl.algorithms.levels import heap_tree
from kernbench.ccl.algorithms.moves import Cut, Move, perform
from kernbench.ccl.algorithms.reduction import Operator, Reduction, reduction
from kernbench.triton_emu.handles import Pointer
from kernbench.triton_emu.tl_context import TLContext


def kernel_args(
    *,
    n_elem: int,
    world_size: int,
    root: int = 0,
    op: str | Operator = "sum",
    row: int = 1,
    chunk_bytes: int | None = None,
) -> tuple[object, ...]:
    """Return the kernel's arguments after its pointer; `root` is a participant's number."""
    return n_elem, reduction(n_elem, world_size, op, row), root, chunk_bytes


def kernel(t_ptr: Pointer, n_elem: int, work: Reduction, root: int, chunk_bytes: int | None, *, tl: TLContext) -> None:
    """Reduce `n_elem` elements over all participants into the root's tensor."""
    tree = heap_tree(tl.program_id(2), work.count, root)
    chunks = Cut(t_ptr.dtype.itemsize, work.row, chunk_bytes).chunks((0, n_elem))
    if tree.parent is not None:
        moves = [Move(*chunk, tree.children, own=True, to=(tree.parent,)) for chunk in chunks]
    elif tree.children:
        moves = [Move(*chunk, tree.children, own=True, complete=True, keep=True) for chunk in chunks]
    else:
        moves = []
    perform(moves, t_ptr, t_ptr, work, tl)
