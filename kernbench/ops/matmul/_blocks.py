"""The blocks of a product on a device whose PEs share their memory."""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from typing import NamedTuple

from kernbench.config import MachineConfig
from kernbench.ops.matmul._cost import blocks_ns

_SIDES = (512, 256, 128, 64, 32, 16)  # powers of two, as the tiles of libraries for tensor cores (source: CUTLASS 3)
_MOST = 128  # rows and columns, if the tile of the engine is not larger (chosen)
_SPLITS = (1, 2, 4, 8)
_GAIN = 0.98  # of the estimate of the larger blocks, below which smaller ones are taken (chosen)


class Blocks(NamedTuple):
    """Rows and columns of a block, and the parts of K, for `kernels.gemm.block_gemm`; its closed-form time [ns]."""

    rows: int
    columns: int
    split_k: int
    estimate_ns: float


@lru_cache(maxsize=4096)
def choose_blocks(config: MachineConfig, m: int, k: int, n: int, dtype: str = "f16", split: bool = True) -> Blocks:
    """Choose the blocks with the least estimate: PEs in waves of blocks, limited by engine, port, cache or memory."""
    best, tile = None, config.cube.pe.pe_gemm.tile
    for columns, rows in product(_SIDES, _SIDES):
        if columns > max(_MOST, tile.n) or rows > max(_MOST, tile.m) or rows // 2 >= max(m, 16):
            continue
        for parts in _SPLITS if split else (1,):
            if parts > 1 and (k < 512 * parts or -(-m // rows) * -(-n // columns) * parts > config.pes_per_sip):
                break
            ns = blocks_ns(config, m, k, n, dtype, rows, columns, parts)
            if best is None or ns < best.estimate_ns * _GAIN:
                best = Blocks(rows, columns, parts, ns)
    assert best is not None
    return best
