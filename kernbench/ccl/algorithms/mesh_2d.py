"""All-reduce over a mesh without wrap, by way of the participant in its middle.

Sums go along each row to the root's column, and along that to the root; the result comes back.

Queues: E, W, N, S, where there is somebody.
"""

from __future__ import annotations

from kernbench.ccl.algorithms.in_place import reduce_in_place
from kernbench.ccl.algorithms.levels import mesh_tree
from kernbench.ccl.algorithms.reduction import Reduction
from kernbench.ccl.algorithms.reduction import grid_args as kernel_args
from kernbench.triton_emu.handles import Pointer
from kernbench.triton_emu.tl_context import TLContext

__all__ = ["kernel", "kernel_args"]


def kernel(
    t_ptr: Pointer, n_elem: int, work: Reduction, chunk_bytes: int | None, grid_w: int, grid_h: int, *, tl: TLContext
) -> None:
    """Reduce `n_elem` elements over all participants, in place."""
    root = grid_h // 2 * grid_w + grid_w // 2
    reduce_in_place(t_ptr, n_elem, work, chunk_bytes, [[mesh_tree(tl.program_id(2), grid_w, grid_h, root)]], tl)
