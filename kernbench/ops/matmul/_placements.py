"""The placements of a matrix product, and the tasks of each PE."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from typing import Literal, NamedTuple, TypeVar, get_args

import numpy as np

from kernbench._dtypes import as_dtype
from kernbench._registry import hint
from kernbench.config import MachineConfig
from kernbench.errors import ArgumentError
from kernbench.kernels.partition import chunk, dealt, nonempty_parts
from kernbench.ops._stored import Span, Stored
from kernbench.ops.matmul._blocks import Blocks, choose_blocks
from kernbench.policy.address.allocator import AddressConfig
from kernbench.policy.placement.dp import DPPolicy, resolve_dp_policy
from kernbench.topology._naming import PeId

BY_ROWS = DPPolicy(cube="row_wise", pe="row_wise")
BY_COLUMNS = DPPolicy(cube="column_wise", pe="column_wise")
GRID = DPPolicy(cube="column_wise", pe="row_wise")
TURNED = DPPolicy(cube="row_wise", pe="column_wise")
ONE_PE = DPPolicy(num_cubes=1, num_pes=1)
# The whole matrix in each cube.
ROWS_IN_CUBES, COLUMNS_IN_CUBES = (DPPolicy(cube="replicate", pe=pe) for pe in ("row_wise", "column_wise"))
SPLIT_K, SPLIT_IN_CUBES = SPLITS = "split-K", "split-K in cubes"
PlacementName = Literal["rows", "columns", "2-D", "2-D turned", "split-K", "split-K in cubes", "replicated"]
# The policy that assigns each PE its part of C; for split-K, a part of K.
PLACEMENTS: dict[str, DPPolicy] = dict(
    zip(get_args(PlacementName), (BY_ROWS, BY_COLUMNS, GRID, TURNED, BY_ROWS, BY_ROWS, ONE_PE), strict=True)
)
BY_BLOCKS = "blocks"  # where PEs share memory
BEST = "best"  # instead of a placement: the fastest in simulation
PlacementLike = str | DPPolicy

PART_BYTES = 4  # bytes per element of a partial sum
NARROW = 128  # columns: narrower shards of B are read together up to this width (chosen: four tiles)
DEPTH = 2048  # elements of K loaded at a time where C is not stored as it is computed (chosen)
IN_FLIGHT = 4  # parts in which B is loaded while others are multiplied, unless they are large (chosen)
LARGE = 1 << 16  # maximum bytes of such a part (chosen)
_GROUP = 8  # rows of blocks, down which blocks follow one another (source: Triton's tutorial)
_PART = 8192  # minimum bytes of such a part (chosen: the request of smaller ones takes longer than the load)
LINES = 8  # minimum bursts per row of a block of columns that is loaded (chosen)
SKINNY = 4  # maximum rows of A for which K, too, is loaded in parts: small B is not streamed then (chosen)


def named(placement: PlacementLike) -> str:
    return placement if isinstance(placement, str) else f"{placement.cube} over cubes, {placement.pe} over PEs"


def share_blocks(config: MachineConfig) -> bool:
    """Return True if PEs share memory, and tiles of a block of a matrix are read as contiguous."""
    return bool(config.cube.hbm.controllers) and config.cube.hbm.gather == "packed"


def policy_of(placement: PlacementLike) -> DPPolicy:
    """Find the policy that assigns each PE its part of C; raise ArgumentError for an unknown name."""
    if isinstance(placement, DPPolicy):
        return placement
    if placement == BY_BLOCKS:
        needs = "PEs that share memory (cube.hbm.controllers), with packed tiles"
        raise ArgumentError(f"placement {placement!r} is for plain products on {needs}; leave it out")
    if placement not in PLACEMENTS:
        raise ArgumentError(f"placement {placement!r} is unknown; {hint(placement, (*PLACEMENTS, BEST))}")
    return PLACEMENTS[placement]


def read_from(
    config: MachineConfig, m: int, placement: PlacementLike
) -> tuple[tuple[DPPolicy, ...], tuple[DPPolicy, ...]]:
    """Policies of A and of B that suit a placement's reads, best first; A has m rows."""
    if placement == "columns":  # few rows are read from one PE per cube, not all from one PE
        few = m <= config.cube.pe.pe_gemm.tile.m
        return (*((GRID, BY_ROWS) if few else (BY_ROWS, GRID)), COLUMNS_IN_CUBES), (BY_COLUMNS,)
    found = {SPLIT_K: ((BY_COLUMNS,), (BY_ROWS,)), SPLIT_IN_CUBES: ((TURNED, COLUMNS_IN_CUBES), (GRID,))}
    others = (BY_ROWS, GRID, ROWS_IN_CUBES), (BY_COLUMNS,)
    return found.get(placement, others) if isinstance(placement, str) else ((), ())


