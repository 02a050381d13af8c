"""Broadcast over a binary tree, seen from the root of the call: chunk after chunk in a pipeline.

Queues: parent, child_left, child_right, as the binary heap has them, whatever participant is the root.
"""

from __future__ import annotations

from kernbench.ccl.algorithms.levels import heap_tree
from kernbench.ccl.algorithms.moves import Cut, Move, perform
from kernbench.ccl.algorithms.reduction import Reduction
from kernbench.triton_emu.handles import Pointer
from kernbench.triton_emu.tl_context import TLContext


def kernel_args(
    *, n_elem: int, world_size: int, root: int = 0, chunk_bytes: int | None = None
) -> tuple[int, int, int, int | None]:
    """Return the kernel's arguments after its pointer; `root` is a participant's number."""
    return n_elem, world_size, root, chunk_bytes


def kernel(t_ptr: Pointer, n_elem: int, n: int, root: int, chunk_bytes: int | None, *, tl: TLContext) -> None:
    """Bring the root's `n_elem` elements to everybody, in place."""
    tree = heap_tree(tl.program_id(2), n, root)
    chunks = Cut(t_ptr.dtype.itemsize, 1, chunk_bytes).chunks((0, n_elem))
    if tree.parent is None:
        moves = [Move(*chunk, own=True, to=tree.children) for chunk in chunks]
    else:
        moves = [Move(*chunk, (tree.parent,), to=tree.children, keep=True) for chunk in chunks]
    perform(moves, t_ptr, t_ptr, Reduction(), tl)
