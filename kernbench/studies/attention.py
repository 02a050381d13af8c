"""Attention with keys and values spread over ranks: how it runs, its check against numpy, its counts and bounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

import ml_dtypes
import numpy as np

from kernbench._dtypes import DType, as_dtype
from kernbench.analysis._critical_path import critical_path
from kernbench.analysis._records import CommandInfo
from kernbench.analysis._roofline import matrix_ns, tile_count
from kernbench.analysis.breakdown import breakdown, overlap
from kernbench.analysis.result import Result
from kernbench.ccl._group import Group, Place, by_shard
from kernbench.ccl.algorithm import Algorithm, CollectivePlan, Mapper, algorithm
from kernbench.ccl.algorithms import recursive_doubling
from kernbench.ccl.install import resolve_algorithm_config
from kernbench.config import MachineConfig
from kernbench.errors import ArgumentError, VerificationError
from kernbench.kernels import ring_attention
from kernbench.kernels.attention import tiles
from kernbench.kernels.ring_attention import EXTRA, exchanged_attention, merge, merged_attention
from kernbench.points._keys import Row
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.bench_runner import run_program
from kernbench.runtime_api.context import RuntimeContext
from kernbench.topology.builder import Machine
from kernbench.tp.llama import LlamaConfig

# Llama-3 70B, from its published configuration.
_BLOCK = LlamaConfig()
HEADS, KV_HEADS, HEAD_DIM, GROUP = _BLOCK.heads, _BLOCK.kv_heads, _BLOCK.head_dim, _BLOCK.group
HIDDEN, FFN, LAYERS, VOCABULARY = _BLOCK.hidden, _BLOCK.ffn, 80, 128256
# Weights of the model, with the embedding and the head.
WEIGHTS = HIDDEN * (LAYERS * (2 * (HEADS + KV_HEADS) * HEAD_DIM + 3 * FFN) + 2 * VOCABULARY)

PHASES = ("prefill", "decode")
ACROSS = ("pe", "cube")
# Counters of commands: their names.
COUNTED = {
    "gemm_count": ("dot", "gemm"), "ipcq_send_count": ("send",), "ipcq_recv_count": ("recv",),
    "dma_read_count": ("load",), "dma_write_count": ("store",),
}  # fmt: skip
# What the time of a critical path went to, by kinds of its parts; "control" is the rest.
PATH_COLUMNS = {
    "hbm": ("memory",), "matrix": ("matrix",), "vector": ("vector",), "tcm": ("fetch", "store", "slot"),
    "links": ("wire", "nodes", "fill", "serialization", "queueing"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Setting:
    """A configuration: `ranks`, in the order `across` (see `subgroups`), share the tokens of each subgroup's items."""

    phase: str  # "prefill" or "decode"
    ranks: int  # of each subgroup
    across: str = "pe"
    sips: int = 1
    cubes: int = 1  # of each SIP
    pes: int = 8  # of each cube
    items: int = 1  # key/value heads of all sequences, for each subgroup
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
        return self.sips * self.cubes * self.pes

    @property
    def n_subgroups(self) -> int:
        return self.programs // self.ranks

    @property
    def queries(self) -> int:
        default = self.tokens if self.phase == "prefill" else 1
        return default if self.q_tokens is None else self.q_tokens


