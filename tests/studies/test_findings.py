"""Findings of the committed reports: each states its figures and names for programs, too."""

from __future__ import annotations

import json
import math
import re

import pytest

from kernbench import studies
from kernbench.studies.study import Report, Study
from kernbench.topology.builder import resolve_topology
from tests.repo import ROOT
from tests.verification.study import VerificationStudy

OUTPUT = ROOT / "milestones" / "output"
STUDIES = [
    study for name in sorted(studies.__all__)
    if isinstance(study := getattr(studies, name), type) and issubclass(study, Study) and study is not Study
] + [VerificationStudy]  # fmt: skip
FOLDERS = {path.stem: path.parent for study in STUDIES for path in OUTPUT.glob(f"[!.]*/{study.name}.json")}

every_report = pytest.mark.parametrize(
    "study",
    [  # findings of serving are of requests that are served again
        pytest.param(study, id=study.name, marks=[pytest.mark.slow] * (study.name == "serving"))
        for study in STUDIES
        if study.name in FOLDERS
    ],
)


def leaves(value):
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from leaves(each)
    if not isinstance(value, (dict, list)):
        yield value


@every_report
def test_every_finding_has_values_that_json_holds(study):
    found = study().findings(study().read(FOLDERS[study.name]))
    assert found
    for finding in found:
        known = list(leaves(json.loads(json.dumps(finding.values))))
        assert any(not isinstance(value, str) for value in known), finding.text
        assert all(not isinstance(value, float) or math.isfinite(value) for value in known), finding.text


@every_report
def test_every_finding_claims_one_thing(study):
    """The claim is short; paths and what is in brackets are in the detail."""
    for finding in study().findings(study().read(FOLDERS[study.name])):
        assert len(finding.text) <= 120, finding.text
        assert not any(mark in finding.text for mark in ("->", " ("))
        assert finding.text.endswith(".")
        assert not finding.detail or finding.detail.endswith(".")


@pytest.mark.slow
@pytest.mark.parametrize("study", [study for study in STUDIES if study.name in FOLDERS], ids=lambda study: study.name)
def test_every_figure_is_legible_at_the_width_of_a_page(study, tmp_path):
    """It fits on a page of 900 px with no text under 12 px."""
    rows, machine = study().read(FOLDERS[study.name]), resolve_topology(ROOT / "topology.yaml")
    report = Report(study(), rows, machine, {})
    for chart in report.charts.values():
        for path in chart.save(report.rows, study.columns, machine, tmp_path)[:1]:
            drawn = path.read_text()
            width, unit = re.search(r'width="([\d.]+)(pt)?"', drawn).groups()
            assert float(width) * (4 / 3 if unit else 1) <= 900, chart.name
            assert all(float(size) >= 12 for size in re.findall(r'font-size="([\d.]+)px"', drawn)), chart.name


def test_every_report_is_looked_at():
    assert {folder.name for folder in FOLDERS.values()} == {path.parent.name for path in OUTPUT.glob("[!.]*/README.md")}
