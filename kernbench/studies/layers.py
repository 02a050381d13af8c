"""Layers of networks over a whole SIP: where the operands are, and what that costs.

A (inputs) is cut by rows over all PEs, B (weights) by columns, so that each weight exists once; C (outputs) is placed
as the placement says. Split-K cuts both by K instead; a second launch adds the partial sums. All reads of other PEs'
memory are inside the makespan, which runs from the launch leaving the host to the last completion coming back.

| placement | C | a PE reads from other PEs |
|---|---|---|
| rows | by rows over PEs | all of B |
| columns | by columns over PEs | all of A |
| 2-D | by columns over cubes, by rows over the PEs of each | its rows of A, and B of its cube |
| split-K | by elements over PEs | the partial sums of its elements of C |

An operand may be stored transposed, A as [k, m], B as [n, k]: each PE holds the same elements of it.
"""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from importlib.resources import files
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np

import kernbench.studies.layers_report as report
from kernbench._dtypes import as_dtype
from kernbench._units import FLIT_BYTES
from kernbench.analysis._records import LinkTable
from kernbench.analysis._roofline import macs_per_ns, matrix_ns
from kernbench.analysis.result import Result, span
from kernbench.analysis.utilization import hottest, pe_window, shares
from kernbench.analysis.why import attribution
from kernbench.components.builtin.pe_scheduler import cuts
from kernbench.config import MachineConfig
from kernbench.errors import ArgumentError, ConfigError, VerificationError
from kernbench.kernels.partition import chunk
from kernbench.kernels.sharded_gemm import (
    column_blocks,
    columns_gemm,
    fitting,
    grid_gemm,
    rows_gemm,
    split_k_gemm,
    sum_in_cubes,
    sum_over_cubes,
)
from kernbench.policy._routing import reverse, router_of
from kernbench.policy.address.allocator import AddressConfig
from kernbench.policy.placement.dp import DPPolicy, resolve_dp_policy
from kernbench.runtime_api.bench_runner import operand, run_program
from kernbench.sim_engine._op_log import link_table
from kernbench.studies.study import SESSION_US, Finding, Parameter, Study, Tables, table
from kernbench.sweeps._keys import Row
from kernbench.sweeps._measure import counters
from kernbench.topology import _naming as naming
from kernbench.topology.builder import Machine
from kernbench.viz.charts import Column

if TYPE_CHECKING:
    from kernbench.runtime_api.context import RuntimeContext

LISTS = {
    "deepbench": "deepbench_gemm_inference_device.csv",
    "gpt2": "scalesim_gemm_gpt2.csv",
    "vit-s": "scalesim_gemm_vit_s.csv",
    "llama3-70b": "llama3_70b_gemms.csv",
}


@dataclass(frozen=True, slots=True)
class Layer:
    """One product C[m, n] = A[m, k] B[k, n] of a list."""

    list: str
    name: str
    m: int
    n: int
    k: int
    tp: int = 1

    @property
    def label(self) -> str:
        """Return the name as figures print it."""
        return f"{self.list} {self.name}".strip()

    def product(self, placement: str, dtype: str) -> Product:
        """Return the product in a placement."""
        return Product(self.m, self.n, self.k, placement, dtype)


def layers(name: str) -> list[Layer]:
    """Return the layers of a list, in its order: those whose names have all words that follow the name of the list.

    >>> layers("gpt2 QKT")
    [Layer(list='gpt2', name='QKT', m=1024, n=1024, k=64, tp=1)]
    """
    title, *narrowed = name.split()
    if title not in LISTS:
        raise ArgumentError(f"layer list {title!r} is unknown; known: {', '.join(LISTS)}")
    found = [_layer(title, row) for row in _read(title)[1]]
    found = [layer for layer in found if set(narrowed) <= set(layer.name.split())]
    if not found:
        raise ArgumentError(f"layer list {name!r} has no layer: leave out {' or '.join(narrowed)}")
    return found


def select(names: Sequence[str]) -> list[Layer]:
    """Return the layers of several lists, as for `layers`, none twice."""
    return list(dict.fromkeys(layer for name in names for layer in layers(name)))


def source(name: str) -> str:
    """Return where a list is from, as its file says."""
    return _read(name)[0]


