"""Who attends together: ranks in the order of their ring, and many such rings side by side."""

from __future__ import annotations

from collections.abc import Sequence

from kernbench.ccl.algorithm import Mapper
from kernbench.ccl.lane import Group, Place
from kernbench.errors import ArgumentError

ACROSS = ("pe", "cube")


def lanes(ranks: int, across: str) -> Mapper:
    """Return a mapper that makes lanes of `ranks` of the PEs that hold a shard, as many from each SIP.

    Parameters
    ----------
    ranks : int
        Participants of each lane.
    across : str
        "pe": the PEs of a cube follow each other, then those of the next cube; "cube": one PE of each cube, cube
        after cube, and a lane for each PE. Cubes follow each other row by row, forth and back, so that neighbours are
        neighbours on the mesh; SIPs follow each other in rank order.
    """
    if across not in ACROSS:
        raise ArgumentError(f"across = {across!r} is unknown; known: {', '.join(ACROSS)}")

    def mapper(group: Group) -> list[tuple[Place, ...]]:
        sips = len(group.shards)
        if ranks % sips or len(group.shards[0]) * sips % ranks:
            raise ArgumentError(
                f"ranks = {ranks}: {sips} SIPs with {len(group.shards[0])} PEs that hold shards each; expected a "
                "multiple of the SIPs and a divisor of the PEs"
            )
        parts = [_cut(_ordered(places, group.cube_columns), ranks // sips) for places in group.shards]
        return [tuple(place for part in lane for place in part) for lane in zip(*parts, strict=True)]

    def _ordered(places: Sequence[Place], columns: int) -> list[Place]:
        order = sorted(places, key=lambda p: (snake(p[1], columns), _round_cube(p[2], places)))
        return sorted(order, key=lambda p: p[2]) if across == "cube" else order

    return mapper


def snake(cube: int, columns: int) -> tuple[int, int]:
    """Return where a cube comes when rows are gone through forth and back.

    >>> sorted(range(6), key=lambda cube: snake(cube, 3))
    [0, 1, 2, 5, 4, 3]
    """
    row, column = divmod(cube, columns)
    return row, columns - 1 - column if row % 2 else column


def _round_cube(pe: int, places: Sequence[Place]) -> tuple[bool, int]:
    """Return where a PE comes on the way round a cube: the corners are listed NW, NE, SW, SE."""
    n = max(p[2] for p in places) + 1
    lower = pe >= n // 2
    return lower, -pe if lower else pe


def _cut(order: Sequence[Place], size: int) -> list[Sequence[Place]]:
    return [order[at : at + size] for at in range(0, len(order), size)]
