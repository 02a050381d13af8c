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
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np

from kernbench.analysis.breakdown import breakdown, overlap
from kernbench.analysis.critical_path import critical_path
from kernbench.analysis.records import CommandInfo
from kernbench.analysis.result import Result
from kernbench.ccl.algorithm import plan
from kernbench.ccl.install import load_ccl_config, names
from kernbench.config import MachineConfig
from kernbench.config.files import write_text
from kernbench.dtypes import as_dtype
from kernbench.errors import ArgumentError, ConfigError, KernbenchError
from kernbench.runtime_api.context import RuntimeContext
from kernbench.studies import gqa_report
from kernbench.studies.explore import SESSION_US, Choices, at_most, fits_slice
from kernbench.studies.gqa_run import (
    GROUP,
    HEAD_DIM,
    KV_HEADS,
    LAYERS,
    PRODUCTS,
    STREAMED,
    Setting,
    algorithm_of,
    need,
    run,
    slice_gbs,
    start,
    work,
)  # fmt: skip
from kernbench.studies.layers import LayersStudy
from kernbench.studies.study import Finding, Parameter, Study
from kernbench.sweeps.keys import Row
from kernbench.topology.builder import Machine

if TYPE_CHECKING:
    import pandas as pd

# Scores of a run whose log is kept. A prompt of 131,072 tokens has 69 billion, in 144 million commands of 0.8 KB each.
LOGGED = 1 << 31
TRACED = 1 << 26  # and of a run whose tiles are logged, which the critical path needs
_MERGE = "recursive_doubling_allreduce"
LINEAR = "linear"
_NOT_SHOWN = ("data", "pes_per_cube", "product")  # fields of a point that no row of attention has

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

    Attributes
    ----------
    phase : str
        "prefill", "decode", or "linear": a linear layer of Llama-3 70B for one token of each sequence, on a whole SIP.
    product : str
        Of "linear": which one, a key of `gqa_run.PRODUCTS`.
    context, batch : int
        Tokens of each sequence, and sequences.
    sips : int
        Devices.
    cubes, pes_per_cube : int or None
        Cubes of each device, and PEs of each cube; None: all.
    query_heads : int
        Of an item: the whole group of a kv head, or fewer, whose keys and values are then stored once for each part.
    span : bool
        Whether a lane has ranks on every SIP; else each SIP has its items, and one SIP is run for all.
    lane_of : int
        In prefill: how many equal lanes one stands for; that one is run.
    queries : int or None
        Query tokens of each sequence; by default all (prefill) or one (decode).
    across, causal, order, ring, merge, dtype
        As in `gqa_run.Setting`.
    kv_heads, group, head_dim : int
        Of the model: kv heads, query heads of each, elements of a head.
    data : bool
        Whether values are computed, and the result compared with numpy.
    """

    phase: str = "decode"
    context: int = 8192
    batch: int = 1
    sips: int = 1
    cubes: int | None = None
    query_heads: int = GROUP
    span: bool = False
    lane_of: int = 1
    queries: int | None = None
    across: str = "pe"
    causal: bool = False
    order: str = "contiguous"
    ring: bool = True
    merge: str = _MERGE
    dtype: str = "f16"
    pes_per_cube: int | None = None
    kv_heads: int = KV_HEADS
    group: int = GROUP
    head_dim: int = HEAD_DIM
    data: bool = False
    product: str = ""

    @property
    def layer(self) -> dict[str, Any]:
        """The linear layer as a point of the study of layers."""
        if self.product not in PRODUCTS or self.batch < 1:
            raise ArgumentError(
                f"linear layer {self.product!r} of {self.batch} sequences: expected a known product "
                f"({', '.join(PRODUCTS)}) and at least 1 sequence"
            )
        k, n = PRODUCTS[self.product]
        return {"m": self.batch, "n": n, "k": k, "placement": "columns", "dtype": self.dtype}

    def setting(self, config: MachineConfig) -> Setting:
        """Return what is run on a machine.

        Raises
        ------
        ArgumentError
            If items or tokens cannot be dealt out evenly.
        """
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
PANEL_FILE, PANEL_VERSION = "sweep.json", 1
PANEL_CONFIG = {
    "S_q_prefill": 16, "S_kv_per_rank": 16, "h_q": 1, "h_kv": 1, "d_head": 64, "n_ranks_single_user": 8,
    "n_ranks_multi_user": 4,
}  # fmt: skip


def halves(config: MachineConfig) -> dict[str, dict[str, Any]]:
    """Return for each part of a machine what makes it half as fast, and nothing else."""
    cube, pe = config.cube, config.cube.pe
    return {
        "HBM": {
            "cube.hbm.channel_bw_gbs": cube.hbm.channel_bw_gbs / 2,
            "cube.hbm.bw_gbs": cube.hbm.bw_gbs / 2,
        },
        "matrix engine": {"cube.pe.pe_gemm.clock_ghz": pe.pe_gemm.clock_ghz / 2},
        "vector engine": {"cube.pe.pe_math.clock_ghz": pe.pe_math.clock_ghz / 2},
        "command issue": {"cube.pe.pe_cpu.command_ns": pe.pe_cpu.command_ns * 2},
        "links between PEs": {
            "cube.noc.link_bw_gbs": cube.noc.link_bw_gbs / 2,
            "cube.noc.router.overhead_ns": cube.noc.router.overhead_ns * 2,
            "cube.ucie.bw_gbs": cube.ucie.bw_gbs / 2,
            "cube.ucie.port_ns": cube.ucie.port_ns * 2,
        },
    }


class GqaStudy(Study):
    """Attention of Llama-3 70B over PEs, cubes and SIPs."""

    name, title = "gqa", "Attention of Llama-3 70B"
    method = gqa_report.METHOD
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
        "context": Parameter(512, "context of what does not vary it", "tokens"),
        "batch": Parameter(1, "sequences of what does not vary them"),
        "cubes": Parameter(2, "cubes of a SIP"),
        "dtype": Parameter("f16", "type of q, k, v and the result"),
    }
    columns = gqa_report.COLUMNS
    charts = gqa_report.CHARTS

    def points(self, machine: Machine, *, halvings: Sequence[Sequence[Any]], **parameters: Any) -> list[Row]:
        """Return the points of all series; of a halving, one for each part of the machine and one without a change."""
        series = _series(**parameters)
        config, found = machine.config, []
        if config.cubes_per_sip >= 4 and config.pes_per_cube >= 8:
            found += [{"labels": {"series": "panel", "panel": n}, **asdict(point)} for n, point in PANELS.items()]
        for name, point in series:
            more = {"machine": {"system.sips.count": point.sips}} if point.sips > config.n_sips else {}
            found.append({"labels": {"series": name}, **more, **asdict(point)})
        for point in _whole([point for _, point in series], halvings):
            for part, change in {"": {}, **halves(config)}.items():
                found.append({"labels": {"series": "halving", "part": part}, "machine": change, **asdict(point)})
        return found

    def check(self, machine: Machine, **parameters: Any) -> list[str]:
        """Refuse points that cannot be dealt out to ranks, and unknown merges."""
        faults = []
        for point in self.points(machine, **parameters):
            asked = _asked(point)
            try:
                _ = asked.layer if asked.phase == LINEAR else algorithm_of(asked.setting(machine.config))
            except KernbenchError as error:
                faults.append(str(error))
        return list(dict.fromkeys(faults))

    def fields(self) -> dict[str, inspect.Parameter]:
        """Return the fields of a `Point`."""
        return dict(inspect.signature(Point).parameters)

    def work(self, machine: Machine, **point: Any) -> float:
        """Return the commands of a point, roughly: those of its programs, and those of its scores."""
        asked = Point(**point)
        if asked.phase == LINEAR:
            return 7 * LayersStudy().work(machine, **asked.layer)
        setting = asked.setting(machine.config)
        return 50_000 * setting.programs + _scores(machine.config, setting)

    def simulate(self, machine: Machine, **point: Any) -> Row:
        """Run one point and return its row; one that does not fit in HBM says so, and has its bounds only.

        A point of more than `TRACED` scores (query heads x query tokens x tokens that they see) has no critical path,
        and one of more than `LOGGED` only its makespan.
        """
        asked, config = Point(**point), machine.config
        if asked.phase == LINEAR:
            return _linear(machine, asked)
        setting, copies = asked.setting(config), asked.group // asked.query_heads
        counted, scores = work(config, setting), _scores(config, setting)
        held = need(
            config, asked.sips, asked.kv_heads * asked.head_dim * asked.context * asked.batch * copies, asked.dtype
        )
        row: Row = {name: value for name, value in asdict(asked).items() if name not in _NOT_SHOWN}
        row |= {
            "cubes": asked.cubes or config.cubes_per_sip, "ranks": setting.ranks, "lanes": setting.n_lanes,
            "items": setting.items, "tokens": setting.tokens, "pes": setting.programs, "weights_bytes": held.weights,
            "kv_model_bytes": held.kv, "hbm_bytes": held.room, "flops": counted.flops, "kv_bytes": counted.kv_bytes,
            "hbm_ns": counted.hbm_ns, "matrix_ns": counted.matrix_ns, "vector_ns": counted.vector_ns,
            "bound_ns": counted.bound_ns, "limiter": counted.limiter, "useful": counted.useful, "scores": scores,
            "left_out": held.obstacle,
        }  # fmt: skip
        if not held.obstacle:
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
        merge: Annotated[str, "decode: what merges the parts", Choices(lambda _: _merges())] = _MERGE,
        dtype: Annotated[Literal["f16", "bf16"], "of q, k, v and the result"] = "f16",
    ) -> str:
        """Attention with keys and values spread over ranks, from q, k, v in HBM to the result there."""
        setting = _explored(
            phase, causal=causal, order=order, tokens=tokens, ranks=ranks, across=across, cubes=cubes, pes=pes,
            items=items, group=group, head_dim=head_dim, ring=ring, merge=merge, dtype=dtype,
        )  # fmt: skip
        start(torch, setting)()
        bounds = work(torch.engine.machine.config, setting).bounds
        limits = ", ".join(f"{name} {ns:,.0f} ns" for name, ns in bounds.items())
        return f"{setting.n_lanes} x {ranks} ranks; no run is faster than: {limits}"

    def cost(self, machine: Machine, data: bool, **values: Any) -> float:
        """Return the host time of `program` [us]: programs, tiles of keys by queries, and with data the reference."""
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
            raise ConfigError(faults)
        try:
            plan(algorithm_of(setting), machine.config, [0], list(product(range(setting.cubes), range(setting.pes))))
        except KernbenchError as error:
            raise ConfigError(f"merge = {setting.merge!r} does not run here: {error}") from error
        tile = machine.config.cube.pe.pe_gemm.tile
        rows, steps = setting.queries * setting.group, setting.ranks if prefill else 1
        tiles = -(-rows // tile.m) * -(-setting.tokens // tile.n) * -(-setting.head_dim // tile.k)
        seen = 0.5 if setting.causal else 1.0
        each = 20_000 + setting.items * steps * (2000 + 60 * setting.tokens + 400 * seen * tiles)
        macs = 3 * setting.items * rows * setting.tokens * setting.ranks * setting.head_dim
        return SESSION_US + setting.programs * (each + (2e-4 * macs if data else 0.0))

    def tables(self, rows: Sequence[Row]) -> dict[str, pd.DataFrame]:
        """Return the tables of the page."""
        return gqa_report.tables(rows)

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """Return what the rows say."""
        return gqa_report.findings(rows)


def _linear(machine: Machine, asked: Point) -> Row:
    """Return the row of a linear layer, with the time of its weights over the bandwidth of HBM."""
    config = machine.config
    row = LayersStudy().simulate(machine, **asked.layer)
    weights_ns = row["n"] * row["k"] * as_dtype(asked.dtype).itemsize / (slice_gbs(config) * config.pes_per_sip)
    found: Row = {"phase": asked.phase, "product": asked.product, "batch": asked.batch, "sips": 1}
    found |= {"shape": row["shape"], "weights_ns": weights_ns, "bound_ns": max(weights_ns, row["bound_ns"])}
    if row["left_out"]:
        return found | {"left_out": row["left_out"]}
    measured = {name: row[name] for name in ("makespan_ns", "hottest_link", "hottest_busy", "left_out")}
    return found | measured | {"over_hbm": row["makespan_ns"] / weights_ns}


def _series(
    *,
    contexts: Sequence[int],
    batches: Sequence[Sequence[int]],
    scaling: Sequence[Sequence[int]],
    merges: Sequence[str],
    query_heads: Sequence[Sequence[int]],
    prompts: Sequence[Sequence[Any]],
    chunks: Sequence[int],
    linear: Sequence[int],
    products: Sequence[str],
    context: int,
    batch: int,
    cubes: int,
    dtype: str,
) -> list[tuple[str, Point]]:
    """Return the points of the parameters of the study, each with its series."""
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
    """Return the first point of each (phase, context) that is run as a whole: no chunk.

    Of prompts, the order of tokens that gives every rank the same work.
    """
    found = []
    for phase, context in wanted:
        fits = [p for p in points if (p.phase, p.context, p.queries) == (phase, context, None)]
        fits.sort(key=lambda p: (p.order != "zigzag", not p.ring))
        if not fits:
            raise ArgumentError(f"halvings: no point of {phase} with {context} tokens; known: the study's other points")
        found.append(fits[0])
    return found


def _asked(point: Mapping[str, Any]) -> Point:
    return Point(**{name: value for name, value in point.items() if name not in ("machine", "labels")})


def _scores(config: MachineConfig, setting: Setting) -> int:
    return work(config, setting).flops // (4 * setting.head_dim)


def _makespan_ns(result: Result) -> float:
    launch = result.launches[-1]
    return (launch.end_ps - launch.start_ps) / 1000


def measured(result: Result) -> Row:
    """Return what the study keeps of one run, from the rows of its operations; times are those of the launch."""
    launch, all_rows = result.launches[-1], result.records
    tiled = np.isin(all_rows.kind, [i for i, kind in enumerate(all_rows.kinds) if kind in _TILED])
    records, window = all_rows.where(~tiled), (launch.start_ps, launch.end_ps)
    parts = overlap(records, window)
    return {
        "makespan_ns": _makespan_ns(result),
        "work_ns": parts.work_ns,
        "hidden_ns": parts.hidden_ns,
        "exposed_ns": parts.exposed_ns,
        "idle_ns": parts.idle_ns,
        **breakdown(records, window=window).columns(),
        **counts(records.commands),
        "sent_bytes": int(records.of_kind("send").nbytes.sum()),
        "dma_bytes": int(records.of_kind("load", "store").nbytes.sum()),
    }


_TILED = ("gemm", "fetch", "store_tcm")  # kinds of rows that only a log of tiles has


def _path(result: Result) -> Row:
    """Return what the critical path of the launch consists of, and how long the matrix engines worked."""
    launch = result.launches[-1]
    total: Counter[str] = Counter()
    for (kind, _), ps in critical_path(result.records, [launch]).parts().items():
        total[next((name for name, kinds in PATH.items() if kind in kinds), "control")] += ps
    found = {f"path_{name}_ns": total[name] / 1000 for name in (*PATH, "control")}
    busy = breakdown(result.records, window=(launch.start_ps, launch.end_ps)).busy_ns()
    return found | {"busy_matrix_ns": busy["gemm"]}


def _rates(config: MachineConfig, row: Row) -> Row:
    """Return tokens per second and SIP of decode: as HBM would allow without and with weights, and as simulated."""
    weights_ns = STREAMED * 2 / (slice_gbs(config) * config.pes_per_sip * row["sips"])
    bound = LAYERS * row["hbm_ns"]
    times = {"bound": bound, "bound_with_weights": bound + weights_ns}
    out: Row = {}
    if "makespan_ns" in row:
        times["attention"] = LAYERS * row["makespan_ns"]
        out["attention_of_bound_ratio"] = round(bound / times["attention"], 3)
    each = row["batch"] / row["sips"] * 1e9
    return {f"{name}_tokens_per_s_per_sip": round(each / ns, 1) for name, ns in times.items()} | out


def counts(commands: Sequence[CommandInfo]) -> dict[str, int]:
    """Return how many of the commands are of each kind; those of programs count."""
    by_name = Counter(command.name for command in commands if command.pe >= 0)
    return {key: sum(by_name[name] for name in wanted) for key, wanted in COUNTED.items()}


def panels(torch: RuntimeContext) -> list[Row]:
    """Run the panels in a session with data; return panel, ranks and counts of each."""
    rows, seen = [], len(torch.engine.records().commands)
    for panel, point in PANELS.items():
        setting = point.setting(torch.engine.machine.config)
        start(torch, setting)()
        commands = torch.engine.records().commands
        rows.append({"panel": panel, "ranks": setting.ranks, **counts(commands[seen:])})
        seen = len(commands)
    return rows


def write_panels(rows: Sequence[Row], folder: Path) -> Path:
    """Write the rows of panels as `sweep.json`; return its path."""
    found = [
        {"panel": row["panel"], "n_ranks": row["ranks"], "op_log_summary": {name: row[name] for name in COUNTED}}
        for row in rows
        if row.get("panel")
    ]
    content = {
        "version": PANEL_VERSION, "validation_scale": True, "panels": [row["panel"] for row in found],
        "config": PANEL_CONFIG, "rows": found,
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    return write_text(folder / PANEL_FILE, json.dumps(content, indent=1) + "\n")


def _merges() -> list[str]:
    known = names(load_ccl_config(), "all_reduce", "rank")
    return sorted(known, key=lambda name: name != _MERGE)


def _explored(phase: str, *, causal: bool, order: str, **values: Any) -> Setting:
    """Return what the explorer's form asks for: decode has no mask and no order of tokens."""
    prefill = phase == "prefill"
    return Setting(phase, causal=causal and prefill, order=order if prefill else "contiguous", **values)
