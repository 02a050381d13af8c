"""What each placement asks of the machine, counted before anything runs: bytes, tiles, PEs, and a lower bound."""

from __future__ import annotations

from dataclasses import dataclass

from kernbench.analysis.ideal import macs_per_ns
from kernbench.components.tile_plan import cuts
from kernbench.config import MachineConfig
from kernbench.dtypes import as_dtype
from kernbench.kernels.partition import chunk
from kernbench.policy.placement.dp import DPPolicy, resolve_dp_policy

_ROWS = DPPolicy(cube="row_wise", pe="row_wise")
_COLUMNS = DPPolicy(cube="column_wise", pe="column_wise")
_GRID = DPPolicy(cube="column_wise", pe="row_wise")

# Where A, B and C live.
PLACEMENTS = {
    "rows": (_ROWS, _COLUMNS, _ROWS),
    "columns": (_ROWS, _COLUMNS, _COLUMNS),
    "2-D": (_ROWS, _COLUMNS, _GRID),
}

# Kinds of links by column: what reasons of a run call them.
LINK_KINDS = {
    "mesh": "mesh link", "ucie": "UCIe link", "ucie_port": "link of a UCIe port", "pe_dma": "link of PE_DMA",
    "hbm": "link of an HBM slice",
}  # fmt: skip
VISIBLE = 0.01  # share of the time from which a link is kept for pictures

Shape = tuple[int, int, int]  # m, n, k
Span = tuple[int, int]  # start, size
Part = tuple[int, list[int]]  # rows of C, and the widths of its blocks of columns


@dataclass(frozen=True, slots=True)
class Work:
    """Counts of one product in one placement.

    Attributes
    ----------
    tiles, busiest_tiles : int
        Of all PEs, and of the PE with most.
    pes : int
        PEs that compute.
    remote_bytes, busiest_remote_bytes : int
        What PEs read from other PEs' memory; of all, and of the PE with most.
    slice_bytes : int
        What the fullest HBM slice holds.
    issued : float
        Useful MACs as a share of those of whole tiles.
    bound_ns : float
        No run is faster: the busiest PE's tiles at the matrix rate, or its remote bytes through its link.
    limiter : str
        Which of the two.
    """

    tiles: int
    busiest_tiles: int
    pes: int
    remote_bytes: int
    busiest_remote_bytes: int
    slice_bytes: int
    issued: float
    bound_ns: float
    limiter: str


def spans(n: int, config: MachineConfig) -> list[Span]:
    """Return the part of `n` of every PE of a SIP, cut over cubes and then over the PEs of each."""
    return [
        (start + inner, size)
        for cube in range(config.cubes_per_sip)
        for start, part in [chunk(n, config.cubes_per_sip, cube)]
        for inner, size in [chunk(part, config.pes_per_cube, pe) for pe in range(config.pes_per_cube)]
    ]


def parts(placement: str, m: int, n: int, config: MachineConfig) -> list[Part]:
    """Return what every PE computes."""
    columns = [size for _, size in spans(n, config)]
    if placement == "columns":
        return [(m, [size]) for size in columns]
    if placement == "rows":
        return [(size, columns) for _, size in spans(m, config)]
    pes = config.pes_per_cube
    rows = [chunk(m, pes, pe)[1] for pe in range(pes)]
    return [(rows[i % pes], columns[i - i % pes : i - i % pes + pes]) for i in range(len(columns))]


def work(config: MachineConfig, placement: str, shape: Shape, dtype: str) -> Work:
    """Return the counts of C[m, n] = A[m, k] B[k, n], `shape` being (m, n, k)."""
    m, n, k = shape
    tile, item = config.cube.pe.pe_gemm.tile, as_dtype(dtype).itemsize
    own_a, own_b = spans(m, config), spans(n, config)
    tiles, remote = [], []
    for i, (rows, widths) in enumerate(parts(placement, m, n, config)):
        wide = sum(widths)
        tiles.append(cuts(rows, tile.m) * cuts(k, tile.k) * sum(cuts(w, tile.n) for w in widths if w) if rows else 0)
        first = {"columns": 0, "rows": own_a[i][0], "2-D": chunk(m, config.pes_per_cube, i % config.pes_per_cube)[0]}
        own = _overlap((first[placement], rows), own_a[i]) + (0 if placement == "columns" else own_b[i][1])
        read = rows + (0 if placement == "columns" else wide)
        remote.append((read - own) * k * item if rows and wide else 0)
    rate = macs_per_ns(config, dtype)
    tile_macs = tile.m * tile.k * tile.n
    bounds = {
        "the matrix engine of the busiest PE": max(tiles) * tile_macs / rate,
        "the link of the PE that reads most from others": max(remote) / config.cube.pe.pe_dma.bw_gbs,
    }
    limiter = max(bounds, key=lambda name: bounds[name])
    return Work(
        tiles=sum(tiles),
        busiest_tiles=max(tiles),
        pes=sum(1 for x in tiles if x),
        remote_bytes=sum(remote),
        busiest_remote_bytes=max(remote),
        slice_bytes=_fullest(config, placement, shape, item),
        issued=m * n * k / (sum(tiles) * tile_macs),
        bound_ns=bounds[limiter],
        limiter=limiter,
    )


def _fullest(config: MachineConfig, placement: str, shape: Shape, item: int) -> int:
    m, n, k = shape
    held: dict[tuple[int, int], int] = {}
    for policy, size in zip(PLACEMENTS[placement], ((m, k), (k, n), (m, n)), strict=True):
        for shard in resolve_dp_policy(
            policy, shape=size, itemsize=item, num_pe=config.pes_per_cube, num_cubes=config.cubes_per_sip, target_sip=0
        ):
            at = shard.cube, shard.pe
            held[at] = held.get(at, 0) + shard.nbytes
    return max(held.values())


def _overlap(a: Span, b: Span) -> int:
    return max(0, min(a[0] + a[1], b[0] + b[1]) - max(a[0], b[0]))
