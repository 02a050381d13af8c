"""Streamed operands and results of a tiled command: its requests, tile by tile."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kernbench.analysis.causes import READ, WRITE
from kernbench.components.command import Ref
from kernbench.components.jobs import TileJob
from kernbench.components.tile_plan import Grid
from kernbench.sim_engine.op_log import KIND
from kernbench.sim_engine.transfer import Transaction

if TYPE_CHECKING:
    from kernbench.components.builtin.pe_dma import Port
    from kernbench.components.builtin.pe_scheduler import Operand
    from kernbench.components.pe import Pe

_DMA_IN, _DMA_OUT = KIND["dma_in"], KIND["dma_out"]

Piece = tuple["Port", int, int, list[int] | None]


class Stream:
    """A matrix in memory, by tiles. A piece of one is (port, offset, bytes, lines): what one request asks for."""

    def __init__(self, pe: Pe, ref: Ref, grid: Grid) -> None:
        self.pe, self.ref, self.grid = pe, ref, grid
        self.strided = pe.gather == "strided"
        whole = pe.mmu.translate(ref.va, grid.rows * grid.cols * grid.itemsize)
        self._home: tuple[Port, int] | None = None
        if len(whole) == 1 and not self.strided:
            node_id, offset = pe.engine.locate(whole[0][0])
            self._home = pe.dma.port(node_id), offset

    def pieces(self, r: int, c: int) -> list[Piece]:
        """Return the requests of tile (r, c)."""
        if self.strided:
            return self._touched(self.grid.strided(r, c))
        offset, nbytes = self.grid.packed(r, c)
        if self._home is not None:
            port, base = self._home
            return [(port, base + offset, nbytes, None)]
        engine, dma = self.pe.engine, self.pe.dma
        found = [(engine.locate(pa), n) for pa, n in self.pe.mmu.translate(self.ref.va + offset, nbytes)]
        return [(dma.port(node_id), at, n, None) for (node_id, at), n in found]

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
        port = self.pe.dma.port
        return [(port(node_id), touched[0] << bits, nbytes[node_id], touched) for node_id, touched in lines.items()]


class TileReads:
    """Reads the streamed operands of a job, tile after tile, as their buffers in TCM come free."""

    def __init__(self, job: TileJob, operands: list[tuple[Stream, Operand]], buffers: int) -> None:
        self.job, self.operands, self.buffers = job, operands, buffers
        self._every = any("k" in operand.axes for _, operand in operands)
        self._left: dict[int, int] = {}
        self._landed: dict[int, int] = {}
        self._free: list[int] = []
        self._tile = -1
        self._m = self._n = 0
        self._waits: int
        self._pending: list[tuple[int, Piece]] = []
        self._prepare()

    def _prepare(self) -> None:
        """Go on to the next tile that reads something."""
        job, kt, buffers = self.job, self.job.kt, self.buffers
        pending = self._pending
        while not pending and self._tile + 1 < job.n:
            self._tile = i = self._tile + 1
            out, k = divmod(i, kt)
            if not k:
                self._m, self._n = job.plan.out_place(out)
            for stream, operand in self.operands:
                axes = operand.axes
                if axes == "mk":
                    pieces, waits = stream.pieces(self._m, k), i - buffers
                elif axes == "kn":
                    pieces, waits = stream.pieces(k, self._n), i - buffers
                elif k == kt - 1:
                    pieces, waits = stream.pieces(*operand.place(self._m, self._n, k)), i - buffers * kt
                else:
                    continue
                for piece in pieces:
                    pending.append((waits, piece))
            self._left[i] = len(pending)
            if len(pending) > 1:
                pending.reverse()

    def arrival(self, i: int) -> int | None:
        """Return when tile `i` is complete in TCM, or None if that is not known yet."""
        t = self._landed.get(i)
        if t is None and not self._every and self._left.get(i) == 0:
            return self.job.planned(i)
        return t

    def freed(self, i: int, t: int) -> None:
        """Note that the buffers of tile `i` are free from `t` on."""
        self._landed.pop(i, None)
        del self._left[i]
        self._free.append(t)
        self.job.pe.dma.reader.pump()

    def next_ps(self) -> int | None:
        """Return when the next request may be issued: planned, and a buffer free."""
        planned = self.job.planned_ps
        if planned is None:
            return None
        t = planned + (self._tile + 1) * self.job.tile_ps
        waits_for = self._pending[-1][0]
        if waits_for < 0:
            return t
        free = self._free
        if waits_for >= len(free):
            return None
        return t if t > free[waits_for] else free[waits_for]

    def issue(self) -> bool:
        """Issue the next request; return True if it was the last."""
        job, pending = self.job, self._pending
        _, (port, offset, nbytes, lines) = pending.pop()
        now = job.pe.engine.env._now
        if job.start_ps is None:
            job.start_ps = now
        port.read(Transaction(nbytes, offset, self._arrived, (self._tile, now), lines))
        if not pending:
            self._prepare()
        return not pending

    def _arrived(self, txn: Transaction) -> None:
        i, issued = txn.arg
        pe = self.job.pe
        now, log = pe.engine.env._now, pe.engine.log
        if log.tiles:
            log.row(issued, now, pe.dma.component, _DMA_IN, self.job.id, txn.nbytes, 0, i)
            log.transfer(issued, now, txn, self.job.id, i, READ)
        left = self._left[i] = self._left[i] - 1
        if not left:
            self._landed[i] = now
            pe.pipeline.advance()
        pe.dma.reader.done()


class TileWrites:
    """Writes the output tiles of a job as they leave the store stage; the last acknowledgement ends the job."""

    def __init__(self, job: TileJob, stream: Stream) -> None:
        self.job, self.stream = job, stream
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
            self._pending = self.stream.pieces(*job.plan.out_place(self._out))[::-1]
            self._out += 1
            pe.pipeline.store_dma.take(now)
        port, offset, nbytes, lines = self._pending.pop()
        self._unacknowledged += 1
        txn = Transaction(nbytes, offset, self._acknowledged, (job.tile_of(self._out - 1), now), lines)
        port.write(txn)
        pe.pipeline.advance()
        return self._out == job.outputs and not self._pending

    def _acknowledged(self, txn: Transaction) -> None:
        job, pe = self.job, self.job.pe
        tile, issued = txn.arg
        now, log = pe.engine.env._now, pe.engine.log
        if log.tiles:
            log.row(issued, now, pe.dma.component, _DMA_OUT, job.id, txn.nbytes, 0, tile)
            log.transfer(issued, now, txn, job.id, tile, WRITE)
        self._unacknowledged -= 1
        if not self._unacknowledged and self._out == job.outputs and not self._pending:
            job.written(now)
        pe.dma.writer.done()
