"""PE_SCHEDULER: cuts a tiled command into tiles and plans them; and the pipeline that they pass through."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kernbench._units import MIB, ns_to_ps
from kernbench.analysis._records import BEGIN, MATRIX_TILE, NONE
from kernbench.analysis._roofline import tiled_for
from kernbench.components._command import Command, Composite, Dot, Ref, Value, Vector, VectorOp
from kernbench.components._pe import Job
from kernbench.components.builtin.pe_dma import MatrixStream, TileReads, TileWrites
from kernbench.errors import OutOfMemoryError
from kernbench.sim_engine._causes import FETCHING, GEMM, MATH, NOTHING, PLAN, STORE, Cause, Moment
from kernbench.sim_engine._op_log import KIND, STEP_KIND, OpLog

if TYPE_CHECKING:
    from kernbench._dtypes import DType
    from kernbench.analysis._roofline import MatrixEngine
    from kernbench.components._pe import Pe, PeProgram


def cuts(size: int, tile: int) -> int:
    return max(1, -(-size // tile))


class TileGrid:
    """A row-major matrix of `rows` x `cols` elements, cut into tiles of `tile_rows` x `tile_cols`.

    >>> grid = TileGrid(3, 5, 2, 4, itemsize=2)
    >>> grid.offset(1, 0, rows=1), grid.offset(1, 1, rows=1)
    (20, 28)
    >>> grid.strided(0, 1)
    [(8, 2), (18, 2)]
    """

    def __init__(self, rows: int, cols: int, tile_rows: int, tile_cols: int, itemsize: int) -> None:
        self.rows, self.cols, self.tile_rows, self.tile_cols = rows, cols, tile_rows, tile_cols
        self.itemsize = itemsize

    def height(self, r: int) -> int:
        return min(self.tile_rows, self.rows - r * self.tile_rows)

    def width(self, c: int) -> int:
        return min(self.tile_cols, self.cols - c * self.tile_cols)

    def elements(self, r: int, c: int) -> int:
        return self.height(r) * self.width(c)

    def offset(self, r: int, c: int, rows: int) -> int:
        """Offset of tile (r, c), of `rows` rows, if tiles are stored one after the other [bytes]."""
        return (r * self.tile_rows * self.cols + rows * c * self.tile_cols) * self.itemsize

    def strided(self, r: int, c: int) -> list[tuple[int, int]]:
        """(offset, bytes) of every row of tile (r, c) if the matrix is stored row by row."""
        first = (r * self.tile_rows * self.cols + c * self.tile_cols) * self.itemsize
        pitch, nbytes = self.cols * self.itemsize, self.width(c) * self.itemsize
        return [(first + row * pitch, nbytes) for row in range(self.height(r))]


_FETCH, _GEMM, _MATH, _STORE = KIND["fetch"], KIND["gemm"], KIND["math"], KIND["store_tcm"]


class BufferRing:
    """Buffers between two stages: buffer i % size has been full, or free, since a moment of `since`."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.since = [Moment() for _ in range(size)]
        self.put_ = self.got = 0

    def room(self) -> Moment | None:
        """Moment since which the next buffer is free, None if unknown."""
        return None if self.put_ - self.got == self.size else self.since[self.put_ % self.size]

    def put(self, t: int, by: Cause) -> None:
        at = self.since[self.put_ % self.size]
        at.ps, at.by = t, by
        self.put_ += 1

    def first(self) -> int:
        """Time at which the oldest full buffer was filled [ps], -1 if none is full."""
        at = self.since[self.got % self.size]
        return at.ps if self.put_ > self.got else -1

    def first_by(self) -> Cause:
        at = self.since[self.got % self.size]
        return at.by

    def take(self, t: int, by: Cause) -> None:
        at = self.since[self.got % self.size]
        at.ps, at.by = t, by
        self.got += 1


