"""Moves: what a participant does with one piece of the vector. An algorithm is a list of them in program order.

A move receives a piece from each of its sources, joins them (with its own elements, if `own`), passes the result on
and keeps it, as asked. What a participant must take care of stands here once:

- Receives, and loads of own elements, are posted some moves ahead, so that they overlap with the moves before.
- A piece that is passed on unchanged is copied out of its slot first (`tl.copy`); tiles are dropped at once. Slots
  are therefore never held while a message waits to leave, and any number of slots, even one, is enough.
- A piece that starts here leaves from memory, without a place in TCM.

An algorithm has no deadlock if its moves can be put in one order in which every piece is sent before it is received.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kernbench.ccl.algorithms.reduction import Reduction
from kernbench.errors import ConfigError
from kernbench.triton_emu.handles import Pointer, Tile
from kernbench.triton_emu.queue_ops import Arrival
from kernbench.triton_emu.tl_context import TLContext

AHEAD = 4
KIB = 1024
# What a participant holds while it waits to leave is at most a block: half of the kernel scratch.
BLOCK_BYTES = 512 * KIB
SMALLEST_CHUNK, LARGEST_CHUNK, CHUNKS = 4 * KIB, 32 * KIB, 8

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Move:
    """What happens to `size` elements from `start` on.

    Attributes
    ----------
    start, size : int
        Elements of the vector.
    sources : tuple of str
        Directions that a piece comes from.
    own : bool
        Whether the own elements join, or are the piece where nothing comes.
    complete : bool
        Whether the result has everybody's contribution.
    to : tuple of str
        Directions that the result goes to.
    keep : bool
        Whether it is stored.
    """

    start: int
    size: int
    sources: tuple[str, ...] = ()
    own: bool = False
    complete: bool = False
    to: tuple[str, ...] = ()
    keep: bool = False


def perform(
    moves: Iterable[Move], src: Pointer, dst: Pointer, reduction: Reduction, tl: TLContext, ahead: int = AHEAD
) -> None:
    """Carry out `moves`: own elements come from `src`, results go to `dst`."""
    begun: deque[tuple[Move, list[Arrival], Tile | None]] = deque()
    for move in moves:
        shape = (move.size,)
        arrivals = [tl.recv_async(way, shape=shape, dtype=src.dtype) for way in move.sources]
        load = move.own and (move.sources or move.keep)
        begun.append((move, arrivals, tl.load(src + move.start, shape=shape) if load else None))
        if len(begun) > ahead:
            _finish(*begun.popleft(), src, dst, reduction, tl)
    while begun:
        _finish(*begun.popleft(), src, dst, reduction, tl)


def _finish(
    move: Move,
    arrivals: list[Arrival],
    own: Tile | None,
    src: Pointer,
    dst: Pointer,
    reduction: Reduction,
    tl: TLContext,
) -> None:
    if not arrivals:
        for way in move.to:
            tl.send(way, src + move.start, shape=(move.size,))
        if own is not None:
            tl.store(dst + move.start, own)
        return
    tiles = [tl.wait(arrival) for arrival in arrivals]
    arrivals.clear()
    if own is not None:
        tiles.append(own)
    if len(tiles) > 1:
        result = reduction.join(tl, tiles, complete=move.complete)
    else:
        result = tl.copy(tiles[0]) if move.to else tiles[0]
    tiles.clear()
    for way in move.to:
        tl.send(way, result)
    if move.keep:
        tl.store(dst + move.start, result)


def spans(start: int, size: int, largest: int) -> Iterator[Span]:
    """Cut elements into spans of `largest`, the last one smaller.

    >>> list(spans(10, 7, 3))
    [(10, 3), (13, 3), (16, 1)]
    """
    for at in range(start, start + size, largest):
        yield at, min(largest, start + size - at)


def blocks(start: int, size: int, parts: int, row: int = 1) -> list[Span]:
    """Cut elements into `parts` blocks of whole rows, as equal as possible; some are empty where rows are few.

    >>> blocks(0, 7, 3)
    [(0, 3), (3, 2), (5, 2)]
    """
    each, more = divmod(size // row, parts)
    found = []
    for part in range(parts):
        n = (each + (part < more)) * row
        found.append((start, n))
        start += n
    return found


@dataclass(frozen=True, slots=True)
class Cut:
    """How vectors are cut: into segments that are worked on one after the other, and chunks, which are messages.

    Attributes
    ----------
    itemsize : int
        Bytes of an element.
    row : int
        Elements that are never cut apart.
    chunk_bytes : int or None
        Bytes of a message; None: an eighth of a block, from 4 to 32 KiB.
    """

    itemsize: int
    row: int = 1
    chunk_bytes: int | None = None

    def segments(self, start: int, size: int, parts: int) -> Iterator[Span]:
        """Cut a vector so that one block of `parts` fits into what a participant may hold."""
        block = max(BLOCK_BYTES, 4 * (self.chunk_bytes or 0))
        yield from spans(start, size, self._whole(block) * parts)

    def chunks(self, block: Span) -> list[Span]:
        """Cut a block into messages."""
        start, size = block
        chunk = self.chunk_bytes
        if chunk is None:
            chunk = max(SMALLEST_CHUNK, min(LARGEST_CHUNK, -(-size * self.itemsize // CHUNKS)))
            chunk = -(-chunk // SMALLEST_CHUNK) * SMALLEST_CHUNK
        return list(spans(start, size, self._whole(chunk)))

    def _whole(self, nbytes: int) -> int:
        return max(1, nbytes // (self.itemsize * self.row)) * self.row


def check_rows(n_elem: int, row: int) -> None:
    """Refuse a vector that is not made of whole rows."""
    if row < 1 or n_elem % row:
        raise ConfigError(f"row = {row}: expected a divisor of the {n_elem} elements of a shard")
