"""The pages of the documentation: all there, linked, and asking the net for nothing."""

from __future__ import annotations

import json
import re

import pytest

from kernbench.notebook.site import build
from tests.repo import ROOT, notebooks, relative

FETCHED = re.compile(r"""(?:\b(?:src|srcset|data-src)\s*=|@import|\burl\(|\bimport\s*\(?)\s*["'(]*(?:https?:)?//""")
LINK = re.compile(r'<a [^>]*href="([^"#][^"]*)"')


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    return build(ROOT, tmp_path_factory.mktemp("site"))


def test_every_notebook_and_report_has_a_page_and_the_index_leads_there(pages):
    index = pages[0]
    linked = {(index.parent / link).resolve() for link in LINK.findall(index.read_text(encoding="utf-8"))}
    assert {page.resolve() for page in pages[1:]} <= linked
    built = {page.relative_to(index.parent).as_posix() for page in pages}
    assert {relative(path.with_suffix(".html")) for path in notebooks()} <= built
    reports = [path.parent for path in ROOT.glob("milestones/output/*/README.md")]
    assert {f"{relative(folder)}/index.html" for folder in reports} <= built


def test_no_page_asks_the_net_for_anything(pages):
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not FETCHED.findall(text), page.name
        assert set(re.findall(r"<script ([^>=]*)", text)) <= {"type", "src"}, page.name
        assert set(re.findall(r"<script src=.([^>]*).>", text)) <= {"../../../vega.js"}, page.name
        assert not [link for link in LINK.findall(text) if "://" in link], page.name
        assert '<link rel="stylesheet"' not in text, page.name


def test_links_between_pages_lead_somewhere(pages):
    for page in pages:
        links = [link.partition("#")[0] for link in LINK.findall(page.read_text(encoding="utf-8"))]
        assert not [link for link in links if link and not (page.parent / link).is_file()], page.name


def test_pictures_are_inside(pages):
    report = next(page for page in pages if page.parent.name == "gemm")
    assert report.read_text(encoding="utf-8").count('src="data:image/svg+xml;base64,') >= 5


def test_a_chart_of_a_report_has_its_specification_and_its_picture_in_one_place(pages):
    (page,) = (page for page in pages if page.parent.name == "ccl")
    text = page.read_text(encoding="utf-8")
    specs = dict(re.findall(r'<script type="application/json" data-chart="(\w+)">(.*?)</script>', text, re.DOTALL))
    folder = ROOT / "milestones" / "output" / "ccl"
    charts = {path.name.removesuffix(".vl.json"): path for path in folder.glob("*.vl.json")}
    shown = re.findall(r"\((\w+)\.svg\)", (folder / "README.md").read_text(encoding="utf-8"))
    charts = {name: path for name, path in charts.items() if name in shown}
    assert len(charts) >= 3
    assert {name: json.loads(spec) for name, spec in specs.items()} == {
        name: json.loads(path.read_text(encoding="utf-8")) for name, path in charts.items()
    }
    for name in charts:
        assert re.search(rf'<div id="{name}"><p><img [^>]*></p></div>', text)
    assert "vegaEmbed" not in text
    assert (pages[0].parent / "vega.js").stat().st_size > 500_000
