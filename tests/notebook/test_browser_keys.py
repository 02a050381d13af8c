"""The served page with the keyboard alone: everything can be reached and done, and the focus is always visible."""

from __future__ import annotations

import re

import pytest

pytestmark = pytest.mark.slow

# What has the focus: whether it is of a kind, whether that is seen, and what it is.
FOCUS = """
const at = document.activeElement, style = getComputedStyle(at), box = at.getBoundingClientRect();
const outlined = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1;
const inside = box.width > 0 && box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth;
return [at.matches(arguments[0]), (outlined || style.boxShadow !== "none") && inside, at.outerHTML.slice(0, 200)];
"""


class Walker:
    """Presses keys, as a user without a mouse does."""

    def __init__(self, page):
        from selenium.webdriver.common.keys import Keys

        self.page, self.keys, self.unseen = page, Keys, []

    def press(self, *keys):
        """Press keys where the focus is."""
        for key in keys:
            self.page.driver.switch_to.active_element.send_keys(getattr(self.keys, key, key))

    def to(self, css, back=False):
        """Go to the next control of a kind, with Tab or back."""
        for _ in range(150):
            self.press(self.keys.SHIFT + self.keys.TAB if back else "TAB")
            here, seen, what = self.page.run(FOCUS, css)
            if not seen and what not in self.unseen and not what.startswith("<body"):
                self.unseen.append(what)
            if here:
                return
        raise AssertionError(f"{css} is not reached by Tab")


@pytest.fixture
def page(web, driver):
    from tests.notebook.browser import Page

    page = Page(driver, "keys")
    page.open(web)
    page.one("button.kb-run")
    return page


def test_a_walk_with_the_keyboard_alone(page):
    walk = Walker(page)
    runs = lambda: re.search(r"Run (\d+)", page.text(".kb-stage .kb-subject"))  # noqa: E731
    walk.to(".kb-auto input")
    walk.press("SPACE")
    walk.to(".kb-work select")
    walk.press("study gemm")
    page.until(lambda: page.all(".kb-param-m"), "the parameters of the chosen workload")
    walk.to("button.kb-run", back=True)
    walk.press("ENTER")
    page.until(lambda: runs()[1] == "1" and page.all(".kbp-why-row"), "the run")

    walk.to(".kbp-labels")
    walk.press("ARROW_RIGHT")
    for place in ("SIP 0", "Cube 0", "PE 0"):
        walk.press("ENTER")
        page.until(lambda place=place: page.text(".kbp-trail [aria-current]") == place, f"the inside of {place}")
    walk.press("ARROW_RIGHT")
    selected = page.until(lambda: page.all(".kbp-details code")[0].text, "the selected component")
    assert selected.startswith("sip0.cube0.pe0.")
    walk.to(".kbp-field input")
    field = page.run("return document.activeElement.closest('.kbp-field').querySelector('label').textContent")
    walk.press("ARROW_RIGHT")
    page.until(lambda: field in page.text(".kb-machine"), f"another value of {field}")

    walk.to(".kbp-play")
    for name in ("Pause", "Play"):
        walk.press("ENTER")
        page.until(lambda name=name: page.one(".kbp-play").get_attribute("aria-label") == name, name)
    walk.to(".kbp-marks")
    before = page.still(".kbp-timeline-area")
    walk.press("w")
    page.until(lambda: page.still(".kbp-timeline-area") != before, "a larger timeline")
    walk.press("/", "gemm", "ENTER")
    page.until(lambda: page.text(".kbp-matches").startswith("1 of "), "what was searched for")

    walk.to(".kbp-why-slider input")
    walk.press("ARROW_RIGHT")
    page.until(lambda: runs()[1] == "2", "the run with the value of the slider")
    walk.to(".kb-tabs .lm-TabBar-tab")
    walk.press("ARROW_RIGHT", "ENTER")
    page.until(lambda: "of the time" in page.text(".kb-why"), "the reasons")
    walk.press(*["ARROW_RIGHT"] * 4, "ENTER")
    walk.to("button.kb-prepare")
    walk.press("ENTER")
    page.until(lambda: page.all(".kb-file a[download]"), "the file")
    assert not walk.unseen
