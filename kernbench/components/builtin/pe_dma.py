"""The DMA engine of a PE: two channels with a few outstanding requests each, and their sources, in program order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from kernbench.analysis._records import NONE, READ, SENT, WRITE
from kernbench.components._command import Load, Ref, Run, Store
from kernbench.components._pe import Job
from kernbench.policy._routing import router_of
from kernbench.sim_engine._callee import Callee
from kernbench.sim_engine._causes import MEMORY, NOTHING, READING, READS, WRITES, WRITING, Cause, Moment
from kernbench.sim_engine._extents import Extent
from kernbench.sim_engine._network import BULK, Arbiter
from kernbench.sim_engine._op_log import KIND, STEP_KIND
from kernbench.sim_engine._transaction import Transaction

if TYPE_CHECKING:
    from kernbench.components._pe import Pe, PeProgram
    from kernbench.components.builtin.pe_scheduler import Operand, TileGrid, TileJob
    from kernbench.sim_engine._op_log import OpLog
    from kernbench.sim_engine._transaction import Route
    from kernbench.sim_engine.engine import GraphEngine


class Source:
    """Source of a DMA channel's requests, in order; `arg` of their transactions."""

    def next_ps(self) -> int:
        """Earliest issue time of the next request [ps], -1 if unknown."""
        raise TypeError(f"{type(self).__name__} has no requests")

    def next_by(self) -> Cause:
        """Cause of `next_ps`; called when the request is issued."""
        raise TypeError(f"{type(self).__name__} has no requests")

    def issue(self) -> bool:
        """Issue the next request now, with the channel's cause; return whether it was the last one."""
        raise TypeError(f"{type(self).__name__} has no requests")

    def landed(self, txn: Transaction) -> Cause:
        """Handle the end of a request; return its cause."""
        raise TypeError(f"{type(self).__name__} has no requests")


class DmaChannel(Callee):
    """Issues the requests of its sources in program order, at most `limit` at a time.

    The next request has a decisive `cause`; `second` and `third` were not decisive.
    """

    def __init__(self, pe: Pe, limit: int) -> None:
        self.core = pe.engine.env.core
        self.limit, self.outstanding = limit, 0
        self.queue: list[Source] = []
        self._wake = -1
        self._progressing = False
        self._logs = pe.log.operation
        # Of the previous request, and of the ends that made room: a ring with an entry per outstanding request.
        self.before_ps, self.before = -1, NOTHING
        self._ended = [Moment(-1) for _ in range(limit)]
        self._issued = self._done = 0
        self.cause = self.second = self.third = NOTHING

    def progress(self) -> None:
        """Issue all possible requests. A nested call leaves that to the outer one."""
        if self._progressing or not self.queue:
            return
        self._progressing = True
        while self.queue and self.outstanding < self.limit:
            source = self.queue[0]
            t = source.next_ps()
            if t < 0:
                break
            if t > self.core.now:
                if self._wake != t:
                    self._wake = t
                    self.core.wake_at(t, self, 0, t)
                break
            self.outstanding += 1
            if self._logs:
                self._decide(t, source.next_by())
            if source.issue():
                self.queue.pop(0)
        self._progressing = False

    def _decide(self, t: int, by: Cause) -> None:
        """Choose the cause of a request issued now: its source, the previous request, or one whose end made room."""
        end = self._ended[self._issued % self.limit]
        before, ended, ended_ps = self.before, end.by, end.ps
        self._issued += 1
        if ended_ps > t and ended_ps > self.before_ps:
            self.cause, self.second, self.third = ended, by, before
        elif self.before_ps > t:
            self.cause, self.second, self.third = before, by, ended
        else:
            self.cause, self.second, self.third = by, before, ended

    def woken(self, what: int, t: int) -> None:
        if self._wake == t:
            self._wake = -1
        self.progress()

    def landed(self, arg: Any) -> None:
        txn: Transaction = arg
        source: Source = txn.arg
        txn.arg = None  # links keep their latest transaction
        by = source.landed(txn)
        if self._logs:
            end = self._ended[self._done % self.limit]
            end.ps, end.by = self.core.now, by
            self._done += 1
        self.outstanding -= 1
        if self.queue:
            self.progress()


