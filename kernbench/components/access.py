"""Loads and stores: a command's bytes as requests to the memories that hold them."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from kernbench.analysis.causes import READ, WRITE
from kernbench.components.command import Load, Run, Store
from kernbench.components.jobs import Job
from kernbench.sim_engine.op_log import KIND
from kernbench.sim_engine.transfer import Transaction

if TYPE_CHECKING:
    from kernbench.components.builtin.pe_cpu import Program
    from kernbench.components.builtin.pe_dma import Channel
    from kernbench.components.pe import Pe


class Request:
    """Bytes of one memory: what one descriptor asks for. `at` says where each piece lies in the command's bytes."""

    __slots__ = ("at", "lines", "nbytes", "node_id", "offset", "pieces", "sent_ps")

    def __init__(self, node_id: str, offset: int, nbytes: int, pieces: list[tuple[int, int]], at: list[int]) -> None:
        self.node_id, self.offset, self.nbytes, self.pieces, self.at = node_id, offset, nbytes, pieces, at
        self.sent_ps = 0
        self.lines: list[int] | None = None


def requests(pe: Pe, runs: tuple[Run, ...]) -> list[Request]:
    """Return the requests of `runs`, one per piece."""
    found = []
    at = 0
    for run in runs:
        extra = run.payload - run.nbytes
        for pa, nbytes in pe.mmu.translate(run.va, run.nbytes):
            node_id, offset = pe.engine.locate(pa)
            found.append(Request(node_id, offset, nbytes + extra, [(pa, nbytes)], [at]))
            extra = 0
            at += nbytes
    return found


def gathered(pe: Pe, runs: tuple[Run, ...]) -> list[Request]:
    """Return the requests of a pointer tile's `runs`: one per memory, each line once."""
    by_node: dict[str, Request] = {}
    bits = pe.engine.line_bits
    for piece in requests(pe, runs):
        request = by_node.get(piece.node_id)
        if request is None:
            request = by_node[piece.node_id] = piece
            lines = request.lines = []
        else:
            assert request.lines is not None
            lines = request.lines
            request.nbytes += piece.nbytes
            request.pieces += piece.pieces
            request.at += piece.at
        _, nbytes = piece.pieces[-1]
        first = piece.offset >> bits
        if lines and lines[-1] == first:
            first += 1
        lines.extend(range(first, (piece.offset + nbytes - 1 >> bits) + 1))
    return list(by_node.values())


class AccessJob(Job):
    """A load or a store: a source of requests for its DMA channel. `buffer` holds the command's bytes."""

    __slots__ = ("buffer", "left", "requests", "sent", "start_ps")

    is_load: ClassVar[bool] = False
    kind: ClassVar[int]
    move: ClassVar[int]

    def __init__(self, pe: Pe, command: Load | Store, program: Program | None) -> None:
        super().__init__(pe, command, program)
        self.requests = gathered(pe, command.runs) if command.tiled else requests(pe, command.runs)
        self.left = len(self.requests)
        self.sent = self.start_ps = 0
        self.buffer: np.ndarray | None = None
        self.loaded = self.is_load

    def pieces(self) -> list[tuple[list[tuple[int, int]], bool]]:
        """Return the physical memory that it touches: that of its requests."""
        writes = self.command.writes
        return [(request.pieces, writes) for request in self.requests]

    @property
    @abstractmethod
    def channel(self) -> Channel:
        """The DMA's, for what it is."""

    def enter(self) -> None:
        """Queue for the channel."""
        self.channel.queue.append(self)
        self.pe.pump()

    def next_ps(self) -> int | None:
        """Return when the next request may be issued, or None while the command depends on others."""
        return None if self.waiting else self.ready + self.pe.mmu.lookup_ps

    def issue(self) -> bool:
        """Issue the next request; return True if it was the last."""
        request, now = self.requests[self.sent], self.pe.engine.env._now
        request.sent_ps = now
        if not self.sent:
            self.start_ps = now
        self.sent += 1
        txn = Transaction(request.nbytes, request.offset, self._done, request, request.lines, request.pieces)
        self.ask(txn, request)
        return self.sent == len(self.requests)

    @abstractmethod
    def ask(self, txn: Transaction, request: Request) -> None:
        """Start the transaction of a request."""

    def _done(self, txn: Transaction) -> None:
        """Take note of the end of a transaction; the last one ends the command."""
        now, log = self.pe.engine.env._now, self.pe.engine.log
        self.left -= 1
        if log.operation:
            log.transfer(txn.arg.sent_ps, now, txn, self.id, -1, self.move)
            if not self.left:
                nbytes = sum(request.nbytes for request in self.requests)
                log.row(self.start_ps, now, self.pe.dma.component, self.kind, self.id, nbytes, 0, -1)
        if not self.left:
            self.finish(now)
        self.channel.done()


class LoadJob(AccessJob):
    """A load."""

    __slots__ = ()

    is_load, kind, move = True, KIND["load"], READ

    @property
    def channel(self) -> Channel:
        """The one for reads."""
        return self.pe.dma.reader

    def ask(self, txn: Transaction, request: Request) -> None:
        """Start to read."""
        self.pe.dma.port(request.node_id).read(txn)

    def _done(self, txn: Transaction) -> None:
        if txn.data is not None:
            self._take(txn.data, txn.arg)
        super()._done(txn)

    def _take(self, data: np.ndarray, request: Request) -> None:
        """Put the bytes of a request to their places in the command's."""
        if len(self.requests) == 1:
            self.buffer = data
            return
        if self.buffer is None:
            self.buffer = np.zeros(sum(n for r in self.requests for _, n in r.pieces), np.uint8)
        taken = 0
        for at, (_, n) in zip(request.at, request.pieces, strict=True):
            self.buffer[at : at + n] = data[taken : taken + n]
            taken += n

    def result(self) -> np.ndarray | None:
        """Return what the command makes of its bytes."""
        compute = self.command.compute
        return None if compute is None else compute(self.buffer)


class StoreJob(AccessJob):
    """A store: it writes the bytes that its value has when it begins."""

    __slots__ = ()

    kind, move = KIND["store"], WRITE

    @property
    def channel(self) -> Channel:
        """The one for writes."""
        return self.pe.dma.writer

    def ask(self, txn: Transaction, request: Request) -> None:
        """Start to write."""
        if self.pe.engine.data:
            txn.data = self._bytes(request)
        self.pe.dma.port(request.node_id).write(txn)

    def _bytes(self, request: Request) -> np.ndarray:
        command = self.command
        if self.buffer is None:
            assert command.compute is not None
            self.buffer = command.compute(command.inputs[0].array)
        if len(self.requests) == 1:
            return self.buffer
        parts = [self.buffer[at : at + n] for at, (_, n) in zip(request.at, request.pieces, strict=True)]
        return np.concatenate(parts)
