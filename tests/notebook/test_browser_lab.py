"""The explorer in JupyterLab and Notebook 7, in a real browser. Screenshots are in build/screenshots."""

from __future__ import annotations

import json
import random
import re
import subprocess
import urllib.request

import pytest

from tests.notebook.served import TOKEN
from tests.notebook.test_browser import ANSWER

pytestmark = pytest.mark.slow


def status(checkout):
    """Return what git says that has changed in a checkout."""
    git = ["git", "-c", "safe.directory=*", "status", "--porcelain"]
    return subprocess.run(git, cwd=checkout, check=True, capture_output=True, text=True).stdout


def connected(address):
    """Whether a page is connected with a kernel: before that, it does not run a cell."""
    with urllib.request.urlopen(f"{address}/api/kernels?token={TOKEN}") as answer:
        return any(kernel["connections"] for kernel in json.load(answer))


def start(page, address, path):
    """Open the notebook and run its cell, by key."""
    from selenium.webdriver.common.keys import Keys

    page.open(f"{address}/{path}/notebooks/explorer.ipynb?reset&token={TOKEN}")
    page.until(lambda: connected(address), "a kernel that the page is connected with")
    page.click(".jp-Notebook .jp-CodeCell .jp-InputArea-editor")
    page.one(".jp-Notebook .jp-CodeCell .cm-content").send_keys(Keys.SHIFT, Keys.ENTER)
    page.one("button.kb-run")


def found_by_axe(page, theme):
    """Return what axe-core finds in a theme in the explorer, not in JupyterLab; of its tabs, in their colours."""
    from tests.notebook.browser import TABS

    page.heading(".lm-MenuBar-item", "Settings")
    page.heading(".lm-Menu-item", "Theme")
    page.heading(".lm-Menu-item", f"JupyterLab {theme}")
    page.until_theme(theme.lower())
    found = page.axe(".kb-explorer")
    for tab in TABS:
        page.turn_to(tab)
        found |= page.axe(".kb-tabs", "color-contrast")
        if tab == "Why":
            said, room = (page.one(css).rect["width"] for css in (".kb-reasons", ".kb-tabs"))
            assert said <= room, "the reasons are read without scrolling"
    return found


def arrows_move(page, css):
    """Arrow keys move a slider that has the focus, which stays there; no front end takes them away."""
    from selenium.webdriver.common.keys import Keys

    page.run("document.querySelector(arguments[0]).focus()", css)
    value = int(page.one(css).get_property("value"))
    for key, by in ((Keys.ARROW_RIGHT, 1), (Keys.ARROW_UP, 2), (Keys.ARROW_LEFT, 1)):
        page.driver.switch_to.active_element.send_keys(key)
        assert int(page.one(css).get_property("value")) == value + by
        assert page.driver.switch_to.active_element == page.one(css)


# All rules in all tabs and both themes: test_browser.py. Here the style sheets of the front ends are added.
@pytest.mark.parametrize(("name", "path", "theme"), [("notebook", "notebooks", "Light"), ("lab", "lab/tree", "Dark")])
def test_first_run_in_notebook_7_and_jupyterlab(lab, driver, name, path, theme):
    """Three clicks: into the cell, on its run button (here its key), on Run."""
    from selenium.webdriver.common.keys import Keys

    from tests.notebook.browser import Page

    page, (address, checkout) = Page(driver, name), lab
    copy = checkout / "lab" / "notebooks" / "explorer.ipynb"
    before = copy.read_bytes() if copy.exists() else b""
    start(page, address, path)
    page.click("button.kb-run")
    number = 1 if name == "notebook" else 3  # the history of the first front end is in the cache
    named = rf"Run {number} .* [\d,.]+ ns"
    page.until(lambda: re.search(named, page.text(".kb-stage .kb-subject")), "the run, named")
    page.shot("1-run")
    assert page.wide() <= 0
    page.one(".kbp-why-row")
    for width, height in ((1440, 900), (1024, 768)):
        page.size(width, height)
        page.run("document.querySelector('.kb-explorer').scrollIntoView()")
        page.frame()
        assert [css for css in ANSWER if not page.seen(css)] == [], f"on one screen, {width} wide"
        page.shot(f"{width}")
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    arrows_move(page, ".kbp-why-row input[type=range]")
    page.until(lambda: page.text(".kb-stage .kb-subject").startswith(f"Run {number + 1} "), "the run of the slider")
    cells = len(page.all(".jp-Cell"))
    for css in (".kbp-marks", "button.kb-run"):
        page.run("document.querySelector(arguments[0]).focus()", css)
        page.driver.switch_to.active_element.send_keys("a", "b", "d", "d")
    assert len(page.all(".jp-Cell")) == cells, "letters are no commands of the notebook"
    assert not found_by_axe(page, theme)
    page.one(".jp-Notebook .jp-CodeCell .cm-content").send_keys(Keys.CONTROL, "s")
    page.until(lambda: copy.read_bytes() != before, "the copy, saved with what it shows")
    assert status(checkout) == ""


