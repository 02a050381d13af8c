"""Digests of all times of every bench, the same on every machine and Python; a change needs a line in CHANGELOG.md."""

from __future__ import annotations

import pytest

import kernbench as kb
from tests.runtime_api.machines import small

SMALL = {
    "ccl-allreduce": "bf9330b3fe26f940",
    "gemm-single-pe": "d8d545ed6ffc63d4",
    "gpt3-qkv": "95e03621487e8736",
    "matmul": "c935bf1ca1fa8877",
    "qkv-gemm": "2dc4dd7a45ff2065",
    "qkv-gemm-multi-pe": "396fa8b0361e0e48",
    "va-offset-verify": "f1a02d539fd77f54",
}
DEFAULT = {
    "ccl-allreduce": "516d113d95bed667",
    "gemm-single-pe": "3af3ea246fd0adae",
    "gpt3-qkv": "becf3b49b6e628cb",
    "matmul": "efe6ddc11faec4ae",
    "qkv-gemm": "458d4ad674032e71",
    "qkv-gemm-multi-pe": "1c99a6c479c3c39b",
    "va-offset-verify": "627f855fa6057f1e",
}


OPTIONS = {"gpt3-qkv": {"d_model": 96}}


@pytest.mark.parametrize(("name", "digest"), SMALL.items())
def test_on_a_small_machine(name, digest):
    assert kb.run(name, small(), **OPTIONS.get(name, {})).result.records.digest().startswith(digest)


@pytest.mark.parametrize(("name", "digest"), DEFAULT.items())
def test_on_the_default_machine(name, digest):
    assert kb.run(name, "preset:default", **OPTIONS.get(name, {})).result.records.digest().startswith(digest)
