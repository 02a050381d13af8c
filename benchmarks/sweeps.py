"""Sweeps: how much of two cores a sweep uses, what a point costs beside its work, and cost as the machine grows."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.table import Row, peak_mib
from kernbench.points._cache import Cache
from kernbench.sweeps._plan import make_plan
from kernbench.sweeps._sweep import run_plan
from kernbench.topology.builder import resolve_topology

# SIPs, w, h: from 8 PEs to 2,048, and 32 PEs on each of 1 to 64 SIPs.
SIZES = {
    "PEs": ((1, 1, 1), (1, 4, 2), (1, 4, 4), (4, 4, 4), (16, 4, 4)),
    "SIPs": ((1, 2, 2), (4, 2, 2), (16, 2, 2), (64, 2, 2)),
}


def busy(machine: object, *, x: int, ms: float) -> dict[str, float]:
    """Do nothing but work for so much CPU time."""
    end = time.process_time() + ms / 1000
    while time.process_time() < end:
        pass
    return {"y": x}


def measure() -> Iterator[Row]:
    """Yield efficiency, overhead, ten thousand points, and growth with the machine."""
    yield from efficiency()
    yield many()
    yield from growth()


def swept(points: int, ms: float, workers: int, folder: Path | None = None, cache: Cache | None = None) -> float:
    """Return the wall time of a sweep [s], its processes' start included."""
    plan = make_plan("preset:small", busy, {"x": list(range(points))}, parameters={"ms": ms})
    begin = time.perf_counter()
    run_plan(plan, folder=folder, workers=workers, cache=cache or False, progress=False)
    return time.perf_counter() - begin


def efficiency(points: int = 400, ms: float = 50) -> Iterator[Row]:
    """Return how much faster two processes are than this one alone, and what a point costs beside its work."""
    with TemporaryDirectory() as one, TemporaryDirectory() as two, TemporaryDirectory() as empty:
        alone = swept(points, ms, 1, Path(one))
        both = swept(points, ms, 2, Path(two))
        bare = swept(1000, 0, 2, Path(empty))
    cores = os.cpu_count()
    yield Row(
        f"sweep of {points} points of {ms:g} ms, 2 processes (wall time, {cores} cores)",
        both,
        f"{both / points * 1000:.1f} ms a point",
        "one process",
        alone / both,
        "ratio >= 1.8",
    )
    yield Row(
        "1,000 points of nothing, 2 processes, written to a folder (wall time)",
        bare,
        f"{bare:.2f} ms a point",
        target="< 10 ms",
    )


def many(points: int = 10_000) -> Row:
    """Return ten thousand points of 1 ms, with their file, their cache and their table."""
    with TemporaryDirectory() as folder, TemporaryDirectory() as kept:
        seconds = swept(points, 1, 2, Path(folder), Cache(Path(kept)))
    return Row(
        f"{points:,} points of 1 ms, 2 processes, folder and cache (wall time)",
        seconds,
        f"{points / seconds:,.0f} points/s",
        "the work alone on two cores",
        seconds / (points * 0.001 / 2),
        "minutes",
    )


def growth() -> Iterator[Row]:
    """Return simulation time and memory for one product on every PE of small and large machines, and how they grow."""
    for what, sizes in SIZES.items():
        found = [sized(*size) for size in sizes]
        (few, quick, small), (most, slow, large) = found[0], found[-1]
        axis = [size[0] if what == "SIPs" else pes for size, (pes, _, _) in zip(sizes, found, strict=True)]
        power = exponent(axis, [seconds for _, seconds, _ in found])
        yield Row(
            f"64 x 64 x 64 on each of {most:,.0f} PEs ({sizes[-1][0]} SIPs); peak memory {large:,.0f} MiB",
            slow,
            f"time as {what}^{power:.2f}, {(large - small) * 1024 / (most - few):,.0f} KiB a PE",
            f"the same on {few:,.0f} PEs",
            slow / quick,
        )


def sized(sips: int, w: int, h: int) -> tuple[float, float, float]:
    """Return PEs, CPU time [s] and peak memory [MiB] of one size, run in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.sweeps", str(sips), str(w), str(h)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    pes, seconds, mib = (float(word) for word in out.split())
    return pes, seconds, mib


def exponent(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Return the slope of the straight line through the logarithms."""
    logs = [(math.log(x), math.log(y)) for x, y in zip(xs, ys, strict=True)]
    mx, my = (sum(p[i] for p in logs) / len(logs) for i in (0, 1))
    return sum((x - mx) * (y - my) for x, y in logs) / sum((x - mx) ** 2 for x, _ in logs)


def one_size(sips: int, w: int, h: int) -> None:
    """Print PEs, CPU time [s] and peak memory [MiB] of one size, in a process of its own."""
    from kernbench.kernels.gemm import gemm
    from kernbench.policy.placement.dp import DPPolicy
    from kernbench.runtime_api.context import RuntimeContext
    from kernbench.sim_engine.engine import GraphEngine

    machine = resolve_topology(
        "preset:default", {"system.sips.count": sips, "sip.cube_mesh.w": w, "sip.cube_mesh.h": h}
    )
    each = DPPolicy(cube="replicate", pe="replicate")
    with RuntimeContext(GraphEngine(machine)) as torch:
        operands = []
        for sip in range(sips):
            with torch.ahbm.device(sip):
                operands.append([torch.empty(64, 64, dtype="f16", device="ahbm", dp=each) for _ in range(3)])
        torch.ahbm.synchronize()
        begin = time.process_time()
        for sip in range(sips):
            with torch.ahbm.device(sip):
                torch.launch("gemm", gemm, *operands[sip], 64, 64, 64, "ref_ref")
        for sip in range(sips):
            torch.ahbm.synchronize(sip)
        seconds = time.process_time() - begin
    print(machine.config.n_pes, seconds, peak_mib())


if __name__ == "__main__":
    one_size(*map(int, sys.argv[1:]))
