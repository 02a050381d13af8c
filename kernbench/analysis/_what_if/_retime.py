# cython: boundscheck=False, wraparound=False
"""The times of events that depend on each other, from first to last."""

from __future__ import annotations

import numpy as np


def retime(first: np.ndarray, source: np.ndarray, weight: np.ndarray, own: np.ndarray) -> float:
    """Return when the last event is: each comes `weight` after the `source` of each of its edges, and `own` later.

    The edges of event i are those from `first[i]` to `first[i + 1]`; their sources come before it.
    """
    n = len(own)
    times: memoryview[float] = np.zeros(n).data  # type: ignore[assignment]
    firsts, sources, weights, owns = first.data, source.data, weight.data, own.data
    for i in range(n):
        latest = 0.0
        for e in range(firsts[i], firsts[i + 1]):
            t = times[sources[e]] + weights[e]
            if t > latest:
                latest = t
        times[i] = latest + owns[i]
    return times[n - 1]
