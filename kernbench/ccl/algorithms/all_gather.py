"""All-gather over a ring: n - 1 steps, in each of which a participant passes on a part, out of place.

Part r of the result is the tensor of participant r. Queues: E to the next participant, W from the one before;
`both_ways` sends half of each part each way.
"""

from __future__ import annotations

from collections.abc import Iterator

from kernbench.ccl.algorithms.moves import Cut, Move, alternate, perform
from kernbench.ccl.algorithms.parts import Half, halves
from kernbench.ccl.algorithms.reduction import Reduction
from kernbench.triton_emu.handles import Pointer
from kernbench.triton_emu.tl_context import TLContext


def kernel_args(
    *, n_elem: int, world_size: int, chunk_bytes: int | None = None, both_ways: bool = False
) -> tuple[int, int, int | None, bool]:
    """Return the kernel's arguments after its pointers; `n_elem` is one participant's."""
    return n_elem, world_size, chunk_bytes, both_ways


def kernel(
    t_ptr: Pointer, out_ptr: Pointer, part: int, n: int, chunk_bytes: int | None, both_ways: bool, *, tl: TLContext
) -> None:
    """Write the `part` elements of each participant, in order, to out."""
    rank = tl.program_id(2)
    cut = Cut(t_ptr.dtype.itemsize, 1, chunk_bytes, 1 + both_ways)
    streams = [moves(half, cut) for half in halves(rank, n, part, 1, both_ways)]
    perform(alternate(*streams), t_ptr - rank * part, out_ptr, Reduction(), tl)


def moves(half: Half, cut: Cut) -> Iterator[Move]:
    """Yield the moves of one participant in one direction."""
    rank, n, source = half.rank, half.n, half.source
    for parts in half.segments(cut):
        yield from (Move(*chunk, own=True, to=(half.to,) * (n > 1), keep=True) for chunk in parts[rank])
        for step in range(1, n):
            to = (half.to,) if step < n - 1 else ()
            yield from (Move(*chunk, (source,), to=to, keep=True) for chunk in parts[(rank - step) % n])
