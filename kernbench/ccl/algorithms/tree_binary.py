"""All-reduce over a binary tree: sums go to the root, the result comes back, chunk after chunk in a pipeline.

Queues: parent, child_left, child_right, as the binary heap has them.
"""

from __future__ import annotations

from kernbench.ccl.algorithms.in_place import reduce_in_place
from kernbench.ccl.algorithms.levels import heap_tree
from kernbench.ccl.algorithms.reduction import Reduction, kernel_args
from kernbench.triton_emu.handles import Pointer
from kernbench.triton_emu.tl_context import TLContext

__all__ = ["kernel", "kernel_args"]


def kernel(t_ptr: Pointer, n_elem: int, work: Reduction, chunk_bytes: int | None, *, tl: TLContext) -> None:
    """Reduce `n_elem` elements over all participants, in place."""
    reduce_in_place(t_ptr, n_elem, work, chunk_bytes, [[heap_tree(tl.program_id(2), work.count)]], tl)
