"""Operations on large arrays in parts: a run can be cancelled between two parts, but not within a call of numpy."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

_PART = 1 << 20  # elements
_MACS, _LEAST_ROWS, _LEAST_COLUMNS = 1 << 31, 128, 512  # of a part of a product; smaller ones take longer in total


def part_slices(n: int) -> Iterator[slice]:
    return (slice(start, min(n, start + _PART)) for start in range(0, n, _PART))


def assign(target: np.ndarray, source: np.ndarray) -> None:
    if target.size <= _PART:
        target[...] = source
        return
    source, inner = np.broadcast_to(source, target.shape), prod(target.shape[1:])
    if inner > _PART:
        for row, values in zip(target, source, strict=True):
            assign(row, values)
        return
    rows = _PART // inner
    for start in range(0, len(target), rows):
        target[start : start + rows] = source[start : start + rows]


def _blocks(m: int, k: int, n: int) -> Iterator[tuple[slice, slice]]:
    """Yield the row and column slices of each part of an m x k by k x n product."""
    rows = max(_LEAST_ROWS, _MACS // max(1, k * n))
    columns = max(_LEAST_COLUMNS, _MACS // max(1, k * min(m, rows)))
    for top in range(0, m, rows):
        for left in range(0, n, columns):
            yield slice(top, min(m, top + rows)), slice(left, min(n, left + columns))


def product_in_parts(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if not a.ndim == b.ndim == 2:
        return np.asarray(a @ b)
    (m, k), (_, n) = a.shape, b.shape
    found = np.empty((m, n))
    for rows, columns in _blocks(m, k, n):
        found[rows, columns] = a[rows] @ b[:, columns]
    return found


def largest_absolute(array: np.ndarray) -> float:
    """Largest absolute value; NaN if any element is."""
    rows = [np.abs(array.reshape(-1)[where]).max() for where in part_slices(array.size)]
    return float(np.max(rows))
