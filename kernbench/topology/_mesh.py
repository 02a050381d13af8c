"""The layout of one cube: its routers, the parts attached to each of them, and the walks between routers.

All cubes of a machine share one layout. Row 0 is north, column 0 west; router (r, c) is at
((c + 0.5), (r + 0.5)) x pitch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import pairwise

from kernbench.config import MachineConfig
from kernbench.config._rules import hops_from, memory_places, pe_places, port_places

At = tuple[int, int]  # (row, column)

# The order of the sides breaks all ties: between arrivals, and between shortest walks.
SIDES = ("e", "w", "n", "s")
OFFSETS = {"e": (0, 1), "w": (0, -1), "n": (-1, 0), "s": (1, 0)}
OPPOSITE = {"e": "w", "w": "e", "n": "s", "s": "n"}


class CubeLayout:
    """Routers of a cube, the router of each PE, port, CPU and SRAM, and the route between any two."""

    def __init__(self, config: MachineConfig) -> None:
        noc = config.cube.noc
        self.rows, self.cols, self.pitch_mm = noc.rows, noc.cols, noc.pitch_mm
        self.wrapped = noc.is_torus
        self._ring = cycle_through(self.rows, self.cols) if noc.topology == "rings" and not self.wrapped else []
        self._on_ring = {at: place for place, at in enumerate(self._ring)}
        removed = {(r, c) for r, c in noc.removed}
        self.routers: tuple[At, ...] = tuple(
            (r, c) for r in range(self.rows) for c in range(self.cols) if (r, c) not in removed
        )
        self._present = frozenset(self.routers)
        self._walks: dict[tuple[At, At], tuple[At, ...]] = {}
        self.pes: tuple[At, ...] = tuple(pe_places(config))
        self.memories: tuple[At, ...] = tuple(memory_places(config))
        self.ports: dict[tuple[str, int], At] = port_places(config)
        self.m_cpu = self._nearest(config.cube.m_cpu.pos_mm)
        self.sram = self._nearest(config.cube.sram.pos_mm)

    def position_mm(self, at: At) -> tuple[float, float]:
        """Position x (eastward) and y (southward) of the router at `at`, from the cube's north-west corner."""
        return (at[1] + 0.5) * self.pitch_mm, (at[0] + 0.5) * self.pitch_mm

    def neighbour(self, at: At, side: str) -> At | None:
        row, col = at[0] + OFFSETS[side][0], at[1] + OFFSETS[side][1]
        if self.wrapped:  # a side of two routers has no further link
            row, col = row % self.rows if self.rows > 2 else row, col % self.cols if self.cols > 2 else col
        if self._ring and (row, col) in self._present:
            apart = abs(self._on_ring[row, col] - self._on_ring[at])
            return (row, col) if apart in (1, len(self._ring) - 1) else None
        return (row, col) if (row, col) in self._present else None

    def walk(self, src: At, dst: At) -> tuple[At, ...]:
        """Routers of the route from `src` to `dst`, both included.

        Column first if that is free of removed routers; else row first; else the shortest walk that is first in the
        order E, W, N, S. In a torus, column first, each the shorter way round; so is that of a ring.
        """
        found = self._walks.get((src, dst))
        if found is None and self._ring:
            start, end = self._on_ring[src], self._on_ring[dst]
            (line, *_) = shortest_lines(start, end, len(self._ring), odd=start % 2 == 1)
            found = self._walks[src, dst] = tuple([self._ring[place] for place in line])
        elif found is None and self.wrapped:
            odd = (src[0] * self.cols + src[1]) % 2 == 1
            row, column = (
                shortest_lines(*ends, odd=odd)[0] for ends in zip(src, dst, (self.rows, self.cols), strict=True)
            )
            found = self._walks[src, dst] = (*((src[0], c) for c in column), *((r, dst[1]) for r in row[1:]))
        elif found is None:
            found = self._straight(src, (src[0], dst[1]), dst) or self._straight(src, (dst[0], src[1]), dst)
            found = self._walks[src, dst] = found or self._shortest(src, dst)
        return found

    @cached_property
    def turns(self) -> frozenset[tuple[At | None, At, At | None]]:
        """Every (previous router, router, next router) of a route or a reply; None at its ends."""
        ends = {*self.pes, *self.memories, *self.ports.values(), self.m_cpu, self.sram}
        found: set[tuple[At | None, At, At | None]] = set()
        for walk in (self.walk(a, b) for a in ends for b in ends):
            for order in (walk, walk[::-1]):
                found.update(zip((None, *order[:-1]), order, (*order[1:], None), strict=True))
        return frozenset(found)

    @cached_property
    def vc_classes(self) -> int:
        """VC classes that routes between parts of the cube need to be free of deadlock."""
        if self.wrapped or self._ring:
            return classes_of_rings((len(self._ring), self.rows, self.cols))
        if len(self.routers) == self.rows * self.cols:
            return 1
        ends = {*self.pes, *self.memories, *self.ports.values(), self.m_cpu, self.sram}
        return 1 + max(max(vc_classes(self.walk(a, b)), default=0) for a in ends for b in ends)

    def classes(self, walk: Sequence[At]) -> list[int]:
        """VC class of each step of a walk."""
        if self._ring:
            return vc_classes([(self._on_ring[at],) for at in walk], wrapped=True)
        return vc_classes(walk, wrapped=self.wrapped)

    def _straight(self, src: At, corner: At, dst: At) -> tuple[At, ...] | None:
        walk = [src]
        for goal in (corner, dst):
            while walk[-1] != goal:
                (r, c), (goal_r, goal_c) = walk[-1], goal
                at = (r + (goal_r > r) - (goal_r < r), c + (goal_c > c) - (goal_c < c))
                if at not in self._present:
                    return None
                walk.append(at)
        return tuple(walk)

    def _shortest(self, src: At, dst: At) -> tuple[At, ...]:
        to_go = hops_from(dst, self._present)
        walk = [src]
        while walk[-1] != dst:
            closer = to_go[walk[-1]] - 1
            neighbours = (self.neighbour(walk[-1], side) for side in SIDES)
            walk.append(next(at for at in neighbours if at is not None and to_go[at] == closer))
        return tuple(walk)

    def _nearest(self, pos_mm: tuple[float, float]) -> At:
        return min(self.routers, key=lambda at: (self._distance_mm(at, pos_mm), -at[0], at[1]))

    def _distance_mm(self, at: At, pos_mm: tuple[float, float]) -> float:
        x, y = self.position_mm(at)
        return abs(pos_mm[0] - x) + abs(pos_mm[1] - y)


