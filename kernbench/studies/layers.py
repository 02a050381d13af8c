"""Layers of networks over a whole SIP: where the operands are, and what that costs.

A (inputs) is cut by rows over all PEs, B (weights) by columns, so that each weight exists once; C (outputs) is placed
as the placement says. Split-K cuts both by K instead; a second launch adds the partial sums. All reads of other PEs'
memory are inside the makespan, which runs from the launch leaving the host to the last completion coming back.

Placements are those of `kernbench.ops.matmul`; C of split-K is cut by elements over PEs.

An operand may be stored transposed, A as [k, m], B as [n, k]: each PE holds the same elements of it.
"""

from __future__ import annotations

import csv
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

import kernbench.studies.layers_report as report
from kernbench._dtypes import as_dtype
from kernbench._units import FLIT_BYTES
from kernbench.analysis._launches import span
from kernbench.analysis._records import LinkTable
from kernbench.analysis._resources import LINKS, attribution
from kernbench.analysis._roofline import macs_per_ns
from kernbench.analysis.result import Result
from kernbench.analysis.utilization import hottest, pe_window, shares
from kernbench.config import MachineConfig
from kernbench.errors import ArgumentError, VerificationError
from kernbench.kernels.partition import chunk
from kernbench.ops import matmul
from kernbench.ops._stored import Stored
from kernbench.ops.matmul import (
    BY_BLOCKS,
    BY_COLUMNS,
    BY_ROWS,
    GRID,
    PART_BYTES,
    PLACEMENTS,
    SPLIT_IN_CUBES,
    SPLIT_K,
    SPLITS,
    TURNED,
    PlacementName,
    read_from,
)
from kernbench.points._keys import Row
from kernbench.policy.placement.dp import DPPolicy, resolve_dp_policy
from kernbench.runtime_api.bench_runner import operand, run_program
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine._op_log import link_table
from kernbench.studies.study import Parameter, Study, Tables, table
from kernbench.sweeps._energy_area import counters
from kernbench.sweeps._measure import path_columns
from kernbench.topology.builder import Machine
from kernbench.viz.charts import Column

_LISTS = {
    "deepbench": "deepbench_gemm_inference_device.csv",
    "gpt2": "scalesim_gemm_gpt2.csv",
    "vit-s": "scalesim_gemm_vit_s.csv",
    "llama3-70b": "llama3_70b_gemms.csv",
}


@dataclass(frozen=True, slots=True)
class Layer:
    list: str
    name: str
    m: int
    n: int
    k: int
    tp: int = 1

    @property
    def label(self) -> str:
        return f"{self.list} {self.name}".strip()

    def product(self, placement: str, dtype: str) -> StoredProduct:
        return StoredProduct(self.m, self.n, self.k, placement, dtype)


def layers(name: str) -> list[Layer]:
    """Layers of a list, in its order, whose names contain all words that follow the name of the list.

    >>> layers("gpt2 QKT")
    [Layer(list='gpt2', name='QKT', m=1024, n=1024, k=64, tp=1)]
    """
    title, *narrowed = name.split()
    if title not in _LISTS:
        raise ArgumentError(f"layer list {title!r} is unknown; known: {', '.join(_LISTS)}")
    found = [_layer(title, row) for row in _read(title)[1]]
    found = [layer for layer in found if set(narrowed) <= set(layer.name.split())]
    if not found:
        raise ArgumentError(f"layer list {name!r} has no layer: leave out {' or '.join(narrowed)}")
    return found


def select_layers(names: Sequence[str]) -> list[Layer]:
    return list(dict.fromkeys(layer for name in names for layer in layers(name)))


def source(name: str) -> str:
    return _read(name)[0]


def _read(name: str) -> tuple[str, list[dict[str, str]]]:
    lines = (files("kernbench.studies") / "data" / _LISTS[name]).read_text(encoding="utf-8").splitlines()
    comment = " ".join(line.lstrip("# ") for line in lines if line.startswith("#"))
    return comment, list(csv.DictReader(line for line in lines if not line.startswith("#")))


def _layer(name: str, row: dict[str, str]) -> Layer:
    m, n, k = (int(row[size]) for size in "mnk")
    title = row.get("layer") or f"{m}x{k}x{n}"
    if "gemm" in row:
        title = f"{row['gemm'].removesuffix('_proj')} tp{row['tp']} m{m}"
    return Layer(name, title, m, n, k, int(row.get("tp", 1)))


