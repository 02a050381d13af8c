"""The kernels of a served page: limits on their number, in total and per visitor, and on the runs of a visitor."""

from __future__ import annotations

import os
from contextvars import ContextVar
from hashlib import sha256
from pathlib import Path
from typing import Any

from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection
from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager
from tornado.web import HTTPError, RequestHandler

from kernbench.notebook._serve import PAGE_RUNS

PROTOCOL = "v1.kernel.websocket.jupyter.org"
MOST_KERNELS, MOST_OF_A_VISITOR, _MOST_RUNS = 16, 3, 500
_visitor: ContextVar[str] = ContextVar("visitor", default="")


def note_visitor(request: RequestHandler, **_: Any) -> None:
    """Store the visitor of the page that is being prepared; Voila calls this before it starts the kernel."""
    _visitor.set(request.current_user.username)


class PageConnection(ZMQChannelsWebsocketConnection):
    """The socket of a page. In the legacy protocol, a message with buffers makes Voila allocate without limit."""

    async def prepare(self) -> None:
        if PROTOCOL not in self.websocket_handler.request.headers.get("Sec-WebSocket-Protocol", ""):
            raise HTTPError(400, reason=f"the socket of a kernel needs the protocol {PROTOCOL}")
        await super().prepare()  # type: ignore[no-untyped-call]


class PageKernels(AsyncMappingKernelManager):
    """One kernel for each open page.

    A visitor who opens more than `MOST_OF_A_VISITOR` loses the oldest one. With `MOST_KERNELS` the server is full. All
    pages of a visitor together start `_MOST_RUNS` runs in an hour.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)  # type: ignore[no-untyped-call]
        self._visitors: dict[str, str] = {}
        self._starting = 0

    async def start_kernel(self, **kwargs: Any) -> str:  # type: ignore[override]  # of the class for one thread
        visitor = _visitor.get()
        self._visitors = {kernel: who for kernel, who in self._visitors.items() if kernel in self}
        own = [kernel for kernel, who in self._visitors.items() if who == visitor]
        for kernel in own[: len(own) - MOST_OF_A_VISITOR + 1]:
            await self.shutdown_kernel(kernel)  # type: ignore[no-untyped-call]
        if len(self) + self._starting >= MOST_KERNELS:
            raise HTTPError(503, reason=f"{MOST_KERNELS} pages are open, no more fit on this server; try later")
        counted = Path(self.connection_dir) / f"{sha256(visitor.encode()).hexdigest()[:16]}.runs"
        kwargs["env"] = {**kwargs.get("env", os.environ), PAGE_RUNS: f"{_MOST_RUNS} {counted}"}
        self._starting += 1
        try:
            kernel_id: str = await super().start_kernel(**kwargs)
        finally:
            self._starting -= 1
        self._visitors[kernel_id] = visitor
        return kernel_id
