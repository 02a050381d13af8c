"""How the served page and an exported one look, in both themes: axe-core is clean, and screenshots are as committed.

Screenshots are committed at half their size. A test compares squares of 32 pixels, blurred: another version of the
browser may place text a little differently, but a panel that moved, an empty canvas, a colour or a word fails. `make
screenshots` renews them; look at each before it is committed.
"""

from __future__ import annotations

import sys
from base64 import b64encode
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFilter

import kernbench as kb
from kernbench.runtime_api.bench_runner import run_program
from kernbench.studies import CclStudy
from kernbench.viz._picture import picture_html
from kernbench.viz._scene import scene_of
from tests.repo import ROOT

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parent / "screenshots"
THEMES = ("light", "dark")
WINDOWS = {1024: 768, 1440: 900, 1920: 1080}
# Seconds of this computer, and hashes, which change with the schema of machine files.
HIDDEN = ".kb-facts, .kb-message, .kb-note, .kb-machine code, .kb-history td:last-child, .kb-widget-readout"
TILE, MOST = 16, 10


def styled(page):
    """Set all text in the fonts that matplotlib brings, whatever is installed, and hide what differs between runs."""
    import matplotlib as mpl

    folder = Path(mpl.get_data_path(), "fonts", "ttf")
    faces = [
        [family, f"url(data:font/ttf;base64,{b64encode((folder / name).read_bytes()).decode()})", weight]
        for family, name, weight in (
            ("plain", "DejaVuSans.ttf", "400"), ("plain", "DejaVuSans-Bold.ttf", "600"),
            ("mono", "DejaVuSansMono.ttf", "400"),
        )
    ]  # fmt: skip
    sheet = f""":root, body {{
      --jp-ui-font-family: plain !important; --jp-content-font-family: plain !important;
      --jp-code-font-family: mono !important;
    }}
    {HIDDEN} {{ visibility: hidden !important; }}
    * {{ transition: none !important; caret-color: transparent !important; }}"""
    page.driver.execute_async_script(
        """const [faces, text, done] = arguments;
        const sheet = document.createElement("style");
        sheet.textContent = text;
        document.head.append(sheet);
        const made = faces.map(([family, source, weight]) => new FontFace(family, source, { weight }));
        for (const face of made) document.fonts.add(face);
        Promise.all(made.map((face) => face.load())).then(() => done());""",
        faces,
        sheet,
    )


def worst_tile(shot, known):
    """Return the largest difference of a square of two pictures, 0 to 255, and where it is [px]."""
    if shot.size != known.size:
        return 255.0, shot.size
    a, b = (np.asarray(x.filter(ImageFilter.BoxBlur(1)), float) for x in (shot, known))
    apart = np.abs(a - b).max(axis=2)
    h, w = (-(-n // TILE) * TILE for n in apart.shape)
    apart = np.pad(apart, ((0, h - apart.shape[0]), (0, w - apart.shape[1])))
    tiles = apart.reshape(h // TILE, TILE, w // TILE, TILE).mean(axis=(1, 3))
    y, x = np.unravel_index(tiles.argmax(), tiles.shape)
    return float(tiles.max()), (int(x) * 2 * TILE, int(y) * 2 * TILE)


@pytest.fixture
def check(request):
    """Compare a picture with the committed one of its name, or renew that."""

    def check(name, shot):
        path, small = FOLDER / f"{name}.png", shot.reduce(2)
        if request.config.getoption("--renew-screenshots"):
            small.save(path, optimize=True)
            return
        worst, place = worst_tile(small, Image.open(path))
        if worst > MOST:
            failed = ROOT / "build" / "screenshots" / f"{name}.png"
            failed.parent.mkdir(parents=True, exist_ok=True)
            shot.save(failed)
        assert worst <= MOST, f"{name} differs at {place}: see build/screenshots; if it is right, `make screenshots`"

    return check


@pytest.fixture(scope="module")
def page(web, driver):
    """The served page after its first run."""
    from tests.notebook.browser import Page

    page = Page(driver, "look")
    page.open(web)
    page.one("button.kb-run")
    styled(page)
    page.click("button.kb-run")
    page.until(lambda: page.all(".kbp-why-row"), "the run, with its critical path")
    yield page
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def themed(page, theme):
    """Give the served page a theme as the server does."""
    sheets = Path(sys.prefix, "share", "jupyter", "nbconvert", "templates", "lab", "static")
    page.run(
        """const sheet = document.getElementById("theme") ?? document.createElement("style");
        Object.assign(sheet, { id: "theme", textContent: arguments[1] });
        document.head.append(sheet);
        document.body.dataset.jpThemeLight = String(arguments[0] === "light");
        document.body.classList.toggle("theme-dark", arguments[0] === "dark");""",
        theme,
        (sheets / f"theme-{theme}.css").read_text("utf-8"),
    )
    page.until_theme(theme)


def test_axe_core_finds_nothing_in_any_tab(page):
    from tests.notebook.browser import TABS

    themed(page, "light")
    found = page.axe("html")
    for tab in TABS:
        page.turn_to(tab)
        found |= page.axe(".kb-tabs")
    themed(page, "dark")
    found |= page.axe("html", "color-contrast")
    for tab in TABS:
        page.turn_to(tab)
        found |= page.axe(".kb-tabs", "color-contrast")
    assert not found


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", WINDOWS)
def test_the_served_page_looks_as_committed(page, check, width, theme):
    themed(page, theme)
    page.turn_to("Runs")
    page.size(width, WINDOWS[width])
    page.run("document.querySelector('.kb-explorer').scrollIntoView(); document.activeElement.blur()")
    page.frame()
    assert page.wide() <= 0
    check(f"page-{width}-{theme}", page.still())


@pytest.mark.parametrize("width", [1024, 700])
def test_what_the_bar_says_moves_nothing(page, width):
    """Times of this computer have more or fewer digits, and a run that is found in the cache has a longer message."""
    page.size(width)
    places = []
    for message, note in (
        ("", "takes about 0.1 s"),
        ("from the cache: simulated 2026-01-01 00:00 " * 4, "takes about 59 min"),
    ):
        page.run(
            """const status = document.querySelector(".kb-status");
            status.querySelector(".kb-facts, .kb-message").className = "kb-message";
            status.querySelector(".kb-message").textContent = arguments[0];
            document.querySelector(".kb-note .widget-html-content").textContent = arguments[1];""",
            message,
            note,
        )  # fmt: skip
        page.frame()
        places.append([page.one(css).rect for css in (".kb-bar", ".kb-now", ".kb-state", ".kb-auto", ".kb-stage")])
    assert places[0] == places[1]


@pytest.fixture(scope="module")
def export(driver, tmp_path_factory):
    """An exported page: a cube at the hottest moment, its busiest part selected, the critical path shown."""
    from tests.notebook.browser import Page

    machine = kb.load("preset:default")
    result = run_program(machine, partial(CclStudy().program, elements=16384, cubes=16, pes=1), log="tile")
    path = tmp_path_factory.mktemp("export") / "run.html"
    path.write_text(picture_html(scene_of(machine, result, offline=True)), "utf-8")
    page = Page(driver, "export")
    page.size(1440, 1800)  # the longest view is seen as a whole
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
@pytest.mark.parametrize("view", ["stage", "timeline", "why"])
def test_a_view_looks_as_committed(export, check, view, theme):
    preferred(export, theme)
    export.run(f"document.querySelector('.kbp-{view}').scrollIntoView({{ block: 'center' }})")
    export.frame()
    check(f"{view}-{theme}", export.still(f".kbp-{view}"))


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
