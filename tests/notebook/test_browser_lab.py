"""The explorer in JupyterLab and Notebook 7, in a real browser. Screenshots are in build/screenshots."""

from __future__ import annotations

import re

import pytest

from tests.notebook.served import TOKEN
from tests.repo import ROOT

pytestmark = pytest.mark.slow


def found_by_axe(page):
    """Return what axe-core finds in the explorer, not in JupyterLab, with each of its tabs, in both themes."""
    from tests.notebook.browser import TABS

    found = {}
    for theme, rules in (("Dark", ("color-contrast",)), ("Light", ())):
        page.heading(".lm-MenuBar-item", "Settings")
        page.heading(".lm-Menu-item", "Theme")
        page.heading(".lm-Menu-item", f"JupyterLab {theme}")
        page.until_theme(theme.lower())
        found |= page.axe(".kb-explorer", *rules)
        for tab in TABS:
            page.turn_to(tab)
            found |= page.axe(".kb-tabs", *rules)
    return found


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
    machine, clock = (page.one(css).rect for css in (".kbp-machine", ".kbp-clock"))
    assert clock["y"] < machine["y"] + machine["height"] + 40, "in a narrow page, too, the clock is below the machine"
    assert not found_by_axe(page)
    page.one(".jp-Notebook .jp-CodeCell .cm-content").send_keys(Keys.CONTROL, "s")
    page.until(lambda: copy.read_bytes() != before, "the copy, saved with what it shows")
    original = places["lab folder"] / "notebooks"
    assert [x.name for x in original.iterdir()] == ["explorer.ipynb"]
    assert (original / "explorer.ipynb").read_bytes() == (ROOT / "notebooks" / "explorer.ipynb").read_bytes()