class Port:
    def __init__(self, engine: GraphEngine, dma: PeDma, memory: str) -> None:
        self.dma, self.network = dma, engine.network
        self.route: Route = engine.network.route(dma.node_id, memory)
        engine.network.back(self.route)
        self.memory = engine.memory_at(memory)
        self._on_read = self.memory.on_read

    def read(self, txn: Transaction, kind: int = BULK) -> None:
        route, network = self.route.drawn(), self.network
        network.begin(txn, route)
        arbiter = self.dma.arbiter
        if arbiter is None:
            network.send(route, network.command_bytes, txn.key, self._on_read, txn)
        else:
            arbiter.send(kind, route, network.command_bytes, txn.key, self._on_read, txn)

    def write(self, txn: Transaction, kind: int = BULK) -> None:
        route, memory = self.route.drawn(), self.memory
        arbiter = self.dma.arbiter
        if arbiter is None:
            self.network.write(txn, route, memory)
        else:
            self.network.begin(txn, route)
            arbiter.send(kind, route, txn.nbytes, txn.key, memory.on_write, txn, memory.by_flit)


class PeDma:
    """Reads and writes of one PE. Descriptor set-up is part of PE_CPU's command time.

    `arbiter` shares the PE's link between DMA and queue traffic; None while the PE has no queues.
    """

    def __init__(self, pe: Pe, node_id: str) -> None:
        config = pe.config.pe_dma
        self.pe, self.node_id = pe, node_id
        self._ports: dict[str, Port] = {}
        self.arbiter: Arbiter | None = None
        self.component = pe.engine.log.component(node_id)
        self.reader = DmaChannel(pe, router_of(pe.engine.machine.graph).outstanding_reads)
        self.writer = DmaChannel(pe, config.outstanding_writes)

    def job(self, command: Load | Store, program: PeProgram | None) -> AccessJob:
        return AccessJob(self.pe, command, program)

    def port(self, memory: str) -> Port:
        port = self._ports.get(memory)
        if port is None:
            port = self._ports[memory] = Port(self.pe.engine, self, memory)
        return port

    def requests(self, runs: tuple[Run, ...]) -> list[Extent]:
        """Build the requests of a command's `runs`, in order: one for each stretch of a memory."""
        pe, found, at = self.pe, [], 0
        for run in runs:
            stretches = pe.extents.requests(pe.mmu.translate(run.va, run.nbytes), at)
            stretches[0].nbytes += run.payload - run.nbytes
            found += stretches
            at += run.nbytes
        return found


_LOAD, _STORE, _LOOKUP = KIND["load"], KIND["store"], STEP_KIND["lookup"]


def gathered(pe: Pe, runs: tuple[Run, ...]) -> list[Extent]:
    """Build the requests of a pointer tile's `runs`: one per memory, each line once."""
    by_node: dict[str, Extent] = {}
    extents, bits = pe.extents, pe.engine.line_bits
    lo = hi = at = to_pa = to_offset = 0
    node_id = ""
    for va, nbytes, payload in runs:
        if not lo <= va <= va + nbytes <= hi:
            lo, hi, pa = pe.mmu.range_of(va)
            if va + nbytes <= hi:
                node_id, offset = extents.locate(pa)
                to_pa, to_offset = pa - lo, offset - lo
            if va + nbytes > hi or extents.locate(pa + hi - lo - 1) != (node_id, hi - 1 + to_offset):
                lo = hi = 0
                for request in pe.dma.requests((Run(va, nbytes, payload),)):
                    offset, size = request.offset, request.nbytes
                    for piece, to in zip(request.pieces, request.at, strict=True):
                        _join(by_node, request.node_id, offset, size, piece, at + to, bits)
                        offset, size = offset + piece[1], 0
                at += nbytes
                continue
        _join(by_node, node_id, va + to_offset, payload, (va + to_pa, nbytes), at, bits)
        at += nbytes
    return list(by_node.values())


def _join(
    by_node: dict[str, Extent], node_id: str, offset: int, payload: int, piece: tuple[int, int], at: int, bits: int
) -> None:
    request = by_node.get(node_id)
    if request is None:
        request = by_node[node_id] = Extent(node_id, offset, 0, [], [], [])
    assert request.lines is not None
    request.nbytes += payload
    request.pieces.append(piece)
    request.at.append(at)
    _touch(request.lines, offset, piece[1], bits)


def _touch(lines: list[int], offset: int, nbytes: int, bits: int) -> None:
    first, last = offset >> bits, offset + nbytes - 1 >> bits
    if lines and lines[-1] == first:
        first += 1
    while first <= last:
        lines.append(first)
        first += 1


