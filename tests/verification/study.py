"""Verification: every rule of docs/model.md that states a number against the simulation, a row each, with its error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from kernbench.studies._findings import Finding
from kernbench.studies.study import Parameter, Study, Tables, table
from kernbench.topology import _naming as naming
from kernbench.topology.builder import Machine
from kernbench.viz import charts as kinds
from kernbench.viz.charts import Chart, ChartRow, Column, first_upper
from tests.verification import network, pe

CHECKS = {
    check.name: check
    for check in sorted((*network.CHECKS, *pe.CHECKS), key=lambda check: naming.natural_key(check.rule))
}
METHOD = (
    "A row is one rule of docs/model.md. Its error is the difference between what the rule says and what the "
    "simulation does, at each of its points: sizes, routes, random machines. *Exact*: no point differs by a "
    "picosecond. *Within*: the rule is approximate and says how far. *Reported*: no formula claims the number; the row "
    "says how far it is from what it is compared with. Rules without a row state no number: tests, listed in section 9 "
    "of docs/model.md, hold the machine's layout (M1), addresses and placement (M2), routes (M3) and types (M6.3)."
)
COLUMNS = {
    "rule": Column("rule"),
    "what": Column("what is compared"),
    "n": Column("points"),
    "largest": Column("largest error"),
    "mean": Column("mean error"),
    "verdict": Column("verdict"),
    "worst": Column("at"),
    "worst_expected": Column("expected"),
    "worst_measured": Column("simulated"),
    "note": Column("note"),
}


def _spread(rows: Sequence[ChartRow], columns: Mapping[str, Column], machine: Machine) -> Any:
    """Draw which share of a row's points differs by at most so much."""
    long = [
        {"check": f"{row['name'].replace('-', ' ')} ({row['n']:,})", **at} for row in rows for at in row["quantiles"]
    ]
    own = {
        "points_pct": Column("share of the row's points", "%"),
        "error": Column("differ by at most", "% of the expected value"),
    }
    draw = kinds.lines("points_pct", "error", "check", log_x=False, rank=lambda values: -max(values))
    return draw(long, own, machine)


CHARTS = (
    Chart(
        "verification_spread", _spread, "Where no formula is exact: ties, fair shares, the ideal product",
        where=lambda row: bool(row["unit"] == "%"),
        caption="Ties: ranks of simultaneous arrivals permuted, compared with the model's. In brackets: points.",
    ),
)  # fmt: skip
_STATED = (
    "rule", "what", "unit", "held", "error_mean", "error_max", "percent_max", "allowed", "worst", "worst_expected",
    "worst_measured",
)  # fmt: skip


class VerificationStudy(Study):
    """Every rule of docs/model.md that states a number, against the simulation."""

    name, title = "verification", "The rules of the model against the simulation"
    method, columns, charts = METHOD, COLUMNS, CHARTS
    parameters: ClassVar = {
        "checks": Parameter([], "names of checks; all by default", known=CHECKS),
        "repeats": Parameter(12, "random machines, or permutations of ranks, that a check tries"),
    }

    def points(self, machine: Machine, *, checks: Sequence[str], repeats: int) -> list[ChartRow]:
        return [{"check": name, "repeats": repeats} for name in checks or CHECKS]

    def simulate(self, machine: Machine, *, check: str, repeats: int) -> ChartRow:
        return CHECKS[check].row(machine, repeats)

    def tables(self, rows: Sequence[ChartRow]) -> Tables:
        shown = [
            {**row, "largest": _error(row, "error_max"), "mean": _error(row, "error_mean"), "verdict": _verdict(row)}
            for row in rows
        ]
        worst = ["rule", "what", "largest", "worst", "worst_expected", "worst_measured", "note"]
        return {
            "Rules": table(shown, ["rule", "what", "n", "largest", "mean", "verdict"]),
            "Largest errors": table((row for row in shown if row["error_max"]), worst),
        }

    def findings(self, rows: Sequence[ChartRow]) -> list[Finding]:
        exact = [row for row in rows if row["allowed"] == 0 and row["held"]]
        broken = sum(row["held"] is False for row in rows)
        verdict = f"{broken} do not hold" if broken else "no rule is violated"
        points = sum(row["n"] for row in exact)
        text = f"{len(exact)} of {len(rows)} rows hold exactly; {verdict}."
        values = {"exact": len(exact), "rows": len(rows), "points": points, "broken": broken}
        found = [Finding(text, "", 1000, values, f"They are compared at {points:,} points.")]
        for row in rows:
            stated = {name: row[name] for name in _STATED}
            head, most = first_upper(row["what"]), _error(row, "error_max")
            at = f", {row['worst']}" if row["worst"] else ""
            if row["held"] is False:
                detail = f"{row['rule']}{at}: expected {row['worst_expected']:g}, simulated {row['worst_measured']:g}."
                found.append(Finding(f"{head}: DOES NOT HOLD, {most}.", "", 500, stated, detail))
            elif row["allowed"]:
                detail = f"{row['rule']}, limit {row['allowed']:g} %{at or ', no point differs'}."
                found.append(Finding(f"{head}: within {most}.", "", 200, stated, detail))
            elif row["allowed"] is None:
                detail = f"{row['rule']}{at}; mean {_error(row, 'error_mean')}; {row['note']}."
                found.append(
                    Finding(f"{head}: {most} at most.", "verification_spread", row["percent_max"], stated, detail)
                )
        return found


def _error(row: ChartRow, column: str) -> str:
    value = row[column]
    return "0" if not value else f"{value:.3g} {row['unit']}"


def _verdict(row: ChartRow) -> str:
    if row["allowed"] is None:
        return "reported"
    return ("exact" if not row["allowed"] else f"within {row['allowed']:g} %") if row["held"] else "BROKEN"
