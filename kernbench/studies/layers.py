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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np

import kernbench.studies.layers_report as report
from kernbench.analysis.records import LinkTable
from kernbench.analysis.result import Result, span
from kernbench.analysis.roofline import macs_per_ns
from kernbench.analysis.utilization import hottest, pe_window, shares
from kernbench.analysis.why import attribution
from kernbench.components.builtin.pe_scheduler import cuts
from kernbench.config import MachineConfig
from kernbench.dtypes import as_dtype
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
from kernbench.policy.address.allocator import AddressConfig
from kernbench.policy.placement.dp import DPPolicy, resolve_dp_policy
from kernbench.runtime_api.bench_runner import operand, run_program
from kernbench.sim_engine.op_log import link_table
from kernbench.studies.study import SESSION_US, Finding, Parameter, Study
from kernbench.sweeps.keys import Row
from kernbench.sweeps.measure import counters
from kernbench.topology.builder import Machine
from kernbench.units import FLIT_BYTES
from kernbench.viz.charts import Column

if TYPE_CHECKING:
    import pandas as pd

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


def layers(name: str) -> list[Layer]:
    """Return the layers of a list, in its order.

    Parameters
    ----------
    name : str
        "deepbench" (its inference set for devices), "gpt2", "vit-s" or "llama3-70b", and words that a layer's name
        must have: "llama3-70b tp8 m128" is one SIP of 8 with 128 tokens in flight, "vit-s L0" one layer.

    Raises
    ------
    ArgumentError
        If the list does not exist, or does not contain the layer.

    Examples
    --------
    >>> layers("gpt2")[0]
    Layer(list='gpt2', name='QKT', m=1024, n=1024, k=64, tp=1)
    """
    title, *narrowed = name.split()
    if title not in LISTS:
        raise ArgumentError(f"layer list {title!r} is unknown; known: {', '.join(LISTS)}")
    found = [_layer(title, row) for row in _rows(LISTS[title])]
    found = [layer for layer in found if set(narrowed) <= set(layer.name.split())]
    if not found:
        raise ArgumentError(f"layer list {name!r} has no layer: leave out {' or '.join(narrowed)}")
    return found


def select(names: Sequence[str]) -> list[Layer]:
    """Return the layers of several lists, as for `layers`, none twice."""
    return list(dict.fromkeys(layer for name in names for layer in layers(name)))


def source(name: str) -> str:
    """Return where a list is from, as its file says."""
    lines = _text(LISTS[name]).splitlines()
    return " ".join(line.lstrip("# ") for line in lines if line.startswith("#"))


def _layer(name: str, row: dict[str, str]) -> Layer:
    m, n, k, tp = int(row["m"]), int(row["n"]), int(row["k"]), int(row.get("tp", 1))
    title = row.get("layer") or f"{m}x{k}x{n}"
    if "gemm" in row:
        title = f"{row['gemm'].removesuffix('_proj')} tp{tp} m{m}"
    return Layer(name, title, m, n, k, tp)


def _rows(file: str) -> list[dict[str, str]]:
    return list(csv.DictReader(line for line in _text(file).splitlines() if not line.startswith("#")))


def _text(file: str) -> str:
    return (files("kernbench.studies") / "data" / file).read_text(encoding="utf-8")


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
    """Counts of one product in one placement."""

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


