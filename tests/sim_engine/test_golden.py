"""End-to-end times and digests that are the same on every machine and Python; a change needs a line in CHANGELOG."""

from __future__ import annotations

import pytest

from kernbench.benches.registry import run
from kernbench.studies import gemm
from kernbench.topology.builder import resolve_topology

# Seen alike with CPython 3.11, 3.12 and 3.13.
PRODUCTS = [
    ("preset:default", (64, 64, 64), "ref_ref", "e6e6f9fa01e3644e"),
    ("preset:default", (100, 200, 70), "load_ref", "7078adf46a84554a"),
    ("preset:hbm3_conservative", (64, 64, 64), "ref_ref", "949c3a6163f06c1e"),
    ("preset:hbm3_conservative", (100, 200, 70), "load_ref", "eefeeb35cdca42ce"),
]


@pytest.mark.parametrize(("preset", "shape", "variant", "digest"), PRODUCTS)
def test_products(preset, shape, variant, digest):
    result = gemm.run(resolve_topology(preset), shape, variant)
    assert result.records.digest().startswith(digest)


def test_a_bench_on_the_pes_of_a_cube():
    result = run("qkv-gemm-multi-pe", resolve_topology("preset:default")).result
    assert result.records.digest().startswith("1c99a6c479c3c39b")
