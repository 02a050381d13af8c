"""The timeline of a picture in a real browser: a page from a server, without a kernel."""

from __future__ import annotations

import json
import re
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

import kernbench as kb
from kernbench.analysis.trace import trace_events
from kernbench.runtime_api.bench_runner import run_program
from kernbench.studies import CclStudy
from kernbench.viz import _palette as palette
from kernbench.viz._picture import picture_html
from kernbench.viz._scene import scene_of

pytestmark = pytest.mark.slow

# What ui.perfetto.dev does with messages, as its documentation on deep links says.
PERFETTO = """<!doctype html><title>stand-in</title><script>
addEventListener("message", (event) => {
  if (event.data === "PING") event.source.postMessage("PONG", "*");
  if (event.data.perfetto) window.got = { title: event.data.perfetto.title, text: new TextDecoder().decode(event.data.perfetto.buffer) };
});
</script>"""  # fmt: skip  # noqa: E501
VIEW = "const view = __kb_picture.timeline, shared = __kb_picture.shared;"


@pytest.fixture(scope="module")
def runs():
    """An all-reduce over two SIPs, and again with slower links: it starts later, and takes longer."""
    program = partial(CclStudy().program, elements=4096, algorithm="ring_allreduce_tcm")
    slow = ["system.sip_link.bw_gbs=32", "system.pcie.latency_ns=150"]
    machines = [kb.load("preset:small", ["system.sips.count=2", *more]) for more in ((), slow)]
    return [(machine, run_program(machine, program, log="tile")) for machine in machines]


@pytest.fixture(scope="module")
def address(runs):
    (machine, result), (slow, slower) = runs
    pages = {
        "/": picture_html(scene_of(machine, result, offline=True)),
        "/two": picture_html(scene_of(slow, slower, before=result)),
        "/perfetto": PERFETTO,
    }

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path in pages else 404)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(pages.get(self.path, "").encode())

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def page(driver, address, request):
    from tests.notebook.browser import Page

    page = Page(driver, "timeline")
    page.open(address + getattr(request, "param", "/"))
    page.until(lambda: page.driver.execute_script("return window.__kb_redraws?.timeline"), "the timeline")
    return page


def does(page, script):
    """Run a script with `view` and `shared`; return its value once the frame after it is drawn."""
    code = f"{VIEW} const done = arguments[0]; const found = (() => {{ {script} }})();"
    return page.driver.execute_async_script(
        f"{code} requestAnimationFrame(() => requestAnimationFrame(() => done(found)))"
    )


def press(page, *keys):
    from selenium.webdriver.common.by import By

    marks = page.driver.find_element(By.CSS_SELECTOR, ".kbp-marks")
    for key in keys:
        marks.send_keys(key)
    return page.text(".kbp-said")


def ns(ps):
    """A time below 1 us as the page says it."""
    return f"{ps / 1000:.3f}".rstrip("0").rstrip(".") + " ns"


def window(page):
    return does(page, "return shared.window")


def column(page, share):
    """The colours of the rows in a column of pixels, at a share of the window, once what was changed is drawn."""
    page.frame()
    script = f"""
      const {{ rowsCanvas: canvas }} = view, x = (216 + {share} * (canvas.clientWidth - 216)) * devicePixelRatio;
      const {{ data }} = canvas.getContext("2d").getImageData(Math.round(x), 0, 1, canvas.height);
      const hex = (y) => [...data.subarray(4 * y, 4 * y + 3)].map((v) => v.toString(16).padStart(2, "0")).join("");
      return Array.from({{ length: canvas.height }}, (_, y) => `#${{hex(y)}}`);
    """
    return does(page, script)


def search(page, text):
    from selenium.webdriver.common.by import By

    field = page.driver.find_element(By.CSS_SELECTOR, ".kbp-search")
    field.clear()
    field.send_keys(text + "\n")


