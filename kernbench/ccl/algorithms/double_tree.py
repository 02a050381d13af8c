"""All-reduce over two binary trees, half of the vector over each; who passes data on in one is a leaf of the other.

Queues: a_parent, a_child_left, a_child_right, and the same with b_, as the topology `double_tree` joins them: tree a is
the in-order tree of 1 .. n-1 under 0, b its mirror image for even n, else a moved on by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from heapq import merge

from kernbench.ccl.algorithms.moves import Cut, Move, Span, blocks, perform
from kernbench.ccl.algorithms.reduction import Reduction, kernel_args
from kernbench.ccl.topologies import in_order_parent
from kernbench.triton_emu.handles import Pointer
from kernbench.triton_emu.tl_context import TLContext

__all__ = ["kernel", "kernel_args"]

# Chunks that an edge of the trees is thought to take: both trees' moves are put in one order by it.
EDGE = 4


def kernel(t_ptr: Pointer, n_elem: int, work: Reduction, chunk_bytes: int | None, *, tl: TLContext) -> None:
    """Reduce `n_elem` elements over all participants, in place."""
    rank, n = tl.program_id(2), work.count
    if n == 1:
        return
    cut = Cut(t_ptr.dtype.itemsize, work.row, chunk_bytes)
    image = (rank - 1) % n if n % 2 else n - 1 - rank
    first, second = (cut.chunks(half) for half in blocks(0, n_elem, 2, work.row))
    streams = moves(rank, n, "a_", first), moves(image, n, "b_", second)
    perform((move for _, move in merge(*streams, key=lambda at: at[0])), t_ptr, t_ptr, work, tl)


def moves(rank: int, n: int, prefix: str, chunks: list[Span]) -> Iterator[tuple[int, Move]]:
    """Yield the moves in one tree of its member `rank`, each with its place in the common order.

    A chunk is later by `EDGE` on every edge, up and down: each message is sent at an earlier place than received.
    """
    parents, heights = _in_order(n)
    height, top, depth, at = heights[rank], heights[0], 0, parents[rank]
    while at is not None:
        at, depth = parents[at], depth + 1
    children = tuple(
        f"{prefix}child_{'left' if child < rank or rank == 0 else 'right'}"
        for child, parent in enumerate(parents)
        if parent == rank
    )
    if rank == 0:
        for i, chunk in enumerate(chunks):
            yield i + EDGE * top, Move(*chunk, children, own=True, complete=True, to=children, keep=True)
        return
    parent = f"{prefix}parent"
    up = ((i + EDGE * height, Move(*chunk, children, own=True, to=(parent,))) for i, chunk in enumerate(chunks))
    results = enumerate(chunks)
    down = ((i + EDGE * (top + depth), Move(*chunk, (parent,), to=children, keep=True)) for i, chunk in results)
    yield from merge(up, down, key=lambda at: at[0])


@lru_cache(maxsize=16)
def _in_order(n: int) -> tuple[list[int | None], list[int]]:
    """Return each member's parent, and the edges from it to the deepest one below."""
    parents = [in_order_parent(member, n) for member in range(n)]
    heights = [0] * n
    for member in range(n):
        at, edges = member, 0
        while (above := parents[at]) is not None:
            at, edges = above, edges + 1
            heights[at] = max(heights[at], edges)
    return parents, heights
