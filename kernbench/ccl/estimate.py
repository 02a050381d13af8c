"""The closed form of an algorithm on a machine: its form, over the queues that its plan has.

A form (kernbench.ccl.cost) knows steps and sizes. Here stands which levels a shipped algorithm has on its participants,
and what messages cost over the queues of each: cut into chunks as the algorithms cut them, and sharing the links that
queues in use at the same time have in common.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from inspect import signature
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from kernbench.ccl import cost
from kernbench.ccl.algorithms.levels import cycle, mesh_tree
from kernbench.ccl.algorithms.moves import Cut
from kernbench.ccl.hops import Hop, Pair, hops_of
from kernbench.ccl.hops import Ring as Slots
from kernbench.ccl.lane import Lane
from kernbench.units import FLIT_BYTES

if TYPE_CHECKING:
    from kernbench.ccl.plan import Plan
    from kernbench.topology.builder import Machine

_HERE = "kernbench.ccl.algorithms."
_CHILDREN = ("child_left", "child_right")


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


Ways = Callable[[int], Sequence[str]]  # the directions that a participant uses, by its number
Line = tuple[tuple[int, int, int], ...]  # a participant, its parent, and how many children that one has


@dataclass(frozen=True, slots=True)
class Part:
    """A level of an algorithm: its ring of `n`, or its tree along `line`, and the directions that are in use together.

    `line` leads from a participant far from its root to it. In a level of `each` to each, a participant uses one queue
    after the other.
    """

    ways: Ways
    n: int = 0
    line: Line = ()
    each: bool = False

    @property
    def fan(self) -> int:
        """The most children that a participant on the way adds up."""
        return max((fan for _, _, fan in self.line), default=1)


def _always(*ways: str) -> Ways:
    return lambda _rank: ways


def _ring(plan: Plan) -> list[Part]:
    return [Part(_always("E", "W") if _both_ways(plan) else _always("E", "next"), n=plan.world_size)]


def _both_ways(plan: Plan) -> bool:
    """Return whether halves of the vector go both ways; an algorithm's option, where it has it."""
    taken = signature(plan.algorithm.kernel_args).parameters.get("both_ways")
    return bool(plan.algorithm.options.get("both_ways", taken.default if taken else False))


def _halving(plan: Plan) -> list[Part]:
    bits = plan.world_size.bit_length() - 1
    fold = [Part(_always("fold"), line=((1 << bits, 0, 1),))] if plan.world_size != 1 << bits else []
    return fold + [Part(_always(f"bit{bit}"), n=2) for bit in range(bits)]


def _mesh(w: int, h: int, root: int, ranks: Sequence[int], of: Callable[[int], int], prefix: str = "") -> Part:
    """Return the tree along rows and the root's column.

    `ranks` are the participants of one such mesh; `of` says the place of any in its own, -1 where it is in none.
    """
    trees = [mesh_tree(at, w, h, root, prefix) for at in range(w * h)]
    steps = {"E": 1, "W": -1, "N": -w, "S": w}

    def ways(rank: int) -> Sequence[str]:
        tree = trees[of(rank)]
        return () if of(rank) < 0 else tree.children if tree.parent is None else (tree.parent, *tree.children)

    at, line = max(range(w * h), key=lambda at: trees[at].depth), []
    while (parent := trees[at].parent) is not None:
        above = at + steps[parent.removeprefix(prefix)]
        line.append((ranks[at], ranks[above], len(trees[above].children)))
        at = above
    return Part(ways, line=tuple(line))


def _cycle(w: int, h: int, at: Callable[[int], int], *, both_ways: bool = False) -> Part:
    """Return the ring that is laid into a mesh."""

    def ways(rank: int) -> Sequence[str]:
        ring = cycle(at(rank), w, h)
        assert ring is not None, "the topology admits no other mesh"
        return (ring.to, ring.source) if both_ways else (ring.to,)

    return Part(ways, n=w * h)


def _ring_mesh(plan: Plan) -> list[Part]:
    lane = plan.lanes[0]
    return [_cycle(lane.grid_w, lane.grid_h, lambda rank: rank, both_ways=_both_ways(plan))]