def _read(name: str) -> tuple[str, list[dict[str, str]]]:
    """Return the comment of a list's file, and its rows."""
    lines = (files("kernbench.studies") / "data" / LISTS[name]).read_text(encoding="utf-8").splitlines()
    comment = " ".join(line.lstrip("# ") for line in lines if line.startswith("#"))
    return comment, list(csv.DictReader(line for line in lines if not line.startswith("#")))


def _layer(name: str, row: dict[str, str]) -> Layer:
    m, n, k = (int(row[size]) for size in "mnk")
    title = row.get("layer") or f"{m}x{k}x{n}"
    if "gemm" in row:
        title = f"{row['gemm'].removesuffix('_proj')} tp{row['tp']} m{m}"
    return Layer(name, title, m, n, k, int(row.get("tp", 1)))


_ROWS = DPPolicy(cube="row_wise", pe="row_wise")
_COLUMNS = DPPolicy(cube="column_wise", pe="column_wise")
_GRID = DPPolicy(cube="column_wise", pe="row_wise")
_IN_CUBES = DPPolicy(cube="row_wise", pe="column_wise")

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

Stored = tuple[tuple[int, int], DPPolicy]  # shape and placement of a tensor
Part = tuple[int, list[int]]  # rows of C, and the widths of its blocks of columns


@dataclass(frozen=True, slots=True)
class Product:
    """C[m, n] = A[m, k] B[k, n] over all PEs of a SIP; A and B may be stored transposed."""

    m: int = 512
    n: int = 512
    k: int = 512
    placement: str = "2-D"
    dtype: str = "f16"
    trans_a: bool = False
    trans_b: bool = False

    @property
    def itemsize(self) -> int:
        """Return the bytes of an element."""
        return as_dtype(self.dtype).itemsize

    @property
    def stored(self) -> list[Stored]:
        """Return A, B and C as they are stored."""
        m, n, k = self.m, self.n, self.k
        at_a, at_b, at_c = PLACEMENTS[self.placement]
        return [
            ((k, m), TRANSPOSED[at_a]) if self.trans_a else ((m, k), at_a),
            ((n, k), TRANSPOSED[at_b]) if self.trans_b else ((k, n), at_b),
            ((m * n, 1) if self.placement == SPLIT_K else (m, n), at_c),
        ]

    def partial_sums(self, config: MachineConfig) -> list[Stored]:
        """Return the partial sums of split-K as they are stored: those of each PE, and those of each cube."""
        if self.placement != SPLIT_K:
            return []
        size = self.m * self.n
        return [((config.pes_per_sip, size), _ROWS), ((config.cubes_per_sip, size), _IN_CUBES)]


@dataclass(frozen=True, slots=True)
class Work:
    """Counts of one product."""

    tiles: int
    busiest_tiles: int
    busiest_ns: float
    pes: int
    remote_bytes: int
    busiest_remote_bytes: int
    slice_bytes: int
    issued: float
    bound_ns: float
    limiter: str


def spans(n: int, config: MachineConfig) -> np.ndarray:
    """Return the part of `n` of every PE of a SIP as (start, size), cut over cubes and then over the PEs of each."""
    return np.array(
        [
            (start + inner, size)
            for cube in range(config.cubes_per_sip)
            for start, part in [chunk(n, config.cubes_per_sip, cube)]
            for inner, size in [chunk(part, config.pes_per_cube, pe) for pe in range(config.pes_per_cube)]
        ]
    )


def spans_in_cube(n: int, config: MachineConfig) -> np.ndarray:
    """Return the part of `n` of every PE of a SIP as (start, size), where each cube has all of it."""
    pes = config.pes_per_cube
    return np.array([chunk(n, pes, i % pes) for i in range(config.pes_per_sip)])


def room(config: MachineConfig) -> int:
    """Return the bytes of TCM for one operand: A, and two blocks of B."""
    return AddressConfig.of(config).heap_bytes // 3


