"""Reports as benches: each executes its milestone's notebook with the full parameters, on the machine of the run."""

from __future__ import annotations

from pathlib import Path

from kernbench.benches.registry import bench
from kernbench.runtime_api.context import RuntimeContext


@bench(
    "milestone-1h-ccl",
    "the collectives report: algorithms x sizes x SIPs, bounds, closed forms, figures, on this machine",
    milestone=True,
)
def ccl(torch: RuntimeContext) -> None:
    """Write the collectives report."""
    report("ccl", torch)


@bench(
    "milestone-1h-gemm",
    "the GEMM report: shapes x stagings on one PE, table and figures, on this machine",
    milestone=True,
)
def gemm(torch: RuntimeContext) -> None:
    """Write the GEMM report."""
    report("gemm", torch)


def report(name: str, torch: RuntimeContext, output: Path | None = None) -> None:
    """Write a milestone's report for the machine of `torch`; the study makes its own engines."""
    from kernbench.studies import milestone

    print(f"wrote {milestone.run(name, topology=torch.engine.machine, output=output).folder}")
