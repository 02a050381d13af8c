"""What a log costs: host time by its level, and the bytes of its columns."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks.table import Row, best
from kernbench._units import KIB
from kernbench.analysis._records import LOG_COLUMNS, Records
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine._op_log import LEVELS
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology.builder import Machine, resolve_topology
from tests.components import one_pe

ROUNDS = 7


def measure() -> Iterator[Row]:
    """Yield four programs at each level, which take turns."""
    machine = one_pe.machine_of()
    four = resolve_topology("preset:default", {"system.sips": {"count": 4, "topology": "ring_1d"}})
    for what, run in (
        ("product 512^3, operands streamed", partial(one_pe.run, one_pe.gemm(512, 512, 512), machine)),
        ("product 512^3, operands in TCM", partial(one_pe.run, one_pe.gemm(512, 512, 512, "load_load"), machine)),
        ("4,000 loads of 256 B of one PE", partial(one_pe.run, loads, machine)),
        ("ring all-reduce of 1 MiB, 4 SIPs", partial(all_reduce, four)),
    ):
        seconds = dict.fromkeys(LEVELS, float("inf"))
        rates = {}
        for _ in range(ROUNDS):
            for level in LEVELS:
                took, records = best(lambda f=run, log=level: f(log=log).records(), 1)
                seconds[level], rates[level] = min(seconds[level], took), held(records)
        for level in LEVELS:
            reference, ratio = ("", None) if level == "off" else ("log off", seconds["off"] / seconds[level])
            yield Row(f"{what}, log {level}", seconds[level], rates[level], reference, ratio)


def loads(tl: Any) -> None:
    """Load 256 B 4,000 times."""
    for i in range(4000):
        tl.load(one_pe.pointer(256 * i), shape=(128,))


def all_reduce(machine: Machine, log: str) -> GraphEngine:
    """Sum 1 MiB over four SIPs, without values."""
    engine = GraphEngine(machine, log=log)
    with RuntimeContext(engine) as torch:
        tensors = [torch.empty((512 * KIB,), dtype=torch.float16, device=f"ahbm:{sip}") for sip in range(4)]
        torch.collective(tensors, algorithm="ring_allreduce_tcm")
        torch.ahbm.synchronize()
    return engine


def held(records: Records) -> str:
    """Return the bytes that the columns hold for each row and transfer; empty without a log."""
    n = len(records) + len(records.dependencies.transfers["kind"])
    columns = [getattr(records, name) for name in LOG_COLUMNS] + list(records.dependencies.arrays().values())
    return f"{n:,} rows and transfers, {sum(x.nbytes for x in columns) / n:.0f} B each" if n else ""
