"""The closed form of an algorithm on a machine: its form, over the queues that its plan has.

A form (kernbench.ccl.cost) knows steps and sizes, a shape (kernbench.ccl.shapes) which levels an algorithm has. Here
stands what messages cost over the queues of each level: cut into chunks as the algorithms cut them, and sharing the
links and memories that queues in use at the same time have in common.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import hypot
from operator import mul
from typing import TYPE_CHECKING, NamedTuple

from kernbench.ccl import cost
from kernbench.ccl.algorithms.levels import LAG, keeps_apart
from kernbench.ccl.algorithms.moves import AHEAD, Cut
from kernbench.ccl.hops import Ends, Flows, Hop, Memory, hops_of
from kernbench.ccl.hops import Ring as Slots
from kernbench.ccl.lane import Target
from kernbench.ccl.shapes import SHAPES, Part, both_ways
from kernbench.units import FLIT_BYTES

if TYPE_CHECKING:
    from kernbench.ccl.plan import Plan
    from kernbench.topology.builder import Machine

_HERE = "kernbench.ccl.algorithms."
# What a program issues for a message that it takes: its receive, the wait for it, what is done with it, its store.
COMMANDS = 4


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
        """Return the time of a chunk: alone, or behind half of those that share its links."""
        first, alone = min(chunk, FLIT_BYTES), self.hop.bw_gbs
        behind = self.hop.send(first) - first / alone + chunk * (1 / self.share_gbs + 1 / alone) / 2
        return max(self.hop.send(chunk), behind)


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
    alone_gbs : float
        The same where one direction of a tree is in use at a time: all that goes up, or all that comes down.
    own : Memory
        The HBM that what begins at a participant is loaded from.
    ready : bool
        Whether what fits into the slots of a queue leaves before it is asked for, while others are in use.
    streams : int
        How many vectors a program works on in turn.
    chunk : int
        Bytes of the messages that longer ones are cut into.
    """

    uses: Mapping[Use, int]
    hops: frozenset[Hop]
    share_gbs: float
    alone_gbs: float
    own: Memory
    ready: bool = False
    streams: int = 1
    chunk: int = 0

    def with_slots(self, n_slots: int) -> Queues:
        """Return the same with another number of slots."""
        found = {hop: hop.with_slots(n_slots) for hop in self.hops}
        uses = {use._replace(hop=found[use.hop]): n for use, n in self.uses.items()}
        return replace(self, uses=uses, hops=frozenset(found.values()))

    def way(self, nbytes: float, adds: int = 0) -> float:
        """Return the time of the first chunk, and to add others to it where it arrives.

        Before it, a program sends and takes a chunk of each other vector that it works on.
        """
        chunk = self._chunk(nbytes)
        times = (n * (use.sent(chunk) + use.hop.reduce(chunk, use.fan if adds else 0)) for use, n in self.uses.items())
        hop = next(iter(self.hops))
        in_turn = (self.streams - 1) * (2 * COMMANDS * hop.command_ns + hop.reduce(chunk, adds))
        return sum(times) / sum(self.uses.values()) + in_turn

    def rest(self, nbytes: float, adds: int = 0, *, loaded: bool = False, alone: bool = False) -> float:
        """Return how long the other chunks take at the queues' rate."""
        chunk = self._chunk(nbytes)
        more_ns = self._more_ns(chunk, adds, loaded=loaded, stored=True)
        rate_gbs = self._rate_gbs(chunk, adds, self.alone_gbs if alone else self.share_gbs)
        held_ns = (_held_ns(hop, nbytes, chunk, more_ns) for hop in self.hops)
        return max((nbytes - chunk) / rate_gbs, 0.0, *held_ns)

    def busy(self, nbytes: float, adds: int = 0, *, loaded: bool = False) -> float:
        """Return how long all chunks take, one vector after the other: links and window, added as squares.

        Where both are near each other, what waited for a link comes back late with its credit.
        """
        chunk = self._chunk(nbytes)
        more_ns = self._more_ns(chunk, adds, loaded=loaded, stored=False)
        if self.ready:
            windows = [_turns_ns(hop, self.late(nbytes), chunk, more_ns) for hop in self.hops]
        else:
            windows = [nbytes / hop.window(chunk, more_ns) for hop in self.hops]
        issued = COMMANDS * -(-nbytes // chunk) * next(iter(self.hops)).command_ns
        return max(issued, hypot(nbytes / self._rate_gbs(chunk, adds, self.share_gbs), max(windows)))

    def before(self, nbytes: float, chunks: int) -> float:
        """Return the bytes of the first `chunks` of a message."""
        return min(nbytes, chunks * self._chunk(nbytes))

    def late(self, nbytes: float) -> float:
        """Return the bytes of a message that find no slot before it is asked for."""
        chunk = self._chunk(nbytes)
        return max(0.0, nbytes - chunk * min(_slots(hop, chunk) for hop in self.hops))

    def _more_ns(self, chunk: int, adds: int, *, loaded: bool, stored: bool) -> float:
        """Return how long a slot is taken beside a part's way and its credit's.

        While the part is loaded, where it leaves from memory, behind half of a chunk that is loaded to be added to. And
        until it is added, copied or `stored`, where a message is one part in TCM, which is not copied out of its slot.
        """
        hop = next(iter(self.hops))
        part = min(chunk, hop.ring.slot_bytes)
        loading = self.own.load_ps(part) / 1000 + (chunk / 2 / self.own.hbm_gbs if adds else 0.0) if loaded else 0.0
        if chunk > hop.ring.slot_bytes or hop.ring.kind != "tcm":
            return loading
        return loading + (self.own.store_ps(chunk) / 1000 if stored and not adds else hop.reduce(chunk, adds or 1))

    def _rate_gbs(self, chunk: int, adds: int, share_gbs: float) -> float:
        """Return what links and vector engines sustain."""
        return min(share_gbs, chunk / next(iter(self.hops)).reduce(chunk, adds)) if adds else share_gbs

    def _chunk(self, nbytes: float) -> int:
        return min(self.chunk, max(1, -int(-nbytes // 1)))


def _slots(hop: Hop, chunk: int) -> int:
    """Return how many chunks the slots of a queue hold."""
    return max(1, hop.ring.n_slots // -(-chunk // hop.ring.slot_bytes))


def _turns_ns(hop: Hop, nbytes: float, chunk: int, more_ns: float) -> float:
    """Return how long it takes to fill all slots of a queue, again and again, until `nbytes` are through."""
    full = _slots(hop, chunk) * chunk
    return -int(-nbytes // full) * full / hop.window(chunk, more_ns)


def _held_ns(hop: Hop, nbytes: float, chunk: int, more_ns: float) -> float:
    """Return how long the chunks of a message behind the first one wait for credits."""
    slots = _slots(hop, chunk)
    return max(0, -int(-nbytes // chunk) - 1) // slots * slots * chunk / hop.window(chunk, more_ns)


class Sent(NamedTuple):
    """What a level sends.

    Attributes
    ----------
    queues : mapping of Hop to int
        Its queues, and how many of each kind.
    messages, nbytes : int
        How many messages of how many bytes each of them carries.
    """

    queues: Mapping[Hop, int]
    messages: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Level:
    """A level on a machine: its queues, how many there are of each kind, and what it is to a form."""

    part: Part
    net: Queues
    queues: Mapping[Hop, int]

    def over(self, net: cost.Network) -> cost.Level:
        """Return what it is over a network."""
        if self.part.n:
            return cost.Ring(self.part.n, net)
        depth = len(self.part.line)
        # Who passes sums on takes results that many chunks later, but asks for them some moves ahead.
        return cost.Tree(depth, net, self.part.fan, max(0, LAG * (depth - 1) - AHEAD))


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
        self._slice = self._hops.memory(next(iter(plan.programs)), "hbm")
        self.levels = self._levels(self.shape.levels) if self.shape else []
        self._short = self._levels(self.shape.short) if self.shape and self.shape.short else []
        self._streams = (self.shape.trees if self.shape else 1) * (1 + both_ways(plan))

    def with_slots(self, n_slots: int) -> Estimate:
        """Return the closed form of the same plan with another number of slots."""
        other = copy(self)
        other.levels, other._short = (
            [replace(level, net=level.net.with_slots(n_slots)) for level in levels]
            for levels in (self.levels, self._short)
        )
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
        own = self._of(nbytes)
        chunks = self._chunks(own, nbytes)
        # A level that keeps apart ends in memory, and the next one begins there.
        again = 1 + sum(a != b for a, b in pairwise(chunks))
        first_and_last = again * (self._slice.load_ps(chunks[-1]) + self._slice.store_ps(chunks[-1])) / 1000
        levels = [
            level.over(replace(level.net, streams=self._streams, chunk=chunk))
            for level, chunk in zip(own, chunks, strict=True)
        ]
        form = self.shape.form(levels, nbytes / self._streams)
        moved = self.shape.moved(self._plan.world_size) * nbytes
        return max(form + first_and_last, self._slice.load_ps(1) / 1000 + moved / self._slice.hbm_gbs)

    def sent(self, nbytes: int) -> Iterator[Sent]:
        """Yield what queues carry for shards of `nbytes`, level by level."""
        assert self.shape is not None, "ask for what is known only"
        if not self.levels:
            return
        own, vector = self._of(nbytes), nbytes / self._streams
        for level, chunk in zip(own, self._chunks(own, nbytes), strict=True):
            n = level.part.n if self.shape.cut and level.part.n else 1
            vector /= n
            messages = max(1, -int(-vector // chunk)) * (self.shape.turns(level.part.n) if level.part.n else 1)
            yield Sent(level.queues, messages, min(chunk, max(1, -int(-vector // 1))))

    def _levels(self, of: Callable[[Plan], list[Part]]) -> list[Level]:
        parts = of(self._plan) if self._plan.world_size > 1 else []
        return [self._level(part) for part in parts if part.n > 1 or part.line]

    def _of(self, nbytes: int) -> list[Level]:
        """Return the levels for shards of `nbytes`."""
        assert self.shape is not None
        short = self._short and -(-nbytes // self._plan.lanes[0].n_pes) <= self.shape.until
        return self._short if short else self.levels

    def _chunks(self, levels: Sequence[Level], nbytes: int) -> list[int]:
        """Return the bytes of messages on each level: what rings inside each other leave, as the algorithms cut it."""
        assert self.shape is not None
        cut = Cut(self._itemsize, chunk_bytes=self._plan.algorithm.options.get("chunk_bytes"))
        rings = [level.part.n or 1 for level in levels] if self.shape.cut else [1] * len(levels)
        parts = [max(1, -(-nbytes // (self._streams * n * self._itemsize))) for n in accumulate(rings, mul)]
        own = [cut.chunks((0, part)) for part in parts]
        chunks, pieces = [own[-1][0][1]], len(own[-1])
        for n, part, alone in list(zip(rings, parts, own, strict=True))[-2::-1]:
            pieces *= rings[len(parts) - len(chunks)]
            apart = n > 1 and keeps_apart(n, pieces, part, cut)
            chunks.append(alone[0][1] if apart else chunks[-1])
            pieces = len(alone) if apart else pieces
        return [chunk * self._itemsize for chunk in reversed(chunks)]

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
        slowest = hops
        if len(self._plan.lanes) > 1:
            # The lane with the farthest way ends last.
            (src, dst), ends = next(iter(flows.items()))
            ways = [self._hops.hop((src, *a), (dst, *b), slots, itemsize=self._itemsize) for a, b in ends.pairs]
            lane = max(range(len(self._plan.lanes)), key=lambda lane: ways[lane].alpha_ns)
            slowest = self._hops.counted(self._lanes.of(part, lane=lane), slots, itemsize=self._itemsize)
        uses = {Use(hop, share): n for hop, n in slowest.items()}
        if part.each:
            farthest = max(hops, key=lambda hop: hop.alpha_ns)
            in_turn = share * (part.n - 1)
            use = {Use(farthest, in_turn): 1}
            return Level(part, Queues(use, frozenset(hops), in_turn, in_turn, self._slice, ready=True), hops)
        if part.n:
            return Level(part, Queues(uses, frozenset(hops), share, share, self._slice), hops)
        # A tree's edges are used one after the other by a chunk, each in all lanes at a time.
        line: Counter[Use] = Counter()
        for child, parent, fan in part.line:
            beside = self._lanes.between([(child, parent)])
            hop = max(self._hops.counted(beside, slots, itemsize=self._itemsize), key=lambda hop: hop.alpha_ns)
            line[Use(hop, self._hops.shared_gbs(beside, slots), fan)] += 1
        up, down = self._lanes.of(part, up=True), self._lanes.of(part, up=False)
        alone = min(self._hops.shared_gbs(flows, slots) for flows in (up, down) if flows)
        return Level(part, Queues(line, frozenset(hops), share, alone, self._slice), hops)


class _Lanes:
    """Queues of a plan of a shipped algorithm, whose lanes differ in their PEs only: looked at once."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        members = zip(*(lane.places for lane in plan.lanes), strict=True)
        # For each participant its PE in every lane, the same object where it is the same.
        known: dict[tuple[Target, ...], tuple[Target, ...]] = {}
        self._targets = [known.setdefault(t, t) for t in (tuple(place[1:] for place in at) for at in members)]
        self._ends: dict[tuple[tuple[int, int], ...], Ends] = {}

    def of(self, part: Part, *, up: bool | None = None, lane: int | None = None) -> Flows:
        """Return who sends to whom on a level: everybody, or those of a lane, or who sends up a tree, or down it."""
        places, programs = self._plan.lanes[0].places, self._plan.programs
        beside = [programs[place].neighbours for place in places]
        pairs = (
            (rank, programs[beside[rank][way][0]].rank)
            for rank in range(len(places))
            for way in part.ways(rank)
            if way in beside[rank] and up in (None, part.leads_up(rank, way))
        )
        return self.between(pairs, lane)

    def between(self, pairs: Iterable[tuple[int, int]], lane: int | None = None) -> Flows:
        """Return the queues from one participant to another, of all lanes or one."""
        places, found = self._plan.lanes[0].places, defaultdict(list)
        for a, b in pairs:
            found[places[a][0], places[b][0]].append((a, b))
        return {sips: self._between(ranks, lane) for sips, ranks in found.items()}

    def _between(self, ranks: Sequence[tuple[int, int]], lane: int | None) -> Ends:
        if lane is not None:
            return Ends(tuple((self._targets[a][lane], self._targets[b][lane]) for a, b in ranks))
        ends = [(self._targets[a], self._targets[b]) for a, b in ranks]
        key = tuple((id(a), id(b)) for a, b in ends)
        if key not in self._ends:
            self._ends[key] = Ends(tuple(pair for a, b in ends for pair in zip(a, b, strict=True)))
        return self._ends[key]