class AccessJob(Job):
    """A load or a store; `buffer` holds the command's bytes, a store's from its first request on."""

    def __init__(self, pe: Pe, command: Load | Store, program: PeProgram | None) -> None:
        self.begins(pe, command, program)
        self.loaded = not command.writes
        self.requests = gathered(pe, command.runs) if command.tiled else pe.dma.requests(command.runs)
        self.buffer: np.ndarray | None = None

    def pieces(self) -> list[tuple[list[tuple[int, int]], bool]]:
        return [(request.pieces, self.command.writes) for request in self.requests]

    def enter(self) -> None:
        access = DmaAccess(self)
        access.channel.queue.append(access)
        self.pe.progress()

    def result(self) -> np.ndarray | None:
        compute = self.command.compute
        return None if compute is None else compute(self.buffer)

    def take(self, data: np.ndarray, request: Extent) -> None:
        if len(self.requests) == 1:
            self.buffer = data
            return
        if self.buffer is None:
            self.buffer = np.zeros(sum([n for r in self.requests for _, n in r.pieces]), np.uint8)
        request.put(data, self.buffer)

    def bytes_of(self, request: Extent) -> np.ndarray:
        if self.buffer is None:
            command = self.command
            self.buffer = command.compute(command.inputs[0].array)
        return self.buffer if len(self.requests) == 1 else request.take(self.buffer)


class DmaAccess(Source):
    """Requests of a load or a store. The job has no reference to it, which would be a cycle."""

    def __init__(self, job: AccessJob) -> None:
        self.job, self.pe, self.requests = job, job.pe, job.requests
        self.writes: bool = job.command.writes
        self.channel = self.pe.dma.writer if self.writes else self.pe.dma.reader
        self.left = len(self.requests)
        self.sent = self.start_ps = 0
        self._looked_up: Cause | None = None

    def next_ps(self) -> int:
        job = self.job
        return -1 if job.waiting else job.ready + self.pe.mmu.lookup_ps

    def next_by(self) -> Cause:
        if self._looked_up is None:
            job, pe = self.job, self.pe
            ps = pe.mmu.lookup_ps
            step = pe.log.step(job.ready + ps, ps, pe.mmu_place, _LOOKUP, job.id, -1, job.ready_by)
            self._looked_up = Cause(step)
        return self._looked_up

    def issue(self) -> bool:
        number, now = self.sent, self.pe.core.now
        request = self.requests[number]
        if not number:
            self.start_ps = now
        self.sent = number + 1
        txn = Transaction(request.nbytes, request.offset, self.channel, self, request.lines, request.pieces)
        txn.asked_ps, txn.tile = now, number
        log, channel = self.pe.log, self.channel
        if log.operation:
            txn.number = number = log.sent(log.event(channel.cause), channel.second.event, channel.third.event)
            channel.before_ps, channel.before = now, Cause(SENT | number << 3)
        port = self.pe.dma.port(request.node_id)
        if not self.writes:
            port.read(txn)
        else:
            if self.pe.data and not self.job.command.atomic:
                txn.data = self.job.bytes_of(request)
            port.write(txn)
        return self.sent == len(self.requests)

    def landed(self, txn: Transaction) -> Cause:
        if not self.writes and txn.data is not None:
            self.job.take(txn.data, self.requests[txn.tile])
        job, pe = self.job, self.pe
        now, log = pe.core.now, pe.log
        self.left -= 1
        by = whole = NONE
        if log.operation:
            by = log.transfer(txn.asked_ps, now, txn, job.id, -1, _WRITE if self.writes else _READ)
            if not log.tiles and txn.opener == txn.key:
                log.opened(txn.key, txn.asked_ps, Cause(SENT | txn.number << 3))
            if not self.left:
                nbytes = sum([request.nbytes for request in self.requests])
                kind = _STORE if self.writes else _LOAD
                whole = log.row(self.start_ps, now, pe.dma.component, kind, job.id, nbytes, 0, -1, by)
        if not self.left:
            if self.writes and job.command.atomic and pe.data:
                self._update()
            job.finish(now, whole)
        return Cause(by)

    def _update(self) -> None:
        """Update memory atomically: in zero time, so that operations of other PEs come before or after."""
        placed = [place for r in self.requests for place in zip(r.at, r.pieces, strict=True)]
        pieces = [piece for _, piece in sorted(placed)]
        command, memory = self.job.command, self.pe.engine.memory
        memory.poke(pieces, command.compute(memory.peek(pieces), *[value.array for value in command.inputs]))