def cycle_through(rows: int, cols: int) -> list[At]:
    """Find a closed way through a grid with sides of at least 2, one of them even: along column 0, back in a snake."""
    turned = rows % 2 == 1
    lines, length = (cols, rows) if turned else (rows, cols)
    path = [(0, 0)]
    for line in range(lines):
        across = range(1, length)
        path += [(line, place) for place in (across if line % 2 == 0 else reversed(across))]
    path += [(line, 0) for line in range(lines - 1, 0, -1)]
    return [(b, a) for a, b in path] if turned else path


def shortest_lines(at: int, to: int, n: int, *, odd: bool) -> list[list[int]]:
    """Find the shortest lines between two positions on a ring of `n`.

    Of two, the one towards higher positions comes first, or last if the message is from an `odd` place.
    """
    up, down = (to - at) % n, (at - to) % n
    lines = [[(at + i) % n for i in range(up + 1)], [(at - i) % n for i in range(down + 1)]]
    if up != down or n <= 2 or up == 0:
        return [min(lines, key=len)]
    return lines[::-1] if odd else lines


def classes_of_rings(sides: Iterable[int]) -> int:
    """VC classes that routes along the rings of a torus with credits need."""
    return 2 if max(sides) > 2 else 1


def vc_classes(walk: Sequence[tuple[int, ...]], *, wrapped: bool = False) -> list[int]:
    """Assign a VC class to each step of a walk between routers; `wrapped` if rows and columns are rings.

    The steps of one class go straight along a row, then straight along a column, then along the third dimension: a
    packet that waits for a buffer of a class waits for one further on in this order, so no cycle of waiting packets can
    close. Any other turn begins a lower class. On rings, a straight line over the edge has a class of its own: a line
    is at most half as long as its ring, so neither the lines over the edge nor the others close the ring.
    """
    lines: list[tuple[tuple[int, bool], int, bool]] = []  # dimension and direction, steps, whether over the edge
    for here, there in pairwise(walk):
        steps = [b - a for a, b in zip(reversed(here), reversed(there), strict=True)]
        dimension = next(i for i, step in enumerate(steps) if step)
        over = abs(steps[dimension]) > 1
        side = dimension, (steps[dimension] > 0) != over
        if lines and lines[-1][0] == side:
            lines[-1] = side, lines[-1][1] + 1, lines[-1][2] or over
        else:
            lines.append((side, 1, over))
    classes: list[int] = []
    level, behind = 0, -1
    for (dimension, _), count, over in reversed(lines):
        if 0 <= behind <= dimension:
            level += 1
        classes += [2 * level + over if wrapped else level] * count
        behind = dimension
    return classes[::-1]
