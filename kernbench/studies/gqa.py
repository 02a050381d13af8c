"""Attention of Llama-3 70B over ranks: what limits prefill and decode, and what the exchange between ranks costs.

One layer's attention is run, from q, k and v in HBM to the result there. Kv heads of sequences are *items*; each lane
of ranks has as many items, and the ranks of a lane share the tokens of its items. Every key and value is stored once,
in the HBM slice of the rank that reads it first (`query_heads` below the group: once for each part of the group).
"""

from __future__ import annotations

import inspect
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from inspect import signature
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import ml_dtypes
import numpy as np

import kernbench.studies.gqa_report as report
from kernbench._dtypes import DType, as_dtype
from kernbench.analysis._critical_path import critical_path
from kernbench.analysis._records import CommandInfo
from kernbench.analysis._roofline import matrix_ns
from kernbench.analysis.breakdown import breakdown, overlap
from kernbench.analysis.result import Result
from kernbench.ccl._group import Group, Place, by_shard
from kernbench.ccl.algorithm import Algorithm, Mapper, Plan, algorithm, plan
from kernbench.ccl.algorithms import recursive_doubling
from kernbench.ccl.install import load_ccl_config, names, resolve_algorithm_config
from kernbench.components.builtin.pe_scheduler import cuts
from kernbench.config import MachineConfig
from kernbench.config._files import write_text
from kernbench.errors import ArgumentError, KernbenchError, VerificationError
from kernbench.kernels import ring_attention
from kernbench.kernels.attention import tiles
from kernbench.kernels.ring_attention import EXTRA, exchanged_attention, merge, merged_attention
from kernbench.points._keys import Row
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.bench_runner import run_program
from kernbench.runtime_api.context import RuntimeContext
from kernbench.studies._start_of_work import HOSTS, KERNELS, SERIES, fits_tcm, short_kernels
from kernbench.studies.layers import LayersStudy
from kernbench.studies.study import (
    LABELS,
    MACHINE,
    Choices,
    Finding,
    Parameter,
    Study,
    at_most,
    fits_slice,
    scaled,
)
from kernbench.topology.builder import Machine

if TYPE_CHECKING:
    import pandas as pd

PHASES = ("prefill", "decode")
ACROSS = ("pe", "cube")
# Llama-3 70B, from its published configuration.
LAYERS, HEADS, KV_HEADS, HEAD_DIM = 80, 64, 8, 128
HIDDEN, FFN, VOCABULARY = 8192, 28672, 128256
GROUP = HEADS // KV_HEADS
# The linear layers: inputs and outputs of those of one layer, and of the last one.
_LAYER = {
    "qkv": (HIDDEN, (HEADS + 2 * KV_HEADS) * HEAD_DIM), "o": (HEADS * HEAD_DIM, HIDDEN),
    "gate and up": (HIDDEN, 2 * FFN), "down": (FFN, HIDDEN),
}  # fmt: skip
PRODUCTS = _LAYER | {"head": (HIDDEN, VOCABULARY)}
TIMES = {name: LAYERS if name in _LAYER else 1 for name in PRODUCTS}  # in one step
STREAMED = sum(TIMES[name] * k * n for name, (k, n) in PRODUCTS.items())  # weights that a step reads
WEIGHTS = STREAMED + VOCABULARY * HIDDEN  # and the embedding, of which it reads a row for each token


@dataclass(frozen=True, slots=True)
class Setting:
    """What is run: `ranks`, in the order `across` (see `lanes`), share the tokens of each lane's items."""

    phase: str  # "prefill" or "decode"
    ranks: int  # of each lane
    across: str = "pe"
    sips: int = 1
    cubes: int = 1  # of each SIP
    pes: int = 8  # of each cube
    items: int = 1  # key/value heads of all sequences, for each lane
    group: int = 8  # query heads of a kv head
    head_dim: int = 128
    tokens: int = 16  # key/value tokens of each rank
    # By default, in prefill as many for each rank, in decode one for all. A number between the two is a chunk of a
    # prompt that sees the whole context: in prefill, of each rank; in decode, for all.
    q_tokens: int | None = None
    causal: bool = False  # of prefill, as the next two; see `ring_attention`
    order: str = "contiguous"
    ring: bool = True
    merge: str = "recursive_doubling_allreduce"  # of decode: the all-reduce that merges the parts
    dtype: str = "f16"  # of q, k, v and the result
    n_slots: int = 4  # of each queue
    slot_size: int = 4096

    @property
    def programs(self) -> int:
        """Number of PEs."""
        return self.sips * self.cubes * self.pes

    @property
    def n_lanes(self) -> int:
        return self.programs // self.ranks

    @property
    def queries(self) -> int:
        """Query tokens of each rank."""
        default = self.tokens if self.phase == "prefill" else 1
        return default if self.q_tokens is None else self.q_tokens


def standalone(setting: Setting) -> Algorithm:
    """Algorithm of one lane whose ranks are devices: for the mock, which has no PEs."""
    return replace(algorithm_of(setting), mapper=by_shard)


