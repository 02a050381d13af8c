"""What limits a run: each part of the machine at half its speed, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kernbench.config import MachineConfig
from kernbench.errors import ArgumentError
from kernbench.studies.gqa import Point, simulate
from kernbench.studies.points import Row, run_points
from kernbench.topology.builder import Machine, resolve_topology

Change = Callable[[MachineConfig], dict[str, Any]]

# Each is one resource; everything else stays as it is.
PARTS: dict[str, Change] = {
    "HBM": lambda c: {
        "cube.hbm.channel_bw_gbs": c.cube.hbm.channel_bw_gbs / 2,
        "cube.hbm.bw_gbs": c.cube.hbm.bw_gbs / 2,
    },
    "matrix engine": lambda c: {"cube.pe.pe_gemm.clock_ghz": c.cube.pe.pe_gemm.clock_ghz / 2},
    "vector engine": lambda c: {"cube.pe.pe_math.clock_ghz": c.cube.pe.pe_math.clock_ghz / 2},
    "command issue": lambda c: {"cube.pe.pe_cpu.command_ns": c.cube.pe.pe_cpu.command_ns * 2},
    "links between PEs": lambda c: {
        "cube.noc.link_bw_gbs": c.cube.noc.link_bw_gbs / 2,
        "cube.noc.router.overhead_ns": c.cube.noc.router.overhead_ns * 2,
        "cube.ucie.bw_gbs": c.cube.ucie.bw_gbs / 2,
        "cube.ucie.port_ns": c.cube.ucie.port_ns * 2,
    },
}


def halved(
    machine: Machine | str | None, points: Sequence[Point], *, dtype: str = "f16", workers: int = 1,
    folder: Path | None = None,
) -> list[Row]:  # fmt: skip
    """Return for each point and part of the machine how much longer it takes at half the part's speed.

    Parameters
    ----------
    machine
        As for `kb.load`.
    points
        What to run.
    dtype, workers, folder
        As for `gqa.sweep`.

    Raises
    ------
    ArgumentError
        If a point cannot be run.
    """
    resolved = resolve_topology(machine)
    machines = {"": resolved} | {name: resolved.with_(change(resolved.config)) for name, change in PARTS.items()}
    given = []
    for point in points:
        asked = asdict(point)
        del asked["series"]
        given += [{"machine": dict(own.spec), "point": asked, "dtype": dtype} for own in machines.values()]
    found = run_points(simulate, given, folder=folder, workers=workers)
    rows = []
    for i, point in enumerate(points):
        own_rows = dict(zip(machines, found[i * len(machines) :], strict=False))
        if own_rows[""]["left_out"]:
            raise ArgumentError(f"{point.phase} of {point.context} tokens: {own_rows['']['left_out']}")
        base = own_rows[""]["makespan_ns"]
        for part in PARTS:
            slowdown = own_rows[part]["makespan_ns"] / base
            rows.append(
                {
                    "phase": point.phase,
                    "context": point.context,
                    "part": part,
                    "makespan_ns": base,
                    "slowdown": slowdown,
                }
            )
    return rows


def chosen(points: Sequence[Point], wanted: Sequence[Sequence[Any]]) -> list[Point]:
    """Return the first point of each (phase, tokens) that is run as a whole: no chunk.

    Raises
    ------
    ArgumentError
        If there is none.
    """
    found = []
    for phase, context in wanted:
        fits = [p for p in points if (p.phase, p.context, p.queries) == (phase, context, None)]
        # Of prompts, the order of tokens that gives every rank the same work.
        fits.sort(key=lambda p: (p.order != "zigzag", not p.ring))
        if not fits:
            raise ArgumentError(f"halvings: no point of {phase} with {context} tokens; known: the study's own points")
        found.append(fits[0])
    return found


def binding(rows: Sequence[Row], phase: str, context: int) -> tuple[str, float]:
    """Return the part whose halving costs a run most, and by which factor."""
    own = [row for row in rows if (row["phase"], row["context"]) == (phase, context)]
    worst = max(own, key=lambda row: float(row["slowdown"]))
    return str(worst["part"]), float(worst["slowdown"])