_DMA_IN, _DMA_OUT = KIND["dma_in"], KIND["dma_out"]


_READ, _WRITE = READ, WRITE


class MatrixStream:
    """A matrix in memory, read or written by tiles.

    `home` is the memory that contains the matrix, at `at`, if that is a single one and tiles are stored contiguously.
    Else the range of memory that was translated last goes from `start` to `end`, at the physical address `pa`.
    """

    def __init__(self, pe: Pe, ref: Ref, grid: TileGrid) -> None:
        self.pe, self.va, self.grid = pe, ref.va, grid
        self.strided = pe.gather == "strided"
        whole = pe.mmu.translate(ref.va, grid.rows * grid.cols * grid.itemsize)
        self.home: str | None = None
        self.at = self.start = self.end = self.pa = 0
        if len(whole) == 1 and not self.strided and not pe.extents.controllers:
            self.home, self.at = pe.extents.locate(whole[0][0])

    def extents(self, r: int, c: int) -> list[Extent]:
        """Return the extents of a tile, which callers do not change."""
        if self.strided:
            return self._touched(self.grid.strided(r, c))
        grid = self.grid
        rows = grid.height(r)
        offset, nbytes = grid.offset(r, c, rows), rows * grid.width(c) * grid.itemsize
        if self.home is not None:
            extent = Extent.__new__(Extent)
            extent.node_id, extent.offset, extent.nbytes = self.home, self.at + offset, nbytes
            extent.pieces, extent.lines, extent.at = (), None, ()
            return [extent]
        va, pe = self.va + offset, self.pe
        if not self.start <= va < va + nbytes <= self.end:
            self.start, self.end, self.pa = pe.mmu.range_of(va)
        if va + nbytes <= self.end:
            return pe.extents.of(self.pa + va - self.start, nbytes)
        return [extent for pa, n in pe.mmu.translate(va, nbytes) for extent in pe.extents.of(pa, n)]

    def _touched(self, runs: Iterable[tuple[int, int]]) -> list[Extent]:
        pe, bits = self.pe, self.pe.engine.line_bits
        lines: dict[str, list[int]] = {}
        nbytes: dict[str, int] = {}
        for offset, size in runs:
            for pa, n in pe.mmu.translate(self.va + offset, size):
                for extent in pe.extents.of(pa, n):
                    node_id = extent.node_id
                    _touch(lines.setdefault(node_id, []), extent.offset, extent.nbytes, bits)
                    nbytes[node_id] = nbytes.get(node_id, 0) + extent.nbytes
        return [Extent(node_id, touched[0] << bits, nbytes[node_id], (), touched) for node_id, touched in lines.items()]


class Traffic:
    """Requests of one direction of a tiled command, over `channel`; `kind` is that of their rows in a log of tiles.

    They are `whole` once the last one has been issued.
    """

    def __init__(self, job: TileJob, channel: DmaChannel, kind: int) -> None:
        self.job, self.channel, self.kind, self.log = job, channel, kind, job.pe.log
        self.since_ps = -1
        self.n = self.left = self.nbytes = self.took_ps = 0
        self.whole = False

    def asked(self, source: Source, extent: Extent, tile: int, other: Cause) -> Transaction:
        """Create a request that is issued now, the channel's predecessor of the next one; `other` is not decisive."""
        channel, log, now = self.channel, self.log, self.channel.core.now
        cause = channel.cause
        txn = Transaction.__new__(Transaction)
        txn.begins(extent.nbytes, extent.offset, channel, source, extent.lines)
        txn.asked_ps, txn.tile = now, tile
        if log.tiles:
            txn.number = log.sent(log.event(cause), channel.second.event, channel.third.event, other.event)
            cause = Cause(SENT | txn.number << 3)
        elif log.operation:
            txn.cause = cause
        channel.before_ps, channel.before = now, cause
        if self.since_ps < 0:
            self.since_ps = now
        self.n += 1
        self.left += 1
        self.nbytes += extent.nbytes
        return txn

    def landed(self, txn: Transaction) -> Cause:
        """Log the end of a request; return its cause."""
        job, log, now, reads = self.job, self.log, self.channel.core.now, self.kind == _DMA_IN
        if not log.operation:
            return NOTHING
        if log.tiles:
            end = log.transfer(txn.asked_ps, now, txn, job.id, txn.tile, _READ if reads else _WRITE)
            log.row(txn.asked_ps, now, job.pe.dma.component, self.kind, job.id, txn.nbytes, 0, txn.tile, end)
            by = Cause(end)
        else:
            by = _path(job.id, READING if reads else WRITING, READS if reads else WRITES, txn, now, log)
        self.took_ps += now - txn.asked_ps
        self.left -= 1
        if self.whole and not self.left:
            log.stage(job.id, self.kind, self.since_ps, now, self.took_ps, self.n, self.nbytes, log.route(txn.back))
        return by