@dataclass(frozen=True)
class Product:
    """C = alpha A B + beta bias, with C[m, n], A[m, k] and B[k, n], over a SIP.

    For a batch, A, B and C are stacked along rows. The bias is a row, or has the shape of C. Without `c`, C is stored
    where it is computed, block after block. `host_ns` is the host time per launch.
    """

    m: int
    n: int
    k: int
    dtype: str
    a: Stored
    b: Stored
    c: Stored | None = None
    batch: int = 1
    bias: Stored | None = None
    alpha: float = 1.0
    beta: float = 1.0
    host_ns: float = 0.0

    @property
    def is_plain(self) -> bool:
        """True if composites can compute it: a product plus a row."""
        row = self.bias is None or (self.bias.shape[0] == 1 and self.bias.first((0, 1), (0, self.n)) is not None)
        return row and self.alpha == 1 and (self.bias is None or self.beta == 1)

    @cached_property
    def itemsize(self) -> int:
        return as_dtype(self.dtype).itemsize

    def fits_blocks(self, config: MachineConfig) -> bool:
        if not share_blocks(config) or not self.k or not self.is_plain:
            return False
        stored = [x for x in (self.a, self.b, self.c) if x is not None]
        each_once = all(x.shape[0] * n <= extent for x in stored for (_, n), _, extent in x.side_by_side_parts)
        return each_once and len(self.a.side_by_side_parts) == 1

    def blocks(self, config: MachineConfig) -> Blocks:
        return choose_blocks(config, self.m, self.k, self.n, self.dtype, self.batch)

    def parts_of_k(self, config: MachineConfig) -> list[Span]:
        """Return the parts of K of a product in blocks; another launch adds up their products."""
        return nonempty_parts(self.k, self.blocks(config).split_k)


class Task(NamedTuple):
    """The work of a PE: blocks of C, as rows and columns, over parts of K; `matrix` is the index in the stack B.

    The operand that is not `inner` is read first and kept in TCM; a `streamed` one is read again for each block of
    the other. From `place` on, blocks are consecutive, as composites write them, or row-major together (`by_rows`);
    without a place they are stored as C is. In a product in blocks, `packed` has the places at which the parts of A, B
    and C are accessed, and `part` counts the parts of K.
    """

    rows: tuple[Span, ...]
    columns: tuple[Span, ...]
    depth: tuple[Span, ...]
    inner: str
    streamed: bool
    place: int | None
    matrix: int = 0
    by_rows: bool = False
    packed: tuple[int, int, int] | None = None
    part: int = 0

    @property
    def is_composite(self) -> bool:
        return self.place is not None and not self.by_rows

    @property
    def hull(self) -> tuple[Span, Span, Span]:
        rows, columns, depth = (
            (min(start for start, _ in x), sum(size for _, size in x)) for x in (self.rows, self.columns, self.depth)
        )
        return rows, columns, depth

    def at(self, rows: Span, columns: Span) -> int:
        assert self.place is not None
        (row, height), (column, _), _ = self.hull
        return self.place + height * (columns[0] - column) + (rows[0] - row) * columns[1]


def room(config: MachineConfig) -> int:
    """Bytes of TCM for one operand; A and two blocks of B must fit."""
    return AddressConfig.of(config).heap_bytes // 3


