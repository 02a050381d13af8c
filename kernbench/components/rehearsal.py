"""Private work is rehearsed: what a composite does on a PE that nobody disturbs is simulated once and then looked up.

A composite whose matrices lie in its PE's own slice uses two links each way, that slice, and the engines of the PE.
While nobody else uses them, and the PE has nothing else in hand, its times, counted from its plan, are those on an idle
machine. They are found there, the second time that a composite like it comes up, and hold for every PE.

A composite that is `Alone` puts nothing into the heap but its end. Whoever reaches one of its links or its PE before
that ends this: what has happened so far is simulated on the spot, and from then on all of it is. So nothing is
assumed, and no result depends on whether anything was looked up.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable
from dataclasses import dataclass
from functools import partial
from heapq import heapify
from typing import TYPE_CHECKING

import numpy as np

from kernbench.analysis.causes import MOVES
from kernbench.analysis.records import COLUMNS
from kernbench.components.builtin.hbm_ctrl import HbmCtrl
from kernbench.components.command import Composite
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.link import HELD, HOP_BITS, Link, Route
from kernbench.topology import naming

if TYPE_CHECKING:
    from kernbench.components.builtin.pe_dma import Port
    from kernbench.components.jobs import TileJob
    from kernbench.components.pe import Pe
    from kernbench.components.pipeline import Stage

_ROW, _MOVE = list(COLUMNS), list(MOVES)
_ROW_TIMES = [_ROW.index(name) for name in ("start_ps", "end_ps")]
_MOVE_TIMES = [_MOVE.index(name) for name in ("start_ps", "end_ps", "arrived_ps", "since_ps", "served_ps")]
_MOVE_KEYS = [_MOVE.index(name) for name in ("key", "opener")]
_TILE, _COMPONENT, _ROW_COMMAND = _ROW.index("tile"), _ROW.index("component"), _ROW.index("command")
_ROUTE, _MOVE_COMMAND = _MOVE.index("route"), _MOVE.index("command")


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What a composite does on a PE of its own: times from its plan on [ps], keys of transactions from 0.

    `sent` holds (bytes, whole flits, smaller messages by size) for the way to the slice and the way back, `busy_ps`
    the work of the pipeline's stages; `rows` and `moves` are tables of the log, whose components are `stages`.
    """

    start_ps: int
    end_ps: int
    transactions: int
    reservations: int
    sent: tuple[tuple[int, int, dict[int, int]], ...]
    busy_ps: tuple[int, ...]
    served_ps: int
    direction: list[int]
    rows: np.ndarray
    moves: np.ndarray
    stages: tuple[str, ...]


def own_port(job: TileJob) -> Port | None:
    """Return the way to the memory that all streams of a composite use, if it is the PE's own slice."""
    if job.writes is None:
        return None
    streams = [job.writes.stream, *(stream for stream, _ in (job.reads.operands if job.reads is not None else ()))]
    ports = {stream.home for stream in streams}
    port = ports.pop()
    pe = job.pe
    if ports or port is None or pe.dma.turns is not None or not pe.engine.fabric.pairs(port.route):
        return None
    mine = naming.hbm(*pe.place)
    return port if isinstance(port.memory, HbmCtrl) and port.memory.name == mine else None


def rehearsal(job: TileJob, port: Port, planned: int) -> Rehearsal | None:
    """Return the rehearsal of a composite if one like it has come up before, and it could be rehearsed."""
    known = job.pe.engine.fabric.rehearsed
    like = _likeness(job, port)
    if like not in known:
        known[like] = None
        return None
    if known[like] is None:
        known[like] = _rehearse(job, port, planned) or False
    return known[like] or None


def _likeness(job: TileJob, port: Port) -> Hashable:
    """Return all that the times of a private composite depend on, in a machine whose PEs are alike."""
    plan, command, memory = job.plan, job.command, _slice(port)
    assert isinstance(command, Composite)
    assert job.writes is not None
    homes = {id(operand): stream.at for stream, operand in (job.reads.operands if job.reads is not None else ())}
    operands = tuple(
        (x.grid, x.axes, x.first, homes[id(x)] % memory.round_bytes if id(x) in homes else -1) for x in plan.operands
    )
    out = plan.out, job.writes.stream.at % memory.round_bytes
    links = _links(port)
    wires = tuple((link.lat, link.bw_gbs) for link in links)
    ranks = tuple(sorted(range(len(links)), key=lambda i: links[i].priority))
    direction = tuple(memory.direction) if memory.turn_ps else ()
    return plan.tiles, plan.gemm_ps, operands, out, tuple(command.epilogue), wires, ranks, direction


def _slice(port: Port) -> HbmCtrl:
    assert isinstance(port.memory, HbmCtrl)
    return port.memory


def _links(port: Port) -> tuple[Link, ...]:
    return *port.route.links, *port.back.links


def _stages(pe: Pe) -> tuple[Stage, ...]:
    return pe.pipeline.fetch, pe.pipeline.gemm, pe.pipeline.math, pe.pipeline.store


def _sent(route: Route) -> tuple[int, int, dict[int, int]]:
    return route.nbytes, route.flits, route.small


