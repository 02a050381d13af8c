"""What a visitor of the served page can and cannot do, by raw messages to a real server."""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import urllib.error
import urllib.request

import psutil
import pytest
from tornado.httpclient import HTTPClientError
from tornado.websocket import websocket_connect
from traitlets.config import Config

from kernbench.notebook._page import PageKernels
from kernbench.notebook._serve import PAGE_MEMORY_BYTES, web_arguments
from tests.notebook.served import LONG_S, TOKEN, Socket, Visitor, served
from tests.repo import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("voila") is None, reason="Voila is not installed"),
]
SERVE = f"""
from kernbench.notebook import _page as page, _serve as serve
page.MOST_KERNELS, page.MOST_OF_A_VISITOR, page._MOST_RUNS = 3, 2, 2
serve.notebook = lambda: {str(ROOT / "notebooks" / "explorer.ipynb")!r}
serve.serve_page(serve.web_arguments(TOKEN, PORT, browser=False))
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    with served("web", tmp_path_factory.mktemp("web"), code=SERVE) as address:
        yield address


@pytest.fixture(scope="module")
def visitor(address):
    return Visitor(address)


@pytest.fixture(scope="module")
def kernel(visitor):
    return visitor.open()


def said(address, kernel, conversation):
    async def talk():
        async with Socket(address, kernel) as socket:
            await socket.states()
            return await asyncio.wait_for(conversation(socket), LONG_S)

    return asyncio.run(talk())


def texts(widgets):
    return {key: state for key, state in widgets.items() if state.get("_model_name") == "TextModel"}


def test_no_field_loads_a_file_whatever_is_set(address, kernel, tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("base: small\nsystem: {sips: {count: 7}}\n")

    async def conversation(socket):
        assert not [state for state in texts(socket.widgets).values() if "file" in (state.get("placeholder") or "")]
        for widget in list(texts(socket.widgets)):
            await socket.set(widget, value=str(mine))
        await socket.set(socket.named("kb-source"), value=str(mine), _options_labels=[str(mine)])
        return await socket.states()  # answered after all that was set

    widgets = said(address, kernel, conversation)
    assert not [state for state in widgets.values() if "7 SIPs" in str(state.get("value"))]


def test_no_field_names_code(address, kernel):
    async def conversation(socket):
        group = socket.named("kb-group")
        for index, _ in enumerate(socket.widgets[group]["_options_labels"]):
            await socket.set(group, index=index)
        # Fields of all groups: the socket keeps those that are no longer shown.
        return {css for state in (await socket.states()).values() for css in state.get("_dom_classes") or ()}

    seen = said(address, kernel, conversation)
    assert "kb-cube-ucie-port_ns" in seen
    assert not [css for css in seen if css.endswith(("-impl", "-table"))]


@pytest.mark.parametrize(
    ("kind", "content", "channel"),
    [
        ("execute_request", {"code": "open({!r}, 'w')", "silent": False}, "shell"),
        ("debug_request", {"type": "request", "seq": 1, "command": "evaluate", "arguments": {}}, "control"),
        ("complete_request", {"code": "ope", "cursor_pos": 3}, "shell"),
        ("inspect_request", {"code": "open", "cursor_pos": 4, "detail_level": 1}, "shell"),
    ],
)
def test_no_message_runs_code(address, kernel, tmp_path, kind, content, channel):
    target = tmp_path / "written"
    content = {k: v.format(str(target)) if isinstance(v, str) else v for k, v in content.items()}

    async def conversation(socket):
        await socket.send(kind, content, channel)
        await socket.send("kernel_info_request", {}, channel)
        heard = []
        while (heard := [*heard, (await socket.hear())["msg_type"]])[-1] != "kernel_info_reply":
            pass
        return heard

    assert kind.replace("request", "reply") not in said(address, kernel, conversation)
    assert not target.exists()


def test_without_the_token_there_is_no_socket(address, kernel):
    request = urllib.request.Request(f"{address}/api/kernels/{kernel}/channels")
    with pytest.raises(urllib.error.HTTPError, match="403") as refused:
        urllib.request.urlopen(request, timeout=LONG_S)
    refused.value.close()


def test_a_client_of_the_legacy_protocol_is_refused(address, kernel):
    async def connect():
        await websocket_connect(f"ws{address.removeprefix('http')}/api/kernels/{kernel}/channels?token={TOKEN}")

    with pytest.raises(HTTPClientError, match="400"):
        asyncio.run(connect())


def kernels(name):
    """The processes of a kernel."""
    return [process for process in psutil.process_iter(["cmdline"]) if name in " ".join(process.info["cmdline"] or ())]


def test_a_kernel_of_a_page_has_limited_memory(kernel):
    [process] = kernels(kernel)
    assert process.rlimit(psutil.RLIMIT_DATA)[0] == PAGE_MEMORY_BYTES


async def press_run(socket):
    """Press Run, whatever the page shows."""
    run = socket.named("kb-run")
    await socket.set(run, disabled=False)
    await socket.click(run)


async def runs(socket):
    """Return how many runs the page's history has."""
    return len((await socket.states())[socket.named("kb-history")]["rows"])


async def refused(socket):
    """Press Run twice on a page where none is under way; return the runs before and after, and what the page says."""
    before = await runs(socket)
    for _ in range(2):
        await press_run(socket)
    return before, await runs(socket), socket.widgets[socket.named("kb-note")]["value"]


def test_a_visitor_has_a_few_pages_and_runs_and_a_full_server_says_so(address, kernel):
    async def run(socket, times):
        await socket.set(socket.named("kb-work"), index=1)  # a short one
        history = socket.widgets[socket.named("kb-history")]
        for n in range(times):
            await press_run(socket)
            while len(history["rows"]) <= n:
                await socket.hear()

    async def first(socket):
        await run(socket, 1)

    async def used_up(socket):
        await run(socket, 2)
        return await refused(socket)

    visitor, another = Visitor(address), Visitor(address)
    message = "you have started 2 runs within an hour, as many as this page allows; try later"
    pages = [visitor.open()]
    assert said(address, pages[0], used_up) == (2, 2, message)
    pages.append(visitor.open())
    assert said(address, pages[1], refused) == (0, 0, message)
    pages.append(visitor.open())
    assert [visitor.alive(page) for page in pages] == [False, True, True]
    assert visitor.alive(kernel), "that of yet another visitor"
    with pytest.raises(urllib.error.HTTPError, match="503") as full:
        another.open()
    assert b"no more fit on this server" in full.value.read()
    full.value.close()
    visitor.close(pages[1])
    said(address, another.open(), first)


def test_the_kernel_of_an_idle_page_ends(tmp_path):
    arguments = web_arguments("secret", 1, browser=False, idle_s=1)
    given = dict(x.removeprefix("--").split("=", 1) for x in arguments if x.startswith("--MappingKernelManager."))
    config = {name.partition(".")[2]: ast.literal_eval(value) for name, value in given.items()}
    assert config["cull_connected"], "a page that is open and says nothing is idle, too"

    async def life():
        manager = PageKernels(connection_dir=str(tmp_path), config=Config({"PageKernels": config}))
        kernel = await manager.start_kernel(kernel_name="python3")
        processes = kernels(kernel)
        while kernel in manager:  # noqa: ASYNC110 - it tells no one
            await asyncio.sleep(0.1)
        return processes

    [process] = asyncio.run(asyncio.wait_for(life(), LONG_S))
    assert not process.is_running()
