"""What may be carried over, and what may not."""

from __future__ import annotations

import json

import pytest

from kernbench.points._cache import entries
from kernbench.studies import milestone
from kernbench.topology.builder import resolve_topology
from tests.repo import ROOT
from tests.reports.carry import same, under

COST = resolve_topology(str(ROOT / "topology.yaml")).config.cost.to_spec()
KEPT = sorted((milestone.folder() / milestone.KEPT).glob("*.jsonl"))


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_a_key_follows_from_what_a_point_is_made_of(path):
    entry = entries(path)[0]
    assert under(entry, entry["made_of"]["code"], COST) == entry
    other = under(entry, "another code", COST)
    assert other["key"] != entry["key"]
    assert (other["row"], other["made_of"]["code"]) == (entry["row"], "another code")


def test_a_point_whose_key_does_not_follow_is_not_carried():
    entry = entries(KEPT[0])[0]
    with pytest.raises(ValueError, match="the costs, or a default of the study, are others now"):
        under(entry, "another code", COST | {"another": 1})


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        ([{"a": 1, "code_version": "new"}, {"a": 2}], ""),
        ([{"a": 1}, {"b": 9}, {"a": 2}], ""),
        ([{"a": 1}], "x.json: row 1 of 2 is missing or differs: {'a': 2}"),
        ([{"a": 1}, {"a": 2.5}], "x.json: row 1 of 2 is missing or differs: {'a': 2}"),
    ],
)
def test_rows_are_the_same_but_for_the_code(tmp_path, rows, fault):
    before, after = tmp_path / "before", tmp_path / "after"
    for folder, has in ((before, [{"a": 1, "code_version": "old"}, {"a": 2}]), (after, rows)):
        folder.mkdir()
        (folder / "x.json").write_text(json.dumps({"rows": has}))
    if not fault:
        assert same(before, after) == len(rows)
        return
    with pytest.raises(ValueError, match=r"^x\.json") as error:
        same(before, after)
    assert str(error.value) == fault
