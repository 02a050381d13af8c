"""Memories at the ends of routes, in plain SimPy: a process per HBM channel; SRAM, which only its link limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import simpy

from tests.reference.network import Arrival, Key, Message, Network, flits, service_ps

ACK = 16


@dataclass(eq=False, slots=True)
class Request:
    """A read or write of `nbytes` from `offset`; answers go over `back`, and `done()` is called at the end."""

    key: Key
    offset: int
    nbytes: int
    back: tuple[str, ...]
    done: Callable[[], None]
    arrived: int = 0
    finished: int = 0
    left: int = 0


class Sram:
    """Answers at once."""

    def __init__(self, network: Network) -> None:
        self.network = network

    def on_read(self, request: Request) -> None:
        """Take a read command."""
        self.network.send(request.back, request.nbytes, request.key, request.done)

    def on_flit(self, request: Request) -> None:
        """Take a flit of a write."""
        request.arrived += 1
        if request.arrived == flits(request.nbytes):
            self.network.send(request.back, ACK, request.key, request.done)


class Channel:
    """A server of bursts, in order of arrival; a change of direction costs extra."""

    def __init__(self, env: simpy.Environment, burst_ps: int, turn_ps: int) -> None:
        self.env, self.burst_ps, self.turn_ps = env, burst_ps, turn_ps
        self.queue = simpy.Store(env)
        env.process(self._serve())

    def _serve(self) -> Iterator[simpy.Event]:
        before = None
        while True:
            direction, finished = yield self.queue.get()
            if before not in (None, direction):
                yield self.env.timeout(self.turn_ps)
            before = direction
            yield self.env.timeout(self.burst_ps)
            finished()


class HbmSlice:
    """Channels that take turns burst by burst over the addresses.

    Of m bursts and q flits, flit j of a read leaves when ceil((j + 1) m / q) bursts are there, and burst i of a
    write can be served when ceil((i + 1) q / m) flits are there.
    """

    def __init__(self, network: Network, hbm: Any) -> None:
        self.network, self.env = network, network.env
        self.burst_bytes = hbm.burst_bytes
        self.access_ps = round(hbm.access_ns * 1000)
        burst_ps = service_ps(hbm.burst_bytes, hbm.channel_bw_gbs * hbm.efficiency)
        self.channels = [Channel(self.env, burst_ps, round(hbm.turnaround_ns * 1000)) for _ in range(hbm.channels)]

    def _bursts(self, request: Request) -> list[int]:
        first = request.offset // self.burst_bytes
        last = (request.offset + request.nbytes - 1) // self.burst_bytes
        return list(range(first, last + 1))

    def _serve(self, burst: int, direction: str, finished: Callable[[], None]) -> None:
        self.channels[burst % len(self.channels)].queue.put((direction, finished))

    def on_read(self, request: Request) -> None:
        """Take a read command: all its bursts are asked for, in the order of their addresses."""
        bursts, q = self._bursts(request), flits(request.nbytes)
        request.left = q
        due = [_ceil(j * len(bursts), q) for j in range(1, q + 1)]
        message = Message(
            self.network.links(request.back), request.key, min(request.nbytes, 256), self._landed(request)
        )

        def finished() -> None:
            request.finished += 1
            for _ in range(due.count(request.finished)):
                Arrival(self.env, self.access_ps, -1, own(request.key), message.links[0].put, message, 0)

        for burst in bursts:
            self._serve(burst, "read", finished)

    @staticmethod
    def _landed(request: Request) -> Callable[[], None]:
        def landed() -> None:
            request.left -= 1
            if not request.left:
                request.done()

        return landed

    def on_flit(self, request: Request) -> None:
        """Take a flit of a write, and serve the bursts that are complete with it."""
        bursts, q = self._bursts(request), flits(request.nbytes)
        m = len(bursts)
        request.arrived += 1

        def finished() -> None:
            request.finished += 1
            if request.finished == m:
                Arrival(
                    self.env, 0, -1, own(request.key), self.network.send, request.back, ACK, request.key, request.done
                )

        for i, burst in enumerate(bursts):
            if _ceil((i + 1) * q, m) == request.arrived:
                self._serve(burst, "write", finished)


def _ceil(a: int, b: int) -> int:
    return (a + b - 1) // b


def own(key: Key) -> int:
    """Return the place of what a memory does with a request among all that it does at that instant."""
    source, count = key
    return source << 64 | count
