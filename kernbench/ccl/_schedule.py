"""Schedules: the actions of a participant of a collective on each chunk of the vector, as a list of steps.

A step receives a chunk from each of its sources, combines them (with the local elements, if `local`), sends the result
on and stores it, as requested. `run_schedule` does the rest:

- Receives, and loads of local elements, are posted some steps ahead, so that they overlap with earlier steps. A load of
  elements that an earlier step has yet to store is issued after that store.
- A chunk that is forwarded unchanged is first copied out of its slot (`tl.copy`), and tiles are released at once. No
  slot is occupied while a message waits to leave, so any number of slots, even one, is enough.
- A chunk that starts here is sent from memory and takes no room in TCM.

A collective has no deadlock if its steps have an order in which every chunk is sent before it is received.

Rounding: 16-bit floats are combined in f32. A PE rounds once, to nearest even, when a result leaves it or is stored,
however many contributions it has combined; messages have the element type of the tensor. A sum over n contributions is
therefore rounded at most n - 1 times, in an order that the algorithm fixes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from kernbench._dtypes import DType, float32
from kernbench._registry import hint
from kernbench._units import KIB
from kernbench.errors import ConfigError
from kernbench.triton_emu._handles import Pointer, Tile
from kernbench.triton_emu._queue_ops import Arrival
from kernbench.triton_emu.tl_context import TLContext

AHEAD = 4
# A participant holds at most a block for messages that wait to leave: a quarter of the kernel scratch.
BLOCK_BYTES = 256 * KIB
SMALLEST_CHUNK, LARGEST_CHUNK, CHUNKS = 4 * KIB, 32 * KIB, 8

ElementSpan = tuple[int, int]
# An associative and commutative operator on two tiles of shape (rows, row).
Operator = Callable[[Tile, Tile, TLContext], Tile]

_BUILTIN: dict[str, Operator] = {
    "sum": lambda a, b, _tl: a + b,
    "avg": lambda a, b, _tl: a + b,
    "min": lambda a, b, tl: tl.minimum(a, b),
    "max": lambda a, b, tl: tl.maximum(a, b),
    "product": lambda a, b, _tl: a * b,
}


class Step(NamedTuple):
    """The action on `size` elements from `start` on."""

    start: int
    size: int
    sources: tuple[str, ...] = ()  # directions from which a chunk is received
    local: bool = False  # combine the local elements with them; without sources, the local elements are the chunk
    complete: bool = False  # the result contains all contributions
    to: tuple[str, ...] = ()  # directions to which the result is sent
    store: bool = False  # store the result
    unchanged: bool = False  # forward the received chunk instead of the result


@dataclass(frozen=True, slots=True)
class Reduction:
    """An operator over `count` contributions in all."""

    # "sum", "avg", "min", "max", "product", or op(a, b, tl) on f32 tiles of shape (rows, row)
    op: str | Operator = "sum"
    count: int = 1  # `avg` divides the complete sum by it, in f32, before it is rounded
    row: int = 1  # elements that belong together and are never split

    def __post_init__(self) -> None:
        if not callable(self.op) and self.op not in _BUILTIN:
            raise ConfigError(
                f"op = {self.op!r} is not a reduction; {hint(self.op, _BUILTIN)}; or a function of two tiles"
            )

    def combine(self, tl: TLContext, tiles: list[Tile], *, complete: bool) -> Tile:
        dtype = tiles[0].dtype
        divide = complete and self.op == "avg"
        if callable(self.op):
            size = tiles[0].shape[0]
            operator: Operator = self.op
            tiles = [_widened(tl, t).reshape(size // self.row, self.row) for t in tiles]
        else:
            operator = _BUILTIN[self.op]
            if len(tiles) > 2 or divide:
                tiles = [_widened(tl, tiles[0]), *tiles[1:]]
        combined = tiles[0]
        for tile in tiles[1:]:
            combined = operator(combined, tile, tl)
        if divide:
            combined = combined / self.count
        if callable(self.op):
            combined = combined.reshape(size)
        return tl.cast(combined, dtype)


def reduction(n_elem: int, count: int, op: str | Operator, row: int) -> Reduction:
    if row < 1 or n_elem % row:
        raise ConfigError(f"row = {row}: expected a divisor of the {n_elem} elements of a shard")
    return Reduction(op, count, row)


def _widened(tl: TLContext, tile: Tile) -> Tile:
    dtype: DType = tile.dtype
    return tl.cast(tile, float32) if dtype.is_floating_point and dtype.itemsize < 4 else tile


@dataclass(frozen=True, slots=True)
class Chunking:
    """Sizes of segments, which are processed one after the other, and of chunks, which are messages."""

    itemsize: int  # bytes of an element
    row: int = 1  # elements that are never split
    chunk_bytes: int | None = None  # of a message; None: an eighth of a block, from 4 to 32 KiB
    streams: int = 1  # vectors that are processed at the same time and share the memory

    def segments(self, start: int, size: int, parts: int) -> Iterator[ElementSpan]:
        """Split a vector so that one block of `parts` fits into the memory of a participant."""
        block = max(BLOCK_BYTES // self.streams, 4 * (self.chunk_bytes or 0))
        yield from _spans(start, size, self._rows(block) * parts)

    def chunks(self, block: ElementSpan) -> list[ElementSpan]:
        start, size = block
        chunk = self.chunk_bytes
        if chunk is None:
            chunk = max(SMALLEST_CHUNK, min(LARGEST_CHUNK, -(-size * self.itemsize // CHUNKS)))
            chunk = -(-chunk // SMALLEST_CHUNK) * SMALLEST_CHUNK
        return list(_spans(start, size, self._rows(chunk)))

    def _rows(self, nbytes: int) -> int:
        return max(1, nbytes // (self.itemsize * self.row)) * self.row


def _spans(start: int, size: int, largest: int) -> Iterator[ElementSpan]:
    """Split elements into spans of `largest`, the last one smaller.

    >>> list(_spans(10, 7, 3))
    [(10, 3), (13, 3), (16, 1)]
    """
    for at in range(start, start + size, largest):
        yield at, min(largest, start + size - at)


def row_blocks(start: int, size: int, parts: int, row: int = 1) -> list[ElementSpan]:
    """Split elements into `parts` blocks of whole rows, as equal as possible; some are empty where rows are few.

    >>> row_blocks(0, 7, 3)
    [(0, 3), (3, 2), (5, 2)]
    """
    each, more = divmod(size // row, parts)
    found = []
    for part in range(parts):
        n = (each + (part < more)) * row
        found.append((start, n))
        start += n
    return found


def take_turns(*streams: Iterator[Step]) -> Iterator[Step]:
    left = list(streams)
    while len(left) > 1:
        for stream in list(left):
            step = next(stream, None)
            if step is None:
                left.remove(stream)
            else:
                yield step
    for stream in left:
        yield from stream


class _Posted(NamedTuple):
    step: Step
    arrivals: list[Arrival]
    local: Tile | None


def run_schedule(steps: Iterable[Step], src: Pointer, dst: Pointer, reduction: Reduction, tl: TLContext) -> None:
    """Run `steps` on one participant: local elements are read from `src`, results are stored to `dst`."""
    posted: deque[_Posted] = deque()
    for step in steps:
        arrivals = [
            tl.recv_async(direction, shape=(step.size,), dtype=src.dtype.element_ty) for direction in step.sources
        ]
        posted.append(_Posted(step, arrivals, None if _is_stale(step, posted) else _load(step, src, tl)))
        if len(posted) > AHEAD:
            _finish(*posted.popleft(), src, dst, reduction, tl)
    while posted:
        _finish(*posted.popleft(), src, dst, reduction, tl)


def _is_stale(step: Step, posted: Iterable[_Posted]) -> bool:
    """Whether a posted step has yet to store local elements of `step`."""
    if not step.local:
        return False
    start, end = step.start, step.start + step.size
    return any(before.store and before.start < end and start < before.start + before.size for before, _, _ in posted)


def _load(step: Step, src: Pointer, tl: TLContext) -> Tile | None:
    return tl.load(src + step.start, shape=(step.size,)) if step.local and (step.sources or step.store) else None


def _finish(
    step: Step, arrivals: list[Arrival], local: Tile | None, src: Pointer, dst: Pointer, work: Reduction, tl: TLContext
) -> None:
    if local is None:
        local = _load(step, src, tl)
    if not step.sources:
        for direction in step.to:
            tl.send(direction, src + step.start, shape=(step.size,))
        if local is not None:
            tl.store(dst + step.start, local)
        return
    tiles = [tl.wait(arrival) for arrival in arrivals]
    arrivals.clear()
    if step.to and (step.unchanged or local is None):
        tiles[0] = tl.copy(tiles[0])
    received = tiles[0]
    if local is not None:
        tiles.append(local)
    result = work.combine(tl, tiles, complete=step.complete) if len(tiles) > 1 else tiles[0]
    tiles.clear()
    for direction in step.to:
        tl.send(direction, received if step.unchanged else result)
    if step.store:
        tl.store(dst + step.start, result)
