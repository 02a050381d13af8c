"""Stages of an all-reduce: positions of a participant in rings and trees, and what they cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from kernbench.topology._mesh import cycle_through

Directions = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ring:
    """Position `rank` in a ring of `n`, from `source` to `to`. Two participants form a ring with one queue each."""

    rank: int
    n: int
    to: str
    source: str

    @property
    def reversed(self) -> Ring:
        return Ring(self.n - 1 - self.rank, self.n, self.source, self.to)

    @property
    def ends(self) -> list[tuple[str, str]]:
        """(action, queue) of every end of a queue."""
        return [("send to", self.to), ("receive from", self.source)] if self.n > 1 else []


@dataclass(frozen=True, slots=True)
class Tree:
    """A position in a tree: `depth` edges below the root, which has no parent, `height` above the deepest member."""

    parent: str | None
    children: Directions
    depth: int
    height: int = field(default=0, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "children", tuple(self.children))  # a list is not hashable

    @property
    def ends(self) -> list[tuple[str, str]]:
        """(action, queue) of every end of a queue."""
        queues = self.children if self.parent is None else (self.parent, *self.children)
        return [(action, queue) for action in ("send to", "receive from") for queue in queues]


@dataclass(frozen=True, slots=True)
class Pairwise:
    """Direct messages to each of `n` - 1 other participants, one after another; not a stage of an all-reduce."""

    n: int
    to: Directions

    def __post_init__(self) -> None:
        object.__setattr__(self, "to", tuple(self.to))


Stage = Ring | Tree
# The passes of a stage; True: the data that arrive are added, False: forwarded.
SUM, COPY, BOTH = (True,), (False,), (True, False)
Passes = tuple[bool, ...]
# Of one participant: for each stream, its stages, the innermost first. Streams share the vector in equal parts.
Streams = Sequence[Sequence[Stage]]


@dataclass(frozen=True, slots=True)
class CostTerms:
    """Properties of a collective for the alpha-beta model."""

    # streams(call, rank, n, n_elem, itemsize): a participant's stages; `call` holds options and facts
    streams: Callable[[Mapping[str, Any], int, int, int, int], Sequence[Sequence[Stage | Pairwise]]]
    ring: Passes = BOTH  # the passes of rings
    tree: Passes = BOTH  # the passes of trees
    splits: bool = True  # rings split the vector into as many parts as they have members
    moved: Callable[[int], float] = lambda n: 2.0  # number of participants to HBM traffic of a participant, in vectors


def heap_tree(rank: int, n: int, root: int = 0) -> Tree:
    """Position of `rank` in the binary heap of `n` (queues parent, child_left, child_right), rooted at `root`.

    >>> heap_tree(1, 6)
    Tree(parent='parent', children=('child_left', 'child_right'), depth=1)
    >>> heap_tree(1, 6, root=4)
    Tree(parent='child_right', children=('parent', 'child_left'), depth=1)
    """
    adjacent = {"parent": (rank - 1) // 2, "child_left": 2 * rank + 1, "child_right": 2 * rank + 2}
    peers = {to: peer for to, peer in adjacent.items() if 0 <= peer < n and (rank or to != "parent")}
    line = [root]
    while line[-1]:
        line.append((line[-1] - 1) // 2)
    at, depth = rank, 0
    while at not in line:
        at, depth = (at - 1) // 2, depth + 1
    depth += line.index(at)
    if rank == root:
        return Tree(None, tuple(peers), 0)
    next_peer = line[line.index(rank) - 1] if rank in line else (rank - 1) // 2
    parent = next(to for to, peer in peers.items() if peer == next_peer)
    return Tree(parent, tuple(to for to in peers if to != parent), depth)


def mesh_tree(rank: int, w: int, h: int, root: int, prefix: str = "") -> Tree:
    """Position of `rank` in a w x h mesh without wrap, numbered row by row: along the row, then the column.

    >>> mesh_tree(0, 3, 2, root=4)
    Tree(parent='E', children=(), depth=2)
    >>> mesh_tree(1, 3, 2, root=4, prefix="global_")
    Tree(parent='global_S', children=('global_W', 'global_E'), depth=1)
    """
    (row, column), (root_row, root_column) = divmod(rank, w), divmod(root, w)
    children = []
    if column > 0 and column <= root_column:
        children.append("W")
    if column < w - 1 and column >= root_column:
        children.append("E")
    if column == root_column:
        children += ["N"] if 0 < row <= root_row else []
        children += ["S"] if root_row <= row < h - 1 else []
    if column != root_column:
        parent = "E" if column < root_column else "W"
    else:
        parent = "" if row == root_row else "S" if row < root_row else "N"
    depth = abs(row - root_row) + abs(column - root_column)
    return Tree(prefix + parent if parent else None, tuple(prefix + side for side in children), depth)


def in_order_tree(rank: int, n: int, prefix: str) -> Tree:
    """Position of `rank` in the in-order tree of 1 .. n-1 under 0 (queues parent, child_left, child_right)."""
    parents, heights = _in_order(n)
    depth, at = 0, parents[rank]
    while at is not None:
        at, depth = parents[at], depth + 1
    children = tuple(
        f"{prefix}child_{'left' if child < rank or rank == 0 else 'right'}"
        for child, parent in enumerate(parents)
        if parent == rank
    )
    return Tree(f"{prefix}parent" if rank else None, children, depth, heights[rank])


def in_order_height(n: int) -> int:
    return _in_order(n)[1][0]


def in_order_parent(rank: int, n: int) -> int | None:
    """Parent of a member of the in-order binary tree of 1..n-1 under root 0; None for the root."""
    if rank == 0:
        return None
    bit = rank & -rank
    parent = (rank ^ bit) | bit << 1
    return parent if parent < n else rank ^ bit


@lru_cache(maxsize=16)
def _in_order(n: int) -> tuple[list[int | None], list[int]]:
    """Each member's parent, and the edges to its deepest descendant."""
    parents = [in_order_parent(member, n) for member in range(n)]
    heights = [0] * n
    for member in range(n):
        at, edges = member, 0
        while (above := parents[at]) is not None:
            at, edges = above, edges + 1
            heights[at] = max(heights[at], edges)
    return parents, heights


