"""Every PE of a machine at work: the same product on each out of its own slice, and layers that all share."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

from benchmarks.table import Row, against_definition
from kernbench.kernels.gemm import gemm
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.studies.layers import run
from kernbench.studies.layers_lists import layers
from kernbench.topology.builder import resolve_topology

BIG = (16, (512, 512, 64), "load_ref")


def measure() -> Iterator[Row]:
    """Yield one SIP on 512^3; 16 SIPs on 512 x 512 x 64, and their memory; a layer."""
    yield replace(everywhere(1, (512, 512, 512), "ref_ref"), target="0.6 s")
    big = replace(everywhere(*BIG), target="16 KiB a PE")
    yield replace(big, rate=f"{big.rate}, {peak():.0f} MiB, Python and all")
    yield against_definition(layer, "qkv", target="0.8 s")
    yield layer()


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
        run(machine, (one.m, one.n, one.k), "2-D")
    seconds = time.process_time() - start
    what = ", ".join(one.name for one in chosen)
    return Row(f"Llama-3 70B, {what} at 128 tokens, tp 8, 2-D over 128 PEs", seconds)
