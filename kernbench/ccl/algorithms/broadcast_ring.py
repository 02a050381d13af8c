"""Broadcast along a ring, from the root in both directions: everything leaves the root once each way.

The slowest to begin and the fastest to go on: for long vectors. Queues: E, W.
"""

from __future__ import annotations

from kernbench.ccl.algorithms.broadcast import kernel_args
from kernbench.ccl.algorithms.moves import Cut, Move, perform
from kernbench.ccl.algorithms.reduction import Reduction
from kernbench.triton_emu.handles import Pointer
from kernbench.triton_emu.tl_context import TLContext

__all__ = ["kernel", "kernel_args"]


def kernel(t_ptr: Pointer, n_elem: int, n: int, root: int, chunk_bytes: int | None, *, tl: TLContext) -> None:
    """Bring the root's `n_elem` elements to everybody, in place."""
    away = (tl.program_id(2) - root) % n
    eastern = n // 2
    chunks = Cut(t_ptr.dtype.itemsize, 1, chunk_bytes).chunks((0, n_elem))
    if away == 0:
        to = ("E",) * (eastern > 0) + ("W",) * (n - 1 > eastern)
        moves = [Move(*chunk, own=True, to=to) for chunk in chunks]
    else:
        source, way = ("W", "E") if away <= eastern else ("E", "W")
        to = () if away in (eastern, eastern + 1) else (way,)
        moves = [Move(*chunk, (source,), to=to, keep=True) for chunk in chunks]
    perform(moves, t_ptr, t_ptr, Reduction(), tl)
