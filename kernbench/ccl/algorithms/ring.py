"""All-reduce over a ring: reduce-scatter, then all-gather, each of n - 1 steps of an n-th of the vector.

Queues: E to the next participant, W from the one before. `both_ways` sends one half of the vector each way.
"""

from __future__ import annotations

from collections.abc import Iterator

from kernbench.ccl.algorithms.moves import Cut, Move, Span, blocks, check_rows, perform
from kernbench.ccl.algorithms.reduction import Operator, Reduction
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
    """Return the kernel's arguments after its pointer."""
    check_rows(n_elem, row)
    return n_elem, world_size, op, row, chunk_bytes, both_ways


def kernel(
    t_ptr: Pointer,
    n_elem: int,
    world_size: int,
    op: str | Operator,
    row: int,
    chunk_bytes: int | None,
    both_ways: bool,
    *,
    tl: TLContext,
) -> None:
    """Reduce `n_elem` elements over all participants, in place."""
    rank, cut = tl.program_id(2), Cut(t_ptr.dtype.itemsize, row, chunk_bytes)
    if world_size == 1:
        return
    halves = blocks(0, n_elem, 2 if both_ways else 1, row)
    streams = [moves(halves[0], rank, world_size, cut, "E", "W")]
    if both_ways:
        streams.append(moves(halves[1], world_size - 1 - rank, world_size, cut, "W", "E"))
    perform(alternate(*streams), t_ptr, t_ptr, Reduction(op, world_size, row), tl)


def moves(vector: Span, rank: int, n: int, cut: Cut, to: str, source: str) -> Iterator[Move]:
    """Yield the moves of one participant; what starts the next segment leaves before the last step of this one."""
    last: list[Move] = []
    for segment in cut.segments(*vector, n):
        parts = [cut.chunks(block) for block in blocks(*segment, n, cut.row)]
        yield from (Move(*chunk, own=True, to=(to,)) for chunk in parts[rank])
        yield from last
        for step in range(1, n):
            complete = step == n - 1
            for chunk in parts[(rank - step) % n]:
                yield Move(*chunk, (source,), own=True, complete=complete, to=(to,), keep=complete)
        for step in range(n - 2):
            for chunk in parts[(rank - step) % n]:
                yield Move(*chunk, (source,), to=(to,), keep=True)
        last = [Move(*chunk, (source,), keep=True) for chunk in parts[(rank + 2) % n]]
    yield from last


def alternate(*streams: Iterator[Move]) -> Iterator[Move]:
    """Yield from each of `streams` in turn, until all have ended."""
    left = list(streams)
    while left:
        for stream in list(left):
            move = next(stream, None)
            if move is None:
                left.remove(stream)
            else:
                yield move
