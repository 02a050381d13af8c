"""Findings of the committed reports: each states its figures and names for programs, too."""

from __future__ import annotations

import json
import math

import pytest

from kernbench import studies
from kernbench.studies.study import Study
from tests.repo import ROOT

OUTPUT = ROOT / "milestones" / "output"
STUDIES = [
    study for name in sorted(studies.__all__)
    if isinstance(study := getattr(studies, name), type) and issubclass(study, Study) and study is not Study
]  # fmt: skip
FOLDERS = {path.stem: path.parent for study in STUDIES for path in OUTPUT.glob(f"[!.]*/{study.name}.json")}


def leaves(value):
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from leaves(each)
    if not isinstance(value, (dict, list)):
        yield value


@pytest.mark.parametrize("study", [study for study in STUDIES if study.name in FOLDERS], ids=lambda study: study.name)
def test_every_finding_has_values_that_json_holds(study):
    found = study().findings(study().read(FOLDERS[study.name]))
    assert found
    for finding in found:
        known = list(leaves(json.loads(json.dumps(finding.values))))
        assert any(not isinstance(value, str) for value in known), finding.text
        assert all(not isinstance(value, float) or math.isfinite(value) for value in known), finding.text


def test_every_report_is_looked_at():
    assert {folder.name for folder in FOLDERS.values()} == {path.parent.name for path in OUTPUT.glob("[!.]*/README.md")}