def test_search_finds_each_receive_and_says_what_the_log_says(page, runs):
    records = runs[0][1].records
    receives = sorted(records.of_kind("recv"), key=lambda op: op.start_ps)
    search(page, "recv")
    assert page.text(".kbp-matches") == f"1 of {len(receives)}"
    said, op = page.text(".kbp-said"), receives[0]
    assert op.component in said
    assert f"from {ns(op.start_ps)}" in said
    assert f"{op.nbytes:,} B, {op.nbytes * 1000 / (op.end_ps - op.start_ps):,.0f} GB/s" in said
    assert does(page, "return shared.selected") == op.component
    press(page, "f")  # the interval is now in the middle of the window: it has the colour of its stage
    assert column(page, 0.5).count(palette.STAGE_COLOURS["recv"].lower()) >= 10
    search(page, "no such thing")
    assert page.text(".kbp-matches") == "no match"


def test_keys_walk_intervals_in_their_row_and_rows(page, runs):
    records = runs[0][1].records
    search(page, "recv")
    component = does(page, "return shared.selected")
    mine = sorted(op.start_ps for op in records.of_kind("recv") if op.component == component)
    walked = [press(page, key) for key in ("\ue012", "\ue014")]  # left: it is the first; right
    assert all(f"from {ns(ps)}" in said for ps, said in zip(mine, walked, strict=False))
    assert press(page, "\ue015") != walked[1]  # down
    assert does(page, "return shared.selected") != "" != component


def test_the_wheel_zooms_at_the_cursor_and_keys_zoom_and_pan(page, runs):
    end = runs[0][1].latency_ns
    before = window(page)
    assert before == pytest.approx([0, end])
    wheel = """
      const box = view.marks.getBoundingClientRect(), x = 216 + 0.25 * (box.width - 216);
      view.marks.dispatchEvent(new WheelEvent("wheel", { deltaY: -60, clientX: box.left + x, clientY: box.top + 200, cancelable: true }));
    """  # noqa: E501
    does(page, wheel)
    low, high = window(page)
    assert high - low < 0.9 * end
    assert low + 0.25 * (high - low) == pytest.approx(0.25 * end, rel=1e-3)
    press(page, "d")
    assert window(page)[0] == pytest.approx(low + (high - low) / 8)
    press(page, "a", "w", "w", "s", "+", "-")
    width = window(page)[1] - window(page)[0]
    assert width == pytest.approx((high - low) / 1.4)
    press(page, "0")
    assert window(page) == pytest.approx([0, end])


def test_the_clock_is_dragged_on_the_axis(page, runs):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By

    marks = page.driver.find_element(By.CSS_SELECTOR, ".kbp-marks")
    page.driver.execute_script("arguments[0].scrollIntoView({ block: 'center' })", marks)
    width, height = marks.size["width"], marks.size["height"]

    def at(share):
        return round(216 + share * (width - 216) - width / 2), round(48 - height / 2)

    drag = ActionChains(page.driver).move_to_element_with_offset(marks, *at(0.2)).click_and_hold()
    drag.move_to_element_with_offset(marks, *at(0.6)).release().perform()
    assert does(page, "return shared.t") == pytest.approx(0.6 * runs[0][1].latency_ns, rel=0.01)


def test_a_group_is_closed_and_opened(page):
    page.click('[aria-label="Close all groups"]')
    rows = press(page, "\ue015")  # down, to the first row
    assert rows.endswith("closed")
    assert press(page, "\n").endswith("opened")


# Moves the mouse to a counter at a time [ps]; returns what is said there, and where its row is.
COUNTER = """
  const [component, quantity, t] = %s, { place, marks } = view;
  const each = place.rows.visible.find(({ track }) => track?.counters && track.component === component && track.stage === quantity);
  place.scrollTo(each.y - 40);
  view.drawing.redraw("rows");
  const box = marks.getBoundingClientRect(), y = place.top + each.y - place.scroll;
  marks.dispatchEvent(new PointerEvent("pointermove", { clientX: box.left + place.xOf(t), clientY: box.top + y + 8 }));
  return [view.tip.innerText.split("\\n"), Math.round(y), each.height];
"""  # noqa: E501


