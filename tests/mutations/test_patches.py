from __future__ import annotations

import re
import subprocess
from collections import Counter

import pytest

from tests.mutations.patches import PATCHES
from tests.repo import ROOT

MODEL = (ROOT / "docs" / "model.md").read_text(encoding="utf-8")
RELIABILITY = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
# M4.2 and M4.8 follow from the others.
MUTATED = (
    "M3.1 M3.2 M3.3 M3.4 M3.5 M3.6 M3.7 M4.1 M4.3 M4.4 M4.5 M4.6 M4.7 M6.1 M8.1 M8.2 M8.3 M8.4 M8.5 M8.6 M8.7".split()
)


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.name)
def test_a_patch_applies_to_the_sources_and_names_tests_that_exist(patch):
    command = ["git", "-c", "safe.directory=*", "apply", "--check", "--unidiff-zero", str(patch.path)]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stderr}: write the mutation anew for the changed sources"
    assert re.search(rf"^(?:### |- \*\*){re.escape(patch.rule)}\b", MODEL, re.MULTILINE)
    for test in patch.tests:
        file, _, function = test.partition("::")
        assert (ROOT / file).exists(), test
        assert not function or f"def {function}(" in (ROOT / file).read_text(encoding="utf-8"), test


def test_every_rule_that_the_core_implements_has_two_mutations():
    counts = Counter(patch.rule for patch in PATCHES)
    assert {rule for rule in MUTATED if counts[rule] < 2} == set()


def test_survivors_that_are_listed_exist():
    survivors = re.findall(r"^\| `(\w+)` \|", RELIABILITY, re.MULTILINE)
    assert set(survivors) <= {patch.name for patch in PATCHES}