def algorithm_of(setting: Setting) -> Algorithm:
    common: Row = {
        "mapper": lanes(setting.ranks, setting.across), "n_slots": setting.n_slots, "slot_size": setting.slot_size,
    }  # fmt: skip
    if setting.phase == "prefill":
        options = {
            "kv_heads": setting.items, "group": setting.group, "head_dim": setting.head_dim, "causal": setting.causal,
            "order": setting.order, "ring": setting.ring, "slot_bytes": setting.slot_size, "kv_tokens": setting.tokens,
            "grid_w": setting.ranks, "grid_h": 1,
        }  # fmt: skip
        name, topology = ("ring", "ring_1d") if setting.ring else ("chain", "mesh_2d_no_wrap")
        return algorithm(
            ring_attention.ring_attention, ring_attention.kernel_args, name=f"{name} attention", topology=topology,
            options=options, **common,
        )  # fmt: skip
    if setting.phase != "decode":
        raise ArgumentError(f"phase = {setting.phase!r} is unknown; known: {', '.join(PHASES)}")
    base = resolve_algorithm_config(setting.merge)
    sizes = setting.items, setting.group, setting.queries, setting.tokens, setting.head_dim
    width = setting.head_dim + EXTRA

    def arguments(*, n_elem: int, world_size: int, **facts: Any) -> tuple[Any, ...]:
        if _in_tcm(setting):
            return sizes
        rows = setting.items * setting.queries * setting.group
        inner = base.kernel_args(n_elem=rows * width, world_size=world_size, op=merge, row=width, **facts)
        return *sizes, base.kernel, inner

    arguments.__signature__ = signature(base.kernel_args)  # type: ignore[attr-defined]  # which facts it is told
    kernel = exchanged_attention if _in_tcm(setting) else merged_attention
    own: Row = {"name": f"decode merged by {base.name}", "cost": None, "kernel": kernel, "kernel_args": arguments}
    return replace(base, **own, **common)


def _in_tcm(setting: Setting) -> bool:
    """Recursive doubling exchanges whole parts, which are merged in TCM; other algorithms take them from memory."""
    return resolve_algorithm_config(setting.merge).kernel is recursive_doubling.kernel


def run(machine: Machine, setting: Setting, *, data: bool = False, log: str = "operation") -> Result:
    """Run a setting; with `data`, compare its values with numpy in f64."""
    return run_program(machine, lambda torch: attend(torch, setting), data=data, log=log)


def attend(torch: RuntimeContext, setting: Setting) -> None:
    """Run a setting in a session; tensors have a row for each PE."""
    dtype, here = as_dtype(setting.dtype), (setting.cubes * setting.pes, setting.items)
    q, kv = (*here, setting.queries, setting.group, setting.head_dim), (*here, setting.tokens, setting.head_dim)
    shapes = {"q": q, "k": kv, "v": kv}
    given = _values(setting, shapes, dtype) if torch.engine.data else None
    dp = DPPolicy(cube="row_wise", pe="row_wise", num_cubes=setting.cubes, num_pes=setting.pes)
    tensors = []
    for sip in range(setting.sips):
        where: Row = {"dp": dp, "device": f"ahbm:{sip}"}
        own = [
            torch.tensor(given[name][sip], dtype=dtype, name=name, **where)
            if given
            else torch.empty(shape, dtype=dtype, name=name, **where)
            for name, shape in shapes.items()
        ]
        if setting.phase == "decode" and not _in_tcm(setting):
            part = (*q[:-1], setting.head_dim + EXTRA)
            own.append(torch.empty(part, dtype=torch.float32, name="part", **where))
        tensors.append([*own, torch.empty(q, dtype=dtype, name="out", **where)])
    plan = torch.collective(tensors, algorithm_of(setting), name=setting.phase)
    torch.ahbm.synchronize()
    if given:
        torch.checks += 1
        check(setting, plan, given, np.stack([own[-1].numpy() for own in tensors]))


def _values(setting: Setting, shapes: Mapping[str, tuple[int, ...]], dtype: DType) -> dict[str, np.ndarray]:
    """Tensors q, k and v of all devices; in decode there is one query for all: lanes differ by their keys."""
    rng = np.random.default_rng([setting.ranks, setting.tokens, setting.group])
    found = {
        name: rng.standard_normal((setting.sips, *shape)).astype(np.float32).astype(dtype.numpy)
        for name, shape in shapes.items()
    }
    if setting.phase == "decode":
        found["q"][...] = found["q"][:1, :1]
    return found


