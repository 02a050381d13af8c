"""What tests do with a real browser."""

from __future__ import annotations

import shutil
from base64 import b64decode
from contextlib import contextmanager
from io import BytesIO

from PIL import Image
from selenium import webdriver
from selenium.common.exceptions import TimeoutException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from tests.notebook.served import LONG_S, answers
from tests.repo import ROOT

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
SHOTS = ROOT / "build" / "screenshots"
TABS = ("Runs", "Why", "Stages", "Output", "Roofline", "Export")
AXE = ROOT / "tests" / "notebook" / "axe-core" / "axe.min.js"
_ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--window-size=1280,1400",
)  # fmt: skip


@contextmanager
def chromium():
    """A headless chromium; it knows no proxy and asks nobody for updates."""
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    options.set_capability("goog:loggingPrefs", {"browser": "SEVERE"})
    for argument in _ARGUMENTS:
        options.add_argument(argument)
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    driver.set_script_timeout(LONG_S)
    try:
        yield driver
    finally:
        driver.quit()


# The elements of a kind that are seen; the text of each.
_SEEN = """const seen = [...document.querySelectorAll(arguments[0])].filter((x) =>
  x.checkVisibility({ opacityProperty: true, visibilityProperty: true }) && x.getClientRects().length);"""
_TEXT = "seen.map((x) => x.innerText.trim())"


class Page:
    """What a user does and sees."""

    def __init__(self, driver, shots: str) -> None:
        self.driver, self._shots = driver, shots

    def open(self, address: str) -> None:
        """Go there, once the server answers."""
        if address.startswith("http"):
            WebDriverWait(self.driver, LONG_S, 0.2).until(lambda _: answers(address))
        self.driver.get("about:blank")  # the page before may still ask for something
        self.severe()
        self.driver.get(address)

    def requests(self) -> set[str]:
        """Return what the page has asked for: the first 250 addresses."""
        return set(self.run("return performance.getEntriesByType('resource').map((entry) => entry.name)"))

    def severe(self) -> list[str]:
        """Return the errors on the console since the page was opened, or since the last call."""
        return [x["message"] for x in self.driver.get_log("browser")]

    def run(self, script: str, *arguments):
        """Return the value of a script."""
        return self.driver.execute_script(script, *arguments)

    def frame(self) -> None:
        """Wait until what was changed is drawn."""
        self.driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(() => arguments[0]()))")

    def all(self, css: str):
        """Return the elements that are seen; like the text of all of them, in one question to the browser."""
        return self.run(f"{_SEEN} return seen;", css)

    def until(self, condition, what: str = ""):
        """Wait for a condition, polled; a stale or missing element is asked for again."""
        wait = WebDriverWait(self.driver, LONG_S, 0.05, ignored_exceptions=(Exception,))
        try:
            return wait.until(lambda _: condition())
        except TimeoutException:
            self.shot("failed")
            shown = " ".join(self.run(f"{_SEEN} return {_TEXT};", ".kb-status"))
            raise AssertionError(f"waited for {what} in vain; {shown!r} is shown, see build/screenshots") from None

    def one(self, css: str):
        return self.until(lambda: self.all(css)[0], css)

    def text(self, css: str) -> str:
        return self.until(lambda: " ".join(self.run(f"{_SEEN} return {_TEXT};", css)) or " ", css)

    def click(self, css: str) -> None:
        def act():
            self.all(css)[0].click()
            return True

        self.until(act, f"to click {css}")

    def type(self, css: str, text: str) -> None:
        field = self.one(f"{css} input")
        field.send_keys(Keys.CONTROL, "a")
        field.send_keys(text + Keys.TAB)

    def choose(self, css: str, text: str) -> None:
        Select(self.one(f"{css} select")).select_by_visible_text(text)

    def heading(self, css: str, text: str) -> None:
        """Click a heading of an accordion or tab."""
        found = f"{_SEEN} return seen[{_TEXT}.findIndex((said) => said.includes(arguments[1]))];"
        self.until(lambda: self.run(found, css, text).click() or True, text)

    def turn_to(self, tab: str) -> None:
        """Open a tab of the explorer."""
        self.heading(".kb-tabs .lm-TabBar-tab", tab)
        self.until(lambda: "drawing ..." not in self.text(".kb-tabs"), f"the tab {tab}")
        self.frame()

    def until_theme(self, theme: str) -> None:
        """Wait until the picture has the theme of the page around it."""
        self.until(lambda: self.run("return document.querySelector('.kbp-picture').dataset.kbpTheme") == theme, theme)

    def shot(self, name: str) -> None:
        SHOTS.mkdir(parents=True, exist_ok=True)
        self.driver.save_screenshot(str(SHOTS / f"{self._shots}-{name}.png"))

    def size(self, width: int, height: int = 900) -> None:
        """Give the page a window of this size [px]."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self.frame()

    def seen(self, css: str) -> bool:
        """Whether all of an element is seen: in the window and in what scrolls around it, with nothing before it."""
        corners = """const at = document.querySelector(arguments[0]), box = at.getBoundingClientRect();
            return [[box.left + 8, box.top + 8], [box.right - 8, box.bottom - 8]].every(
              ([x, y]) => at.contains(document.elementFromPoint(x, y)));"""
        return self.run(corners, css)

    def still(self, css: str = "") -> Image.Image:
        """Return a picture of an element, or of what the window shows."""
        clip = {}
        if css:
            box = "const { x, y, width, height } = document.querySelector(arguments[0]).getBoundingClientRect();"
            clip = {
                "clip": self.run(f"{box} return {{ x: x + scrollX, y: y + scrollY, width, height, scale: 1 }};", css)
            }
        taken = self.driver.execute_cdp_cmd("Page.captureScreenshot", clip)
        return Image.open(BytesIO(b64decode(taken["data"]))).convert("RGB")

    def axe(self, css: str, *rules: str) -> dict[str, list[str]]:
        """Return what axe-core finds inside an element, by all rules or some: by rule, what it is and where."""
        if not self.run("return Boolean(window.axe)"):
            self.run(AXE.read_text("utf-8"))
        found = self.driver.execute_async_script(
            """const [css, rules, done] = arguments;
            const options = { resultTypes: ["violations"], ...(rules.length && { runOnly: rules }) };
            axe.run({ include: [[css]] }, options).then((result) => done(result.violations));""",
            css,
            rules,
        )
        return {x["id"]: [f"{x['help']}: {node['html'][:200]}" for node in x["nodes"]] for x in found}

    def wide(self, css: str = "html") -> int:
        """How far the page, or what is in an element, reaches beyond it to the right [px]."""
        return self.run("const at = document.querySelector(arguments[0]); return at.scrollWidth - at.clientWidth;", css)
