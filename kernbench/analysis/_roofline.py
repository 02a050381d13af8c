"""The ideal model of a tiled GEMM on one PE, and the roofline: attainable and achieved rates by intensity."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Any, Protocol, cast

from kernbench._dtypes import MATRIX_TYPES, DType, as_dtype, int8, int32
from kernbench._registry import COMPONENTS
from kernbench._units import ACK_BYTES
from kernbench.analysis._records import Records
from kernbench.analysis._stages import STAGE_KINDS
from kernbench.analysis.utilization import pe_window
from kernbench.config import MachineConfig, PeGemmConfig, read_machine
from kernbench.config._schema import Tile
from kernbench.errors import StateError


@dataclass(frozen=True, slots=True)
class IdealGemm:
    """Ideal times of one GEMM: mean time per tile of each stage, the total, and the limiter.

    `limiter` is a stage, or "hbm" if reads and writes of the slice together take longer than the slowest stage.
    """

    tiles: int
    stages_ns: dict[str, float]
    limiter: str
    tile_ns: float
    first_ns: float
    last_ns: float
    time_ns: float
    utilization: float
    issued_utilization: float
    tile: Tile


class MatrixEngine(Protocol):
    """The class that `cube.pe.pe_gemm.impl` names; simulation, roofline and ideal times all use it."""

    def __init__(self, config: PeGemmConfig) -> None: ...

    @property
    def tile(self) -> tuple[int, int, int]:
        """The tile (m, k, n)."""

    def tile_ps(self, m: int, k: int, n: int, dtype: DType) -> int:
        """Time [ps] of the product of m x k and k x n elements of `dtype`; at most a tile."""

    def peak(self, dtype: DType) -> float:
        """Peak multiply-accumulates per ns."""


@lru_cache(maxsize=16)
def matrix_engine(config: PeGemmConfig) -> MatrixEngine:
    return cast("type[MatrixEngine]", COMPONENTS.resolve(config.impl))(config)


def macs_per_ns(machine: MachineConfig, dtype: object) -> float:
    rate_key(dtype)
    return matrix_engine(machine.cube.pe.pe_gemm).peak(as_dtype(dtype))


def matrix_ns(machine: MachineConfig, mkn: tuple[int, int, int], dtype: object) -> float:
    """Time [ns] of one matrix engine for the product of m x k and k x n elements, tile after tile."""
    rate_key(dtype)
    return _matrix_ps(tiled_for(machine, mkn, dtype), mkn, as_dtype(dtype)) / 1000


def tile_count(machine: MachineConfig, mkn: tuple[int, int, int], dtype: object) -> tuple[int, int]:
    """Tiles of a product, and the multiply-accumulates of as many full ones."""
    tile = tiled_for(machine, mkn, dtype).tile
    tiles = math.prod(_cuts(mkn, tile))
    return tiles, tiles * tile.m * tile.k * tile.n


def _cuts(mkn: tuple[int, int, int], tile: Tile) -> list[int]:
    return [max(1, -(-size // by)) for size, by in zip(mkn, (tile.m, tile.k, tile.n), strict=True)]


def tiled_for(
    machine: MachineConfig, mkn: tuple[int, int, int], dtype: object, streamed: Collection[str] = ("a", "b"),
    written: bool = True,
) -> PeGemmConfig:  # fmt: skip
    """Return the matrix engine with the only tile that a product takes: that of the least ideal time, or the first."""
    gemm = machine.cube.pe.pe_gemm
    return _tiled_for(machine, mkn, as_dtype(dtype), frozenset(streamed), written) if gemm.other_tiles else gemm


@lru_cache(maxsize=4096)
def _tiled_for(
    machine: MachineConfig, mkn: tuple[int, int, int], dtype: DType, streamed: frozenset[str], written: bool
) -> PeGemmConfig:
    each = machine.cube.pe.pe_gemm.by_tile
    return min(each, key=lambda gemm: _ideal_with(machine, gemm, mkn, dtype, streamed, written).time_ns)


@lru_cache(maxsize=1024)
def _matrix_ps(config: PeGemmConfig, mkn: tuple[int, int, int], dtype: DType) -> int:
    engine, tile = matrix_engine(config), (config.tile.m, config.tile.k, config.tile.n)
    return sum(count * engine.tile_ps(*shape, dtype) for shape, count in _shapes(mkn, tile).items())


def rate_key(dtype: object) -> str:
    key = MATRIX_TYPES.get(as_dtype(dtype).name)
    if key is None:
        raise ValueError(f"PE_GEMM has no rate for {as_dtype(dtype)}; known: {', '.join(MATRIX_TYPES)}")
    return key


def ideal_gemm(
    machine: MachineConfig,
    mkn: tuple[int, int, int],
    *,
    dtype: object = "f16",
    streamed: Collection[str] = ("a", "b"),
) -> IdealGemm:
    """Ideal time of `out[m, n] = a[m, k] @ b[k, n]` on one PE whose operands are in its HBM slice.

    Every number comes from the machine file: no fitted constant, no queueing, no stall for a full buffer. Operands that
    are not `streamed` are pinned in TCM and skip the DMA; the output of int8 is int32.

    Notes
    -----
    T = max over stages of the mean time per tile; pipeline = (first tile's stages) + (tiles - 1) x T + last store
    + last DMA out; time = max(pipeline, slice). The HBM slice serves reads and writes in turn: slice =
    first tile's DMA in + all other reads and writes at the rate of all channels + last DMA out.

    Rates: DMA in and out = min(PE_DMA link, HBM slice link, all channels); fetch and store = TCM ports; the matrix
    engine's time of each tile is that of its model. The first DMA in and the last DMA out are those of an idle machine.
    """
    rate_key(dtype)
    gemm = tiled_for(machine, mkn, dtype, streamed)
    return _ideal_with(machine, gemm, mkn, as_dtype(dtype), streamed, True)


def _ideal_with(
    machine: MachineConfig, gemm: PeGemmConfig, mkn: tuple[int, int, int], kind: DType, streamed: Collection[str],
    written: bool,
) -> IdealGemm:  # fmt: skip
    pe, tile = machine.cube.pe, gemm.tile
    out_itemsize = (int32 if kind is int8 else kind).itemsize
    m, k, n = mkn
    mt, kt, nt = _cuts(mkn, tile)
    tiles = mt * kt * nt
    rate = matrix_engine(gemm).peak(kind)
    dma_gbs = min(_links_gbs(machine), machine.cube.hbm.slice_gbs)

    # Every tile of a is read nt times, every tile of b mt times; the output is written once.
    a_bytes, b_bytes, out_bytes = m * k * nt * kind.itemsize, k * n * mt * kind.itemsize, m * n * out_itemsize
    in_bytes = ("a" in streamed) * a_bytes + ("b" in streamed) * b_bytes
    gemm_ns = _matrix_ps(gemm, mkn, kind) / 1000
    stages = {
        "dma_in": in_bytes / dma_gbs / tiles,
        "fetch": (a_bytes + b_bytes) / pe.pe_tcm.read_bw_gbs / tiles,
        "gemm": gemm_ns / tiles,
        "store_tcm": out_bytes / pe.pe_tcm.write_bw_gbs / tiles,
        "dma_out": written * out_bytes / dma_gbs / tiles,
        "schedule": pe.pe_scheduler.tile_ns,
    }
    tile_ns = max(stages.values())

    first_a, first_b = (x * kind.itemsize for x in (min(m, tile.m) * min(k, tile.k), min(k, tile.k) * min(n, tile.n)))
    first_in = ("a" in streamed) * first_a + ("b" in streamed) * first_b
    first_ns = _read_ns(machine, first_in, dma_gbs) + (first_a + first_b) / pe.pe_tcm.read_bw_gbs
    first_ns += _matrix_ps(gemm, (min(m, tile.m), min(k, tile.k), min(n, tile.n)), kind) / 1000
    last_bytes = _last(m, tile.m) * _last(n, tile.n) * out_itemsize
    last_ns = last_bytes / pe.pe_tcm.write_bw_gbs + _write_ns(machine, written * last_bytes, dma_gbs)

    pipeline_ns = first_ns + (tiles - 1) * tile_ns + last_ns
    between = in_bytes - first_in + written * (out_bytes - last_bytes)
    slice_ns = _read_ns(machine, first_in, dma_gbs) + between / machine.cube.hbm.slice_gbs
    slice_ns += _write_ns(machine, written * last_bytes, dma_gbs)
    time_ns = max(pipeline_ns, slice_ns)
    return IdealGemm(
        tiles=tiles,
        stages_ns=stages,
        limiter="hbm" if slice_ns > pipeline_ns else max(stages, key=lambda stage: stages[stage]),
        tile_ns=tile_ns,
        first_ns=first_ns,
        last_ns=last_ns,
        time_ns=time_ns,
        utilization=m * k * n / (rate * time_ns),
        issued_utilization=gemm_ns / time_ns,
        tile=tile,
    )


def _shapes(mkn: tuple[int, int, int], tile: tuple[int, int, int]) -> Counter[tuple[int, int, int]]:
    sizes = [Counter({by: size // by, size % by: 1 if size % by else 0}) for size, by in zip(mkn, tile, strict=True)]
    found: Counter[tuple[int, int, int]] = Counter()
    for (m, a), (k, b), (n, c) in product(*(axis.items() for axis in sizes)):
        found[m, k, n] += a * b * c
    return +found


def _last(size: int, by: int) -> int:
    return size - (max(1, -(-size // by)) - 1) * by


def _links_ns(machine: MachineConfig, nbytes: float) -> float:
    """Time [ns] on the two links between PE_DMA and its slice: a router's overhead, and a flit on each."""
    flit = min(machine.system.flit_bytes, nbytes) + machine.cube.noc.header_bytes
    links = (machine.cube.pe.pe_dma.bw_gbs, machine.cube.hbm.bw_gbs)
    return float(machine.cube.noc.router.overhead_ns + sum(flit / bw for bw in links))


def _links_gbs(machine: MachineConfig) -> float:
    """Rate of data over both of these links; each flit has a header."""
    flit, header = machine.system.flit_bytes, machine.cube.noc.header_bytes
    return min(machine.cube.pe.pe_dma.bw_gbs, machine.cube.hbm.bw_gbs) * flit / (flit + header)


def _burst_ns(machine: MachineConfig) -> float:
    hbm = machine.cube.hbm
    return float(hbm.access_ns + hbm.burst_bytes / (hbm.channel_bw_gbs * hbm.efficiency))


def _read_ns(machine: MachineConfig, nbytes: float, dma_gbs: float) -> float:
    if not nbytes:
        return 0.0
    stream = max(0.0, nbytes - machine.system.flit_bytes) / dma_gbs
    return _links_ns(machine, machine.system.command_bytes) + _burst_ns(machine) + _links_ns(machine, nbytes) + stream


def _write_ns(machine: MachineConfig, nbytes: float, dma_gbs: float) -> float:
    if not nbytes:
        return 0.0
    # Without command and access latency, which only a read has, but with an acknowledgement at the end.
    read_ns = _read_ns(machine, nbytes, dma_gbs) - machine.cube.hbm.access_ns
    return read_ns - _links_ns(machine, machine.system.command_bytes) + _links_ns(machine, ACK_BYTES)


@dataclass(frozen=True, slots=True)
class Roofs:
    """Peak rate [Gflop/s] and the bandwidth [GB/s] of each memory level, in any order."""

    peak_gflops: float
    levels_gbs: Mapping[str, float]

    def attainable_gflops(self, intensity: float, level: str) -> float:
        """Bound [Gflop/s] at `intensity` [flop/B] for data from `level`."""
        return min(self.peak_gflops, intensity * self.levels_gbs[level])

    def bound(self, intensities: Mapping[str, float]) -> tuple[float, str]:
        """Bound of a run [Gflop/s], and the level that sets it, or "peak".

        `intensities` are the run's flops for each byte that it moves at a level.
        """
        bounds = {level: at * self.levels_gbs[level] for level, at in intensities.items()} | {"peak": self.peak_gflops}
        limit = min(bounds, key=lambda level: bounds[level])
        return bounds[limit], limit

    def ridge(self, level: str) -> float:
        """Intensity [flop/B] from which on `level` no longer limits."""
        return self.peak_gflops / self.levels_gbs[level]

    def lines(self, intensities: Iterable[float]) -> dict[str, list[tuple[float, float]]]:
        """Corners (intensity, Gflop/s) of the roof of each level, over a range that contains `intensities`."""
        ridges = [self.ridge(level) for level in self.levels_gbs]
        inside = [*intensities, *ridges]
        return {
            level: [(x, self.attainable_gflops(x, level)) for x in (min(inside) / 2, ridge, max(inside) * 4)]
            for level, ridge in zip(self.levels_gbs, ridges, strict=True)
        }

    def reached(self, at: RoofPoint) -> str:
        """Return the rate of a run as a share of its bound, in words."""
        bound, limit = self.bound(at.intensities)
        allows = "the peak" if limit == "peak" else f"what its intensity allows of {limit}"
        return f"{at.gflops / bound:.0%} of {allows}"


@dataclass(frozen=True, slots=True)
class RoofPoint:
    """One run: useful flops, bytes moved at each memory level, and time [ns]."""

    name: str
    flops: int
    nbytes: Mapping[str, int]
    time_ns: float

    @property
    def intensities(self) -> dict[str, float]:
        return {level: self.flops / nbytes for level, nbytes in self.nbytes.items() if nbytes}

    @property
    def gflops(self) -> float:
        """Achieved rate; 1 flop/ns is 1 Gflop/s."""
        return self.flops / self.time_ns if self.time_ns else 0.0

    def levels(self) -> list[dict[str, Any]]:
        """Return its place on a roofline, for each memory level."""
        return [{"level": level, "intensity": x, "gflops": self.gflops} for level, x in self.intensities.items()]


def memory_roof(config: MachineConfig) -> tuple[str, float]:
    """Return the memory that the bytes of PEs come from, and its bandwidth for each PE [GB/s]: a cache, if any."""
    if config.cube.llc.size_mib:
        return "LLC", config.cube.llc.bw_gbs * config.hbm_slices / config.pes_per_cube
    return "HBM", config.hbm_gbs_per_pe


def multiplied_type(records: Records) -> str:
    """Return the type that a run multiplied most; f16 if none."""
    by_dtype: Counter[str] = Counter()
    products = records.of_kind("gemm")
    for command, flops in zip(products.command.tolist(), products.flops.tolist(), strict=True):
        by_dtype[records.commands[command].dtype] += flops
    return max(by_dtype, key=by_dtype.__getitem__, default="") or "f16"


def placed(records: Records, name: str) -> tuple[RoofPoint, Roofs]:
    """Point of a run while PEs worked, and the roofs of the PEs that did, for the type that they multiplied most.

    Raises
    ------
    StateError
        If the run computed nothing or moved no bytes, as far as its log tells.
    """
    at = point(records, name, pe_window(records))
    if not (at.intensities and at.gflops):
        raise StateError(
            f"{name} computed nothing, or moved no bytes, so that it has no place on a roofline; "
            'of a composite, only log="tile" tells'
        )
    config, pes = read_machine(records.spec), len(records.pes())
    memory, memory_gbs = memory_roof(config)
    memories = config.pes_per_cube * len({pe[:2] for pe in records.pes()}) if config.memory_apart else pes
    levels = {memory: memory_gbs * memories, "TCM": config.cube.pe.pe_tcm.read_bw_gbs * pes}
    at = replace(at, nbytes={memory if level == "HBM" else level: n for level, n in at.nbytes.items()})
    return at, Roofs(2 * macs_per_ns(config, multiplied_type(records)) * pes, levels)


def point(records: Records, name: str, window: tuple[int, int] | None = None) -> RoofPoint:
    """Measured point of a run in `window` [ps]; HBM bytes are those of DMA, TCM bytes those of fetch."""
    start, end = window or (0, records.makespan_ps)
    rows = records.within(start, end)
    flops = int(rows.of_kind("gemm", "math").flops.sum())
    kinds = {"HBM": (*STAGE_KINDS["dma_in"], *STAGE_KINDS["dma_out"]), "TCM": STAGE_KINDS["fetch"]}
    nbytes = {level: int(rows.of_kind(*of).nbytes.sum()) for level, of in kinds.items()}
    return RoofPoint(name, flops, nbytes, (end - start) / 1000)
