"""Loads and stores: a command's bytes as requests to the memories that hold them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kernbench.analysis.causes import READ, WRITE
from kernbench.components.command import Load, Run, Store
from kernbench.components.jobs import Job
from kernbench.sim_engine.op_log import KIND
from kernbench.sim_engine.transfer import Transaction

if TYPE_CHECKING:
    from kernbench.components.pe import Pe


class Request:
    """Bytes of one memory: what one descriptor asks for. `at` says where each piece lies in the command's bytes."""

    __slots__ = ("at", "lines", "nbytes", "node_id", "offset", "pieces", "sent_ps")

    def __init__(self, node_id: str, offset: int) -> None:
        self.node_id, self.offset = node_id, offset
        self.nbytes = self.sent_ps = 0
        self.lines: list[int] | None = None
        self.pieces: list[tuple[int, int]] = []
        self.at: list[int] = []


def requests(pe: Pe, runs: tuple[Run, ...], tiled: bool) -> list[Request]:
    """Return the requests of `runs`: one per piece, or for a pointer tile one per memory, each line once."""
    found: list[Request] = []
    by_node: dict[str, Request] = {}
    at = 0
    for run in runs:
        extra = run.payload - run.nbytes
        for pa, nbytes in pe.mmu.translate(run.va, run.nbytes):
            node_id, offset = pe.engine.locate(pa)
            request = by_node.get(node_id) if tiled else None
            if request is None:
                request = by_node[node_id] = Request(node_id, offset)
                found.append(request)
            if tiled:
                bits = pe.engine.line_bits
                lines = request.lines = request.lines or []
                first = offset >> bits
                if lines and lines[-1] == first:
                    first += 1
                lines.extend(range(first, (offset + nbytes - 1 >> bits) + 1))
            request.nbytes += nbytes + extra
            extra = 0
            request.pieces.append((pa, nbytes))
            request.at.append(at)
            at += nbytes
    return found


class AccessJob(Job):
    """A load or a store: a source of requests for its DMA channel."""

    __slots__ = ("buffer", "left", "requests", "sent", "start_ps")

    def __init__(self, pe: Pe, command: Load | Store, command_id: int, issued: int) -> None:
        super().__init__(pe, command, command_id, issued)
        self.requests = requests(pe, command.runs, command.tiled)
        self.left = len(self.requests)
        self.sent = 0
        self.buffer: np.ndarray | None = None
        self.start_ps = 0

    def next_ps(self) -> int | None:
        """Return when the next request may be issued, or None while the command depends on others."""
        return None if self.waiting else self.ready + self.pe.mmu.lookup_ps

    def issue(self) -> bool:
        """Issue the next request; return True if it was the last."""
        engine, command = self.pe.engine, self.command
        if not self.sent:
            self.start_ps = engine.env._now
            if engine.data:
                if isinstance(command, Store):
                    assert command.compute is not None
                    self.buffer = command.compute(command.inputs[0].array)
                else:
                    self.buffer = np.zeros(sum(n for r in self.requests for _, n in r.pieces), np.uint8)
        request = self.requests[self.sent]
        request.sent_ps = engine.env._now
        self.sent += 1
        txn = Transaction(request.nbytes, request.offset, self._done, request, request.lines, request.pieces)
        if isinstance(command, Load):
            self.pe.dma.port(request.node_id).read(txn)
        else:
            if self.buffer is not None:
                parts = [self.buffer[at : at + n] for at, (_, n) in zip(request.at, request.pieces, strict=True)]
                txn.data = np.concatenate(parts)
            self.pe.dma.port(request.node_id).write(txn)
        return self.sent == len(self.requests)

    def _done(self, txn: Transaction) -> None:
        load = isinstance(self.command, Load)
        if load and txn.data is not None and self.buffer is not None:
            taken = 0
            for at, (_, n) in zip(txn.arg.at, txn.arg.pieces, strict=True):
                self.buffer[at : at + n] = txn.data[taken : taken + n]
                taken += n
        now, log = self.pe.engine.env._now, self.pe.engine.log
        if log.operation:
            log.transfer(txn.arg.sent_ps, now, txn, self.id, -1, READ if load else WRITE)
        self.left -= 1
        if not self.left:
            if log.operation:
                kind = KIND["load" if load else "store"]
                nbytes = sum(r.nbytes for r in self.requests)
                log.row(self.start_ps, now, self.pe.dma.component, kind, self.id, nbytes, 0, -1)
            self.finish(now, self.buffer if load else None)
        (self.pe.dma.reader if load else self.pe.dma.writer).done()