TRANSPOSED = {
    BY_ROWS: BY_COLUMNS,
    BY_COLUMNS: BY_ROWS,
    GRID: TURNED,
    TURNED: GRID,
}  # where an operand is that is stored transposed, for the same elements

# Kinds of links that have a column.
LINK_KINDS = {kind: LINKS[kind] for kind in ("mesh", "ucie", "ucie_port", "pe_dma", "hbm")}
_VISIBLE = 0.01  # share of the time from which a link is kept for pictures


@dataclass(frozen=True, slots=True)
class StoredProduct:
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
        return as_dtype(self.dtype).itemsize

    def stored(self, config: MachineConfig) -> list[tuple[tuple[int, int], DPPolicy]]:
        m, n, k = self.m, self.n, self.k
        (at_a, *_), (at_b, *_) = read_from(config, m, self.placement)
        return [
            ((k, m), TRANSPOSED[at_a]) if self.trans_a else ((m, k), at_a),
            ((n, k), TRANSPOSED[at_b]) if self.trans_b else ((k, n), at_b),
            ((m * n, 1) if self.placement in SPLITS else (m, n), PLACEMENTS.get(self.placement, BY_ROWS)),
        ]

    def placed(self, config: MachineConfig) -> matmul.Product:
        return _placed(config, self)


@lru_cache(maxsize=64)
def _placed(config: MachineConfig, product: StoredProduct) -> matmul.Product:
    (a, at_a), (b, at_b), _ = product.stored(config)
    stored_a, stored_b = (
        Stored.of(config, shape[::-1] if trans else shape, at, transposed=trans)
        for shape, at, trans in ((a, at_a, product.trans_a), (b, at_b, product.trans_b))
    )
    c = Stored.of(config, (product.m, product.n), BY_ROWS) if product.placement == BY_BLOCKS else None
    return matmul.Product(product.m, product.n, product.k, product.dtype, stored_a, stored_b, c)


def layer_work(config: MachineConfig, product: StoredProduct) -> matmul.ProductWork:
    return matmul.product_work(config, product.placed(config), product.placement)


def _fullest(config: MachineConfig, product: StoredProduct) -> int:
    tensors = [(*stored, product.itemsize) for stored in product.stored(config)]
    sums = matmul.partial_sums(config, product.placed(config), product.placement)
    tensors += [(*stored, PART_BYTES) for stored in sums.values()]
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


def simulated_ns(result: Result) -> float:
    """Time from the first launch leaving the host to the last completion coming back."""
    start, end = span(result.launches)
    return (end - start) / 1000


# Host time of a flit read from another PE, and of a tile, measured on 21 products: within a factor of 3.
_FLIT_US, _TILE_US = 5, 2
# A run of more host time [us], by estimate, is refused if its bound is over FAR times the least estimate (chosen).
LONG_US, FAR = 3.3e8, 10
_KIND = {name: kind for kind, name in LINK_KINDS.items()}
# By what `why` calls a resource, the column of the critical path; what is not named is of the launches.
_PATH = {
    "HBM slice": "hbm", "link of an HBM slice": "dma", "link of PE_DMA": "dma", "mesh link": "links",
    "wire of the mesh link": "links", "routers": "links", "UCIe link": "links", "UCIe ports": "links",
    "link of a UCIe port": "links", "fetch from TCM": "fetch", "matrix engine": "gemm", "vector engine": "math",
    "store to TCM": "store",
}  # fmt: skip
_Placement = Annotated[PlacementName, "of C, and with it what PEs read from each other"]
_Dtype = Annotated[Literal["f16", "bf16"], "type of A, B and C"]


