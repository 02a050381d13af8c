from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

import pytest

from kernbench.analysis._records import Launch
from kernbench.analysis.result import Result
from kernbench.viz._html import _bar_svg
from tests.analysis.synthetic import records_of


class Balanced(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture
def result():
    rows = [("dma_in", 0, 16, 0, {}), ("gemm", 16, 40, 0, {})]
    return Result(records_of(rows, launches=(Launch("<b>matmul</b>", 0, 40_000),)), "tiny & small")


def test_the_notebook_view_says_what_the_terminal_says(result):
    html = result._repr_html_()
    for part in ("tiny &amp; small", "40.00 ns", "machine 0123456789ab", "matrix", "pe_gemm"):
        assert part in html
    parser = Balanced()
    parser.feed(html)
    assert parser.open == []


def test_names_cannot_break_the_page(result):
    assert "<b>matmul</b>" not in result._repr_html_()
    assert "&lt;b&gt;matmul" in result._repr_html_()


def test_an_incomplete_result_looks_different(result):
    stopped = Result(replace(result.records, complete=False), result.name)
    assert "INCOMPLETE" in stopped._repr_html_()
    assert "#D55E00;padding" in stopped._repr_html_()
    assert "#D55E00;padding" not in result._repr_html_()


def test_the_bar_fills_its_width_in_proportion():
    svg = _bar_svg([("HBM slice", 30.0, "red"), ("other", 10.0, "blue")], "time")
    assert 'x="0.00" width="480.00"' in svg
    assert 'x="480.00" width="160.00"' in svg


def test_the_timeline_shown_is_that_of_the_pe_that_finished_last():
    rows = [("gemm", 0, 5, 0, {}), ("gemm", 0, 9, 1, {}), ("gemm", 1, 9, 2, {})]
    assert "sip0.cube0.pe1, which finished last" in Result(records_of(rows))._repr_html_()
