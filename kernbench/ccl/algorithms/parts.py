"""A vector of n equal parts that goes round a ring, in one direction or a half of each part in each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kernbench.ccl.algorithms.moves import Cut, Span, blocks
from kernbench.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Half:
    """What goes one way round: `parts` are numbered along it, `rank` is the own number among them."""

    rank: int
    n: int
    to: str
    source: str
    parts: list[Span]

    def segments(self, cut: Cut) -> Iterator[list[list[Span]]]:
        """Yield the chunks of a piece of every part, one piece after the other, so that each fits into TCM."""
        first = self.parts[0][0]
        for at, size in cut.segments(*self.parts[0], 1):
            yield [cut.chunks((start + at - first, size)) for start, _ in self.parts]


def halves(rank: int, n: int, part: int, row: int, both_ways: bool) -> list[Half]:
    """Return what goes each way round, of n parts of `part` elements."""
    ways = blocks(0, part, 1 + both_ways, row)
    spans = [[(r * part + start, size) for r in range(n)] for start, size in ways]
    found = [Half(rank, n, "E", "W", spans[0])]
    if both_ways:
        found.append(Half(n - 1 - rank, n, "W", "E", spans[1][::-1]))
    return found


def equal_part(n_elem: int, world_size: int) -> int:
    """Return the elements of each of `world_size` equal parts.

    Raises
    ------
    ConfigError
        If they cannot be equal.
    """
    part, rest = divmod(n_elem, world_size)
    if rest:
        raise ConfigError(f"{n_elem} elements have no {world_size} equal parts; give a multiple of {world_size}")
    return part
