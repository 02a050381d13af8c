"""What each placement asks of the machine, counted before anything runs: bytes, tiles, PEs, and a lower bound."""

from __future__ import annotations

from dataclasses import dataclass

from kernbench.analysis.roofline import macs_per_ns
from kernbench.components.builtin.pe_scheduler import cuts
from kernbench.config import MachineConfig
from kernbench.dtypes import as_dtype
from kernbench.kernels.partition import chunk
from kernbench.kernels.sharded_gemm import column_blocks, fitting
from kernbench.policy.address.allocator import AddressConfig
from kernbench.policy.placement.dp import DPPolicy, resolve_dp_policy

_ROWS = DPPolicy(cube="row_wise", pe="row_wise")
_COLUMNS = DPPolicy(cube="column_wise", pe="column_wise")
_GRID = DPPolicy(cube="column_wise", pe="row_wise")

SPLIT_K = "split-K"
# Where A, B and C are. C of split-K is a column of its elements, row after row.
PLACEMENTS = {
    "rows": (_ROWS, _COLUMNS, _ROWS),
    "columns": (_ROWS, _COLUMNS, _COLUMNS),
    "2-D": (_ROWS, _COLUMNS, _GRID),
    SPLIT_K: (_COLUMNS, _ROWS, _ROWS),
}
TRANSPOSED = {_ROWS: _COLUMNS, _COLUMNS: _ROWS}  # where an operand is that is stored transposed, for the same elements
PART_BYTES = 4  # of an element of a partial sum

# Kinds of links by column: what reasons of a run call them.
LINK_KINDS = {
    "mesh": "mesh link", "ucie": "UCIe link", "ucie_port": "link of a UCIe port", "pe_dma": "link of PE_DMA",
    "hbm": "link of an HBM slice",
}  # fmt: skip
VISIBLE = 0.01  # share of the time from which a link is kept for pictures

Shape = tuple[int, int, int]  # m, n, k
Size = tuple[int, int]
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
        No run is faster: the busiest PE's tiles at the matrix rate, or its remote bytes through its link. In split-K
        one comes after the other.
    limiter : str
        Which of the two takes longer.
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


def room(config: MachineConfig) -> int:
    """Return the bytes of TCM for one operand: A, and two blocks of B."""
    return AddressConfig.of(config).heap_bytes // 3