class StageServer:
    """A server of work: `free` from a time on; `queue` holds the jobs in program order.

    `busy_ps` counts all services so far, including those ahead of the clock.

    The latest service, for `job`, lasted from `start` to `end`; `began` and `at` are the causes of these. While the
    ring `leaving` has no room the stage is blocked, but the tile's source buffer is free since `start`.

    The tiles of a command are consecutive: `since` is the start of the first, `before` the busy time until then. In a
    live run, `spans` holds the starts and ends, `recent` in number, of services that may be ahead of the clock.
    """

    def __init__(self, name: str, kind: int, part: int, log: OpLog, live: bool) -> None:
        self.name, self.kind, self.part, self.log, self.component = name, kind, part, log, log.component(name)
        self.free = self.busy_ps = self.start = self.end = self.since = self.before = 0
        self.began = self.at = self.free_by = NOTHING
        self.job: TileJob | None = None
        self.leaving: BufferRing | None = None
        self.queue: list[Job] = []
        self.live, self.recent = live, 0
        self.spans: np.ndarray
        if live:
            self.spans = np.empty(16, np.int64)

    def step(
        self, ready: int, by: Cause, service: int, command: int, nbytes: int, flops: int, tile: int, first: bool
    ) -> None:
        """Serve work that is ready at `ready` for `service` [ps]; `first` if it is a command's first."""
        start, cause, other = self.free, self.free_by, by
        if ready > start:
            start, cause, other = ready, by, cause
        end = start + service
        if first:
            self.since, self.before = start, self.busy_ps
        self.busy_ps += service
        if self.live:
            self._note(start, end)
        self.start, self.end = start, end
        log = self.log
        if log.tiles or (log.operation and tile < 0):
            row = log.row(
                start, end, self.component, self.kind, command, nbytes, flops, tile, log.event(cause), other.event
            )
            self.at = Cause(row)
            if self.part != FETCHING:  # it takes from no ring
                self.began = Cause(BEGIN | row >> 3 << 3)
        elif log.operation:
            self.at, self.began = log.then(cause, command, self.part, service), cause

    def _note(self, start: int, end: int) -> None:
        i = self.recent
        if i and self.spans[i - 1] == start:
            self.spans[i - 1] = end
            return
        if i == len(self.spans):
            self.spans = np.concatenate([self.spans, self.spans])
        self.spans[i], self.spans[i + 1] = start, end
        self.recent = i + 2

    def busy_by(self, now: int) -> int:
        """Busy time until now [ps]; live runs only."""
        spans, ahead, i = self.spans, 0, self.recent
        while i and spans[i - 1] > now:
            ahead += spans[i - 1] - max(now, spans[i - 2])
            i -= 2
        spans[: self.recent - i] = spans[i : self.recent]
        self.recent -= i
        return self.busy_ps - ahead

    def done(self) -> None:
        """Become free at `end`, without an output."""
        self.free, self.free_by = self.end, self.at

    def leave(self) -> bool:
        """Pass the served tile on; return False while the ring has no known room."""
        ring, end = self.leaving, self.end
        assert ring is not None
        room = ring.room()
        if room is None:
            return False
        if self.log.tiles:
            self.log.left(self.at.event, room.by.event, room.ps > end)
        elif room.ps > end:
            self.at = room.by
        self.free, self.free_by = room.ps if room.ps > end else end, self.at
        self.leaving = None
        ring.put(self.free, self.at)
        return True


