"""Streamed operands and results of a tiled command: its requests, tile by tile."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from kernbench.components.command import Ref
from kernbench.components.jobs import TileJob
from kernbench.components.tile_plan import Grid
from kernbench.sim_engine.op_log import KIND
from kernbench.sim_engine.transfer import Transaction

if TYPE_CHECKING:
    from kernbench.components.pe import Pe

_DMA_IN, _DMA_OUT = KIND["dma_in"], KIND["dma_out"]

Piece = tuple[str, int, int, list[int] | None]


class Stream:
    """A matrix in memory, by tiles: `pieces(r, c)` are (node, offset, bytes, lines) of one tile."""

    def __init__(self, pe: Pe, ref: Ref, grid: Grid) -> None:
        self.pe, self.ref, self.grid = pe, ref, grid
        whole = pe.mmu.translate(ref.va, grid.rows * grid.cols * grid.itemsize)
        self.strided = pe.gather == "strided"
        self._home = pe.engine.locate(whole[0][0]) if len(whole) == 1 else None

    def pieces(self, r: int, c: int) -> list[Piece]:
        """Return the requests of tile (r, c)."""
        if self.strided:
            return self._touched(self.grid.strided(r, c))
        offset, nbytes = self.grid.packed(r, c)
        if self._home is not None:
            return [(self._home[0], self._home[1] + offset, nbytes, None)]
        engine = self.pe.engine
        found = self.pe.mmu.translate(self.ref.va + offset, nbytes)
        return [(*engine.locate(pa), n, None) for pa, n in found]

    def _touched(self, runs: Iterable[tuple[int, int]]) -> list[Piece]:
        engine, bits = self.pe.engine, self.pe.engine.line_bits
        lines: dict[str, list[int]] = {}
        nbytes: dict[str, int] = {}
        for offset, size in runs:
            for pa, n in self.pe.mmu.translate(self.ref.va + offset, size):
                node_id, at = engine.locate(pa)
                touched = lines.setdefault(node_id, [])
                first = at >> bits
                if touched and touched[-1] == first:
                    first += 1
                touched.extend(range(first, (at + n - 1 >> bits) + 1))
                nbytes[node_id] = nbytes.get(node_id, 0) + n
        return [(node_id, touched[0] << bits, nbytes[node_id], touched) for node_id, touched in lines.items()]


class TileReads:
    """Reads the streamed operands of a job, tile after tile, as their buffers in TCM come free.

    An operand is (stream, place, last): `place(i)` is the grid position of tile `i`; with `last` it is read
    with the last k tile of an output tile only.
    """

    def __init__(
        self, job: TileJob, operands: list[tuple[Stream, Callable[[int], tuple[int, int]], bool]], buffers: int
    ) -> None:
        self.job, self.operands, self.buffers = job, operands, buffers
        self.landed: dict[int, int] = {}
        self._left: dict[int, int] = {}
        self._free: list[int] = []
        self._tile = -1
        self._pending: list[tuple[int, Piece]] = []
        self._prepare()

    def _prepare(self) -> None:
        """Go on to the next tile that reads something."""
        job, kt, buffers = self.job, self.job.kt, self.buffers
        while not self._pending and self._tile + 1 < job.n:
            self._tile += 1
            i = self._tile
            for stream, place, last in self.operands:
                if last and (i + 1) % kt:
                    continue
                waits_for = i - buffers * (kt if last else 1)
                self._pending.extend((waits_for, piece) for piece in stream.pieces(*place(i)))
            self._left[i] = len(self._pending)
            self._pending.reverse()

    def arrival(self, i: int) -> int | None:
        """Return when tile `i` is complete in TCM, or None if that is not known yet."""
        if self._left.get(i) == 0:
            return self.job.planned(i)
        return self.landed.get(i)

    def freed(self, i: int, t: int) -> None:
        """Note that the buffers of tile `i` are free from `t` on."""
        self.landed.pop(i, None)
        self._left.pop(i, None)
        self._free.append(t)
        self.job.pe.dma.reader.pump()

    def next_ps(self) -> int | None:
        """Return when the next request may be issued: planned, and a buffer free."""
        t = self.job.planned(self._tile)
        if t is None:
            return None
        waits_for = self._pending[-1][0]
        if waits_for < 0:
            return t
        return max(t, self._free[waits_for]) if waits_for < len(self._free) else None

    def issue(self) -> bool:
        """Issue the next request; return True if it was the last."""
        job, pe = self.job, self.job.pe
        _, (node_id, offset, nbytes, lines) = self._pending.pop()
        now = pe.engine.env._now
        if job.start_ps is None:
            job.start_ps = now
        pe.dma.read(Transaction(nbytes, offset, self._landed, (self._tile, now), lines), node_id)
        if not self._pending:
            self._prepare()
        return not self._pending

    def _landed(self, txn: Transaction) -> None:
        i, issued = txn.arg
        pe = self.job.pe
        now, log = pe.engine.env._now, pe.engine.log
        if log.tiles:
            log.row(issued, now, pe.dma.component, _DMA_IN, self.job.id, txn.nbytes, 0, i)
        self._left[i] -= 1
        if not self._left[i]:
            self._left[i] = -1
            self.landed[i] = now
            pe.pipeline.advance()
        pe.dma.reader.done()


class TileWrites:
    """Writes the output tiles of a job as they leave the store stage; the last acknowledgement ends the job."""

    def __init__(self, job: TileJob, stream: Stream, place: Callable[[int], tuple[int, int]]) -> None:
        self.job, self.stream, self.place = job, stream, place
        self._out = 0
        self._unacknowledged = 0
        self._pending: list[Piece] = []

    def next_ps(self) -> int | None:
        """Return when the next output tile is there, or None if that is not known yet."""
        if self._pending:
            return self.job.pe.engine.env._now
        items = self.job.pe.pipeline.store_dma.items
        return items[0] if items else None

    def issue(self) -> bool:
        """Issue the next request; return True if it was the last."""
        job, pe = self.job, self.job.pe
        now = pe.engine.env._now
        if not self._pending:
            self._pending = self.stream.pieces(*self.place(self._out))[::-1]
            self._out += 1
            pe.pipeline.store_dma.take(now)
        node_id, offset, nbytes, lines = self._pending.pop()
        self._unacknowledged += 1
        txn = Transaction(nbytes, offset, self._acknowledged, (job.tile_of(self._out - 1), now), lines)
        pe.dma.write(txn, node_id)
        pe.pipeline.advance()
        return self._out == job.outputs and not self._pending

    def _acknowledged(self, txn: Transaction) -> None:
        job, pe = self.job, self.job.pe
        tile, issued = txn.arg
        now, log = pe.engine.env._now, pe.engine.log
        if log.tiles:
            log.row(issued, now, pe.dma.component, _DMA_OUT, job.id, txn.nbytes, 0, tile)
        self._unacknowledged -= 1
        if not self._unacknowledged and self._out == job.outputs and not self._pending:
            job.written(now)
        pe.dma.writer.done()
