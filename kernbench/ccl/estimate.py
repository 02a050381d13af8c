"""The closed form of an algorithm on a machine: its form, over the queues that its plan has.

A form (kernbench.ccl.cost) knows steps and sizes. Here stands which levels a shipped algorithm has on its participants,
and what messages cost over the queues of each: cut into chunks as the algorithms cut them, and sharing the links that
queues in use at the same time have in common.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from inspect import signature
from typing import TYPE_CHECKING

from kernbench.ccl import cost
from kernbench.ccl.algorithms.moves import Cut
from kernbench.ccl.hops import Hop, hops_of
from kernbench.ccl.hops import Ring as Slots
from kernbench.ccl.lane import Lane, Place

if TYPE_CHECKING:
    from kernbench.ccl.plan import Plan
    from kernbench.topology.builder import Machine

_HERE = "kernbench.ccl.algorithms."
_MESH = ("E", "W", "N", "S")


@dataclass(frozen=True)
class Queues:
    """Queues that are used alike: a network of `cost`. A message takes the mean of their times, at the least rate.

    Attributes
    ----------
    hops : mapping of Hop to int
        Which queues, and how many of each.
    rate_gbs : float
        What each can sustain while all are in use.
    itemsize : int
        Bytes of an element.
    """

    hops: Mapping[Hop, int]
    rate_gbs: float
    itemsize: int

    def way(self, nbytes: float, *, adds: bool = False) -> float:
        """Return the time of the first chunk, and to add it."""
        chunk = self._chunk(nbytes)
        times = (n * (hop.send(chunk) + adds * hop.reduce(chunk)) for hop, n in self.hops.items())
        return sum(times) / sum(self.hops.values())

    def rest(self, nbytes: float) -> float:
        """Return how long the other chunks take at the queues' rate."""
        return max(0.0, nbytes - self._chunk(nbytes)) / self.rate_gbs

    def busy(self, nbytes: float) -> float:
        """Return how long all chunks take at the queues' rate."""
        return nbytes / self.rate_gbs

    def _chunk(self, nbytes: float) -> int:
        return _chunk(nbytes, self.itemsize)


@dataclass(frozen=True, slots=True)
class Part:
    """A level of an algorithm: its ring of `n`, or its tree of `depth`, and the directions that are in use together.

    `among` are the PEs that use them; None: all that have them. `shared` where they share links at the same time.
    """

    ways: tuple[str, ...]
    n: int = 0
    depth: int = 0
    among: frozenset[Place] | None = None
    shared: bool = True


def _ring(plan: Plan) -> list[Part]:
    return [Part(("E", "W") if _both_ways(plan) else ("E", "next"), n=plan.world_size)]


def _both_ways(plan: Plan) -> bool:
    """Return whether halves of the vector go both ways; an algorithm's option, where it has it."""
    taken = signature(plan.algorithm.kernel_args).parameters.get("both_ways")
    return bool(plan.algorithm.options.get("both_ways", taken.default if taken else False))


def _halving(plan: Plan) -> list[Part]:
    bits = plan.world_size.bit_length() - 1
    fold = [Part(("fold",), depth=1)] if plan.world_size != 1 << bits else []
    return fold + [Part((f"bit{bit}",), n=2) for bit in range(bits)]


def _mesh(w: int, h: int, root: int, prefix: str = "") -> Part:
    """Return the tree along rows and the root's column."""
    row, column = divmod(root, w)
    depth = max(row, h - 1 - row) + max(column, w - 1 - column)
    return Part(tuple(prefix + way for way in _MESH), depth=depth)


