"""The documentation site: complete, linked, searchable, and independent of the net."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pkgutil import resolve_name
from types import ModuleType

import pytest

import kernbench
from tests.repo import ROOT, notebooks, relative

pytest.importorskip("mkdocs", reason="the documentation site needs the extra `docs`")

pytestmark = pytest.mark.slow

FETCHED = re.compile(
    r"""(?:\b(?:src|srcset|data-src)\s*=|@import|\burl\(|\bimport\s*\(?)\s*["'(]*(?:https?:)?//|<link[^>]*href="https?:"""
)
PUBLIC = re.compile(r"^\| `(kernbench[\w.]*)` \|", re.MULTILINE)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr  # a link or an anchor that leads nowhere, a name that is not there
    return out


def text_of(page):
    return page.read_text(encoding="utf-8")


def test_every_notebook_and_report_has_a_page_that_the_index_leads_to(site):
    linked = set(re.findall(r'href="([^"#]+)"', text_of(site / "index.html")))
    reports = [f"{relative(path.parent)}/index.html" for path in ROOT.glob("milestones/output/*/README.md")]
    assert {relative(path.with_suffix(".html")) for path in notebooks()} | set(reports) <= linked


def test_every_document_has_a_page(site):
    documents = [path.relative_to(ROOT).with_suffix(".html") for path in ROOT.glob("docs/**/*.md")]
    pages = [path.with_name("index.html") if path.stem == "README" else path for path in documents]
    assert not [page for page in pages if not (site / page).is_file()]


def test_no_page_asks_the_net_for_anything(site):
    fetched = {page.name: FETCHED.findall(text_of(page)) for page in site.rglob("*.html")}
    assert not {name: found for name, found in fetched.items() if found}


def test_search_finds_what_pages_say(site):
    index = json.loads(text_of(site / "search" / "search_index.json"))
    places = {entry["location"].partition("#")[0] for entry in index["docs"]}
    assert {"docs/api.html", "docs/model.html", "notebooks/00_quickstart.html"} <= places


def test_search_works_from_disk(site):
    # A page on disk can neither fetch the index nor start a worker.
    index = text_of(site / "search" / "search_index.js")
    assert index == f"var __index = {text_of(site / 'search' / 'search_index.json')}"
    (worker,) = re.findall(r'<script src="([^"]*iframe-worker[^"]*)"', text_of(site / "docs" / "model.html"))
    assert "IFrameWorker" in text_of(site / "docs" / worker)


def test_every_public_name_is_described(site):
    described = set(re.findall(r'<h3 id="(kernbench[\w.]*)"', text_of(site / "docs" / "api.html")))
    names = PUBLIC.findall(text_of(ROOT / "docs" / "api.md"))
    front_end = "kernbench.torch."  # described without PyTorch
    things = [(name, resolve_name(name)) for name in names if not name.startswith(front_end)]
    assert described == {
        name if isinstance(thing, ModuleType) else f"{thing.__module__}.{thing.__qualname__}" for name, thing in things
    } | {
        f"{kernbench.torch._WHERE[name.removeprefix(front_end)]}.{name.removeprefix(front_end)}"
        for name in names
        if name.startswith(front_end)
    }


def test_llms_txt_leads_to_the_description_of_every_public_name(site):
    text, page = text_of(site / "llms.txt"), text_of(site / "docs" / "api.html")
    links = re.findall(r"^- \[([\w.]+)\]\(docs/api\.html#([\w.]+)\): \S", text, re.MULTILINE)
    assert [name for name, _ in links] == PUBLIC.findall(text_of(ROOT / "docs" / "api.md"))
    assert all(f'id="{anchor}"' in page for _, anchor in links)
    assert text.startswith("# kernbench\n\n> Simulate AI accelerators")
    assert "\n## Kernels\n\n- [kernbench.tl]" in text


def test_charts_of_a_report_can_be_used(site):
    page = text_of(site / "milestones" / "output" / "ccl" / "index.html")
    specs = dict(re.findall(r'<script type="application/json" data-chart="(\w+)">(.*?)</script>', page, re.DOTALL))
    folder = ROOT / "milestones" / "output" / "ccl"
    shown = re.findall(r"\((\w+)\.svg\)", text_of(folder / "README.md"))
    files = {path.name.removesuffix(".vl.json"): path for path in folder.glob("*.vl.json")}
    charts = {name: json.loads(text_of(path)) for name, path in files.items() if name in shown}
    assert len(charts) >= 3
    assert {name: json.loads(spec) for name, spec in specs.items()} == charts
    assert all(f'<div id="{name}">' in page for name in charts)
    assert '<script src="../../../vega.js">' in page
    assert (site / "vega.js").stat().st_size > 500_000


@pytest.mark.parametrize("theme", ["default", "slate"])
@pytest.mark.parametrize("address", ["index.html", "notebooks/00_quickstart.html", "docs/api.html", "docs/model.html"])
def test_text_has_contrast_and_links_in_it_are_seen(site, driver, address, theme):
    from tests.notebook.browser import Page

    page = Page(driver, "site")
    page.open((site / address).as_uri())
    page.run("document.head.insertAdjacentHTML('beforeend', '<style>* { transition: none !important }</style>')")
    page.run("document.body.setAttribute('data-md-color-scheme', arguments[0])", theme)
    assert not page.axe(".md-main", "color-contrast", "link-in-text-block")
