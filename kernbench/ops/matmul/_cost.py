"""The cost of a matrix product: counts, traffic, and the estimate of its time."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kernbench.analysis._roofline import matrix_ns, tile_count, tiled_for
from kernbench.components.builtin.pe_scheduler import cuts
from kernbench.config import MachineConfig
from kernbench.ops._routes import launch_ns, routes_of
from kernbench.ops._stored import Piece, Span, Stored
from kernbench.ops.matmul._placements import (
    BY_BLOCKS,
    PART_BYTES,
    PlacementLike,
    Product,
    Task,
    is_summed,
    room,
    sums,
    tasks,
)
from kernbench.topology._naming import PeId
from kernbench.topology.builder import Machine


@dataclass(frozen=True, slots=True)
class ProductWork:
    tiles: int
    busiest_tiles: int
    pes: int
    remote_bytes: int
    busiest_remote_bytes: int
    issued: float
    bound_ns: float
    limiter: str


def _reads(
    config: MachineConfig, product: Product, task: Task, hull: tuple[Span, Span, Span], space: int
) -> tuple[int, int]:
    """How often a task reads its part of A, and of B."""
    if task.inner == "a":
        return len(task.columns), len(task.rows) if task.streamed else 1
    rows, _, depth = hull
    too_large = rows[1] * depth[1] * product.itemsize > space
    if not task.is_composite:
        return len(task.columns) if too_large else 1, len(task.rows)
    if not too_large or product.a.first(rows, depth) is None:
        return 1, len(task.rows)
    tiles = [(width, tiled_for(config, (rows[1], depth[1], width), product.dtype).tile) for _, width in task.columns]
    return sum(cuts(width, tile.n) for width, tile in tiles), len(task.rows)


def traffic(config: MachineConfig, product: Product, placement: PlacementLike) -> list[np.ndarray]:
    """Per launch, the bytes between each PE (row), as reader and writer, and each PE's memory (column)."""
    own = tasks(config, product, placement)
    return [reads + writes for reads, writes, _ in _moved(config, product, placement, own)]


