"""All-reduce over levels: rings and trees, one inside the other, in one pipeline of moves.

A ring level leaves each member with a part of the vector, on which the next level works; a tree level brings all of
it to its root, and the next level is the root's. What a level receives is a further source of the moves of the next
one, and its result goes back the way that contributions came: so every element is touched once on its way in and
once on its way out, and no level waits for the one before to end. Only where that would make too many short messages
does a ring end its sum in memory, and begin again with the result of the next level.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from kernbench.ccl.algorithms.moves import Cut, Move, Span, blocks

Ways = tuple[str, ...]

# Chunks, for each edge to the root, that a member of a tree contributes before it waits for the first result.
LAG = 8
# A ring passes on the pieces of the next level, unless there are more than `MANY` in a turn of the ring, each shorter
# than `SHORT` bytes for each of them: a message costs a PE some 20 ns, however short (fitted; 16 to 256 participants).
SHORT, MANY = 8, 24


@dataclass(frozen=True, slots=True)
class Ring:
    """Place `rank` of a ring of `n`; pieces go to `to` and come from `source`. Two form a ring over one queue each."""

    rank: int
    n: int
    to: str
    source: str


@dataclass(frozen=True, slots=True)
class Tree:
    """A place in a tree, `depth` edges from the root, which has no parent."""

    parent: str | None
    children: Ways
    depth: int


Level = Ring | Tree


def all_reduce(levels: Sequence[Level], vector: Span, cut: Cut, up: Ways = (), down: Ways = ()) -> Iterator[Move]:
    """Yield the moves of one participant.

    Parameters
    ----------
    levels : sequence of Ring or Tree
        The participant's places, innermost level first.
    vector : tuple of int
        First element and number of elements.
    cut : Cut
        How it is cut into messages.
    up, down : tuple of str
        Where further contributions come from, and where results go besides.
    """
    if not levels:
        for chunk in cut.chunks(vector):
            yield Move(*chunk, up, own=True, complete=True, to=down, keep=True)
        return
    level, rest = levels[0], levels[1:]
    if isinstance(level, Ring):
        yield from _ring(level, rest, vector, cut, up, down)
    elif level.parent is None:
        yield from all_reduce(rest, vector, cut, (*up, *level.children), (*level.children, *down))
    else:
        yield from _below(level, level.parent, all_reduce(rest, vector, cut, ("taken",), ("given",)), up, down)


def _ring(ring: Ring, rest: Sequence[Level], vector: Span, cut: Cut, up: Ways, down: Ways) -> Iterator[Move]:
    rank, n, to, source = ring.rank, ring.n, ring.to, ring.source
    last: list[Move] = []
    for segment in cut.segments(*vector, n):
        parts = blocks(*segment, n, cut.row)
        apart = bool(rest) and keeps_apart(n, len(_pieces(rest, parts[0], cut)[0]), parts[0][1], cut)
        # The others' parts, in the pieces and in the order in which the next level takes and gives them.
        pieces = [(cut.chunks(part),) * 2 if apart else _pieces(rest, part, cut) for part in parts]
        taken, given = [of[0] for of in pieces], [of[1] for of in pieces]
        yield from (Move(*piece, up, own=True, to=(to,)) for piece in taken[rank])
        # What starts this segment leaves before the last step of the segment before, so that the ring never idles.
        yield from last
        for step in range(1, n - 1):
            for piece in taken[(rank - step) % n]:
                yield Move(*piece, (*up, source), own=True, to=(to,))
        mine = (rank + 1) % n
        if apart:
            yield from (Move(*piece, (*up, source), own=True, keep=True) for piece in taken[mine])
            yield from all_reduce(rest, parts[mine], cut)
            yield from (Move(*piece, own=True, to=(to, *down)) for piece in given[mine])
        else:
            yield from all_reduce(rest, parts[mine], cut, (*up, source), (to, *down))
        for step in range(n - 2):
            for piece in given[(rank - step) % n]:
                yield Move(*piece, (source,), to=(to, *down), keep=True)
        last = [Move(*piece, (source,), to=down, keep=True) for piece in given[(rank + 2) % n]]
    yield from last


def keeps_apart(n: int, pieces: int, part: int, cut: Cut) -> bool:
    """Return whether a ring of `n` keeps to messages of its own, and leaves sums in memory for the next level.

    That level's `pieces` would be too short, and too many. `part` is the longest [elements], the same for every member.
    """
    many = (n - 1) * pieces
    return many > MANY and pieces > len(cut.chunks((0, part))) and part * cut.itemsize < SHORT * many * pieces


def _pieces(levels: Sequence[Level], vector: Span, cut: Cut) -> tuple[list[Span], list[Span]]:
    """Return the pieces in which levels take a vector, and those in which they give its sum, in their order."""
    start, size = vector
    taken, given = _pieces_of(tuple(levels), size, cut)
    return [(start + at, n) for at, n in taken], [(start + at, n) for at, n in given]


@lru_cache(maxsize=10_000)
def _pieces_of(levels: tuple[Level, ...], size: int, cut: Cut) -> tuple[list[Span], list[Span]]:
    moves = list(all_reduce(levels, (0, size), cut, ("taken",), ("given",)))
    taken = [(move.start, move.size) for move in moves if "taken" in move.sources]
    return taken, [(move.start, move.size) for move in moves if "given" in move.to]


def _below(tree: Tree, parent: str, above: Iterable[Move], up: Ways, down: Ways) -> Iterator[Move]:
    """Yield contributions and results in the order of the root, whose moves are `above`; results with a lag."""
    waiting: deque[Move] = deque()
    for move in above:
        if "taken" in move.sources:
            yield Move(move.start, move.size, (*up, *tree.children), own=True, to=(parent,))
        if "given" in move.to:
            waiting.append(Move(move.start, move.size, (parent,), to=(*tree.children, *down), keep=True))
            if len(waiting) > LAG * tree.depth:
                yield waiting.popleft()
    yield from waiting


def heap_tree(rank: int, n: int, root: int = 0) -> Tree:
    """Return the place of `rank` in the binary heap of `n` (queues parent, child_left, child_right), seen from `root`.

    >>> heap_tree(1, 6)
    Tree(parent='parent', children=('child_left', 'child_right'), depth=1)
    >>> heap_tree(1, 6, root=4)
    Tree(parent='child_right', children=('parent', 'child_left'), depth=1)
    """
    beside = {"parent": (rank - 1) // 2, "child_left": 2 * rank + 1, "child_right": 2 * rank + 2}
    ways = {way: peer for way, peer in beside.items() if 0 <= peer < n and (rank or way != "parent")}
    line = _to_top(root)
    at, depth = rank, 0
    while at not in line:
        at, depth = (at - 1) // 2, depth + 1
    depth += line.index(at)
    if rank == root:
        return Tree(None, tuple(ways), 0)
    next_peer = line[line.index(rank) - 1] if rank in line else (rank - 1) // 2
    parent = next(way for way, peer in ways.items() if peer == next_peer)
    return Tree(parent, tuple(way for way in ways if way != parent), depth)


def _to_top(rank: int) -> list[int]:
    line = [rank]
    while line[-1]:
        line.append((line[-1] - 1) // 2)
    return line


def mesh_tree(rank: int, w: int, h: int, root: int, prefix: str = "") -> Tree:
    """Return the place of `rank` in a w x h mesh without wrap, numbered row by row: along the row, then the column.

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
    return Tree(prefix + parent if parent else None, tuple(prefix + way for way in children), depth)


