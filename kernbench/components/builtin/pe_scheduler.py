"""PE_SCHEDULER: cuts a tiled command into tiles and plans them, one after the other."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernbench.components.command import Composite, Dot, Ref, Value, VectorOp
from kernbench.components.jobs import TileJob
from kernbench.components.stream import Stream, TileReads, TileWrites
from kernbench.components.tile_plan import GemmPlan, Grid
from kernbench.errors import KernelError, OutOfMemoryError
from kernbench.units import MIB, ns_to_ps

if TYPE_CHECKING:
    from kernbench.components.builtin.pe_cpu import Program
    from kernbench.components.pe import Pe


@dataclass(slots=True)
class Operand:
    """What tiles read of one operand: its grid, and which of a tile's m, n, k (0 for none) give the place in it.

    An operand without k is read once per output tile, with its last k tile, or with its first. `ref` is where it is
    streamed from; one in TCM has none.
    """

    ref: Ref | None
    grid: Grid
    axes: str
    first: bool = False

    def place(self, m: int, n: int, k: int) -> tuple[int, int]:
        """Return the grid position that tile (m, n, k) reads."""
        at = {"m": m, "n": n, "k": k, "0": 0}
        return at[self.axes[0]], at[self.axes[1]]

    def nbytes(self, m: int, n: int, k: int, kt: int) -> int:
        """Return the bytes that tile (m, n, k) reads of it."""
        if "k" not in self.axes and k != (0 if self.first else kt - 1):
            return 0
        return self.grid.nbytes(*self.place(m, n, k))


class Plan:
    """The tiles of a command and what each stage spends on them."""

    def __init__(self, pe: Pe, tiles: GemmPlan, matrix: bool) -> None:
        self.pe, self.tiles, self.matrix = pe, tiles, matrix
        self.n, self.kt = tiles.n, tiles.kt
        self.operands: list[Operand] = []
        self.gemm_ps = 0
        self.vector_ps: Callable[[int], int] | None = None
        self.out = Grid(0, 0, 1, 1, 0)
        self._fetch: dict[tuple[bool, bool], list[tuple[int, int]]] = {}

    def out_place(self, o: int) -> tuple[int, int]:
        """Return the grid position of output tile `o`."""
        return divmod(o, self.tiles.nt)

    def fetches(self, o: int) -> list[tuple[int, int]]:
        """Return (bytes, time [ps]) that each k tile of output tile `o` fetches from TCM."""
        m, n = self.out_place(o)
        # Output tiles differ only by whether they are ragged.
        kind = (m == self.tiles.mt - 1, n == self.tiles.nt - 1)
        found = self._fetch.get(kind)
        if found is None:
            found = [self._fetched(m, n, 0)]
            if self.kt > 1:
                # The k tiles between the first and the last are alike.
                found += [self._fetched(m, n, 1)] * (self.kt - 2) + [self._fetched(m, n, self.kt - 1)]
            self._fetch[kind] = found
        return found

    def _fetched(self, m: int, n: int, k: int) -> tuple[int, int]:
        nbytes = sum(x.nbytes(m, n, k, self.kt) for x in self.operands)
        return nbytes, self.pe.fetch_store.fetch_ps(nbytes)

    def flops(self, i: int) -> int:
        """Return the useful operations of tile `i`."""
        return self.tiles.flops(i)

    def out_nbytes(self, o: int) -> int:
        """Return the bytes of output tile `o`."""
        return self.out.nbytes(*self.out_place(o))

    def store_ps(self, o: int) -> int:
        """Return the time to store output tile `o` [ps]."""
        return self.pe.fetch_store.store_ps(self.out_nbytes(o))

    def elements(self, o: int) -> int:
        """Return the elements of output tile `o`."""
        rows, cols = self.out.shape(*self.out_place(o))
        return rows * cols


class PeScheduler:
    """Plans a tile every `tile_ns`, in the order of commands, while earlier tiles are under way."""

    def __init__(self, pe: Pe, node_id: str) -> None:
        self.pe = pe
        self.component = pe.engine.log.component(node_id)
        self.tile_ps = ns_to_ps(pe.config.pe_scheduler.tile_ns)
        self.queue: list[TileJob] = []
        self._free = 0
        self._dots: dict[object, Plan] = {}  # by sizes and types: a dot's operands are in TCM

    def advance(self) -> None:
        """Plan the commands whose operands are complete, none before the command issued before it."""
        while self.queue and not self.queue[0].waiting:
            job = self.queue.pop(0)
            planned = max(job.ready, self._free) + self.pe.mmu.lookup_ps
            self._free = planned + job.n * self.tile_ps
            job.planned_ps = planned

    def job(self, command: Dot | Composite, program: Program | None) -> TileJob:
        """Return the job of a dot or a composite.

        Raises
        ------
        OutOfMemoryError
            If its tile buffers do not fit.
        """
        plan = self._dot(command) if isinstance(command, Dot) else self._composite(command)
        job = TileJob(self.pe, command, program, plan)
        streamed = [
            (Stream(self.pe, operand.ref, operand.grid), operand)
            for operand in plan.operands
            if operand.ref is not None
        ]
        if streamed:
            self._fits(plan)
            job.reads = TileReads(job, streamed, self.pe.config.pe_tcm.buffers_per_operand)
        if isinstance(command, Composite) and command.out is not None:
            job.writes = TileWrites(job, Stream(self.pe, command.out, plan.out))
        return job

    def _fits(self, plan: Plan) -> None:
        tcm = self.pe.config.pe_tcm
        need = sum(o.grid.tile_rows * o.grid.tile_cols * o.grid.itemsize for o in plan.operands if o.ref is not None)
        need *= tcm.buffers_per_operand
        if need > tcm.tile_buffer_mb * MIB:
            raise OutOfMemoryError(
                f"{self.pe.name}: tile buffers of {need} B do not fit the {tcm.tile_buffer_mb} MiB that "
                "pe_tcm.tile_buffer_mb gives them; use smaller tiles (pe_gemm.tile) or fewer buffers_per_operand"
            )

    def _dot(self, command: Dot) -> Plan:
        a, b, *acc = command.inputs
        assert command.output is not None
        key = (command.mkn, a.dtype.name, b.dtype.name, command.output.dtype.itemsize, len(acc))
        plan = self._dots.get(key)
        if plan is None:
            plan = self._dots[key] = self._gemm(command.mkn, a, b, acc[0] if acc else None)
            plan.out = plan.tiles.c(command.output.dtype.itemsize)
        return plan

    def _gemm(
        self,
        mkn: tuple[int, int, int],
        a: Ref | Value,
        b: Ref | Value,
        acc: Value | None,
    ) -> Plan:
        tiles = GemmPlan.of(*mkn, self.pe.gemm.tile)
        plan = Plan(self.pe, tiles, matrix=True)
        plan.gemm_ps = self.pe.gemm.tile_ps(a.dtype)
        plan.operands.append(Operand(_streamed(a), tiles.a(a.dtype.itemsize), "mk"))
        plan.operands.append(Operand(_streamed(b), tiles.b(b.dtype.itemsize), "kn"))
        if acc is not None:
            plan.operands.append(Operand(None, tiles.c(acc.dtype.itemsize), "mn", first=True))
        return plan

    def _composite(self, command: Composite) -> Plan:
        out, a = command.out, command.a
        assert out is not None
        assert a is not None
        if command.op == "gemm":
            assert command.b is not None
            (m, k), n = a.shape[-2:], command.b.shape[-1]
            plan = self._gemm((m, k, n), a, command.b, command.acc)
        elif command.op == "math":
            plan = self._math(command, a, out)
        else:
            raise KernelError(f"composite op {command.op!r} is unknown; known: gemm, math")
        tiles = plan.tiles
        plan.out = tiles.c(out.dtype.itemsize)
        for kind, extra in command.extra:
            item = extra.dtype.itemsize
            if kind == "row":
                grid = Grid(1, tiles.n_size, 1, tiles.tile[2], item)
                plan.operands.append(Operand(_streamed(extra), grid, "0n"))
            else:
                plan.operands.append(Operand(_streamed(extra), tiles.c(item), "mn"))
        epilogue: tuple[VectorOp, ...] = command.epilogue
        if epilogue or not plan.matrix:
            plan.vector_ps = lambda o: self.pe.math.ps(epilogue, plan.elements(o))
        return plan

    def _math(self, command: Composite, a: Ref | Value, out: Ref) -> Plan:
        """Cut an element-wise command: like an output matrix, a vector as one row of longer tiles."""
        tm, _, tn = self.pe.gemm.tile
        rows = math.prod(out.shape[:-1])
        if rows == 1:
            tm, tn = 1, tm * tn
        tiles = GemmPlan.of(rows, 1, out.shape[-1] if out.shape else 1, (tm, 1, tn))
        plan = Plan(self.pe, tiles, matrix=False)
        for operand in (a, command.b):
            if operand is not None:
                grid = tiles.c(operand.dtype.itemsize)
                plan.operands.append(Operand(_streamed(operand), grid, "mn"))
        return plan


def _streamed(operand: Ref | Value) -> Ref | None:
    return operand if isinstance(operand, Ref) else None
