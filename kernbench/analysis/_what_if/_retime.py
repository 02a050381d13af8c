# cython: boundscheck=False, wraparound=False
"""Times of events that depend on each other and on the order in which they reach servers."""

from __future__ import annotations

from typing import Any

import numpy as np


def retime(
    first: np.ndarray, target: np.ndarray, weight: np.ndarray, before: np.ndarray,
    server: np.ndarray, service: np.ndarray, spread: np.ndarray, at_once: np.ndarray, previous: np.ndarray,
    share: np.ndarray, least: np.ndarray, own: np.ndarray, recorded: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    """Time of every event.

    An event is ready `weight` after the source of each edge to it. The edges from event i are those from `first[i]` to
    `first[i + 1]`, each to a `target`; `before[i]` edges lead to it. The `server` of an event (-1: none) serves events
    in the order in which they are ready, and finishes one after the `service` of it and of all before. The work of an
    event arrives evenly over `spread` until it is ready, at least as long as the server of its `previous` event (-1:
    none) took; what arrived while the server was idle is done. Work that arrives `at_once` has no such part.

    Only a `share` of the wait for a server counts, and `own` is added for what the graph does not explain, such as
    flits of later events in between; a wait longer than `least` includes that. With `recorded` times, these three
    arrays are filled with the values that reproduce them.
    """
    n, n_ready = len(before), 0
    times: Any = np.zeros(n).data
    free: Any = np.zeros(n).data
    begin: Any = np.zeros(n).data
    lasted: Any = np.zeros(n).data
    left: Any = before.copy().data
    heap: Any = np.zeros(n, np.int64).data
    firsts, targets, weights, servers = first.data, target.data, weight.data, server.data
    services, spreads, previouses, all_at_once = service.data, spread.data, previous.data, at_once.data
    shares: Any = share.data
    leasts: Any = least.data
    owns: Any = own.data
    learns = recorded is not None
    known: Any = times if recorded is None else recorded.data
    for i in range(n):
        if not left[i]:
            n_ready = _push(heap, n_ready, times, i)
    while n_ready:
        i = heap[0]
        n_ready = _pop(heap, n_ready, times)
        ready, s, wait, begun = times[i], servers[i], 0.0, 0.0
        if s >= 0:
            came = ready - spreads[i]
            if previouses[i] >= 0:
                came = min(came, ready - lasted[previouses[i]])
            begun = max(came, free[s])
            if came >= free[s]:
                begin[s], free[s] = came, came + services[i]
            elif came >= begin[s] or all_at_once[i]:
                free[s] += services[i]
            else:
                free[s] += services[i] * (ready - begin[s]) / (ready - came)
            wait = max(0.0, free[s] - ready)
        if learns:
            t = known[i]
            shares[i], leasts[i], owns[i] = 1.0, wait, max(0.0, t - ready - wait)
            if wait > t - ready:
                shares[i] = (t - ready) / wait
        else:
            wait *= shares[i]
            t = ready + max(wait, min(wait, leasts[i]) + owns[i])
        times[i] = t
        if s >= 0:
            lasted[i] = max(0.0, t - begun)
        for e in range(firsts[i], firsts[i + 1]):
            j = targets[e]
            times[j] = max(times[j], t + weights[e])
            left[j] -= 1
            if not left[j]:
                n_ready = _push(heap, n_ready, times, j)
    return np.asarray(times)


def _push(heap: Any, n: int, times: Any, i: int) -> int:
    """Push an event onto a heap of `n`, the earliest first; return the new size."""
    at = n
    while at:
        parent = (at - 1) >> 1
        j = heap[parent]
        if times[j] < times[i] or (times[j] == times[i] and j < i):
            break
        heap[at] = j
        at = parent
    heap[at] = i
    return n + 1


def _pop(heap: Any, n: int, times: Any) -> int:
    """Remove the first event; return the new size."""
    n -= 1
    i, at, child = heap[n], 0, 1
    while child < n:
        if child + 1 < n:
            a, b = heap[child], heap[child + 1]
            if times[b] < times[a] or (times[b] == times[a] and b < a):
                child += 1
        j = heap[child]
        if times[i] < times[j] or (times[i] == times[j] and i < j):
            break
        heap[at] = j
        at, child = child, 2 * child + 1
    heap[at] = i
    return n
