"""The blocks of a product on a device whose PEs share their memory."""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from typing import NamedTuple

from kernbench._dtypes import as_dtype
from kernbench.analysis._roofline import matrix_ns, tiled_for
from kernbench.config import MachineConfig

_SIDES = (512, 256, 128, 64, 32, 16)  # powers of two, as the tiles of libraries for tensor cores (source: CUTLASS 3)
_MOST = 128  # rows and columns, if the tile of the engine is not larger (chosen)
_SPLITS = (1, 2, 3, 4, 5, 6, 8)
_WAVES = 4  # in which parts of K may be computed, to fill the last one (chosen)
_ADDING = 6  # latencies that the launch that adds up the parts takes (chosen)
_GAIN = 0.98  # of the estimate of the larger blocks, below which smaller ones are taken (chosen)
_OVERLAP = 3  # two limits of t1 and t2 take (t1^3 + t2^3)^(1/3): near the larger, unless they are equal (chosen)


class Blocks(NamedTuple):
    """Rows and columns of a block, and the parts of K; the closed-form time [ns], and its largest limit."""

    rows: int
    columns: int
    split_k: int
    estimate_ns: float
    limiter: str


@lru_cache(maxsize=4096)
def choose_blocks(
    config: MachineConfig, m: int, k: int, n: int, dtype: str = "f16", batch: int = 1, split: bool = True
) -> Blocks:
    """Choose the blocks with the least estimate: PEs in waves of blocks, limited by engine, port, cache or memory."""
    best, tiles = None, [gemm.tile for gemm in config.cube.pe.pe_gemm.by_tile]
    most_rows, most_columns = (max(_MOST, *sides) for sides in ([x.m for x in tiles], [x.n for x in tiles]))
    for columns, rows in product(_SIDES, _SIDES):
        if columns > most_columns or rows > most_rows or rows // 2 >= max(m, 16):
            continue
        for parts in _SPLITS if split else (1,):
            count = -(-m // rows) * -(-n // columns) * parts * batch
            if parts > 1 and (k < 512 * parts or count > _WAVES * config.pes_per_sip):
                break
            found = _estimate(config, (m, k, n), dtype, batch, rows, columns, parts)
            if best is None or found.estimate_ns < best.estimate_ns * _GAIN:
                best = found
    assert best is not None
    return best


def _estimate(
    config: MachineConfig, mkn: tuple[int, int, int], dtype: str, batch: int, rows: int, columns: int, parts: int
) -> Blocks:
    (m, k, n), cube, pes, item = mkn, config.cube, config.pes_per_sip, as_dtype(dtype).itemsize
    count = -(-m // rows) * -(-n // columns) * parts * batch
    waves, depth = -(-count // pes), -(-k // parts)
    memory = config.hbm_gbs_per_sip
    shared = cube.llc.bw_gbs * config.hbm_slices if cube.llc.size_mib else memory
    read = (min(m, rows) + min(n, columns)) * depth * item
    mkn = min(m, rows), depth, min(n, columns)
    engine_ns, port_ns = matrix_ns(config, mkn, dtype), read / cube.pe.pe_dma.bw_gbs
    latency_ns = cube.hbm.access_ns + cube.llc.hit_ns + 2 * cube.noc.router.overhead_ns
    port_ns = max(port_ns, _reads_ns(config, mkn, dtype, latency_ns))
    port = "matrix engine" if engine_ns >= port_ns else "link of PE_DMA"
    limits = [
        (waves * (max(engine_ns, port_ns) + 2 * latency_ns), port),
        (count * read / shared, "LLC" if cube.llc.size_mib else "HBM slice"),
        (batch * (m * k + k * n + m * n) * item / memory, "HBM slice"),
    ]
    ns = sum(x**_OVERLAP for x, _ in limits) ** (1 / _OVERLAP)
    if parts > 1:  # a block of sums is written, and another launch reads the parts
        ns += waves * rows * columns * 4 / cube.pe.pe_dma.bw_gbs + 2 * parts * batch * m * n * 4 / shared
        ns += config.system.host.descriptor_ns + _ADDING * latency_ns
    return Blocks(rows, columns, parts, float(ns), max(limits)[1])


def _reads_ns(config: MachineConfig, mkn: tuple[int, int, int], dtype: str, latency_ns: float) -> float:
    """Time of a block whose tiles are limited by the latency of reads: so many steps of K are under way (M4.16)."""
    (m, k, n), dma, hbm = mkn, config.cube.pe.pe_dma, config.cube.hbm

    def alone_ns(nbytes: float) -> float:
        return latency_ns + nbytes * (1 / hbm.slice_gbs + 1 / dma.bw_gbs)

    depth, most = tiled_for(config, mkn, dtype).tile.k, hbm.interleave_bytes
    tiles = [side * depth * as_dtype(dtype).itemsize for side in (m, n)]
    requests = sum(-(-nbytes // most) for nbytes in tiles)
    reads = dma.outstanding_reads or 2 * alone_ns(most) * dma.bw_gbs / most
    steps = min(reads / requests, config.cube.pe.pe_tcm.buffers_per_operand)
    return k / depth * alone_ns(sum(tiles) / requests) / steps