# What a user does with controls: kinds of controls, by chance; a value, a key or a place by chance. A frame for each.
ACT = """
const [chances, done] = arguments, root = document.querySelector(".kb-explorer"), shares = new Set();
const act = (which, how) => {
  const all = [...root.querySelectorAll(
  "input, select, button, summary, canvas[tabindex], .lm-TabBar-tab, [role=slider], .kbp-chart, a[download]")];
const shown = all.filter((x) => !x.disabled && x.type !== "file" && x.checkVisibility() && !x.matches(".kbp-perfetto, .kbp-open"));
const at = shown[Math.floor(which * shown.length)], pick = (list) => list[Math.floor(how * list.length)];
const box = at.getBoundingClientRect();
const place = { bubbles: true, cancelable: true, button: 0, pointerId: 1,
  clientX: box.left + how * box.width, clientY: box.top + ((7 * how) % 1) * box.height };
const say = (...names) => names.forEach((name) => at.dispatchEvent(new Event(name, { bubbles: true })));
const press = (key) => at.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
if (at.matches("select")) {
  at.selectedIndex = Math.floor(how * at.options.length);
  say("input", "change");
} else if (at.type === "range") {
  at.value = Number(at.min) + how * (at.max - at.min);
  say("input", "change");
} else if (at.matches("[type=text], [type=search]")) {
  at.focus();
  at.value = pick([at.value, at.value, "1", "2", "many", ""]);
  say("input", "change");
  press("Enter");
} else if (at.matches("canvas, svg, [role=slider]")) {
  at.focus?.();
  press(pick(["ArrowLeft", "ArrowRight", "ArrowDown", "Enter", "Escape", "+", "-", "0", "f", "Home", " "]));
  at.dispatchEvent(new WheelEvent("wheel", { ...place, deltaY: 400 * how - 200 }));
  if (at.matches("canvas")) for (const name of ["pointermove", "pointercancel"]) at.dispatchEvent(new PointerEvent(name, place));
} else {
  for (const name of ["pointerdown", "pointerup"]) at.dispatchEvent(new PointerEvent(name, place));
  at.click();
}
for (const { textContent } of root.querySelectorAll(".kbp-share, .kbp-facts, .kbp-tip"))
  for (const found of textContent.matchAll(/([\\d.,]+) %/g)) shares.add(Number(found[1]));
return at.outerHTML.slice(0, 120);
};
const acts = [];
const next = () => {
  if (acts.length === chances.length) return done([acts, [...shares]]);
  acts.push(act(...chances[acts.length]));
  requestAnimationFrame(() => setTimeout(next));
};
next();
"""  # noqa: E501


def test_two_hundred_actions_leave_the_checkout_clean_and_no_share_above_all(lab, driver):
    """In JupyterLab, on the page of the test before."""
    from tests.notebook.browser import Page

    page, (address, checkout) = Page(driver, "actions"), lab
    chance, done, shares = random.Random(0), [], set()
    driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "deny"})
    if "/lab/tree/" not in driver.current_url:
        start(page, address, "lab/tree")
    # anywidget gives a module two seconds to load, however busy this computer is; of a chart it is 0.9 MB.
    page.run("const limit = AbortSignal.timeout; AbortSignal.timeout = (ms) => limit(Math.max(ms, 60_000));")
    page.choose(".kb-source", "preset:small")
    page.choose(".kb-work", "study gemm")
    page.until(lambda: page.all(".kb-param-m"), "the parameters of the workload")
    page.click("button.kb-run")
    page.until(lambda: page.all(".kbp-why-row"), "the first run")
    for _ in range(8):
        acts, seen = driver.execute_async_script(ACT, [(chance.random(), chance.random()) for _ in range(25)])
        done += acts
        shares.update(seen)
    for work, parameter in (("study ccl", "elements"), ("study gemm", "m")):  # answered after all that was done
        page.choose(".kb-work", work)
        page.until(lambda css=f".kb-param-{parameter}": page.all(css), "the parameters of another workload")
    if page.one("button.kb-cancel").is_enabled():
        page.click("button.kb-cancel")
    page.until(lambda: not page.one("button.kb-cancel").is_enabled(), "the end of the last run")
    assert len(done) == 200
    assert len(set(done)) > 60, "many controls"
    assert shares
    assert max(shares) <= 100
    assert not [text for text in page.severe() if "Uncaught" in text or "anywidget" in text]
    assert list((checkout / "lab").rglob("*.ipynb"))
    assert status(checkout) == ""
