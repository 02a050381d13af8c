"""The collectives report, as a bench: executes the milestone's notebook with its full parameters."""

from __future__ import annotations

from kernbench.benches.milestone_1h_gemm import as_parameters
from kernbench.benches.registry import bench
from kernbench.runtime_api.context import RuntimeContext

MILESTONE = "ccl"


@bench(
    "milestone-1h-ccl",
    "the collectives report: algorithms x sizes x SIPs, bounds, closed forms, figures, on this machine",
    milestone=True,
)
def run(torch: RuntimeContext) -> None:
    """Write the report of the machine at hand, with other numbers and shapes of SIPs; the study makes engines."""
    from kernbench.studies import milestone

    topology, overrides = as_parameters(torch.engine.machine)
    print(f"wrote {milestone.run(MILESTONE, topology=topology, overrides=overrides).folder}")
