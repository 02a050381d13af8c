"""What a message through a queue costs on a machine: from its graph, its routes and the closed form of a transfer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

from kernbench.analysis.transfer import Channels, Leg, message, read, write
from kernbench.ccl.lane import Place
from kernbench.components.builtin.pe_math import PeMath
from kernbench.components.command import VectorOp
from kernbench.policy.routing import Router, reverse
from kernbench.topology import naming
from kernbench.units import ns_to_ps, serialization_ps

if TYPE_CHECKING:
    from kernbench.topology.builder import Machine

Pair = tuple[Place, Place]


@dataclass(frozen=True, slots=True)
class Ring:
    """The slots of a queue: where they lie, how many, how large; and the size of a credit."""

    kind: str
    n_slots: int
    slot_bytes: int
    credit_bytes: int


@dataclass(frozen=True, slots=True)
class Memory:
    """How a memory is written and read by a PE: `set_up_ps` for each access, over `there` and `back`.

    TCM has no way to it, only `port_gbs`; SRAM has no `channels`.
    """

    set_up_ps: int = 0
    port_gbs: float = 0.0
    there: tuple[Leg, ...] = ()
    back: tuple[Leg, ...] = ()
    channels: Channels | None = None

    def arrival_ps(self, nbytes: int) -> int:
        """Return what it adds to bytes that arrive at it."""
        if not self.there:
            return serialization_ps(nbytes, self.port_gbs)
        added = write(self.there, self.back, max(1, nbytes), self.channels).memory if self.channels else 0
        return self.set_up_ps + added

    def read_ps(self, nbytes: int) -> int:
        """Return how long its PE takes to read from it."""
        if not self.there:
            return serialization_ps(nbytes, self.port_gbs)
        if self.channels:
            return self.set_up_ps + read(self.there, self.back, max(1, nbytes), self.channels).total
        return self.set_up_ps + message(self.there, 0).total + message(self.back, nbytes).total

    def load_ps(self, nbytes: int) -> int:
        """Return how long a load from HBM takes: no slot, so no set-up."""
        assert self.channels is not None
        return read(self.there, self.back, max(1, nbytes), self.channels).total

    def store_ps(self, nbytes: int) -> int:
        """Return how long a store to HBM takes, acknowledgement included."""
        assert self.channels is not None
        return write(self.there, self.back, max(1, nbytes), self.channels).total


@dataclass(frozen=True)
class Hop:
    """A queue from one PE to another, on an idle machine.

    Attributes
    ----------
    out, back : tuple of Leg
        The way to the ring, and the way of credits.
    ring : Ring
        Its slots.
    memory : Memory
        Where they lie.
    math : PeMath
        The vector engine of the receiver.
    command_ns : float
        Issue of a command.
    itemsize : int
        Bytes of an element.
    """

    out: tuple[Leg, ...]
    back: tuple[Leg, ...]
    ring: Ring
    memory: Memory
    math: PeMath
    command_ns: float
    itemsize: int = 2

    @cached_property
    def alpha_ns(self) -> float:
        """Time of a message of one element."""
        return self.send(self.itemsize)

    @cached_property
    def bw_gbs(self) -> float:
        """Bandwidth of the slowest link."""
        return min(leg.bw_gbs for leg in self.out)

    @cached_property
    def round_trip_ns(self) -> float:
        """From a slot leaving to its credit being back."""
        slot = self.ring.slot_bytes
        back = message(self.back, self.ring.credit_bytes).total
        return (self._part_ps(slot) + self.memory.read_ps(slot) + back) / 1000

    @property
    def window_gbs(self) -> float:
        """What the slots allow: all of them in a round trip."""
        return self.ring.n_slots * self.ring.slot_bytes / self.round_trip_ns

    @property
    def rate_gbs(self) -> float:
        """What it can sustain: the lesser of bandwidth and window."""
        return min(self.bw_gbs, self.window_gbs)

    def send(self, nbytes: float) -> float:
        """Return the time from the send's issue to the end of the receive.

        Notes
        -----
        Parts of a slot leave one after the other, as many as there are slots; then one for each credit that is back.
        """
        slot, slots = self.ring.slot_bytes, self.ring.n_slots
        whole = _up(nbytes)
        before = max(0, -(-whole // slot) - 1)
        part_ns = message(self.out, slot).serialization / 1000
        left_ns = before * part_ns
        if self.round_trip_ns > slots * part_ns:
            left_ns = before // slots * self.round_trip_ns + before % slots * part_ns
        last = whole - before * slot
        return self.command_ns + left_ns + (self._part_ps(last) + self.memory.read_ps(last)) / 1000

    def reduce(self, nbytes: float) -> float:
        """Return the time to add two vectors, in 32 bits."""
        elements = -(-_up(nbytes) // self.itemsize)
        return self.command_ns + self.math.ps([VectorOp("simple", elements, 4)]) / 1000

    def _part_ps(self, nbytes: int) -> int:
        return message(self.out, nbytes).total + self.memory.arrival_ps(nbytes)


class Hops:
    """Hops of one machine."""

    def __init__(self, machine: Machine) -> None:
        self._graph = machine.graph
        self._router = Router(machine.graph)
        self._cube = machine.config.cube
        self._math = PeMath(self._cube.pe.pe_math)

    def hop(self, src: Place, dst: Place, ring: Ring, *, itemsize: int = 2) -> Hop:
        """Return the queue from `src` to `dst`, whose elements are of `itemsize` bytes."""
        credit = reverse(self._router.path(_dma(src), _dma(dst)))
        return Hop(
            self._legs(self._path(src, dst, ring.kind)),
            self._legs(credit),
            ring,
            self.memory(dst, ring.kind),
            self._math,
            self._cube.pe.pe_cpu.command_ns,
            itemsize,
        )

    def shared_gbs(self, pairs: Iterable[Pair], ring: Ring) -> float:
        """Return what each of some queues gets of the bandwidth if all are in use: the least share of a link."""
        paths = (self._path(src, dst, ring.kind) for src, dst in pairs)
        flows = Counter(link for path in paths for link in pairwise(path))
        return min(self._graph.edge(*link).bw_gbs / n for link, n in flows.items())

    def memory(self, place: Place, kind: str) -> Memory:
        """Return the memory of `kind` that a PE uses: its TCM, its cube's SRAM, or its slice of HBM."""
        pe, hbm = self._cube.pe, self._cube.hbm
        if kind == "tcm":
            return Memory(port_gbs=pe.pe_tcm.read_bw_gbs)
        path = self._router.path(_dma(place), _end(place, kind))
        there, back = (self._legs(way) for way in (path, reverse(path)))
        if kind == "sram":
            return Memory(ns_to_ps(pe.pe_ipcq.sram_setup_ns), 0.0, there, back)
        burst_ps = serialization_ps(hbm.burst_bytes, hbm.channel_bw_gbs * hbm.efficiency)
        access, turn = ns_to_ps(hbm.access_ns), ns_to_ps(hbm.turnaround_ns)
        channels = Channels(hbm.channels, hbm.burst_bytes, burst_ps, access, turn)
        return Memory(ns_to_ps(pe.pe_ipcq.hbm_setup_ns), 0.0, there, back, channels)

    def _path(self, src: Place, dst: Place, kind: str) -> tuple[str, ...]:
        return self._router.path(_dma(src), _end(dst, kind))

    def _legs(self, path: Iterable[str]) -> tuple[Leg, ...]:
        edges = (self._graph.edge(a, b) for a, b in pairwise(path))
        return tuple(Leg(edge.bw_gbs, edge.latency_ps, 0) for edge in edges)


@lru_cache(maxsize=8)
def hops_of(machine: Machine) -> Hops:
    """Return the hops of `machine`, the same for as long as it is in use: its routes are found once."""
    return Hops(machine)


def _dma(place: Place) -> str:
    return naming.pe_dma(*place)


def _end(place: Place, kind: str) -> str:
    """Return the node that a ring's bytes arrive at."""
    return {"tcm": naming.pe_dma(*place), "sram": naming.sram(*place[:2]), "hbm": naming.hbm(*place)}[kind]


def _up(nbytes: float) -> int:
    """Return `nbytes` as a whole number: a part of a byte is a byte."""
    return -int(-nbytes // 1)
