"""How the SIPs of a machine are joined: neighbours by side, and the path between two of them."""

from __future__ import annotations

from math import isqrt
from typing import TYPE_CHECKING

from kernbench.topology.mesh import SIDES, STEP

if TYPE_CHECKING:
    from kernbench.config import MachineConfig


class SipNetwork:
    """Links between SIPs, one each way per edge of the topology.

    Attributes
    ----------
    count, w, h : int
        SIPs, and the grid they stand in: SIP s at row s // w, column s % w.
    neighbours : tuple of dict
        For each SIP, neighbour to side ("e", "w", "n", "s"; "" when fully connected). On a wrapped axis
        of two, E and W are one link, named E (N and S: N).
    """

    def __init__(self, config: MachineConfig) -> None:
        sips = config.system.sips
        self.count, self.topology = sips.count, sips.topology
        on_a_line = sips.topology in ("ring_1d", "fully_connected")
        square = isqrt(sips.count)
        self.w, self.h = (sips.count, 1) if on_a_line else (sips.w or square, sips.h or square)
        self.neighbours: tuple[dict[int, str], ...] = tuple(self._beside(s) for s in range(self.count))

    def path(self, src: int, dst: int) -> tuple[int, ...]:
        """Return the shortest path from `src` to `dst`, both included; ties go to the lower next SIP."""
        if self.topology == "fully_connected" and src != dst:
            return src, dst
        path = [src]
        while path[-1] != dst:
            # On a ring, a grid or a torus at least one neighbour is one hop closer.
            path.append(min(self.neighbours[path[-1]], key=lambda sip: (self._hops(sip, dst), sip)))
        return tuple(path)

    def _beside(self, sip: int) -> dict[int, str]:
        if self.topology == "fully_connected":
            return {other: "" for other in range(self.count) if other != sip}
        row, col = divmod(sip, self.w)
        wrapped = self.topology != "mesh_2d_no_wrap"
        beside: dict[int, str] = {}
        for side in SIDES:
            r, c = row + STEP[side][0], col + STEP[side][1]
            if wrapped:
                r, c = r % self.h, c % self.w
            if 0 <= r < self.h and 0 <= c < self.w and (r, c) != (row, col):
                beside.setdefault(r * self.w + c, side)
        return beside

    def _hops(self, a: int, b: int) -> int:
        """Return the length of the shortest path between two SIPs on a ring, a grid or a torus."""
        rows, cols = abs(a // self.w - b // self.w), abs(a % self.w - b % self.w)
        if self.topology == "mesh_2d_no_wrap":
            return rows + cols
        return min(rows, self.h - rows) + min(cols, self.w - cols)