def check(setting: Setting, plan: Plan, given: Mapping[str, np.ndarray], out: np.ndarray) -> None:
    q, k, v, got = (x.reshape(-1, *x.shape[2:]) for x in (*given.values(), out))  # the PEs of all SIPs
    rows = {place: i for i, place in enumerate(sorted(place for each in plan.subgroups for place in each.places))}
    order = setting.order if setting.phase == "prefill" else "contiguous"
    spans = [ring_attention.tokens_of(order, rank, setting.ranks, setting.tokens) for rank in range(setting.ranks)]
    tokens = [np.concatenate([x.first + x.step * np.arange(x.size) for x in own]) for own in spans]
    places = np.argsort(np.concatenate(tokens))
    for subgroup in plan.subgroups:
        at = [rows[place] for place in subgroup.places]
        keys, values = (np.concatenate(x[at].astype(np.float64), axis=1)[:, places] for x in (k, v))
        for rank, i in enumerate(at):
            seen = tokens[rank] if setting.causal and setting.phase == "prefill" else None
            _compare(setting, q[i].astype(np.float64), keys, values, seen, got[i])


def _compare(
    setting: Setting, q: np.ndarray, k: np.ndarray, v: np.ndarray, seen: np.ndarray | None, got: np.ndarray
) -> None:
    """Check one rank: q [items, tokens, group, d], k and v [items, all tokens, d]."""
    items, queries, group, width = q.shape
    rows, keys = q.reshape(items, -1, width), k.swapaxes(1, 2)  # as matrices: einsum over them takes 50 times as long
    scores = (rows @ keys).reshape(items, queries, group, -1) / np.sqrt(setting.head_dim)
    if seen is not None:
        hidden = np.arange(k.shape[1])[None, :] > seen[:, None]
        scores = np.where(hidden[None, :, None, :], -np.inf, scores)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    want = ((p / p.sum(-1, keepdims=True)).reshape(items, queries * group, -1) @ v).reshape(q.shape)
    unit = float(ml_dtypes.finfo(got.dtype).eps) / 2  # type: ignore[no-untyped-call]
    lost = (setting.head_dim + 4) * 2.0**-24 * (abs(rows) @ abs(keys)).max()
    allowed = unit * abs(want) + abs(v).max() * (unit + 2 * lost / np.sqrt(setting.head_dim) + 2.0**-20)
    error = abs(got.astype(np.float64) - want)
    wrong = ~(error <= allowed)
    if wrong.any():
        raise VerificationError(
            f"{setting.phase} over {setting.ranks} ranks: {int(wrong.sum())} of {error.size} elements "
            f"are further off numpy's f64 than allowed; the worst by {np.nanmax(error):.3g}"
        )


def lanes(ranks: int, across: str) -> Mapper:
    """Mapper that makes lanes of `ranks` PEs that hold a shard, as many lanes from each SIP."""
    if across not in ACROSS:
        raise ArgumentError(f"across = {across!r} is unknown; known: {', '.join(ACROSS)}")

    def mapper(group: Group) -> list[tuple[Place, ...]]:
        sips = len(group.shards)
        if ranks % sips or len(group.shards[0]) * sips % ranks:
            raise ArgumentError(
                f"ranks = {ranks}: {sips} SIPs with {len(group.shards[0])} PEs that hold shards each; expected a "
                "multiple of the SIPs and a divisor of the PEs"
            )
        parts, each = [], ranks // sips
        for places in group.shards:
            pes = max(p[2] for p in places) + 1
            order = sorted(places, key=lambda p: _along(p, group.cube_columns, pes))
            order = sorted(order, key=lambda p: p[2]) if across == "cube" else order
            parts.append([order[at : at + each] for at in range(0, len(order), each)])
        return [tuple(place for part in lane for place in part) for lane in zip(*parts, strict=True)]

    return mapper


def _along(place: Place, columns: int, pes: int) -> tuple[int, int, bool, int]:
    """Sort key of a PE: cubes row by row, back and forth; in a cube NW, NE, then SE, SW."""
    row, column = divmod(place[1], columns)
    lower = place[2] >= pes // 2
    return row, columns - 1 - column if row % 2 else column, lower, -place[2] if lower else place[2]


def memory(config: MachineConfig, sips: int, kv_elements: int, dtype: str) -> tuple[Row, str]:
    """HBM that the whole model needs, given the elements of a layer's keys, and why it does not fit (or empty)."""
    item = as_dtype(dtype).itemsize
    room = config.cube.hbm.slice_bytes(config.pes_per_cube) * config.pes_per_sip * sips
    weights, kv = WEIGHTS * item, 2 * LAYERS * kv_elements * item
    found = {"weights_bytes": weights, "kv_model_bytes": kv, "hbm_bytes": room}
    if weights + kv <= room:
        return found, ""
    return found, f"infeasible: {weights:,} B of weights and {kv:,} B of keys and values, HBM has {room:,} B"


@dataclass(frozen=True, slots=True)
class Work:
    """Counts of one setting, of all PEs together; bounds of the busiest PE [ns]."""

    flops: int
    kv_bytes: int
    hbm_ns: float
    matrix_ns: float
    vector_ns: float
    useful: float
    scores: int

    @property
    def bounds(self) -> dict[str, float]:
        return {"HBM": self.hbm_ns, "matrix engine": self.matrix_ns, "vector engine": self.vector_ns}


