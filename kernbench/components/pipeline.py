"""The tile pipeline of a PE: fetch -> matrix -> vector -> store, with bounded buffers, as arithmetic.

Each stage serves the jobs of its queue in program order and one tile after the other. A tile leaves a stage
when its service has ended and a buffer before the next stage is free; a buffer is free again when the next
stage takes the tile. These are the recurrences (g: taken, l: left, c: buffers between the stages)

    g[i, s] = max(l[i, s - 1], l[i - 1, s])        l[i, s] = max(g[i, s] + service, g[i - c, s + 1])

so a stage needs no event of its own: only arrivals from memory and departures to it move the pipeline.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import Any

from kernbench.components.jobs import TileJob, VectorJob
from kernbench.sim_engine.op_log import KIND, OpLog

_FETCH, _GEMM, _MATH, _STORE = KIND["fetch"], KIND["gemm"], KIND["math"], KIND["store_tcm"]


class Ring:
    """The buffers between two stages: buffer i % size is `freed` at a time (-1 while it is full), `filled` at one."""

    __slots__ = ("filled", "freed", "got", "put_", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.freed = [0] * size
        self.filled = [0] * size
        self.put_ = self.got = 0

    def room(self) -> int:
        """Return since when the next buffer is free, or -1 if that is not known yet."""
        return self.freed[self.put_ % self.size]

    def put(self, t: int) -> None:
        """Fill the next buffer at `t`."""
        i = self.put_ % self.size
        self.freed[i] = -1
        self.filled[i] = t
        self.put_ += 1

    def first(self) -> int:
        """Return when the oldest full buffer was filled, or -1 if none is full."""
        return self.filled[self.got % self.size] if self.put_ > self.got else -1

    def take(self, t: int) -> None:
        """Free the oldest buffer at `t`."""
        self.freed[self.got % self.size] = t
        self.got += 1


class Stage:
    """A server of tiles: `free` from when on, `queue` the jobs in program order.

    `busy_ps` counts all services so far, ahead of the clock, too; `planned` keeps (end, start, busy before) of those
    that may be ahead, in a live run.

    `leaving` is the ring that the tile goes to which has been served by `end`, None if there is none. Until that ring
    has room the stage stands still, but the buffer that the tile came from is free since it was taken.
    """

    __slots__ = ("busy_ps", "component", "end", "free", "held", "leaving", "name", "planned", "queue")

    def __init__(self, name: str, log: OpLog, live: bool) -> None:
        self.name, self.component = name, log.component(name)
        self.free = self.busy_ps = self.end = 0
        self.held = False
        self.leaving: Ring | None = None
        self.queue: deque[Any] = deque()
        self.planned: list[tuple[int, int, int]] | None = [] if live else None

    def serve(self, start: int, end: int) -> None:
        """Count a service."""
        if self.planned is not None:
            self.planned.append((end, start, self.busy_ps))
        self.busy_ps += end - start

    def busy_by(self, now: int) -> int:
        """Return for how long it has been busy by now [ps], in a live run."""
        planned = self.planned
        assert planned is not None
        del planned[: bisect_right(planned, (now + 1,))]
        if not planned:
            return self.busy_ps
        _, start, before = planned[0]
        return before + max(0, now - start)

    def leave(self) -> bool:
        """Let the served tile go on; return False while it is not known when it can."""
        ring = self.leaving
        assert ring is not None
        room = ring.room()
        if room < 0:
            return False
        self.free = room if room > self.end else self.end
        self.leaving = None
        ring.put(self.free)
        return True


class Pipeline:
    """The stages of one PE and the rings between them; `advance` moves every tile as far as is known."""

    def __init__(self, pe: str, log: OpLog, buffers: int, live: bool = False) -> None:
        self.log = log
        self.fetch = Stage(f"{pe}.pe_fetch_store.fetch", log, live)
        self.gemm = Stage(f"{pe}.pe_gemm", log, live)
        self.math = Stage(f"{pe}.pe_math", log, live)
        self.store = Stage(f"{pe}.pe_fetch_store.store", log, live)
        self.fetch_gemm, self.fetch_math = Ring(buffers), Ring(buffers)
        self.gemm_math, self.gemm_store = Ring(buffers), Ring(buffers)
        self.math_store, self.store_dma = Ring(buffers), Ring(buffers)
        self._storing: TileJob | None = None
        self._moving = self._again = False

    def advance(self) -> None:
        """Move all that can move. A call from within one, as a command ends, is left to that one."""
        if self._moving:
            self._again = True
            return
        self._moving = True
        while True:
            self._again = False
            moved = bool(self.fetch.queue) and self._fetch()
            if self.fetch_gemm.put_ > self.fetch_gemm.got or self.gemm.leaving is not None:
                moved = self._gemm() or moved
            if self.math.queue or self.math.leaving is not None:
                moved = self._math() or moved
            if (
                self.gemm_store.put_ > self.gemm_store.got
                or self.math_store.put_ > self.math_store.got
                or self.store.leaving is not None
            ):
                moved = self._store() or moved
            # Whatever comes next waits for what is not there yet, unless a stage was held up by the one behind it.
            held = (
                self.fetch.held
                or self.gemm.leaving is not None
                or self.math.leaving is not None
                or self.store.leaving is not None
            )
            if not self._again and not (moved and held):
                break
        self._moving = False

    def _fetch(self) -> bool:
        stage, log = self.fetch, self.log
        moved = stage.held = False
        while stage.queue:
            job: TileJob = stage.queue[0]
            i = job.fetched
            landed = job.operands_ps(i)
            if landed < 0:
                break
            ring = self.fetch_gemm if job.matrix else self.fetch_math
            room = ring.room()
            if room < 0:
                stage.held = True
                break
            start = stage.free
            if start < landed:
                start = landed
            k = i % job.kt
            if not k:
                job.fetches = job.plan.fetches(i // job.kt)
            nbytes, service = job.fetches[k]
            end = start + service
            stage.serve(start, end)
            if log.tiles:
                log.row(start, end, stage.component, _FETCH, job.id, nbytes, 0, i)
            if end < room:
                end = room
            stage.free = end
            ring.put(end)
            if job.matrix and self.gemm.leaving is None and ring.put_ == ring.got + 1 and self.gemm.queue[0] is job:
                self._multiply(job, end)
            job.fetched = i + 1
            if job.fetched == job.n:
                stage.queue.popleft()
            job.fetch_left(i, start, end)
            moved = True
        return moved

    def _gemm(self) -> bool:
        stage, ring = self.gemm, self.fetch_gemm
        moved = False
        while True:
            if stage.leaving is not None:
                if not stage.leave():
                    break
                moved = True
            if ring.put_ == ring.got:
                break
            self._multiply(stage.queue[0], ring.first())
            moved = True
        return moved

    def _multiply(self, job: TileJob, ready: int) -> None:
        """Give the tile that the fetch stage left at `ready` to the matrix engine."""
        stage, log = self.gemm, self.log
        i = job.multiplied
        start = stage.free
        if start < ready:
            start = ready
        self.fetch_gemm.take(start)
        end = start + job.gemm_ps
        stage.serve(start, end)
        if log.tiles:
            log.row(start, end, stage.component, _GEMM, job.id, 0, job.plan.flops(i), i)
        job.multiplied = i = i + 1
        if i % job.kt:
            stage.free = end
        else:
            stage.end = end
            stage.leaving = self.gemm_store if job.vector_ps is None else self.gemm_math
            if i == job.n:
                stage.queue.popleft()

    def _math(self) -> bool:
        stage, log = self.math, self.log
        moved = False
        while True:
            if stage.leaving is not None:
                if not stage.leave():
                    break
                moved = True
            if not stage.queue:
                break
            work = stage.queue[0]
            if isinstance(work, VectorJob):
                if work.waiting:
                    break
                start = max(stage.free, work.ready)
                end = stage.free = start + work.service_ps
                stage.serve(start, end)
                stage.queue.popleft()
                if log.operation:
                    log.row(start, end, stage.component, _MATH, work.id, 0, work.command.flops, -1)
                work.finish(end)
                moved = True
                continue
            job: TileJob = work
            ring = self.gemm_math if job.matrix else self.fetch_math
            ready = ring.first()
            if ready < 0:
                break
            start = max(stage.free, ready)
            ring.take(start)
            o = job.vectored
            assert job.vector_ps is not None
            service = job.vector_ps(o)
            end = start + service
            stage.serve(start, end)
            if log.tiles:
                log.row(start, end, stage.component, _MATH, job.id, 0, 0, job.tile_of(o))
            stage.end, stage.leaving = end, self.math_store
            job.vectored = o + 1
            if job.vectored == job.outputs:
                stage.queue.popleft()
            moved = True
        return moved

    def _store(self) -> bool:
        stage, log = self.store, self.log
        moved = False
        while True:
            if stage.leaving is not None:
                if not stage.leave():
                    break
                moved = True
                assert self._storing is not None
                self._storing.store_left(stage.free)
            if not stage.queue:
                break
            job: TileJob = stage.queue[0]
            ring = self.gemm_store if job.vector_ps is None else self.math_store
            ready = ring.first()
            if ready < 0:
                break
            start = max(stage.free, ready)
            ring.take(start)
            o = job.stored
            service = job.plan.store_ps(o)
            end = start + service
            stage.serve(start, end)
            if log.tiles:
                log.row(start, end, stage.component, _STORE, job.id, job.plan.out_nbytes(o), 0, job.tile_of(o))
            job.stored = o + 1
            if job.stored == job.outputs:
                stage.queue.popleft()
            moved = True
            if job.writes is not None:
                stage.end, stage.leaving, self._storing = end, self.store_dma, job
            else:
                stage.free = end
                job.store_left(end)
        return moved
