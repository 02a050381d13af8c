"""The machine in a picture, in a real browser: hands, keys, clock, details, and a run under way."""

from __future__ import annotations

import json

import pytest

import kernbench as kb
from kernbench.notebook._live import Frames
from kernbench.notebook._picture import Picture
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine._observer import Observer
from kernbench.sim_engine.engine import GraphEngine
from kernbench.studies import CclStudy
from kernbench.viz._picture import picture_html
from kernbench.viz._scene import scene, scene_of

PICTURE = "const picture = __kb_picture, { machine, shared } = picture;"
GEMM = "sip0.cube0.pe0.pe_gemm"
LINK = "sip0.cube0.hbm_ctrl.pe0->sip0.cube0.r0c0"


def gemm(a, b, out, *, tl):
    x, y = tl.ref(a, shape=(64, 128), dtype="f16"), tl.load(b, shape=(128, 64), dtype="f16")
    tl.composite("gemm", x, y, out)


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    machine = kb.load()
    with kb.session(machine, log="tile") as torch:
        a, b, out = (torch.empty(n, m, dtype=torch.float16, device="ahbm") for n, m in ((64, 128), (128, 64), (64, 64)))
        torch.launch("gemm", gemm, a, b, out)
    path = tmp_path_factory.mktemp("page") / "run.html"
    path.write_text(picture_html(scene_of(machine, torch.result)), "utf-8")
    return path.as_uri()


@pytest.fixture
def page(address, driver):
    from tests.notebook.browser import Page

    page = Page(driver, "machine")
    page.open(address)
    page.one(".kbp-machine")
    page.until(lambda: told(page, "return __kb_redraws.machine"), "the first frame")
    return page


def told(page, script: str):
    return page.driver.execute_script(PICTURE + script)


def keys(page, *pressed: str) -> None:
    """Press keys; the camera has come to rest after each."""
    from selenium.webdriver.common.by import By

    canvas = page.driver.find_element(By.CSS_SELECTOR, ".kbp-labels")
    for key in pressed:
        told(page, "machine.labels.focus()")
        canvas.send_keys(key)
        camera = None
        while camera != (camera := told(page, "return JSON.stringify(machine.camera)")):
            told(page, "return 0")
            page.frame()


@pytest.mark.slow
def test_keys_go_from_the_system_into_a_pe_and_out_again(page):
    from selenium.webdriver.common.keys import Keys

    pressed = (Keys.ARROW_RIGHT, Keys.ENTER, Keys.ENTER, Keys.ENTER, Keys.ARROW_RIGHT, *[Keys.ESCAPE] * 4)
    inside = ["sip0", "sip0.cube0", "sip0.cube0.pe0", "sip0.cube0.pe0.pe_cpu", "sip0.cube0.pe0.pe_scheduler"]
    selected = [*inside, "sip0.cube0.pe0", "sip0.cube0", "sip0", None]
    levels = ["system", "sip", "cube", "pe", "pe", "cube", "sip", "system", "system"]
    here = "return [shared.selected, shared.level]"
    for key, *place in zip(pressed, selected, levels, strict=True):
        keys(page, key)
        page.until(lambda place=place: told(page, here) == place, f"{place} after {key!r}")
    keys(page, Keys.ARROW_RIGHT)
    page.until(lambda: told(page, "return machine.said.textContent").startswith("SIP 0, busy "), "SIP 0 in words")


def test_a_wheel_zooms_around_the_pointer_and_a_hover_names_what_is_there(page):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.actions.wheel_input import ScrollOrigin

    point = "const [x, y, w, h] = machine.locate('sip1').rect, { camera } = machine; return [x + w / 2, y + h / 2]"
    x, y = told(page, point)
    at = f"const {{ camera }} = machine; return [({x} - camera.x) * camera.k, ({y} - camera.y) * camera.k]"
    (px, py), scale = told(page, at), told(page, "return machine.camera.k")
    canvas = page.one(".kbp-labels")
    offset = round(px - canvas.size["width"] / 2), round(py - canvas.size["height"] / 2)
    ActionChains(page.driver).scroll_from_origin(ScrollOrigin.from_element(canvas, *offset), 0, -400).perform()
    page.until(lambda: told(page, "return machine.camera.k") > 1.5 * scale, "a larger SIP 1")
    assert told(page, at) == pytest.approx([px, py], abs=2)
    ActionChains(page.driver).move_to_element_with_offset(canvas, *offset).perform()
    page.until(lambda: "SIP 1" in page.text(".kbp-tip"), "the name of SIP 1")


