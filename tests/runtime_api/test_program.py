"""Modes: `auto` has the times of every flit, in one run; `fast` says whether it has."""

from __future__ import annotations

import pytest

import kernbench as kb
from kernbench.errors import KernbenchError
from kernbench.runtime_api.program import run_program

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


def test_where_streams_meet_fast_is_an_estimate_and_auto_is_not():
    found = runs(4)
    assert found["fast"].certificate.startswith("NOT certified")
    assert found["fast"].records.digest() != found["exact"].records.digest()
    assert found["auto"].certificate == found["exact"].certificate == "certified: every flit was simulated (mode exact)"
    assert found["auto"].records.mode == "exact"


@pytest.mark.parametrize("pes", [1, 2, 3, 8])
@pytest.mark.parametrize("n", [100, 1000, 5000])
def test_auto_is_exact(pes, n):
    found = runs(pes, n)
    assert found["auto"].records.digest() == found["exact"].records.digest()
    if not found["fast"].certificate.startswith("NOT"):
        assert found["fast"].records.digest() == found["exact"].records.digest()


@pytest.mark.parametrize("mode", ["auto", "exact", "fast"])
def test_a_program_is_called_once(mode):
    called = []

    def meeting(torch):
        called.append(torch)
        program(4, 4096)(torch)

    run_program(MACHINE, meeting, mode=mode)
    assert len(called) == 1


def test_an_unknown_mode_lists_the_known():
    with pytest.raises(KernbenchError, match="known: auto, exact, fast"):
        run_program(MACHINE, program(1, 16), mode="quick")