def _moved(
    config: MachineConfig, product: Product, placement: PlacementLike, every: Mapping[PeId, Sequence[Task]]
) -> list[np.ndarray]:
    """Per launch, the bytes that each PE reads from each PE's memory, writes to it, and is served by it in bursts."""
    line = max(1, config.cube.hbm.burst_bytes // product.itemsize)
    n_pes, each = config.pes_per_sip, config.pes_per_cube
    moved, own = np.zeros((3, n_pes, n_pes), np.int64), np.eye(n_pes, dtype=np.int64)
    found = [(cube * each + pe, x) for (cube, pe), own in every.items() for x in own]
    numbers = np.array([number for number, _ in found])
    hulls, space = [x.hull for _, x in found], room(config)
    rows, columns, depth = np.array(hulls, np.int64).transpose(1, 0, 2)
    times = np.array([_reads(config, product, x, hull, space) for (_, x), hull in zip(found, hulls, strict=True)])
    of_b = depth + np.array([(x.matrix * product.k, 0) for _, x in found])
    of_a = product.a.held(numbers, rows, depth, config, line)
    of_b = product.b.held(numbers, of_b, columns, config, line)
    read, served = (a * times[:, :1] + b * times[:, 1:] for a, b in zip(of_a, of_b, strict=True))
    _add(moved, numbers, read * product.itemsize, 0, served * product.itemsize)
    area = (rows[:, 1] * columns[:, 1])[:, None]
    if is_summed(config, product, placement):
        parts = own[numbers] * area * PART_BYTES
        _add(moved, numbers, parts, 1, parts)
        return [moved, *_sums(config, product, placement, line)]
    written = served = own[numbers] * area
    if product.c is not None:
        written, served = product.c.held(numbers, rows, columns, config, line)
    _add(moved, numbers, written * product.itemsize, 1, served * product.itemsize)
    return [moved]


def _add(moved: np.ndarray, numbers: np.ndarray, nbytes: np.ndarray, to: int, served: np.ndarray) -> None:
    np.add.at(moved[to], numbers, nbytes)
    np.add.at(moved[2], numbers, served)


def _sums(config: MachineConfig, product: Product, placement: PlacementLike, line: int) -> list[np.ndarray]:
    launches, found = sums(config, product, placement), []
    for i, launch in enumerate(launches):
        moved = np.zeros((3, config.pes_per_sip, config.pes_per_sip), np.int64)
        own = [(cube * config.pes_per_cube + pe, x) for (cube, pe), parts in launch.items() for x in parts]
        numbers, counts = np.array([number for number, _ in own]), np.array([x.n for _, x in own])
        each, holders = [len(x.holders) for _, x in own], np.array([pe for _, x in own for pe in x.holders])
        for to in (0, 2):
            np.add.at(moved[to], (np.repeat(numbers, each), holders), np.repeat(counts, each) * PART_BYTES)
        is_last = i == len(launches) - 1
        if product.c is None or not is_last:  # each PE writes to its own memory
            for to in (1, 2):
                np.add.at(moved[to], (numbers, numbers), counts * (product.itemsize if is_last else PART_BYTES))
        else:
            columns = np.array([x.columns for _, x in own])
            start, width = np.array([x.start for _, x in own]), columns[:, 1]
            first, last = start // width, -(-(start + counts) // width)
            height = last - first
            held = product.c.held(numbers, np.stack([first, height], axis=1), columns, config, line)
            written, served = (x * (product.itemsize * counts)[:, None] // (height * width)[:, None] for x in held)
            _add(moved, numbers, written, 1, served)
        found.append(moved)
    return found


def _computed(
    config: MachineConfig, product: Product, every: Mapping[PeId, Sequence[Task]]
) -> list[tuple[int, float, int]]:
    """Tiles, matrix-engine time [ns], and MACs of full tiles, of each PE that has any."""
    found: dict[object, tuple[int, float, int]] = {}  # by sizes: most PEs have equal blocks
    computed = []
    for own in every.values():
        sizes = tuple([tuple([size for _, size in spans]) for x in own for spans in (x.rows, x.depth, x.columns)])
        if sizes not in found:
            blocks: Counter[tuple[int, int, int]] = Counter()
            for at in range(0, len(sizes), 3):
                for (m, a), (k, b), (n, c) in itertools.product(*(Counter(x).items() for x in sizes[at : at + 3])):
                    blocks[m, k, n] += a * b * c
            counts = [(i, *tile_count(config, block, product.dtype)) for block, i in blocks.items()]
            ns = sum(i * matrix_ns(config, block, product.dtype) for block, i in blocks.items())
            found[sizes] = sum(i * n for i, n, _ in counts), ns, sum(i * macs for i, _, macs in counts)
        computed.append(found[sizes])
    return computed


def product_work(config: MachineConfig, product: Product, placement: PlacementLike) -> ProductWork:
    tiles, busy, issued = zip(*_computed(config, product, tasks(config, product, placement)), strict=True)
    moved = np.sum(traffic(config, product, placement), axis=0)
    remote = moved.sum(axis=1) - moved.diagonal()
    bounds = {
        "the matrix engine of the busiest PE": max(busy),
        "the link of the PE that reads most from others": int(remote.max()) / config.cube.pe.pe_dma.bw_gbs,
    }
    limiter = max(bounds, key=lambda name: bounds[name])
    return ProductWork(
        tiles=sum(tiles),
        busiest_tiles=max(tiles),
        pes=len(tiles),
        remote_bytes=int(remote.sum()),
        busiest_remote_bytes=int(remote.max()),
        issued=product.batch * product.m * product.n * product.k / sum(issued),
        bound_ns=sum(bounds.values()) if is_summed(config, product, placement) else bounds[limiter],
        limiter=limiter,
    )


def estimate(machine: Machine, product: Product, placement: PlacementLike) -> tuple[float, str]:
    """Closed-form time of a product [ns], and its largest contribution.

    A launch takes the time of an empty one, of the busiest link, memory or matrix engine, and the latency of its reads.
    """
    config, routes = machine.config, routes_of(machine)
    if placement == BY_BLOCKS and product.fits_blocks(config):
        found = product.blocks(config)
        return found.estimate_ns + launch_ns(machine, False) + product.host_ns, found.limiter
    own = tasks(config, product, placement)
    busiest_ns = max(ns for _, ns, _ in _computed(config, product, own))
    blocks = min(len(x.rows) * len(x.columns) * len(x.depth) for each in own.values() for x in each)
    streamed = all(x.streamed for each in own.values() for x in each)
    parts: dict[str, float] = defaultdict(float)
    for reads, writes, served in _moved(config, product, placement, own):
        ns, resource = routes.busiest(reads + writes, served)
        parts["matrix engine" if busiest_ns and busiest_ns >= ns else resource] += max(ns, busiest_ns)
        if not streamed:  # the first block is loaded before it is multiplied
            parts["matrix engine"] += min(ns, busiest_ns) / blocks
        parts["latency of reads"] += routes.latency_ns(reads) + routes.latency_ns(writes)
        parts["launch"] += launch_ns(machine, len(own) == 1) + product.host_ns
        busiest_ns = 0.0  # only the first launch multiplies
    return sum(parts.values()), max(parts, key=lambda part: parts[part])


def pieces_of(config: MachineConfig, target: Stored) -> dict[PeId, Piece]:
    """For policies that give each PE a single piece."""
    return {divmod(pe, config.pes_per_cube): piece for piece in target.pieces for pe in piece.holders}


def move_ns(machine: Machine, source: Stored, target: Stored, itemsize: int = 2) -> float:
    config, routes = machine.config, routes_of(machine)
    line, pes = max(1, config.cube.hbm.burst_bytes // itemsize), config.pes_per_cube
    parts = pieces_of(config, target)
    numbers = np.array([cube * pes + pe for cube, pe in parts])
    rows, columns = (np.array([piece[i] for piece in parts.values()], np.int64) for i in (0, 1))
    moved, served = (np.zeros((config.pes_per_sip, config.pes_per_sip)) for _ in range(2))
    moved[numbers], served[numbers] = source.held(numbers, rows, columns, config, line) * itemsize
    return routes.busiest(moved, served)[0] + routes.latency_ns(moved) + launch_ns(machine, False)
