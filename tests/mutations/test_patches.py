from __future__ import annotations

import re
import subprocess
from collections import Counter
from importlib.util import find_spec

import pytest

from tests.mutations.patches import PATCHES
from tests.repo import ROOT

MODEL = (ROOT / "docs" / "model.md").read_text(encoding="utf-8")
RELIABILITY = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
# M4.2 and M4.8 follow from the others.
MUTATED = [
    *(f"M3.{i}" for i in range(1, 8)),
    *(f"M4.{i}" for i in (1, 3, 4, 5, 6, 7, 10, 11, 12, 13, 14)),
    *(f"M5.{i}" for i in (10, 11)),
    "M6.1",
    *(f"M8.{i}" for i in range(1, 8)),
]


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.name)
def test_a_patch_applies_to_the_sources_and_names_tests_that_exist(patch):
    command = ["git", "-c", "safe.directory=*", "apply", "--check", "--unidiff-zero", str(patch.path)]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stderr}: write the mutation anew for the changed sources"
    if patch.rule.startswith("kernbench."):
        assert find_spec(patch.rule)
    else:
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