def sip_stages(rank: int, w: int, h: int, wraps: bool) -> list[Stage]:
    """Between devices, by queues global_E, ...: a ring for each axis that wraps, else a tree."""
    if not wraps:
        return [mesh_tree(rank, w, h, h // 2 * w + w // 2, "global_")] if w * h > 1 else []
    row, column = divmod(rank, w)
    rings: list[Stage] = [Ring(column, w, "global_E", "global_W")] if w > 1 else []
    return rings + ([Ring(row, h, "global_S", "global_N")] if h > 1 else [])


def cycle(rank: int, w: int, h: int) -> Ring | None:
    """Position of `rank` in a Hamiltonian cycle of the w x h mesh; None if there is none.

    There is one if both sides are at least 2 and one of them is even.

    >>> cycle(0, 4, 2), cycle(4, 4, 2)
    (Ring(rank=0, n=8, to='E', source='S'), Ring(rank=7, n=8, to='N', source='E'))
    """
    if min(w, h) < 2 or w * h % 2:
        return None
    places = cycle_through(h, w)
    here = divmod(rank, w)
    at = places.index(here)
    return Ring(at, len(places), _direction(here, places[(at + 1) % len(places)]), _direction(here, places[at - 1]))


def _direction(here: tuple[int, int], there: tuple[int, int]) -> str:
    down, right = there[0] - here[0], there[1] - here[1]
    return {(0, 1): "E", (0, -1): "W", (1, 0): "S", (-1, 0): "N"}[down, right]
