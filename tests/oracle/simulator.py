"""Network and memory as docs/model.md states them (sections 3 and 4, M8.6): one event for each flit on each link.

Slow and plain on purpose. It shares with the product the machine's configuration and graph, and nothing else.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import pairwise
from math import ceil, prod

from kernbench.topology.builder import Machine
from tests.oracle.routes import Routes

ACK_BYTES = 16
READ, WRITE = "read", "write"
BULK, QUEUE = 0, 1

Done = Callable[[], None]


def service_ps(nbytes: int, *factors: float) -> int:
    """Return how long `nbytes` occupy a link or channel of a bandwidth, the product of decimals, rounded up (M4.1)."""
    return ceil(nbytes * 1000 / prod(Fraction(str(factor)) for factor in factors))


def flits_of(nbytes: int, most: int) -> list[int]:
    """Return the bytes of each flit of a message (M4.1)."""
    return [nbytes] if nbytes <= most else [most] * ceil(nbytes / most)


def header_bytes(machine: Machine, src: str, dst: str) -> int:
    """Return the bytes of the header of each flit over a link (M4.1)."""
    kinds = machine.graph.node(src).kind, machine.graph.node(dst).kind
    if set(kinds) <= {"io_noc", "sip_switch"}:
        return machine.config.system.sip_link.header_bytes
    return machine.config.cube.noc.header_bytes if "router" in kinds else 0


class Link:
    """A FIFO server, and the wire behind it (M4.1, M4.3)."""

    def __init__(self, machine: Machine, src: str, dst: str) -> None:
        edge = machine.graph.edge(src, dst)
        self.bw_gbs = edge.bw_gbs
        self.header_bytes = header_bytes(machine, src, dst)
        self.latency_ps = edge.latency_ps
        self.rank, self.node = edge.rank, machine.graph.index(dst)
        self.free_ps = 0
        self.served = 0
        self._times: dict[int, int] = {}

    def serve(self, nbytes: int, now: int) -> int:
        """Serve a flit that arrives `now`; return when it arrives behind the link."""
        if nbytes not in self._times:
            self._times[nbytes] = service_ps(nbytes + self.header_bytes, self.bw_gbs)
        self.free_ps = max(now, self.free_ps) + self._times[nbytes]
        self.served += 1
        return self.free_ps + self.latency_ps


class Slice:
    """The channels of an HBM slice (M2.2, M4.5)."""

    def __init__(self, machine: Machine) -> None:
        hbm = machine.config.cube.hbm
        self.burst_bytes = hbm.burst_bytes
        self.channels = hbm.channels
        self.burst_ps = service_ps(hbm.burst_bytes, hbm.channel_bw_gbs, hbm.efficiency)
        self.access_ps = round(hbm.access_ns * 1000)
        self.turnaround_ps = round(hbm.turnaround_ns * 1000)
        self.free_ps = [0] * hbm.channels
        self.direction: list[str | None] = [None] * hbm.channels

    def bursts(self, offset: int, nbytes: int) -> range:
        """Return the numbers of the bursts that the range touches, at least one."""
        return range(offset // self.burst_bytes, (offset + max(nbytes, 1) - 1) // self.burst_bytes + 1)

    def serve(self, burst: int, direction: str, now: int) -> int:
        """Serve a burst that arrives `now`; return when it is done."""
        channel = burst % self.channels
        start = max(now, self.free_ps[channel])
        if self.direction[channel] not in (None, direction):
            start += self.turnaround_ps
        self.direction[channel] = direction
        self.free_ps[channel] = start + self.burst_ps
        return self.free_ps[channel] + (self.access_ps if direction == READ else 0)


class Message:
    """Flits on their way over `links`."""

    def __init__(
        self, links: Sequence[Link], flits: Sequence[int], asked: tuple[int, int], landed: Callable[[int], None]
    ) -> None:
        self.links = links
        self.flits = flits
        self.asked = asked
        self.landed = landed


class Turns:
    """What waits at the link of a PE_DMA: loads and stores, and what queues send (M8.6)."""

    def __init__(self, flits: int) -> None:
        self.flits = flits
        self.lines: tuple[deque[tuple[Message, int]], ...] = (deque(), deque())
        self.last = QUEUE  # irrelevant: the first to ask finds the other line empty
        self.due = False  # a turn that begins when the link is free

    def waiting(self) -> bool:
        """Return whether a message waits."""
        return any(self.lines)

    def next(self) -> tuple[Message, range]:
        """Return the message whose turn it is, and its flits in that turn."""
        both = all(self.lines)
        self.last = 1 - self.last if both else BULK if self.lines[BULK] else QUEUE
        message, first = self.lines[self.last].popleft()
        end = min(first + self.flits, len(message.flits) + 1)
        if end <= len(message.flits):
            self.lines[self.last].appendleft((message, end))
        return message, range(first, end)


class Oracle:
    """A machine's links and memories; times in ps.

    With `turn_bytes`, what queues send from a PE takes turns with the other messages of its PE_DMA (M8.6).
    """

    def __init__(self, machine: Machine, turn_bytes: int | None = None) -> None:
        self.now = 0
        self._turn_flits = None if turn_bytes is None else max(1, turn_bytes // machine.config.system.flit_bytes)
        self._turns: dict[str, Turns] = {}
        self._machine = machine
        self._routes = Routes(machine)
        self._links: dict[tuple[str, str], Link] = {}
        self._slices: dict[str, Slice] = {}
        self._asked: dict[int, int] = {}
        self._heap: list[tuple[int, tuple[int, ...], Callable[..., None], tuple[object, ...]]] = []
        self._calls = 0

    def run(self) -> None:
        """Run until nothing is left to do."""
        while self._heap:
            self.now, _, fn, args = heapq.heappop(self._heap)
            fn(*args)

    def at(self, t: int, fn: Done) -> None:
        """Call `fn()` at `t`."""
        self._calls += 1
        heapq.heappush(self._heap, (t, self.call_key(self._calls), fn, ()))

    def send(self, src: str, dst: str, nbytes: int, done: Done) -> None:
        """Send a message now."""
        self._send(BULK, src, dst, nbytes, done)

    def queue(self, src: str, dst: str, nbytes: int, done: Done) -> None:
        """Send a message of a queue now."""
        self._send(QUEUE, src, dst, nbytes, done)

    def _send(self, line: int, src: str, dst: str, nbytes: int, done: Done) -> None:
        links, _, asked = self._ask(src, dst)
        message = Message(
            links, self._flits(nbytes), asked, lambda flit: done() if flit == len(message.flits) else None
        )
        if self._turn_flits is None or not src.endswith("pe_dma"):
            self._enter_all(message)
        else:
            turns = self._turns.setdefault(src, Turns(self._turn_flits))
            turns.lines[line].append((message, 1))
            if not turns.due and links[0].free_ps <= self.now:
                self._take_turn(src)
            else:
                self._await_turn(src, message)

    def _take_turn(self, src: str) -> None:
        """Begin a turn."""
        turns = self._turns[src]
        turns.due = False
        message, flits = turns.next()
        for flit in flits:
            self._arrive(message, flit, 0)
        if turns.waiting():
            self._await_turn(src, message)

    def _await_turn(self, src: str, message: Message) -> None:
        """Let the next turn begin when the flits on the link of `message` have left it."""
        if not self._turns[src].due:
            self._turns[src].due = True
            free_ps = message.links[0].free_ps
            heapq.heappush(self._heap, (free_ps, self.turn_key(*message.asked), self._take_turn, (src,)))

    def read(self, src: str, memory: str, offset: int, nbytes: int, done: Done) -> None:
        """Read now: a command, the memory, the data (M4.7)."""
        there, back, asked = self._ask(src, memory)
        data = Message(back, self._flits(nbytes), asked, lambda flit: done() if flit == len(data.flits) else None)

        def serve(_: int) -> None:
            if ".sram" in memory:
                self._enter_all(data)
                return
            part = self._slice(memory)
            ends = sorted(part.serve(burst, READ, self.now) for burst in part.bursts(offset, nbytes))
            for flit in range(1, len(data.flits) + 1):
                self._enter(data, flit, ends[ceil(flit * len(ends) / len(data.flits)) - 1])

        self._enter_all(Message(there, [self._machine.config.system.command_bytes], asked, serve))

    def write(self, src: str, memory: str, offset: int, nbytes: int, done: Done) -> None:
        """Write now: the data, the memory, an acknowledgement (M4.7)."""
        there, back, asked = self._ask(src, memory)
        ack = Message(back, [ACK_BYTES], asked, lambda _: done())
        part = None if ".sram" in memory else self._slice(memory)
        bursts = part.bursts(offset, nbytes) if part else []
        ends: list[int] = []

        def serve(flit: int) -> None:
            while len(ends) < len(bursts) and ceil((len(ends) + 1) * len(data.flits) / len(bursts)) <= flit:
                ends.append(part.serve(bursts[len(ends)], WRITE, self.now))
            if flit == len(data.flits):
                self._enter(ack, 1, max(ends, default=self.now))

        data = Message(there, self._flits(nbytes), asked, serve)
        self._enter_all(data)

    def _ask(self, src: str, dst: str) -> tuple[list[Link], list[Link], tuple[int, int]]:
        path = self._routes.path(src, dst)
        node = self._machine.graph.index(src)
        self._asked[node] = self._asked.get(node, 0) + 1
        return self._way(path), self._way(path[::-1]), (node, self._asked[node])

    def _flits(self, nbytes: int) -> list[int]:
        return flits_of(nbytes, self._machine.config.system.flit_bytes)

    def _way(self, path: Sequence[str]) -> list[Link]:
        links = []
        for ends in pairwise(path):
            if ends not in self._links:
                self._links[ends] = Link(self._machine, *ends)
            links.append(self._links[ends])
        return links

    def _slice(self, memory: str) -> Slice:
        if memory not in self._slices:
            self._slices[memory] = Slice(self._machine)
        return self._slices[memory]

    def _enter_all(self, message: Message) -> None:
        for flit in range(1, len(message.flits) + 1):
            self._enter(message, flit, self.now)

    def _enter(self, message: Message, flit: int, t: int) -> None:
        heapq.heappush(self._heap, (t, self.entry_key(message, flit), self._arrive, (message, flit, 0)))

    def _arrive(self, message: Message, flit: int, hop: int) -> None:
        """Let a flit arrive at the start of link number `hop` of its way, or at the end of the way (M4.3, M4.4)."""
        if hop == len(message.links):
            message.landed(flit)
            return
        link = message.links[hop]
        t = link.serve(message.flits[flit - 1], self.now)
        heapq.heappush(self._heap, (t, self.arrival_key(link), self._arrive, (message, flit, hop + 1)))

    # The order of what happens at one instant (M4.4); calls start what enters, so they come first.

    @staticmethod
    def call_key(count: int) -> tuple[int, ...]:
        return 0, count

    @staticmethod
    def entry_key(message: Message, flit: int) -> tuple[int, ...]:
        return 1, *message.asked, flit

    @staticmethod
    def turn_key(node: int, request: int) -> tuple[int, ...]:
        return 3, node, request

    @staticmethod
    def arrival_key(link: Link) -> tuple[int, ...]:
        return 2, link.rank, link.node, link.served
