"""Run every check of the model's rules, and write the report of them to milestones/output/verification."""

from __future__ import annotations

import os

from kernbench.points._cache import CACHE_VARIABLE, OFF
from kernbench.studies.study import Report, Row
from kernbench.topology.builder import resolve_topology
from tests.repo import ROOT
from tests.verification.study import VerificationStudy

OUTPUT = ROOT / "milestones" / "output" / "verification"
STUDY = VerificationStudy()
MACHINE = resolve_topology(str(ROOT / "topology.yaml"))


def report(rows: list[Row]) -> Report:
    """Return the report of rows of all checks."""
    return Report(STUDY, rows, MACHINE, STUDY.complete({}))


if __name__ == "__main__":
    os.environ[CACHE_VARIABLE] = OFF  # the key of a row does not know the code of its check
    print(report(STUDY.run(MACHINE, workers=os.cpu_count() or 1, progress=True)).write(OUTPUT)[0].relative_to(ROOT))