def _grid(plan: Plan) -> list[Part]:
    w, h = plan.lanes[0].grid_w, plan.lanes[0].grid_h
    return [_mesh(w, h, h // 2 * w + w // 2, range(w * h), lambda rank: rank)]


def _trees(plan: Plan, *prefixes: str) -> list[Part]:
    """Return the tree, or the several that are used together, in which `parent` leads to the root."""
    line = max((_to_root(plan, rank, prefix) for rank in range(plan.world_size) for prefix in prefixes), key=len)
    return [Part(_always(*(prefix + way for prefix in prefixes for way in ("parent", *_CHILDREN))), line=line)]


def _to_root(plan: Plan, rank: int, prefix: str) -> Line:
    places, line = plan.lanes[0].places, []
    while f"{prefix}parent" in (beside := plan.programs[places[rank]].neighbours):
        above = plan.programs[beside[f"{prefix}parent"][0]]
        line.append((rank, above.rank, sum(prefix + way in above.neighbours for way in _CHILDREN)))
        rank = above.rank
    return tuple(line)


def _torus(plan: Plan) -> list[Part]:
    lane, both = plan.lanes[0], _both_ways(plan)
    rows, columns = (_always("E", "W"), _always("S", "N")) if both else (_always("E"), _always("S"))
    return [Part(rows, n=lane.grid_w), Part(columns, n=lane.grid_h)]


def _cubes(plan: Plan) -> list[Part]:
    """Return the tree of cubes, which the first PE of each is in, and the root cubes' of devices."""
    lane = plan.lanes[0]
    n, pes, root = lane.n_cubes, lane.n_pes, lane.root_cube
    first = range(0, n * pes, pes)
    cubes = _mesh(lane.cube_w, lane.cube_h, root, first, lambda rank: rank // pes % n if rank % pes == 0 else -1)
    return [cubes, *_devices(lane, root * pes, lambda rank: rank % (n * pes) == root * pes)]


def _devices(lane: Lane, first: int, among: Callable[[int], bool]) -> list[Part]:
    """Return the levels between devices, which participants `among` all use; `first` is one of those."""
    w, h, each = lane.sip_w, lane.sip_h, lane.n_cubes * lane.n_pes
    if not lane.sip_wraps:
        ranks = range(first, w * h * each, each)
        return [_mesh(w, h, h // 2 * w + w // 2, ranks, lambda rank: rank // each if among(rank) else -1, "global_")]

    def along(way: str, n: int) -> Part:
        return Part(lambda rank: (way,) if among(rank) else (), n=n)

    return [along("global_E", w), along("global_S", h)]


def _chains(plan: Plan) -> list[Part]:
    """Return chains of PEs; only the first PE of each cube goes on, and only the root cube's between devices."""
    chain = tuple((pe, pe - 1, 1) for pe in range(plan.lanes[0].n_pes - 1, 0, -1))
    return [Part(_always("local_E", "local_W"), line=chain), *_cubes(plan)]


def _slices(plan: Plan) -> list[Part]:
    lane = plan.lanes[0]
    w, h, n, pes, root = lane.cube_w, lane.cube_h, lane.n_cubes, lane.n_pes, lane.root_cube
    chain = Part(_always("local_E"), n=pes)
    if cycle(0, w, h):
        return [chain, _cycle(w, h, lambda rank: rank // pes % n), *_devices(lane, 0, lambda rank: True)]
    cubes = _mesh(w, h, root, range(0, n * pes, pes), lambda rank: rank // pes % n)
    return [chain, cubes, *_devices(lane, root * pes, lambda rank: rank // pes % n == root)]


def _both_halves(plan: Plan) -> list[Part]:
    """Return the way round a ring from any root, in both directions at once."""
    line = tuple((rank, rank + 1, 1) for rank in range(plan.world_size // 2))
    return [Part(_always("E", "W"), line=line)]


def _all(plan: Plan) -> list[Part]:
    """Return the queues from everybody to everybody."""
    n = plan.world_size
    return [Part(_always(*(f"to{rank}" for rank in range(n))), n=n, each=True)]


def _doublings(n: int) -> float:
    """Return what recursive doubling moves: own and stored in each step, and both once more where others fold in."""
    bits = n.bit_length() - 1
    return 2 * bits + 1 + 2 * (n != 1 << bits)


def _sent_down(n: int) -> float:
    """Return what the root of a broadcast reads: its vector, for each of two children."""
    return min(2, n - 1)


@dataclass(frozen=True, slots=True)
class Shape:
    """What an algorithm comes to.

    Attributes
    ----------
    form : Form
    levels : callable
        Its levels on a plan.
    trees : int
        How many trees share its vector.
    cut : bool
        Whether rings cut the vector, each into as many parts as it has members.
    moved : callable
        Vectors that pass between a participant and its own HBM, of n.
    """

    form: cost.Form
    levels: Callable[[Plan], list[Part]]
    trees: int = 1
    cut: bool = True
    moved: Callable[[int], float] = lambda n: 2.0


# By the module of the kernel.
SHAPES = {
    "ring": Shape(cost.all_reduce, _ring),
    "ring_mesh": Shape(cost.all_reduce, _ring_mesh),
    "ring_flat": Shape(cost.ring_flat, _ring, cut=False, moved=lambda n: 2 * n - 1),
    "mesh_2d": Shape(cost.all_reduce, _grid),
    "tree_binary": Shape(cost.all_reduce, lambda plan: _trees(plan, "")),
    "double_tree": Shape(cost.all_reduce, lambda plan: _trees(plan, "a_", "b_"), trees=2),
    "torus_2d": Shape(cost.all_reduce, _torus),
    "halving_doubling": Shape(cost.all_reduce, _halving),
    "recursive_doubling": Shape(cost.recursive_doubling, _halving, cut=False, moved=_doublings),
    "intercube": Shape(cost.all_reduce, _cubes),
    "hierarchical": Shape(cost.all_reduce, _chains),
    "hierarchical_sliced": Shape(cost.all_reduce, _slices),
    "broadcast": Shape(cost.broadcast, lambda plan: _trees(plan, ""), moved=_sent_down),
    "broadcast_ring": Shape(cost.broadcast, _both_halves, moved=_sent_down),
    "reduce": Shape(cost.reduce, lambda plan: _trees(plan, "")),
    "reduce_scatter": Shape(cost.reduce_scatter, _ring, moved=lambda n: 1 + 1 / n),
    "all_gather": Shape(cost.all_gather, _ring, moved=lambda n: 1 + 2 / n),
    "all_to_all": Shape(cost.all_to_all, _all),
    "barrier": Shape(cost.barrier, lambda plan: _trees(plan, ""), moved=lambda n: 0),
}


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
        parts = self.shape.levels(plan) if self.shape and plan.world_size > 1 else []
        self.levels = [self._level(part) for part in parts if part.n > 1 or part.line]
        self._streams = (self.shape.trees if self.shape else 1) * (1 + _both_ways(plan))
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
        """Return about how many messages all participants send, one of 8 slots counting twice: what a simulation does."""
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
        pairs = _pairs(self._plan, part)
        share = self._hops.shared_gbs(pairs, slots)
        hops = Counter(self._hops.hop(src, dst, slots, itemsize=self._itemsize) for src, dst in pairs)
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
            beside = [(lane.places[child], lane.places[parent]) for lane in self._plan.lanes]
            hop = self._hops.hop(*beside[0], slots, itemsize=self._itemsize)
            line[Use(hop, self._hops.shared_gbs(beside, slots), fan)] += 1
        return Level(part, Queues(line, frozenset(hops), share))


def _pairs(plan: Plan, part: Part) -> list[Pair]:
    """Return who sends to whom on a level."""
    ways = [part.ways(rank) for rank in range(plan.world_size)]
    return [
        (place, role.neighbours[way][0])
        for place, role in plan.programs.items()
        for way in ways[role.rank]
        if way in role.neighbours
    ]