def sip_levels(rank: int, w: int, h: int, wraps: bool) -> list[Level]:
    """Return the levels between devices, by queues global_E, ...: a ring for each axis that wraps, else a tree."""
    if not wraps:
        return [mesh_tree(rank, w, h, h // 2 * w + w // 2, "global_")] if w * h > 1 else []
    row, column = divmod(rank, w)
    rings: list[Level] = [Ring(column, w, "global_E", "global_W")] if w > 1 else []
    return rings + ([Ring(row, h, "global_S", "global_N")] if h > 1 else [])


def cycle(rank: int, w: int, h: int) -> Ring | None:
    """Return the place of `rank` in a Hamiltonian cycle of the w x h mesh, or None where there is none.

    There is one if both sides are at least 2 and one of them is even: along column 0, back in a snake over the rest.

    >>> cycle(0, 4, 2), cycle(4, 4, 2)
    (Ring(rank=0, n=8, to='E', source='S'), Ring(rank=7, n=8, to='N', source='E'))
    """
    if min(w, h) < 2 or w * h % 2:
        return None
    turned = h % 2 == 1
    rows, columns = (w, h) if turned else (h, w)
    path = [(0, 0)]
    for row in range(rows):
        across = range(1, columns)
        path += [(row, column) for column in (across if row % 2 == 0 else reversed(across))]
    path += [(row, 0) for row in range(rows - 1, 0, -1)]
    places = [(c, r) if turned else (r, c) for r, c in path]
    here = divmod(rank, w)
    at = places.index(here)
    return Ring(at, len(places), _way(here, places[(at + 1) % len(places)]), _way(here, places[at - 1]))


def _way(here: tuple[int, int], there: tuple[int, int]) -> str:
    down, right = there[0] - here[0], there[1] - here[1]
    return {(0, 1): "E", (0, -1): "W", (1, 0): "S", (-1, 0): "N"}[down, right]
