"""The GEMM report as a bench: executes the milestone's notebook with its full parameters."""

from __future__ import annotations

from pathlib import Path

from kernbench.benches.registry import bench
from kernbench.runtime_api.context import RuntimeContext

_OUTPUT_DIR = Path(__file__).resolve().parents[2] / "milestones" / "output" / "gemm"


@bench(
    "milestone-1h-gemm",
    "the GEMM report: shapes x stagings on one PE, table and figures, on this machine",
    milestone=True,
)
def run(torch: RuntimeContext) -> None:
    """Write the report for the machine of `torch`; the study makes its own engines."""
    from kernbench.studies import milestone

    print(f"wrote {milestone.run('gemm', topology=torch.engine.machine, output=_OUTPUT_DIR).folder}")