def parts(config: MachineConfig, product: Product) -> list[Part]:
    """Return what every PE computes; in split-K, of the sum over its part of K."""
    rows, columns = (spans(size, config)[:, 1].tolist() for size in (product.m, product.n))
    fits = fitting(product.k, product.itemsize, room(config))

    def read(widths: list[int]) -> list[int]:
        return [width for _, width, _ in column_blocks(widths, fits, product.trans_b)]

    if product.placement == SPLIT_K:
        return [(product.m if size else 0, [product.n]) for size in spans(product.k, config)[:, 1]]
    if product.placement == "columns":
        return [(product.m, read([size])) for size in columns]
    if product.placement == "rows":
        blocks = read(columns)
        return [(size, blocks) for size in rows]
    pes = config.pes_per_cube
    cubes = [read(columns[at : at + pes]) for at in range(0, len(columns), pes)]
    in_cube = spans_in_cube(product.m, config)[:, 1].tolist()
    return [(size, cubes[i // pes]) for i, size in enumerate(in_cube)]


def reads(config: MachineConfig, product: Product) -> list[np.ndarray]:
    """Return for each launch the bytes that every PE (row) reads from and writes to every PE's memory (column)."""
    m, n, k, item = product.m, product.n, product.k, product.itemsize
    pes, size = config.pes_per_sip, m * n
    rows, columns, depths = (spans(size, config) for size in (m, n, k))
    own = np.eye(pes, dtype=np.int64)
    cube = np.arange(pes) // config.pes_per_cube
    same_cube = cube[:, None] == cube[None, :]
    if product.placement == SPLIT_K:
        holds = depths[:, 1] > 0
        cubes = np.array([holds[cube == c].any() for c in range(config.cubes_per_sip)])
        in_cube, shares = spans_in_cube(size, config), spans(size, config)
        return [
            own * ((m + n) * depths[:, 1] * item + size * PART_BYTES * holds)[:, None],
            (same_cube & holds[None, :]) * in_cube[:, 1:] * PART_BYTES + own * in_cube[:, 1:] * PART_BYTES,
            _overlaps(shares, in_cube) * cubes[cube][None, :] * PART_BYTES + own * shares[:, 1:] * item,
        ]
    computed = np.array([(height, sum(widths)) for height, widths in parts(config, product)])
    if product.placement == "columns":
        again = cuts(m, config.cube.pe.pe_gemm.tile.m)
        read = np.broadcast_to(rows[:, 1] * k * item, (pes, pes)) + own * (again * columns[:, 1] * k * item)[:, None]
    elif product.placement == "rows":
        read = np.broadcast_to(columns[:, 1] * k * item, (pes, pes)) + own * (rows[:, 1] * k * item)[:, None]
    else:
        read = _overlaps(spans_in_cube(m, config), rows) * k * item + same_cube * columns[:, 1] * k * item
    written = computed.prod(axis=1)
    return [(written > 0)[:, None] * (read + own * (written * item)[:, None])]


def _overlaps(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return how much each span (start, size) of `a` has in common with each of `b`."""
    low = np.maximum(a[:, None, 0], b[None, :, 0])
    high = np.minimum(a.sum(axis=1)[:, None], b.sum(axis=1)[None, :])
    common: np.ndarray = np.maximum(0, high - low)
    return common


def work(config: MachineConfig, product: Product) -> Work:
    """Return the counts of a product."""
    tile, split = config.cube.pe.pe_gemm.tile, product.placement == SPLIT_K
    computed = parts(config, product)
    depths = spans(product.k, config)[:, 1].tolist() if split else [product.k] * len(computed)
    tiles = [
        cuts(rows, tile.m) * cuts(depth, tile.k) * sum(cuts(w, tile.n) for w in widths) if rows and widths else 0
        for (rows, widths), depth in zip(computed, depths, strict=True)
    ]
    busiest_ns = max(
        sum(matrix_ns(config, (rows, depth, width), product.dtype) for width in widths) if rows else 0.0
        for (rows, widths), depth in zip(computed, depths, strict=True)
    )
    moved = np.sum(reads(config, product), axis=0)
    remote = moved.sum(axis=1) - moved.diagonal()
    tile_macs = tile.m * tile.k * tile.n
    bounds = {
        "the matrix engine of the busiest PE": busiest_ns,
        "the link of the PE that reads most from others": int(remote.max()) / config.cube.pe.pe_dma.bw_gbs,
    }
    limiter = max(bounds, key=lambda name: bounds[name])
    return Work(
        tiles=sum(tiles),
        busiest_tiles=max(tiles),
        busiest_ns=busiest_ns,
        pes=sum(1 for x in tiles if x),
        remote_bytes=int(remote.sum()),
        busiest_remote_bytes=int(remote.max()),
        slice_bytes=_fullest(config, product),
        issued=product.m * product.n * product.k / (sum(tiles) * tile_macs),
        bound_ns=sum(bounds.values()) if split else bounds[limiter],
        limiter=limiter,
    )


def _fullest(config: MachineConfig, product: Product) -> int:
    """Return the bytes of all tensors in the slice that holds most of them."""
    tensors = [(*stored, product.itemsize) for stored in product.stored]
    tensors += [(*stored, PART_BYTES) for stored in product.partial_sums(config)]
    held: Counter[tuple[int, int]] = Counter()
    for shape, policy, itemsize in tensors:
        for shard in resolve_dp_policy(
            policy,
            shape=shape,
            itemsize=itemsize,
            num_pe=config.pes_per_cube,
            num_cubes=config.cubes_per_sip,
            target_sip=0,
        ):
            held[shard.cube, shard.pe] += shard.nbytes
    return max(held.values())


def closed_form(machine: Machine, product: Product) -> tuple[float, str]:
    """Return the time of a product by closed form [ns], and what takes most of it.

    Each launch takes as long as an empty one, the busiest link, memory or matrix engine, and the latency of its reads.
    """
    config, routes = machine.config, _routes(machine)
    busiest_ns = work(config, product).busiest_ns
    parts: dict[str, float] = defaultdict(float)
    for nbytes in reads(config, product):
        ns, resource = routes.busiest(nbytes)
        parts["matrix engine" if busiest_ns and busiest_ns >= ns else resource] += max(ns, busiest_ns)
        parts["latency of reads"] += routes.latency_ns(nbytes)
        parts["launch"] += _launch_ns(machine)
        busiest_ns = 0.0  # only the first launch multiplies
    total_ns, streamed_ns = sum(parts.values()), _streamed_ns(machine, product)
    if streamed_ns > total_ns:
        return streamed_ns, "operands streamed for each tile"
    return total_ns, max(parts, key=lambda part: parts[part])


def _streamed_ns(machine: Machine, product: Product) -> float:
    """Return how long links and memories take for rows of A that do not fit into TCM, in the placement 2-D.

    A PE reads them from the PEs that hold them once for each column of tiles; the closed form counts them once.
    """
    config, k, item = machine.config, product.k, product.itemsize
    rows, held = spans_in_cube(product.m, config), spans(product.m, config)
    if product.placement != "2-D" or product.trans_a or rows[:, 1].max() <= fitting(k, item, room(config)):
        return 0.0
    tile = config.cube.pe.pe_gemm.tile
    times = np.array([sum(cuts(width, tile.n) for width in widths) for _, widths in parts(config, product)])
    low = np.maximum(rows[:, None, 0], held[None, :, 0])
    high = np.minimum(rows.sum(axis=1)[:, None], held.sum(axis=1)[None, :])
    read = np.maximum(0, high - low) * times[:, None] * k * item
    ns: float = _routes(machine).busiest(read)[0]
    return ns


class _Routes:
    """The links and memories that reads between the PEs of a SIP use."""

    def __init__(self, machine: Machine) -> None:
        config, graph, router = machine.config, machine.graph, router_of(machine.graph)
        each = config.pes_per_cube
        places = [divmod(i, each) for i in range(config.pes_per_sip)]
        number: dict[tuple[str, str], int] = {}
        # For each pair of PEs, the links of the request and those of the data.
        asking: tuple[list[int], list[int]] = ([], [])
        carrying: tuple[list[int], list[int]] = ([], [])
        for i, reader in enumerate(places):
            for j, holder in enumerate(places):
                path = router.path(naming.pe_dma(0, *reader), naming.hbm(0, *holder))
                for way, (pairs, links) in ((path, asking), (reverse(path), carrying)):
                    used = [number.setdefault(link, len(number)) for link in pairwise(way)]
                    pairs += [i * len(places) + j] * len(used)
                    links += used
        edges = [graph.edge(*link) for link in number]
        latency_ps = np.array([edge.latency_ps for edge in edges])
        ways = np.bincount(asking[0], weights=latency_ps[asking[1]], minlength=len(places) ** 2)
        self._pairs, self._links = map(np.array, carrying)
        self._names = [f"{src}->{dst}" for src, dst in number]
        self._bw_gbs = np.array([edge.bw_gbs for edge in edges])
        hbm = config.cube.hbm
        there_and_back = 2 * ways.reshape(len(places), -1) / 1000
        self._latency_ns = (there_and_back + hbm.access_ns) / config.cube.pe.pe_dma.outstanding_reads
        self._slice_gbs = hbm.slice_gbs

    def busiest(self, nbytes: np.ndarray) -> tuple[float, str]:
        """Return the time of the busiest link or memory [ns], and its kind."""
        carried = np.bincount(self._links, weights=nbytes.reshape(-1)[self._pairs], minlength=len(self._names))
        ns = carried / self._bw_gbs
        link, served = int(ns.argmax()), float(nbytes.sum(axis=0).max() / self._slice_gbs)
        if served >= ns[link]:
            return served, "HBM slice"
        return float(ns[link]), attribution("serialization", self._names[link]).group

    def latency_ns(self, nbytes: np.ndarray) -> float:
        """Return the latency of one read for each pair of PEs [ns], of the PE that waits longest."""
        return float(((nbytes > 0) * self._latency_ns).sum(axis=1).max())


@lru_cache(maxsize=4)
def _routes(machine: Machine) -> _Routes:
    return _Routes(machine)


@lru_cache(maxsize=4)
def _launch_ns(machine: Machine) -> float:
    """Return the time of a launch on all PEs that does nothing, simulated."""

    def program(torch: RuntimeContext) -> None:
        everywhere = DPPolicy(cube="row_wise", pe="row_wise")
        x = torch.empty((machine.config.pes_per_sip, 1), dtype="f16", device="ahbm", dp=everywhere)
        torch.ahbm.synchronize()
        torch.launch("nothing", _nothing, x)

    return simulated_ns(run_program(machine, program))


def _nothing(x_ptr: object, *, tl: object) -> None:
    pass


def simulated_ns(result: Result) -> float:
    """Return the time from the first launch leaving the host to the last completion coming back."""
    start, end = span(result.launches)
    return (end - start) / 1000


_FLIT_US = {"rows": 60, "columns": 25, "2-D": 8, SPLIT_K: 20}  # host time of a flit read from another PE, measured
_TILE_US = 5
_KIND = {name: kind for kind, name in LINK_KINDS.items()}
_KERNELS: dict[str, Callable[..., None]] = {
    "rows": rows_gemm,
    "columns": columns_gemm,
    "2-D": grid_gemm,
    SPLIT_K: split_k_gemm,
}

Placement = Annotated[Literal["rows", "columns", "2-D", "split-K"], "of C, and with it what PEs read from each other"]
Dtype = Annotated[Literal["f16", "bf16"], "type of A, B and C"]


class LayersStudy(Study):
    """C = A @ B over all PEs of a SIP: layers of published networks in three placements."""

    name, title, page = "layers", "Layers over a whole SIP", "layers.md"
    parameters: ClassVar = {
        "layers": Parameter(["vit-s", "gpt2"], "lists of layers, or some of a list: `gpt2 QKT`, `llama3-70b tp8 m128`"),
        "placements": Parameter(["rows", "columns", "2-D"], "placements of C; there is split-K, too", known=PLACEMENTS),
        "dtype": Parameter("f16", "type of A, B and C"),
    }
    columns: ClassVar = report.COLUMNS | {
        f"busy_{kind}": Column(f"busiest {name}") for kind, name in LINK_KINDS.items()
    }
    method, charts = report.METHOD, report.CHARTS

    def check(self, machine: Machine, *, layers: Sequence[str], **_: Any) -> list[str]:
        select(layers)
        return []

    def points(self, machine: Machine, *, layers: Sequence[str], placements: Sequence[str], dtype: str) -> list[Row]:
        chosen = select(layers)
        # The links of the largest of those that are simulated in every placement are kept.
        fitting = [x for x in chosen if not any(obstacle(machine, x.product(p, dtype)) for p in placements)]
        drawn = max(fitting, key=lambda layer: layer.m * layer.n * layer.k, default=None)
        return [
            {**asdict(layer), "placement": placement, "dtype": dtype} | ({"links": True} if layer == drawn else {})
            for layer in chosen
            for placement in placements
        ]

    def work(
        self, machine: Machine, *, list: str = "", name: str = "", tp: int = 1, links: bool = False, **point: Any
    ) -> float:
        return _host_us(machine, Product(**point))

    def simulate(
        self,
        machine: Machine,
        *,
        list: Annotated[str, "list that the layer is from"] = "",
        name: Annotated[str, "name in that list"] = "",
        tp: Annotated[int, "SIPs that share the layer"] = 1,
        links: Annotated[bool, "keep how busy each link is"] = False,
        **point: Any,
    ) -> Row:
        product = Product(**point)
        m, n, k = product.m, product.n, product.k
        layer = Layer(list, name or f"{m}x{k}x{n}", m, n, k, tp)
        out: Row = {
            **asdict(layer), "layer": layer.label, "shape": f"{m}x{k}x{n}", "placement": product.placement,
            "dtype": product.dtype, "trans_a": product.trans_a, "trans_b": product.trans_b,
            **asdict(work(machine.config, product)), "left_out": obstacle(machine, product),
        }  # fmt: skip
        return out if out["left_out"] else out | _measured(machine, product, links)

    def program(
        self,
        torch: RuntimeContext,
        *,
        m: Annotated[int, "rows of A and C"] = 512,
        n: Annotated[int, "columns of B and C"] = 512,
        k: Annotated[int, "columns of A, rows of B"] = 512,
        placement: Placement = "2-D",
        dtype: Dtype = "f16",
        trans_a: Annotated[bool, "A is stored as [k, m]"] = False,
        trans_b: Annotated[bool, "B is stored as [n, k]"] = False,
    ) -> str:
        """C = A @ B over all PEs of a SIP."""
        product = Product(m, n, k, placement, dtype, trans_a, trans_b)
        multiply(torch, product)
        asked = work(torch.engine.machine.config, product)
        return f"no run is faster than {asked.bound_ns:,.0f} ns ({asked.limiter})"

    def cost(self, machine: Machine, data: bool, **point: Any) -> float:
        product = Product(**point)
        fault = obstacle(machine, product)
        if fault:
            raise ConfigError([f"k = {product.k}: {fault}"])
        values = 5e-5 * product.m * product.n * product.k if data else 0.0
        return SESSION_US + _host_us(machine, product) + values

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        return report.findings(rows)

    def tables(self, rows: Sequence[Row]) -> Tables:
        here = {row["layer"] for row in rows}
        lists = []
        for name in dict.fromkeys(row["list"] for row in rows if row["list"]):
            known = [layer.label for layer in layers(name)]
            lists.append(
                {"list": name, "layers": f"{len(here.intersection(known))} of {len(known)}", "source": source(name)}
            )
        return report.tables(rows) | {"Lists": table(lists)}


def _host_us(machine: Machine, product: Product) -> float:
    asked = work(machine.config, product)
    return _FLIT_US[product.placement] * asked.remote_bytes / FLIT_BYTES + _TILE_US * asked.tiles


def obstacle(machine: Machine, product: Product) -> str:
    """Return why a product is not simulated, or nothing."""
    asked, config = work(machine.config, product).slice_bytes, machine.config
    room = config.cube.hbm.slice_bytes(config.pes_per_cube)
    return f"does not fit: {asked:,} B in one HBM slice of {room:,} B" if asked > room else ""


def run(
    machine: Machine, product: Product, *, data: bool = False, log: str = "operation", tie_seed: int | None = None
) -> tuple[Result, LinkTable]:
    """Run a product on SIP 0; return its result, and the traffic of its launches alone."""
    traffic: list[LinkTable] = []

    def program(torch: RuntimeContext) -> None:
        traffic.append(multiply(torch, product))

    result = run_program(machine, program, data=data, log=log, tie_seed=tie_seed)
    return result, traffic[0]


def multiply(torch: RuntimeContext, product: Product) -> LinkTable:
    """Run a product over the current SIP and return the traffic of its launches."""
    m, n, k, placement = product.m, product.n, product.k, product.placement
    config, kind = torch.engine.machine.config, as_dtype(product.dtype)
    *stored, (c_size, at_c) = product.stored
    (a, a_values), (b, b_values) = (
        operand(torch, name, size, kind, at) for name, (size, at) in zip("ab", stored, strict=True)
    )
    c = torch.empty(c_size, dtype=kind, dp=at_c, device="ahbm", name="c")
    sums = [
        torch.empty(size, dtype="f32", dp=at, device="ahbm", name=name)
        for name, (size, at) in zip(("sums", "sums of cubes"), product.partial_sums(config), strict=False)
    ]
    torch.ahbm.synchronize()
    before = link_table(torch.engine)
    name = f"{placement} {m}x{k}x{n}"
    kernel, *more = _KERNELS[placement], m, k, n
    if placement == "columns":
        more.append(config.cube.pe.pe_gemm.tile.m)
    # Which operand is transposed is known when a kernel is compiled: it is not an argument of the launch.
    compiled = partial(kernel, trans_a=product.trans_a, trans_b=product.trans_b)
    torch.launch(name, compiled, a, b, sums[0] if sums else c, *more, room(config))
    if sums:
        holders = [i for i, size in enumerate(spans(k, config)[:, 1]) if size]
        cubes = sorted({i // config.pes_per_cube for i in holders})
        torch.launch(name, partial(sum_in_cubes, holders=holders), *sums, m * n)
        torch.launch(name, partial(sum_over_cubes, cubes=cubes), sums[1], c, m * n)
    torch.ahbm.synchronize()
    traffic = _difference(before, link_table(torch.engine))
    if a_values is not None and b_values is not None:
        expected = (a_values.T if product.trans_a else a_values) @ (b_values.T if product.trans_b else b_values)
        got = in_order(config, product, c.numpy().reshape(m, n)).astype(np.float64)
        error = float(np.abs(got - expected).max())
        if error > 0.01 * float(np.abs(expected).max()):
            raise VerificationError(f"{name}: C differs from numpy's product by up to {error:g}")
    return traffic


def in_order(config: MachineConfig, product: Product, c: np.ndarray) -> np.ndarray:
    """Return C as a matrix, from what its PEs hold: each its part, block of columns after block of columns."""
    if product.placement == SPLIT_K:
        return c
    out, nothing = np.empty_like(c), np.zeros(config.pes_per_sip, np.int64)
    cube_columns = np.array([chunk(product.n, config.cubes_per_sip, i)[0] for i in range(config.cubes_per_sip)])
    first_row, first_column = {
        "rows": (spans(product.m, config)[:, 0], nothing),
        "columns": (nothing, spans(product.n, config)[:, 0]),
        "2-D": (spans_in_cube(product.m, config)[:, 0], cube_columns.repeat(config.pes_per_cube)),
    }[product.placement]
    for (rows, widths), start, column in zip(parts(config, product), first_row, first_column, strict=True):
        flat, taken = c[start : start + rows, column : column + sum(widths)].reshape(-1), 0
        for width in widths:
            block = flat[taken : taken + rows * width].reshape(rows, width)
            out[start : start + rows, column : column + width] = block
            column, taken = column + width, taken + rows * width
    return out


def _measured(machine: Machine, product: Product, keep: bool) -> Row:
    """Return what the study keeps of a run of a product; with `keep`, also how busy each link was."""
    result, traffic = run(machine, product)
    begin, done = span(result.launches)
    makespan = (done - begin) / 1000
    start, end = pe_window(result.records)
    flops = 2 * product.m * product.n * product.k
    peak = 2 * macs_per_ns(machine.config, product.dtype) * machine.config.pes_per_sip
    counts = counters(machine.config, traffic, result.records.busy_by_component(), product.dtype)
    share = shares(traffic, done - begin)
    first = hottest(share)
    busiest = dict.fromkeys(LINK_KINDS, 0.0)
    for link, busy in share.items():
        kind = _KIND.get(attribution("serialization", link).group)
        if kind is not None:
            busiest[kind] = max(busiest[kind], busy)
    links = {"links": {link: round(value, 4) for link, value in share.items() if value >= VISIBLE}} if keep else {}
    return {
        "makespan_ns": makespan,
        "pe_window_ns": (end - start) / 1000,
        "utilization": flops / (peak * makespan),
        "gflops": flops / makespan,
        **counts,
        "intensity": flops / counts["hbm_bytes"],
        "hottest_link": first,
        "hottest_busy": share[first],
        **{f"busy_{kind}": busy for kind, busy in busiest.items()},
        **links,
    }


def _difference(before: LinkTable, after: LinkTable) -> LinkTable:
    """Return the traffic between two readings of the links."""
    seen = {name: (int(before.nbytes[i]), int(before.busy_ps[i])) for i, name in enumerate(before.names)}
    old = np.array([seen.get(name, (0, 0)) for name in after.names], np.int64).reshape(-1, 2)
    return LinkTable(after.names, after.nbytes - old[:, 0], after.busy_ps - old[:, 1], after.bw_gbs)
