"""A long run in a real browser: it says what it does from its first second on, until its result is there."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from kernbench.notebook._job import BUILDING, FINDING, READING_RESULT
from kernbench.notebook._live import COMPUTING, MAKING, SIMULATING

pytestmark = pytest.mark.slow

SIZE = "6144"  # 6 s on an idle computer, half a minute on a busy one
LONGEST_GAP_S = 1.5  # on a busy computer; the bar changes four times a second
# Notes what the bar says at each of its changes, and whether the picture has the timeline of a run then.
WATCH = """
  window.noted = [];
  const said = () => document.querySelector(".kb-status")?.innerText ?? "";
  const note = () => noted.push([performance.now() / 1000, said(), !document.querySelector(".kbp-timeline.kbp-empty"),
    document.querySelector(".kbp-clock .kbp-now")?.textContent ?? ""]);
  new MutationObserver(note).observe(document.querySelector(".kb-bar"), { subtree: true, childList: true, characterData: true });
"""  # noqa: E501


@pytest.fixture(scope="module")
def page(web, driver):
    from tests.notebook.browser import Page

    page = Page(driver, "phases")
    page.open(web)
    return page


def chosen(page):
    """Choose the bench, and its size."""
    page.one("button.kb-run")
    page.choose(".kb-work", "bench gpt3-qkv")
    page.until(lambda: page.all(".kb-param-d_model"), "its fields")
    page.type(".kb-param-d_model", SIZE)


def ran(page):
    """Run; return what was noted from the click on: (seconds, text of the bar, is the timeline there, clock)."""
    page.run(WATCH)
    page.click("button.kb-run")
    for state in (f"{SIMULATING}|from the cache", f"{READING_RESULT}|from the cache", "^done"):
        page.until(lambda: re.search(state, page.text(".kb-status")), state)  # noqa: B023
    page.until(lambda: page.all(".kbp-why-row"), "the critical path")
    noted = page.run("return noted")
    begin = next(i for i, (_, text, *_) in enumerate(noted) if text.startswith("running"))
    return [(t - noted[begin][0], *rest) for t, *rest in noted[begin:]]


def test_a_long_run_says_what_it_does(page):
    chosen(page)
    noted = ran(page)
    end = next(i for i, (_, text, *_) in enumerate(noted) if text.startswith("done"))
    running, whole_s = noted[:end], noted[end][0]
    page.shot("done")

    order = FINDING, BUILDING, MAKING, SIMULATING, COMPUTING, READING_RESULT
    found = [next((x for x in order if x in text), "") for _, text, *_ in running]
    phases = [x for x in dict.fromkeys(found) if x]
    assert phases[0] in (FINDING, BUILDING, MAKING)
    assert phases[-1] == READING_RESULT
    assert {MAKING, SIMULATING} <= {*phases}
    assert [x for x in order if x in (SIMULATING, READING_RESULT)] == [
        x for x in phases if x in (SIMULATING, READING_RESULT)
    ]
    shares = [int(x[1]) for _, text, *_ in running if (x := re.search(rf"{MAKING} (\d+)%", text))]
    assert shares == sorted(shares)
    assert len({*shares}) > 4, "values have their progress"
    assert any(re.search(rf"{SIMULATING} \d+% of [\d,]+ programs", text) for _, text, *_ in running)

    times = [t for t, *_ in noted[: end + 1]]
    assert len(times) >= 2 * whole_s
    assert max(b - a for a, b in pairwise(times)) < LONGEST_GAP_S
    _, _, timeline, clock = noted[end]
    assert timeline, "done only when the picture has the result"
    assert not clock.startswith("Running")


def test_the_same_run_comes_from_the_cache(page, web):
    page.open(web)
    chosen(page)
    noted = ran(page)
    assert "from the cache" in noted[-1][1]
    assert not any(SIMULATING in text for _, text, *_ in noted)
