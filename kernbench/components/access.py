"""Loads and stores: a command's bytes as requests to the memories that hold them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kernbench.analysis.records import READ, WRITE
from kernbench.components.command import Load, Run, Store
from kernbench.components.jobs import Job
from kernbench.sim_engine.op_log import KIND
from kernbench.sim_engine.transfer import Transaction

if TYPE_CHECKING:
    from kernbench.components.builtin.pe_cpu import Program
    from kernbench.components.builtin.pe_dma import Channel
    from kernbench.components.pe import Pe


_LOAD, _STORE = KIND["load"], KIND["store"]


class Request:
    """Bytes of one memory: what one descriptor asks for. `at` says where each piece lies in the command's bytes."""

    __slots__ = ("at", "lines", "nbytes", "node_id", "offset", "pieces")

    def __init__(self, node_id: str, offset: int, nbytes: int, pieces: list[tuple[int, int]], at: list[int]) -> None:
        self.node_id, self.offset, self.nbytes, self.pieces, self.at = node_id, offset, nbytes, pieces, at
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

    __slots__ = ("buffer", "channel", "kind", "left", "move", "requests", "sent", "start_ps")

    def asks(self, command: Load | Store, channel: Channel, kind: int, move: int) -> None:
        """Set what is asked for, over which channel of the DMA, and how the log calls the command and its requests."""
        pe: Any = self.pe
        self.requests = gathered(pe, command.runs) if command.tiled else requests(pe, command.runs)
        self.left = len(self.requests)
        self.sent = self.start_ps = 0
        self.buffer: np.ndarray | None = None
        self.channel, self.kind, self.move = channel, kind, move

    def pieces(self) -> list[tuple[list[tuple[int, int]], bool]]:
        """Return the physical memory that it touches: that of its requests."""
        writes = self.command.writes
        return [(request.pieces, writes) for request in self.requests]

    def enter(self) -> None:
        """Queue for the channel."""
        self.channel.queue.append(self)
        self.pe.pump()

    def next_ps(self) -> int:
        """Return when the next request may be issued, or -1 while the command depends on others."""
        return -1 if self.waiting else self.ready + self.pe.mmu.lookup_ps

    def issue(self) -> bool:
        """Issue the next request; return True if it was the last."""
        request, now = self.requests[self.sent], self.pe.core.now
        if not self.sent:
            self.start_ps = now
        self.sent += 1
        txn = Transaction(request.nbytes, request.offset, self, request, request.lines, request.pieces)
        txn.asked_ps = now
        self.ask(txn, request)
        return self.sent == len(self.requests)

    def ask(self, txn: Transaction, request: Request) -> None:
        """Start the transaction of a request."""
        raise TypeError(f"{type(self).__name__} does not say how it asks")

    def landed(self, arg: Any) -> None:
        """Take note of the end of a transaction; the last one ends the command."""
        txn: Transaction = arg
        now, log = self.pe.core.now, self.pe.log
        self.left -= 1
        if log.operation:
            log.transfer(txn.asked_ps, now, txn, self.id, -1, self.move)
            if not self.left:
                nbytes = sum([request.nbytes for request in self.requests])
                log.row(self.start_ps, now, self.pe.dma.component, self.kind, self.id, nbytes, 0, -1)
        if not self.left:
            self.finish(now)
        self.channel.done()


class LoadJob(AccessJob):
    """A load."""

    __slots__ = ()

    def __init__(self, pe: Pe, command: Load, program: Program | None) -> None:
        self.begins(pe, command, program)
        self.asks(command, pe.dma.reader, _LOAD, READ)
        self.loaded = True

    def ask(self, txn: Transaction, request: Request) -> None:
        """Start to read."""
        self.pe.dma.port(request.node_id).read(txn)

    def landed(self, arg: Any) -> None:
        """Take the bytes of a request."""
        txn: Transaction = arg
        if txn.data is not None:
            self._take(txn.data, txn.arg)
        AccessJob.landed(self, txn)

    def _take(self, data: np.ndarray, request: Request) -> None:
        """Put the bytes of a request to their places in the command's."""
        if len(self.requests) == 1:
            self.buffer = data
            return
        if self.buffer is None:
            self.buffer = np.zeros(sum([n for r in self.requests for _, n in r.pieces]), np.uint8)
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

    def __init__(self, pe: Pe, command: Store, program: Program | None) -> None:
        self.begins(pe, command, program)
        self.asks(command, pe.dma.writer, _STORE, WRITE)

    def ask(self, txn: Transaction, request: Request) -> None:
        """Start to write."""
        if self.pe.data:
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
