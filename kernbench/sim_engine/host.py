"""The host's own traffic: copies between its memory and the machine's, through no CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import simpy

from kernbench.analysis.records import READ, WRITE
from kernbench.sim_engine.op_log import KIND
from kernbench.sim_engine.transfer import Transaction
from kernbench.topology import naming

if TYPE_CHECKING:
    from kernbench.sim_engine.engine import GraphEngine


class HostCopy:
    """A copy of `pieces` (physical address, bytes), one transaction each, all sent at once."""

    def __init__(
        self, engine: GraphEngine, pieces: Sequence[tuple[int, int]], data: np.ndarray | None, write: bool
    ) -> None:
        self.engine, self.pieces, self.write = engine, list(pieces), write
        self.done = simpy.Event(engine.env)
        self._start = engine.env._now
        self._id = engine.log.command("h2d" if write else "d2h")
        self._left = len(self.pieces)
        self._parts: list[np.ndarray | None] = [None] * self._left
        if not self.pieces:
            self.done.succeed(np.zeros(0, np.uint8) if engine.data and not write else None)
        if self.pieces and (races := engine.races(engine.addresses.locate(self.pieces[0][0]).sip)) is not None:
            engine.guarded(lambda: races.host(self.pieces, write))
        at = 0
        for i, (pa, nbytes) in enumerate(self.pieces):
            node_id, offset = engine.locate(pa)
            txn = Transaction(nbytes, offset, self._finished, i, None, [(pa, nbytes)])
            route = engine.fabric.route(naming.HOST, node_id)
            if write:
                txn.data = None if data is None else data[at : at + nbytes]
                txn.write(engine.fabric, route, engine.part(node_id))
            else:
                txn.read(engine.fabric, route, engine.part(node_id))
            at += nbytes

    def _finished(self, txn: Transaction) -> None:
        if not self.write:
            self._parts[txn.arg] = txn.data
        engine, log = self.engine, self.engine.log
        if log.operation:
            log.transfer(self._start, engine.env._now, txn, self._id, -1, WRITE if self.write else READ)
        self._left -= 1
        if self._left:
            return
        if log.operation:
            name = "h2d" if self.write else "d2h"
            nbytes = sum(n for _, n in self.pieces)
            log.row(self._start, engine.env._now, log.component(naming.HOST), KIND[name], self._id, nbytes, 0, -1)
        parts = [part for part in self._parts if part is not None]
        self.done.succeed(np.concatenate(parts) if parts else None)
