"""Reduce-scatter over a ring: n - 1 steps of an n-th of the vector, out of place.

Participant r gets the r-th of n equal parts of the sum. Queues: E to the next participant, W from the one before;
`both_ways` sends half of each part each way.
"""

from __future__ import annotations

from collections.abc import Iterator

from kernbench.ccl.algorithms.moves import Cut, Move, alternate, perform
from kernbench.ccl.algorithms.parts import Half, equal_part, halves
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
    both_ways: bool = False,
) -> tuple[object, ...]:
    """Return the kernel's arguments after its pointers; `n_elem` is the whole vector's."""
    part = equal_part(n_elem, world_size)
    return part, reduction(part, world_size, op, row), chunk_bytes, both_ways


def kernel(
    t_ptr: Pointer,
    out_ptr: Pointer,
    part: int,
    work: Reduction,
    chunk_bytes: int | None,
    both_ways: bool,
    *,
    tl: TLContext,
) -> None:
    """Reduce vectors of n x `part` elements, and write the own part to out."""
    rank, n = tl.program_id(2), work.count
    cut = Cut(t_ptr.dtype.itemsize, work.row, chunk_bytes, 1 + both_ways)
    streams = [moves(half, cut) for half in halves(rank, n, part, work.row, both_ways)]
    perform(alternate(*streams), t_ptr, out_ptr - rank * part, work, tl)


def moves(half: Half, cut: Cut) -> Iterator[Move]:
    """Yield the moves of one participant in one direction."""
    rank, n, to, source = half.rank, half.n, half.to, half.source
    for parts in half.segments(cut):
        if n == 1:
            yield from (Move(*chunk, own=True, keep=True) for chunk in parts[0])
            continue
        yield from (Move(*chunk, own=True, to=(to,)) for chunk in parts[rank - 1])
        for step in range(1, n - 1):
            yield from (Move(*chunk, (source,), own=True, to=(to,)) for chunk in parts[(rank - 1 - step) % n])
        yield from (Move(*chunk, (source,), own=True, complete=True, keep=True) for chunk in parts[rank])
