"""The attention report of Llama-3 70B, as a bench: executes the milestone's notebook with its full parameters."""

from __future__ import annotations

import os
from pathlib import Path

from kernbench.benches.registry import bench
from kernbench.runtime_api.context import RuntimeContext

_OUTPUT_DIR = Path(__file__).resolve().parents[2] / "milestones" / "output" / "gqa"


@bench(
    "milestone-gqa-llama70b",
    "the attention report of Llama-3 70B: prefill and decode over ranks (GQA_VALIDATION=1: command counts only)",
    milestone=True,
)
def run(torch: RuntimeContext) -> None:
    """Write the report; with GQA_VALIDATION=1, run the panels on the given machine and write sweep.json."""
    from kernbench.studies import gqa, milestone

    if os.environ.get("GQA_VALIDATION") == "1":
        print(f"wrote {gqa.write_panels(gqa.panels(torch), _OUTPUT_DIR)}")
    else:
        print(f"wrote {milestone.run('gqa', topology=torch.engine.machine, output=_OUTPUT_DIR).folder}")