def parts(
    placement: str, m: int, n: int, k: int, config: MachineConfig, itemsize: int = 2, trans_b: bool = False
) -> list[Part]:
    """Return what every PE computes; in split-K, of the sum over its part of K."""
    columns, fits = [size for _, size in spans(n, config)], fitting(k, itemsize, room(config))

    def read(widths: list[int]) -> list[int]:
        return [width for _, width, _ in column_blocks(widths, fits, trans_b)]

    if placement == SPLIT_K:
        return [(m if size else 0, [n]) for _, size in spans(k, config)]
    if placement == "columns":
        return [(m, read([size])) for size in columns]
    if placement == "rows":
        blocks = read(columns)
        return [(size, blocks) for _, size in spans(m, config)]
    pes = config.pes_per_cube
    rows = [chunk(m, pes, pe)[1] for pe in range(pes)]
    cubes = [read(columns[at : at + pes]) for at in range(0, len(columns), pes)]
    return [(rows[i % pes], cubes[i // pes]) for i in range(len(columns))]


def work(
    config: MachineConfig, placement: str, shape: Shape, dtype: str, trans_a: bool = False, trans_b: bool = False
) -> Work:
    """Return the counts of C[m, n] = A[m, k] B[k, n], `shape` being (m, n, k)."""
    m, n, k = shape
    tile, item = config.cube.pe.pe_gemm.tile, as_dtype(dtype).itemsize
    computed = parts(placement, m, n, k, config, item, trans_b)
    depths = [size for _, size in spans(k, config)] if placement == SPLIT_K else [k] * len(computed)
    tiles = [
        cuts(rows, tile.m) * cuts(depth, tile.k) * sum(cuts(w, tile.n) for w in widths) if rows and widths else 0
        for (rows, widths), depth in zip(computed, depths, strict=True)
    ]
    remote = _remote(config, placement, shape, computed, item)
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
        slice_bytes=_fullest(config, placement, shape, item, trans_a, trans_b),
        issued=m * n * k / (sum(tiles) * tile_macs),
        bound_ns=sum(bounds.values()) if placement == SPLIT_K else bounds[limiter],
        limiter=limiter,
    )


def _remote(config: MachineConfig, placement: str, shape: Shape, computed: list[Part], item: int) -> list[int]:
    """Return the bytes that each PE reads from other PEs' memory."""
    m, n, k = shape
    if placement == SPLIT_K:
        return _sums(config, m * n, [bool(rows) for rows, _ in computed])
    own_a, own_b, remote = spans(m, config), spans(n, config), []
    for i, (rows, widths) in enumerate(computed):
        wide = sum(widths)
        first = {"columns": 0, "rows": own_a[i][0], "2-D": chunk(m, config.pes_per_cube, i % config.pes_per_cube)[0]}
        own_bytes = _overlap((first[placement], rows), own_a[i]) + (0 if placement == "columns" else own_b[i][1])
        read = rows + (0 if placement == "columns" else wide)
        remote.append((read - own_bytes) * k * item if rows and wide else 0)
    return remote


def _sums(config: MachineConfig, n: int, computes: list[bool]) -> list[int]:
    """Return the bytes that each PE reads from others to add `n` partial sums: in its cube, then over the cubes."""
    pes, remote = config.pes_per_cube, []
    cubes = [sum(computes[at : at + pes]) for at in range(0, len(computes), pes)]
    for i, (start, size) in enumerate(spans(n, config)):
        cube, pe = divmod(i, pes)
        in_cube = chunk(n, pes, pe)
        own = _overlap((start, size), in_cube) if cubes[cube] else 0
        elements = (cubes[cube] - computes[i]) * in_cube[1] + sum(map(bool, cubes)) * size - own
        remote.append(elements * PART_BYTES)
    return remote


def operands(placement: str, shape: Shape, trans_a: bool, trans_b: bool) -> list[tuple[Size, DPPolicy]]:
    """Return the shape and the placement of A and B as they are stored."""
    m, n, k = shape
    at_a, at_b, _ = PLACEMENTS[placement]
    return [
        ((k, m), TRANSPOSED[at_a]) if trans_a else ((m, k), at_a),
        ((n, k), TRANSPOSED[at_b]) if trans_b else ((k, n), at_b),
    ]


def stored_result(placement: str, shape: Shape) -> tuple[Size, DPPolicy]:
    """Return the shape and the placement of C."""
    m, n, _ = shape
    return ((m * n, 1) if placement == SPLIT_K else (m, n)), PLACEMENTS[placement][2]


def partial_sums(config: MachineConfig, n: int) -> list[tuple[Size, DPPolicy]]:
    """Return the shapes and placements of `n` partial sums of split-K: those of each PE, and those of each cube."""
    return [((config.pes_per_sip, n), _ROWS), ((config.cubes_per_sip, n), DPPolicy(cube="row_wise", pe="column_wise"))]


def _fullest(config: MachineConfig, placement: str, shape: Shape, item: int, trans_a: bool, trans_b: bool) -> int:
    m, n, _ = shape
    held: dict[tuple[int, int], int] = {}
    tensors = [
        (*tensor, item) for tensor in (*operands(placement, shape, trans_a, trans_b), stored_result(placement, shape))
    ]
    if placement == SPLIT_K:
        tensors += [(size, policy, PART_BYTES) for size, policy in partial_sums(config, m * n)]
    for size, policy, itemsize in tensors:
        for shard in resolve_dp_policy(
            policy,
            shape=size,
            itemsize=itemsize,
            num_pe=config.pes_per_cube,
            num_cubes=config.cubes_per_sip,
            target_sip=0,
        ):
            at = shard.cube, shard.pe
            held[at] = held.get(at, 0) + shard.nbytes
    return max(held.values())


def _overlap(a: Span, b: Span) -> int:
    return max(0, min(a[0] + a[1], b[0] + b[1]) - max(a[0], b[0]))