@pytest.mark.parametrize("page", ["/", "/two"], indirect=True)
def test_occupancy_is_folded_below_the_stages_of_a_pe_and_tells_its_value(page, runs):
    two = "two" in page.driver.current_url
    result = runs[1 if two else 0][1]
    labels = does(page, "return view.place.rows.visible.map((each) => each.label)")
    pe = next(i for i, label in enumerate(labels) if label.startswith("PE "))
    below = labels[pe + 1 : labels.index("Occupancy", pe)]
    assert {"receive", "send"} <= {*below}
    assert "queue slots in use" not in labels, "folded"
    page.click('[aria-label="Open all groups"]')
    for quantity, name in (("slots", "queue slots in use"), ("reads", "outstanding reads"), ("allocated", "TCM: ")):
        track = max(
            (x for x in result.occupancy if x.quantity == quantity and ".pe0.pe_" in x.component),
            key=lambda x: x.value.max(),
        )
        i = int(track.value.argmax())
        t, value = int(track.t_ps[i]) + 1, int(track.value[i])
        shift = does(page, "return view.place.last.shift")
        does(page, f"shared.window = [{(t - 50 + shift) / 1000}, {(t + 50 + shift) / 1000}];")
        lines, y, height = does(page, COUNTER % json.dumps([track.component, quantity, t + shift]))
        unit = " B" if quantity == "allocated" else ""
        assert lines[0].startswith(name)
        assert lines[1] == track.component
        assert f"{value:,}{unit} at " in lines[-1]
        assert lines[-1].endswith(f"; largest {value:,}{unit}")
        assert [line[:3] for line in lines[2:]] == (["A: ", "B: "] if two else [lines[-1][:3]])
        drawn = column(page, 0.5)[y + height // 2 if two else y : y + height]
        full = max(drawn.count(colour) for colour in {*drawn} - {drawn[-1]})
        peaks = [x.value.max() for _, run in runs for x in run.occupancy if x[:2] == track[:2]]
        assert full == pytest.approx(24 * value / max(peaks), abs=1), "as high as its share of the largest"


def test_many_changes_of_a_frame_are_one_redraw(page):
    before = does(page, "return window.__kb_redraws.timeline")
    wheel = "view.marks.dispatchEvent(new WheelEvent('wheel', { deltaY: -1, clientX: 600, cancelable: true }));"
    does(page, f"for (let i = 0; i < 500; i++) {{ shared.t = i; {wheel} }}")
    assert does(page, "return window.__kb_redraws.timeline") - before <= 2


AREA = """
  return [...view.areaView.root.querySelectorAll("table")].map((table) =>
    Object.fromEntries([...table.querySelectorAll("tbody tr")].map(({ cells: [name, ...cells] }) =>
      [name.textContent, cells.map((cell) => cell.textContent)])));
"""


def number(text):
    return float(text.replace(",", ""))


def ns_of(text):
    value, unit = text.split(" ")
    return number(value) * {"ns": 1, "us": 1000}[unit]


def drag(page, start, end):
    """Drag with Shift from a share (x, y) of the rows of the timeline to another."""
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    marks = page.driver.find_element(By.CSS_SELECTOR, ".kbp-marks")
    page.driver.execute_script("arguments[0].scrollIntoView({ block: 'center' })", marks)
    width, height, top = does(page, "return [view.place.width, view.place.height, view.place.top]")
    (x0, y0), (x1, y1) = ((216 + x * (width - 216), top + y * (height - top)) for x, y in (start, end))
    act = ActionChains(page.driver).key_down(Keys.SHIFT)
    act.move_to_element_with_offset(marks, x0 - width / 2, y0 - height / 2).click_and_hold()
    act.move_by_offset(x1 - x0, y1 - y0).release().key_up(Keys.SHIFT).perform()


def test_an_area_says_what_happened_there(page, runs):
    result = runs[0][1]
    log, whole = result.to_pandas(), result.latency_ns
    press(page, "0", "m")
    work, path = does(page, AREA)
    for label, kind in (("dma in", "load"), ("dma out", "store"), ("receive", "recv"), ("send", "send")):
        rows = log[log["kind"] == kind]
        busy, _, events, nbytes = work[label]
        assert events == str(len(rows))
        assert nbytes == f"{rows['nbytes'].sum():,}"
        assert ns_of(busy) == pytest.approx((rows["end_ns"] - rows["start_ns"]).sum(), abs=0.002)
    assert sum(ns_of(time) for time, _ in path.values()) == pytest.approx(whole, abs=0.01)

    middle = log[log["kind"] == "send"]["start_ns"].min() + 20
    does(page, f"shared.window = [{middle}, {middle + 60}];")
    press(page, "m")
    work, path = does(page, AREA)
    sends = log[(log["kind"] == "send") & (log["end_ns"] > middle) & (log["start_ns"] < middle + 60)]
    inside = np.minimum(sends["end_ns"], middle + 60) - np.maximum(sends["start_ns"], middle)
    assert ns_of(work["send"][0]) == pytest.approx(inside.sum(), abs=0.01)
    share = inside / (sends["end_ns"] - sends["start_ns"])
    assert number(work["send"][3]) == pytest.approx((sends["nbytes"] * share).sum(), abs=1)
    assert sum(ns_of(time) for time, _ in path.values()) == pytest.approx(60, abs=0.01)


def test_an_area_is_dragged_with_shift_and_closed_with_escape(page):
    from selenium.webdriver.common.keys import Keys

    press(page, "0")
    drag(page, (0.25, 0.05), (0.5, 0.9))
    (start, end), (low, high) = does(page, "return [view.areaView.area.window.map((t) => t / 1000), shared.window]")
    assert [(t - low) / (high - low) for t in (start, end)] == pytest.approx([0.25, 0.5], abs=0.01)
    assert low == pytest.approx(window(page)[0])  # the window has not moved
    assert page.driver.execute_script("return !view.areaView.root.hidden".replace("view", "__kb_picture.timeline"))
    press(page, Keys.ESCAPE)
    assert does(page, "return view.areaView.root.hidden && view.areaView.area === null")


def test_the_trace_opens_in_perfetto(page, address, runs):
    here = page.driver.current_window_handle
    stand_in = address.replace("127.0.0.1", "localhost") + "/perfetto"
    does(page, f"view.trace.perfetto = {json.dumps(stand_in)}")
    page.click(".kbp-perfetto")
    page.until(lambda: len(page.driver.window_handles) == 2, "another window")
    page.driver.switch_to.window(next(x for x in page.driver.window_handles if x != here))
    got = page.until(lambda: page.driver.execute_script("return window.got"), "the trace")
    page.driver.close()
    page.driver.switch_to.window(here)
    assert json.loads(got["text"]) == json.loads(json.dumps(trace_events(runs[0][1].records)))
    assert got["title"] == runs[0][1].name
    page.until(lambda: "open in Perfetto" in page.text(".kbp-said"), "the message")


def test_without_a_trace_in_the_scene_the_kernel_is_asked(page):
    asked = """
      const { packed } = view.trace;
      view.trace.packed = null;
      view.trace.send = (message) => { window.asked = message; view.receive({ do: "trace" }, [new DataView(packed.buffer, packed.byteOffset, packed.byteLength)]); };
    """  # noqa: E501
    does(page, asked)
    page.click(".kbp-trace")
    page.until(lambda: re.search(r"trace\.json, [\d,]+ B", page.text(".kbp-said")), "the name and size of the file")
    assert page.driver.execute_script("return window.asked") == {"do": "open_trace"}


@pytest.mark.parametrize("page", ["/two"], indirect=True)
def test_two_runs_are_aligned_at_their_launch(page, runs):
    (_, fast), (_, slow) = runs
    shift = slow.launches[0].start_ps - fast.launches[0].start_ps
    took = [x.launches[0].end_ps - x.launches[0].start_ps for x in (fast, slow)]
    assert shift > took[1] / 20
    assert took[1] > took[0]
    search(page, "launch")
    assert f"B \u2212 A: +{ns(took[1] - took[0])}" in page.text(".kbp-said")
    press(page, "f")  # the launch of B is the middle third of the window; both begin there
    launches = [column(page, share).count(palette.STAGE_COLOURS["launch"].lower()) for share in (0.323, 0.343)]
    assert launches[1] - launches[0] > 25  # two boxes of 16 pixels
