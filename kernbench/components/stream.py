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


class TileReads:
    """Reads the streamed operands of a job, tile after tile, as their buffers in TCM come free.

    `landed` holds when a tile was complete in TCM, until its buffers are free again.
    """

    def __init__(self, job: TileJob, operands: list[tuple[Stream, Operand]], buffers: int) -> None:
        self.job, self.operands, self.buffers = job, operands, buffers
        self.landed: dict[int, int] = {}
        self._clock, self._reader = job.pe.engine.env, job.pe.dma.reader
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

    def arrival(self, i: int) -> int | None:
        """Return when tile `i` is complete in TCM, or None if that is not known yet."""
        if self._left.get(i) == 0 and i not in self.landed:
            return self.job.planned(i)
        return self.landed.get(i)

    def freed(self, i: int, t: int) -> None:
        """Note that the buffers of tile `i` are free from `t` on."""
        self.landed.pop(i, None)
        del self._left[i]
        self._free.append(t)
        if not self._arriving:
            self._reader.pump()

    def next_ps(self) -> int | None:
        """Return when the next request may be issued: planned, and a buffer free."""
        job = self.job
        if job.planned_ps is None:
            return None
        i = self._tile
        t = job.planned_ps + (i + 1) * job.tile_ps
        i -= self._pending[-1][0]
        if i < 0:
            return t
        free = self._free
        if i >= len(free):
            return None
        return t if t > free[i] else free[i]

    def issue(self) -> bool:
        """Issue the next request; return True if it was the last."""
        job, pending = self.job, self._pending
        _, (port, offset, nbytes, lines) = pending.pop()
        now = self._clock._now
        if job.start_ps is None:
            job.start_ps = now
        port.read(Transaction(nbytes, offset, self._arrived, (self._tile, now), lines))
        if not pending:
            self._prepare()
            return not self._pending
        return False

    def _arrived(self, txn: Transaction) -> None:
        i, issued = txn.arg
        job = self.job
        pipeline = job.pe.pipeline
        now, log = self._clock._now, pipeline.log
        if log.tiles:
            log.row(issued, now, job.pe.dma.component, _DMA_IN, job.id, txn.nbytes, 0, i)
            log.transfer(issued, now, txn, job.id, i, READ)
        left = self._left[i] - 1
        if left:
            self._left[i] = left
        else:
            self._left[i] = -1
            self.landed[i] = now
            if i == job.fetched:
                self._arriving = True
                pipeline.advance()
                self._arriving = False
        self._reader.done()


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
