"""Pointer tiles as memory sees them: maximal runs of distinct addresses, and the way back to the elements."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernbench.components.command import Run


@dataclass(frozen=True, slots=True)
class Access:
    """Distinct element offsets of a pointer tile, as runs of consecutive ones.

    `runs` holds (first offset, elements, elements asked for) ascending; `inverse` maps each unmasked element to its
    place among the distinct ones (None: they are the same), `mask` (flat) tells which elements are asked for.
    """

    runs: tuple[tuple[int, int, int], ...]
    distinct: int
    inverse: np.ndarray | None
    mask: np.ndarray | None

    @classmethod
    def of(cls, offsets: np.ndarray, mask: np.ndarray | None) -> Access:
        """Return how `offsets` (elements, any shape) are accessed where `mask` (same shape; None: everywhere) is set.

        >>> Access.of(np.array([4, 5, 9, 5]), None).runs
        ((4, 2, 3), (9, 1, 1))
        """
        wanted = offsets.astype(np.int64, copy=False).reshape(-1)
        flat = None if mask is None else mask.reshape(-1)
        if flat is not None:
            wanted = wanted[flat]
        if not wanted.size:
            return cls((), 0, None, flat)
        steps = np.diff(wanted)
        if (steps > 0).all():
            distinct, inverse, counts = wanted, None, None
        else:
            distinct, inverse, counts = _distinct(wanted)
            steps = np.diff(distinct)
        first = np.concatenate(([0], np.flatnonzero(steps != 1) + 1))
        sizes = np.diff(np.append(first, distinct.size))
        asked = sizes if counts is None else np.add.reduceat(counts, first)
        runs = tuple(zip(distinct[first].tolist(), sizes.tolist(), asked.tolist(), strict=True))
        return cls(runs, int(distinct.size), inverse, flat)

    def at(self, va: int, itemsize: int) -> tuple[Run, ...]:
        """Return the runs in bytes, for a pointer tile from address `va`."""
        return tuple(Run(va + start * itemsize, n * itemsize, asked * itemsize) for start, n, asked in self.runs)

    def spread(self, distinct: np.ndarray, shape: tuple[int, ...], other: np.ndarray) -> np.ndarray:
        """Return the tile whose distinct elements are given; masked-off ones are `other`, which broadcasts to it."""
        values = distinct if self.inverse is None else distinct[self.inverse]
        if self.mask is None:
            return values.reshape(shape)
        out = np.array(np.broadcast_to(other, shape), dtype=distinct.dtype)
        out.reshape(-1)[self.mask] = values
        return out

    def gather(self, values: np.ndarray) -> np.ndarray:
        """Return the distinct elements to store of a tile of values; of several at one address the last one."""
        flat = values.reshape(-1)
        if self.mask is not None:
            flat = flat[self.mask]
        if self.inverse is None:
            return flat
        out = np.empty(self.distinct, flat.dtype)
        out[self.inverse] = flat
        return out


def _distinct(wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return what is in `wanted`, ascending; the place of each element among it; how often each is there.

    Where there are few gaps they are counted, which takes a tenth of the time of sorting.
    """
    low, high = int(wanted.min()), int(wanted.max())
    if high - low >= 8 * wanted.size:
        distinct, inverse, counts = np.unique(wanted, return_inverse=True, return_counts=True)
        return distinct, inverse.reshape(-1), counts
    places = wanted - low
    counts = np.bincount(places)
    found = counts > 0
    return np.flatnonzero(found) + low, (np.cumsum(found) - 1)[places], counts[found]
