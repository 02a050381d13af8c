"""Attention over a SIP: flash attention, distributed over the PEs, for operands with any placement and strides.

A unit of work is a block of query tokens, of query heads that share a kv head. The units of a single query token are
near their keys: its kv tokens may be split into parts, each a unit, whose results are written to the PE that merges
those of a head in a second launch. The number of parts is that with the lowest estimate.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from heapq import heappop, heappush
from typing import Any, NamedTuple

import numpy as np

from kernbench._dtypes import as_dtype, bool_
from kernbench.analysis._roofline import matrix_ns
from kernbench.config import MachineConfig
from kernbench.kernels.attention import NEG, Flash, tiles, to_column
from kernbench.kernels.partition import cut_span, dealt, mine, nonempty_parts
from kernbench.ops._routes import launch_ns, routes_of
from kernbench.ops._stored import Span, overlaps
from kernbench.ops.matmul import BY_ROWS as ON_EACH_PE
from kernbench.ops.matmul import KernelLaunch
from kernbench.policy.placement.dp import DPPolicy
from kernbench.topology._naming import PeId
from kernbench.topology.builder import Machine
from kernbench.triton_emu._handles import Pointer, PointerTile, Tile
from kernbench.triton_emu._places import Affine
from kernbench.triton_emu.tl_context import TLContext

_ROWS = 64  # rows of scores at a time: query tokens times query heads (chosen)
FEWER_ROWS = 32  # used where PEs would be idle (chosen: the width of a tile of the matrix engine)
_FEW_TILES = 4  # of kv tokens, which FlashAttention-3 does not divide (source: heuristics.h)
_PART_BYTES = 4  # bytes per element of the result of a part
PASSES = 5  # simple operations per score in the softmax, without the exponential (chosen: as in `Flash`)


class Tiles(NamedTuple):
    """Whole tiles of scores in which a library computes: kv tokens and rows, and units at a time on a PE.

    Tiles of one unit overlap if it is alone. `packs`: the heads of a group are rows of a tile; else they are tokens,
    which q and out are copied for.
    """

    tokens: int
    rows: int
    at_once: int
    packs: bool


@dataclass(frozen=True)
class Heads:
    """The storage of [batch, heads, tokens, width], in elements from the pointer."""

    offsets: tuple[int, ...]  # the first element of each sequence of the batch
    strides: tuple[int, int, int]  # between heads, between tokens, and within a token; 0 where it is broadcast
    # (first element, elements, numbers of the PEs that hold it) of each part of the memory
    held: tuple[tuple[int, int, tuple[int, ...]], ...] = ()

    def holder(self, batch: int, head: int, token: int) -> int:
        """PE that holds the first element of a token; 0 without `held`."""
        if not self.held:
            return 0
        place = self.offsets[batch] + head * self.strides[0] + token * self.strides[1]
        return self.held[max(0, bisect_right(self._starts, place) - 1)][2][0]

    @cached_property
    def _starts(self) -> list[int]:
        return [first for first, _, _ in self.held]


@dataclass(frozen=True)
class Attention:
    """out = softmax(q k^T scale + mask) v over a SIP.

    q is [batch, heads, q_len, head_dim], k [batch, kv_heads, kv_len, head_dim], v the same with `width` elements, and
    the mask [batch, heads, q_len, kv_len]: a bool selects the keys a query sees, a float is added. With `behind`, query
    token i sees kv tokens up to i + behind. With `latent`, values are the first `width` elements of keys, and are read
    with them. `host_ns` is the host time per launch.
    """

    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int
    width: int
    scale: float
    dtype: str
    q: Heads
    k: Heads
    v: Heads
    out: Heads
    mask: Heads | None = None
    behind: int | None = None
    latent: bool = False
    host_ns: float = 0.0

    @property
    def batch(self) -> int:
        return len(self.q.offsets)

    @property
    def group(self) -> int:
        return self.heads // self.kv_heads

    @property
    def together(self) -> int:
        return max(1, min(self.group, _ROWS))

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.heads * self.q_len * self.kv_len * (self.head_dim + self.width)

    @property
    def seen(self) -> int:
        """Number of kv tokens that any query token sees."""
        return self.kv_len if self.behind is None else max(0, min(self.kv_len, self.q_len + self.behind))

    @property
    def blocks(self) -> list[Span]:
        return [x for kv in range(self.kv_heads) for x in cut_span((kv * self.group, self.group), self.together)]


class Unit(NamedTuple):
    """Query tokens of query heads that share a kv head, over some kv tokens.

    If these are a part of the kv tokens, `places` has the place of each head's values, and of the logarithm of its
    denominator.
    """

    batch: int
    heads: Span
    tokens: Span
    kv: Span
    places: tuple[tuple[int, int], ...] = ()


class Merge(NamedTuple):
    """The parts of one head of a query token: the places of their values, and of the logarithms of the denominators."""

    batch: int
    head: int
    values: int
    logarithms: int


class Offsets:
    """Cache of the offsets of strided blocks: one tile per shape, so that its runs are computed once per program."""

    def __init__(self, tl: TLContext) -> None:
        self._tl = tl
        self._made: dict[tuple[Any, ...], Tile] = {}

    def get(self, shape: tuple[int, ...], strides: tuple[int, ...], seen: tuple[int, int]) -> Tile:
        key = shape, strides
        if key not in self._made:
            self._made[key] = self._tl.constant(Affine(0, shape, strides)).reshape(seen)
        return self._made[key]

    def rows(self, pointer: Pointer, at: Heads, batch: int, heads: Span, tokens: Span, width: int) -> PointerTile:
        """Pointers to tokens of heads, as a matrix of heads * tokens rows."""
        (head, n), (token, m) = heads, tokens
        start = pointer + (at.offsets[batch] + head * at.strides[0] + token * at.strides[1])
        return PointerTile(start, self.get((n, m, width), at.strides, (n * m, width)))

    def load(self, pointer: Pointer, at: Heads, batch: int, head: int, tokens: Span, width: int, tile: int = 0) -> Tile:
        """Tokens of a head; up to `tile` tokens, zeros follow."""
        (by_head, by_token, step), (token, n) = at.strides, tokens
        start = pointer + (at.offsets[batch] + head * by_head + token * by_token)
        if n < tile:
            places = PointerTile(start, self.get((tile, width), (by_token, step), (tile, width)))
            return self._tl.load(places, self._tl.arange(0, tile)[:, None] < n, 0.0)
        if (width == 1 or step == 1) and (n == 1 or by_token == width):
            return self._tl.load(start, shape=(n, width))
        return self._tl.load(start + self.get((n, width), (by_token, step), (n, width)))


def attention(
    q_ptr: Pointer, k_ptr: Pointer, v_ptr: Pointer, out_ptr: Pointer, *rest: Any, sizes: Attention,
    units: Mapping[PeId, Sequence[Unit]], by: Tiles | None = None, tl: TLContext,
) -> None:  # fmt: skip
    """Write attention to out, each program its units, with the running softmax of flash attention.

    A pointer in `rest` is the mask. Results of units over a part of the kv tokens go to their `places` in out. With
    whole tiles, there is no mask, and all rows and tokens of a tile are computed, used or not.
    """
    cache, waiting, running = Offsets(tl), iter(mine(units, tl)), deque[Iterator[None]]()
    while True:
        while len(running) < (by.at_once if by else 1) and (unit := next(waiting, None)) is not None:
            running.append(_unit(q_ptr, k_ptr, v_ptr, out_ptr, rest, sizes, unit, by, cache, tl))
        if not running:
            return
        current = running.popleft()
        if next(current, running) is None:  # it waits at a tile: the next one's turn
            running.append(current)


def _unit(
    q_ptr: Pointer, k_ptr: Pointer, v_ptr: Pointer, out_ptr: Pointer, rest: Sequence[Any], sizes: Attention, unit: Unit,
    by: Tiles | None, cache: Offsets, tl: TLContext,
) -> Iterator[None]:  # fmt: skip
    """Compute a unit. Whole tiles do not overlap one another: after the scores of each, other units may run."""
    mask, behind = sizes.mask, sizes.behind
    masks = mask is not None and rest[0].dtype.element_ty is bool_
    (head, heads), (token, n), kv_head = unit.heads, unit.tokens, unit.heads[0] // sizes.group
    own, used, tile, most = (unit.heads, unit.tokens), None, 0, 0
    if by:  # of one token, or of one head
        tile, most = by.tokens, by.rows
        own = ((head, most), unit.tokens) if n == 1 else ((head, 1), (token, most))
        used = tl.arange(0, most)[:, None] < heads * n if heads * n < most else None
    width = sizes.width if sizes.latent else sizes.head_dim
    x = tl.load(cache.rows(q_ptr, sizes.q, unit.batch, *own, width), used, None if used is None else 0.0)
    flash = Flash([x], tl, sizes.scale)
    if sizes.latent:
        more = cache.rows(q_ptr + width, sizes.q, unit.batch, *own, sizes.head_dim - width)
        across = tl.trans(tl.load(more))
    start, end = unit.kv[0], sum(unit.kv)
    if behind is not None:
        end = min(end, token + n + behind)
    if tile:
        end = min(sum(unit.kv), start + -(-(end - start) // tile) * tile)
    for at, size in cut_span((start, end - start), tile or tiles(heads, n)[1]):
        seen = bias = None
        if mask is not None:
            by_head, by_token, step = mask.strides
            first = mask.offsets[unit.batch] + head * by_head + token * by_token + at * step
            places = cache.get((size, heads, n), (step, by_head, by_token), (size, heads * n))
            given = tl.load(PointerTile(rest[0] + first, places))
            seen, bias = (given != 0, None) if masks else (None, given.to(tl.float32))
        if behind is not None and at + size - 1 > token + behind:
            rows = np.tile(token + behind + np.arange(own[1][1]), own[0][1])
            before = rows[None, :] >= at + np.arange(max(size, tile))[:, None]
            seen = tl.constant(before & (np.arange(max(size, tile)) < size)[:, None]) != 0
        elif size < tile:
            seen = tl.broadcast_to(tl.arange(0, tile)[:, None] < size, (tile, most))
        kt = cache.load(k_ptr, sizes.k, unit.batch, kv_head, (at, size), width, tile)
        if sizes.latent:
            other = cache.load(k_ptr + width, sizes.k, unit.batch, kv_head, (at, size), sizes.head_dim - width)
            flash.fold(0, kt, kt, seen, bias, tl.dot(other, across))
            continue
        vt = cache.load(v_ptr, sizes.v, unit.batch, kv_head, (at, size), sizes.width, tile)
        flash.fold(0, kt, vt, seen, bias)
        if by and by.at_once > 1:
            yield
            flash.states()
    state = flash.states()[0]
    shape = own[0][1] * own[1][1], sizes.width
    result = tl.zeros(shape, tl.float32) if state is None else state.o / to_column(state.l)
    may_see_nothing = masks or (behind is not None and token + behind < 0)
    if state is not None and may_see_nothing:  # masked rows are 0
        result = tl.where(to_column(state.m) > NEG, result, 0.0)
    if by and by.at_once == 1:
        tl.wait(result)  # the next unit's blocks begin when this one's have ended
    if not unit.places:
        tl.store(cache.rows(out_ptr, sizes.out, unit.batch, *own, sizes.width), result, used)
        return
    assert state is not None, "a part of no kv tokens"
    values, logarithms = np.pad(np.array(unit.places).T, ((0, 0), (0, own[0][1] - heads)))
    tl.store(out_ptr + tl.constant(values[:, None] + np.arange(sizes.width)[None, :]), result, used)
    of_all, row = tl.fma(state.m, sizes.scale, tl.log(state.l)), None if used is None else used.reshape(1, most)
    tl.store(out_ptr + tl.constant(logarithms[None, :]), of_all, row)


def _merge(
    parts_ptr: Pointer, out_ptr: Pointer, parts: int, *, sizes: Attention, merges: Mapping[PeId, Sequence[Merge]],
    tl: TLContext,
) -> None:  # fmt: skip
    """Combine results over parts of the kv tokens into the attention of one query token, each program some heads."""
    cache = Offsets(tl)
    for own in mine(merges, tl):
        logarithms = tl.load(parts_ptr + own.logarithms, shape=(parts, 1))
        values = tl.load(parts_ptr + own.values, shape=(parts, sizes.width))
        weights = tl.exp(logarithms - tl.max(logarithms, axis=0, keep_dims=True))
        result = tl.sum(values * weights, axis=0, keep_dims=True) / tl.sum(weights, axis=0, keep_dims=True)
        tl.store(cache.rows(out_ptr, sizes.out, own.batch, (own.head, 1), (0, 1), sizes.width), result)


def _regroup(
    from_ptr: Pointer, to_ptr: Pointer, *, sizes: Attention, source: Heads, batches: Mapping[PeId, Sequence[int]],
    tl: TLContext,
) -> None:  # fmt: skip
    """Write the elements of q or of out to out, each program those of some sequences."""
    cache, tokens = Offsets(tl), (0, sizes.q_len)
    for batch in mine(batches, tl):
        for heads in cut_span((0, sizes.heads), _ROWS):
            x = tl.load(cache.rows(from_ptr, source, batch, heads, tokens, sizes.width))
            tl.store(cache.rows(to_ptr, sizes.out, batch, heads, tokens, sizes.width), x)


def _tiles_of(config: MachineConfig, sizes: Attention) -> Tiles | None:
    """Return the tiles of the library that the machine names; None if it chooses blocks by estimate."""
    if config.system.attention == "auto" or sizes.mask is not None or sizes.width != sizes.head_dim:
        return None
    if config.system.attention == "flash_2":  # flash_api.cpp and the split-kv kernel of 2.x
        return Tiles(256 if sizes.width <= 64 else 128 if sizes.width <= 128 else 64, 64, 2, packs=False)
    # tile_size.h and heuristics.h of hopper/
    rows = 64 if sizes.width == 128 and sizes.q_len * sizes.group <= 64 else 128
    return Tiles(128 if sizes.width <= 128 else 96 if sizes.width <= 192 else 64, rows, 1, packs=True)


def _parts_in_tiles(config: MachineConfig, sizes: Attention, by: Tiles) -> int:
    """Choose the least number of parts that fills 85 % as much of the waves of units as the best number does."""
    places, units, tiles = by.at_once * config.pes_per_sip, sizes.batch * len(sizes.blocks), -(-sizes.seen // by.tokens)
    if sizes.q_len > 1 or units >= 0.8 * places or (tiles <= _FEW_TILES if by.packs else sizes.group == 1):
        return 1
    counts = sorted({-(-tiles // -(-tiles // n)) for n in range(1, min(128, places, tiles) + 1)})
    filled = {n: units * n / places / -(-units * n // places) for n in counts}
    return next((n for n in counts if filled[n] >= 0.85 * max(filled.values())), 1)


@lru_cache(maxsize=256)
def parts_of(machine: Machine, sizes: Attention) -> int:
    """Choose the number of parts of the kv tokens: the lowest estimate for one query token, else 1."""
    if by := _tiles_of(machine.config, sizes):
        return _parts_in_tiles(machine.config, sizes, by)
    free = machine.config.pes_per_sip // max(1, sizes.batch * len(sizes.blocks))
    if sizes.q_len > 1 or not sizes.seen or free < 2:
        return 1
    counts = {len(nonempty_parts(sizes.seen, n)) for n in (free, *(2**i for i in range(free.bit_length())))}
    return min(sorted(counts), key=lambda parts: _estimate(machine, sizes, parts))


def _estimate(machine: Machine, sizes: Attention, parts: int) -> float:
    """Closed-form time of the attention of one query token, with its kv tokens in `parts` [ns].

    A part waits for its reads, its two products, the softmax, and the writes of its results; a merge reads the
    results of all parts from its own memory, and sums them.
    """
    config, routes, pe = machine.config, routes_of(machine), machine.config.cube.pe
    units, merges = _work(config, sizes, parts)
    tokens, heads, width = -(-sizes.seen // parts), sizes.together, sizes.width
    each, lanes = max(map(len, units.values())), pe.pe_math.lanes_32bit * pe.pe_math.clock_ghz
    products = ((tokens, sizes.head_dim, heads), (heads, tokens, width))
    compute = sum(matrix_ns(config, mkn, sizes.dtype) for mkn in products)
    compute += heads * tokens * (PASSES + pe.pe_math.slow_op_cycles) / lanes
    keys, queries, results = _traffic(config, sizes, parts, units)
    blocks = each * -(-tokens // tiles(heads, 1)[1])
    # A few bytes that many PEs read are in few channels of their memory.
    hbm, nbytes = config.cube.hbm, heads * sizes.head_dim * as_dtype(sizes.dtype).itemsize
    channels = min(hbm.channels, -(-nbytes // hbm.burst_bytes))
    reading = routes.busiest(keys + queries, keys + queries * (hbm.channels / channels))[0]
    reading += 2 * routes.latency_ns(keys) + routes.latency_ns(queries)  # keys and values
    # Keys and values of several blocks are read at the same time: the first block arrives with the last of them.
    first = min(1.0, routes.outstanding_reads / 2 / blocks)
    ns = max(reading, each * compute) + min(reading, each * compute) * first
    if parts > 1:
        own = max(map(len, merges.values())) * parts * (width + 1)
        ns += routes.latency_ns(results) + launch_ns(machine, False) + sizes.host_ns
        ns += own * _PART_BYTES / pe.pe_dma.bw_gbs + 2 * own / lanes
    return ns


def _traffic(
    config: MachineConfig, sizes: Attention, parts: int, units: Mapping[PeId, Sequence[Unit]]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Bytes of keys and values, and of q, that each PE (row) reads from each (column), and of results written to it."""
    total, pes_per_cube, columns = config.pes_per_sip, config.pes_per_cube, _columns(config, sizes, parts)
    own = [(cube * pes_per_cube + pe, x) for (cube, pe), found in units.items() for x in found]
    numbers, item = np.array([number for number, _ in own]), as_dtype(sizes.dtype).itemsize
    keys, queries, results = (np.zeros((total, total)) for _ in range(3))
    for moved, at, width, spans in (
        (keys, sizes.k, sizes.head_dim, [(x.batch, x.heads[0] // sizes.group, *x.kv) for _, x in own]),
        (keys, sizes.v, sizes.width, [(x.batch, x.heads[0] // sizes.group, *x.kv) for _, x in own]),
        (queries, sizes.q, sizes.head_dim * sizes.together, [(x.batch, x.heads[0], 0, 1) for _, x in own]),
    ):
        batch, head, token, n = np.array(spans).T
        first = np.array(at.offsets)[batch] + head * at.strides[0] + token * at.strides[1]
        extent = np.maximum(n * at.strides[1], width) if at.strides[1] >= width else n * 0 + width
        places = np.array([(start, size) for start, size, _ in at.held])
        common = overlaps(np.stack([first, extent], axis=1), places) * (n * width / extent)[:, None]
        for i, (_, _, pes) in enumerate(at.held):
            holders = np.where(np.isin(numbers, pes), numbers, pes[0])
            np.add.at(moved, (numbers, holders), common[:, i] * item)
    for number, unit in own:
        for place, _ in unit.places:
            results[number, place // columns] += sizes.width * _PART_BYTES
    return keys, queries, results


def partial_results(machine: Machine, sizes: Attention) -> dict[str, tuple[Span, DPPolicy]]:
    """Shape and policy of the results of parts, in f32: each PE has those that it merges."""
    parts = parts_of(machine, sizes)
    columns = _columns(machine.config, sizes, parts)
    return {"parts": ((machine.config.pes_per_sip, columns), ON_EACH_PE)} if parts > 1 else {}


def _columns(config: MachineConfig, sizes: Attention, parts: int) -> int:
    return -(-sizes.batch * sizes.heads // config.pes_per_sip) * parts * (sizes.width + 1)


def steps(machine: Machine, sizes: Attention) -> list[KernelLaunch]:
    parts, masks = parts_of(machine, sizes), () if sizes.mask is None else ("mask",)
    units, merges = _work(machine.config, sizes, parts)
    if not units:
        return []
    by = _tiles_of(machine.config, sizes)
    kernel = partial(attention, sizes=sizes, units=units, by=by)
    numbers, to = (sizes.heads, sizes.q_len, sizes.kv_len, sizes.head_dim), "out" if parts == 1 else "parts"
    found = [KernelLaunch(kernel, ("q", "k", "v", to, *masks), numbers, sorted(units), "attention")]
    if parts > 1:
        kernel = partial(_merge, sizes=sizes, merges=merges)
        # FlashAttention-3 prepares its merge during the kernel before (programmatic dependent launch).
        name = "merge" if by and by.packs else "attention_merge"
        found.append(KernelLaunch(kernel, ("parts", "out"), (parts,), sorted(merges), name))
    if by and not by.packs and sizes.q_len == 1 < min(sizes.batch, sizes.kv_heads, sizes.group):
        # It takes the heads of a group for tokens: q and out are copied into that order and back.
        pes = [divmod(i, machine.config.pes_per_cube) for i in range(machine.config.pes_per_sip)]
        batches = dealt(range(sizes.batch), pes)
        before, after = (
            KernelLaunch(
                partial(_regroup, sizes=sizes, source=source, batches=batches), (name, "out"), (), sorted(batches),
                "regroup",
            )
            for name, source in (("q", sizes.q), ("out", sizes.out))
        )  # fmt: skip
        return [before, *found, after]
    return found


@lru_cache(maxsize=64)
def _work(
    config: MachineConfig, sizes: Attention, parts: int
) -> tuple[dict[PeId, list[Unit]], dict[PeId, list[Merge]]]:
    by = _tiles_of(config, sizes)
    if sizes.q_len != 1:
        spans, whole, blocks = _spans(sizes, _ROWS), (0, sizes.kv_len), sizes.blocks
        if by:
            spans, blocks = cut_span((0, sizes.q_len), by.rows), [(head, 1) for head in range(sizes.heads)]
        elif 2 * sizes.batch * len(sizes.blocks) * len(spans) <= config.pes_per_sip:  # half of the PEs would be idle
            spans = _spans(sizes, FEWER_ROWS)
        units = [Unit(b, h, t, whole) for b in range(sizes.batch) for h in blocks for t in spans]
        if by:
            return _in_turn(units, config, sizes, by), {}
        return dealt(units, [divmod(i, config.pes_per_cube) for i in range(config.pes_per_sip)]), {}
    cuts, width = nonempty_parts(sizes.seen, parts) or [(0, 0)], sizes.width
    if by:
        cuts = cut_span((0, sizes.seen), -(-sizes.seen // by.tokens // parts) * by.tokens) or [(0, 0)]
    groups = [(b, heads) for b in range(sizes.batch) for heads in sizes.blocks]
    near = [[sizes.k.holder(b, h[0] // sizes.group, at) for at, _ in cuts] for b, h in groups]
    merges, places = dict[PeId, list[Merge]](), dict[tuple[int, int], list[tuple[int, int]]]()
    if parts > 1:
        single = [(b, h) for b, heads in groups for h in range(*_range(heads))]
        # The heads of a unit are merged near different keys of it.
        wanted = [keys[i * parts // h[1]] for keys, (_, h) in zip(near, groups, strict=True) for i in range(h[1])]
        columns = _columns(config, sizes, parts)
        for (b, head), pe in zip(single, _near(wanted, config), strict=True):
            own = merges.setdefault(divmod(pe, config.pes_per_cube), [])
            first = pe * columns + len(own) * parts * (width + 1)
            own.append(Merge(b, head, first, first + parts * width))
            places[b, head] = [(first + i * width, first + parts * width + i) for i in range(parts)]
    units = [
        Unit(b, heads, (0, 1), kv, tuple(places[b, h][i] for h in range(*_range(heads)) if parts > 1))
        for b, heads in groups for i, kv in enumerate(cuts)
    ]  # fmt: skip
    found: dict[PeId, list[Unit]] = {}
    for unit, pe in zip(units, _near([x for keys in near for x in keys], config), strict=True):
        found.setdefault(divmod(pe, config.pes_per_cube), []).append(unit)
    return found, merges


def _in_turn(units: Sequence[Unit], config: MachineConfig, sizes: Attention, by: Tiles) -> dict[PeId, list[Unit]]:
    """Assign each unit to the place of a PE that is free first, by their numbers of tiles."""
    free, found = [(0, i) for i in range(by.at_once * config.pes_per_sip)], dict[PeId, list[Unit]]()
    for unit in units:
        end, place = heappop(free)
        found.setdefault(divmod(place % config.pes_per_sip, config.pes_per_cube), []).append(unit)
        seen = sizes.kv_len if sizes.behind is None else min(sizes.kv_len, sum(unit.tokens) + sizes.behind)
        heappush(free, (end + max(0, -(-seen // by.tokens)), place))
    return found


def _spans(sizes: Attention, rows: int) -> list[Span]:
    return cut_span((0, sizes.q_len), max(1, rows // sizes.together))


def _range(span: Span) -> Span:
    return span[0], sum(span)


def _near(wanted: Sequence[int], config: MachineConfig) -> list[int]:
    """Distribute units of equal work evenly, each to its wanted PE, else to one in that cube, if one is free."""
    each, load = config.pes_per_cube, [0] * config.pes_per_sip
    most, found = -(-len(wanted) // len(load)), []
    for pe in wanted:
        cube = range(pe // each * each, (pe // each + 1) * each)
        best = min(cube, key=lambda x: (load[x], x != pe))
        if load[best] >= most:
            best = min(range(len(load)), key=load.__getitem__)
        load[best] += 1
        found.append(best)
    return found
