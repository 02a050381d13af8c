"""All-reduce over a ring in which whole vectors go round: each participant adds what comes and passes it on as it came.

For comparison, and for short vectors: n - 1 steps of the whole vector. Participants add in different orders, so their
results may differ in the last bit. Partial sums stay in memory between the steps.

Queues: E to the next participant, W from the one before.
"""

from __future__ import annotations

from collections.abc import Iterator

from kernbench.ccl.algorithms.moves import Cut, Move, perform
from kernbench.ccl.algorithms.reduction import Reduction, kernel_args
from kernbench.triton_emu.handles import Pointer
from kernbench.triton_emu.tl_context import TLContext

__all__ = ["kernel", "kernel_args"]


def kernel(t_ptr: Pointer, n_elem: int, work: Reduction, chunk_bytes: int | None, *, tl: TLContext) -> None:
    """Reduce `n_elem` elements over all participants, in place."""
    if work.count > 1:
        perform(moves(n_elem, work.count, Cut(t_ptr.dtype.itemsize, work.row, chunk_bytes)), t_ptr, t_ptr, work, tl)


def moves(n_elem: int, n: int, cut: Cut) -> Iterator[Move]:
    """Yield the moves of any participant."""
    for segment in cut.segments(0, n_elem, 1):
        chunks = cut.chunks(segment)
        yield from (Move(*chunk, own=True, to=("E",)) for chunk in chunks)
        for step in range(1, n):
            last = step == n - 1
            to = () if last else ("E",)
            for chunk in chunks:
                yield Move(*chunk, ("W",), own=True, complete=last, to=to, keep=True, unchanged=True)
