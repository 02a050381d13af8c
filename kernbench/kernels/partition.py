"""The part of a tensor that a program processes: its own shard, where the tensor is split as by torch.chunk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from kernbench.topology._naming import PeId
from kernbench.triton_emu.tl_context import TLContext

Parts = Mapping[PeId, Sequence[tuple[int, int]]]  # to (first element, elements)

_Task = TypeVar("_Task")


def chunk(n: int, parts: int, i: int) -> tuple[int, int]:
    """Return (start, size) of part `i` of `n`, split as by torch.chunk: the last parts are smaller or empty.

    >>> [chunk(10, 4, i) for i in range(4)]
    [(0, 3), (3, 3), (6, 3), (9, 1)]
    """
    size = -(-n // parts)
    start = min(i * size, n)
    return start, min(size, n - start)


def nonempty_parts(n: int, parts: int) -> list[tuple[int, int]]:
    """Return (start, size) of the parts of n that are not empty."""
    return [part for part in (chunk(n, parts, i) for i in range(parts)) if part[1]]


def cut_span(span: tuple[int, int], size: int) -> list[tuple[int, int]]:
    start, n = span
    return [(start + at, min(size, n - at)) for at in range(0, n, size)]


def dealt(tasks: Sequence[_Task], pes: Sequence[PeId]) -> dict[PeId, list[_Task]]:
    """Assign tasks to PEs in alternating order, so that each gets small and large ones of a sorted list."""
    found: dict[PeId, list[_Task]] = {}
    for i, task in enumerate(tasks):
        turn, at = divmod(i, len(pes))
        found.setdefault(pes[len(pes) - 1 - at if turn % 2 else at], []).append(task)
    return found


def share(n: int, tl: TLContext) -> tuple[int, int]:
    """Return (start, size) of this program's part of `n`: split over the cubes, then over the PEs of each."""
    start, size = chunk(n, tl.num_programs(1), tl.program_id(1))
    inner, size = chunk(size, tl.num_programs(0), tl.program_id(0))
    return start + inner, size


def blocks(n: int, block: int, tl: TLContext) -> Iterator[tuple[int, int]]:
    """Yield (start, size) of the blocks of this program's part of `n`, the last one smaller."""
    start, size = share(n, tl)
    for at in range(0, size, block):
        yield start + at, min(block, size - at)


def program_number(tl: TLContext) -> int:
    return tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)


def programs(tl: TLContext) -> int:
    return tl.num_programs(0) * tl.num_programs(1)


def mine(tasks: Mapping[PeId, Sequence[_Task]], tl: TLContext) -> Sequence[_Task]:
    return tasks.get((int(tl.program_id(1)), int(tl.program_id(0))), ())


def part_blocks(parts: Parts, block: int, tl: TLContext) -> Iterator[tuple[int, int]]:
    for first, n in mine(parts, tl):
        for at in range(first, first + n, block):
            yield at, min(block, first + n - at)
