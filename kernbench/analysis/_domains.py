"""Errors against other tools of the parts of the model that a run used: the domains of the report fidelity."""

from __future__ import annotations

from typing import NamedTuple

from kernbench.analysis._records import Records
from kernbench.analysis._resources import kind_of
from kernbench.config._overrides import value_at

REPORT = "Reliability, in the documentation"


class Domain(NamedTuple):
    """A part of the machine whose model is validated where `field` has one of `values`.

    `median` is ours over the reference, `within` the factor that nine of ten references keep; as the report says.
    """

    part: str
    kinds: frozenset[str]
    field: str
    values: tuple[str, ...]
    tool: str
    median: float
    within: float


# tests/reports/test_domains.py compares these numbers with the committed report.
DOMAINS = (
    Domain("HBM", frozenset({"hbm_ctrl"}), "cube.hbm.timing", ("hbm2e", "hbm3"), "Ramulator 2.1.0", 1.00, 1.02),
    Domain("routers", frozenset({"router"}), "cube.noc.router.flow", ("credits",), "BookSim2 28f4329", 1.00, 1.01),
    Domain(
        "matrix engine", frozenset({"pe_gemm"}), "cube.pe.pe_gemm.model", ("systolic",), "SCALE-Sim 2.0.2", 1.00, 1.00
    ),
)


def validity(records: Records) -> str:
    """Say in a line which parts of a run are in a validated domain, with the error there, and which are not."""
    busy = {kind_of(name) for name, ps in records.busy_by_component().items() if ps}
    busy |= {kind_of(end) for link in records.links.names for end in link.split("->")}
    used = [domain for domain in DOMAINS if domain.kinds & busy]
    inside = [domain for domain in used if value_at(records.spec, domain.field, "?") in domain.values]
    compared = [f"{x.part} {x.median:.2f}x of {x.tool} (nine of ten within {x.within:.2f}x)" for x in inside]
    outside = [
        f"{x.part} ({x.field} = {value_at(records.spec, x.field, '?')}; validated: {' or '.join(x.values)})"
        for x in used
        if x not in inside
    ]
    clauses = [f"validated: {', '.join(compared)}"] if compared else []
    clauses += [f"not validated: {', '.join(outside)}"] if outside else []
    return "; ".join([*clauses, REPORT])
