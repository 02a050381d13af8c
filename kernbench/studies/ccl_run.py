"""One collective on an idle machine: who takes part, how long it took, which link was busiest.

Queues are installed before, and shards lie in the HBM slices of their PEs, known to these PEs only: what it costs to
tell a whole SIP about a tensor is not the collective's. `torch.collective` does the same on tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernbench.analysis.links import hottest
from kernbench.analysis.records import LinkTable
from kernbench.analysis.result import Result
from kernbench.analysis.utilization import pe_window
from kernbench.ccl.lane import Place
from kernbench.ccl.plan import Plan
from kernbench.ccl.tuner import Simulate
from kernbench.dtypes import DType, as_dtype
from kernbench.errors import VerificationError
from kernbench.runtime_api.collective import Collectives
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.report import link_table
from kernbench.topology import naming
from kernbench.topology.builder import Machine
from kernbench.triton_emu.handles import Pointer

_KEY = "study"
OUT_OF_PLACE = ("reduce_scatter", "all_gather", "all_to_all")


@dataclass(frozen=True)
class Ran:
    """What one collective came to.

    Attributes
    ----------
    latency_ns : float
        From the first program's start to the last one's end.
    result : Result
        Everything else.
    links : mapping
        Share of that time that each link was busy.
    """

    latency_ns: float
    result: Result
    links: Mapping[str, float]

    @property
    def hottest(self) -> tuple[str, float]:
        """The busiest link, and its share."""
        if not self.links:
            return "", 0.0
        first = hottest(self.links)
        return first, self.links[first]


def run(
    machine: Machine,
    plan: Plan,
    nbytes: int,
    *,
    dtype: object = "f16",
    data: bool = False,
    **call: Any,
) -> Ran:
    """Run a collective once.

    Parameters
    ----------
    machine : Machine
    plan : Plan
    nbytes : int
        Bytes of a shard; where it grows or shrinks, on its larger side.
    dtype : DType or name
    data : bool
        With values, compared with numpy's at the end.
    **call
        What this call asks for, such as `op`.

    Raises
    ------
    VerificationError
        If a value is wrong.
    """
    kind = as_dtype(dtype)
    n_elem = nbytes // kind.itemsize // (plan.world_size if plan.algorithm.collective == "all_gather" else 1)
    engine = GraphEngine(machine, data)
    shards = {place: _shard(engine, place, nbytes, kind) for place in plan.programs}
    values = _fill(engine, shards, nbytes, kind) if data else {}
    buffers = {place: [at] for place, at in shards.items()}
    if plan.algorithm.collective in OUT_OF_PLACE:
        for place, pointers in buffers.items():
            pointers.append(_shard(engine, place, nbytes, kind))
    collectives = Collectives(engine)
    engine.wait(collectives.install(plan, _KEY).ready)
    before = _busy_ps(link_table(engine))
    starts = collectives.starts(plan, _KEY, buffers, dict.fromkeys(plan.programs, n_elem), plan.algorithm.name, call)
    for done in [start() for start in starts.values()]:
        engine.wait(done)
    engine.run()  # the last credits
    result = Result(engine.records(), plan.algorithm.name)
    if values:
        check(engine, plan, {place: held[-1].va for place, held in buffers.items()}, values, kind)
    start, end = pe_window(result.records)
    busy = {link: ps - before.get(link, 0) for link, ps in _busy_ps(result.records.links).items()}
    # One participant alone has nothing to do.
    shares = {link: ps / (end - start) for link, ps in busy.items() if ps and end > start}
    return Ran((end - start) / 1000, result, shares)


def simulator(machine: Machine) -> Simulate:
    """Return what a tuner simulates with."""

    def simulate(plan: Plan, nbytes: int, itemsize: int) -> float:
        return run(machine, plan, nbytes, dtype="f16" if itemsize == 2 else "f32").latency_ns

    return simulate


def _shard(engine: GraphEngine, place: Place, nbytes: int, kind: DType) -> Pointer:
    """Return memory in the slice of a PE, which only that PE knows of, by its physical address."""
    pa = engine.allocators.pe(*place).alloc_hbm(nbytes)
    engine.part(naming.pe_cpu(*place)).pe.mmu.map(pa, nbytes, pa, _KEY)
    return Pointer(pa, kind)


def _busy_ps(table: LinkTable) -> dict[str, int]:
    return dict(zip(table.names, table.busy_ps.tolist(), strict=True))


def _fill(engine: GraphEngine, shards: Mapping[Place, Pointer], nbytes: int, kind: DType) -> dict[Place, np.ndarray]:
    """Give shards small whole numbers, whose sums are exact; return them."""
    values = {}
    for place, at in shards.items():
        drawn = np.random.default_rng(list(place)).integers(-4, 5, nbytes // kind.itemsize).astype(kind.numpy)
        engine.memory.poke([(at.va, nbytes)], drawn.view(np.uint8))
        values[place] = drawn.astype(np.float64)
    return values


def check(
    engine: GraphEngine, plan: Plan, ends: Mapping[Place, int], values: Mapping[Place, np.ndarray], kind: DType
) -> None:
    """Compare what every participant has in the end with what numpy makes of the tensors of its lane.

    Parameters
    ----------
    engine : GraphEngine
        Its memory is looked at, which takes no simulated time.
    plan : Plan
    ends : mapping of place to int
        Physical address of each participant's result.
    values : mapping of place to array
        What each participant began with.
    kind : DType

    Raises
    ------
    VerificationError
        If a value is another.
    """
    for lane in plan.lanes:
        given = [values[place] for place in lane.places]
        for rank, place in enumerate(lane.places):
            expected = _expected(plan.algorithm.collective, given, rank)
            got = engine.memory.peek([(ends[place], len(expected) * kind.itemsize)]).view(kind.numpy)
            if not np.array_equal(got.astype(np.float64), expected):
                raise VerificationError(f"{plan.algorithm.name}: {naming.pe(*place)} ends with other values than numpy")


def _expected(collective: str, given: list[np.ndarray], rank: int) -> np.ndarray:
    """Return what participant `rank` ends with, whose tensor is `given[rank]`; the root is participant 0."""
    part = len(given[rank]) // len(given)
    own = slice(rank * part, (rank + 1) * part)
    total: np.ndarray = np.sum(given, axis=0)
    match collective:
        case "all_reduce":
            return total
        case "reduce" if rank == 0:
            return total
        case "reduce_scatter":
            return total[own]
        case "broadcast":
            return given[0]
        case "all_gather":
            return np.concatenate([each[:part] for each in given])
        case "all_to_all":
            return np.concatenate([each[own] for each in given])
    return np.empty(0)  # whatever it is
