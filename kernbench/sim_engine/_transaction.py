"""Routes and transactions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from kernbench.policy._routing import Part
    from kernbench.sim_engine._causes import Cause
    from kernbench.sim_engine._network import Link


COUNT_BITS = 34  # of messages from one node; the rest of 63 bits numbers the nodes


class Route:
    """The links from one node to another, of the `parts` of a path, along it or back.

    `base` and `sent` of the `first` route from the source make the keys of its transactions. Flits are counted by size:
    bytes and busy time of links follow from these, so nothing is counted per hop. `alternatives` are the equally long
    routes that messages are drawn from, including this one; empty if it is the only one.
    """

    def __init__(
        self, links: tuple[Link, ...], base: int, first: Route | None, flit_bytes: int, parts: Sequence[Part] = ()
    ) -> None:
        self.links, self.base, self.flit_bytes, self.parts = links, base, flit_bytes, parts
        self.first, self.sent = self if first is None else first, 0
        self.reply: Route | None = None
        self.nbytes = 0
        self.logged = -1  # its id in the log
        self._flits = self._latest_flits = 0
        self._latest = flit_bytes  # size of the latest smaller flits, which `_smaller` does not count yet
        self._smaller: dict[int, int] = {}
        self.alternatives: tuple[Route, ...] = ()

    def key(self) -> int:
        """Create a transaction key: the source's number, then its count."""
        first = self.first
        first.sent += 1
        return self.base | first.sent - 1

    def drawn(self) -> Route:
        """Choose among `alternatives` for the message that gets the next key."""
        alternatives = self.alternatives
        if not alternatives:
            return self
        key = self.base | self.first.sent
        return alternatives[blake2b(b"%d" % key, digest_size=1).digest()[0] % len(alternatives)]

    def count(self, nbytes: int) -> int:
        """Count a message of `nbytes` (>= 0); return its number of flits."""
        self.nbytes += nbytes
        n = self.flits(nbytes)
        self.count_flits(n, min(nbytes, self.flit_bytes))
        return n

    def flits(self, nbytes: int) -> int:
        """Count the flits that carry `nbytes`, at least one."""
        return -(-nbytes // self.flit_bytes) or 1

    def count_flits(self, n: int, size: int) -> None:
        if size == self.flit_bytes:
            self._flits += n
        elif size == self._latest:
            self._latest_flits += n
        else:
            self._smaller = self.counts()
            self._latest, self._latest_flits = size, n

    def counts(self) -> dict[int, int]:
        """Return the number of flits so far by size."""
        latest = self._smaller.get(self._latest, 0) + self._latest_flits
        return {**self._smaller, self._latest: latest, self.flit_bytes: self._flits}


class Memory(Protocol):
    """Serves transactions at the end of a route; `by_flit` if it handles every flit of a write."""

    by_flit: bool

    @property
    def busy_ps(self) -> int:
        """Busy time until now [ps]."""

    def on_read(self, txn: Transaction) -> None:
        """Serve a read whose command has arrived."""

    def on_write(self, txn: Transaction) -> None:
        """Handle the arrival of a write's last flit."""


class Transaction:
    """One read or write of `nbytes` >= 1 in one memory, from `src`'s place in the machine.

    `offset` counts from the start of that memory; `lines`, if given, are the 256 B lines touched (else they follow from
    `offset` and `nbytes`). `pieces` are the physical (address, bytes) of the data. `fn(txn)` is called at the end, when
    a read has its `data` and a write's data are in memory. A `posted` write ends there, without an acknowledgement.
    For the log, a memory with queues sets the arrival of the request, the start of the busy period at that time,
    `opener` (the key of the transaction that began it), and the end of service. `asked_ps`, `tile` and `cause` are the
    requester's: time, tile and reason of the request; `number` is the log's.
    """

    def __init__(
        self,
        nbytes: int,
        offset: int,
        fn: Callable[[Transaction], None],
        arg: Any = None,
        lines: Sequence[int] | None = None,
        pieces: Sequence[tuple[int, int]] = (),
        data: np.ndarray | None = None,
    ) -> None:
        self.begins(nbytes, offset, fn, arg, lines)
        self.pieces, self.data = pieces, data

    def begins(
        self,
        nbytes: int,
        offset: int,
        fn: Callable[[Transaction], None],
        arg: Any,
        lines: Sequence[int] | None,
    ) -> None:
        """Set all fields, without data: what a caller in the core does in place of `__init__`."""
        if nbytes < 1:
            raise ValueError(f"cannot read or write {nbytes} bytes: a request has at least one")
        self.nbytes, self.offset, self.fn, self.arg = nbytes, offset, fn, arg
        self.lines, self.pieces, self.data = lines, (), None
        self.pending: list[tuple[int, int]]
        self.arrived = self.end = 0
        self.posted = False
        self.key: int
        self.back: Route
        self.asked_ps = self.tile = self.number = -1
        self.cause: Cause | None = None
        self.arrived_ps = self.since_ps = self.opener = self.served_ps = -1


class Reply:
    """The data of a read on their way back: `done` of its `parts` are ready, and `sent` of its `flits` have left."""

    def begins(self, txn: Transaction, parts: int) -> None:
        self.txn, self.parts, self.flits = txn, parts, txn.back.flits(txn.nbytes)
        self.done = self.sent = 0

    def ready(self) -> int:
        """Return the number of further flits whose share of the parts is ready; they count as sent."""
        n = self.done * self.flits // self.parts - self.sent
        self.sent += n
        return n
