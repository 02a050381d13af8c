"""The tile pipeline of a PE in plain SimPy: a process per stage, a Store of bounded size between two of them.

A program is a list of commands, issued one after another: loads into TCM, and products whose operands are in TCM
or stream in. Every DMA request goes through the reference's network.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil
from typing import Any, NamedTuple

import simpy

from kernbench._units import decimal_product, serialization_ps
from tests.reference.simulator import Reference

TILE_M, TILE_K, TILE_N = 32, 64, 32
ITEM = 2


class Place(NamedTuple):
    """Bytes in a memory."""

    memory: str
    offset: int


class Row(NamedTuple):
    """One stage's work on one tile."""

    kind: str
    start_ps: int
    end_ps: int
    tile: int


@dataclass(eq=False)
class Load:
    """A whole operand into TCM."""

    place: Place
    nbytes: int
    issued: int = 0
    done: Any = None


@dataclass(eq=False)
class Gemm:
    """C[m, n] = A[m, k] B[k, n]; an operand is a place (streamed), or a load, or None (in TCM from the start).

    `cycles_of` maps the elements of an output tile to the cycles of its epilogue.
    """

    m: int
    k: int
    n: int
    a: Place | Load | None
    b: Place | Load | None
    out: Place
    cycles_of: Any = None
    issued: int = 0
    done: Any = None
    planned: Any = None
    landed: dict[int, simpy.Event] = field(default_factory=dict)
    buffers: dict[str, simpy.Container] = field(default_factory=dict)

    def tiles(self) -> list[Tile]:
        """Return the tiles in order m, n, k."""
        found = []
        for i in range(max(1, ceil(self.m / TILE_M))):
            for j in range(max(1, ceil(self.n / TILE_N))):
                for p in range(max(1, ceil(self.k / TILE_K))):
                    found.append(Tile(self, len(found), i, j, p))
        return found


@dataclass(frozen=True, eq=False)
class Tile:
    """One tile of a product: sizes as they are, not padded."""

    job: Gemm
    number: int
    i: int
    j: int
    p: int

    @property
    def rows(self) -> int:
        return min(TILE_M, self.job.m - self.i * TILE_M)

    @property
    def cols(self) -> int:
        return min(TILE_N, self.job.n - self.j * TILE_N)

    @property
    def depth(self) -> int:
        return min(TILE_K, self.job.k - self.p * TILE_K)

    @property
    def last(self) -> bool:
        return (self.p + 1) * TILE_K >= self.job.k

    @property
    def fetched(self) -> int:
        return (self.rows * self.depth + self.depth * self.cols) * ITEM

    def packed(self, operand: str) -> tuple[int, int]:
        """Return (offset, bytes) of the tile of an operand: tiles lie one after another, row-major."""
        r, c, height, width, tall, wide = {
            "a": (self.i, self.p, TILE_M, TILE_K, self.job.m, self.job.k),
            "b": (self.p, self.j, TILE_K, TILE_N, self.job.k, self.job.n),
            "out": (self.i, self.j, TILE_M, TILE_N, self.job.m, self.job.n),
        }[operand]

        def size(row: int, col: int) -> int:
            return min(height, tall - row * height) * min(width, wide - col * width) * ITEM

        across = ceil(wide / width)
        before = [(row, col) for row in range(r) for col in range(across)] + [(r, col) for col in range(c)]
        return sum(size(*at) for at in before), size(r, c)