def test_the_clock_plays_in_the_browser_and_loads_are_those_of_the_scene(page):
    told(page, "shared.t = 0; shared.speed = 4; shared.play()")
    page.until(lambda: told(page, "return shared.t === shared.end && !shared.playing"), "the end of the run")
    told(page, f"shared.selected = '{GEMM}'")
    page.click(".kbp-hottest")
    now = told(page, f"return [shared.t, machine.loads.share('{GEMM}', shared.t)]")
    page.until(lambda: f"{now[1]:.0%}".replace("%", " %") in page.text(".kbp-facts"), "the load of that moment")
    assert told(page, "return machine.loads.link.every((x) => x <= 255)")


def test_a_page_without_a_kernel_has_no_control_that_needs_one(page):
    told(page, f"shared.selected = '{LINK}'")
    page.until(lambda: "HBM controller bandwidth" in page.text(".kbp-fields"), "its fields")
    assert not page.all(".kbp-fields input, .kbp-run")
    assert len(page.all(".kbp-chart")) == 2  # load, and transfers under way


def test_a_run_under_way_is_shown_as_it_comes(page):
    told(
        page,
        f"""const index = {{ links: ["{LINK}"], nodes: ["{GEMM}"] }};
        for (const now_ns of [10, 20]) picture.setLive(
          index, {{ now_ns, link_load: new Uint8Array([128]), node_load: new Uint8Array([255]) }});
        shared.selected = "{LINK}";""",
    )
    page.until(lambda: "50 % busy since the last update" in page.text(".kbp-facts"), "the live load")
    assert "Running: 20.0 ns" in page.text(".kbp-clock")
    assert not page.all(".kbp-play")


ACTS = [
    "shared.t = i",
    "shared.window = [i, 200 + i]",
    "shared.path = i % 2 === 0",
    f"shared.selected = ['{GEMM}', '{LINK}', null][i % 3]",
    f"shared.hovered = ['{GEMM}', '{LINK}', null][i % 3]",
    "machine.zoomBy(1.01)",
    """picture.setLive(window.names, {
        now_ns: i + 1, link_load: new Uint8Array([i]), node_load: new Uint8Array([i]) })""",
]


@pytest.mark.parametrize("act", ACTS)
def test_many_changes_of_a_frame_are_one_change_and_one_redraw_of_each_view(page, act):
    told(
        page,
        f"""window.changes = 0;
        window.names = {{ links: ["{LINK}"], nodes: ["{GEMM}"] }};
        shared.addEventListener("change", () => (window.changes += 1));""",
    )
    page.frame()
    before = told(page, "window.changes = 0; return { ...__kb_redraws }")
    assert set(before) == {"machine", "details", "timeline", "why"}
    told(page, f"for (let i = 0; i < 50; i++) {act};")
    page.frame()
    after = told(page, "return __kb_redraws")
    assert all(after[view] <= before[view] + 2 for view in before), (before, after)
    assert told(page, "return window.changes") <= 2
    page.frame()
    page.frame()
    assert told(page, "return __kb_redraws") == after, "nothing changes, so nothing is drawn"


@pytest.mark.slow
def test_a_frame_of_a_run_on_256_pes_is_a_byte_for_each_link_and_engine(monkeypatch):
    machine, picture, sent = kb.load(), Picture(), []
    picture.show(scene(machine))
    monkeypatch.setattr(picture, "_send", lambda message, buffers=None: sent.append((message["state"], buffers or [])))

    class Watch(Observer):
        frames = Frames()

        def pulse(self, engine):
            picture.show_live(self.frames.next(engine.counters(), 0.1))

    monkeypatch.setattr("kernbench.sim_engine.engine._SLICE", 512)
    with RuntimeContext(GraphEngine(machine, log="off", observers=[Watch()], live=True)) as torch:
        CclStudy().program(torch, algorithm="hierarchical_allreduce", elements=8192, cubes=16, pes=8)
    assert len(sent) > 20
    index = {}
    for state, buffers in sent:
        if "live_index" in state:
            assert state["live_index"] != index
        index = state.get("live_index", index)
        nbytes = sum(len(x) for x in buffers) + len(json.dumps({"live": state["live"]}))
        assert nbytes <= len(index["links"]) + len(index["nodes"]) + 200
    assert len([1 for state, _ in sent if "live_index" not in state]) > len(sent) / 2, "names come when some are new"
    assert nbytes < 10_000
