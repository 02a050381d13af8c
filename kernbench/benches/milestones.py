"""Reports as benches: each executes its milestone's notebook with the full parameters, on the machine of the run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kernbench.benches.registry import bench
from kernbench.runtime_api.context import RuntimeContext
from kernbench.topology.builder import Machine, resolve_topology


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

    topology, overrides = as_parameters(torch.engine.machine)
    print(f"wrote {milestone.run(name, topology=topology, overrides=overrides, output=output).folder}")


def as_parameters(machine: Machine) -> tuple[str, list[str]]:
    """Return a machine as the notebook's parameters: a file or preset, and the values that differ from it."""
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
