"""The closed form of an algorithm on a machine: its form, over the queues that its plan has.

A form (kernbench.ccl.cost) knows steps and sizes, a shape (kernbench.ccl.shapes) which levels an algorithm has. Here
stands what messages cost over the queues of each level: cut into chunks as the algorithms cut them, and sharing the
links and memories that queues in use at the same time have in common.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from kernbench.ccl import cost
from kernbench.ccl.algorithms.moves import Cut
from kernbench.ccl.hops import Ends, Flows, Hop, hops_of
from kernbench.ccl.hops import Ring as Slots
from kernbench.ccl.lane import Target
from kernbench.ccl.shapes import SHAPES, Part, both_ways
from kernbench.units import FLIT_BYTES

if TYPE_CHECKING:
    from kernbench.ccl.plan import Plan
    from kernbench.topology.builder import Machine

_HERE = "kernbench.ccl.algorithms."


class Use(NamedTuple):
    """A queue in use.

    Attributes
    ----------
    hop : Hop
        What it is on an idle machine.
    share_gbs : float
        What links give it while all that are in use with it are.
    fan : int
        How many vectors its receiver adds up.
    """

    hop: Hop
    share_gbs: float
    fan: int = 1

    def sent(self, chunk: int) -> float:
        """Return the time of a chunk: alone, or behind those that share its links."""
        first = min(chunk, FLIT_BYTES)
        return max(self.hop.send(chunk), self.hop.send(first) - first / self.hop.bw_gbs + chunk / self.share_gbs)


@dataclass(frozen=True)
class Queues:
    """Queues that are used alike: a network of `cost`. A message takes the mean of their times, at the least rate.

    Attributes
    ----------
    uses : mapping of Use to int
        Those whose times count, and how often each.
    hops : frozenset of Hop
        All: the slowest sets the rate.
    share_gbs : float
        What links give each of them while all are in use.
    ready : bool
        Whether what fits into the slots of a queue leaves before it is asked for, while others are in use.
    chunk : int
        Bytes of the messages that longer ones are cut into.
    """

    uses: Mapping[Use, int]
    hops: frozenset[Hop]
    share_gbs: float
    ready: bool = False
    chunk: int = 0

    def with_slots(self, n_slots: int) -> Queues:
        """Return the same with another number of slots."""
        found = {hop: hop.with_slots(n_slots) for hop in self.hops}
        uses = {use._replace(hop=found[use.hop]): n for use, n in self.uses.items()}
        return replace(self, uses=uses, hops=frozenset(found.values()))

    def way(self, nbytes: float, adds: int = 0) -> float:
        """Return the time of the first chunk, and to add others to it where it arrives."""
        chunk = self._chunk(nbytes)
        times = (n * (use.sent(chunk) + use.hop.reduce(chunk, use.fan if adds else 0)) for use, n in self.uses.items())
        return sum(times) / sum(self.uses.values())

    def rest(self, nbytes: float, adds: int = 0) -> float:
        """Return how long the other chunks take at the queues' rate."""
        chunk = self._chunk(nbytes)
        return max(
            max(0.0, nbytes - chunk) / self._rate_gbs(chunk, adds), *(_held_ns(h, nbytes, chunk) for h in self.hops)
        )

    def busy(self, nbytes: float, adds: int = 0) -> float:
        """Return how long all chunks take at the queues' rate."""
        chunk = self._chunk(nbytes)
        windows = (
            nbytes / hop.window(chunk) for hop in self.hops if not (self.ready and nbytes <= chunk * _slots(hop, chunk))
        )
        return max([nbytes / self._rate_gbs(chunk, adds), *windows])

    def _rate_gbs(self, chunk: int, adds: int) -> float:
        """Return what links and vector engines sustain."""
        if not adds:
            return self.share_gbs
        return min(self.share_gbs, chunk / next(iter(self.hops)).reduce(chunk, adds))

    def _chunk(self, nbytes: float) -> int:
        return min(self.chunk, max(1, -int(-nbytes // 1)))


def _slots(hop: Hop, chunk: int) -> int:
    """Return how many chunks the slots of a queue hold."""
    return max(1, hop.ring.n_slots // -(-chunk // hop.ring.slot_bytes))


def _held_ns(hop: Hop, nbytes: float, chunk: int) -> float:
    """Return how long the chunks of a message behind the first one wait for credits."""
    return (-int(-nbytes // chunk) - 1) // _slots(hop, chunk) * _slots(hop, chunk) * chunk / hop.window(chunk)


@dataclass(frozen=True, slots=True)
class Counted:
    """A network in which a form comes to the messages that a participant sends, one after the other."""

    chunk: int

    def way(self, nbytes: float, adds: int = 0) -> float:
        """Return 1, for the first chunk."""
        return 1.0

    def rest(self, nbytes: float, adds: int = 0) -> float:
        """Return how many other chunks there are."""
        return self.busy(nbytes) - 1

    def busy(self, nbytes: float, adds: int = 0) -> float:
        """Return how many chunks there are."""
        return max(1.0, -(-nbytes // self.chunk))


@dataclass(frozen=True, slots=True)
class Level:
    """A level on a machine: its queues, and what it is to a form once they know their chunk."""

    part: Part
    net: Queues

    def over(self, net: cost.Network) -> cost.Level:
        """Return what it is over a network."""
        return cost.Ring(self.part.n, net) if self.part.n else cost.Tree(len(self.part.line), net, self.part.fan)


class Estimate:
    """The closed form of a plan, for any size; `known` is False for an algorithm that has none.

    Parameters
    ----------
    plan : Plan
        With the sizes of its rings (`Algorithm.on`).
    machine : Machine
    itemsize : int
        Bytes of an element.
    """

    def __init__(self, plan: Plan, machine: Machine, itemsize: int = 2) -> None:
        self.shape = SHAPES.get(str(plan.algorithm.kernel.__module__).removeprefix(_HERE))
        self.known = self.shape is not None
        self._plan, self._itemsize, self._hops = plan, itemsize, hops_of(machine)
        self._lanes = _Lanes(plan)
        parts = self.shape.levels(plan) if self.shape and plan.world_size > 1 else []
        self.levels = [self._level(part) for part in parts if part.n > 1 or part.line]
        self._streams = (self.shape.trees if self.shape else 1) * (1 + both_ways(plan))
        self._slice = self._hops.memory(next(iter(plan.programs)), "hbm")

    def with_slots(self, n_slots: int) -> Estimate:
        """Return the closed form of the same plan with another number of slots."""
        other = copy(self)
        other.levels = [replace(level, net=level.net.with_slots(n_slots)) for level in self.levels]
        return other

    def ns(self, nbytes: int) -> float:
        """Return the closed form for shards of `nbytes`.

        Notes
        -----
        Queues and vector engines as the form says, with the first chunk loaded before and the last one stored after; or
        all loads and stores, where HBM takes longer.
        """
        assert self.shape is not None, "ask for what is known only"
        if not self.levels:
            return 0.0
        chunk = self._chunk(nbytes)
        first_and_last = (self._slice.load_ps(chunk) + self._slice.store_ps(chunk)) / 1000
        levels = [level.over(replace(level.net, chunk=chunk)) for level in self.levels]
        form = self.shape.form(levels, nbytes / self._streams)
        moved = self.shape.moved(self._plan.world_size) * nbytes
        return max(form + first_and_last, self._slice.load_ps(1) / 1000 + moved / self._slice.hbm_gbs)

    def messages(self, nbytes: int) -> int:
        """Return about how many messages all participants send, those of 8 slots counted twice: a simulation's work."""
        assert self.shape is not None, "ask for what is known only"
        if not self.levels:
            return 0
        chunk, slot = self._chunk(nbytes), self._plan.algorithm.slot_size
        assert slot is not None
        counted = [level.over(Counted(chunk)) for level in self.levels]
        each = self.shape.form(counted, nbytes / self._streams) * self._streams
        return int(each * (1 + -(-chunk // slot) / 8) * len(self._plan.programs))

    def _chunk(self, nbytes: int) -> int:
        """Return the bytes of messages: what rings inside each other leave, cut as the algorithms cut it."""
        assert self.shape is not None
        rings = [level.part.n or 1 for level in self.levels] if self.shape.cut else []
        elements = max(1, -(-nbytes // (self._streams * prod(rings) * self._itemsize)))
        cut = Cut(self._itemsize, chunk_bytes=self._plan.algorithm.options.get("chunk_bytes"))
        return min(cut.chunks((0, elements))[0][1], elements) * self._itemsize

    def _level(self, part: Part) -> Level:
        """Return a level with its queues, each at its share of the links that are in use together."""
        algorithm = self._plan.algorithm
        assert algorithm.n_slots is not None
        assert algorithm.slot_size is not None
        assert algorithm.credit_bytes is not None
        slots = Slots(algorithm.buffer_kind, algorithm.n_slots, algorithm.slot_size, algorithm.credit_bytes)
        flows = self._lanes.of(part)
        share = self._hops.shared_gbs(flows, slots)
        hops = self._hops.counted(flows, slots, itemsize=self._itemsize)
        uses = {Use(hop, share): n for hop, n in hops.items()}
        if part.each:
            farthest = max(hops, key=lambda hop: hop.alpha_ns)
            in_turn = share * (part.n - 1)
            return Level(part, Queues({Use(farthest, in_turn): 1}, frozenset(hops), in_turn, ready=True))
        if part.n:
            return Level(part, Queues(uses, frozenset(hops), share))
        # A tree's edges are used one after the other by a chunk, each in all lanes at a time.
        line: Counter[Use] = Counter()
        for child, parent, fan in part.line:
            beside = self._lanes.between([(child, parent)])
            [hop, *_] = self._hops.counted(beside, slots, itemsize=self._itemsize)
            line[Use(hop, self._hops.shared_gbs(beside, slots), fan)] += 1
        return Level(part, Queues(line, frozenset(hops), share))


class _Lanes:
    """Queues of a plan of a shipped algorithm, whose lanes differ in their PEs only: looked at once."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        members = zip(*(lane.places for lane in plan.lanes), strict=True)
        # For each participant its PE in every lane, the same object where it is the same.
        known: dict[tuple[Target, ...], tuple[Target, ...]] = {}
        self._targets = [known.setdefault(t, t) for t in (tuple(place[1:] for place in at) for at in members)]
        self._ends: dict[tuple[tuple[int, int], ...], Ends] = {}

    def of(self, part: Part) -> Flows:
        """Return who sends to whom on a level."""
        places, programs = self._plan.lanes[0].places, self._plan.programs
        beside = [programs[place].neighbours for place in places]
        return self.between(
            (rank, programs[beside[rank][way][0]].rank)
            for rank in range(len(places))
            for way in part.ways(rank)
            if way in beside[rank]
        )

    def between(self, pairs: Iterable[tuple[int, int]]) -> Flows:
        """Return the queues from one participant to another."""
        places, found = self._plan.lanes[0].places, defaultdict(list)
        for a, b in pairs:
            found[places[a][0], places[b][0]].append((a, b))
        return {sips: self._between(ranks) for sips, ranks in found.items()}

    def _between(self, ranks: Sequence[tuple[int, int]]) -> Ends:
        ends = [(self._targets[a], self._targets[b]) for a, b in ranks]
        key = tuple((id(a), id(b)) for a, b in ends)
        if key not in self._ends:
            self._ends[key] = Ends(tuple(pair for a, b in ends for pair in zip(a, b, strict=True)))
        return self._ends[key]
