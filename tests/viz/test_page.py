"""The picture as a page: it works from disk, without network and without a kernel."""

from __future__ import annotations

import re

import pytest

import kernbench as kb
from kernbench.viz._picture import picture_html
from kernbench.viz._scene import scene


@pytest.fixture(scope="module")
def text():
    machine = kb.load("preset:default")

    def copy(a, b, *, tl):
        tl.store(b, tl.load(a, shape=(2048,), dtype="f16"))

    with kb.session(machine, log="tile") as torch:
        a, b = (torch.empty(2048, dtype=torch.float16, device="ahbm") for _ in range(2))
        torch.launch("copy", copy, a, b)
    return picture_html(scene(machine, torch.result.records, "</script><b>copy</b>"), note="what ran")


def test_equal_scenes_are_equal_pages(text):
    machine = kb.load("preset:small")
    assert picture_html(scene(machine)) == picture_html(scene(machine))
    assert picture_html(scene(machine)) != text


def test_the_page_may_load_nothing(text):
    assert """content="default-src 'none';""" in text
    assert set(re.findall(r"https?://[^\s\"']+", text)) <= {"http://www.w3.org/2000/svg", "https://ui.perfetto.dev"}
    assert "</script><b>" not in text
    assert "<p>what ran</p>" in text


@pytest.fixture(scope="module")
def page(text, driver, tmp_path_factory):
    from tests.notebook.browser import Page

    path = tmp_path_factory.mktemp("page") / "run.html"
    path.write_text(text, encoding="utf-8")
    page = Page(driver, "html")
    driver.execute_cdp_cmd("Network.enable", {})
    driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": ["http://*", "https://*", "ws://*", "wss://*"]})
    page.open(path.as_uri())
    yield page
    driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": []})


def shared(page, name):
    return page.driver.execute_script(f"return globalThis.__kb_picture?.shared.{name}")


@pytest.mark.slow
def test_it_opens_plays_and_selects_from_disk(page):
    page.until(lambda: shared(page, "end") > 0, "the scene")
    start = shared(page, "t")
    page.click(".kbp-play")
    page.until(lambda: shared(page, "t") > start, "the clock to move")
    assert not shared(page, "selected")
    canvas = page.one(".kbp-labels")
    page.driver.execute_script("arguments[0].scrollIntoView()", canvas)
    selected = page.until(lambda: clicked(page, canvas), "a click to select")
    assert selected.startswith(("host", "switch", "sip"))
    assert not [url for url in page.requests() if not url.startswith(("file:", "blob:", "data:"))]
    assert not page.severe()


def address(page):
    return page.driver.execute_script("return location.hash")


@pytest.mark.slow
def test_an_address_is_a_link_to_a_moment(page):
    page.until(lambda: shared(page, "end") > 0, "the scene")
    url = page.driver.current_url.partition("#")[0]
    page.driver.get("about:blank")
    page.open(f"{url}#t=12.5&sel=sip0.cube1.hbm_ctrl.pe0&zoom=sip0.cube1&from=10&to=40")
    page.until(lambda: shared(page, "focus") == "sip0.cube1", "the camera at the cube")
    assert (shared(page, "t"), shared(page, "selected")) == (12.5, "sip0.cube1.hbm_ctrl.pe0")
    assert shared(page, "window") == [10, 40]
    page.driver.execute_script("globalThis.__kb_picture.shared.t = 20.25")
    page.until(
        lambda: "t=20.25&sel=sip0.cube1.hbm_ctrl.pe0&zoom=sip0.cube1&from=10&to=40" in address(page), "the address"
    )
    page.driver.execute_script("location.hash = '#t=30'")
    page.until(lambda: shared(page, "t") == 30, "the moment of a link in the page")
    assert not page.one(".kbp-refused").text


@pytest.mark.slow
def test_an_address_of_another_machine_says_what_is_not_there(page):
    page.until(lambda: shared(page, "end") > 0, "the scene")
    page.driver.execute_script("location.hash = '#t=x&sel=sip9.cube0&zoom=sip0'")
    refused = page.until(lambda: page.one(".kbp-refused").text, "the message")
    assert "t=x is no number of nanoseconds" in refused
    assert "sel=sip9.cube0 is no part of this machine" in refused
    assert "zoom" not in refused


DROP = """
const send = (message, buffers) => sent.push([message, buffers?.map((buffer) => buffer.byteLength)]);
const sent = (globalThis.sent = []);
send.answers = new Set(arguments[0]);
const picture = new globalThis.__kb_picture.constructor(document.body, send);
const dataTransfer = new DataTransfer();
dataTransfer.items.add(new File([new Uint8Array(5 << 20)], "run.npz"));
const refused = ["dragover", "drop"].map((type) => {
  const event = new DragEvent(type, { dataTransfer, bubbles: true, cancelable: true });
  picture.root.dispatchEvent(event);
  return event.defaultPrevented;
});
const buttons = picture.root.querySelectorAll(".kbp-open").length;
return [refused, buttons, picture.root.classList.contains("kbp-drop")];
"""


def test_a_dropped_file_is_sent_in_parts_where_it_is_answered(page):
    page.until(lambda: shared(page, "end") > 0, "the scene")
    assert page.driver.execute_script(DROP, []) == [[False, False], 0, False]
    prevented, buttons, marked = page.driver.execute_script(DROP, ["open_file"])
    assert prevented == [True, True]
    assert buttons > 0
    assert not marked
    sent = page.until(lambda: len(x := page.driver.execute_script("return globalThis.sent")) == 2 and x, "both parts")
    assert [message["part"] for message, _ in sent] == [0, 1]
    assert [size for _, (size,) in sent] == [4 << 20, 1 << 20]
    assert {(x["do"], x["name"], x["parts"]) for x, _ in sent} == {("open_file", "run.npz", 2)}


def clicked(page, canvas):
    """Click down the middle of the picture until something is selected."""
    from selenium.webdriver.common.action_chains import ActionChains

    size = canvas.size
    for down in range(20, size["height"], 20):
        ActionChains(page.driver).move_to_element_with_offset(canvas, 0, down - size["height"] // 2).click().perform()
        if selected := shared(page, "selected"):
            return selected
    return None
