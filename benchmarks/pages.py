"""The picture in a real browser: frames per second on 64 SIPs with 8,192 PEs, all of them busy, at each zoom level."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
import psutil

from benchmarks.table import Row
from kernbench.topology.builder import resolve_topology
from kernbench.viz._picture import picture_html
from kernbench.viz._scene import Scene, scene
from tests.notebook.browser import Page, chromium

if TYPE_CHECKING:
    from selenium.webdriver.chrome.webdriver import WebDriver

LEVELS = {
    "all SIPs": "machine.home(false)",
    "a quarter of the SIPs": "machine.home(false); machine.zoomBy(2)",
    "a SIP": "machine.lookAt(machine.locate('sip27').rect, false)",
    "a cube": "machine.lookAt(machine.locate('sip27.cube5').rect, false)",
    "a PE": "machine.lookAt(machine.locate('sip27.cube5.pe3').rect, false)",
}
CHANGES = {
    "drag": "machine.panBy(frames % 2 ? 5 : -5, 0)",
    "replay": "shared.t = (shared.t + shared.end / BINS) % shared.end",
    "live": "loads.link_load[frames] = 255; __kb_picture.setLive(names, { ...loads, now_ns: frames })",
}
SECONDS, BINS = 3, 16

# Changes something in each frame of the browser; answers with the number of frames and the time they took [s].
MEASURE = """
const [seconds, BINS, done] = arguments, { machine, shared } = __kb_picture;
const { linkIds, nodeIds, own } = machine.loads.index, names = window.names ??= { links: linkIds, nodes: nodeIds };
const loads = { link_load: new Uint8Array(linkIds.length).fill(90), node_load: new Uint8Array(own).fill(160) };
LOOK;
let frames = 0, begin = 0;
const step = (now) => {
  begin ||= now;
  if (now - begin > 1000 * seconds) return done([frames, (now - begin) / 1000]);
  frames += 1;
  CHANGE;
  requestAnimationFrame(step);
};
requestAnimationFrame(() => requestAnimationFrame(step));
"""


def measure() -> Iterator[Row]:
    """Yield the CPU time of the browser for each frame, and the frames per second."""
    with TemporaryDirectory() as folder, chromium() as driver:
        path = Path(folder, "busy.html")
        path.write_text(picture_html(busy()), "utf-8")
        page = Page(driver, "pages")
        page.size(1920, 1080)
        page.open(path.as_uri())
        page.until(lambda: page.run("return __kb_picture.machine.loads"), "the picture")
        for change, code in CHANGES.items():
            for level, look in LEVELS.items():
                script = MEASURE.replace("LOOK", look).replace("CHANGE", code)
                before = cpu_s(driver)
                frames, seconds = driver.execute_async_script(script, SECONDS, BINS)
                yield Row(
                    f"64 SIPs, 8,192 PEs, all busy, {change}: {level}", (cpu_s(driver) - before) / frames,
                    f"{frames / seconds:.0f} frames a second", target="30",
                )  # fmt: skip


def cpu_s(driver: WebDriver) -> float:
    """Return the CPU time of a browser so far, of all its processes [s]."""
    times = [x.cpu_times() for x in psutil.Process(driver.service.process.pid).children(recursive=True)]
    return sum(x.user + x.system for x in times)


def busy() -> Scene:
    """Return the scene of a large machine on which every link and matrix engine has some load all the time."""
    machine = resolve_topology("preset:large")
    header, buffers = scene(machine)
    links = sorted(f"{a}->{b}" for a, b, *_ in machine.graph.edges())
    counts = [range(header["machine"]["counts"][name]) for name in ("sips", "cubes", "pes")]
    nodes = [f"sip{sip}.cube{cube}.pe{pe}.pe_gemm" for sip, cube, pe in product(*counts)]
    chance = np.random.default_rng(0)
    header["run"] = {"name": "busy", "complete": True, "end_ns": 1000.0, "bins": BINS, "links": links, "nodes": nodes}
    for name, ids in (("link_load", links), ("node_load", nodes)):
        buffers[name] = chance.integers(1, 256, (len(ids), BINS), np.uint8).tobytes()
    return header, buffers
