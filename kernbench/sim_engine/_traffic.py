"""Synthetic traffic: a terminal that sends packets at given times, and notes when each has arrived."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kernbench.sim_engine._callee import Callee

if TYPE_CHECKING:
    from kernbench.sim_engine._network import Core
    from kernbench.sim_engine._transaction import Route


class Terminal(Callee):
    """Sends packet i of `nbytes` over `routes[to[i]]` at `sent_ps[i]`, in order; it arrives at `arrived_ps[i]`."""

    def __init__(self, core: Core, routes: Sequence[Route], to: np.ndarray, sent_ps: np.ndarray, nbytes: int) -> None:
        self._core, self._routes, self._nbytes = core, list(routes), nbytes
        self._to, self._sent = to.astype(np.int64), sent_ps.astype(np.int64)
        self.arrived_ps = self._arrived = np.full(len(to), -1, np.int64)
        self._next = -1
        self.woken(0, None)

    def woken(self, what: int, arg: Any) -> None:
        """Send the next packet, and schedule the one after it."""
        i = self._next
        if i >= 0:
            route = self._routes[self._to[i]].drawn()
            n = route.count(self._nbytes)
            self._core.put(route.links, n, min(self._nbytes, route.flit_bytes), route.key(), self, i)
        self._next = i = i + 1
        if i < len(self._sent):
            self._core.wake_at(int(self._sent[i]), self, 0, None)

    def landed(self, arg: Any) -> None:
        i = arg
        self._arrived[i] = self._core.now
