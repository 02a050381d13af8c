"""Real servers for tests, and a visitor who says to a kernel whatever a page could say."""

from __future__ import annotations

import asyncio
import http.cookiejar
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from contextlib import contextmanager

from jupyter_server.services.kernels.connection.base import deserialize_msg_from_ws_v1, serialize_msg_to_ws_v1
from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

from kernbench.notebook import _page as page
from tests.repo import ROOT

LONG_S = 60
TOKEN = "a-token-of-the-tests"


@contextmanager
def served(command, folder, *, cwd=None, code=None, environment=None):
    """Serve by `kernbench lab` or `kernbench web`, or by `code`, with no settings but its own; yield the address.

    `code` gets PORT and TOKEN as names.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = {f"JUPYTER_{name}_DIR": str(folder / name) for name in ("CONFIG", "DATA", "RUNTIME")}
    own |= {"IPYTHONDIR": str(folder / "ipython"), "JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces")}
    own |= {"KERNBENCH_CACHE": str(folder / "cache"), "PYTHONPATH": str(ROOT)} | (environment or {})
    own["PYTHONSAFEPATH"] = "1"  # a checkout that is served from is not imported
    options = ["--token", TOKEN] if command == "web" else []
    if command == "lab":
        own["JUPYTER_TOKEN"] = TOKEN
    start = ["-m", "kernbench", command, "--no-browser", "--port", str(port), *options]
    if code is not None:
        start = ["-c", f"PORT, TOKEN = {port}, {TOKEN!r}\n{code}"]
    with (folder / f"{command}.log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, *start], cwd=cwd or folder, env={**os.environ, **own}, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def answers(address):
    """Return whether a server answers there."""
    try:
        with urllib.request.urlopen(address.partition("?")[0] + "?check", timeout=LONG_S):
            return True
    except urllib.error.HTTPError as refusal:
        refusal.close()
        return True  # it answers; without the token, with a refusal
    except OSError:
        return False


def until(condition, what):
    """Poll a condition until it holds; return what it returned."""
    end = time.monotonic() + LONG_S
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"waited for {what} in vain")


class Visitor:
    """Opens pages of a served explorer, with cookies, as a browser does."""

    def __init__(self, address):
        self.address, self.jar = address, http.cookiejar.CookieJar()
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(self.jar))
        until(lambda: answers(address), "the server")

    def open(self):
        """Open the page; return the id of its kernel, once its cell has run."""
        with self._opener.open(f"{self.address}/?token={TOKEN}", timeout=LONG_S) as answer:
            return re.search(r'"kernelId": "([\w-]+)"', answer.read().decode())[1]

    def close(self, kernel):
        """Leave the page of a kernel, which ends it."""
        leaving = urllib.request.Request(f"{self.address}/voila/api/shutdown/{kernel}?token={TOKEN}", method="POST")
        self._opener.open(leaving, timeout=LONG_S).close()

    def alive(self, kernel):
        """Whether the server has a kernel."""
        try:
            self._opener.open(f"{self.address}/api/kernels/{kernel}?token={TOKEN}", timeout=LONG_S).close()
        except urllib.error.HTTPError as missing:
            missing.close()
            return False
        return True


class Socket:
    """The socket of a page to its kernel: `with` of asyncio."""

    def __init__(self, address, kernel):
        self._url = f"ws{address.removeprefix('http')}/api/kernels/{kernel}/channels?token={TOKEN}"
        self.widgets = {}

    async def __aenter__(self):
        self._socket = await websocket_connect(HTTPRequest(self._url), subprotocols=[page.PROTOCOL])
        return self

    async def __aexit__(self, *_):
        self._socket.close()
        while await asyncio.wait_for(self._socket.read_message(), LONG_S) is not None:
            pass

    async def send(self, kind, content, channel="shell", **metadata):
        """Send a message of any kind."""
        header = {
            "msg_id": uuid.uuid4().hex, "msg_type": kind, "session": "visitor", "username": "", "version": "5.3",
            "date": "",
        }  # fmt: skip
        message = {"header": header, "parent_header": {}, "metadata": metadata, "content": content}
        packed = serialize_msg_to_ws_v1(message, channel, lambda part: json.dumps(part).encode())
        await self._socket.write_message(packed, binary=True)

    async def hear(self):
        """Return the next message, with the states of widgets noted."""
        _, parts = deserialize_msg_from_ws_v1(await asyncio.wait_for(self._socket.read_message(), LONG_S))
        header, content = json.loads(parts[0]), json.loads(parts[3])
        message = {"msg_type": header["msg_type"], "parent_header": json.loads(parts[1]), "content": content}
        if message["msg_type"] == "comm_open":
            self.widgets[content["comm_id"]] = content["data"].get("state", {})
        data = content.get("data") if message["msg_type"] == "comm_msg" else None
        if data and data.get("method") in ("update", "echo_update"):
            self.widgets.setdefault(content["comm_id"], {}).update(data["state"])
        if data and data.get("method") == "update_states":
            for widget, found in data["states"].items():
                self.widgets.setdefault(widget, {}).update(found["state"])
        return message

    async def states(self):
        """Ask for the states of all widgets."""
        control = uuid.uuid4().hex
        opened = {"comm_id": control, "target_name": "jupyter.widget.control", "data": {}}
        await self.send("comm_open", opened, version="1.0.0")
        await self.send("comm_msg", {"comm_id": control, "data": {"method": "request_states"}})
        while (await self.hear())["content"].get("data", {}).get("method") != "update_states":
            pass
        return self.widgets

    async def set(self, widget, **state):
        """Set traits of a widget."""
        await self.send(
            "comm_msg", {"comm_id": widget, "data": {"method": "update", "state": state, "buffer_paths": []}}
        )

    async def click(self, widget):
        """Press a button."""
        said = {"method": "custom", "content": {"event": "click"}}
        await self.send("comm_msg", {"comm_id": widget, "data": said})

    def named(self, css):
        """Return the id of the widget with a CSS class."""
        [found] = [key for key, state in self.widgets.items() if css in state.get("_dom_classes", ())]
        return found
