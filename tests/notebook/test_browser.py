"""The explorer in a real browser: alone in a page, and in JupyterLab. Screenshots stay in build/screenshots."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import time
from contextlib import ExitStack

import pytest

from tests.notebook.served import TOKEN, served
from tests.repo import ROOT

REQUIRED = os.environ.get("KERNBENCH_BROWSER") == "required"
MISSING = [x for x in ("selenium", "voila", "jupyterlab") if importlib.util.find_spec(x) is None]
MISSING += [x for x in ("chromium", "chromedriver") if shutil.which(x) is None]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING) and not REQUIRED, reason=f"not installed: {', '.join(MISSING)}"),
]


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Both servers, started at once, on a copy of the notebook: JupyterLab saves what it shows."""
    with ExitStack() as stack:
        found = {}
        for command in ("web", "lab"):
            folder = tmp_path_factory.mktemp(command)
            (folder / "notebooks").mkdir()
            shutil.copy(ROOT / "notebooks" / "explorer.ipynb", folder / "notebooks")
            found[command] = stack.enter_context(served(command, folder))
            found[f"{command} folder"] = folder
        yield found


@pytest.fixture(scope="module")
def driver():
    from tests.notebook.browser import chromium

    with chromium() as driver:
        yield driver


@pytest.fixture(scope="module")
def page(places, driver):
    from tests.notebook.browser import Page

    page = Page(driver, "page")
    page.open(f"{places['web']}/?token={TOKEN}")
    page.one("button.kb-run")
    return page


def now(page) -> str:
    return page.text(".kb-now")


def status(page) -> str:
    return page.text(".kb-pill b")


def test_first_run_shows_its_time_and_why(page):
    page.shot("1-opened")
    page.click("button.kb-run")
    page.until(lambda: re.search(r"Run 1 .* [\d,.]+ ns", page.text(".kb-stage .kb-subject")), "the run, named")
    page.heading(".kb-tabs .lm-TabBar-tab", "Why")
    page.until(lambda: "of the time" in page.text(".kb-why"), "reasons")
    page.shot("2-run")
    assert page.wide() <= 0


def test_machine_is_changed_broken_and_mended(page):
    page.click(".kb-auto input")  # else a changed machine may run by itself, or not: how fast is this computer?
    page.type(".kb-system-sips-count", "6")
    page.until(lambda: "6 SIPs" in page.text(".kb-machine"), "another machine")
    page.choose(".kb-system-sips-topology", "torus_2d")
    page.until(lambda: "system.sips" in page.text(".kb-wrong"), "a message: 6 is not a square number")
    page.shot("3-broken")
    assert not page.one("button.kb-run").is_enabled()
    page.type(".kb-system-sips-w", "3")
    page.type(".kb-system-sips-h", "2")
    page.until(lambda: "torus_2d" in page.text(".kb-machine"), "the torus")
    page.shot("4-mended")
    page.until(lambda: page.one("button.kb-run").is_enabled(), "a machine that is right")


def test_two_runs_are_compared(page):
    page.heading(".kb-tabs .lm-TabBar-tab", "Runs")
    page.choose(".kb-group", "HBM")
    page.type(".kb-cube-hbm-channel_bw_gbs", "16")
    page.until(lambda: "16.0" in page.text(".kb-machine"), "the change")
    page.click("button.kb-run")
    page.until(lambda: "channel_bw_gbs" in page.text(".kb-comparison"), "the comparison")
    assert "%" in page.text(".kb-comparison")
    page.shot("5-compared")
    assert page.wide() <= 0


def test_a_long_run_is_seen_growing_and_ends_when_told(page):
    page.choose(".kb-work", "study gemm")
    page.click(".kb-data input")
    for name in "mkn":
        page.type(f".kb-param-{name}", "4096")
    page.until(lambda: page.one("button.kb-run").is_enabled(), "Run")
    page.click("button.kb-run")
    begin, seen = time.monotonic(), []
    page.until(lambda: status(page) == "running", "a run under way")

    def watched():
        seen.append(now(page))
        return len(set(seen)) >= 4 and time.monotonic() - begin > 2

    page.until(watched, "time that goes on")
    assert not page.one("button.kb-run").is_enabled()
    page.shot("6-live")
    values = [float(x.split()[0].replace(",", "")) for x in dict.fromkeys(seen) if x.strip()]
    assert values == sorted(values)
    page.click("button.kb-cancel")
    page.until(lambda: status(page) in ("stopping", "cancelled"), "an answer")
    page.until(lambda: status(page) == "cancelled", "the end")
    page.shot("7-cancelled")


def test_another_work_is_chosen_with_the_keyboard_alone(page):
    from selenium.webdriver.common.keys import Keys

    page.one(".kb-work select").send_keys("study probe", Keys.TAB)
    page.until(lambda: page.all(".kb-param-case select"), "its parameters")
    page.until(lambda: page.one("button.kb-run").is_enabled(), "Run")
    page.one("button.kb-run").send_keys(Keys.ENTER)
    page.heading(".kb-tabs .lm-TabBar-tab", "Output")
    page.until(lambda: "transfers of" in page.text(".kb-output"), "what the probe says")
    page.shot("8-probe")


def test_a_visitor_without_the_token_sees_nothing(places):
    import urllib.request

    with urllib.request.urlopen(places["web"]) as answer:
        assert b"kb-explorer" not in answer.read()
        assert "login" in answer.url


def test_the_page_asks_nobody_else_for_anything(page, places):
    asked = [json.loads(entry["message"])["message"] for entry in page.driver.get_log("performance")]
    urls = {x["params"]["request"]["url"] for x in asked if x["method"] == "Network.requestWillBeSent"}
    assert urls
    assert not [url for url in urls if not url.startswith((places["web"], "data:", "blob:"))]


@pytest.mark.parametrize(("name", "path"), [("lab", "lab/tree"), ("notebook", "notebooks")])
def test_first_run_in_jupyterlab_and_notebook_7(places, driver, name, path):
    """Three clicks: into the cell, on its run button (here its key), on Run."""
    from selenium.webdriver.common.keys import Keys

    from tests.notebook.browser import Page

    page = Page(driver, name)
    copy = places["lab folder"] / "lab" / "notebooks" / "explorer.ipynb"
    before = copy.read_bytes() if copy.exists() else b""
    page.open(f"{places['lab']}/{path}/notebooks/explorer.ipynb?reset&token={TOKEN}")
    if name == "lab":
        page.until(lambda: "Idle" in page.text("#jp-main-statusbar"), "a kernel")
    page.click(".jp-Notebook .jp-CodeCell .jp-InputArea-editor")
    page.one(".jp-Notebook .jp-CodeCell .cm-content").send_keys(Keys.SHIFT, Keys.ENTER)
    page.click("button.kb-run")
    number = 1 if name == "lab" else 2  # the history of the first front end is in the cache
    named = rf"Run {number} .* [\d,.]+ ns"
    page.until(lambda: re.search(named, page.text(".kb-stage .kb-subject")), "the run, named")
    page.shot("1-run")
    assert page.wide() <= 0
    page.one(".jp-Notebook .jp-CodeCell .cm-content").send_keys(Keys.CONTROL, "s")
    page.until(lambda: copy.read_bytes() != before, "the copy, saved with what it shows")
    original = places["lab folder"] / "notebooks"
    assert [x.name for x in original.iterdir()] == ["explorer.ipynb"]
    assert (original / "explorer.ipynb").read_bytes() == (ROOT / "notebooks" / "explorer.ipynb").read_bytes()
