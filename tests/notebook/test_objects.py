"""What a user meets in a cell shows itself there, and reads well in a terminal."""

from __future__ import annotations

import pytest

import kernbench as kb
from kernbench.kernels.gemm import gemm
from kernbench.studies.ccl import CclStudy


@pytest.fixture(scope="module")
def objects():
    machine = kb.load("preset:small")
    with kb.session(machine, log="tile") as torch:
        a, b = (torch.empty(32, 32, dtype=torch.float16, device="ahbm", name=name) for name in "ab")
        out = torch.empty(32, 32, dtype=torch.float16, device="ahbm", name="out")
        torch.launch("gemm", gemm, a, b, out, 32, 32, 32)
        shown = [a, torch.ones(2, 2), a._handle]
    result = torch.result
    bench = kb.run(lambda torch: torch.ones(4, device="ahbm").numpy(), machine)
    with kb.session("preset:default") as torch:
        decision = CclStudy().program(torch)
    return [machine, *shown, result, result.records, result.why(), kb.compare(result, result), bench, torch, decision]


def test_every_object_says_what_it_is(objects):
    for thing in objects:
        text = repr(thing)
        assert " object at 0x" not in text, type(thing).__name__
        assert len(text) < 20_000, type(thing).__name__


def test_what_is_more_than_a_line_shows_itself_as_html(objects):
    rich = {type(thing).__name__ for thing in objects if hasattr(thing, "_repr_html_")}
    assert rich >= {"Machine", "DeviceTensor", "Result", "Records", "Why", "Comparison", "BenchResult", "Decision"}
    for thing in objects:
        if hasattr(thing, "_repr_html_"):
            html = thing._repr_html_()
            assert "<" in html
            assert "http" not in html.replace("http://www.w3.org/2000/svg", "")


def test_the_log_shows_totals_and_its_first_rows(objects):
    [records] = [thing for thing in objects if type(thing).__name__ == "Records"]
    html = records._repr_html_()
    assert f"{len(records)} rows" in html
    assert ">gemm<" in html
    assert "pe_gemm" in html