def fitting(k: int, itemsize: int, room: int) -> int:
    return max(1, room // (k * itemsize))


def column_blocks(widths: Sequence[int], fits: int, scattered: bool) -> list[Span]:
    """Blocks of columns by which consecutive shards are read.

    Narrow shards of B are read together, up to NARROW columns; `fits` columns fit into TCM. A scattered
    shard that does not fit is read in parts; others are streamed.

    >>> column_blocks([40, 40, 40, 40, 200, 0], 1000, scattered=False)
    [(0, 120), (120, 40), (160, 200)]
    """
    blocks: list[Span] = []
    for start, width in zip(accumulate(widths, initial=0), widths, strict=False):
        first, together = blocks[-1] if blocks else (0, NARROW)
        if width and together + width <= min(NARROW, fits):
            blocks[-1] = first, together + width
        elif scattered:
            blocks += [(at, min(fits, start + width - at)) for at in range(start, start + width, fits)]
        elif width:
            blocks.append((start, width))
    return blocks


@lru_cache(maxsize=64)
def tasks(config: MachineConfig, product: Product, placement: PlacementLike) -> dict[PeId, list[Task]]:
    pes, space = config.pes_per_cube, room(config)
    found: dict[PeId, list[Task]] = defaultdict(list)
    if placement in SPLITS:
        for x in _splits(config, product, placement):
            found[divmod(x.pe, pes)] = [_part_of_sum(config, product, x, i, space) for i in range(product.batch)]
        return found
    if placement == BY_BLOCKS and product.fits_blocks(config):
        for i, task in enumerate(_tasks_of_blocks(config, product)):
            found[divmod(i % config.pes_per_sip, pes)].append(task)
        return found
    for pe, matrix, rows, columns, place in _blocks(config, product, placement):
        found[pe].append(task_of(config, product, placement, pe, matrix, rows, columns, place, space))
    return found


def is_summed(config: MachineConfig, product: Product, placement: PlacementLike) -> bool:
    return placement in SPLITS or (placement == BY_BLOCKS and len(product.parts_of_k(config)) > 1)


def _tasks_of_blocks(config: MachineConfig, product: Product) -> Iterator[Task]:
    chosen = product.blocks(config)
    for part, depth in enumerate(product.parts_of_k(config)):
        for matrix in range(product.batch):
            yield from blocks_of(product, chosen, matrix, (matrix * product.m, product.m), part, depth)


def blocks_of(
    product: Product, chosen: Blocks, matrix: int, span: Span, part: int = 0, depth: Span | None = None
) -> Iterator[Task]:
    """Yield the blocks of a span of rows with their matrix, down _GROUP rows of blocks, then across."""
    (top, m), (n, k), (first, deep) = span, (product.n, product.k), depth or (0, product.k)
    of_b = product.b.side_by_side_parts
    of_c = (((0, n), part * product.batch * product.m * n, 0),) if product.c is None else product.c.side_by_side_parts
    edges = sorted({n, *(start for (start, _), _, _ in (*of_b, *of_c))})
    ((_, low, _),) = product.a.side_by_side_parts
    for left, right in pairwise(edges):
        [(b, width_b, at_b)], [(c, width_c, at_c)] = (
            [(at, width, start) for (start, width), at, _ in x if start <= left < start + width] for x in (of_b, of_c)
        )
        rows, columns = -(-m // chosen.rows), -(-(right - left) // chosen.columns)
        for number in range(rows * columns):
            group, in_group = divmod(number, _GROUP * columns)
            height = min(_GROUP, rows - group * _GROUP)
            i, j = (group * _GROUP + in_group % height) * chosen.rows, left + in_group // height * chosen.columns
            of_m, of_n = min(chosen.rows, m - i), min(chosen.columns, right - j)
            packed = (
                low + top * k + m * first + i * deep,
                b + matrix * k * width_b + (j - at_b) * k + first * of_n,
                c + (top + i) * width_c + (j - at_c) * of_m,
            )
            at, across, along = ((top + i, of_m),), ((j, of_n),), ((first, deep),)
            yield Task(at, across, along, "a", False, packed[2], matrix, packed=packed, part=part)


@lru_cache(maxsize=64)
def dealt_blocks(config: MachineConfig, product: Product, spans: tuple[Span, ...]) -> dict[PeId, list[Task]]:
    """Deal the blocks of spans of rows, each with its matrix, to all PEs in turn."""
    found, every = defaultdict[PeId, list[Task]](list), list[Task]()
    used = sum(m > 0 for _, m in spans)
    for matrix, span in enumerate(spans):
        if span[1] > 0:
            chosen = choose_blocks(config, span[1], product.k, product.n, product.dtype, used, split=False)
            every += blocks_of(product, chosen, matrix, span)
    for number, task in enumerate(every):
        found[divmod(number % config.pes_per_sip, config.pes_per_cube)].append(task)
    return found


class Split(NamedTuple):
    """A PE's part of K for some columns, and the place of its partial sums."""

    pe: int
    depth: Span
    columns: Span
    place: int


def _splits(config: MachineConfig, product: Product, placement: PlacementLike) -> list[Split]:
    """Partial sums of the PEs: over all columns, or over the columns of their cube."""
    pes, size = config.pes_per_cube, product.batch * product.m * split_columns(config, product, placement)
    if placement == SPLIT_K:
        depths = _spans(product.k, config).tolist()
        return [Split(i, (at, n), (0, product.n), i * size) for i, (at, n) in enumerate(depths) if n]
    found = []
    for i in range(config.pes_per_sip):
        depth, (first, width) = chunk(product.k, pes, i % pes), chunk(product.n, config.cubes_per_sip, i // pes)
        if depth[1] and width:
            found.append(Split(i, depth, (first, width), i * size))
    return found


def split_columns(config: MachineConfig, product: Product, placement: PlacementLike) -> int:
    """Maximum columns of a PE's partial sums."""
    return product.n if placement == SPLIT_K else chunk(product.n, config.cubes_per_sip, 0)[1]


def _part_of_sum(config: MachineConfig, product: Product, split: Split, matrix: int, space: int) -> Task:
    _, depth, columns, place = split
    rows, (_, width) = (matrix * product.m, product.m), columns
    place += matrix * product.m * width
    fits = fitting(depth[1], product.itemsize, space)
    # Programs begin with different blocks, so that they read from different PEs.
    cube, pe = divmod(split.pe, config.pes_per_cube)
    if width <= fits and product.a.first(rows, depth) is None:  # B is kept in TCM
        heights = _steps(rows, config.cube.pe.pe_gemm.tile.m)
        if len(heights) > 1:
            heights = turn(heights, cube * len(heights) // config.cubes_per_sip)
            return Task(heights, (columns,), (depth,), "a", False, place, matrix)
    if product.m <= fits:  # A is kept in TCM
        blocks, depths = _in_flight(config, product, depth, columns, depth)
        if len(blocks) * len(depths) > 1:
            blocks = turn(blocks, pe * len(blocks) // config.pes_per_cube)
            depths = turn(depths, cube * len(depths) // config.cubes_per_sip)
            return Task((rows,), blocks, depths, "b", False, place, matrix, by_rows=True)
    step = product.m if product.a.first(rows, depth) is not None else min(product.m, fits)
    return Task(_steps(rows, step), (columns,), (depth,), "a", False, place, matrix)


GroupPart = tuple[int, int, int]  # a group of rows, a part of its product, and the number of parts


def group_parts(config: MachineConfig, groups: int) -> dict[PeId, list[GroupPart]]:
    """Deal groups of rows to the PEs, several PEs to a group if there are more."""
    each, pes = max(1, config.pes_per_sip // groups), config.pes_per_cube
    return dealt(
        [(group, i, each) for group in range(groups) for i in range(each)],
        [divmod(i, pes) for i in range(config.pes_per_sip)],
    )


_Block = tuple[PeId, int, Span, Span, int]


def _blocks(config: MachineConfig, product: Product, placement: PlacementLike) -> Iterator[_Block]:
    """(PE, matrix, rows, columns, place) of each block of C.

    A policy splits each matrix over all PEs. By name, the PEs are divided among the matrices of a batch.
    """
    m, n, batch, pes, total = product.m, product.n, product.batch, config.pes_per_cube, config.pes_per_sip
    if batch > 1 and isinstance(placement, str):
        each = max(1, total // batch)
        for matrix in range(batch):
            for i in range(each):
                rows, columns = cut(placement, m, n, i, each)
                if rows[1] and columns[1]:
                    pe = divmod((matrix * each + i) * total // (batch * each), pes)
                    yield pe, matrix, (matrix * m + rows[0], rows[1]), columns, 0
        return
    shards = resolve_dp_policy(
        policy_of(placement), shape=(m, n), itemsize=1, num_pe=pes, num_cubes=config.cubes_per_sip, target_sip=0
    )
    for matrix in range(batch):
        for shard in shards:
            rows, columns = ((x.start, x.stop - x.start) for x in shard.index)
            yield (shard.cube, shard.pe), matrix, (matrix * m + rows[0], rows[1]), columns, shard.offset_bytes


def cut(placement: str, m: int, n: int, i: int, parts: int) -> tuple[Span, Span]:
    """Return the rows and columns of part `i` of a matrix."""
    if placement in ("rows", "columns"):
        return (chunk(m, parts, i), (0, n)) if placement == "rows" else ((0, m), chunk(n, parts, i))
    if placement == "replicated":
        return ((0, m), (0, n)) if i == 0 else ((0, 0), (0, 0))
    fewer = next(x for x in range(int(parts**0.5), 0, -1) if parts % x == 0)
    across, down = (fewer, parts // fewer) if placement == "2-D" else (parts // fewer, fewer)
    return chunk(m, across, i % across), chunk(n, down, i // across)


def _in_flight(
    config: MachineConfig, product: Product, of_b: Span, columns: Span, depth: Span
) -> tuple[tuple[Span, ...], tuple[Span, ...]]:
    """Blocks of columns and parts of K by which B is loaded, each while the previous one is multiplied."""
    tile, nbytes = config.cube.pe.pe_gemm.tile, depth[1] * columns[1] * product.itemsize
    parts = max(1, min(IN_FLIGHT, nbytes // _PART), nbytes // LARGE)
    if not product.b.is_by_rows(of_b, columns):
        return _steps(columns, tile.n * -(-columns[1] // (parts * tile.n))), (depth,)
    wide = LINES * config.cube.hbm.burst_bytes // product.itemsize  # such blocks of columns use all channels
    if columns[1] >= 2 * wide and product.b.first(of_b, columns) is not None:
        return _steps(columns, wide * -(-columns[1] // (parts * wide))), (depth,)
    if product.m > SKINNY:
        return (columns,), (depth,)
    return (columns,), _steps(depth, tile.k * -(-depth[1] // (parts * tile.k)))


def task_of(
    config: MachineConfig, product: Product, placement: PlacementLike, pe: PeId, matrix: int, rows: Span, columns: Span,
    place: int | None, space: int,
) -> Task:  # fmt: skip
    """`place` is that of the first element if C is not stored; `space`, the bytes of TCM for an operand."""
    a, b, c, whole = product.a, product.b, product.c, (0, product.k)
    of_b = matrix * product.k, product.k
    widths = b.widths(of_b, columns)
    fits = fitting(max(1, product.k), product.itemsize, space)
    blocks = column_blocks(widths, fits, b.first(of_b, (columns[0], widths[0])) is None)
    if c is not None or not product.is_plain:
        is_whole = len(blocks) == 1 and product.is_plain and product.k
        place = c.first(rows, columns) if is_whole and c is not None else None
    depth: tuple[Span, ...] = (whole,)
    if place is None:
        depth = _steps(whole, DEPTH) or (whole,)
        fits = fitting(min(DEPTH, max(1, product.k)), product.itemsize, space)
        blocks = column_blocks(widths, min(fits, NARROW), True)
    elif (
        product.k and product.is_plain and product.m <= SKINNY and columns[1] <= fits
        and (b.first(of_b, columns) is None or product.k * columns[1] * product.itemsize < IN_FLIGHT * LARGE)
    ):  # fmt: skip
        found, depths = _in_flight(config, product, of_b, columns, whole)
        if len(found) * len(depths) > 1:
            return Task((rows,), found, depths, "b", False, place, matrix, by_rows=True)
    blocks = [(columns[0] + start, size) for start, size in blocks]
    in_parts = place is None or a.first(rows, whole) is None
    number = pe[0] * config.pes_per_cube + pe[1]
    if placement == "columns":
        height = config.cube.pe.pe_gemm.tile.m
        heights = _steps(rows, min(height, fits) if in_parts else height)
        turned = turn(heights, number % len(heights))
        streamed = place is not None and b.first(of_b, blocks[0]) is not None
        return Task(turned, tuple(blocks), depth, "a", streamed, place, matrix)
    # Programs begin with the shards that they hold, so that they read from different PEs.
    own = b.first_columns.get(number)
    begin = 0 if own is None else pe[0] % len(blocks)
    begin = next((i for i, (start, size) in enumerate(blocks) if own is not None and 0 <= own - start < size), begin)
    step = min(rows[1], fits) if in_parts else rows[1]
    return Task(_steps(rows, step), turn(blocks, begin), depth, "b", False, place, matrix)


def _steps(span: Span, step: int) -> tuple[Span, ...]:
    start, size = span
    return tuple((at, min(step, start + size - at)) for at in range(start, start + size, step))


_X = TypeVar("_X")


def turn(things: Sequence[_X], first: int) -> tuple[_X, ...]:
    return (*things[first:], *things[:first])


def _spans(n: int, config: MachineConfig) -> np.ndarray:
    """(start, size) of each PE's part of `n`, split over cubes and then over the PEs of each."""
    return np.array(
        [
            (start + inner, size)
            for cube in range(config.cubes_per_sip)
            for start, part in [chunk(n, config.cubes_per_sip, cube)]
            for inner, size in [chunk(part, config.pes_per_cube, pe) for pe in range(config.pes_per_cube)]
        ]
    )


class Sum(NamedTuple):
    """Elements that a program adds up: `n` of each of `sources`, in the PEs `holders`, and their target.

    They are elements of some columns of C, in row-major order from `start` on; without C, they go to `place`.
    """

    sources: tuple[int, ...]
    holders: tuple[int, ...]
    columns: Span
    start: int
    n: int
    place: int = 0


def sums(config: MachineConfig, product: Product, placement: PlacementLike) -> list[dict[PeId, list[Sum]]]:
    pes, size = config.pes_per_cube, product.batch * product.m * product.n
    if placement == BY_BLOCKS:
        ks, every = range(len(product.parts_of_k(config))), (0, product.n)
        return [
            {
                divmod(i, pes): [Sum(tuple([x * size + at for x in ks]), (i,) * len(ks), every, at, n, at)]
                for i, (at, n) in enumerate(_spans(size, config).tolist())
                if n
            }
        ]
    by_cube: dict[int, list[Split]] = defaultdict(list)
    for split in _splits(config, product, placement):
        by_cube[split.pe // pes].append(split)
    in_cubes: dict[PeId, list[Sum]] = {}
    for cube, parts in by_cube.items():
        columns = parts[0].columns
        count = product.batch * product.m * columns[1]
        bursts = -(-count * product.itemsize // config.cube.hbm.burst_bytes)  # of results: a PE writes at least one
        for pe in range(pes):
            start, n = chunk(count, pes if placement == SPLIT_K else min(pes, bursts), pe)
            if n:
                own = turn(parts, pe % len(parts))  # programs begin with different sources
                sources, holders = tuple(x.place + start for x in own), tuple(x.pe for x in own)
                before = cube * size if placement == SPLIT_K else product.m * columns[0]
                in_cubes[cube, pe] = [Sum(sources, holders, columns, start, n, before + start)]
    if placement != SPLIT_K:
        return [in_cubes]
    over_cubes: dict[PeId, list[Sum]] = {}
    cubes, held = sorted(by_cube), [chunk(size, pes, pe) for pe in range(pes)]
    for i, (start, n) in enumerate(_spans(size, config).tolist()):
        own_cubes = turn(cubes, i // pes % len(cubes))
        for holder, (first, count) in enumerate(held):
            low, high = max(start, first), min(start + n, first + count)
            if low < high:
                sources, holders = tuple(x * size + low for x in own_cubes), tuple(x * pes + holder for x in own_cubes)
                found = Sum(sources, holders, (0, product.n), low, high - low, low)
                over_cubes.setdefault(divmod(i, pes), []).append(found)
    return [in_cubes, over_cubes]
