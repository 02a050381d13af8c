"""How long a run will take on this host: its cost, at the speed of earlier runs."""

from __future__ import annotations

from statistics import median, median_low
from typing import NamedTuple

_RECENT = 3


class Point(NamedTuple):
    """What determines how long a run takes: the work and its values, how it is run, and the PEs of the machine."""

    work: str
    values: tuple[tuple[str, object], ...]
    options: object
    n_pes: int


class HostSpeed:
    """Seconds of this host per unit of cost, measured on the runs that it has made."""

    def __init__(self) -> None:
        self._seconds: dict[Point, float] = {}
        self._ratios: dict[str, list[float]] = {}

    def note(self, point: Point, cost_us: float | None, seconds: float) -> None:
        """Remember how long a run took; its cost, if that is known."""
        self._seconds[point] = seconds
        if cost_us:
            self._ratios.setdefault(point.work, []).append(seconds * 1e6 / cost_us)

    def seconds(self, point: Point, cost_us: float | None) -> float | None:
        """Return how long a run will take.

        The same run takes as long as before. Another one of known cost takes that, times how much slower than the
        reference this host ran the same work, or other works. Of anything else nothing is known.
        """
        if point in self._seconds:
            return self._seconds[point]
        if cost_us is None:
            return None
        own = self._ratios.get(point.work, [])[-_RECENT:]
        every = [ratio for ratios in self._ratios.values() for ratio in ratios[-_RECENT:]]
        return cost_us / 1e6 * (median_low(own) if own else median(every) if every else 1.0)
