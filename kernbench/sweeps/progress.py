"""What a sweep says while it runs: a bar with the time that is left, in a terminal and in a notebook."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

FIRST = 5  # points until the time left is estimated


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a sweep is.

    Parameters
    ----------
    done, total : int
        Points, those found finished included.
    found : int
        Points that were finished before.
    failed : int
        Points without a row.
    elapsed_s : float
    left_s : float or None
        At the pace so far; None until the first points have told it.
    """

    done: int
    total: int
    found: int
    failed: int
    elapsed_s: float
    left_s: float | None

    def __str__(self) -> str:
        parts = [f"{self.done} of {self.total} points"]
        parts += [f"{self.found} found finished"] if self.found else []
        parts += [f"{self.failed} failed"] if self.failed else []
        if self.left_s is not None and self.done < self.total:
            parts.append(f"about {_time(self.left_s)} left")
        return ", ".join(parts)


class Watch:
    """Counts points as they come, and tells it on.

    Parameters
    ----------
    total : int
    show : bool or callable
        True: a bar; a function is called with a `Progress` for every point.
    """

    def __init__(self, total: int, show: bool | Callable[[Progress], object]) -> None:
        self._start = time.perf_counter()
        self._count = {"done": 0, "found": 0, "failed": 0}
        self._total = total
        self._tell = show if callable(show) else None
        self._bar = None
        if show is True:
            from tqdm.auto import tqdm

            self._bar = tqdm(total=total, desc="sweep", unit=" points", leave=False)

    def point(self, *, ok: bool, found: bool) -> None:
        """Count one point."""
        self._count["done"] += 1
        self._count["found"] += found
        self._count["failed"] += not ok
        if self._bar is not None:
            self._bar.update()
            if not ok:
                self._bar.set_postfix(failed=self._count["failed"])
        if self._tell is not None:
            self._tell(self.now())

    def now(self) -> Progress:
        """Return how far it is."""
        elapsed = time.perf_counter() - self._start
        ran = self._count["done"] - self._count["found"]
        left = elapsed / ran * (self._total - self._count["done"]) if ran >= FIRST else None
        return Progress(total=self._total, elapsed_s=elapsed, left_s=left, **self._count)

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