def algorithm_of(setting: Setting) -> Algorithm:
    common: Row = {
        "mapper": subgroups(setting.ranks, setting.across), "n_slots": setting.n_slots, "slot_size": setting.slot_size,
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


def standalone(setting: Setting) -> Algorithm:
    """Algorithm of one subgroup whose ranks are devices: for the mock, which has no PEs."""
    return replace(algorithm_of(setting), mapper=by_shard)


def _in_tcm(setting: Setting) -> bool:
    """Recursive doubling exchanges whole parts, which are merged in TCM; other algorithms take them from memory."""
    return resolve_algorithm_config(setting.merge).kernel is recursive_doubling.kernel


def run(machine: Machine, setting: Setting, *, data: bool = False, log: str = "operation") -> Result:
    """Run a setting; with `data`, compare its values with numpy in f64."""
    return run_program(machine, lambda torch: run_setting(torch, setting), data=data, log=log)


def run_setting(torch: RuntimeContext, setting: Setting) -> None:
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
        _check(setting, plan, given, np.stack([own[-1].numpy() for own in tensors]))


def _values(setting: Setting, shapes: Mapping[str, tuple[int, ...]], dtype: DType) -> dict[str, np.ndarray]:
    """Tensors q, k and v of all devices; in decode there is one query for all: subgroups differ by their keys."""
    rng = np.random.default_rng([setting.ranks, setting.tokens, setting.group])
    found = {
        name: rng.standard_normal((setting.sips, *shape)).astype(np.float32).astype(dtype.numpy)
        for name, shape in shapes.items()
    }
    if setting.phase == "decode":
        found["q"][...] = found["q"][:1, :1]
    return found


def _check(setting: Setting, plan: CollectivePlan, given: Mapping[str, np.ndarray], out: np.ndarray) -> None:
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


def subgroups(ranks: int, across: str) -> Mapper:
    """Mapper that makes subgroups of `ranks` PEs that hold a shard, as many subgroups from each SIP."""
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
        return [tuple(place for part in subgroup for place in part) for subgroup in zip(*parts, strict=True)]

    return mapper


def _along(place: Place, columns: int, pes: int) -> tuple[int, int, bool, int]:
    """Sort key of a PE: cubes row by row, back and forth; in a cube NW, NE, then SE, SW."""
    row, column = divmod(place[1], columns)
    lower = place[2] >= pes // 2
    return row, columns - 1 - column if row % 2 else column, lower, -place[2] if lower else place[2]


@dataclass(frozen=True, slots=True)
class _Work:
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


def work(config: MachineConfig, setting: Setting) -> _Work:
    pe, item = config.cube.pe, as_dtype(setting.dtype).itemsize
    heads, context = setting.n_subgroups * setting.items, setting.tokens * setting.ranks
    queries = setting.queries * (setting.ranks if setting.phase == "prefill" else 1)
    masked = setting.causal and setting.phase == "prefill"
    pairs = queries * (context + 1) // 2 if masked else queries * context
    scores = heads * pairs * setting.group
    macs = 2 * scores * setting.head_dim
    q, kv = tiles(setting.group, setting.queries)
    rows, kv = q * setting.group, min(kv, setting.tokens)
    products = (kv, setting.head_dim, rows), (rows, kv, setting.head_dim)
    useful = 2 * rows * kv * setting.head_dim / sum(tile_count(config, mkn, setting.dtype)[1] for mkn in products)
    block_ns = sum(matrix_ns(config, mkn, setting.dtype) for mkn in products)
    # Passes over the scores: max, multiply-add, exp, sum and cast on 32-bit lanes, a transposition on 16-bit lanes.
    passes = (4 + pe.pe_math.slow_op_cycles) / pe.pe_math.lanes_32bit + 1 / pe.pe_math.lanes_16bit
    cycles = scores / setting.programs * passes
    kv_bytes = 2 * heads * context * setting.head_dim * item
    return _Work(
        flops=2 * macs, kv_bytes=kv_bytes, hbm_ns=kv_bytes / (config.cube.hbm.slice_gbs * setting.programs),
        matrix_ns=scores / (rows * kv) * block_ns / setting.programs,
        vector_ns=cycles / pe.pe_math.clock_ghz, useful=useful, scores=scores,
    )  # fmt: skip


def makespan_ns(result: Result) -> float:
    launch = result.launches[-1]
    return (launch.end_ps - launch.start_ps) / 1000


def measured(result: Result) -> Row:
    """Columns of one run; times are those of the launch."""
    launch, all_rows = result.launches[-1], result.records
    tiled = np.isin(all_rows.kind, [i for i, kind in enumerate(all_rows.kinds) if kind in _TILED])
    records, window = all_rows.where(~tiled), (launch.start_ps, launch.end_ps)
    parts = overlap(records, window)
    return {
        "makespan_ns": makespan_ns(result), "work_ns": parts.work_ns, "hidden_ns": parts.hidden_ns,
        "exposed_ns": parts.exposed_ns, "idle_ns": parts.idle_ns,
        **breakdown(records, window=window).columns(), **counts(records.commands),
        "sent_bytes": int(records.of_kind("send").nbytes.sum()),
        "dma_bytes": int(records.of_kind("load", "store").nbytes.sum()),
    }  # fmt: skip


_TILED = ("gemm", "fetch", "store_tcm")  # kinds of rows that only a log of tiles has


def path(result: Result) -> Row:
    """Parts of the launch's critical path, and how long the matrix engines worked."""
    launch = result.launches[-1]
    total: Counter[str] = Counter()
    for (kind, _), ps in critical_path(result.records, [launch]).parts().items():
        total[next((name for name, kinds in PATH_COLUMNS.items() if kind in kinds), "control")] += ps
    found = {f"path_{name}_ns": total[name] / 1000 for name in (*PATH_COLUMNS, "control")}
    busy = breakdown(result.records, window=(launch.start_ps, launch.end_ps)).busy_ns()
    return found | {"busy_matrix_ns": busy["gemm"]}


def counts(commands: Sequence[CommandInfo]) -> dict[str, int]:
    by_name = Counter(command.name for command in commands if command.pe >= 0)
    return {key: sum(by_name[name] for name in wanted) for key, wanted in COUNTED.items()}
