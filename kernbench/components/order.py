"""The order of accesses to memory: what touches the same bytes, and does not both read them, keeps its order."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from kernbench.components.command import Command, Span


class _Piece:
    """Bytes `start` to `end`: the last command to write them, and those that read them since, while under way."""

    __slots__ = ("end", "readers", "start", "writer")

    def __init__(self, start: int, end: int, writer: Command | None, readers: dict[Command, None]) -> None:
        self.start, self.end, self.writer, self.readers = start, end, writer, readers


class AccessOrder:
    """The memory that the commands under way touch, in disjoint pieces by address.

    A command comes after the last one to write what it touches; if it writes, after those that have read it since
    instead, which come after that writer themselves.
    """

    __slots__ = ("_pieces", "_spans", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._pieces: list[_Piece] = []
        self._spans: dict[Command, Sequence[Span]] = {}

    def add(self, command: Command, spans: Sequence[Span]) -> list[Command]:
        """Enter a command; return those it has to come after, each once."""
        first: dict[Command, None] = {}
        pieces = self._pieces
        for start, end, writes in spans:
            i = self._cut(start)
            while start < end:
                if i == len(pieces) or pieces[i].start > start:
                    piece = _Piece(start, min(end, pieces[i].start) if i < len(pieces) else end, None, {})
                    self._insert(i, piece)
                else:
                    piece = pieces[i]
                    if piece.end > end:
                        self._cut(end)
                if writes:
                    first.update(piece.readers)
                    if not piece.readers and piece.writer is not None:
                        first[piece.writer] = None
                    piece.writer, piece.readers = command, {}
                elif command is not piece.writer:
                    if piece.writer is not None:
                        first[piece.writer] = None
                    piece.readers[command] = None
                start = piece.end
                i += 1
        first.pop(command, None)
        self._spans[command] = spans
        return list(first)

    def under_way(self) -> list[Span]:
        """Return all that the commands under way touch."""
        return [span for spans in self._spans.values() for span in spans]

    def remove(self, command: Command) -> None:
        """Forget a command that is complete."""
        spans = self._spans.pop(command, None)
        if spans is None:
            return
        if not self._spans:
            self._starts.clear()
            self._pieces.clear()
            return
        pieces = self._pieces
        for start, end, _ in spans:
            i = bisect_right(self._starts, start) - 1
            if i < 0 or pieces[i].end <= start:
                i += 1
            kept = i
            while i < len(pieces) and pieces[i].start < end:
                piece = pieces[i]
                piece.readers.pop(command, None)
                if piece.writer is command:
                    piece.writer = None
                if piece.readers or piece.writer is not None:
                    pieces[kept], self._starts[kept] = piece, piece.start
                    kept += 1
                i += 1
            del pieces[kept:i], self._starts[kept:i]

    def _cut(self, at: int) -> int:
        """Split a piece that contains `at`; return the place of the first piece that begins there or later."""
        i = bisect_right(self._starts, at)
        if i and self._pieces[i - 1].start == at:
            return i - 1
        if i and self._pieces[i - 1].end > at:
            piece = self._pieces[i - 1]
            self._insert(i, _Piece(at, piece.end, piece.writer, dict(piece.readers)))
            piece.end = at
        return i

    def _insert(self, i: int, piece: _Piece) -> None:
        self._pieces.insert(i, piece)
        self._starts.insert(i, piece.start)
