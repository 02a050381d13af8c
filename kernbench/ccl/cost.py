"""Closed forms of collective algorithms: what each would take if nobody got in its way.

A form knows steps and sizes; what a step costs, its network says. With `AlphaBeta` a form is the formula of the text
books; with the queues of a machine (kernbench.ccl.estimate) it knows their latency, bandwidth and
window.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


class Network(Protocol):
    """What messages and sums cost between neighbours of one level."""

    def steps(self, count: int, nbytes: float, *, adds: bool = False) -> float:
        """Return the time of `count` steps in which every rank sends `nbytes`, each after what came in the one before.

        With `adds`, what comes is added to what was there.
        """

    def chain(self, count: int, nbytes: float, *, adds: bool = False) -> float:
        """Return the time of `nbytes` along `count` ranks, each of which sends once."""


@dataclass(frozen=True, slots=True)
class AlphaBeta:
    """The network of the text books: a message takes alpha + n / B, a sum takes gamma n, and nothing overlaps.

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

    def steps(self, count: int, nbytes: float, *, adds: bool = False) -> float:
        """Return count (alpha + n / B), and count gamma n for sums."""
        return count * (self.alpha_ns + nbytes / self.bw_gbs + adds * self.gamma_ns * nbytes)

    def chain(self, count: int, nbytes: float, *, adds: bool = False) -> float:
        """Return the same: whole vectors are passed on."""
        return self.steps(count, nbytes, adds=adds)


@dataclass(frozen=True, slots=True)
class Level:
    """`n` ranks that talk over one network; algorithms of several levels have one for each, innermost first."""

    n: int
    net: Network


Form = Callable[[Sequence[Level], float], float]


def reduce_scatter_ring(levels: Sequence[Level], nbytes: float) -> float:
    """Return n - 1 steps, each of an n-th of the vector received and added."""
    [level] = levels
    return level.net.steps(level.n - 1, nbytes / level.n, adds=True)


def all_gather_ring(levels: Sequence[Level], nbytes: float) -> float:
    """Return n - 1 steps, each of an n-th of the whole passed on."""
    [level] = levels
    return level.net.steps(level.n - 1, nbytes / level.n)


def ring(levels: Sequence[Level], nbytes: float) -> float:
    """Return an all-reduce as reduce-scatter and all-gather over a ring.

    Notes
    -----
    2 (n - 1) alpha + 2 (n - 1) / n S / B + (n - 1) / n S gamma (Patarasuk and Yuan, 2009).

    Examples
    --------
    >>> ring([Level(16, AlphaBeta(alpha_ns=1000, bw_gbs=50))], 1e6)
    67500.0
    """
    return reduce_scatter_ring(levels, nbytes) + all_gather_ring(levels, nbytes)


def ring_flat(levels: Sequence[Level], nbytes: float) -> float:
    """Return an all-reduce in which whole vectors go round the ring: n - 1 of each, added on arrival."""
    [level] = levels
    return level.net.steps(level.n - 1, nbytes, adds=True)


def recursive_doubling(levels: Sequence[Level], nbytes: float) -> float:
    """Return log n exchanges of the whole vector; without a power of two, the rest folds in before and gets it after.

    Notes
    -----
    log n (alpha + S / B + S gamma) (Thakur, Rabenseifner and Gropp, 2005).
    """
    [level] = levels
    steps, rest = _halvings(level.n)
    return level.net.steps(steps, nbytes, adds=True) + rest * _fold(level, nbytes)


def halving_doubling(levels: Sequence[Level], nbytes: float) -> float:
    """Return an all-reduce by halves: exchanges of S / 2, S / 4, ... and back.

    Notes
    -----
    2 log n alpha + 2 (n - 1) / n S / B + (n - 1) / n S gamma (Rabenseifner, 2004), with the fold of
    `recursive_doubling` where n is no power of two.
    """
    [level] = levels
    steps, rest = _halvings(level.n)
    parts = [nbytes / 2**step for step in range(1, steps + 1)]
    halving = sum(level.net.steps(1, part, adds=True) + level.net.steps(1, part) for part in parts)
    return halving + rest * _fold(level, nbytes)


def tree(levels: Sequence[Level], nbytes: float) -> float:
    """Return a reduction to the root of a binary tree and a broadcast from it, whole vectors each time."""
    return reduce_tree(levels, nbytes) + broadcast_tree(levels, nbytes)


def reduce_tree(levels: Sequence[Level], nbytes: float) -> float:
    """Return log n whole vectors, received and added."""
    [level] = levels
    return level.net.chain(depth(level.n), nbytes, adds=True)


def broadcast_tree(levels: Sequence[Level], nbytes: float) -> float:
    """Return log n whole vectors passed on."""
    [level] = levels
    return level.net.chain(depth(level.n), nbytes)


def torus(levels: Sequence[Level], nbytes: float) -> float:
    """Return the bucket form: reduce-scatter along the first axis, an all-reduce of its part along the others, back.

    Notes
    -----
    2 (r + c - 2) alpha + 2 (n - 1) / n S / B on r x c, the whole vector in one order of the axes.
    """
    first, *others = levels
    inner = torus(others, nbytes / first.n) if others else 0.0
    return ring([first], nbytes) + inner


def all_to_all_direct(levels: Sequence[Level], nbytes: float) -> float:
    """Return n - 1 messages of an n-th of the vector, one for each other rank."""
    [level] = levels
    return level.net.steps(level.n - 1, nbytes / level.n)


def all_to_all_bruck(levels: Sequence[Level], nbytes: float) -> float:
    """Return log n messages of half the vector (Bruck et al., 1997)."""
    [level] = levels
    return level.net.steps(depth(level.n), nbytes / 2)


def barrier(levels: Sequence[Level], nbytes: float) -> float:
    """Return log n messages that say nothing."""
    [level] = levels
    return level.net.steps(depth(level.n), 0)


def depth(n: int) -> int:
    """Return log2 of n, rounded up."""
    return (n - 1).bit_length()


def _halvings(n: int) -> tuple[int, bool]:
    """Return how often n halves, and whether a rest stays that is no power of two."""
    steps = n.bit_length() - 1
    return steps, n != 1 << steps


def _fold(level: Level, nbytes: float) -> float:
    """Return what the ranks beyond a power of two cost: whole vectors in before and out after."""
    return level.net.steps(1, nbytes, adds=True) + level.net.steps(1, nbytes)
