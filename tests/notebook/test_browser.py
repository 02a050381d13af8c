"""The served page in a real browser. Screenshots are in build/screenshots."""

from __future__ import annotations

import re

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def page(web, driver):
    from tests.notebook.browser import Page

    page = Page(driver, "page")
    page.open(web)
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
    page.until(lambda: len(page.all(".kb-parallel svg .mark-line path")) == 2, "a line for each run")
    assert not page.severe()
    page.shot("5-compared")
    assert page.wide() <= 0


def test_a_long_run_is_seen_growing_and_ends_when_told(page):
    page.choose(".kb-work", "study gemm")
    page.click(".kb-data input")
    for name in "mkn":
        page.type(f".kb-param-{name}", "8192")
    page.until(lambda: page.one("button.kb-run").is_enabled(), "Run")
    page.click("button.kb-run")
    seen = []
    page.until(lambda: status(page) == "running", "a run under way")

    def watched():
        seen.append(now(page))
        return len(set(seen)) >= 4

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


def test_a_visitor_without_the_token_sees_nothing(web):
    import urllib.request

    with urllib.request.urlopen(web.partition("?")[0]) as answer:
        assert b"kb-explorer" not in answer.read()
        assert "login" in answer.url


def test_the_page_asks_nobody_else_for_anything(page, web):
    urls = page.requests()
    assert urls
    assert not [url for url in urls if not url.startswith((web.partition("?")[0], "data:", "blob:"))]
