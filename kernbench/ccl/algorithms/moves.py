"""Moves: what a participant does with one piece of the vector. An algorithm is a list of them in program order.

A move receives a piece from each of its sources, joins them (with its own elements, if `own`), passes the result on
and keeps it, as asked. What a participant must take care of stands here once:

- Receives, and loads of own elements, are posted some moves ahead, so that they overlap with the moves before; a load
  of what a move before has yet to store comes after it.
- A piece that is passed on unchanged is copied out of its slot first (`tl.copy`); tiles are dropped at once. Slots
  are therefore never held while a message waits to leave, and any number of slots, even one, is enough.
- A piece that starts here leaves from memory, without a place in TCM.

An algorithm has no deadlock if its moves can be put in one order in which every piece is sent before it is received.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from kernbench.ccl.algorithms.reduction import Reduction
from kernbench.triton_emu.handles import Pointer, Tile
from kernbench.triton_emu.queue_ops import Arrival
from kernbench.triton_emu.tl_context import TLContext

AHEAD = 4
KIB = 1024
# What a participant holds while it waits to leave is at most a block: a quarter of the kernel scratch.
BLOCK_BYTES = 256 * KIB
SMALLEST_CHUNK, LARGEST_CHUNK, CHUNKS = 4 * KIB, 32 * KIB, 8

Span = tuple[int, int]


class Move(NamedTuple):
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
    unchanged : bool
        Whether what came is passed on instead of the result.
    """

    start: int
    size: int
    sources: tuple[str, ...] = ()
    own: bool = False
    complete: bool = False
    to: tuple[str, ...] = ()
    keep: bool = False
    unchanged: bool = False


@dataclass(slots=True)
class _Begun:
    """A move under way: what it waits for, and its own elements if they are being loaded."""

    move: Move
    arrivals: list[Arrival]
    own: Tile | None


def perform(
    moves: Iterable[Move], src: Pointer, dst: Pointer, reduction: Reduction, tl: TLContext, ahead: int = AHEAD
) -> None:
    """Carry out `moves`: own elements come from `src`, results go to `dst`."""
    begun: deque[_Begun] = deque()
    for move in moves:
        arrivals = [tl.recv_async(way, shape=(move.size,), dtype=src.dtype) for way in move.sources]
        begun.append(_Begun(move, arrivals, None if _stale(move, begun) else _own(move, src, tl)))
        if len(begun) > ahead:
            _finish(begun.popleft(), src, dst, reduction, tl)
    while begun:
        _finish(begun.popleft(), src, dst, reduction, tl)


def _stale(move: Move, begun: Iterable[_Begun]) -> bool:
    """Return whether own elements are still to be stored by a move under way."""
    if not move.own:
        return False
    start, end = move.start, move.start + move.size
    for other in begun:
        before = other.move
        if before.keep and before.start < end and start < before.start + before.size:
            return True
    return False


def _own(move: Move, src: Pointer, tl: TLContext) -> Tile | None:
    return tl.load(src + move.start, shape=(move.size,)) if move.own and (move.sources or move.keep) else None


def _finish(begun: _Begun, src: Pointer, dst: Pointer, reduction: Reduction, tl: TLContext) -> None:
    move, own = begun.move, begun.own
    if own is None:
        own = _own(move, src, tl)
    if not move.sources:
        for way in move.to:
            tl.send(way, src + move.start, shape=(move.size,))
        if own is not None:
            tl.store(dst + move.start, own)
        return
    tiles = [tl.wait(arrival) for arrival in begun.arrivals]
    begun.arrivals.clear()
    if move.to and (move.unchanged or own is None):
        tiles[0] = tl.copy(tiles[0])
    passed = tiles[0]
    if own is not None:
        tiles.append(own)
    result = reduction.join(tl, tiles, complete=move.complete) if len(tiles) > 1 else tiles[0]
    tiles.clear()
    for way in move.to:
        tl.send(way, passed if move.unchanged else result)
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
    streams : int
        Vectors that are worked on at a time, and share the room.
    """

    itemsize: int
    row: int = 1
    chunk_bytes: int | None = None
    streams: int = 1

    def segments(self, start: int, size: int, parts: int) -> Iterator[Span]:
        """Cut a vector so that one block of `parts` fits into what a participant may hold."""
        block = max(BLOCK_BYTES // self.streams, 4 * (self.chunk_bytes or 0))
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


def alternate(*streams: Iterator[Move]) -> Iterator[Move]:
    """Yield from each of `streams` in turn, until all have ended."""
    left = list(streams)
    while len(left) > 1:
        for stream in list(left):
            move = next(stream, None)
            if move is None:
                left.remove(stream)
            else:
                yield move
    for stream in left:
        yield from stream
