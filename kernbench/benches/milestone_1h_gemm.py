"""The GEMM report, as a bench: executes the milestone's notebook with its full parameters."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from kernbench.benches.registry import bench
from kernbench.runtime_api.context import RuntimeContext
from kernbench.topology.builder import Machine, resolve_topology

MILESTONE = "gemm"


@bench(
    "milestone-1h-gemm",
    "the GEMM report: shapes x stagings on one PE, table and figures, on this machine",
    milestone=True,
)
def run(torch: RuntimeContext) -> None:
    """Write the report of the machine at hand; the study makes engines of its own."""
    from kernbench.studies import milestone

    topology, overrides = as_parameters(torch.engine.machine)
    print(f"wrote {milestone.run(MILESTONE, topology=topology, overrides=overrides).folder}")


def as_parameters(machine: Machine) -> tuple[str, list[str]]:
    """Return a machine as a file or preset, and what is different from it, as the notebook's parameters say it."""
    source = "preset:default" if machine.source == "mapping" else machine.source
    plain = dict(_leaves(resolve_topology(source).spec))
    changed = {key: value for key, value in _leaves(machine.spec) if key not in plain or plain[key] != value}
    return source, [f"{key}={json.dumps(value)}" for key, value in changed.items()]


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
