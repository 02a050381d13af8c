"""Every flit on every link, in plain SimPy: the truth that the engine is held to.

A process per link takes flits from a Store, one after another; nothing is computed ahead and nothing skipped.
A message of n bytes is one flit of n bytes up to 256, else ceil(n / 256) whole flits. What arrives at one
instant over different links arrives in the order of their ranks (of equal ones, of the nodes behind them), what
arrives over one in the order in which it left it, after whatever else happens at that instant; an arrival that
another one causes without any delay takes its turn among the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

import simpy

from kernbench.topology.graph import Edge

FLIT = 256
Key = tuple[int, int]


def service_ps(nbytes: int, bw_gbs: float) -> int:
    """Time that `nbytes` take at `bw_gbs`, rounded up to a picosecond; a float is the fraction that it is."""
    exact = Fraction(nbytes * 1000) / Fraction(bw_gbs)
    return -(-exact.numerator // exact.denominator)


class Arrival(simpy.Event):
    """Call `fn(*args)` in `delay` ps, among the arrivals of that instant."""

    def __init__(self, env: simpy.Environment, delay: int, rank: int, order: int, fn: Callable, *args) -> None:
        super().__init__(env)
        self._ok, self._value = True, None
        self.callbacks.append(lambda _: fn(*args))
        after_the_rest = simpy.events.NORMAL + 1
        env.schedule(self, after_the_rest + (rank + 1 << 128 | order), delay)


@dataclass(eq=False, slots=True)
class Message:
    """Flits of one size, all with one key, over the same links; `arrived` is called for each at its end."""

    links: list[Link]
    key: Key
    size: int
    arrived: Callable[[], None]


class Hop(NamedTuple):
    """A flit of message `key` on a link."""

    key: Key
    link: str
    nbytes: int
    arrival_ps: int
    start_ps: int
    end_ps: int


class Link:
    """A server of flits, first come, first served, with a latency behind it."""

    def __init__(self, env: simpy.Environment, edge: Edge, place: int, hops: list[Hop]) -> None:
        self.env, self.edge, self.hops = env, edge, hops
        self.name = f"{edge.src}->{edge.dst}"
        self.queue = simpy.Store(env)
        self.served = place << 64
        env.process(self._serve())

    def put(self, message: Message, hop: int) -> None:
        """Queue a flit that is at this link, the `hop`-th of its message's way."""
        self.queue.put((message, hop, self.env.now))

    def _serve(self) -> Iterator[simpy.Event]:
        while True:
            message, hop, arrival = yield self.queue.get()
            start = self.env.now
            yield self.env.timeout(service_ps(message.size, self.edge.bw_gbs))
            self.hops.append(Hop(message.key, self.name, message.size, arrival, start, self.env.now))
            self.served += 1
            Arrival(self.env, self.edge.latency_ps, self.edge.rank, self.served, self._deliver, message, hop + 1)

    @staticmethod
    def _deliver(message: Message, hop: int) -> None:
        if hop < len(message.links):
            message.links[hop].put(message, hop)
        else:
            message.arrived()


class Network:
    """Links, made when first used. `edge(src, dst)` describes one, `index(node)` is a node's place in the machine."""

    def __init__(
        self, env: simpy.Environment, edge: Callable[[str, str], Edge], index: Callable[[str], int] = lambda _: 0
    ) -> None:
        self.env, self._edge, self._index = env, edge, index
        self._links: dict[tuple[str, str], Link] = {}
        self.hops: list[Hop] = []

    def links(self, path: tuple[str, ...]) -> list[Link]:
        """Return the links along a path of nodes."""
        found = []
        for pair in pairwise(path):
            if pair not in self._links:
                self._links[pair] = Link(self.env, self._edge(*pair), self._index(pair[1]), self.hops)
            found.append(self._links[pair])
        return found

    def send(self, path: tuple[str, ...], nbytes: int, key: Key, done: Callable[[], None]) -> None:
        """Send `nbytes`; `done()` is called when the last byte has arrived."""
        left = flits(nbytes)

        def arrived() -> None:
            nonlocal left
            left -= 1
            if not left:
                done()

        self.stream(path, nbytes, key, arrived)

    def stream(self, path: tuple[str, ...], nbytes: int, key: Key, arrived: Callable[[], None]) -> None:
        """Send `nbytes`; `arrived()` is called for each flit."""
        message = Message(self.links(path), key, min(nbytes, FLIT), arrived)
        for _ in range(flits(nbytes)):
            message.links[0].put(message, 0)


def flits(nbytes: int) -> int:
    """Return how many flits carry `nbytes`."""
    return 1 if nbytes <= FLIT else (nbytes + FLIT - 1) // FLIT
