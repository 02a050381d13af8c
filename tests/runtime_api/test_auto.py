"""Whole messages where nothing interleaves, flits where something does: the times are those of every flit."""

from __future__ import annotations

import pytest

import kernbench as kb
from kernbench.errors import KernbenchError
from kernbench.runtime_api.auto import run_program

MACHINE = kb.load("preset:small")


def gather(src, out, n, *, tl):
    """Every PE reads its own copy of `src`, and all write into the memory of PE 0."""
    tile = tl.load(src, shape=(n,), dtype="f16")
    tl.store(out + tl.program_id(0) * n, tile)


def program(pes, n):
    def run(torch):
        copies = kb.DPPolicy(cube="replicate", pe="replicate", num_cubes=1, num_pes=pes)
        src = torch.zeros(n, dtype=torch.float16, device="ahbm", dp=copies)
        out = torch.zeros(pes * n, dtype=torch.float16, device="ahbm")
        torch.launch("gather", gather, src, out, n)

    return run


def runs(pes, n=4096):
    return {mode: run_program(MACHINE, program(pes, n), mode=mode) for mode in ("exact", "fast", "auto")}


def test_one_pe_needs_no_flits():
    found = runs(1)
    assert all("certified" in r.certificate and "NOT" not in r.certificate for r in found.values())
    assert len({r.records.digest() for r in found.values()}) == 1


def test_where_streams_meet_the_certificate_fails_and_auto_repeats():
    found = runs(4)
    assert found["fast"].certificate.startswith("NOT certified")
    assert found["fast"].records.digest() != found["exact"].records.digest()
    assert found["auto"].certificate.startswith("certified")
    assert found["auto"].records.digest() == found["exact"].records.digest()


@pytest.mark.parametrize("pes", [1, 2, 3, 8])
@pytest.mark.parametrize("n", [100, 1000, 5000])
def test_auto_is_exact(pes, n):
    found = runs(pes, n)
    assert found["auto"].records.digest() == found["exact"].records.digest()
    if not found["fast"].certificate.startswith("NOT"):
        assert found["fast"].records.digest() == found["exact"].records.digest()


def test_an_unknown_mode_lists_the_known():
    with pytest.raises(KernbenchError, match="known: exact, fast, auto"):
        run_program(MACHINE, program(1, 16), mode="quick")
