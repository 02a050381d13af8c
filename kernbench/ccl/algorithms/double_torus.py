"""All-reduce over a torus, the bucket algorithm on both axes at a time: all four links of a participant carry data.

Each quarter of the vector goes its way: E then S, W then N, and, at the same time, S then E, N then W. Reduce-scatter
along the first axis, all-reduce of the parts along the second, all-gather along the first. It takes down to half the
time of `torus_2d` where links between participants are the limit, and no less where these share a way, as the links of
a device of the default machine do.

Queues: a_E, a_W, a_N, a_S for what begins in rows, b_E, ... for what begins in columns.
"""

from __future__ import annotations

from kernbench.ccl.algorithms.in_place import reduce_in_place
from kernbench.ccl.algorithms.levels import Level, Ring
from kernbench.ccl.algorithms.reduction import Reduction
from kernbench.ccl.algorithms.reduction import grid_args as kernel_args
from kernbench.triton_emu.handles import Pointer
from kernbench.triton_emu.tl_context import TLContext

__all__ = ["kernel", "kernel_args"]


def kernel(
    t_ptr: Pointer, n_elem: int, work: Reduction, chunk_bytes: int | None, grid_w: int, grid_h: int, *, tl: TLContext
) -> None:
    """Reduce `n_elem` elements over all participants, in place."""
    row, column = divmod(tl.program_id(2), grid_w)
    streams: list[list[Level]] = [
        [Ring(column, grid_w, "a_E", "a_W"), Ring(row, grid_h, "a_S", "a_N")],
        [Ring(row, grid_h, "b_S", "b_N"), Ring(column, grid_w, "b_E", "b_W")],
        [Ring(grid_w - 1 - column, grid_w, "a_W", "a_E"), Ring(grid_h - 1 - row, grid_h, "a_N", "a_S")],
        [Ring(grid_h - 1 - row, grid_h, "b_N", "b_S"), Ring(grid_w - 1 - column, grid_w, "b_W", "b_E")],
    ]
    reduce_in_place(t_ptr, n_elem, work, chunk_bytes, streams, tl)