_FLIT_US = {"rows": 60, "columns": 25, "2-D": 8, "split-K": 20}  # host time of a flit read from another PE, measured
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
        "placements": Parameter(["rows", "columns", "2-D"], "placements of C; there is split-K, too"),
        "dtype": Parameter("f16", "type of A, B and C"),
    }
    columns: ClassVar = report.COLUMNS | {
        f"busy_{kind}": Column(f"busiest {name}") for kind, name in LINK_KINDS.items()
    }
    method, charts = report.METHOD, report.CHARTS

    def check(self, machine: Machine, *, layers: Sequence[str], placements: Sequence[str], dtype: str) -> list[str]:
        select(layers)
        return [
            f"placements: {name!r} is unknown; known: {', '.join(PLACEMENTS)}"
            for name in placements
            if name not in PLACEMENTS
        ]

    def points(self, machine: Machine, *, layers: Sequence[str], placements: Sequence[str], dtype: str) -> list[Row]:
        chosen = select(layers)
        drawn = _largest(machine, chosen, placements, dtype)
        return [
            {**asdict(layer), "placement": placement, "dtype": dtype} | ({"links": True} if layer == drawn else {})
            for layer in chosen
            for placement in placements
        ]

    def work(
        self, machine: Machine, *, placement: str, m: int, n: int, k: int, dtype: str, trans_b: bool = False, **_: Any
    ) -> float:
        return _host_us(placement, work(machine.config, placement, (m, n, k), dtype, trans_b=trans_b))

    def simulate(
        self,
        machine: Machine,
        *,
        m: Annotated[int, "rows of A and C"] = 512,
        n: Annotated[int, "columns of B and C"] = 512,
        k: Annotated[int, "columns of A, rows of B"] = 512,
        placement: Placement = "2-D",
        dtype: Dtype = "f16",
        trans_a: Annotated[bool, "A is stored as [k, m]"] = False,
        trans_b: Annotated[bool, "B is stored as [n, k]"] = False,
        list: Annotated[str, "list that the layer is from"] = "",
        name: Annotated[str, "name in that list"] = "",
        tp: Annotated[int, "SIPs that share the layer"] = 1,
        links: Annotated[bool, "keep how busy each link is"] = False,
    ) -> Row:
        layer = Layer(list, name or f"{m}x{k}x{n}", m, n, k, tp)
        asked = work(machine.config, placement, (m, n, k), dtype, trans_a, trans_b)
        out: Row = {
            **asdict(layer), "layer": layer.label, "shape": f"{m}x{k}x{n}", "placement": placement, "dtype": dtype,
            "trans_a": trans_a, "trans_b": trans_b, **asdict(asked), "left_out": obstacle(machine, asked),
        }  # fmt: skip
        if out["left_out"]:
            return out
        result, traffic = run(machine, (m, n, k), placement, dtype=dtype, trans_a=trans_a, trans_b=trans_b)
        return out | _measured(machine, result, traffic, (m, n, k), dtype, links)

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
        product(torch, (m, n, k), placement, dtype, trans_a, trans_b)
        asked = work(torch.engine.machine.config, placement, (m, n, k), dtype, trans_a, trans_b)
        return f"no run is faster than {asked.bound_ns:,.0f} ns ({asked.limiter})"

    def cost(
        self,
        machine: Machine,
        data: bool,
        *,
        m: int,
        n: int,
        k: int,
        placement: str,
        dtype: str,
        trans_a: bool = False,
        trans_b: bool = False,
    ) -> float:
        asked = work(machine.config, placement, (m, n, k), dtype, trans_a, trans_b)
        fault = obstacle(machine, asked)
        if fault:
            raise ConfigError([f"k = {k}: {fault}"])
        return SESSION_US + _host_us(placement, asked) + (5e-5 * m * n * k if data else 0.0)

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        return report.findings(rows)

    def tables(self, rows: Sequence[Row]) -> dict[str, pd.DataFrame]:
        import pandas as pd

        here = {row["layer"] for row in rows}
        lists = []
        for name in dict.fromkeys(row["list"] for row in rows if row["list"]):
            known = [layer.label for layer in layers(name)]
            lists.append(
                {"list": name, "layers": f"{len(here.intersection(known))} of {len(known)}", "source": source(name)}
            )
        return report.tables(rows) | {"Lists": pd.DataFrame(lists)}


def _host_us(placement: str, asked: Work) -> float:
    return _FLIT_US[placement] * asked.remote_bytes / FLIT_BYTES + _TILE_US * asked.tiles


def _largest(machine: Machine, layers: Sequence[Layer], placements: Sequence[str], dtype: str) -> Layer | None:
    """Return the layer with most work of those that are simulated in every placement: its links are kept."""

    def simulated(layer: Layer) -> bool:
        shape = layer.m, layer.n, layer.k
        return not any(obstacle(machine, work(machine.config, p, shape, dtype)) for p in placements)

    return max(filter(simulated, layers), key=lambda layer: layer.m * layer.n * layer.k, default=None)


def run(
    machine: Machine,
    shape: Shape,
    placement: str,
    *,
    dtype: str = "f16",
    trans_a: bool = False,
    trans_b: bool = False,
    data: bool = False,
    log: str = "operation",
    tie_seed: int | None = None,
) -> tuple[Result, LinkTable]:
    """Run `product` on SIP 0; return its result, and the traffic of its launches alone."""
    traffic: list[LinkTable] = []

    def program(torch: RuntimeContext) -> None:
        traffic.append(product(torch, shape, placement, dtype, trans_a, trans_b))

    result = run_program(machine, program, data=data, log=log, tie_seed=tie_seed)
    return result, traffic[0]


