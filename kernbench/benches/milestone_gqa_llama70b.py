"""The attention report of Llama-3 70B, as a bench: executes the milestone's notebook with its full parameters."""

from __future__ import annotations

import os
from pathlib import Path

from kernbench.benches.milestone_1h_gemm import as_parameters
from kernbench.benches.registry import bench
from kernbench.runtime_api.context import RuntimeContext

MILESTONE = "gqa"
OUTPUT_DIR = Path(__file__).resolve().parents[2] / "milestones" / "output" / MILESTONE


@bench(
    "milestone-gqa-llama70b",
    "the attention report of Llama-3 70B: prefill and decode over ranks (GQA_VALIDATION=1: command counts only)",
    milestone=True,
)
def run(torch: RuntimeContext) -> None:
    """Write the report of the machine at hand; at validation scale, run the panels on it and write sweep.json."""
    if os.environ.get("GQA_VALIDATION") == "1":
        from kernbench.studies import gqa

        print(f"wrote {gqa.write_panels(gqa.panels(torch), OUTPUT_DIR)}")
        return
    from kernbench.studies import milestone

    topology, overrides = as_parameters(torch.engine.machine)
    print(f"wrote {milestone.run(MILESTONE, topology=topology, overrides=overrides, output=OUTPUT_DIR).folder}")
