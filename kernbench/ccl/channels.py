"""The channel model: what a message through a queue costs on a machine, from its routes and the form of a transfer."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

from kernbench.analysis.transfer import Channels, Leg, message, read, write
from kernbench.ccl.group import Place, Target
from kernbench.components.builtin.pe_units import PeMath
from kernbench.components.command import VectorOp
from kernbench.policy.routing import Router, reverse
from kernbench.topology import naming
from kernbench.units import ns_to_ps, serialization_ps

if TYPE_CHECKING:
    from kernbench.topology.builder import Machine


@dataclass(frozen=True, slots=True, eq=False)
class Ends:
    """The PEs at both ends of queues from one SIP to another; pairs of SIPs may share one `Ends`."""

    pairs: tuple[tuple[Target, Target], ...]


# Queues in use at the same time, by the SIPs that they connect.
Flows = Mapping[tuple[int, int], Ends]


@dataclass(frozen=True, slots=True)
class RingBuffer:
    """The slots of a queue: kind of memory, number and size; and the size of a credit."""

    kind: str
    n_slots: int
    slot_bytes: int
    credit_bytes: int


@dataclass(frozen=True, slots=True)
class PeMemory:
    """How a PE writes and reads a memory: `set_up_ps` for each access, over `there` and `back`.

    TCM has ports only, for what arrives and for what is read; SRAM has no `channels`.
    """

    set_up_ps: int = 0
    in_gbs: float = 0.0
    out_gbs: float = 0.0
    there: tuple[Leg, ...] = ()
    back: tuple[Leg, ...] = ()
    channels: Channels | None = None

    @property
    def passes_gbs(self) -> float:
        """Return the rate at which bytes can arrive and be read again; that of SRAM is its links'."""
        if not self.there:
            return min(self.in_gbs, self.out_gbs)
        return self.hbm_gbs / 2 if self.channels else float("inf")

    @property
    def hbm_gbs(self) -> float:
        """Return what all channels of HBM serve together."""
        assert self.channels is not None
        return self.channels.count * self.channels.burst_bytes * 1000 / self.channels.burst_ps

    def arrival_ps(self, nbytes: int) -> int:
        """Return what it adds to bytes that arrive at it."""
        if not self.there:
            return serialization_ps(nbytes, self.in_gbs)
        added = write(self.there, self.back, max(1, nbytes), self.channels).memory if self.channels else 0
        return self.set_up_ps + added

    def read_ps(self, nbytes: int) -> int:
        """Return how long its PE takes to read from it."""
        if not self.there:
            return serialization_ps(nbytes, self.out_gbs)
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