def _rehearse(job: TileJob, port: Port, planned: int) -> Rehearsal | None:
    """Run a composite on an idle machine; return None if even there messages overtake each other."""
    pe, engine = job.pe, job.pe.engine
    idle = GraphEngine(
        engine.machine,
        mode=engine.mode,
        log="tile" if engine.log.tiles else "off",
        by_rounds=engine.by_rounds,
        tie_seed=engine.fabric.tie_seed,
    )
    idle.env._now = planned
    twin: Pe = idle.part(naming.pe_cpu(*pe.place)).pe
    twin.mmu = pe.mmu
    here = twin.dma.port(_slice(port).name)
    memory = _slice(here)
    memory.direction = list(_slice(port).direction)
    command = copy.copy(job.command)
    command.waiters = ()
    twin.add(twin.job(command), planned - pe.mmu.lookup_ps)
    again: TileJob = twin.pipeline.store.queue[0]
    idle.run()
    end = command.done_ps
    assert end is not None
    assert again.start_ps is not None
    if idle.fabric.flagged or memory.idle_ps() >= end:
        return None
    rows, moves = idle.log.tables()
    rows = rows[rows[:, _TILE] >= 0]
    rows[:, _ROW_TIMES] -= planned
    moves[:, _MOVE_TIMES] -= planned
    moves[:, _MOVE_KEYS] -= here.route.base
    return Rehearsal(
        again.start_ps - planned,
        end - planned,
        here.route.counter[0],
        idle.fabric.reservations,
        (_sent(here.route), _sent(here.back)),
        tuple(stage.busy_ps for stage in _stages(twin)),
        memory.served_ps,
        memory.direction,
        rows,
        moves,
        tuple(name.removeprefix(twin.name) for name in idle.log.components),
    )


class Alone:
    """A composite that has its PE, its links and its slice to itself, until it ends or is disturbed."""

    @classmethod
    def of(cls, job: TileJob, port: Port, planned: int) -> Alone | None:
        """Return `job` as such, if its PE and all that it uses are idle now and its times are known."""
        pe, now = job.pe, job.pe.engine.env._now
        idle = (
            pe.unfinished == 1
            and planned == now
            and not pe.dma.reader.outstanding + pe.dma.writer.outstanding
            and all(stage.free <= now for stage in _stages(pe))
            and all(link.free <= now and link.last <= now and not link.open for link in _links(port))
            and port.route.links[-1].free + port.route.links[-1].lat < now  # else something may yet come to the slice
            and _slice(port).idle_ps() <= now
        )
        known = rehearsal(job, port, planned) if idle else None
        return cls(job, port, planned, known) if known is not None else None

    def __init__(self, job: TileJob, port: Port, planned: int, known: Rehearsal) -> None:
        self.job, self.port, self.planned, self.known = job, port, planned, known
        # The other two links begin at the PE and at the slice: nobody reaches them without these.
        self._held = {link: (link.free, link.wary) for link in (port.route.links[-1], port.back.links[-1])}
        for link in self._held:
            link.free, link.wary, link.held = HELD, HELD, partial(self._reached, link)
        self._over = False
        job.pe.engine.env.call_at(planned + known.end_ps, self._end)

    def _reached(self, link: Link, at: tuple[int, int, int]) -> int:
        self.disturb(at)
        return link.free

    def _leave(self) -> None:
        self._over = True
        self.job.pe.scheduler.alone = None
        for link, (free, wary) in self._held.items():
            link.free, link.wary = free, wary

    def disturb(self, at: tuple[int, ...]) -> None:
        """Simulate what has happened before `at`, a place in the heap, and leave the rest to the heap."""
        self._leave()
        job, clock = self.job, self.job.pe.engine.env
        now, others = clock._now, clock.heap[:]
        clock.heap.clear()
        clock._now = job.planned_ps = self.planned
        job.pe.pump()
        while clock.heap and clock.heap[0][:3] < at:
            clock.step()
        clock._now = now
        clock.heap.extend(others)
        heapify(clock.heap)

    def _end(self, _: object) -> None:
        """Do at once what the composite has done to everything but the clock."""
        if self._over:
            return
        self._leave()
        job, known, pe = self.job, self.known, self.job.pe
        for route, (nbytes, whole, small) in zip((self.port.route, self.port.back), known.sent, strict=True):
            route.nbytes += nbytes
            route.flits += whole
            for size, count in small.items():
                route.small[size] = route.small.get(size, 0) + count
        if len(known.rows):
            self._log()
        self.port.route.counter[0] += known.transactions
        pe.engine.fabric.reservations += known.reservations
        memory = _slice(self.port)
        memory.served_ps += known.served_ps
        memory.direction = list(known.direction)
        for stage, busy in zip(_stages(pe), known.busy_ps, strict=True):
            stage.busy_ps += busy
            if stage.queue:
                stage.queue.popleft()
        if job.reads is not None:
            pe.dma.reader.queue.popleft()
        pe.dma.writer.queue.popleft()
        job.start_ps = self.planned + known.start_ps
        job.written(self.planned + known.end_ps)

    def _log(self) -> None:
        """Put the rows of the tiles into the log, as its own."""
        known, job, log, route = self.known, self.job, self.job.pe.engine.log, self.port.route
        rows, moves = known.rows.copy(), known.moves.copy()
        rows[:, _ROW_TIMES] += self.planned
        moves[:, _MOVE_TIMES] += self.planned
        stages = np.array([log.component(job.pe.name + stage) for stage in known.stages])
        rows[:, _COMPONENT] = stages[rows[:, _COMPONENT]]
        rows[:, _ROW_COMMAND] = moves[:, _MOVE_COMMAND] = job.id
        moves[:, _ROUTE] = log.routes.setdefault(self.port.back, len(log.routes))
        moves[:, _MOVE_KEYS] += route.base + (route.counter[0] << HOP_BITS)
        log.block(rows, moves)
