"""The network between SIPs: who is next to whom, and the paths, with the rules for ties."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from typing import TYPE_CHECKING

from kernbench.config._rules import DIMENSIONS, RINGS, SWITCHED
from kernbench.topology import _naming as naming
from kernbench.topology._fat_tree import FatTree
from kernbench.topology._mesh import CubeLayout, classes_of_rings, shortest_lines, vc_classes

if TYPE_CHECKING:
    from kernbench.config import MachineConfig

# Sides of a SIP, in the order that breaks ties, and steps to a neighbour: of layer, row and column.
SIP_SIDES = {"e": (0, 0, 1), "w": (0, 0, -1), "n": (0, -1, 0), "s": (0, 1, 0), "u": (1, 0, 0), "d": (-1, 0, 0)}


class SipNetwork:
    """The network between SIPs: its vertices are the SIPs and then the switches, with a link each way per edge."""

    def __init__(self, config: MachineConfig) -> None:
        system, sips = config.system, config.system.sips
        self.count, self.topology = sips.count, sips.topology
        self._tree: FatTree | None = None
        if sips.topology in SWITCHED:
            levels = 1 if sips.topology == "switch" else system.fat_tree.levels
            self._tree = FatTree(sips.count, system.sip_switch.ports, levels, system.fat_tree.oversubscription)
        dimensions = DIMENSIONS.get(sips.topology, 0)
        sides = [side for side in (sips.w, sips.h, sips.d) if side is not None]
        sides = sides or [round(sips.count ** (1 / dimensions))] * dimensions if dimensions else [sips.count]
        self.w, self.h, self.d = (*sides, 1, 1)[:3]
        self.shape = (self.h, self.w) if self.d == 1 else (self.d, self.h, self.w)
        self.wrapped = sips.topology in RINGS
        router = config.system.sip_link.router
        self._by_dimension, self._both_ways = router.flow == "credits", router.ties == "random"
        near = [self._adjacent(s) for s in range(self.count)] if self._tree is None else self._tree.neighbours
        self.neighbours: tuple[dict[int, str], ...] = tuple(near)

    @property
    def grid(self) -> tuple[int, int]:
        """Columns and rows, in the order of the SIPs; the layers of a third dimension are further rows."""
        if self.d == 1:
            return self.w, self.h
        rows = self.h * self.d
        return (self.w, rows) if self.w > 1 else (self.h, self.d) if self.h > 1 else (self.d, 1)

    @property
    def levels(self) -> list[range]:
        """Numbers of the switches of each level, from the SIPs up."""
        return [] if self._tree is None else self._tree.levels

    def node_id(self, vertex: int) -> str:
        return naming.io_noc(vertex) if vertex < self.count else naming.sip_switch(vertex - self.count)

    def path(self, src: int, dst: int) -> tuple[int, ...]:
        """Shortest path from `src` to `dst`, both included.

        Ties go to the lower next SIP; with credits the row comes first, and of two equal directions round a ring, even
        SIPs take east, south or up, odd ones the other. In a tree of switches, the destination chooses.
        """
        return self.paths(src, dst)[0]

    def paths(self, src: int, dst: int) -> list[tuple[int, ...]]:
        """Paths of messages from `src` to `dst`: one, except with `ties: random`."""
        if self._tree is not None:
            return [self._tree.path(src, dst)]
        if self.topology == "fully_connected" and src != dst:
            return [(src, dst)]
        if self._by_dimension:
            return self._rows_first(src, dst)
        path = [src]
        while path[-1] != dst:
            # On a ring, a grid or a torus at least one neighbour is one hop closer.
            path.append(min(self.neighbours[path[-1]], key=lambda sip: (self._hops(sip, dst), sip)))
        return [tuple(path)]

    @property
    def vc_classes(self) -> int:
        """VC classes that routes with credits need: two where a ring has more than two SIPs."""
        return classes_of_rings(self.shape) if self.wrapped else 1

    def classes(self, path: Sequence[int]) -> list[int]:
        """VC class of each hop of a path; links up and then down a tree never close a circle."""
        if self.topology in (*SWITCHED, "fully_connected"):
            return [0] * (len(path) - 1)
        return vc_classes(self.walk(path), wrapped=self.wrapped)

    def walk(self, path: Iterable[int]) -> list[tuple[int, ...]]:
        return [self._place(sip)[-len(self.shape) :] for sip in path]

    def _place(self, sip: int) -> tuple[int, int, int]:
        """Layer, row and column of a SIP."""
        return sip // (self.w * self.h), sip // self.w % self.h, sip % self.w

    def _at(self, place: Sequence[int]) -> int:
        return (place[0] * self.h + place[1]) * self.w + place[2]

    def _rows_first(self, src: int, dst: int) -> list[tuple[int, ...]]:
        sizes = self.d, self.h, self.w
        ways = [self._lines(*ends, src) for ends in zip(self._place(src), self._place(dst), sizes, strict=True)]
        found = []
        for lines in product(*reversed(ways)):
            path, place = [src], list(self._place(src))
            for axis, line in zip((2, 1, 0), lines, strict=True):
                for position in line[1:]:
                    place[axis] = position
                    path.append(self._at(place))
            found.append(tuple(path))
        return found

    def _lines(self, at: int, to: int, n: int, src: int) -> list[list[int]]:
        """Find the shortest lines between two positions of a row or column of `n`, the preferred one first."""
        if not self.wrapped:
            step = 1 if to > at else -1
            return [list(range(at, to + step, step))]
        lines = shortest_lines(at, to, n, odd=src % 2 == 1)
        return lines if self._both_ways else lines[:1]

    def _adjacent(self, sip: int) -> dict[int, str]:
        if self.topology == "fully_connected":
            return {other: "" for other in range(self.count) if other != sip}
        here, sizes = self._place(sip), (self.d, self.h, self.w)
        sides: dict[int, str] = {}
        for side, steps in SIP_SIDES.items():
            there = tuple(at + step for at, step in zip(here, steps, strict=True))
            if self.wrapped:
                there = tuple(at % n for at, n in zip(there, sizes, strict=True))
            if there != here and all(0 <= at < n for at, n in zip(there, sizes, strict=True)):
                sides.setdefault(self._at(there), side)
        return sides

    def _hops(self, a: int, b: int) -> int:
        apart = [abs(x - y) for x, y in zip(self._place(a), self._place(b), strict=True)]
        if not self.wrapped:
            return sum(apart)
        return sum(min(hops, n - hops) for hops, n in zip(apart, (self.d, self.h, self.w), strict=True))


def vc_faults(config: MachineConfig) -> list[str]:
    """Describe each network in which routers with credits could deadlock."""
    mesh, sip = config.cube.noc.router, config.system.sip_link.router
    torus = config.cube.noc.topology == "torus"
    rings = "pass the edge of a ring"
    turns = rings if torus else "round the removed routers also turn from columns into rows"
    faults = []
    for key, router, reason in (
        ("cube.noc.router", mesh, f"routes {turns}"),
        ("system.sip_link.router", sip, f"routes between SIPs {rings}"),
    ):
        if router.flow == "unbounded":
            continue
        need = (CubeLayout(config) if router is mesh else SipNetwork(config)).vc_classes
        if router.vcs < need:
            faults.append(
                f"{key}.vcs = {router.vcs} must be >= {need}: {reason}, so with fewer virtual channels packets could "
                "wait for each other in a circle; raise vcs, or use flow: unbounded"
            )
    return faults
