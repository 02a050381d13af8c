"""Streamed operands and results of a tiled command: its requests, tile by tile."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from kernbench.analysis.records import READ, WRITE
from kernbench.components.command import Ref
from kernbench.components.jobs import TileJob
from kernbench.components.source import Source
from kernbench.components.tile_plan import Grid
from kernbench.sim_engine.op_log import KIND
from kernbench.sim_engine.transfer import Transaction

if TYPE_CHECKING:
    from kernbench.components.builtin.pe_dma import Port
    from kernbench.components.builtin.pe_scheduler import Operand
    from kernbench.components.pe import Pe

_DMA_IN, _DMA_OUT = KIND["dma_in"], KIND["dma_out"]
_READ, _WRITE = READ, WRITE

Piece = tuple["Port", int, int, list[int] | None]


class Stream:
    """A matrix in memory, by tiles. A piece of one is (port, offset, bytes, lines): what one request asks for.

    `home` is the memory that it lies in, from `at` on, if that is one and it lies there tile by tile.
    """

    def __init__(self, pe: Pe, ref: Ref, grid: Grid) -> None:
        self.pe, self.ref, self.grid = pe, ref, grid
        self.strided = pe.gather == "strided"
        whole = pe.mmu.translate(ref.va, grid.rows * grid.cols * grid.itemsize)
        self.home: Port | None = None
        self.at = 0
        if len(whole) == 1 and not self.strided:
            node_id, offset = pe.engine.locate(whole[0][0])
            self.home, self.at = pe.dma.port(node_id), offset

    def pieces(self, r: int, c: int) -> list[Piece]:
        """Return the requests of tile (r, c)."""
        if self.strided:
            return self._touched(self.grid.strided(r, c))
        offset, nbytes = self.grid.packed(r, c)
        if self.home is not None:
            return [(self.home, self.at + offset, nbytes, None)]
        engine, dma = self.pe.engine, self.pe.dma
        found = [(engine.locate(pa), n) for pa, n in self.pe.mmu.translate(self.ref.va + offset, nbytes)]
        return [(dma.port(node_id), at, n, None) for (node_id, at), n in found]

    def row(self, r: int, cols: int) -> list[list[Piece]]:
        """Return the requests of tiles (r, 0) to (r, cols - 1)."""
        if self.home is None:
            return [self.pieces(r, c) for c in range(cols)]
        port, base, grid = self.home, self.at, self.grid
        rows, last = grid.shape(r, cols - 1)
        full = rows * grid.tile_cols * grid.itemsize
        start = base + r * grid.tile_rows * grid.cols * grid.itemsize
        found: list[list[Piece]] = [[(port, start + c * full, full, None)] for c in range(cols - 1)]
        return [*found, [(port, start + (cols - 1) * full, rows * last * grid.itemsize, None)]]

    def column(self, c: int, rows: int) -> list[list[Piece]]:
        """Return the requests of tiles (0, c) to (rows - 1, c)."""
        if self.home is None:
            return [self.pieces(r, c) for r in range(rows)]
        port, base, grid = self.home, self.at, self.grid
        _, cols = grid.shape(0, c)
        nbytes = grid.tile_rows * cols * grid.itemsize
        start = base + grid.tile_rows * c * grid.tile_cols * grid.itemsize
        step = grid.tile_rows * grid.cols * grid.itemsize
        found: list[list[Piece]] = [[(port, start + r * step, nbytes, None)] for r in range(rows - 1)]
        return [*found, self.pieces(rows - 1, c)]

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


class TileReads(Source):
    """Reads the streamed operands of a job, tile after tile, as their buffers in TCM come free.

    `complete` holds when a tile was complete in TCM, until its buffers are free again.
    """

    def __init__(self, job: TileJob, operands: list[tuple[Stream, Operand]], buffers: int) -> None:
        self.job, self.operands, self.buffers = job, operands, buffers
        self.complete: dict[int, int] = {}
        pe: Any = job.pe
        self._core, self._log = pe.core, pe.log
        self._reader, self._pipeline = pe.dma.reader, pe.pipeline
        self._component: int = pe.dma.component
        self._left: dict[int, int] = {}
        self._free: list[int] = []
        self._tile = -1
        self._m = -1
        self._along: list[list[list[Piece]]] = []
        self._tiles: list[list[tuple[int, Piece]]] = []
        self._pending: list[tuple[int, Piece]] = []
        self._arriving = False
        self._prepare()

    def _begin(self, out: int) -> None:
        """Find what the k tiles of an output tile read, the last request first, each with the tiles it lags behind.

        Operands along k are read for each tile, the others with the last one.
        """
        kt, buffers = self.job.kt, self.buffers
        m, n = self.job.plan.out_place(out)
        along, once = [], []
        for i, (stream, operand) in enumerate(self.operands):
            if operand.axes == "mk":
                along.append(self._along[i] if m == self._m else stream.row(m, kt))
            elif operand.axes == "kn":
                along.append(stream.column(n, kt))
            else:
                once += stream.pieces(*operand.place(m, n, kt - 1))
        self._along, self._m = along, m
        self._tiles = [[(buffers, piece) for at in reversed(along) for piece in reversed(at[k])] for k in range(kt)]
        if once:
            self._tiles[-1][:0] = [(buffers * kt, piece) for piece in reversed(once)]

    def _prepare(self) -> None:
        """Go on to the next tile that reads something."""
        job = self.job
        while not self._pending and self._tile + 1 < job.n:
            self._tile = i = self._tile + 1
            k = i % job.kt
            if not k:
                self._begin(i // job.kt)
            self._pending = self._tiles[k]
            self._left[i] = len(self._pending)

    def arrival(self, i: int) -> int:
        """Return when tile `i` is complete in TCM, or -1 if that is not known yet."""
        t = self.complete.get(i)
        if t is not None:
            return t
        return self.job.planned(i) if self._left.get(i) == 0 else -1

    def freed(self, i: int, t: int) -> None:
        """Note that the buffers of tile `i` are free from `t` on."""
        self.complete.pop(i, None)
        del self._left[i]
        self._free.append(t)
        if not self._arriving:
            self._reader.pump()

    def next_ps(self) -> int:
        """Return when the next request may be issued: planned, and a buffer free."""
        job, i = self.job, self._tile
        if job.planned_ps < 0:
            return -1
        t = job.planned_ps + (i + 1) * job.tile_ps
        i -= self._pending[-1][0]
        if i < 0:
            return t
        if i >= len(self._free):
            return -1
        free = self._free[i]
        return t if t > free else free

    def issue(self) -> bool:
        """Issue the next request; return True if it was the last."""
        job, pending = self.job, self._pending
        _, (port, offset, nbytes, lines) = pending.pop()
        now = self._core.now
        if job.start_ps < 0:
            job.start_ps = now
        txn = Transaction(nbytes, offset, self, None, lines)
        txn.asked_ps, txn.tile = now, self._tile
        port.read(txn)
        if not pending:
            self._prepare()
            return not self._pending
        return False

    def landed(self, arg: Any) -> None:
        """Take what a request has read."""
        txn: Transaction = arg
        i, job = txn.tile, self.job
        now, log = self._core.now, self._log
        if log.tiles:
            log.row(txn.asked_ps, now, self._component, _DMA_IN, job.id, txn.nbytes, 0, i)
            log.transfer(txn.asked_ps, now, txn, job.id, i, _READ)
        left = self._left[i] - 1
        if left:
            self._left[i] = left
        else:
            self._left[i] = -1
            self.complete[i] = now
            if i == job.fetched:
                self._arriving = True
                self._pipeline.advance()
                self._arriving = False
        self._reader.done()


class TileWrites(Source):
    """Writes the output tiles of a job as they leave the store stage; the last acknowledgement ends the job."""

    def __init__(self, job: TileJob, stream: Stream) -> None:
        self.job, self.stream = job, stream
        pe: Any = job.pe
        self._core, self._log, self._writer, self._pipeline = pe.core, pe.log, pe.dma.writer, pe.pipeline
        self._component: int = pe.dma.component
        self._out = 0
        self._unacknowledged = 0
        self._pending: list[Piece] = []

    def next_ps(self) -> int:
        """Return when the next output tile is there, or -1 if that is not known yet."""
        t: int = self._core.now if self._pending else self._pipeline.store_dma.first()
        return t

    def issue(self) -> bool:
        """Issue the next request; return True if it was the last."""
        job = self.job
        now = self._core.now
        if not self._pending:
            self._pending = self.stream.pieces(*job.plan.out_place(self._out))[::-1]
            self._out += 1
            self._pipeline.store_dma.take(now)
        port, offset, nbytes, lines = self._pending.pop()
        self._unacknowledged += 1
        txn = Transaction(nbytes, offset, self, None, lines)
        txn.asked_ps, txn.tile = now, job.tile_of(self._out - 1)
        port.write(txn)
        self._pipeline.advance()
        return self._out == job.outputs and not self._pending

    def landed(self, arg: Any) -> None:
        """Take an acknowledgement."""
        txn: Transaction = arg
        job, now, log = self.job, self._core.now, self._log
        if log.tiles:
            log.row(txn.asked_ps, now, self._component, _DMA_OUT, job.id, txn.nbytes, 0, txn.tile)
            log.transfer(txn.asked_ps, now, txn, job.id, txn.tile, _WRITE)
        self._unacknowledged -= 1
        if not self._unacknowledged and self._out == job.outputs and not self._pending:
            job.written(now)
        self._writer.done()
