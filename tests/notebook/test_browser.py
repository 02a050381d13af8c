"""The served page in a real browser, used from its first run on: what it shows, how it looks, what hands and keys do.

The tests share one page, in the order of this file. Screenshots are in build/screenshots.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.notebook.looks import THEMES, compare, styled, taken

pytestmark = pytest.mark.slow

WINDOWS = {390: 844, 1024: 768, 1440: 900, 1920: 1080}
ANSWER = (".kbp-machine", ".kbp-clock", ".kbp-why-row")  # on one screen


@pytest.fixture(scope="module")
def page(web, driver):
    from tests.notebook.browser import Page

    page = Page(driver, "page")
    page.open(web)
    page.one("button.kb-run")
    styled(page)
    return page


@pytest.fixture
def sized(page):
    """Give the page a window of a size [px], for one test."""
    yield page.size
    page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


RUNS = ".kb-runs-table tbody tr"


def status(page) -> str:
    return page.text(".kb-pill b")


def latency(page) -> str:
    return re.search(r"[\d,.]+ ns$", page.text(".kb-stage .kb-subject"))[0]


def run_number(page) -> int:
    return int(re.search(r"Run (\d+)", page.text(".kb-stage .kb-subject"))[1])


def test_first_run_shows_its_time_and_why(page):
    page.shot("1-opened")
    assert "Nothing has run yet" in page.text(".kb-tabs")
    assert not page.all(".kb-history table, .kb-both, .kb-tabs button")
    page.click("button.kb-run")
    page.until(lambda: re.search(r"Run 1 .* [\d,.]+ ns", page.text(".kb-stage .kb-subject")), "the run, named")
    page.until(lambda: page.all(".kbp-why-row"), "its critical path")
    page.turn_to("Why")
    page.until(lambda: "of the time" in page.text(".kb-why"), "reasons")
    page.shot("2-run")
    assert page.wide() <= 0


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


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", WINDOWS)
def test_the_served_page_looks_as_committed(page, sized, renew, width, theme):
    themed(page, theme)
    page.turn_to("Runs")
    sized(width, WINDOWS[width])
    page.run("document.querySelector('.kb-explorer').scrollIntoView(); document.activeElement.blur()")
    page.frame()
    assert page.wide() <= 0
    assert [css for css in ANSWER if not page.seen(css)] == []
    compare(f"page-{width}-{theme}", taken(page), renew=renew)


def test_a_chart_is_as_wide_as_its_tab(page):
    page.turn_to("Roofline")
    tab = page.one(".kb-tabs").rect["width"]
    page.until(lambda: page.one(".kb-chart svg").rect["width"] == pytest.approx(tab, abs=2), "the chart")


@pytest.mark.parametrize("width", [1024, 700, 580])
def test_nothing_is_cut_off(page, sized, width):
    sized(width)
    assert page.wide(".kb-explorer") <= 0
    assert page.wide(".kb-cube-pe_layout-corners input") <= 0


@pytest.mark.parametrize("width", [1024, 700])
def test_what_the_bar_says_moves_nothing(page, sized, width):
    """Times of this computer have more or fewer digits, and a run that is found in the cache has a longer message."""
    sized(width)
    places = []
    for message in ("", "from the cache: simulated 2026-01-01 00:00 " * 4):
        page.run(
            """const status = document.querySelector(".kb-status");
            status.querySelector(".kb-facts, .kb-message").className = "kb-message";
            status.querySelector(".kb-message").textContent = arguments[0];""",
            message,
        )
        page.frame()
        places.append([page.one(css).rect for css in (".kb-bar", ".kb-now", ".kb-state", ".kb-auto", ".kb-stage")])
    assert places[0] == places[1]


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
            if not seen:  # what is drawn meanwhile may have moved it
                self.page.frame()
                here, seen, what = self.page.run(FOCUS, css)
            if not seen and what not in self.unseen and not what.startswith("<body"):
                self.unseen.append(what)
            if here:
                return
        raise AssertionError(f"{css} is not reached by Tab")


def test_a_walk_with_the_keyboard_alone(page):
    walk = Walker(page)
    first = run_number(page)
    walk.to(".kb-auto input")
    walk.press("SPACE")
    walk.to(".kb-work select")
    walk.press("study gemm")
    page.until(lambda: page.all(".kb-param-m"), "the parameters of the chosen workload")
    walk.to("button.kb-run", back=True)
    walk.press("ENTER")
    page.until(lambda: run_number(page) == first + 1 and latency(page) in page.text(".kbp-why > h3 + p"), "the run")

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
    page.frame()
    before = page.still(".kbp-timeline-area")
    walk.press("w")
    page.until(lambda: page.still(".kbp-timeline-area") != before, "a larger timeline")
    walk.press("/", "gemm", "ENTER")
    page.until(lambda: page.text(".kbp-matches").startswith("1 of "), "what was searched for")

    walk.to(".kbp-why-slider input", back=True)
    walk.press("ARROW_RIGHT")
    page.until(lambda: run_number(page) == first + 2, "the run with the value of the slider")
    walk.to(".kb-tabs .lm-TabBar-tab")
    walk.press("ARROW_RIGHT", "ENTER")
    page.until(lambda: "of the time" in page.text(".kb-why"), "the reasons")
    walk.press(*["ARROW_RIGHT"] * 4, "ENTER")
    walk.to("button.kb-prepare")
    walk.press("ENTER")
    page.until(lambda: page.all(".kb-file a[download]"), "the file")
    assert not walk.unseen


@pytest.fixture
def small(page):
    """The page after a small matrix product on the default machine."""
    first = run_number(page)
    page.click("button[title='All values as in the file']")
    for name in "mkn":
        page.type(f".kb-param-{name}", "64")
    page.until(lambda: page.one("button.kb-run").is_enabled(), "Run")
    page.click("button.kb-run")
    page.until(lambda: run_number(page) == first + 1, "the run")
    page.until(lambda: latency(page) in page.text(".kbp-why > h3 + p"), "its critical path")


def drag(page, slider, to):
    """Move a slider to its end, without releasing it."""
    page.driver.execute_script(
        "const s = arguments[0]; s.value = s[arguments[1]]; s.dispatchEvent(new Event('input'))", slider, to
    )


def release(page, slider):
    page.driver.execute_script("arguments[0].dispatchEvent(new Event('change'))", slider)


def number(text):
    return float(text.replace(",", ""))


def told(page, predicted):
    """Read the line about the run: its time is that of the run, the prediction the one that was shown."""
    line = page.one(".kbp-outcome").text.replace("\u2212", "-")
    found = re.fullmatch(
        r"Simulated: ([\d,.]+) ns instead of ([\d,.]+) ns\. Predicted: ([\d,.]+) ns, an error of ([+-]?[\d.]+) %\.",
        line,
    )
    assert found, line
    simulated, before, said, error = found.groups()
    assert said == predicted
    assert f"{simulated} ns" in page.text(".kb-stage .kb-subject")
    assert simulated != before
    assert number(error) == pytest.approx(100 * (number(said) / number(simulated) - 1), abs=0.06)


def prediction(said):
    """Wait for the prediction in an element, and return its time."""
    return lambda: re.match(r"Prediction: ([\d,.]+) ns \(", said.text)[1]


@pytest.mark.usefixtures("small")
def test_a_reason_is_dragged_beyond_the_table(page):
    slider = page.one(".kbp-why-row input")
    drag(page, slider, "max")
    predicted = page.until(prediction(page.one(".kbp-why-said")), "the prediction")
    assert not page.all(".kbp-outcome")
    release(page, slider)
    told(page, predicted)
    page.shot("3-reason")


@pytest.mark.usefixtures("small")
def test_a_field_of_a_component_is_dragged_set_and_run(page):
    page.click(".kbp-why-name")
    field = page.until(lambda: next(x for x in page.all(".kbp-field") if "HBM bandwidth" in x.text), "the field")
    slider, said = (field.find_element("css selector", css) for css in ("input", ".kbp-field-said"))
    drag(page, slider, "min")
    predicted = page.until(prediction(said), "the prediction")
    release(page, slider)
    page.until(lambda: "former settings" in page.text(".kb-subject"), "an outdated result")
    assert not page.all(".kbp-outcome")
    page.click("button.kb-run")
    told(page, predicted)
    page.shot("4-field")


def test_machine_is_changed_broken_and_mended(page):
    page.choose(".kb-group", "System")
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
    lines = ".kb-parallel svg .mark-line path"
    page.until(lambda: len(page.all(lines)) == len(page.all(RUNS)) >= 2, "a line for each run of the workload")
    assert not page.severe()
    page.shot("5-compared")
    assert page.wide() <= 0


def filtered(page, text: str) -> list[float]:
    """Return the times [ns] of the runs that meet a filter."""
    cells = page.run(
        """const filter = document.querySelector(".kb-filter");
        filter.value = arguments[0];
        filter.dispatchEvent(new Event("input"));
        return [...document.querySelectorAll(arguments[1])].map((cell) => cell.textContent);""",
        text,
        f"{RUNS} [data-of=latency_ns]",
    )
    return [number(cell) for cell in cells]


def test_five_runs_are_filtered_and_named_and_run_and_time_stay_in_sight(page, sized):
    for bandwidth in ("8", "24", "28", "12"):
        before = len(page.all(RUNS))
        page.type(".kb-cube-hbm-channel_bw_gbs", bandwidth)
        page.until(lambda text=f"{bandwidth}.0": text in page.text(".kb-machine"), "the change")
        page.until(
            lambda n=before: (status(page) == "done" and len(page.all(RUNS)) > n) or page.click("button.kb-run"),
            "its run",
        )
    times = filtered(page, "")
    distinct = sorted(set(times))
    limit = (distinct[1] + distinct[2]) / 2  # the filter compares times that are not rounded
    assert len(distinct) >= 5
    assert filtered(page, f"time < {limit}, hbm > 1") == [x for x in times if x < limit]
    assert filtered(page, "no such text") == []
    assert "No run meets the filter" in page.text(".kb-history")
    filtered(page, "")
    page.type(f"{RUNS}:last-child td[data-of=label]", "the first")
    page.until(lambda: len(filtered(page, "the first")) == 1, "the run by its name")
    filtered(page, "")
    sized(390)
    page.run("document.querySelector('.kb-runs').scrollLeft = 200")
    page.frame()
    left = page.one(".kb-runs").rect["x"]
    run, time, name = (page.one(f"{RUNS} [data-of={key}]").rect["x"] for key in ("run", "latency_ns", "label"))
    assert left < run < time
    assert name < time, "scrolled below the others"
    assert page.wide() <= 0
    page.shot("6-five-runs")
    assert not page.severe()


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
        seen.append(page.text(".kb-now"))
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


def test_a_visitor_without_the_token_sees_nothing(web):
    import urllib.request

    with urllib.request.urlopen(web.partition("?")[0]) as answer:
        assert b"kb-explorer" not in answer.read()
        assert "login" in answer.url


def test_the_page_asks_nobody_else_for_anything(page, web):
    urls = page.requests()
    assert urls
    assert not [url for url in urls if not url.startswith((web.partition("?")[0], "data:", "blob:"))]


@pytest.mark.parametrize("width", [390, 1440])
def test_the_report_of_five_runs_fits_a_window(driver, tmp_path, width):
    import kernbench as kb
    from tests.notebook.browser import Page

    machine = kb.load("preset:small")
    runs = [kb.run("gemm-single-pe", machine.with_({"system.pcie.latency_ns": ns})).result for ns in range(20, 120, 20)]
    page = Page(driver, "report")
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    )
    page.open(kb.report(runs).save(tmp_path / "report.html").as_uri())
    assert len(page.all(".kb-bar")) == 5
    assert page.wide() <= 0
    assert not page.axe("html")
    page.shot(f"{width}")
    assert not page.severe()
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
