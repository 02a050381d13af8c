"""How an exported page looks, in both themes, without a server: as the committed screenshots."""

from __future__ import annotations

import re
from functools import partial

import pytest

import kernbench as kb
from kernbench.runtime_api.bench_runner import run_program
from kernbench.studies import CclStudy
from kernbench.viz._picture import picture_html
from kernbench.viz._scene import scene_of
from tests.notebook.looks import MOST, THEMES, compare, styled, taken, worst_tile
from tests.notebook.test_browser import ANSWER, WINDOWS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def export(driver, tmp_path_factory):
    """An exported page: a cube at the hottest moment, its busiest part selected, the critical path shown."""
    from tests.notebook.browser import Page

    machine = kb.load("preset:default")
    result = run_program(machine, partial(CclStudy().program, elements=16384, cubes=16, pes=1), log="tile")
    path = tmp_path_factory.mktemp("export") / "run.html"
    path.write_text(picture_html(scene_of(machine, result, offline=True)), "utf-8")
    page = Page(driver, "export")
    page.size(1440, 1800)
    driver.execute_cdp_cmd("Page.setBypassCSP", {"enabled": True})  # else it loads no font
    page.open(path.as_uri())
    page.until(lambda: page.run("return window.__kb_redraws?.timeline"), "the timeline")
    styled(page)
    page.run(
        """const { machine, shared } = __kb_picture;
        shared.path = true;
        shared.window = [780, 1320];
        machine.lookAt(machine.locate("sip1.cube0").rect, false);
        shared.selected = "sip1.cube0.pe0.pe_ipcq";
        const slider = document.querySelector(".kbp-why-row input");
        slider.value = slider.max;
        slider.dispatchEvent(new Event("input", { bubbles: true }));
        document.querySelectorAll(".kbp-why details").forEach((details) => (details.open = true));"""
    )
    yield page
    driver.execute_cdp_cmd("Page.setBypassCSP", {"enabled": False})
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def preferred(page, theme):
    """Let the browser prefer a theme, which an exported page follows."""
    features = [{"name": "prefers-color-scheme", "value": theme}]
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    page.until_theme(theme)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", WINDOWS)
def test_the_answer_is_on_one_screen(export, width, theme):
    preferred(export, theme)
    selected = export.run("return __kb_picture.shared.selected")
    export.run("__kb_picture.shared.selected = null")
    export.size(width, WINDOWS[width])
    export.run("scrollTo(0, 0)")
    export.frame()
    assert (export.wide(), export.wide(".kbp-side")) == (0, 0)
    assert [css for css in ANSWER if not export.seen(css)] == []
    assert re.fullmatch(r"[A-Z].*\n.*\n[\d,.]+ ns", export.text(".kbp-owner")), "whose turn it is"
    export.run("__kb_picture.shared.selected = arguments[0]", selected)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("view", ["stage", "timeline", "why"])
def test_a_view_looks_as_committed(export, renew, view, theme):
    preferred(export, theme)
    export.size(500 if view == "why" else 1440, 1800)  # the longest view is seen as a whole
    selected = export.run("return __kb_picture.shared.selected")
    export.run("__kb_picture.timeline.place.scroll = 0; __kb_picture.shared.selected = null")
    export.frame()
    export.run("__kb_picture.shared.selected = arguments[0]", selected)  # the timeline scrolls to it
    export.frame()
    export.run(f"document.querySelector('.kbp-{view}').scrollIntoView({{ block: 'center' }})")
    compare(f"{view}-{theme}", taken(export, f".kbp-{view}"), renew=renew)


def test_a_page_with_the_colours_of_vs_code_alone_is_dark(export):
    preferred(export, "light")
    export.run("document.body.style.setProperty('--vscode-editor-background', '#1e1e1e')")
    export.until_theme("dark")
    colour = "return getComputedStyle(document.querySelector('.kbp-picture')).backgroundColor"
    assert export.run(colour) == "rgb(30, 30, 30)"
    assert not export.axe(".kbp-picture", "color-contrast")
    export.run("document.body.style.removeProperty('--vscode-editor-background')")


def test_a_moved_panel_an_empty_canvas_and_a_colour_are_noticed(export):
    css = ".kbp-stage"
    export.size(1440, 1800)
    export.run(f"document.querySelector('{css}').scrollIntoView({{ block: 'center' }})")
    export.frame()
    known = export.still(css).reduce(2)
    wrong = {
        "a panel that moved": ".kbp-details { transform: translateX(8px) }",
        "an empty canvas": ".kbp-heat { visibility: hidden }",
        "a colour": ".kbp-details h3 { color: #c00 !important }",
        "a line without its text": ".kbp-place { visibility: hidden }",
    }
    for name, rule in wrong.items():
        export.run(
            """const sheet = document.createElement("style");
            document.head.append(Object.assign(sheet, { id: "wrong", textContent: arguments[0] }));""",
            rule,
        )
        export.frame()
        worst, _ = worst_tile(export.still(css).reduce(2), known)
        export.run("document.getElementById('wrong').remove()")
        assert worst > MOST, name
    export.frame()
    assert worst_tile(export.still(css).reduce(2), known)[0] < 1