def work(config: MachineConfig, setting: Setting) -> Work:
    pe, item = config.cube.pe, as_dtype(setting.dtype).itemsize
    lanes, context = setting.n_lanes * setting.items, setting.tokens * setting.ranks
    queries = setting.queries * (setting.ranks if setting.phase == "prefill" else 1)
    pairs = queries * (context + 1) // 2 if setting.causal else queries * context
    scores = lanes * pairs * setting.group
    macs = 2 * scores * setting.head_dim
    tile, (q, kv) = pe.pe_gemm.tile, tiles(setting.group, setting.queries)
    rows, kv = q * setting.group, min(kv, setting.tokens)
    products = (kv, setting.head_dim, rows), (rows, kv, setting.head_dim)
    whole = sum(cuts(m, tile.m) * cuts(k, tile.k) * cuts(n, tile.n) for m, k, n in products)
    useful = 2 * rows * kv * setting.head_dim / (whole * tile.m * tile.k * tile.n)
    block_ns = sum(matrix_ns(config, mkn, setting.dtype) for mkn in products)
    # Passes over the scores: max, multiply-add, exp, sum and cast on 32-bit lanes, a transposition on 16-bit lanes.
    passes = (4 + pe.pe_math.slow_op_cycles) / pe.pe_math.lanes_32bit + 1 / pe.pe_math.lanes_16bit
    cycles = scores / setting.programs * passes
    kv_bytes = 2 * lanes * context * setting.head_dim * item
    return Work(
        flops=2 * macs, kv_bytes=kv_bytes, hbm_ns=kv_bytes / (config.cube.hbm.slice_gbs * setting.programs),
        matrix_ns=scores / (rows * kv) * block_ns / setting.programs,
        vector_ns=cycles / pe.pe_math.clock_ghz, useful=useful, scores=scores,
    )  # fmt: skip


# Scores of a run whose log is kept. A prompt of 131,072 tokens has 69 billion, in 144 million commands of 0.8 KB each.
LOGGED = 1 << 31
TRACED = 1 << 26  # scores of a run whose tiles are logged, as its critical path needs
_MERGE = "recursive_doubling_allreduce"
LINEAR = "linear"
_NOT_SHOWN = ("data", "pes_per_cube", "product", "nbytes", "graph")  # fields of a point that no row of attention has

