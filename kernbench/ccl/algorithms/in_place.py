"""An all-reduce in place, over one or several halves of the vector at a time, each with its own queues."""

from __future__ import annotations

from collections.abc import Sequence

from kernbench.ccl.algorithms.levels import Level, all_reduce
from kernbench.ccl.algorithms.moves import Cut, alternate, blocks, perform
from kernbench.ccl.algorithms.reduction import Reduction
from kernbench.triton_emu.handles import Pointer
from kernbench.triton_emu.tl_context import TLContext


def reduce_in_place(
    t_ptr: Pointer,
    n_elem: int,
    work: Reduction,
    chunk_bytes: int | None,
    streams: Sequence[Sequence[Level]],
    tl: TLContext,
) -> None:
    """Reduce a vector over the levels of each of `streams`, which share it in equal parts.

    Streams are worked on in turn. No two may use one queue: the order of their messages on it would be nobody's.
    """
    if work.count == 1:
        return
    cut = Cut(t_ptr.dtype.itemsize, work.row, chunk_bytes, len(streams))
    parts = blocks(0, n_elem, len(streams), work.row)
    moves = [all_reduce(levels, part, cut) for levels, part in zip(streams, parts, strict=True)]
    perform(alternate(*moves), t_ptr, t_ptr, work, tl)
