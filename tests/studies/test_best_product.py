"""`kb.gemm`: closed forms of placements, the fastest one, and what is said of it."""

from __future__ import annotations

import numpy as np
import pytest

import kernbench as kb
from kernbench.analysis.result import span
from kernbench.errors import ArgumentError, ConfigError
from kernbench.studies import best_product
from kernbench.studies.layers import PLACEMENTS, run, work

SIP = kb.load("preset:default", {"sip.cube_mesh.w": 2, "sip.cube_mesh.h": 1})
SHAPES = [(64, 128, 256), (1, 512, 1024), (512, 32, 64), (32, 32, 4096), (70, 130, 90)]


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_closed_form_reads_what_the_placement_counts(placement, shape):
    launches = best_product._reads(SIP, placement, shape, 2)
    remote = sum(float(reads.sum() - np.trace(reads)) for reads in launches)
    assert remote == work(SIP.config, placement, shape, "f16").remote_bytes


@pytest.mark.parametrize("shape", SHAPES)
def test_no_placement_is_much_faster_than_the_choice(shape):
    chosen = kb.gemm(*shape, machine=SIP)
    times = {}
    for placement in PLACEMENTS:
        start, end = span(run(SIP, shape, placement)[0].launches)
        times[placement] = (end - start) / 1000
    assert chosen.simulated_ns == times[chosen.best.placement]
    assert chosen.simulated_ns <= 1.1 * min(times.values())


def test_the_answer_says_which_placement_why_and_what_stands_idle():
    chosen = kb.gemm(1, 512, 4096, machine=SIP)
    assert chosen.warnings == ["2-D leaves 14 of 16 PEs idle", "rows leaves 15 of 16 PEs idle"]
    text, page = repr(chosen), chosen._repr_html_()
    for said in (chosen.title, "rows leaves 15 of 16 PEs idle", "raise cube."):
        assert said in text
        assert said.replace("'", "&#x27;") in page
    assert chosen.to_dict()["candidates"][0]["placement"] == chosen.best.placement
    assert chosen.why[0].ns == max(reason.ns for reason in chosen.why)


def test_operands_may_be_stored_transposed():
    chosen = kb.gemm(64, 128, 256, machine=SIP, trans_a=True, trans_b=True)
    assert "A' B'" in chosen.title
    assert {x.placement for x in chosen.candidates} == set(PLACEMENTS)


def test_wrong_questions_are_refused():
    with pytest.raises(ArgumentError, match=r"(?s)m = 0 must be a whole number >= 1.*dtype = 'f64' is unknown"):
        kb.gemm(0, 64, 64, machine=SIP, dtype="f64")
    with pytest.raises(ConfigError, match="no placement fits: does not fit: "):
        kb.gemm(1 << 22, 1 << 22, 64, machine=SIP)
