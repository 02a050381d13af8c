"""Fat trees of switches; a tree of one level is one switch."""

from __future__ import annotations

from itertools import accumulate, pairwise

from kernbench.config._rules import ports_up


class FatTree:
    """Vertices and links of a fat tree: first its ends, then its switches, level by level.

    With u ports up and d down, d ** (l + 1) ends share u ** l switches of level l, which count from 0; the top switches
    are above all ends (Leiserson, IEEE Transactions on Computers 34, 1985; k-ary n-trees: Petrini and Vanneschi, 1997).
    """

    def __init__(self, ends: int, ports: int, levels: int, oversubscription: int) -> None:
        self._up = ports_up(ports, oversubscription)
        self._below: list[int] = []  # ends below a switch of each level; no level is above a switch that has all ends
        while not self._below or self._below[-1] < ends:
            level = len(self._below) + 1
            self._below.append((ports - self._up) ** level if level < levels else ends)
        self._groups = [-(-ends // below) for below in self._below]
        self._each: list[int] = [self._up**level for level in range(len(self._groups))]  # switches of a group
        sizes = [groups * each for groups, each in zip(self._groups, self._each, strict=True)]
        self._first = list(accumulate(sizes, initial=ends))
        self.levels = [range(first - ends, last - ends) for first, last in pairwise(self._first)]
        self.neighbours: list[dict[int, str]] = [{} for _ in range(self._first[-1])]
        for end in range(ends):
            self._join(end, self._switch(0, end, 0))
        for level, groups in enumerate(self._groups[:-1]):
            for group in range(groups):
                for i in range(self._each[level]):
                    here = self._switch(level, group * self._below[level], i)
                    for j in range(self._up):
                        self._join(here, self._above(level, group * self._below[level], i, j))

    def path(self, src: int, dst: int) -> tuple[int, ...]:
        """Path between two ends: up to the nearest common switches, over ports by the number of `dst`, then down."""
        if src == dst:
            return (src,)
        up, i, level = [self._switch(0, src, 0)], 0, 0
        while src // self._below[level] != dst // self._below[level]:
            j = dst // self._each[level] % self._up
            up.append(self._above(level, src, i, j))
            i, level = i + j * self._each[level], level + 1
        down = [self._switch(low, dst, i % self._each[low]) for low in reversed(range(level))]
        return (src, *up, *down, dst)

    def _switch(self, level: int, end: int, i: int) -> int:
        """Switch number `i` of a level above an end."""
        return self._first[level] + end // self._below[level] * self._each[level] + i

    def _above(self, level: int, end: int, i: int, j: int) -> int:
        return self._switch(level + 1, end, i + j * self._each[level])

    def _join(self, a: int, b: int) -> None:
        self.neighbours[a][b] = self.neighbours[b][a] = ""
