"""Verification: every formula of docs/model.md against the simulation, a row each, with its error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import kernbench.studies.verification_network as network
import kernbench.studies.verification_pe as pe
import kernbench.studies.verification_report as report
from kernbench._registry import hint
from kernbench.points._keys import Row
from kernbench.studies.study import Finding, Parameter, Study
from kernbench.topology import _naming as naming
from kernbench.topology.builder import Machine

if TYPE_CHECKING:
    import pandas as pd

CHECKS = {
    check.name: check
    for check in sorted((*network.CHECKS, *pe.CHECKS), key=lambda check: naming.natural_key(check.rule))
}


class VerificationStudy(Study):
    """Every rule of docs/model.md that states a number, against the simulation."""

    name, title = "verification", "The rules of the model against the simulation"
    method, columns, charts = report.METHOD, report.COLUMNS, report.CHARTS
    parameters: ClassVar = {
        "checks": Parameter([], "names of checks; all by default"),
        "repeats": Parameter(10, "random machines, or permutations of ranks, that a check tries"),
    }

    def check(self, machine: Machine, *, checks: Sequence[str], repeats: int) -> list[str]:
        faults = [f"check {name!r} is unknown; {hint(name, CHECKS)}" for name in checks if name not in CHECKS]
        return faults + ([f"repeats = {repeats} must be >= 0"] if repeats < 0 else [])

    def points(self, machine: Machine, *, checks: Sequence[str], repeats: int) -> list[Row]:
        return [{"check": name, "repeats": repeats} for name in (checks or CHECKS)]

    def simulate(self, machine: Machine, *, check: str, repeats: int = 10) -> Row:
        return CHECKS[check].row(machine, repeats)

    def tables(self, rows: Sequence[Row]) -> dict[str, pd.DataFrame]:
        return report.tables(rows)

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        return list(report.findings(rows))
