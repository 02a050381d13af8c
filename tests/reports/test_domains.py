"""The errors that a result states of its parts are those of the committed report."""

from __future__ import annotations

import json

import pytest

from kernbench.analysis._domains import DOMAINS
from kernbench.studies.fidelity_report import domains
from kernbench.viz._fields import fields
from tests.reports.times import OUTPUT

ROWS = json.loads((OUTPUT / "fidelity" / "fidelity.json").read_text(encoding="utf-8"))["rows"]
FOUND = {(row["domain"], row["tool"]): row for row in domains(ROWS)}
NAMES = {"HBM": "HBM", "routers": "network latency", "matrix engine": "systolic array"}


@pytest.mark.parametrize("domain", DOMAINS, ids=lambda domain: domain.part)
def test_errors_are_those_of_the_report(domain):
    row = FOUND[NAMES[domain.part], domain.tool]
    assert (f"{row['median_with']:.2f}", f"{row['p90_with']:.2f}") == (f"{domain.median:.2f}", f"{domain.within:.2f}")
    assert set(domain.values) < set(fields()[domain.field].choices)