@dataclass(frozen=True, eq=False)
class Channel:
    """A queue from one PE to another, on an idle machine; equal ones of a machine are one object.

    Attributes
    ----------
    out, back : tuple of Leg
        The route to the ring, and the route of credits.
    ring : Ring
        Its slots.
    memory : PeMemory
        The memory that contains them.
    math : PeMath
        The vector engine of the receiver.
    command_ns : float
        Issue of a command.
    itemsize : int
        Bytes of an element.
    """

    out: tuple[Leg, ...]
    back: tuple[Leg, ...]
    ring: RingBuffer
    memory: PeMemory
    math: PeMath
    command_ns: float
    itemsize: int = 2
    _known: dict[tuple[str, int], float] = field(default_factory=dict, repr=False)  # for any number of slots

    def with_slots(self, n_slots: int) -> Channel:
        """Return the same queue with another number of slots."""
        return replace(self, ring=replace(self.ring, n_slots=n_slots))

    @cached_property
    def alpha_ns(self) -> float:
        """Time of a message of one element."""
        return self.send(self.itemsize)

    @cached_property
    def bw_gbs(self) -> float:
        """Bandwidth of the slowest link."""
        return min(leg.bw_gbs for leg in self.out)

    @property
    def round_trip_ns(self) -> float:
        """From a slot leaving to its credit being back."""
        return self._round_trip_ns(self.ring.slot_bytes)

    @property
    def window_gbs(self) -> float:
        """What the slots allow: all of them in a round trip."""
        return self.window(self.ring.slot_bytes)

    def window(self, nbytes: int, more_ns: float = 0.0) -> float:
        """Return what the slots allow messages of `nbytes` [GB/s], each taken for `more_ns` longer than if idle."""
        held = min(nbytes, self.ring.slot_bytes)
        return self.ring.n_slots * held / (self._round_trip_ns(held) + more_ns)

    @property
    def rate_gbs(self) -> float:
        """What it can sustain: the lower of bandwidth and window."""
        return min(self.bw_gbs, self.window_gbs)

    def send(self, nbytes: float) -> float:
        """Return the time from the send's issue to the end of the receive.

        Parts of one slot each leave one after the other, as many as there are slots; then one for each returned credit.
        """
        slot, slots = self.ring.slot_bytes, self.ring.n_slots
        whole = _up(nbytes)
        before = max(0, -(-whole // slot) - 1)
        left_ns = 0.0
        if before:
            part_ns = message(self.out, slot).serialization / 1000
            left_ns = max(before * part_ns, before // slots * self.round_trip_ns + before % slots * part_ns)
        last = whole - before * slot
        return self.command_ns + left_ns + self._received_ns(last)

    def reduce(self, nbytes: float, adds: int = 1) -> float:
        """Return the time to add vectors to one, in 32 bits: more than one to a widened copy, which is rounded then."""
        passes = adds if adds < 2 or self.itemsize > 2 else adds + 2
        elements = -(-_up(nbytes) // self.itemsize)
        return passes * (self.command_ns + self.math.ps([VectorOp("simple", elements, 4)]) / 1000)

    def _round_trip_ns(self, nbytes: int) -> float:
        found = self._known.get(("round trip", nbytes))
        if found is None:
            back_ns = message(self.back, self.ring.credit_bytes).total / 1000
            found = self._known["round trip", nbytes] = self._received_ns(nbytes) + back_ns
        return found

    def _received_ns(self, nbytes: int) -> float:
        """Return the time from a part's leaving to its being read."""
        found = self._known.get(("received", nbytes))
        if found is None:
            arrived = message(self.out, nbytes).total + self.memory.arrival_ps(nbytes)
            found = self._known["received", nbytes] = (arrived + self.memory.read_ps(nbytes)) / 1000
        return found


class ChannelModel:
    """The channels of one machine, equal in all SIPs: each kind of route is examined once."""

    def __init__(self, machine: Machine) -> None:
        self._graph = machine.graph
        self._router = Router(machine.graph)
        self._cube = machine.config.cube
        self._math = PeMath(self._cube.pe.pe_math)
        self._command_ns = self._cube.pe.pe_cpu.command_ns
        self._channels: dict[tuple[object, ...], Channel] = {}
        self._links_of: dict[tuple[object, ...], tuple[tuple[str, str], ...]] = {}
        self._passes: dict[str, float] = {}
        self._bw_gbs: dict[tuple[str, str], float] = {}
        self._between: dict[tuple[int, int], tuple[tuple[int, int], ...]] = {}

    def channel(self, src: Place, dst: Place, ring: RingBuffer, *, itemsize: int = 2) -> Channel:
        """Return the queue from `src` to `dst`, whose elements are of `itemsize` bytes."""
        key = (src[1:], dst[1:], len(self._crossed(src[0], dst[0])), ring, itemsize)
        found = self._channels.get(key)
        if found is None:
            out = self._legs(self._router.path(_dma(src), _end(dst, ring.kind)))
            back = self._legs(reverse(self._router.path(_dma(src), _dma(dst))))
            memory = self.memory(dst, ring.kind)
            equal = (out, back, memory, ring, itemsize)
            if equal not in self._channels:
                self._channels[equal] = Channel(out, back, ring, memory, self._math, self._command_ns, itemsize)
            found = self._channels[key] = self._channels[equal]
        return found

    def counted(self, flows: Flows, ring: RingBuffer, *, itemsize: int = 2) -> Counter[Channel]:
        """Return the queues of some flows, and how many of each there are."""
        times: Counter[tuple[Ends, int]] = Counter()
        one: dict[int, tuple[int, int]] = {}
        for sips, ends in flows.items():
            far = len(self._crossed(*sips))
            times[ends, far] += 1
            one[far] = sips
        found: Counter[Channel] = Counter()
        for (ends, far), n in times.items():
            src, dst = one[far]
            for a, b in ends.pairs:
                found[self.channel((src, *a), (dst, *b), ring, itemsize=itemsize)] += n
        return found

    def shared_gbs(self, flows: Flows, ring: RingBuffer) -> float:
        """Return what each queue of some flows gets if all are in use: the lowest share of a link, or a ring's memory.

        SIPs whose PEs have the same queues are examined once.
        """
        inside: dict[int, Counter[tuple[Ends, str]]] = defaultdict(Counter)
        between: Counter[tuple[int, int]] = Counter()
        for (src, dst), ends in flows.items():
            inside[src][ends, "within" if src == dst else "out"] += 1
            if src != dst:
                inside[dst][ends, "in"] += 1
                for sips in self._crossed(src, dst):
                    between[sips] += len(ends.pairs)
        shares = [self._graph.edge(*map(naming.io_noc, sips)).bw_gbs / n for sips, n in between.items()]
        for kinds in {frozenset(kinds.items()) for kinds in inside.values()}:
            links: Counter[tuple[str, str]] = Counter()
            arriving: Counter[Target] = Counter()
            for (ends, part), n in kinds:
                for a, b in ends.pairs:
                    for link in self._links(a, b, part, ring.kind):
                        links[link] += n
                    if part != "out":
                        arriving[b] += n
            shares += [self._bw_gbs[link] / n for link, n in links.items()]
            if arriving:
                shares.append(self._passes_gbs(ring.kind) / max(arriving.values()))
        return min(shares)

    def memory(self, place: Place, kind: str) -> PeMemory:
        """Return the memory of `kind` that a PE uses: its TCM, its cube's SRAM, or its slice of HBM."""
        pe, hbm = self._cube.pe, self._cube.hbm
        if kind == "tcm":
            return PeMemory(in_gbs=pe.pe_tcm.write_bw_gbs, out_gbs=pe.pe_tcm.read_bw_gbs)
        path = self._router.path(_dma(place), _end(place, kind))
        there, back = self._legs(path), self._legs(reverse(path))
        if kind == "sram":
            return PeMemory(ns_to_ps(pe.pe_ipcq.sram_setup_ns), there=there, back=back)
        burst_ps = hbm.burst_ps
        channels = Channels(hbm.channels, hbm.burst_bytes, burst_ps, ns_to_ps(hbm.access_ns))
        return PeMemory(ns_to_ps(pe.pe_ipcq.hbm_setup_ns), there=there, back=back, channels=channels)

    def _crossed(self, src: int, dst: int) -> tuple[tuple[int, int], ...]:
        """Return the links between SIPs from one to another."""
        if (src, dst) not in self._between:
            self._between[src, dst] = tuple(pairwise(self._graph.sips.path(src, dst)))
        return self._between[src, dst]

    def _links(self, src: Target, dst: Target, part: str, kind: str) -> tuple[tuple[str, str], ...]:
        """Return links from one PE to the ring of another: "within" a SIP, or those "out" of one and "in" another."""
        key = (src, dst, part, kind)
        if key not in self._links_of:
            to = 0 if part == "within" else 1
            path = list(pairwise(self._router.path(_dma((0, *src)), _end((to, *dst), kind))))
            self._links_of[key] = self._inside(path, to if part == "in" else 0)
        return self._links_of[key]

    def _passes_gbs(self, kind: str) -> float:
        if kind not in self._passes:
            self._passes[kind] = self.memory((0, 0, 0), kind).passes_gbs
        return self._passes[kind]

    def _inside(self, links: Iterable[tuple[str, str]], sip: int) -> tuple[tuple[str, str], ...]:
        """Return the links inside a SIP, by names without it."""
        prefix = naming.sip(sip) + "."
        found = [(a, b) for a, b in links if a.startswith(prefix) and b.startswith(prefix)]
        names = tuple((a.removeprefix(prefix), b.removeprefix(prefix)) for a, b in found)
        self._bw_gbs.update(zip(names, (self._graph.edge(a, b).bw_gbs for a, b in found), strict=True))
        return names

    def _legs(self, path: Iterable[str]) -> tuple[Leg, ...]:
        edges = (self._graph.edge(a, b) for a, b in pairwise(path))
        return tuple(Leg(edge.bw_gbs, edge.latency_ps, 0) for edge in edges)


@lru_cache(maxsize=32)
def channel_model(machine: Machine) -> ChannelModel:
    """Return the model of `machine`, kept while it is in use: its routes are found once."""
    return ChannelModel(machine)


def _dma(place: Place) -> str:
    return naming.pe_dma(*place)


def _end(place: Place, kind: str) -> str:
    """Return the node that a ring's bytes arrive at."""
    return {"tcm": naming.pe_dma(*place), "sram": naming.sram(*place[:2]), "hbm": naming.hbm(*place)}[kind]


def _up(nbytes: float) -> int:
    """Return `nbytes` as a whole number: a part of a byte is a byte."""
    return -int(-nbytes // 1)