class LayersStudy(Study):
    """C = A @ B over all PEs of a SIP: layers of published networks."""

    name, title, page = "layers", "Layers over a whole SIP", "layers.md"
    parameters: ClassVar = {
        "layers": Parameter(["vit-s", "gpt2"], "lists of layers, or some of a list: `gpt2 QKT`, `llama3-70b tp8 m128`"),
        "placements": Parameter(["rows", "columns", "2-D", SPLIT_K], "placements of the product", known=PLACEMENTS),
        "dtype": Parameter("f16", "type of A, B and C"),
    }
    columns: ClassVar = report.COLUMNS | {
        f"busy_{kind}": Column(f"busiest {name}") for kind, name in LINK_KINDS.items()
    }
    method, charts, findings = report.METHOD, report.CHARTS, staticmethod(report.findings)

    def check(self, machine: Machine, *, layers: Sequence[str], **_: Any) -> list[str]:
        select_layers(layers)
        return []

    def points(self, machine: Machine, *, layers: Sequence[str], placements: Sequence[str], dtype: str) -> list[Row]:
        chosen = {
            x: [p for p in placements if not _far(machine, x, p, placements, dtype)] for x in select_layers(layers)
        }
        # The links of the largest of those that are simulated in every placement are kept.
        whole = [x for x, near in chosen.items() if len(near) == len(placements)]
        fitting = [x for x in whole if not any(obstacle(machine, x.product(p, dtype)) for p in placements)]
        drawn = max(fitting, key=lambda layer: layer.m * layer.n * layer.k, default=None)
        return [
            {**asdict(layer), "placement": placement, "dtype": dtype} | ({"links": True} if layer == drawn else {})
            for layer, near in chosen.items()
            for placement in near
        ]

    def refused(
        self, machine: Machine, *, layers: Sequence[str], placements: Sequence[str], dtype: str
    ) -> dict[str, str]:
        found = itertools.product(select_layers(layers), placements)
        reasons = {f"{x.label} in {p}": _far(machine, x, p, placements, dtype) for x, p in found}
        return {name: why for name, why in reasons.items() if why}

    def work(
        self, machine: Machine, *, list: str = "", name: str = "", tp: int = 1, links: bool = False, **point: Any
    ) -> float:
        return _host_us(machine, StoredProduct(**point))

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
        product = StoredProduct(**point)
        m, n, k = product.m, product.n, product.k
        layer = Layer(list, name or f"{m}x{k}x{n}", m, n, k, tp)
        out: Row = {
            **asdict(layer), "layer": layer.label, "shape": f"{m}x{k}x{n}", "placement": product.placement,
            "dtype": product.dtype, "trans_a": product.trans_a, "trans_b": product.trans_b,
            **asdict(layer_work(machine.config, product)), "slice_bytes": _fullest(machine.config, product),
            "left_out": obstacle(machine, product),
        }  # fmt: skip
        return out if out["left_out"] else out | _measured(machine, product, links)

    def program(
        self,
        torch: RuntimeContext,
        *,
        m: Annotated[int, "rows of A and C"] = 512,
        n: Annotated[int, "columns of B and C"] = 512,
        k: Annotated[int, "columns of A, rows of B"] = 512,
        placement: _Placement = "2-D",
        dtype: _Dtype = "f16",
        trans_a: Annotated[bool, "A is stored as [k, m]"] = False,
        trans_b: Annotated[bool, "B is stored as [n, k]"] = False,
    ) -> str:
        """C = A @ B over all PEs of a SIP."""
        product = StoredProduct(m, n, k, placement, dtype, trans_a, trans_b)
        _multiply(torch, product)
        asked = layer_work(torch.engine.machine.config, product)
        return f"no run is faster than {asked.bound_ns:,.0f} ns ({asked.limiter})"

    def faults(self, machine: Machine, **point: Any) -> list[str]:
        product = StoredProduct(**point)
        fault = obstacle(machine, product)
        return [f"k = {product.k}: {fault}"] if fault else []

    def tables(self, rows: Sequence[Row]) -> Tables:
        here = {row["layer"] for row in rows}
        lists = []
        for name in dict.fromkeys(row["list"] for row in rows if row["list"]):
            known = [layer.label for layer in layers(name)]
            lists.append(
                {"list": name, "layers": f"{len(here.intersection(known))} of {len(known)}", "source": source(name)}
            )
        return report.tables(rows) | {"Lists": table(lists)}


def _host_us(machine: Machine, product: StoredProduct) -> float:
    asked = layer_work(machine.config, product)
    return _FLIT_US * asked.remote_bytes / FLIT_BYTES + _TILE_US * asked.tiles


def _far(machine: Machine, layer: Layer, placement: str, placements: Sequence[str], dtype: str) -> str:
    """Reason to skip a placement: it takes the host long and cannot be near the best; empty if it may."""
    product, config = layer.product(placement, dtype), machine.config
    if _host_us(machine, product) < LONG_US:
        return ""
    others = [layer.product(other, dtype) for other in placements]
    estimates = {x.placement: matmul.estimate(machine, x.placed(config), x.placement)[0] for x in others}
    near, bound_ns = min(estimates, key=lambda x: estimates[x]), layer_work(config, product).bound_ns
    if bound_ns < FAR * estimates[near]:
        return ""
    return f"no run is faster than {bound_ns / 1000:,.0f} us; estimate in {near}: {estimates[near] / 1000:,.0f} us"


def obstacle(machine: Machine, product: StoredProduct) -> str:
    asked, config = _fullest(machine.config, product), machine.config
    room = config.cube.hbm.slice_bytes(config.pes_per_cube)
    return f"does not fit: {asked:,} B in one HBM slice of {room:,} B" if asked > room else ""