class Pe:
    """One PE at work on a program from `start` [ps] on; `rows` are what it did."""

    def __init__(self, sim: Reference, node_id: str, program: list[Load | Gemm], start: int) -> None:
        self.sim, self.env, self.node_id, self.program = sim, sim.env, node_id, program
        self.config = config = sim.machine.config.cube.pe
        self.rows: list[Row] = []
        self.jobs = [command for command in program if isinstance(command, Gemm)]
        self.read_slots = simpy.Resource(self.env, config.pe_dma.outstanding_reads)
        self.write_slots = simpy.Resource(self.env, config.pe_dma.outstanding_writes)
        between = config.pe_tcm.stage_buffers
        self.to_gemm, self.to_math, self.to_store, self.from_math, self.to_dma = (
            simpy.Store(self.env, between) for _ in range(5)
        )
        for number, command in enumerate(program):
            command.issued = start + (number + 1) * round(config.pe_cpu.command_ns * 1000)
            command.done = self.env.event()
        for job in self.jobs:
            job.planned = self.env.event()
            job.landed = {tile.number: self.env.event() for tile in job.tiles()}
            job.buffers = {x: simpy.Container(self.env, init=config.pe_tcm.buffers_per_operand) for x in "ab"}
        stages = (self._plan, self._read, self._fetch, self._gemm, self._math, self._store, self._write, self._end)
        for process in stages:
            self.env.process(process())

    def _until(self, t: int) -> simpy.Event:
        return self.env.timeout(max(0, t - self.env.now))

    def _log(self, kind: str, start: int, tile: int) -> None:
        self.rows.append(Row(kind, start, self.env.now, tile))

    def _plan(self) -> Iterator[simpy.Event]:
        """PE_SCHEDULER: from when a job is ready, one tile after another; the jobs in order."""
        each = round(self.config.pe_scheduler.tile_ns * 1000)
        for job in self.jobs:
            yield self._until(job.issued)
            for operand in (job.a, job.b):
                if isinstance(operand, Load):
                    yield operand.done
            job.planned.succeed(self.env.now)
            yield self.env.timeout(each * len(job.tiles()))

    def _end(self) -> Iterator[simpy.Event]:
        """Tell the cube's CPU when all is complete; that message meets the traffic of other PEs."""
        yield self.env.all_of([command.done for command in self.program])
        cpu = self.node_id.replace("pe_dma", "pe_cpu")
        cube = ".".join(self.node_id.split(".")[:2])
        self.sim.answer(cpu, f"{cube}.m_cpu", 16, lambda: None)

    def _planned(self, job: Gemm, number: int) -> Iterator[simpy.Event]:
        yield job.planned
        yield self._until(job.planned.value + (number + 1) * round(self.config.pe_scheduler.tile_ns * 1000))

    def _read(self) -> Iterator[simpy.Event]:
        """The read channel: requests in program order, each when it may start and a slot is free."""
        for command in self.program:
            if isinstance(command, Load):
                yield self._until(command.issued)
                slot = self.read_slots.request()
                yield slot
                self._ask(command.place, command.nbytes, slot, lambda t, c=command: self._loaded(c, t))
                continue
            streamed = {name: x for name, x in (("a", command.a), ("b", command.b)) if isinstance(x, Place)}
            for tile in command.tiles() if streamed else ():
                left = [len(streamed)]
                for name, place in streamed.items():
                    yield from self._planned(command, tile.number)
                    yield command.buffers[name].get(1)
                    slot = self.read_slots.request()
                    yield slot
                    offset, nbytes = tile.packed(name)
                    where = Place(place.memory, place.offset + offset)
                    self._ask(where, nbytes, slot, lambda t, x=tile, left=left: self._arrived(x, left, t))

    def _ask(self, place: Place, nbytes: int, slot: Any, then: Any) -> None:
        issued = self.env.now

        def done() -> None:
            then(issued)
            self.read_slots.release(slot)

        self.sim.read(self.node_id, place.memory, place.offset, nbytes, done)

    def _loaded(self, command: Load, issued: int) -> None:
        self._log("load", issued, -1)
        command.done.succeed()

    def _arrived(self, tile: Tile, left: list[int], issued: int) -> None:
        self._log("dma_in", issued, tile.number)
        left[0] -= 1
        if not left[0]:
            tile.job.landed[tile.number].succeed()

    def _fetch(self) -> Iterator[simpy.Event]:
        for job in self.jobs:
            streamed = [name for name in "ab" if isinstance(getattr(job, name), Place)]
            for tile in job.tiles():
                if streamed:
                    yield job.landed[tile.number]
                else:
                    yield from self._planned(job, tile.number)
                start = self.env.now
                yield self.env.timeout(serialization_ps(tile.fetched, self.config.pe_tcm.read_bw_gbs))
                self._log("fetch", start, tile.number)
                yield self.to_gemm.put(tile)
                for name in streamed:
                    yield job.buffers[name].put(1)

    def _gemm(self) -> Iterator[simpy.Event]:
        gemm = self.config.pe_gemm
        tile_ps = serialization_ps(TILE_M * TILE_K * TILE_N, decimal_product(gemm.macs_per_cycle.f16, gemm.clock_ghz))
        for job in self.jobs:
            for _ in job.tiles():
                tile = yield self.to_gemm.get()
                start = self.env.now
                yield self.env.timeout(tile_ps)
                self._log("gemm", start, tile.number)
                if tile.last:
                    yield (self.to_store if job.cycles_of is None else self.to_math).put(tile)

    def _math(self) -> Iterator[simpy.Event]:
        for job in self.jobs:
            for _ in [tile for tile in job.tiles() if tile.last and job.cycles_of]:
                tile = yield self.to_math.get()
                start = self.env.now
                cycles = job.cycles_of(tile.rows * tile.cols)
                yield self.env.timeout(serialization_ps(cycles, self.config.pe_math.clock_ghz))
                self._log("math", start, tile.number)
                yield self.from_math.put(tile)

    def _store(self) -> Iterator[simpy.Event]:
        for job in self.jobs:
            for _ in [tile for tile in job.tiles() if tile.last]:
                tile = yield (self.to_store if job.cycles_of is None else self.from_math).get()
                start = self.env.now
                yield self.env.timeout(serialization_ps(tile.packed("out")[1], self.config.pe_tcm.write_bw_gbs))
                self._log("store_tcm", start, tile.number)
                yield self.to_dma.put(tile)

    def _write(self) -> Iterator[simpy.Event]:
        for job in self.jobs:
            outputs = [tile for tile in job.tiles() if tile.last]
            left = [len(outputs)]
            for _ in outputs:
                slot = self.write_slots.request()
                yield slot
                tile = yield self.to_dma.get()
                offset, nbytes = tile.packed("out")
                issued = self.env.now

                def acknowledged(
                    job: Gemm = job, tile: Tile = tile, slot: Any = slot, issued: int = issued, left: list[int] = left
                ) -> None:
                    self._log("dma_out", issued, tile.number)
                    self.write_slots.release(slot)
                    left[0] -= 1
                    if not left[0]:
                        job.done.succeed(self.env.now)

                self.sim.write(self.node_id, job.out.memory, job.out.offset + offset, nbytes, acknowledged)
