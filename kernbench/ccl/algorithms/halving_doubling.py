"""All-reduce by halves (Rabenseifner): exchanges with partners at distance 1, 2, 4, ... of half of what is left.

Every pair is a ring of two. Participants beyond the largest power of two fold their vector into a partner's first and
get the result from it. Queues: bit0, bit1, ..., and fold.
"""

from __future__ import annotations

from kernbench.ccl.algorithms.in_place import reduce_in_place
from kernbench.ccl.algorithms.levels import Level, Ring, Tree
from kernbench.ccl.algorithms.reduction import Reduction, kernel_args
from kernbench.triton_emu.handles import Pointer
from kernbench.triton_emu.tl_context import TLContext

__all__ = ["kernel", "kernel_args"]


def kernel(t_ptr: Pointer, n_elem: int, work: Reduction, chunk_bytes: int | None, *, tl: TLContext) -> None:
    """Reduce `n_elem` elements over all participants, in place."""
    rank, n = tl.program_id(2), work.count
    power = 1 << n.bit_length() - 1
    place = rank % power
    levels: list[Level] = []
    if rank >= power:
        levels.append(Tree("fold", (), 1))
    elif rank < n - power:
        levels.append(Tree(None, ("fold",), 0))
    levels += [Ring(place >> bit & 1, 2, f"bit{bit}", f"bit{bit}") for bit in range(power.bit_length() - 1)]
    reduce_in_place(t_ptr, n_elem, work, chunk_bytes, [levels], tl)