def run(
    machine: Machine, product: StoredProduct, *, data: bool = False, log: str = "operation", tie_seed: int | None = None
) -> tuple[Result, LinkTable]:
    """Run on SIP 0; the traffic is that of the launches alone."""
    traffic: list[LinkTable] = []

    def program(torch: RuntimeContext) -> None:
        traffic.append(_multiply(torch, product))

    result = run_program(machine, program, data=data, log=log, tie_seed=tie_seed)
    return result, traffic[0]


def _multiply(torch: RuntimeContext, product: StoredProduct) -> LinkTable:
    m, n, k, placement = product.m, product.n, product.k, product.placement
    config, kind = torch.engine.machine.config, as_dtype(product.dtype)
    *stored, (c_size, at_c) = product.stored(config)
    (a, a_values), (b, b_values) = (
        operand(torch, name, size, kind, at) for name, (size, at) in zip("ab", stored, strict=True)
    )
    c = torch.empty(c_size, dtype=kind, dp=at_c, device="ahbm", name="c")
    placed = product.placed(config)
    tensors = {"a": a, "b": b, "c": c} | {
        name: torch.empty(size, dtype="f32", dp=at, device="ahbm", name=name)
        for name, (size, at) in matmul.partial_sums(config, placed, placement).items()
    }
    torch.ahbm.synchronize()
    before = link_table(torch.engine)
    name = f"{placement} {m}x{k}x{n}"
    for step in matmul.steps(config, placed, placement):
        torch.launch(name, step.kernel, *(tensors[x] for x in step.tensors), *step.sizes)
    torch.ahbm.synchronize()
    traffic = _difference(before, link_table(torch.engine))
    if a_values is not None and b_values is not None:
        left, right = a_values(), b_values()
        expected = (left.T if product.trans_a else left) @ (right.T if product.trans_b else right)
        got = in_order(config, product, c.numpy().reshape(m, n)).astype(np.float64)
        error = float(np.abs(got - expected).max())
        if error > 0.01 * float(np.abs(expected).max()):
            raise VerificationError(f"{name}: C differs from numpy's product by up to {error:g}")
    return traffic


def in_order(config: MachineConfig, product: StoredProduct, c: np.ndarray) -> np.ndarray:
    """Assemble the matrix C from the parts of its PEs, stored block of columns after block of columns."""
    if product.placement in (SPLIT_K, BY_BLOCKS):
        return c
    if product.placement == SPLIT_IN_CUBES:  # each cube its columns
        flat, m = c.reshape(-1), product.m
        cuts = [chunk(product.n, config.cubes_per_sip, cube) for cube in range(config.cubes_per_sip)]
        return np.hstack([flat[m * start : m * (start + width)].reshape(m, width) for start, width in cuts])
    out = np.empty_like(c)
    for own in matmul.tasks(config, product.placed(config), product.placement).values():
        for task in own:
            (row, m), (column, n), _ = task.hull
            flat = c[row : row + m, column : column + n].reshape(-1)
            for rows, columns in itertools.product(task.rows, task.columns):
                at = task.at(rows, columns) - (task.place or 0)
                block = flat[at : at + rows[1] * columns[1]].reshape(rows[1], columns[1])
                out[rows[0] : sum(rows), columns[0] : sum(columns)] = block
    return out


def _measured(machine: Machine, product: StoredProduct, keep: bool) -> Row:
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
    links = {"links": {link: round(value, 4) for link, value in share.items() if value >= _VISIBLE}} if keep else {}
    return {
        "makespan_ns": makespan,
        "pe_window_ns": (end - start) / 1000,
        "utilization": flops / (peak * makespan),
        "gflops": flops / makespan,
        **counts,
        "intensity": flops / counts["hbm_bytes"],
        "hottest_link": first,
        "hottest_busy": share[first],
        **path_columns(result.records, result.launches, report.PATH_RESOURCES, _PATH),
        **{f"busy_{kind}": busy for kind, busy in busiest.items()},
        **links,
    }


def _difference(before: LinkTable, after: LinkTable) -> LinkTable:
    seen = {name: (int(before.nbytes[i]), int(before.busy_ps[i])) for i, name in enumerate(before.names)}
    old = np.array([seen.get(name, (0, 0)) for name in after.names], np.int64).reshape(-1, 2)
    return LinkTable(after.names, after.nbytes - old[:, 0], after.busy_ps - old[:, 1], after.bw_gbs)
