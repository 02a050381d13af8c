"""No simulated time of a committed report changes unnoticed: a changed row needs a line in CHANGELOG.md.

times.json holds a digest of each row's times. A row that was an estimate when it was written, or that was not
simulated, may change; one that was simulated exactly may not, unless changes.json names it: the file, a pattern of rows
(as of fnmatch) and the line of the changelog.
"""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from tests.reports import times

RECORDED = json.loads(times.TIMES.read_text())
CHANGES = json.loads(times.CHANGES.read_text())
CHANGELOG = Path(__file__).parents[2] / "CHANGELOG.md"


def changed(recorded, now, changes):
    """Return the rows that were exact and now have another digest, or none, and that `changes` does not name."""
    found = now["exact"]
    return [
        row
        for row, digest in recorded["exact"].items()
        if found.get(" | ".join(map(times.whole, row.split(" | ")))) != digest
        and not any(fnmatchcase(row, change["rows"]) for change in changes)
    ]


@pytest.mark.parametrize("file", sorted(RECORDED))
def test_exact_rows_are_as_recorded(file):
    now = times.digests(file, RECORDED[file]["columns"])
    rows = changed(RECORDED[file], now, [c for c in CHANGES if c["file"] == file])
    assert not rows, f"{file}: {len(rows)} rows changed; state why in CHANGELOG.md and name them in {times.CHANGES}"


def test_every_accepted_change_is_in_the_changelog():
    text = " ".join(CHANGELOG.read_text().split())
    for change in CHANGES:
        assert set(change) == {"file", "rows", "changelog"}
        assert " ".join(change["changelog"].split()) in text, change


def test_a_changed_row_is_noticed():
    recorded = {"exact": {"ring | 8": "aa", "ring | 16": "bb"}, "estimate": {"tree | 8": "cc"}}
    now = {"exact": {"ring | 8": "aa", "ring | 16": "dd", "tree | 8": "ee"}, "estimate": {}}
    assert changed(recorded, now, []) == ["ring | 16"]
    assert changed(recorded, {"exact": {}}, []) == ["ring | 8", "ring | 16"]
    assert changed(recorded, now, [{"rows": "ring | *"}]) == []