class TilePipeline:
    """The stages of one PE and the rings between them; `advance` moves every tile as far as is known."""

    def __init__(self, pe: str, log: OpLog, buffers: int, live: bool = False) -> None:
        self.log = log
        self.fetch = StageServer(f"{pe}.pe_fetch_store.fetch", _FETCH, FETCHING, log, live)
        self.gemm = StageServer(f"{pe}.pe_gemm", _GEMM, GEMM, log, live)
        self.math = StageServer(f"{pe}.pe_math", _MATH, MATH, log, live)
        self.store = StageServer(f"{pe}.pe_fetch_store.store", _STORE, STORE, log, live)
        self.fetch_gemm, self.fetch_math = BufferRing(buffers), BufferRing(buffers)
        self.gemm_math, self.gemm_store = BufferRing(buffers), BufferRing(buffers)
        self.math_store, self.store_dma = BufferRing(buffers), BufferRing(buffers)
        self._moving = self._again = False

    def advance(self) -> None:
        """Move all that can move. A nested call, as a command ends, leaves that to the outer one."""
        if self._moving:
            self._again = True
            return
        self._moving = True
        fetch, gemm, math, store = self.fetch, self.gemm, self.math, self.store
        while True:
            self._again = False
            moved = self._run(fetch)
            moved = self._run(gemm) or moved
            moved = self._run(math) or moved
            moved = self._run(store) or moved
            # No stage can go on before an event, unless it was blocked by the next stage, which has moved.
            held = (
                fetch.leaving is not None
                or gemm.leaving is not None
                or math.leaving is not None
                or store.leaving is not None
            )
            if not self._again and not (moved and held):
                break
        self._moving = False

    def _run(self, stage: StageServer) -> bool:
        moved = False
        while True:
            if stage.leaving is not None:
                if not stage.leave():
                    break
                moved = True
                job, stage.job = stage.job, None  # which is all that would keep a finished job
                assert job is not None
                job.left(stage)
            if not stage.queue:
                break
            work = stage.queue[0]
            ready = work.ready_at(stage)
            if ready < 0:
                break
            work.serve(stage, ready)
            moved = True
        return moved


_COMPOSITE, _LOOKUP = KIND["composite"], STEP_KIND["lookup"]


class VectorJob(Job):
    def opens(self, pe: Pe, command: Vector, program: PeProgram | None) -> None:
        """Set all fields, of an object that compiled code has made without `__init__`."""
        self.begins(pe, command, program)
        self.service_ps = pe.math.service_ps(command.work)

    def enter(self) -> None:
        self.pe.pipeline.math.queue.append(self)
        self.pe.progress()

    def ready_at(self, stage: Any) -> int:
        return -1 if self.waiting else self.ready

    def serve(self, stage: Any, ready: int) -> None:
        engine: StageServer = stage
        engine.step(ready, Cause(self.ready_by), self.service_ps, self.id, 0, self.command.flops, -1, False)
        engine.done()
        engine.queue.pop(0)
        self.finish(engine.end, engine.at.event)