def product(
    torch: RuntimeContext, shape: Shape, placement: str, dtype: str, trans_a: bool = False, trans_b: bool = False
) -> LinkTable:
    """Run C[m, n] = A[m, k] B[k, n] over the current SIP and return the traffic of its launches."""
    m, n, k = shape
    machine, kind = torch.engine.machine, as_dtype(dtype)
    stored = operands(placement, shape, trans_a, trans_b)
    (a, a_values), (b, b_values) = (
        operand(torch, name, size, kind, at) for name, (size, at) in zip("ab", stored, strict=True)
    )
    c_size, at_c = stored_result(placement, shape)
    c = torch.empty(c_size, dtype=kind, dp=at_c, device="ahbm", name="c")
    of_pes, of_cubes = (
        torch.empty(size, dtype="f32", dp=at, device="ahbm", name=name)
        for name, (size, at) in zip(("sums", "sums of cubes"), partial_sums(machine.config, m * n), strict=True)
    ) if placement == SPLIT_K else (c, c)  # fmt: skip
    torch.ahbm.synchronize()
    before = link_table(torch.engine)
    name = f"{placement} {m}x{k}x{n}"
    kernel, *more = _KERNELS[placement], m, k, n
    if placement == "columns":
        more.append(machine.config.cube.pe.pe_gemm.tile.m)
    # Which operand is transposed is known when a kernel is compiled: it is not an argument of the launch.
    torch.launch(name, partial(kernel, trans_a=trans_a, trans_b=trans_b), a, b, of_pes, *more, room(machine.config))
    if placement == SPLIT_K:
        holders = [i for i, (_, size) in enumerate(spans(k, machine.config)) if size]
        cubes = sorted({i // machine.config.pes_per_cube for i in holders})
        torch.launch(name, partial(sum_in_cubes, holders=holders), of_pes, of_cubes, m * n)
        torch.launch(name, partial(sum_over_cubes, cubes=cubes), of_cubes, c, m * n)
    torch.ahbm.synchronize()
    traffic = _difference(before, link_table(torch.engine))
    if a_values is not None and b_values is not None:
        left, right = a_values.T if trans_a else a_values, b_values.T if trans_b else b_values
        got = in_order(machine, placement, c.numpy().reshape(m, n), k, trans_b)
        _check(name, got.astype(np.float64), left @ right)
    return traffic


def _check(name: str, got: np.ndarray, expected: np.ndarray) -> None:
    error = float(np.abs(got - expected).max())
    if error > 0.01 * float(np.abs(expected).max()):
        raise VerificationError(f"{name}: C differs from numpy's product by up to {error:g}")


def in_order(machine: Machine, placement: str, c: np.ndarray, k: int, trans_b: bool = False) -> np.ndarray:
    """Return C as a matrix, from what its PEs hold: each its part, block of columns after block of columns."""
    if placement == SPLIT_K:
        return c
    m, n = c.shape
    config, out = machine.config, np.empty_like(c)
    computed = parts(placement, m, n, k, config, c.itemsize, trans_b)
    rows_of, columns_of = spans(m, config), spans(n, config)
    for i, (rows, widths) in enumerate(computed):
        start, column = rows_of[i][0], 0
        if placement == "columns":
            start, column = 0, columns_of[i][0]
        if placement == "2-D":
            cube, pe = divmod(i, config.pes_per_cube)
            start, column = chunk(m, config.pes_per_cube, pe)[0], chunk(n, config.cubes_per_sip, cube)[0]
        flat, taken = c[start : start + rows, column : column + sum(widths)].reshape(-1), 0
        for width in widths:
            block = flat[taken : taken + rows * width].reshape(rows, width)
            out[start : start + rows, column : column + width] = block
            column, taken = column + width, taken + rows * width
    return out


def obstacle(machine: Machine, asked: Work) -> str:
    """Return why a point is not simulated, or nothing."""
    config = machine.config
    room = config.cube.hbm.slice_bytes(config.pes_per_cube)
    if asked.slice_bytes > room:
        return f"does not fit: {asked.slice_bytes:,} B in one HBM slice of {room:,} B"
    return ""


def _measured(machine: Machine, result: Result, traffic: LinkTable, shape: Shape, dtype: str, keep: bool) -> Row:
    m, n, k = shape
    begin, done = span(result.launches)
    makespan = (done - begin) / 1000
    start, end = pe_window(result.records)
    flops = 2 * m * n * k
    peak = 2 * macs_per_ns(machine.config, dtype) * machine.config.pes_per_sip
    counts = counters(machine.config, traffic, result.records.busy_by_component(), dtype)
    share = shares(traffic, done - begin)
    first = hottest(share)
    return {
        "makespan_ns": makespan,
        "pe_window_ns": (end - start) / 1000,
        "utilization": flops / (peak * makespan),
        "gflops": flops / makespan,
        **counts,
        "intensity": flops / counts["hbm_bytes"],
        "hottest_link": first,
        "hottest_busy": share[first],
        **_busiest(share),
    } | ({"links": {link: round(value, 4) for link, value in share.items() if value >= VISIBLE}} if keep else {})


def _busiest(share: Mapping[str, float]) -> Row:
    """Return the busy share of the busiest link of each kind."""
    found = dict.fromkeys(LINK_KINDS, 0.0)
    for link, busy in share.items():
        kind = _KIND.get(attribution("serialization", link).group)
        if kind is not None:
            found[kind] = max(found[kind], busy)
    return {f"busy_{kind}": busy for kind, busy in found.items()}


def _difference(before: LinkTable, after: LinkTable) -> LinkTable:
    """Return the traffic between two readings of the links."""
    seen = {name: i for i, name in enumerate(before.names)}
    old = [seen.get(name, -1) for name in after.names]
    nbytes = np.array([before.nbytes[i] if i >= 0 else 0 for i in old], np.int64)
    busy = np.array([before.busy_ps[i] if i >= 0 else 0 for i in old], np.int64)
    return LinkTable(after.names, after.nbytes - nbytes, after.busy_ps - busy, after.bw_gbs)
