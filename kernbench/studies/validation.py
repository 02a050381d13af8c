"""Validation: every formula of docs/model.md against the simulation, a row each, with its error.

A row is a `Check`; later work adds its own to `CHECKS`. Rules that state no number (routes, addresses, types)
have no row: tests hold them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from kernbench.registry import hint
from kernbench.studies import validation_network as network
from kernbench.studies import validation_pe as pe
from kernbench.studies import validation_report as report
from kernbench.studies import validation_runs as runs
from kernbench.studies import validation_space as space
from kernbench.studies.study import Finding, Parameter, Study
from kernbench.studies.validation_row import Check
from kernbench.sweeps.keys import Row
from kernbench.topology.builder import Machine

if TYPE_CHECKING:
    import pandas as pd

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


_BY_NAME = {check.name: check for check in CHECKS}


class ValidationStudy(Study):
    """Every rule of docs/model.md that states a number, against the simulation."""

    name, title = "validation", "The rules of the model against the simulation"
    method = report.METHOD
    parameters: ClassVar = {
        "checks": Parameter([], "names of checks; all by default"),
        "repeats": Parameter(10, "random machines, or permutations of ranks, that a check tries"),
    }
    columns: ClassVar = report.COLUMNS
    charts: ClassVar = report.CHARTS

    def check(self, machine: Machine, *, checks: Sequence[str], repeats: int) -> list[str]:
        faults = [f"check {name!r} is unknown; {hint(name, _BY_NAME)}" for name in checks if name not in _BY_NAME]
        return faults + ([f"repeats = {repeats} must be >= 0"] if repeats < 0 else [])

    def points(self, machine: Machine, *, checks: Sequence[str], repeats: int) -> list[Row]:
        return [{"check": name, "repeats": repeats} for name in (checks or _BY_NAME)]

    def simulate(self, machine: Machine, *, check: str, repeats: int = 10) -> Row:
        return _BY_NAME[check].row(machine, repeats)

    def tables(self, rows: Sequence[Row]) -> dict[str, pd.DataFrame]:
        return report.tables(rows)

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        return report.findings(rows)
