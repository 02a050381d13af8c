"""What shipped algorithms come to: their forms, their levels on a plan, and which queues each level uses.

A form (kernbench.ccl.cost) knows steps and sizes. Here stands which rings and trees an algorithm has on its
participants, and over which directions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING

from kernbench.ccl import cost
from kernbench.ccl.algorithms.hierarchical_sliced import SHORT_SLICE
from kernbench.ccl.algorithms.levels import cycle, mesh_tree
from kernbench.ccl.lane import Lane

if TYPE_CHECKING:
    from kernbench.ccl.plan import Plan

_CHILDREN = ("child_left", "child_right")

Ways = Callable[[int], Sequence[str]]  # the directions that a participant uses, by its number
Line = tuple[tuple[int, int, int], ...]  # a participant, its parent, and how many children that one has


def _always(*ways: str) -> Ways:
    return lambda _rank: ways


@dataclass(frozen=True, slots=True)
class Part:
    """A level of an algorithm: its ring of `n`, or its tree along `line`, and the directions that are in use together.

    `line` leads from a participant far from its root to it, `up` are the directions to parents. In a level of `each` to
    each, a participant uses one queue after the other.
    """

    ways: Ways
    n: int = 0
    line: Line = ()
    each: bool = False
    up: Ways | None = None

    def leads_up(self, rank: int, way: str) -> bool:
        """Return whether a direction of a participant leads to its parent."""
        return self.up is not None and way in self.up(rank)

    @property
    def fan(self) -> int:
        """The most children that a participant on the way adds up."""
        return max((fan for _, _, fan in self.line), default=1)


def _ring(plan: Plan) -> list[Part]:
    return [Part(_always("E", "W") if both_ways(plan) else _always("E", "next"), n=plan.world_size)]


def both_ways(plan: Plan) -> bool:
    """Return whether halves of the vector go both ways; an algorithm's option, where it has it."""
    taken = signature(plan.algorithm.kernel_args).parameters.get("both_ways")
    return bool(plan.algorithm.options.get("both_ways", taken.default if taken else False))


def _halving(plan: Plan) -> list[Part]:
    bits = plan.world_size.bit_length() - 1
    fold = Part(_always("fold"), line=((1 << bits, 0, 1),), up=lambda rank: ("fold",) if rank >> bits else ())
    pairs = [Part(_always(f"bit{bit}"), n=2) for bit in range(bits)]
    return pairs if plan.world_size == 1 << bits else [fold, *pairs]


def _mesh(w: int, h: int, root: int, ranks: Sequence[int], of: Callable[[int], int], prefix: str = "") -> Part:
    """Return the tree along rows and the root's column.

    `ranks` are the participants of one such mesh; `of` says the place of any in its own, -1 where it is in none.
    """
    trees = [mesh_tree(at, w, h, root, prefix) for at in range(w * h)]
    steps = {"E": 1, "W": -1, "N": -w, "S": w}

    def ways(rank: int) -> Sequence[str]:
        tree = trees[of(rank)]
        return () if of(rank) < 0 else tree.children if tree.parent is None else (tree.parent, *tree.children)

    def up(rank: int) -> Sequence[str]:
        parent = trees[of(rank)].parent
        return () if of(rank) < 0 or parent is None else (parent,)

    at, line = max(range(w * h), key=lambda at: trees[at].depth), []
    while (parent := trees[at].parent) is not None:
        above = at + steps[parent.removeprefix(prefix)]
        line.append((ranks[at], ranks[above], len(trees[above].children)))
        at = above
    return Part(ways, line=tuple(line), up=up)


def _cycle(w: int, h: int, at: Callable[[int], int], *, both: bool = False) -> Part:
    """Return the ring that is laid into a mesh."""

    def ways(rank: int) -> Sequence[str]:
        ring = cycle(at(rank), w, h)
        assert ring is not None, "the topology admits no other mesh"
        return (ring.to, ring.source) if both else (ring.to,)

    return Part(ways, n=w * h)


def _ring_mesh(plan: Plan) -> list[Part]:
    lane = plan.lanes[0]
    return [_cycle(lane.grid_w, lane.grid_h, lambda rank: rank, both=both_ways(plan))]