def _path(command: int, transit: int, count: int, txn: Transaction, now: int, log: OpLog) -> Cause:
    """Cause of a request's end in a log without tiles: time in memory, and on the way there and back.

    If the memory has been busy without a gap, it limits since the request with which its busy period began.
    """
    served, cause = txn.served_ps, txn.cause
    assert cause is not None
    since, asked = txn.arrived_ps, txn.asked_ps
    if served < 0:
        served = since = now
    elif txn.opener == txn.key:
        since = txn.since_ps
        log.opened(txn.key, asked, cause)
    else:
        opener = log.openers.get(txn.opener)
        if opener is not None:
            since, asked, cause = txn.since_ps, opener.ps, opener.by
    found = log.then(cause, command, count, 1)
    found.parts[transit] += since - asked + now - served
    found.parts[MEMORY] += served - since
    return found


class TileBuffers:
    """Buffers of a tile in TCM: `left` of its requests have not ended, or it is complete, later free since a moment."""

    def __init__(self) -> None:
        self.left = self.complete_ps = self.free_ps = 0
        self.complete_by: Cause | None = None
        self.free_by = NOTHING


class TileReads(Source):
    """Reads the streamed operands of a job, tile after tile, as their buffers in TCM become free.

    Tile i has entry i % `_ring` of `_tiles`, until a later tile gets the buffers. `_freed` counts the tiles whose
    buffers are free again.
    """

    def __init__(self, job: TileJob, operands: list[tuple[MatrixStream, Operand]], buffers: int) -> None:
        self.job, self.buffers = job, buffers
        streams = {operand.axes: stream for stream, operand in operands}
        self._a, self._b = streams.get("mk"), streams.get("kn")
        self._others = [(stream, operand) for stream, operand in operands if operand.axes not in {"mk", "kn"}]
        pe = job.pe
        self._core, self._dma, self._pipeline = pe.core, pe.dma, pe.pipeline
        # Operands without k keep their buffers for an output tile.
        self._ring = (buffers + 1) * (job.kt if self._others else 1)
        self._tiles: list[TileBuffers] = []
        self._freed = 0
        self._fourth = NOTHING  # another cause of the next request
        self._tile = -1
        self._m = -1
        # Of A and B, by k; of others; and of the present tile, the first `_shared` of them along k.
        self._row: list[list[Extent]] = []
        self._column: list[list[Extent]] = []
        self._once: list[Extent] = []
        self._pending: list[Extent] = []
        self._next = self._shared = 0
        self._arriving = False
        self._traffic = Traffic(job, pe.dma.reader, _DMA_IN)
        self._prepare()

    def _begin(self, out: int) -> None:
        """Plan the reads of an output tile: operands along k are read for each k tile, the others with the last one."""
        kt, nt = self.job.kt, self.job.plan.nt
        m, n = out // nt, out % nt
        a, b = self._a, self._b
        if a is not None and m != self._m:
            self._row = [a.extents(m, k) for k in range(kt)]
        if b is not None:
            self._column = [b.extents(k, n) for k in range(kt)]
        self._m = m
        if self._others:
            self._once = [x for each, operand in self._others for x in each.extents(*operand.place(m, n, kt - 1))]

    def _prepare(self) -> None:
        job = self.job
        while self._next == len(self._pending) and self._tile + 1 < job.n:
            self._tile = i = self._tile + 1
            k = i % job.kt
            if not k:
                self._begin(i // job.kt)
            pending: list[Extent] = []
            if self._a is not None:
                pending.extend(self._row[k])
            if self._b is not None:
                pending.extend(self._column[k])
            self._shared = len(pending)
            if k == job.kt - 1:
                pending.extend(self._once)
            self._pending, self._next = pending, 0
            if i < self._ring:
                self._tiles.append(TileBuffers())
            tile = self._tiles[i % self._ring]
            tile.left = len(pending)

    def _before(self) -> int:
        """Return the tile whose buffers the next request takes; it is negative if none has had them yet."""
        return self._tile - (self.buffers if self._next < self._shared else self.buffers * self.job.kt)

    def arrival(self, i: int) -> int:
        """Time at which tile `i` is complete in TCM [ps], -1 if unknown."""
        if i > self._tile:
            return -1
        tile = self._tiles[i % self._ring]
        if tile.complete_by is not None:
            return tile.complete_ps
        return -1 if tile.left else self.job.planned(i)

    def arrived_by(self, i: int) -> Cause:
        tile = self._tiles[i % self._ring]
        by, tile.complete_by = tile.complete_by, None
        return self.job.plan_of(i) if by is None else by

    def freed(self, t: int, by: Cause) -> None:
        """Note when and why the buffers of the next tile have become free."""
        tile = self._tiles[self._freed % self._ring]
        tile.free_ps, tile.free_by = t, by
        self._freed += 1
        if not self._arriving:
            self._dma.reader.progress()

    def next_ps(self) -> int:
        job, i = self.job, self._tile
        if job.planned_ps < 0:
            return -1
        t = job.planned_ps + (i + 1) * job.tile_ps
        before = self._before()
        if before < 0:
            return t
        if before >= self._freed:
            return -1
        tile = self._tiles[before % self._ring]
        return t if t > tile.free_ps else tile.free_ps

    def next_by(self) -> Cause:
        job, i = self.job, self._tile
        before = self._before()
        self._fourth = NOTHING
        if before < 0:
            return job.plan_of(i)
        tile = self._tiles[before % self._ring]
        if tile.free_ps > job.planned_ps + (i + 1) * job.tile_ps:
            self._fourth = job.planned_by
            return tile.free_by
        self._fourth = tile.free_by
        return job.plan_of(i)

    def issue(self) -> bool:
        job, extent = self.job, self._pending[self._next]
        self._next += 1
        if job.start_ps < 0:
            job.start_ps = self._core.now
        txn = self._traffic.asked(self, extent, self._tile, self._fourth)
        self._dma.port(extent.node_id).read(txn)
        if self._next < len(self._pending):
            return False
        self._prepare()
        self._traffic.whole = self._next == len(self._pending)
        return self._traffic.whole

    def landed(self, txn: Transaction) -> Cause:
        i = txn.tile
        by = self._traffic.landed(txn)
        tile = self._tiles[i % self._ring]
        tile.left -= 1
        if not tile.left:
            tile.complete_ps, tile.complete_by = self._core.now, by
            if i == self.job.fetched:
                self._arriving = True
                self._pipeline.advance()
                self._arriving = False
        return by


class TileWrites(Source):
    """Writes the output tiles of a job as they leave the store stage; the last acknowledgement ends the job."""

    def __init__(self, job: TileJob, stream: MatrixStream) -> None:
        self.job, self.stream = job, stream
        pe = job.pe
        self._core, self._dma, self._pipeline = pe.core, pe.dma, pe.pipeline
        self._out = 0
        self._unacknowledged = 0
        self._pending: list[Extent] = []
        self._since, self._by = -1, NOTHING
        self._traffic = Traffic(job, pe.dma.writer, _DMA_OUT)

    def next_ps(self) -> int:
        return self._since if self._pending else self._pipeline.store_dma.first()

    def next_by(self) -> Cause:
        if not self._pending:
            self._by = self._pipeline.store_dma.first_by()
        return self._by

    def issue(self) -> bool:
        job, first = self.job, not self._pending
        if first:
            self._since = self._pipeline.store_dma.first()
            nt = job.plan.nt
            self._pending = self.stream.extents(self._out // nt, self._out % nt)[::-1]
            self._out += 1
        extent = self._pending.pop()
        self._unacknowledged += 1
        txn = self._traffic.asked(self, extent, job.tile_of(self._out - 1), NOTHING)
        if first:
            self._pipeline.store_dma.take(self._core.now, self._dma.writer.before)
        self._dma.port(extent.node_id).write(txn)
        self._traffic.whole = self._out == job.outputs and not self._pending
        self._pipeline.advance()
        return self._traffic.whole

    def landed(self, txn: Transaction) -> Cause:
        by = self._traffic.landed(txn)
        self._unacknowledged -= 1
        if not self._unacknowledged and self._traffic.whole:
            self.job.written(self._core.now, by)
        return by
