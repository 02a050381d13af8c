"""First impression: from the click on Run to a finished default run, on the served page and in JupyterLab."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
from selenium.webdriver.common.keys import Keys

from benchmarks.table import Row
from tests.notebook.browser import Page, chromium
from tests.notebook.served import TOKEN, served
from tests.repo import ROOT

TARGET = "3 s"

# Presses Run; answers with the time until each phase can be seen [s].
MEASURE = """
const done = arguments[0], at = {}, begin = performance.now();
const shown = (css) => Boolean(document.querySelector(css)?.checkVisibility());
const phases = {
  "first answer": () => document.querySelector(".kb-pill b").textContent !== "ready",
  "run ends": () => document.querySelector(".kb-pill b").textContent === "done",
  "machine with loads": () => shown(".kbp-clock") && !document.querySelector(".kbp-picture.kbp-live"),
  "critical path": () => shown(".kbp-thread"),
  "where the time goes": () => shown(".kbp-why-row"),
  "row of the history": () => shown(".kb-history tbody tr"),
};
const look = () => {
  for (const [name, reached] of Object.entries(phases))
    if (!(name in at) && reached()) at[name] = (performance.now() - begin) / 1000;
  if (Object.keys(at).length === Object.keys(phases).length) done(Object.entries(at).sort(([, a], [, b]) => a - b));
  else requestAnimationFrame(look);
};
document.querySelector("button.kb-run").click();
look();
"""


def measure() -> Iterator[Row]:
    """Yield the wall time from the click to each phase, then the CPU time."""
    for name, opened in (("served page", _page), ("JupyterLab", _lab)):
        with TemporaryDirectory() as folder, opened(Path(folder)) as page:
            me = psutil.Process()
            page.driver.set_script_timeout(60)
            before = _cpu_s(me)
            phases: list[tuple[str, float]] = page.driver.execute_async_script(MEASURE)
            used = _cpu_s(me) - before
            for phase, seconds in phases:
                yield Row(f"first run, {name}: click to {phase}", seconds, target=TARGET)
            yield Row(f"first run, {name}: CPU of kernel, server and browser", used)


def _cpu_s(process: psutil.Process) -> float:
    """Return the CPU time of what a process has started [s]."""
    times = [x.cpu_times() for x in process.children(recursive=True)]
    return sum(x.user + x.system for x in times)


@contextmanager
def _page(folder: Path) -> Iterator[Page]:
    with served("web", folder) as address, chromium() as driver:
        page = Page(driver, "first")
        page.open(f"{address}/?token={TOKEN}")
        page.one("button.kb-run")
        page.until(lambda: page.all(".kbp-invite"), "the picture")
        yield page


@contextmanager
def _lab(folder: Path) -> Iterator[Page]:
    checkout = folder / "checkout"
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(checkout)], check=True)
    with served("lab", folder, cwd=checkout) as address, chromium() as driver:
        page = Page(driver, "first")
        page.open(f"{address}/lab/tree/notebooks/explorer.ipynb?reset&token={TOKEN}")
        page.until(lambda: "Idle" in page.text("#jp-main-statusbar"), "a kernel")
        page.click(".jp-Notebook .jp-CodeCell .jp-InputArea-editor")
        page.one(".jp-Notebook .jp-CodeCell .cm-content").send_keys(Keys.SHIFT, Keys.ENTER)
        page.one("button.kb-run")
        page.until(lambda: page.all(".kbp-invite"), "the picture")
        yield page
