"""All-reduce by exchanging the whole vector with partners at distance 1, 2, 4, ...: for the smallest sizes.

Participants beyond the largest power of two fold their vector into a partner's first and get the result from it.
Queues: bit0, bit1, ..., and fold. Partial sums stay in memory between the steps.
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
    rank, n = tl.program_id(2), work.count
    power = 1 << n.bit_length() - 1
    cut = Cut(t_ptr.dtype.itemsize, work.row, chunk_bytes)
    fold = rank >= power or rank < n - power
    ways = [f"bit{bit}" for bit in range(power.bit_length() - 1)]
    if n > 1:
        perform(moves(n_elem, cut, ways, fold, rank < power), t_ptr, t_ptr, work, tl)


def moves(n_elem: int, cut: Cut, ways: list[str], fold: bool, inside: bool) -> Iterator[Move]:
    """Yield the moves of one participant; `inside` those that are not beyond the power of two."""
    beside = ("fold",) if fold else ()
    for segment in cut.segments(0, n_elem, 1):
        chunks = cut.chunks(segment)
        if not inside:
            yield from (Move(*chunk, own=True, to=beside) for chunk in chunks)
            yield from (Move(*chunk, beside, keep=True) for chunk in chunks)
            continue
        sources = [beside, *((way,) for way in ways)]
        for source, way in zip(sources, ways, strict=False):
            yield from (Move(*chunk, source, own=True, to=(way,), keep=bool(source)) for chunk in chunks)
        yield from (Move(*chunk, sources[-1], own=True, complete=True, to=beside, keep=True) for chunk in chunks)
