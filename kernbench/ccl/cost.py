"""Closed forms of collective algorithms: what each would take if nobody got in its way.

A form knows steps and sizes; what a step costs, its network says. With `AlphaBeta` a form is the formula of the text
books; with a `Hop` of a machine (kernbench.ccl.hops) it knows that machine's latency, bandwidth and queue window.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


class Network(Protocol):
    """What messages and sums cost between neighbours of one level."""

    def send(self, nbytes: float) -> float:
        """Return the time from the send to the end of the receive [ns]."""

    def reduce(self, nbytes: float) -> float:
        """Return the time to add two vectors of `nbytes` [ns]."""


@dataclass(frozen=True, slots=True)
class AlphaBeta:
    """The network of the text books: a message takes alpha + n / B, a sum takes gamma n.

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

    def send(self, nbytes: float) -> float:
        """Return alpha + n / B."""
        return self.alpha_ns + nbytes / self.bw_gbs

    def reduce(self, nbytes: float) -> float:
        """Return gamma n."""
        return self.gamma_ns * nbytes


@dataclass(frozen=True, slots=True)
class Level:
    """`n` ranks that talk over one network; algorithms of several levels have one for each, innermost first."""

    n: int
    net: Network


Form = Callable[[Sequence[Level], float], float]


def reduce_scatter_ring(levels: Sequence[Level], nbytes: float) -> float:
    """Return n - 1 steps, each of an n-th of the vector received and added."""
    [level] = levels
    part = nbytes / level.n
    return (level.n - 1) * (level.net.send(part) + level.net.reduce(part))


def all_gather_ring(levels: Sequence[Level], nbytes: float) -> float:
    """Return n - 1 steps, each of an n-th of the whole passed on."""
    [level] = levels
    return (level.n - 1) * level.net.send(nbytes / level.n)


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
    return (level.n - 1) * (level.net.send(nbytes) + level.net.reduce(nbytes))


def recursive_doubling(levels: Sequence[Level], nbytes: float) -> float:
    """Return log n exchanges of the whole vector; without a power of two, the rest folds in before and gets it after.

    Notes
    -----
    log n (alpha + S / B + S gamma), (Thakur, Rabenseifner and Gropp, 2005).
    """
    [level] = levels
    steps, rest = _halvings(level.n)
    swap = level.net.send(nbytes) + level.net.reduce(nbytes)
    return steps * swap + _fold(level, nbytes) * rest


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
    halving = sum(2 * level.net.send(part) + level.net.reduce(part) for part in parts)
    return halving + _fold(level, nbytes) * rest


def tree(levels: Sequence[Level], nbytes: float) -> float:
    """Return a reduction to the root of a binary tree and a broadcast from it, whole vectors each time."""
    return reduce_tree(levels, nbytes) + broadcast_tree(levels, nbytes)


def reduce_tree(levels: Sequence[Level], nbytes: float) -> float:
    """Return log n whole vectors, received and added."""
    [level] = levels
    return depth(level.n) * (level.net.send(nbytes) + level.net.reduce(nbytes))


def broadcast_tree(levels: Sequence[Level], nbytes: float) -> float:
    """Return log n whole vectors passed on."""
    [level] = levels
    return depth(level.n) * level.net.send(nbytes)


def torus(levels: Sequence[Level], nbytes: float) -> float:
    """Return the bucket form: reduce-scatter along the first axis, an all-reduce of its part along the others, back.

    Notes
    -----
    2 (r + c - 2) alpha + 2 (n - 1) / n S / B on r x c; one half of the vector at a time.
    """
    first, *others = levels
    inner = torus(others, nbytes / first.n) if others else 0.0
    return ring([first], nbytes) + inner


def all_to_all_direct(levels: Sequence[Level], nbytes: float) -> float:
    """Return n - 1 messages of an n-th of the vector, one for each other rank."""
    [level] = levels
    return (level.n - 1) * level.net.send(nbytes / level.n)


def all_to_all_bruck(levels: Sequence[Level], nbytes: float) -> float:
    """Return log n messages of half the vector (Bruck et al., 1997)."""
    [level] = levels
    return depth(level.n) * level.net.send(nbytes / 2)


def barrier(levels: Sequence[Level], nbytes: float) -> float:
    """Return log n messages without content."""
    [level] = levels
    return depth(level.n) * level.net.send(0)


def depth(n: int) -> int:
    """Return log2 of n, rounded up."""
    return (n - 1).bit_length()


def _halvings(n: int) -> tuple[int, bool]:
    """Return how often n halves, and whether a rest stays that is no power of two."""
    steps = n.bit_length() - 1
    return steps, n != 1 << steps


def _fold(level: Level, nbytes: float) -> float:
    """Return what the ranks beyond a power of two cost: whole vectors in before and out after."""
    return 2 * level.net.send(nbytes) + level.net.reduce(nbytes)