class TileJob(Job):
    """A tiled command: its tiles move through the pipeline; counters hold the progress of each stage.

    `kt` consecutive tiles make one output tile. Streamed operands arrive by `reads` (see `pe_dma`); tiles of pinned
    ones are available once PE_SCHEDULER has planned them, from `planned_by` on.
    """

    def __init__(self, pe: Pe, command: Command, program: PeProgram | None, plan: TilePlan) -> None:
        self.begins(pe, command, program)
        self.plan = plan
        self.n, self.kt = plan.n, plan.kt
        self.outputs = self.n // self.kt
        self.fetched = self.multiplied = self.vectored = self.stored = 0
        self.matrix, self.vector = plan.matrix, plan.vector
        self.tile_ps = pe.scheduler.tile_ps
        self.planned_ps = self.start_ps = -1
        self.planned_by = NOTHING
        self.reads: TileReads | None = None
        self.writes: TileWrites | None = None
        self.fetching: OutputTile | None = None
        self.multiplying: OutputTile | None = None

    def enter(self) -> None:
        pe, pipeline = self.pe, self.pe.pipeline
        pipeline.fetch.queue.append(self)
        if self.matrix:
            pipeline.gemm.queue.append(self)
        if self.vector:
            pipeline.math.queue.append(self)
        pipeline.store.queue.append(self)
        pe.scheduler.queue.append(self)
        if self.reads is not None:
            pe.dma.reader.queue.append(self.reads)
        if self.writes is not None:
            pe.dma.writer.queue.append(self.writes)
        pe.progress()

    def planned(self, i: int) -> int:
        """Time at which PE_SCHEDULER has planned tile `i` [ps], -1 while it cannot begin with the command."""
        return -1 if self.planned_ps < 0 else self.planned_ps + (i + 1) * self.tile_ps

    def plan_of(self, i: int) -> Cause:
        log = self.pe.log
        if log.tiles or not log.operation:
            return self.planned_by
        return self.planned_by.then(self.id, PLAN, (i + 1) * self.tile_ps)

    def _source(self, stage: StageServer) -> BufferRing:
        pipeline: TilePipeline = self.pe.pipeline
        if stage.part == GEMM:
            return pipeline.fetch_gemm
        if stage.part == MATH:
            return pipeline.gemm_math if self.matrix else pipeline.fetch_math
        return pipeline.math_store if self.vector else pipeline.gemm_store

    def ready_at(self, stage: Any) -> int:
        at: StageServer = stage
        if at.part != FETCHING:
            return self._source(at).first()
        return self.planned(self.fetched) if self.reads is None else self.reads.arrival(self.fetched)

    def serve(self, stage: Any, ready: int) -> None:
        at: StageServer = stage
        if at.part == FETCHING:
            self._fetch(at, ready)
        else:
            self._compute(at, ready)

    def _compute(self, stage: StageServer, ready: int) -> None:
        pipeline, ring = self.pe.pipeline, self._source(stage)
        by = ring.first_by()
        if stage.part == GEMM:
            last = self._multiply(stage, ready, by)
        elif stage.part == MATH:
            o = self.vectored
            tile = self.plan.output(o)
            stage.step(ready, by, tile.vector_ps, self.id, 0, 0, self.tile_of(o), not o)
            self.vectored = o + 1
            stage.leaving = pipeline.math_store
            last = self.vectored == self.outputs
        else:
            o = self.stored
            tile = self.plan.output(o)
            stage.step(ready, by, tile.store_ps, self.id, tile.nbytes, 0, self.tile_of(o), not o)
            self.stored = o + 1
            last = self.stored == self.outputs
            if self.writes is not None:
                stage.leaving = pipeline.store_dma
            else:
                stage.done()
        if stage.leaving is not None:
            stage.job = self
        ring.take(stage.start, stage.began)
        if last:
            self._ended(stage, self.n if stage.part == GEMM else self.outputs)
        if stage.leaving is None and stage.part == STORE:
            self.left(stage)

    def _fetch(self, stage: StageServer, ready: int) -> None:
        i, k = self.fetched, self.fetched % self.kt
        if not k:
            self.fetching = self.plan.output(i // self.kt)
        tile = self.fetching
        assert tile is not None
        nbytes, service = tile.fetched[k], tile.fetch_ps[k]
        by = self.plan_of(i) if self.reads is None else self.reads.arrived_by(i)
        stage.step(ready, by, service, self.id, nbytes, 0, i, not i)
        pipeline = self.pe.pipeline
        stage.job, stage.leaving = self, pipeline.fetch_gemm if self.matrix else pipeline.fetch_math
        if self.start_ps < 0:
            self.start_ps = stage.start
        self.fetched = i + 1
        if self.fetched == self.n:
            self._ended(stage, self.n)

    def _multiply(self, stage: StageServer, ready: int, by: Cause) -> bool:
        i, k = self.multiplied, self.multiplied % self.kt
        if not k:
            self.multiplying = self.plan.output(i // self.kt)
        tile = self.multiplying
        assert tile is not None
        stage.step(ready, by, tile.product_ps[k], self.id, 0, tile.flops[k], i, not i)
        self.multiplied = i = i + 1
        if i % self.kt:
            stage.done()
        else:
            pipeline = self.pe.pipeline
            stage.leaving = pipeline.gemm_math if self.vector else pipeline.gemm_store
        return i == self.n

    def _ended(self, stage: StageServer, n: int) -> None:
        stage.queue.pop(0)
        if stage.log.operation:
            stage.log.stage(self.id, stage.kind, stage.since, stage.end, stage.busy_ps - stage.before, n)

    def tile_of(self, o: int) -> int:
        """Index of the tile that completes output tile `o`."""
        return (o + 1) * self.kt - 1

    def left(self, stage: StageServer) -> None:
        """After a fetch, free the operands' buffers; after a store, wake the DMA or end the job."""
        if stage.part == FETCHING:
            if self.reads is not None:
                self.reads.freed(stage.free, stage.at)
        elif stage.part == STORE:
            if self.writes is not None:
                self.pe.dma.writer.progress()
            elif self.stored == self.outputs:
                self.finish(stage.free, self._window(stage.free, stage.at))

    def written(self, t: int, by: Cause) -> None:
        pe, command = self.pe, self.command
        assert isinstance(command, Composite)
        whole = self._window(t, by)
        if pe.engine.data and command.compute is not None and command.out is not None:
            arrays = [pe.array(operand) for operand in (command.a, command.b) if operand is not None]
            arrays += [pe.array(operand) for _, operand in command.extra]
            if command.acc is not None:
                arrays.append(command.acc.array)
            pe.commit(command.out, command.compute(*arrays))
        self.reads = self.writes = None  # which lead back here
        self.finish(t, whole)

    def _window(self, end: int, by: Cause) -> int:
        """Log the whole command, from its first DMA or fetch to `end`; return the event."""
        log = self.pe.log
        if not log.operation:
            return NONE
        start = self.start_ps if self.start_ps >= 0 else self.ready
        component, flops = self.pe.scheduler.component, self.command.flops
        return log.row(start, end, component, _COMPOSITE, self.id, 0, flops, -1, log.event(by))


@dataclass(slots=True)
class Operand:
    """An operand as read by tiles: its grid, and which of a tile's m, n, k (0 for none) index its rows and columns.

    An operand without k is read once per output tile, with its last k tile, or with its `first`.
    """

    grid: TileGrid
    axes: str
    first: bool = False

    def place(self, m: int, n: int, k: int) -> tuple[int, int]:
        at = {"m": m, "n": n, "k": k, "0": 0}
        return at[self.axes[0]], at[self.axes[1]]

    def nbytes(self, m: int, n: int, k: int, kt: int) -> int:
        """0 for tiles that do not read an operand without k."""
        if "k" not in self.axes and k != (0 if self.first else kt - 1):
            return 0
        return self.grid.elements(*self.place(m, n, k)) * self.grid.itemsize


class OutputTile:
    """Cost of an output tile of `nbytes`, in ps, bytes and operations; lists have an entry for each k tile."""

    def __init__(self, plan: TilePlan, m: int, n: int) -> None:
        pe, kt = plan.pe, plan.kt
        elements = plan.out.elements(m, n)
        self.nbytes = elements * plan.out.itemsize
        self.store_ps = pe.fetch_store.store_ps(self.nbytes)
        self.vector_ps = pe.math.ps(plan.work, elements) if plan.vector else 0
        # The k tiles between the first and the last are equal.
        fetched = {k: sum(x.nbytes(m, n, k, kt) for x in plan.operands) for k in {0, min(1, kt - 1), kt - 1}}
        at = [0, *[1] * (kt - 2), kt - 1][:kt]
        self.fetched = [fetched[k] for k in at]
        self.fetch_ps = [pe.fetch_store.fetch_ps(nbytes) for nbytes in self.fetched]
        self.product_ps, self.flops = [0] * kt, [0] * kt
        if plan.dtype is not None and plan.engine is not None:
            rows, cols = plan.size("m", m), plan.size("n", n)
            depths = [plan.size("k", k) for k in at]
            ps = {depth: plan.engine.tile_ps(rows, depth, cols, plan.dtype) for depth in set(depths)}
            self.product_ps = [ps[depth] for depth in depths]
            self.flops = [2 * rows * depth * cols for depth in depths]


class TilePlan:
    """The tiles of C[m, n] = A[m, k] B[k, n], in order m, n, k, and their cost in each stage.

    A plan depends on shapes and types only: equal commands share one, on all PEs; `pe` only gives rates. `mt`, `nt`,
    `kt` count tiles along each size, `n` all of them. `dtype` is that of the matrix engine's operands, None if it takes
    no part; with `vector`, each output tile is `work` for the vector engine.
    """

    def __init__(
        self, pe: Pe, sizes: tuple[int, int, int], tile: tuple[int, int, int], dtype: DType | None,
        engine: MatrixEngine | None = None,
    ) -> None:  # fmt: skip
        self.pe, self.engine, self.dtype, self.matrix = pe, engine, dtype, dtype is not None
        self.sizes, self.tile = dict(zip("mkn", sizes, strict=True)), dict(zip("mkn", tile, strict=True))
        self.mt, self.kt, self.nt = map(cuts, sizes, tile)
        self.n = self.mt * self.kt * self.nt
        self.operands: list[Operand] = []
        self.work: tuple[VectorOp, ...] = ()
        self.vector = False
        self.out = TileGrid(0, 0, 1, 1, 0)
        self._outputs: list[OutputTile | None] = [None] * 4

    def grid(self, axes: str, itemsize: int) -> TileGrid:
        """Grid of a matrix whose rows and columns are two of m, k and n, or a single row (0)."""
        (rows, tile_rows), (cols, tile_cols) = ((self.sizes.get(x, 1), self.tile.get(x, 1)) for x in axes)
        return TileGrid(rows, cols, tile_rows, tile_cols, itemsize)

    def read(self, operand: Ref | Value, axes: str, first: bool = False) -> None:
        self.operands.append(Operand(self.grid(axes, operand.dtype.itemsize), axes, first))

    def output(self, o: int) -> OutputTile:
        """Cost of output tile `o`; only ragged tiles differ, so there are at most four."""
        m, n = o // self.nt, o % self.nt
        kind = 2 * (m == self.mt - 1) + (n == self.nt - 1)
        found = self._outputs[kind]
        if found is None:
            found = self._outputs[kind] = OutputTile(self, m, n)
        return found

    def size(self, axis: str, at: int) -> int:
        """Size of the tiles at index `at` along m, k or n; the last may be ragged."""
        return min(self.tile[axis], self.sizes[axis] - at * self.tile[axis])


def _read(command: Composite) -> list[Ref | Value]:
    """Operands that the tiles of a command read, in the order of its plan's operands."""
    reads = [command.a, command.b, command.acc, *[operand for _, operand in command.extra]]
    return [x for x in reads if x is not None]


class PeScheduler:
    """Plans a tile every `tile_ns`, in the order of commands, while earlier tiles are in flight."""

    def __init__(self, pe: Pe, node_id: str) -> None:
        self.pe = pe
        self.component = pe.engine.log.component(node_id)
        self.tile_ps = ns_to_ps(pe.config.pe_scheduler.tile_ns)
        self.queue: list[TileJob] = []
        self.pipeline = TilePipeline(pe.name, pe.engine.log, pe.config.pe_tcm.stage_buffers, pe.engine.live)
        self._free, self._free_by = 0, NONE
        self._plans, self._lookup_ps = pe.engine.plans, pe.mmu.lookup_ps
        self._other_tiles = pe.config.pe_gemm.other_tiles

    def advance(self) -> None:
        """Plan the commands whose operands are complete, in program order."""
        while self.queue and not self.queue[0].waiting:
            job = self.queue.pop(0)
            start, cause, other = job.ready, job.ready_by, self._free_by
            if self._free > start:
                start, cause, other = self._free, other, cause
            job.planned_ps = planned = start + self._lookup_ps
            self._free = planned + job.n * self.tile_ps
            log = self.pe.log
            if log.operation:
                self._free_by = log.step(planned, self._lookup_ps, self.pe.mmu_place, _LOOKUP, job.id, -1, cause, other)
                job.planned_by = Cause(self._free_by)

    def job(self, command: Command, program: PeProgram | None) -> Job:
        if isinstance(command, Vector):
            vector = VectorJob.__new__(VectorJob)
            vector.opens(self.pe, command, program)
            return vector
        if isinstance(command, Dot):
            plan = self._dot(command)
        else:
            assert isinstance(command, Composite)
            plan = self._composite(command)
        if self._other_tiles and plan.engine is not None:
            command.tag += f"{MATRIX_TILE}{'x'.join(map(str, plan.engine.tile))}"
        if isinstance(command, Dot):
            return TileJob(self.pe, command, program, plan)
        job = TileJob(self.pe, command, program, plan)
        streamed = [
            (MatrixStream(self.pe, read, operand.grid), operand)
            for read, operand in zip(_read(command), plan.operands, strict=True)
            if isinstance(read, Ref)
        ]
        if streamed:
            self._fits([operand for _, operand in streamed])
            job.reads = TileReads(job, streamed, self.pe.config.pe_tcm.buffers_per_operand)
        if command.out is not None:
            job.writes = TileWrites(job, MatrixStream(self.pe, command.out, plan.out))
        return job

    def _fits(self, streamed: Sequence[Operand]) -> None:
        tcm = self.pe.config.pe_tcm
        need = sum(o.grid.tile_rows * o.grid.tile_cols * o.grid.itemsize for o in streamed)
        need *= tcm.buffers_per_operand
        if need > tcm.tile_buffer_mb * MIB:
            raise OutOfMemoryError(
                f"{self.pe.name}: tile buffers of {need} B do not fit the {tcm.tile_buffer_mb} MiB that "
                "pe_tcm.tile_buffer_mb gives them; use smaller tiles (pe_gemm.tile) or fewer buffers_per_operand"
            )

    def _dot(self, command: Dot) -> TilePlan:
        a, b = command.inputs[0], command.inputs[1]
        acc = command.inputs[2] if len(command.inputs) > 2 else None
        assert command.output is not None
        key = (command.mkn, a.dtype, b.dtype, command.output.dtype.itemsize, acc is None)
        known = self._plans
        plan = known.get(key)
        if plan is None:
            plan = known[key] = self._gemm(command.mkn, a, b, acc, False)
            plan.out = plan.grid("mn", command.output.dtype.itemsize)
        return plan

    def _gemm(
        self, mkn: tuple[int, int, int], a: Ref | Value, b: Ref | Value, acc: Value | None, written: bool
    ) -> TilePlan:
        streamed = [name for name, operand in (("a", a), ("b", b)) if isinstance(operand, Ref)]
        gemm = tiled_for(self.pe.engine.machine.config, mkn, a.dtype, streamed, written)
        engine = self.pe.gemm if gemm is self.pe.config.pe_gemm else type(self.pe.gemm)(gemm)
        plan = TilePlan(self.pe, mkn, engine.tile, a.dtype, engine)
        m, k, n = (plan.size(axis, 0) for axis in "mkn")
        engine.tile_ps(m, k, n, a.dtype)  # raises the engine's error at the command, not at a tile
        plan.read(a, "mk")
        plan.read(b, "kn")
        if acc is not None:
            plan.read(acc, "mn", first=True)
        return plan

    def _composite(self, command: Composite) -> TilePlan:
        assert command.out is not None
        reads = [(x.shape, x.dtype) for x in (command.out, *_read(command))]
        kinds = [kind for kind, _ in command.extra]
        in_memory = isinstance(command.a, Ref), isinstance(command.b, Ref)
        key = (command.op, command.b is None, command.acc is None, *in_memory, *kinds, *reads, command.epilogue)
        known = self._plans
        plan = known.get(key)
        if plan is None:
            plan = known[key] = self._planned(command)
        return plan

    def _planned(self, command: Composite) -> TilePlan:
        out, a = command.out, command.a
        assert out is not None
        assert a is not None
        if command.op == "gemm":
            assert command.b is not None
            (m, k), n = a.shape[-2:], command.b.shape[-1]
            plan = self._gemm((m, k, n), a, command.b, command.acc, True)
        else:
            plan = self._math(command, a, out)
        plan.out = plan.grid("mn", out.dtype.itemsize)
        for kind, extra in command.extra:
            plan.read(extra, "0n" if kind == "row" else "mn")
        plan.work, plan.vector = command.epilogue, bool(command.epilogue) or not plan.matrix
        return plan

    def _math(self, command: Composite, a: Ref | Value, out: Ref) -> TilePlan:
        """Plan an element-wise command: a matrix by output tiles, a vector as one row of longer tiles."""
        tm, _, tn = self.pe.gemm.tile
        rows = math.prod(out.shape[:-1])
        if rows == 1:
            tm, tn = 1, tm * tn
        plan = TilePlan(self.pe, (rows, 1, out.shape[-1] if out.shape else 1), (tm, 1, tn), None)
        for operand in (a, command.b):
            if operand is not None:
                plan.read(operand, "mn")
        return plan