def _grid(plan: Plan) -> list[Part]:
    w, h = plan.lanes[0].grid_w, plan.lanes[0].grid_h
    return [_mesh(w, h, h // 2 * w + w // 2)]


def _trees(plan: Plan, *prefixes: str) -> list[Part]:
    """Return the tree, or the several that are used together, in which `parent` leads to the root."""
    ways = tuple(prefix + way for prefix in prefixes for way in ("parent", "child_left", "child_right"))
    return [Part(ways, depth=max(_to_root(plan, place, f"{p}parent") for place in plan.programs for p in prefixes))]


def _to_root(plan: Plan, place: Place, parent: str) -> int:
    edges = 0
    while parent in plan.programs[place].neighbours:
        place, edges = plan.programs[place].neighbours[parent][0], edges + 1
    return edges


def _torus(plan: Plan) -> list[Part]:
    lane, both = plan.lanes[0], _both_ways(plan)
    return [Part(("E", "W") if both else ("E",), n=lane.grid_w), Part(("S", "N") if both else ("S",), n=lane.grid_h)]


def _cubes(plan: Plan) -> list[Part]:
    lane = plan.lanes[0]
    return [_mesh(lane.cube_w, lane.cube_h, lane.root_cube), *_devices(lane)]


def _devices(lane: Lane) -> list[Part]:
    w, h = lane.sip_w, lane.sip_h
    if lane.sip_wraps:
        return [Part(("global_E",), n=w), Part(("global_S",), n=h)]
    return [_mesh(w, h, h // 2 * w + w // 2, "global_")]


def _chains(plan: Plan) -> list[Part]:
    """Return chains of PEs; only the first PE of each cube goes on, and only the root cube's between devices."""
    lane = plan.lanes[0]
    leaders = frozenset(place for place in lane.places if place[2] == lane.pes[0])
    roots = frozenset(place for place in leaders if place[1] == lane.cubes[lane.root_cube])
    cubes, *devices = _cubes(plan)
    above = [replace(cubes, among=leaders), *(replace(part, among=roots) for part in devices)]
    return [Part(("local_E", "local_W"), depth=lane.n_pes - 1), *above]


def _slices(plan: Plan) -> list[Part]:
    lane = plan.lanes[0]
    w, h = lane.cube_w, lane.cube_h
    around = Part(_MESH, n=w * h) if min(w, h) > 1 and w * h % 2 == 0 else _cubes(plan)[0]
    return [Part(("local_E",), n=lane.n_pes), around, *_devices(lane)]


def _all(plan: Plan) -> list[Part]:
    """Return the queues from everybody to everybody; a PE's own share its port, which the form knows."""
    return [Part(tuple(f"to{rank}" for rank in range(plan.world_size)), n=plan.world_size, shared=False)]


@dataclass(frozen=True, slots=True)
class Shape:
    """What an algorithm comes to: its form, its levels on a plan, and how many trees share its vector."""

    form: cost.Form
    levels: Callable[[Plan], list[Part]]
    trees: int = 1


# By the module of the kernel.
SHAPES = {
    "ring": Shape(cost.all_reduce, _ring),
    "ring_mesh": Shape(cost.all_reduce, lambda plan: [Part(_MESH, n=plan.world_size)]),
    "ring_flat": Shape(cost.ring_flat, _ring),
    "mesh_2d": Shape(cost.all_reduce, _grid),
    "tree_binary": Shape(cost.all_reduce, lambda plan: _trees(plan, "")),
    "double_tree": Shape(cost.all_reduce, lambda plan: _trees(plan, "a_", "b_"), trees=2),
    "torus_2d": Shape(cost.all_reduce, _torus),
    "halving_doubling": Shape(cost.all_reduce, _halving),
    "recursive_doubling": Shape(cost.recursive_doubling, _halving),
    "intercube": Shape(cost.all_reduce, _cubes),
    "hierarchical": Shape(cost.all_reduce, _chains),
    "hierarchical_sliced": Shape(cost.all_reduce, _slices),
    "broadcast": Shape(cost.broadcast, lambda plan: _trees(plan, "")),
    "broadcast_ring": Shape(cost.broadcast, lambda plan: [Part(("E", "W"), depth=plan.world_size // 2)]),
    "reduce": Shape(cost.reduce, lambda plan: _trees(plan, "")),
    "reduce_scatter": Shape(cost.reduce_scatter, _ring),
    "all_gather": Shape(cost.all_gather, _ring),
    "all_to_all": Shape(cost.all_to_all, _all),
    "barrier": Shape(cost.barrier, lambda plan: _trees(plan, "")),
}


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
        self.levels = [self._level(part) for part in parts if part.n > 1 or part.depth]
        self._streams = (self.shape.trees if self.shape else 1) * (1 + _both_ways(plan))
        self._slice = self._hops.memory(next(iter(plan.programs)), "hbm")

    def ns(self, nbytes: int) -> float:
        """Return the closed form for shards of `nbytes`.

        Notes
        -----
        The first chunk is loaded from HBM before, and the last one stored after, what the form says.
        """
        assert self.shape is not None, "ask for what is known only"
        if not self.levels:
            return 0.0
        chunk = _chunk(nbytes, self._itemsize)
        local = (self._slice.load_ps(chunk) + self._slice.store_ps(chunk)) / 1000
        return self.shape.form(self.levels, nbytes / self._streams) + local

    def _level(self, part: Part) -> cost.Level:
        """Return a level with its queues, each at its share of the links that are in use together."""
        algorithm = self._plan.algorithm
        assert algorithm.n_slots is not None
        assert algorithm.slot_size is not None
        assert algorithm.credit_bytes is not None
        slots = Slots(algorithm.buffer_kind, algorithm.n_slots, algorithm.slot_size, algorithm.credit_bytes)
        pairs = _pairs(self._plan, part)
        hops = Counter(self._hops.hop(src, dst, slots, itemsize=self._itemsize) for src, dst in pairs)
        rate = min(hop.bw_gbs for hop in hops)  # of many queues of one PE, whose windows add up
        if part.shared:
            rate = min(self._hops.shared_gbs(pairs, slots), *(hop.window_gbs for hop in hops))
        net = Queues(hops, rate, self._itemsize)
        return cost.Ring(part.n, net) if part.n else cost.Tree(part.depth, net)


def _chunk(nbytes: float, itemsize: int) -> int:
    """Return the bytes of the messages that the algorithms cut `nbytes` into."""
    elements = max(1, -int(-nbytes // itemsize))
    return min(Cut(itemsize).chunks((0, elements))[0][1], elements) * itemsize


def _pairs(plan: Plan, part: Part) -> list[tuple[Place, Place]]:
    """Return who sends to whom on a level."""
    return [
        (place, peer)
        for place, role in plan.programs.items()
        if part.among is None or place in part.among
        for way, (peer, _) in role.neighbours.items()
        if way in part.ways
    ]