# Counters of commands: their names.
COUNTED = {
    "gemm_count": ("dot", "gemm"), "ipcq_send_count": ("send",), "ipcq_recv_count": ("recv",),
    "dma_read_count": ("load",), "dma_write_count": ("store",),
}  # fmt: skip
# What the time of a critical path went to, by kinds of its parts; "control" is the rest.
PATH = {
    "hbm": ("memory",), "matrix": ("matrix",), "vector": ("vector",), "tcm": ("fetch", "store", "slot"),
    "links": ("wire", "nodes", "fill", "serialization", "queueing"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Point:
    """One run: a phase of a model's attention on part of a machine. By default the model is Llama-3 70B.

    `across`, `causal`, `order`, `ring`, `merge` and `dtype` are as in `Setting`.
    """

    phase: str = "decode"  # or "prefill", or "linear": a layer of Llama-3 70B for a token of each sequence, on a SIP
    context: int = 8192  # tokens of each sequence
    batch: int = 1  # sequences
    sips: int = 1
    cubes: int | None = None  # of each SIP; None: all
    query_heads: int = GROUP  # of an item: the whole group of a kv head, or fewer; K/V are stored once for each part
    span: bool = False  # a lane has ranks on every SIP; otherwise each SIP has its items, and one is run for all
    lane_of: int = 1  # in prefill: how many equal lanes one represents; that one is run
    queries: int | None = None  # query tokens of each sequence; None: all (prefill) or one (decode)
    across: str = "pe"
    causal: bool = False
    order: str = "contiguous"
    ring: bool = True
    merge: str = _MERGE
    dtype: str = "f16"
    pes_per_cube: int | None = None  # None: all
    kv_heads: int = KV_HEADS  # of the model
    group: int = GROUP  # query heads of a kv head
    head_dim: int = HEAD_DIM
    data: bool = False  # compute values, and compare the result with numpy
    product: str = ""  # of "linear": a key of `PRODUCTS`
    nbytes: int = 0  # of "start of work": what each PE of a cube reads in a kernel
    graph: bool = False  # of "start of work": the kernels are one graph

    @property
    def layer(self) -> dict[str, Any]:
        if self.product not in PRODUCTS or self.batch < 1:
            raise ArgumentError(
                f"linear layer {self.product!r} of {self.batch} sequences: expected a known product "
                f"({', '.join(PRODUCTS)}) and at least 1 sequence"
            )
        k, n = PRODUCTS[self.product]
        return {"m": self.batch, "n": n, "k": k, "placement": "columns", "dtype": self.dtype}

    def setting(self, config: MachineConfig) -> Setting:
        cubes, pes = self.cubes or config.cubes_per_sip, self.pes_per_cube or config.pes_per_cube
        items = self.batch * self.kv_heads * (self.group // self.query_heads)
        programs = self.sips * cubes * pes
        ranks = max(1, programs // items)
        lanes = programs // ranks
        if items % lanes or self.context % ranks or programs % ranks:
            raise ArgumentError(
                f"{self.phase} of {self.batch} x {self.context} tokens: {items} kv heads of sequences on {lanes} lanes "
                f"of {ranks} ranks; expected whole numbers"
            )
        if self.sips > 1 and (ranks % self.sips if self.span else lanes % self.sips):
            raise ArgumentError(f"{lanes} lanes of {ranks} ranks on {self.sips} SIPs: expected whole numbers for each")
        sips, queries = self.sips if self.span else 1, self.queries
        if self.lane_of > 1:
            cubes, sips, pes = max(1, ranks // pes), 1, min(pes, ranks)
        if queries is not None and self.phase == "prefill":
            queries //= ranks
        return Setting(
            self.phase, ranks, self.across, sips, cubes, pes, items // lanes, self.query_heads, self.head_dim,
            self.context // ranks, queries, self.causal, self.order, self.ring, self.merge, self.dtype,
        )  # fmt: skip


# Four small runs whose values are compared with numpy and whose commands are counted: 16 tokens a rank, one head of 64
# elements. One user has the PEs of a cube and a ring; of several users, each has one PE of four cubes and a chain.
_PANEL = Point(kv_heads=1, group=1, query_heads=1, head_dim=64, data=True)
_SINGLE = replace(_PANEL, context=128, cubes=1, pes_per_cube=8)
_MULTI = replace(_PANEL, context=64, cubes=4, pes_per_cube=1, across="cube", ring=False)
PANELS = {
    "single_user_prefill": replace(_SINGLE, phase="prefill"), "multi_user_prefill": replace(_MULTI, phase="prefill"),
    "single_user_decode": _SINGLE, "multi_user_decode": _MULTI,
}  # fmt: skip
PANEL_FILE = "sweep.json"
_PANEL_CONFIG = {
    "S_q_prefill": 16, "S_kv_per_rank": 16, "h_q": 1, "h_kv": 1, "d_head": 64, "n_ranks_single_user": 8,
    "n_ranks_multi_user": 4,
}  # fmt: skip


# What makes each part of a machine half as fast, and nothing else: factors of fields of the machine file.
HALVES: dict[str, dict[str, float]] = {
    "HBM": {"cube.hbm.channel_bw_gbs": 0.5, "cube.hbm.bw_gbs": 0.5},
    "matrix engine": {"cube.pe.pe_gemm.clock_ghz": 0.5},
    "vector engine": {"cube.pe.pe_math.clock_ghz": 0.5},
    "command issue": {"cube.pe.pe_cpu.command_ns": 2},
    "links between PEs": {
        "cube.noc.link_bw_gbs": 0.5, "cube.noc.router.overhead_ns": 2, "cube.ucie.bw_gbs": 0.5, "cube.ucie.port_ns": 2,
    },
}  # fmt: skip


def _merges(_: Machine) -> list[str]:
    return sorted(names(load_ccl_config(), "all_reduce", "rank"), key=lambda name: name != _MERGE)


class GqaStudy(Study):
    """Attention of Llama-3 70B over PEs, cubes and SIPs."""

    name, title = "gqa", "Attention of Llama-3 70B"
    parameters: ClassVar = {
        "contexts": Parameter([256, 512], "contexts of one decode step", "tokens"),
        "batches": Parameter([[256, 4], [131072, 64]], "context and sequences, for decode"),
        "scaling": Parameter(
            [[1, 1, 0], [2, 1, 0], [2, 2, 1]], "SIPs, cubes of each, and whether the ranks of a kv head are on all SIPs"
        ),
        "merges": Parameter(["ring_allreduce_tcm", _MERGE], "all-reduces that merge the parts of a decode step"),
        "query_heads": Parameter([[1, 4], [1, 8]], "SIPs, and query heads that share a copy of keys and values"),
        "prompts": Parameter(
            [[64, "contiguous", True], [64, "zigzag", True], [64, "zigzag", False]],
            "causal prefill: tokens, their order over ranks, and whether K/V travel round a ring or along a chain",
        ),
        "chunks": Parameter([8, 32], "query tokens that see the whole context, by a ring and by a merge"),
        "halvings": Parameter([["decode", 512], ["prefill", 64]], "runs whose limits are found by halving them"),
        "linear": Parameter([1], "sequences of a decode step whose linear layers are simulated"),
        "products": Parameter(["o"], "which linear layers: tokens per second with them need all"),
        "kernel_bytes": Parameter([], "what each PE of a cube reads in one of several short kernels", "B"),
        "context": Parameter(512, "context of what does not vary it", "tokens"),
        "batch": Parameter(1, "sequences of what does not vary them"),
        "cubes": Parameter(2, "cubes of a SIP"),
        "dtype": Parameter("f16", "type of q, k, v and the result"),
    }
    method, columns, charts = report.METHOD, report.COLUMNS, report.CHARTS

    def points(
        self, machine: Machine, *, halvings: Sequence[Sequence[Any]], kernel_bytes: Sequence[int], **parameters: Any
    ) -> list[Row]:
        series = _series(**parameters)
        config, found = machine.config, []
        if config.cubes_per_sip >= 4 and config.pes_per_cube >= 8:
            found += [{LABELS: {"series": "panel", "panel": n}, **asdict(point)} for n, point in PANELS.items()]
        for name, point in series:
            more = {MACHINE: {"system.sips.count": point.sips}} if point.sips > config.n_sips else {}
            found.append({LABELS: {"series": name}, **more, **asdict(point)})
        for nbytes, (host, costs), graph in product(kernel_bytes, HOSTS.items(), (False, True)):
            change = {f"system.host.{name}": value for name, value in costs.items()}
            point = Point(SERIES, nbytes=nbytes, graph=graph)
            found.append({LABELS: {"series": SERIES, "host": host}, MACHINE: change, **asdict(point)})
        for point in _whole([point for _, point in series], halvings):
            for part in ("", *HALVES):
                change = scaled(config, HALVES.get(part, {}))
                found.append({LABELS: {"series": "halving", "part": part}, MACHINE: change, **asdict(point)})
        return found

    def check(self, machine: Machine, **parameters: Any) -> list[str]:
        faults = []
        for point in self.points(machine, **parameters):
            asked = Point(**{name: value for name, value in point.items() if name not in (MACHINE, LABELS)})
            try:
                if asked.phase == SERIES:
                    faults += fits_tcm(machine.config, asked.nbytes)
                else:
                    _ = asked.layer if asked.phase == LINEAR else algorithm_of(asked.setting(machine.config))
            except KernbenchError as error:
                faults.append(str(error))
        return list(dict.fromkeys(faults))

    def fields(self) -> dict[str, inspect.Parameter]:
        return dict(inspect.signature(Point).parameters)

    def work(self, machine: Machine, **point: Any) -> float:
        asked = Point(**point)
        if asked.phase == LINEAR:
            return 50 * LayersStudy().work(machine, **asked.layer)
        if asked.phase == SERIES:
            return float(KERNELS * machine.config.pes_per_cube * (50_000 + asked.nbytes))
        setting = asked.setting(machine.config)
        return 1_500_000 * setting.programs + work(machine.config, setting).scores

    def simulate(self, machine: Machine, **point: Any) -> Row:
        asked, config = Point(**point), machine.config
        if asked.phase == LINEAR:
            return _linear(machine, asked)
        if asked.phase == SERIES:
            return short_kernels(machine, asked.nbytes, asked.graph)
        setting, copies = asked.setting(config), asked.group // asked.query_heads
        counted = work(config, setting)
        bounds, scores = counted.bounds, counted.scores
        kv_elements = asked.kv_heads * asked.head_dim * asked.context * asked.batch * copies
        held, left_out = memory(config, asked.sips, kv_elements, asked.dtype)
        row: Row = {name: value for name, value in asdict(asked).items() if name not in _NOT_SHOWN}
        row |= {
            "cubes": asked.cubes or config.cubes_per_sip, "ranks": setting.ranks, "lanes": setting.n_lanes,
            "items": setting.items, "tokens": setting.tokens, "pes": setting.programs, **held, "flops": counted.flops,
            "kv_bytes": counted.kv_bytes, "hbm_ns": counted.hbm_ns, "matrix_ns": counted.matrix_ns,
            "vector_ns": counted.vector_ns, "bound_ns": max(bounds.values()),
            "limiter": max(bounds, key=bounds.__getitem__), "useful": counted.useful, "scores": scores,
            "left_out": left_out,
        }  # fmt: skip
        if not left_out:
            log = "off" if scores > LOGGED else "operation" if scores > TRACED else "tile"
            result = run(machine, setting, data=asked.data, log=log)
            row |= {"makespan_ns": _makespan_ns(result)} | (measured(result) if log != "off" else {})
            row |= _path(result) if log == "tile" else {}
        one_token = asked.phase == "decode" and asked.queries is None
        llama = (asked.kv_heads, asked.group, asked.head_dim) == (KV_HEADS, GROUP, HEAD_DIM)
        return row | (_rates(config, row) if one_token and llama else {})

    def program(
        self,
        torch: RuntimeContext,
        *,
        phase: Annotated[Literal["decode", "prefill"], "one token, or as many as keys"] = "decode",
        tokens: Annotated[int, "keys and values of each rank"] = 128,
        ranks: Annotated[int, "PEs that share the tokens of a kv head"] = 8,
        across: Annotated[Literal["pe", "cube"], "ranks follow each other over"] = "pe",
        cubes: Annotated[int, "that take part"] = 1,
        pes: Annotated[int, "of each cube"] = 8,
        items: Annotated[int, "kv heads for each group of ranks"] = 1,
        group: Annotated[int, "query heads of a kv head"] = 8,
        head_dim: Annotated[int, "elements of a head"] = 128,
        causal: Annotated[bool, "prefill: a token sees those up to its own"] = True,
        order: Annotated[Literal["zigzag", "striped", "contiguous"], "prefill: tokens of a rank"] = "zigzag",
        ring: Annotated[bool, "prefill: K and V go round; else along an open chain"] = True,
        merge: Annotated[str, "decode: what merges the parts", Choices(_merges)] = _MERGE,
        dtype: Annotated[Literal["f16", "bf16"], "of q, k, v and the result"] = "f16",
    ) -> str:
        """Attention with keys and values spread over ranks, from q, k, v in HBM to the result there."""
        setting = _explored(
            phase, causal=causal, order=order, tokens=tokens, ranks=ranks, across=across, cubes=cubes, pes=pes,
            items=items, group=group, head_dim=head_dim, ring=ring, merge=merge, dtype=dtype,
        )  # fmt: skip
        attend(torch, setting)
        bounds = work(torch.engine.machine.config, setting).bounds
        limits = ", ".join(f"{name} {ns:,.0f} ns" for name, ns in bounds.items())
        return f"{setting.n_lanes} x {ranks} ranks; no run is faster than: {limits}"

    def faults(self, machine: Machine, **values: Any) -> list[str]:
        setting = _explored(**values)
        itemsize, prefill = as_dtype(setting.dtype).itemsize, setting.phase == "prefill"
        faults = at_most(machine, cubes=setting.cubes, pes=setting.pes)
        row_bytes = setting.items * setting.head_dim * itemsize * 2 * (1 + prefill * setting.group)
        faults += fits_slice(machine, "tokens", setting.tokens, setting.tokens * row_bytes)
        if prefill and setting.order == "zigzag" and setting.tokens % 2:
            faults.append(f"tokens = {setting.tokens} must be even: zigzag cuts the tokens of a rank into halves")
        if setting.programs % setting.ranks:
            faults.append(f"ranks = {setting.ranks} must divide cubes x pes = {setting.programs}")
        if faults:
            return faults
        try:
            plan(algorithm_of(setting), machine.config, [0], list(product(range(setting.cubes), range(setting.pes))))
        except KernbenchError as error:
            return [f"merge = {setting.merge!r} does not run here: {error}"]
        return []

    def tables(self, rows: Sequence[Row]) -> dict[str, pd.DataFrame]:
        return report.tables(rows, steps(rows))

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        return report.findings(rows, steps(rows))


def _linear(machine: Machine, asked: Point) -> Row:
    """Row of a linear layer, with the time of its weights at the bandwidth of HBM."""
    config = machine.config
    row = LayersStudy().simulate(machine, **asked.layer)
    weights_ns = row["n"] * row["k"] * as_dtype(asked.dtype).itemsize / (config.cube.hbm.slice_gbs * config.pes_per_sip)
    found: Row = {"phase": asked.phase, "product": asked.product, "batch": asked.batch, "sips": 1}
    found |= {"shape": row["shape"], "weights_ns": weights_ns, "bound_ns": max(weights_ns, row["bound_ns"])}
    if row["left_out"]:
        return found | {"left_out": row["left_out"]}
    measured = {name: row[name] for name in ("makespan_ns", "hottest_link", "hottest_busy", "left_out")}
    return found | measured | {"over_hbm": row["makespan_ns"] / weights_ns}


def _series(
    *, contexts: Sequence[int], batches: Sequence[Sequence[int]], scaling: Sequence[Sequence[int]],
    merges: Sequence[str], query_heads: Sequence[Sequence[int]], prompts: Sequence[Sequence[Any]],
    chunks: Sequence[int], linear: Sequence[int], products: Sequence[str], context: int, batch: int, cubes: int,
    dtype: str,
) -> list[tuple[str, Point]]:  # fmt: skip
    decode = Point("decode", context, batch, cubes=cubes, dtype=dtype)
    lane = replace(decode, phase="prefill", lane_of=KV_HEADS * batch)
    found = [("decode context", replace(decode, context=n)) for n in contexts]
    found += [("decode batch", replace(decode, context=n, batch=many)) for n, many in batches]
    found += [("decode ranks", replace(decode, sips=sips, cubes=n, span=bool(span))) for sips, n, span in scaling]
    found += [("decode merge", replace(decode, merge=merge)) for merge in merges]
    found += [("query heads", replace(decode, sips=sips, query_heads=heads)) for sips, heads in query_heads]
    found += [("prefill", replace(lane, context=n, causal=True, order=order, ring=ring)) for n, order, ring in prompts]
    for n in chunks:
        found += [("chunk", replace(lane, queries=n)), ("chunk", replace(lane, phase="decode", queries=n))]
    layer = Point(LINEAR, dtype=dtype)
    return found + [("linear", replace(layer, batch=many, product=name)) for many in linear for name in products]


def _whole(points: Sequence[Point], wanted: Sequence[Sequence[Any]]) -> list[Point]:
    """Return the first point of each (phase, context) that is no chunk; zigzag order and a ring are preferred."""
    found = []
    for phase, context in wanted:
        fits = [p for p in points if (p.phase, p.context, p.queries) == (phase, context, None)]
        fits.sort(key=lambda p: (p.order != "zigzag", not p.ring))
        if not fits:
            raise ArgumentError(f"halvings: no point of {phase} with {context} tokens; known: the study's other points")
        found.append(fits[0])
    return found


def _makespan_ns(result: Result) -> float:
    launch = result.launches[-1]
    return (launch.end_ps - launch.start_ps) / 1000


def measured(result: Result) -> Row:
    """Columns of one run; times are those of the launch."""
    launch, all_rows = result.launches[-1], result.records
    tiled = np.isin(all_rows.kind, [i for i, kind in enumerate(all_rows.kinds) if kind in _TILED])
    records, window = all_rows.where(~tiled), (launch.start_ps, launch.end_ps)
    parts = overlap(records, window)
    return {
        "makespan_ns": _makespan_ns(result), "work_ns": parts.work_ns, "hidden_ns": parts.hidden_ns,
        "exposed_ns": parts.exposed_ns, "idle_ns": parts.idle_ns,
        **breakdown(records, window=window).columns(), **counts(records.commands),
        "sent_bytes": int(records.of_kind("send").nbytes.sum()),
        "dma_bytes": int(records.of_kind("load", "store").nbytes.sum()),
    }  # fmt: skip


_TILED = ("gemm", "fetch", "store_tcm")  # kinds of rows that only a log of tiles has


def _path(result: Result) -> Row:
    """Parts of the launch's critical path, and how long the matrix engines worked."""
    launch = result.launches[-1]
    total: Counter[str] = Counter()
    for (kind, _), ps in critical_path(result.records, [launch]).parts().items():
        total[next((name for name, kinds in PATH.items() if kind in kinds), "control")] += ps
    found = {f"path_{name}_ns": total[name] / 1000 for name in (*PATH, "control")}
    busy = breakdown(result.records, window=(launch.start_ps, launch.end_ps)).busy_ns()
    return found | {"busy_matrix_ns": busy["gemm"]}


def _rates(config: MachineConfig, row: Row) -> Row:
    """Decode tokens per second and SIP: as HBM would allow without and with weights, and as simulated."""
    weights_ns = STREAMED * 2 / (config.cube.hbm.slice_gbs * config.pes_per_sip * row["sips"])
    bound = LAYERS * row["hbm_ns"]
    times = {"bound": bound, "bound_with_weights": bound + weights_ns}
    out: Row = {}
    if "makespan_ns" in row:
        times["attention"] = LAYERS * row["makespan_ns"]
        out["attention_of_bound_ratio"] = round(bound / times["attention"], 3)
    each = row["batch"] / row["sips"] * 1e9
    return {f"{name}_tokens_per_s_per_sip": round(each / ns, 1) for name, ns in times.items()} | out


def counts(commands: Sequence[CommandInfo]) -> dict[str, int]:
    by_name = Counter(command.name for command in commands if command.pe >= 0)
    return {key: sum(by_name[name] for name in wanted) for key, wanted in COUNTED.items()}


def panels(torch: RuntimeContext) -> list[Row]:
    """Run the panels in a session with data; rows have panel, ranks and counts."""
    rows, seen = [], len(torch.engine.records().commands)
    for panel, point in PANELS.items():
        setting = point.setting(torch.engine.machine.config)
        attend(torch, setting)
        commands = torch.engine.records().commands
        rows.append({"panel": panel, "ranks": setting.ranks, **counts(commands[seen:])})
        seen = len(commands)
    return rows


def write_panels(rows: Sequence[Row], folder: Path) -> Path:
    found = [
        {"panel": row["panel"], "n_ranks": row["ranks"], "op_log_summary": {name: row[name] for name in COUNTED}}
        for row in rows
        if row.get("panel")
    ]
    content = {
        "version": 1, "validation_scale": True, "panels": [row["panel"] for row in found],
        "config": _PANEL_CONFIG, "rows": found,
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    return write_text(folder / PANEL_FILE, json.dumps(content, indent=1) + "\n")


def _explored(phase: str, *, causal: bool, order: str, **values: Any) -> Setting:
    """Decode has no mask and no order of tokens."""
    prefill = phase == "prefill"
    return Setting(phase, causal=causal and prefill, order=order if prefill else "contiguous", **values)


def steps(rows: Sequence[Row]) -> list[Row]:
    """Decode rows of one SIP whose linear layers were all simulated, with the time of a whole step."""
    took = {(row["batch"], row["product"]): float(row["makespan_ns"]) for row in report.simulated(rows, "linear")}
    found: list[Row] = []
    for row in report.simulated(rows, "decode context", "decode batch"):
        linear = [TIMES[name] * took[row["batch"], name] for name in PRODUCTS if (row["batch"], name) in took]
        if row["sips"] == 1 and len(linear) == len(PRODUCTS):
            step_ns = LAYERS * row["makespan_ns"] + sum(linear)
            rate = round(row["batch"] * 1e9 / step_ns, 1)
            found.append({**row, "linear_share": sum(linear) / step_ns, report.WITH_LINEAR: rate})
    return found
