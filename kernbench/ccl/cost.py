"""Closed forms of collective algorithms: what each would take if nobody got in its way.

A form knows steps and sizes; what they cost, a network says. With `AlphaBeta` forms are the formulas of the text books;
with the queues of a machine (kernbench.ccl.estimate) they know latency, bandwidth, window and how chunks overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol


class Network(Protocol):
    """What a message between neighbours costs; long ones go in chunks, which may overlap."""

    def way(self, nbytes: float, adds: int = 0) -> float:
        """Return the time of the first chunk of a message from one neighbour to the next, and of `adds` sums [ns]."""

    def rest(self, nbytes: float, adds: int = 0, *, loaded: bool = False, alone: bool = False) -> float:
        """Return how long the chunks behind the first one follow [ns].

        `loaded` where they leave from memory, `alone` where only one direction of a tree is in use.
        """

    def busy(self, nbytes: float, adds: int = 0, *, loaded: bool = False) -> float:
        """Return how long a message keeps a neighbour busy: its port, or its engine with `adds` sums [ns]."""

    def before(self, nbytes: float, chunks: int) -> float:
        """Return the bytes of the first `chunks` of a message."""

    def late(self, nbytes: float) -> float:
        """Return the bytes of a message that find no slot before it is asked for."""


@dataclass(frozen=True, slots=True)
class AlphaBeta:
    """The network of the text books: a message is one chunk, and takes alpha + n / B; a sum takes gamma n.

    Attributes
    ----------
    alpha_ns, bw_gbs : float
        Start-up of a message, and bandwidth of a port in each direction.
    gamma_ns : float
        Time to add a byte.
    """

    alpha_ns: float
    bw_gbs: float
    gamma_ns: float = 0.0

    def way(self, nbytes: float, adds: int = 0) -> float:
        """Return alpha + n / B, and gamma n for each sum."""
        return self.alpha_ns + nbytes / self.bw_gbs + adds * self.gamma_ns * nbytes

    def rest(self, nbytes: float, adds: int = 0, *, loaded: bool = False, alone: bool = False) -> float:
        """Return nothing: there is one chunk."""
        return 0.0

    def busy(self, nbytes: float, adds: int = 0, *, loaded: bool = False) -> float:
        """Return n / B."""
        return nbytes / self.bw_gbs

    def before(self, nbytes: float, chunks: int) -> float:
        """Return all of it."""
        return nbytes

    def late(self, nbytes: float) -> float:
        """Return nothing: a message is a chunk."""
        return 0.0


@dataclass(frozen=True, slots=True)
class Ring:
    """A level of `n` ranks in a ring: each leaves an n-th of the sum to the next level, and gets all of it back."""

    n: int
    net: Network


@dataclass(frozen=True, slots=True)
class Tree:
    """A level of ranks in a tree: the vector goes over `depth` edges to its root, for the next level, and back.

    Each rank adds what `fan` children send, and takes the first result when it has passed on `lag` chunks.
    """

    depth: int
    net: Network
    fan: int = 1
    lag: int = 0


Level = Ring | Tree
Form = Callable[[Sequence[Level], float], float]


def steps(net: Network, count: int, nbytes: float, adds: int = 0, *, loaded: bool = False) -> float:
    """Return the time of `count` steps in which every rank sends `nbytes`, a chunk after that chunk of the step before.

    Notes
    -----
    Either ports are busy all the time, or the first chunk has gone all its way before the last one has left. `loaded`:
    what the first step sends leaves from memory.
    """
    way, rest = net.way(nbytes, adds), net.rest(nbytes, adds, loaded=loaded and count == 1)
    if count < 2:
        return count * (way + rest)
    ports = net.busy(nbytes, adds, loaded=loaded) + (count - 2) * net.busy(nbytes, adds)
    return max(count * way, ports + way) + rest


def all_reduce(levels: Sequence[Level], nbytes: float) -> float:
    """Return an all-reduce over levels, innermost first: rings, and trees, each inside the one before.

    Notes
    -----
    One ring: 2 (n - 1) alpha + 2 (n - 1) / n S / B + (n - 1) / n S gamma (Patarasuk and Yuan, 2009). Rings of two:
    halving and doubling, 2 log n alpha + ... (Rabenseifner, 2004). Two rings, r and c: the bucket form on a torus,
    2 (r + c - 2) alpha + 2 (n - 1) / n S / B. A tree: 2 log n (alpha + S / B) + log n S gamma. Whatever the levels, an
    inner one works on the part that the level outside leaves it.

    Examples
    --------
    >>> all_reduce([Ring(16, AlphaBeta(alpha_ns=1000, bw_gbs=50))], 1e6)
    67500.0
    """
    if not levels:
        return 0.0
    level, net, inner = levels[0], levels[0].net, levels[1:]
    if isinstance(level, Ring):
        around = reduce_scatter([level], nbytes) + steps(net, level.n - 1, nbytes / level.n)
        return around + all_reduce(inner, nbytes / level.n)
    there_and_back = level.depth * (net.way(nbytes, level.fan) + net.way(nbytes))
    # A ring gives its first result when all parts but one have gone round.
    parts = prod(outer.n for outer in inner if isinstance(outer, Ring))
    first = max(net.before(nbytes, level.lag), nbytes - nbytes / parts)
    up = net.rest(first, level.fan, loaded=True, alone=True)
    behind = up + max(net.rest(nbytes, alone=True), net.rest(nbytes, level.fan, loaded=True) - up)
    return there_and_back + max(behind, all_reduce(inner, nbytes))


def reduce_scatter(levels: Sequence[Level], nbytes: float) -> float:
    """Return n - 1 steps round a ring, each of an n-th of the vector received and added."""
    level = _ring(levels)
    return steps(level.net, level.n - 1, nbytes / level.n, adds=1, loaded=True)


def all_gather(levels: Sequence[Level], nbytes: float) -> float:
    """Return n - 1 steps round a ring, each of an n-th of the whole passed on."""
    level = _ring(levels)
    return steps(level.net, level.n - 1, nbytes / level.n, loaded=True)


def ring_flat(levels: Sequence[Level], nbytes: float) -> float:
    """Return an all-reduce in which whole vectors go round the ring: n - 1 of them come, and are added."""
    level = _ring(levels)
    return steps(level.net, level.n - 1, nbytes, adds=1, loaded=True)


def recursive_doubling(levels: Sequence[Level], nbytes: float) -> float:
    """Return exchanges of the whole vector: a step for each ring of two; a tree before them folds, chunk by chunk.

    Notes
    -----
    What fits into slots is there when a step ends: only the first step takes all its time, of the others what is late.
    log n (alpha + S / B + S gamma) (Thakur, Rabenseifner and Gropp, 2005).
    """
    folds = [level for level in levels if isinstance(level, Tree)]
    pairs = [level for level in levels if isinstance(level, Ring)]
    total = sum(level.net.way(nbytes, adds=1) for level in pairs)
    total += max(level.net.rest(nbytes, adds=1, loaded=True) for level in pairs)
    total += sum(level.net.rest(level.net.late(nbytes), adds=1) for level in pairs[1:])
    return total + sum(level.net.way(nbytes, adds=1) + level.net.way(nbytes) for level in folds)


def reduce(levels: Sequence[Level], nbytes: float) -> float:
    """Return the vector's way up a tree, with sums."""
    level = _tree(levels)
    return level.depth * level.net.way(nbytes, level.fan) + level.net.rest(nbytes, level.fan, loaded=True)


def broadcast(levels: Sequence[Level], nbytes: float) -> float:
    """Return the vector's way down a tree."""
    level = _tree(levels)
    return level.depth * level.net.way(nbytes) + level.net.rest(nbytes, loaded=True)


def all_to_all(levels: Sequence[Level], nbytes: float) -> float:
    """Return n - 1 messages of an n-th of the vector, which leave one behind the other."""
    level = _ring(levels)
    part = nbytes / level.n
    return level.net.way(part) + level.net.rest(part, loaded=True) + (level.n - 2) * level.net.busy(part, loaded=True)


def barrier(levels: Sequence[Level], nbytes: float) -> float:
    """Return the way of a byte up a tree, and down."""
    level = _tree(levels)
    return 2 * level.depth * level.net.way(1)


def _ring(levels: Sequence[Level]) -> Ring:
    [level] = levels
    assert isinstance(level, Ring)
    return level


def _tree(levels: Sequence[Level]) -> Tree:
    [level] = levels
    assert isinstance(level, Tree)
    return level
