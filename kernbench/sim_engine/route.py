"""A route: the links from one node to another, and a count of what has been sent over them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernbench.units import FLIT_BYTES, flits

if TYPE_CHECKING:
    from kernbench.sim_engine.backend import Link

COUNT_BITS = 34  # of messages from one node; the rest of 63 bits numbers the nodes


class Route:
    """The links from one node to another.

    `base` and `counter` make the keys of the source's transactions. `flits` counts whole flits, `small` messages of
    less by size: every link's bytes and busy time follow from these, so that nothing has to be counted hop by hop.
    """

    __slots__ = ("base", "counter", "flits", "links", "logged", "nbytes", "reply", "small")

    def __init__(self, links: tuple[Link, ...], base: int, counter: list[int]) -> None:
        self.links, self.base, self.counter = links, base, counter
        self.reply: Route | None = None
        self.nbytes = self.flits = 0
        self.logged = -1  # its id in the log
        self.small: dict[int, int] = {}

    def key(self) -> int:
        """Return a new transaction key: the source's place in the machine, then its count."""
        count = self.counter[0]
        self.counter[0] = count + 1
        return self.base | count

    def count(self, nbytes: int) -> tuple[int, int]:
        """Count a message of `nbytes` (>= 0); return how many flits it is, and the bytes of each."""
        self.nbytes += nbytes
        n, size = (flits(nbytes), FLIT_BYTES) if nbytes > FLIT_BYTES else (1, nbytes)
        self.count_flits(n, size)
        return n, size

    def count_flits(self, n: int, size: int) -> None:
        """Count `n` flits of `size` bytes."""
        if size == FLIT_BYTES:
            self.flits += n
        else:
            self.small[size] = self.small.get(size, 0) + n
