"""Every PE of a machine at work: the same product on each out of its own slice, and layers that all share."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from statistics import median

from benchmarks.table import Row, against_definition
from kernbench.kernels.gemm import gemm
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine._observer import Observer
from kernbench.sim_engine.engine import GraphEngine
from kernbench.studies.layers import layers, run
from kernbench.topology.builder import resolve_topology

BIG = (16, (512, 512, 64), "load_ref")


def measure() -> Iterator[Row]:
    """Yield one SIP on 512^3; 16 SIPs on 512 x 512 x 64, and their memory; a layer."""
    yield replace(everywhere(1, (512, 512, 512), "ref_ref"), target="0.6 s")
    big = replace(everywhere(*BIG), target="16 KiB a PE")
    yield replace(big, rate=f"{big.rate}, {peak():.0f} MiB, Python and all")
    yield from snapshots()
    yield against_definition(layer, "qkv", target="0.8 s")
    yield layer()


class Reader(Observer):
    """Takes a snapshot at every pulse, and remembers how long each took."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def pulse(self, engine: GraphEngine) -> None:
        """Take a snapshot."""
        begin = time.thread_time()
        engine.counters()
        self.seconds.append(time.thread_time() - begin)


def snapshots() -> Iterator[Row]:
    """Yield the time of a snapshot in the first and in the last quarter of a run on 256 PEs, with a log of tiles."""
    reader, spread = Reader(), DPPolicy(cube="row_wise", pe="row_wise")
    engine = GraphEngine(resolve_topology("preset:default"), log="tile", observers=[reader], live=True)
    with RuntimeContext(engine) as torch:
        operands = []
        for sip in range(engine.machine.config.n_sips):
            with torch.ahbm.device(sip):
                rows = 64 * engine.machine.config.cubes_per_sip * engine.machine.config.pes_per_cube
                a, out = (torch.empty(rows, n, dtype=torch.float16, device="ahbm", dp=spread) for n in (512, 128))
                b = torch.empty(512, 128, dtype=torch.float16, device="ahbm", dp=DPPolicy())
                operands.append((a, b, out))
        torch.ahbm.synchronize()
        reader.seconds.clear()
        for sip, (a, b, out) in enumerate(operands):
            with torch.ahbm.device(sip):
                torch.launch("gemm", gemm, a, b, out, 64, 512, 128, "ref_ref")
        for sip in range(len(operands)):
            torch.ahbm.synchronize(sip)
    n = len(reader.seconds)
    for name, part in (("first", reader.seconds[n // 10 : n // 4]), ("last", reader.seconds[-n // 4 : -n // 10])):
        yield Row(
            f"snapshot of 256 PEs, {name} quarter of {n:,} pulses, {len(engine.records()):,} rows",
            median(part),
            f"{max(part) * 1e3:.2f} ms at most",
            target="2 ms",
        )


def everywhere(sips: int, shape: tuple[int, int, int], staging: str) -> Row:
    """Return the time to simulate one launch on all PEs; maps and the making of parts are not counted."""
    m, k, n = shape
    machine = resolve_topology("preset:default", {"system.sips.count": sips})
    engine = GraphEngine(machine)
    each = DPPolicy(cube="replicate", pe="replicate")
    with RuntimeContext(engine) as torch:
        operands = []
        for sip in range(sips):
            with torch.ahbm.device(sip):
                sizes = ((m, k), (k, n), (m, n))
                operands.append([torch.empty(size, dtype=torch.float16, device="ahbm", dp=each) for size in sizes])
        torch.ahbm.synchronize()
        start = time.process_time()
        for sip in range(sips):
            with torch.ahbm.device(sip):
                torch.launch("gemm", gemm, *operands[sip], m, k, n, staging)
        for sip in range(sips):
            torch.ahbm.synchronize(sip)
        seconds = time.process_time() - start
    pes = machine.config.n_pes
    tiles = pes * (m // 32) * (k // 64) * (n // 32)
    return Row(
        f"{m} x {k} x {n} on each of {pes:,} PEs, {staging}",
        seconds,
        f"{tiles / seconds / 1e3:,.0f} k tiles/s",
    )


def peak() -> float:
    """Return the memory that a process needs at most to run the largest case, with operation-level records [MiB]."""
    code = f"""
from benchmarks.machines import everywhere
from benchmarks.table import peak_mib
everywhere(*{BIG!r})
print(peak_mib())
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return float(done.stdout)


def layer(name: str = "") -> Row:
    """Return the time for the products of a Llama-3 70B layer, or for one of them: one SIP's part of 8, placed 2-D."""
    machine = resolve_topology("preset:default")
    start = time.process_time()
    chosen = [one for one in layers("llama3-70b tp8 m128") if name in one.name]
    for one in chosen:
        run(machine, one.product("2-D", "f16"))
    seconds = time.process_time() - start
    what = ", ".join(one.name for one in chosen)
    return Row(f"Llama-3 70B, {what} at 128 tokens, tp 8, 2-D over 128 PEs", seconds)
