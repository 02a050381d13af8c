"""Every PE of a machine at work: the same product on each, operands streamed from its own slice, certified."""

from __future__ import annotations

import time
from collections.abc import Iterator

from benchmarks.table import Row
from kernbench.kernels.gemm import gemm
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology.builder import resolve_topology


def measure() -> Iterator[Row]:
    """Yield one SIP on 512^3, both operands streamed, and 16 SIPs on 512 x 512 x 64, A loaded first."""
    yield everywhere(1, (512, 512, 512), "ref_ref", "< 3 s")
    yield everywhere(16, (512, 512, 64), "load_ref", "< 6 s")


def everywhere(sips: int, shape: tuple[int, int, int], staging: str, target: str) -> Row:
    """Return the time to simulate one launch on all PEs; maps and the making of parts are not counted."""
    m, k, n = shape
    machine = resolve_topology("preset:default", {"system.sips.count": sips})
    engine = GraphEngine(machine, mode="fast")
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
    if not engine.certified:
        raise AssertionError(f"streams from own slices must certify; flagged: {sorted(engine.fabric.flagged)[:5]}")
    pes = machine.config.n_pes
    rate = f"{engine.env.events / seconds / 1e3:.0f} k events/s"
    return Row(f"{m} x {k} x {n} on each of {pes:,} PEs, {staging}, certified", seconds, rate, target=target)
