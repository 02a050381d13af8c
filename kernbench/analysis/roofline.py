"""Roofline: what arithmetic intensity allows, and where the measured runs stand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernbench.analysis.records import Records


@dataclass(frozen=True, slots=True)
class Roofs:
    """Peak rate [Gflop/s] and the bandwidth [GB/s] of each memory level, fastest level last or first alike."""

    peak_gflops: float
    levels_gbs: Mapping[str, float]

    def attainable_gflops(self, intensity: float, level: str) -> float:
        """Return the bound at `intensity` [flop/B] for data that come from `level`."""
        return min(self.peak_gflops, intensity * self.levels_gbs[level])

    def ridge(self, level: str) -> float:
        """Return the intensity [flop/B] from which on `level` no longer limits."""
        return self.peak_gflops / self.levels_gbs[level]


@dataclass(frozen=True, slots=True)
class Point:
    """One run: useful flops, bytes through the memory level, and time [ns]."""

    name: str
    flops: int
    nbytes: int
    time_ns: float

    @property
    def intensity(self) -> float:
        """Useful flops per byte moved."""
        return self.flops / self.nbytes if self.nbytes else float("inf")

    @property
    def gflops(self) -> float:
        """Achieved rate; 1 flop/ns is 1 Gflop/s."""
        return self.flops / self.time_ns if self.time_ns else 0.0


def point(records: Records, name: str, window: tuple[int, int] | None = None) -> Point:
    """Return the measured point of a run: flops of the compute rows, bytes of the DMA rows, over `window`."""
    start, end = window or (0, records.makespan_ps)
    rows = records.within(start, end)
    flops = int(rows.of_kind("gemm", "math").flops.sum())
    nbytes = int(rows.of_kind("dma_in", "load", "dma_out", "store").nbytes.sum())
    return Point(name, flops, nbytes, (end - start) / 1000)