def _grid(plan: Plan) -> list[Part]:
    w, h = plan.lanes[0].grid_w, plan.lanes[0].grid_h
    return [_mesh(w, h, h // 2 * w + w // 2, range(w * h), lambda rank: rank)]


def _trees(plan: Plan, *prefixes: str) -> list[Part]:
    """Return the tree, or the several that are used together, in which `parent` leads to the root."""
    line = max((_to_root(plan, rank, prefix) for rank in range(plan.world_size) for prefix in prefixes), key=len)
    ways = _always(*(prefix + way for prefix in prefixes for way in ("parent", *_CHILDREN)))
    return [Part(ways, line=line, up=_always(*(f"{prefix}parent" for prefix in prefixes)))]


def _to_root(plan: Plan, rank: int, prefix: str) -> Line:
    places, line = plan.lanes[0].places, []
    while f"{prefix}parent" in (beside := plan.programs[places[rank]].neighbours):
        above = plan.programs[beside[f"{prefix}parent"][0]]
        line.append((rank, above.rank, sum(prefix + way in above.neighbours for way in _CHILDREN)))
        rank = above.rank
    return tuple(line)


def _torus(plan: Plan) -> list[Part]:
    lane, both = plan.lanes[0], both_ways(plan)
    rows, columns = (_always("E", "W"), _always("S", "N")) if both else (_always("E"), _always("S"))
    return [Part(rows, n=lane.grid_w), Part(columns, n=lane.grid_h)]


def _double_torus(plan: Plan) -> list[Part]:
    """Return what quarters that begin in rows do; those that begin in columns use the other links meanwhile."""
    lane = plan.lanes[0]
    first, second = _always("a_E", "a_W", "b_S", "b_N"), _always("a_S", "a_N", "b_E", "b_W")
    return [Part(first, n=lane.grid_w), Part(second, n=lane.grid_h)]


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
    return [Part(_always("local_E", "local_W"), line=chain, up=_always("local_W")), *_cubes(plan)]


def _slices(plan: Plan) -> list[Part]:
    lane = plan.lanes[0]
    w, h, n, pes = lane.cube_w, lane.cube_h, lane.n_cubes, lane.n_pes
    if not cycle(0, w, h):
        return _short_slices(plan)
    around = _cycle(w, h, lambda rank: rank // pes % n)
    return [Part(_always("local_E"), n=pes), around, *_devices(lane, 0, lambda rank: True)]


def _short_slices(plan: Plan) -> list[Part]:
    lane = plan.lanes[0]
    n, pes, root = lane.n_cubes, lane.n_pes, lane.root_cube
    cubes = _mesh(lane.cube_w, lane.cube_h, root, range(0, n * pes, pes), lambda rank: rank // pes % n)
    devices = _devices(lane, root * pes, lambda rank: rank // pes % n == root)
    return [Part(_always("local_E"), n=pes), cubes, *devices]


def _both_halves(plan: Plan) -> list[Part]:
    """Return the way round a ring from any root, in both directions at once."""
    line = tuple((rank, rank + 1, 1) for rank in range(plan.world_size // 2))
    return [Part(_always("E", "W"), line=line, up=_always("E", "W"))]


def _all(plan: Plan) -> list[Part]:
    """Return the queues from everybody to everybody."""
    n = plan.world_size
    return [Part(_always(*(f"to{rank}" for rank in range(n))), n=n, each=True)]


def _doublings(n: int) -> float:
    """Return what recursive doubling moves: own and stored in each step, and both once more where others fold in."""
    bits = n.bit_length() - 1
    return 2 * bits + 1 + 2 * (n != 1 << bits)


def _once_round(n: int) -> int:
    """Return the steps of a ring in which a part passes by all others."""
    return n - 1


def _once(n: int) -> int:
    """Return the steps of a pair that exchanges, or of a queue to each."""
    return 1


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
        How many trees, or turns of rings, share its vector beside those of `both_ways`.
    cut : bool
        Whether rings cut the vector, each into as many parts as it has members.
    turns : callable
        How often each queue of a ring carries such a part, of the ring's members.
    short, until : callable, int
        Its levels where a slice, the vector over the PEs of a cube, is no longer than so many bytes.
    moved : callable
        Vectors that pass between a participant and its own HBM, of n.
    """

    form: cost.Form
    levels: Callable[[Plan], list[Part]]
    trees: int = 1
    cut: bool = True
    turns: Callable[[int], int] = lambda n: 2 * (n - 1)
    moved: Callable[[int], float] = lambda n: 2.0
    short: Callable[[Plan], list[Part]] | None = None
    until: int = 0


# By the module of the kernel.
SHAPES = {
    "ring": Shape(cost.all_reduce, _ring),
    "ring_mesh": Shape(cost.all_reduce, _ring_mesh),
    "ring_flat": Shape(cost.ring_flat, _ring, cut=False, turns=_once_round, moved=lambda n: 2 * n - 1),
    "mesh_2d": Shape(cost.all_reduce, _grid),
    "tree_binary": Shape(cost.all_reduce, lambda plan: _trees(plan, "")),
    "double_tree": Shape(cost.all_reduce, lambda plan: _trees(plan, "a_", "b_"), trees=2),
    "torus_2d": Shape(cost.all_reduce, _torus),
    "double_torus": Shape(cost.all_reduce, _double_torus, trees=4),
    "halving_doubling": Shape(cost.all_reduce, _halving),
    "recursive_doubling": Shape(cost.recursive_doubling, _halving, cut=False, turns=_once, moved=_doublings),
    "intercube": Shape(cost.all_reduce, _cubes),
    "hierarchical": Shape(cost.all_reduce, _chains),
    "hierarchical_sliced": Shape(cost.all_reduce, _slices, short=_short_slices, until=SHORT_SLICE),
    "broadcast": Shape(cost.broadcast, lambda plan: _trees(plan, ""), moved=_sent_down),
    "broadcast_ring": Shape(cost.broadcast, _both_halves, moved=_sent_down),
    "reduce": Shape(cost.reduce, lambda plan: _trees(plan, "")),
    "reduce_scatter": Shape(cost.reduce_scatter, _ring, turns=_once_round, moved=lambda n: 1 + 1 / n),
    "all_gather": Shape(cost.all_gather, _ring, turns=_once_round, moved=lambda n: 1 + 2 / n),
    "all_to_all": Shape(cost.all_to_all, _all, turns=_once),
    "barrier": Shape(cost.barrier, lambda plan: _trees(plan, ""), moved=lambda n: 0),
}
