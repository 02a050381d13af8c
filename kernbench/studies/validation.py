"""Validation: every formula of docs/model.md against the simulation, a row each, with its error.

A row is a `Check`; later work adds its own to `CHECKS`. Rules that state no number (routes, addresses, types)
have no row: tests hold them.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from kernbench.errors import ArgumentError
from kernbench.studies import validation_network as network
from kernbench.studies import validation_pe as pe
from kernbench.studies import validation_runs as runs
from kernbench.studies import validation_space as space
from kernbench.studies.points import Row, code_version, machine_of, run_points
from kernbench.studies.results import read_results, write_results
from kernbench.studies.validation_row import Check
from kernbench.topology.builder import Machine, resolve_topology

FILE = "validation.json"
_TIES = "not an error: how much the order of simultaneous arrivals decides"

CHECKS = (
    Check(
        "message-alone",
        "M4.1",
        "a message alone, to 64 KiB, on random routes: latencies, fill, serialization",
        network.message_alone,
    ),
    Check(
        "parts",
        "M4.2",
        "transfers alone and at one time: what is left for queueing, and whether ever less than none",
        space.parts,
    ),
    Check("reference", "M4.3", "random traffic: a process for each hop of each flit", runs.against_reference),
    Check(
        "fair-shares",
        "M4.3",
        "steady congestion: rate of each stream and its max-min fair one",
        network.fair_shares,
        "%",
        5.0,
        "arrival order is not fairness; transfers of 4 KiB are counted whole",
    ),
    Check(
        "bytes",
        "M4.3",
        "bytes into and out of nodes; links' and slices' counters and what was asked",
        network.bytes_conserved,
        "B",
    ),
    Check("busy", "M4.3", "busy time of links and its flits; none above the elapsed time", network.busy_within_elapsed),
    Check(
        "tie-spread",
        "M4.4",
        "the last of many simultaneous reads, ranks permuted",
        network.tie_spread,
        "%",
        None,
        _TIES,
    ),
    Check(
        "tie-spread-each",
        "M4.4",
        "each of many simultaneous reads, ranks permuted",
        network.tie_spread_each,
        "%",
        None,
        _TIES,
    ),
    Check(
        "tie-spread-product",
        "M4.4",
        "a product on all PEs of a cube, ranks permuted",
        runs.tie_spread_product,
        "%",
        None,
        _TIES,
    ),
    Check("reads-alone", "M4.5", "an HBM read alone: command, bursts over channels, data", network.reads_alone),
    Check("writes-alone", "M4.5", "an HBM write alone: data, bursts, acknowledgement", network.writes_alone),
    Check("lines", "M4.6", "operands stored row by row: lines that tiles touch", pe.lines, "bursts"),
    Check("sram-alone", "M4.7", "an SRAM read and write alone: two messages each", network.sram_alone),
    Check("check-values", "M4.8", "the table of reads on an idle default machine", network.check_values),
    Check("launch-start", "M5.1", "start of a program: three messages, three services", pe.launch_start),
    Check("common-start", "M5.2", "start of many programs: the last copy of the launch", pe.common_start),
    Check("launch-end", "M5.3", "the host knows of its end: three answers of 16 B", pe.launch_end),
    Check("issue", "M5.4", "a command every command_ns", pe.issue),
    Check("counts", "M5.5", "tiles of a product: pieces of work, bytes in and out", pe.counts, "B"),
    Check("fetch", "M5.5", "fetch of a tile", pe.fetch),
    Check("matrix", "M5.5", "product of a tile, ragged ones too", pe.matrix),
    Check("store", "M5.5", "store of an output tile", pe.store),
    Check("buffers", "M5.6", "stages that stall: when each begins with each tile", space.buffers),
    Check("vector", "M5.7", "operations of PE_MATH", pe.vector),
    Check("space", "M5.8", "what fits into TCM, and a load that waits for room", space.space, "B or ps"),
    Check(
        "ideal",
        "M5.9",
        "a product on one PE and its ideal",
        pe.ideal,
        "%",
        None,
        "a bound to judge by: the ideal knows no buffers",
    ),
    Check("values", "M6.2", "times with and without values", runs.values_change_no_time),
    Check("digest", "M6.4", "the same run again", runs.same_twice),
)


def sweep(
    machine: Machine | str | None = None,
    *,
    checks: Sequence[str] = (),
    repeats: int = 10,
    workers: int = 1,
    folder: Path | None = None,
) -> list[Row]:
    """Return a row per check.

    Parameters
    ----------
    machine
        As for `kb.load`. Checks on random machines and of the published table do not depend on it.
    checks
        Names of checks; all by default.
    repeats
        How many random machines, or permutations, each check tries.
    workers
        Processes.
    folder
        Where finished points are kept.

    Raises
    ------
    ArgumentError
        If a check is unknown or `repeats` is negative; nothing has been run then.
    """
    known = {check.name: check for check in CHECKS}
    for name in checks:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise ArgumentError(f"no check {name!r}; {hint}known: {', '.join(known)}")
    if repeats < 0:
        raise ArgumentError(f"repeats = {repeats} must be >= 0")
    resolved = resolve_topology(machine)
    points: list[Row] = [
        {"check": name, "machine": dict(resolved.spec), "repeats": repeats} for name in (checks or known)
    ]
    return run_points(simulate, points, folder=folder, workers=workers)


def simulate(point: Row) -> Row:
    """Run one check and return its row."""
    machine = machine_of(point["machine"])
    [check] = (check for check in CHECKS if check.name == point["check"])
    return {**check.row(machine, point["repeats"]), "machine": machine.hash, "code_version": code_version()}


def write(rows: Sequence[Row], folder: Path) -> Path:
    """Write `validation.json` and `validation.csv`; return the former."""
    path = write_results(folder / FILE, rows)
    with (folder / "validation.csv").open("w", encoding="utf-8", newline="") as file:
        names = [name for name in rows[0] if name != "quantiles"]
        table = csv.DictWriter(file, names, extrasaction="ignore", lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    return path


def read(folder: Path) -> dict[str, Any]:
    """Return the content of `validation.json` in `folder`."""
    return read_results(folder / FILE)
