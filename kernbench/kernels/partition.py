"""Which part of a tensor a program works on: its own shard, where the tensor is cut as torch.chunk cuts."""

from __future__ import annotations

from collections.abc import Iterator

from kernbench.triton_emu.tl_context import TLContext


def chunk(n: int, parts: int, i: int) -> tuple[int, int]:
    """Return (start, size) of part `i` of `n`, cut as torch.chunk does: last ones smaller or empty.

    >>> [chunk(10, 4, i) for i in range(4)]
    [(0, 3), (3, 3), (6, 3), (9, 1)]
    """
    size = -(-n // parts)
    start = min(i * size, n)
    return start, min(size, n - start)


def share(n: int, tl: TLContext) -> tuple[int, int]:
    """Return (start, size) of this program's part of `n`: cut over the cubes, then over the PEs of each."""
    start, size = chunk(n, tl.num_programs(1), tl.program_id(1))
    inner, size = chunk(size, tl.num_programs(0), tl.program_id(0))
    return start + inner, size


def blocks(n: int, block: int, tl: TLContext) -> Iterator[tuple[int, int]]:
    """Yield (start, size) of the blocks of this program's part of `n`, the last one smaller."""
    start, size = share(n, tl)
    for at in range(0, size, block):
        yield start + at, min(block, size - at)
