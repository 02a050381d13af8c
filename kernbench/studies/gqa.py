"""Attention of Llama-3 70B over ranks: what limits prefill and decode, and what the exchange between ranks costs.

One layer's attention is run, from q, k and v in HBM to the result there. Kv heads of sequences are *items*; each
subgroup of ranks has as many items, and its ranks share the tokens of these. Every key and value is stored once,
in the HBM slice of the rank that reads it first (`query_heads` below the group: once for each part of the group).
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import kernbench.studies.gqa_report as report
from kernbench._dtypes import as_dtype
from kernbench.ccl.algorithm import plan
from kernbench.ccl.install import load_ccl_config, names
from kernbench.config import MachineConfig
from kernbench.config._files import write_text
from kernbench.errors import ArgumentError, KernbenchError
from kernbench.points._keys import Row
from kernbench.runtime_api.context import RuntimeContext
from kernbench.studies import attention
from kernbench.studies._start_of_work import HOSTS, KERNELS, START_OF_WORK, fits_tcm, short_kernels
from kernbench.studies.attention import (
    COUNTED,
    GROUP,
    HEAD_DIM,
    KV_HEADS,
    LAYERS,
    WEIGHTS,
    Setting,
    algorithm_of,
)
from kernbench.studies.study import LABELS, MACHINE, Choices, Parameter, Study, at_most, fits_slice, scaled
from kernbench.topology.builder import Machine


def memory(config: MachineConfig, sips: int, kv_elements: int, dtype: str) -> tuple[Row, str]:
    """HBM that the whole model needs, given the elements of a layer's keys, and why it does not fit (or empty)."""
    item = as_dtype(dtype).itemsize
    room = config.cube.hbm.slice_bytes(config.pes_per_cube) * config.pes_per_sip * sips
    weights, kv = WEIGHTS * item, 2 * LAYERS * kv_elements * item
    found = {"weights_bytes": weights, "kv_model_bytes": kv, "hbm_bytes": room}
    if weights + kv <= room:
        return found, ""
    return found, f"infeasible: {weights:,} B of weights and {kv:,} B of keys and values, HBM has {room:,} B"


# Scores of a run whose log is kept. A prompt of 131,072 tokens has 69 billion, in 144 million commands of 0.8 KB each.
LOGGED = 1 << 31
TRACED = 1 << 26  # scores of a run whose tiles are logged, as its critical path needs
_MERGE = "recursive_doubling_allreduce"
_NOT_SHOWN = ("data", "pes_per_cube", "nbytes", "graph")  # fields of a point that no row of attention has


@dataclass(frozen=True, slots=True)
class Case:
    """One run: a phase of a model's attention on part of a machine. By default the model is Llama-3 70B.

    `across`, `causal`, `order`, `ring`, `merge` and `dtype` are as in `Setting`.
    """

    phase: str = "decode"  # or "prefill", or "start of work"
    context: int = 8192  # tokens of each sequence
    batch: int = 1  # sequences
    sips: int = 1
    cubes: int | None = None  # of each SIP; None: all
    query_heads: int = GROUP  # of an item: the whole group of a kv head, or fewer; K/V are stored once for each part
    span: bool = False  # a subgroup has ranks on every SIP; otherwise each SIP has its items, and one is run for all
    represents: int = 1  # in prefill: how many equal subgroups the one that is run represents
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
    nbytes: int = 0  # of "start of work": what each PE of a cube reads in a kernel
    graph: bool = False  # of "start of work": the kernels are one graph

    def setting(self, config: MachineConfig) -> Setting:
        cubes, pes = self.cubes or config.cubes_per_sip, self.pes_per_cube or config.pes_per_cube
        items = self.batch * self.kv_heads * (self.group // self.query_heads)
        programs = self.sips * cubes * pes
        ranks = max(1, programs // items)
        subgroups = programs // ranks
        if items % subgroups or self.context % ranks or programs % ranks:
            raise ArgumentError(
                f"{self.phase} of {self.batch} x {self.context} tokens: {items} kv heads of sequences on {subgroups} "
                f"subgroups of {ranks} ranks; expected whole numbers"
            )
        if self.sips > 1 and (ranks % self.sips if self.span else subgroups % self.sips):
            raise ArgumentError(
                f"{subgroups} subgroups of {ranks} ranks on {self.sips} SIPs: expected whole numbers for each"
            )
        sips, queries = self.sips if self.span else 1, self.queries
        if self.represents > 1:
            cubes, sips, pes = max(1, ranks // pes), 1, min(pes, ranks)
        if queries is not None and self.phase == "prefill":
            queries //= ranks
        return Setting(
            self.phase, ranks, self.across, sips, cubes, pes, items // subgroups, self.query_heads, self.head_dim,
            self.context // ranks, queries, self.causal, self.order, self.ring, self.merge, self.dtype,
        )  # fmt: skip


# Four small runs whose values are compared with numpy and whose commands are counted: 16 tokens a rank, one head of 64
# elements. One user has the PEs of a cube and a ring; of several users, each has one PE of four cubes and a chain.
_PANEL = Case(kv_heads=1, group=1, query_heads=1, head_dim=64, data=True)
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
        "kernel_bytes": Parameter([], "what each PE of a cube reads in one of several short kernels", "B"),
        "context": Parameter(512, "context of what does not vary it", "tokens"),
        "batch": Parameter(1, "sequences of what does not vary them"),
        "cubes": Parameter(2, "cubes of a SIP"),
        "dtype": Parameter("f16", "type of q, k, v and the result"),
    }
    method, columns, charts = report.METHOD, report.COLUMNS, report.CHARTS
    tables, findings = staticmethod(report.tables), staticmethod(report.findings)

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
            point = Case(START_OF_WORK, nbytes=nbytes, graph=graph)
            found.append({LABELS: {"series": START_OF_WORK, "host": host}, MACHINE: change, **asdict(point)})
        for point in _whole([point for _, point in series], halvings):
            for part in ("", *HALVES):
                change = scaled(config, HALVES.get(part, {}))
                found.append({LABELS: {"series": "halving", "part": part}, MACHINE: change, **asdict(point)})
        return found

    def check(self, machine: Machine, **parameters: Any) -> list[str]:
        faults = []
        for point in self.points(machine, **parameters):
            asked = Case(**{name: value for name, value in point.items() if name not in (MACHINE, LABELS)})
            try:
                if asked.phase == START_OF_WORK:
                    faults += fits_tcm(machine.config, asked.nbytes)
                else:
                    algorithm_of(asked.setting(machine.config))
            except KernbenchError as error:
                faults.append(str(error))
        return list(dict.fromkeys(faults))

    def fields(self) -> dict[str, inspect.Parameter]:
        return dict(inspect.signature(Case).parameters)

    def work(self, machine: Machine, **point: Any) -> float:
        asked = Case(**point)
        if asked.phase == START_OF_WORK:
            return float(KERNELS * machine.config.pes_per_cube * (50_000 + asked.nbytes))
        setting = asked.setting(machine.config)
        return 1_500_000 * setting.programs + attention.work(machine.config, setting).scores

    def simulate(self, machine: Machine, **point: Any) -> Row:
        asked, config = Case(**point), machine.config
        if asked.phase == START_OF_WORK:
            return short_kernels(machine, asked.nbytes, asked.graph)
        setting, copies = asked.setting(config), asked.group // asked.query_heads
        counted = attention.work(config, setting)
        bounds, scores = counted.bounds, counted.scores
        kv_elements = asked.kv_heads * asked.head_dim * asked.context * asked.batch * copies
        held, left_out = memory(config, asked.sips, kv_elements, asked.dtype)
        row: Row = {name: value for name, value in asdict(asked).items() if name not in _NOT_SHOWN}
        row |= {
            "cubes": asked.cubes or config.cubes_per_sip, "ranks": setting.ranks, "subgroups": setting.n_subgroups,
            "items": setting.items, "tokens": setting.tokens, "pes": setting.programs, **held, "flops": counted.flops,
            "kv_bytes": counted.kv_bytes, "hbm_ns": counted.hbm_ns, "matrix_ns": counted.matrix_ns,
            "vector_ns": counted.vector_ns, "bound_ns": max(bounds.values()),
            "limiter": max(bounds, key=bounds.__getitem__), "useful": counted.useful, "scores": scores,
            "left_out": left_out,
        }  # fmt: skip
        if not left_out:
            log = "off" if scores > LOGGED else "operation" if scores > TRACED else "tile"
            result = attention.run(machine, setting, data=asked.data, log=log)
            row |= {"makespan_ns": attention.makespan_ns(result)} | (attention.measured(result) if log != "off" else {})
            row |= attention.path(result) if log == "tile" else {}
        return row

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
        setting = Setting(
            phase, causal=causal, order=order, tokens=tokens, ranks=ranks, across=across, cubes=cubes, pes=pes,
            items=items, group=group, head_dim=head_dim, ring=ring, merge=merge, dtype=dtype,
        )  # fmt: skip
        attention.run_setting(torch, setting)
        bounds = attention.work(torch.engine.machine.config, setting).bounds
        limits = ", ".join(f"{name} {ns:,.0f} ns" for name, ns in bounds.items())
        return f"{setting.n_subgroups} x {ranks} ranks; no run is faster than: {limits}"

    def faults(self, machine: Machine, **values: Any) -> list[str]:
        setting = Setting(**values)
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


def _series(
    *, contexts: Sequence[int], batches: Sequence[Sequence[int]], scaling: Sequence[Sequence[int]],
    merges: Sequence[str], query_heads: Sequence[Sequence[int]], prompts: Sequence[Sequence[Any]],
    chunks: Sequence[int], context: int, batch: int, cubes: int, dtype: str,
) -> list[tuple[str, Case]]:  # fmt: skip
    decode = Case("decode", context, batch, cubes=cubes, dtype=dtype)
    prefill = replace(decode, phase="prefill", represents=KV_HEADS * batch)
    found = [("decode context", replace(decode, context=n)) for n in contexts]
    found += [("decode batch", replace(decode, context=n, batch=many)) for n, many in batches]
    found += [("decode ranks", replace(decode, sips=sips, cubes=n, span=bool(span))) for sips, n, span in scaling]
    found += [("decode merge", replace(decode, merge=merge)) for merge in merges]
    found += [("query heads", replace(decode, sips=sips, query_heads=heads)) for sips, heads in query_heads]
    found += [
        ("prefill", replace(prefill, context=n, causal=True, order=order, ring=ring)) for n, order, ring in prompts
    ]
    for n in chunks:
        found += [("chunk", replace(prefill, queries=n)), ("chunk", replace(prefill, phase="decode", queries=n))]
    return found


def _whole(points: Sequence[Case], wanted: Sequence[Sequence[Any]]) -> list[Case]:
    """Return the first point of each (phase, context) that is no chunk; zigzag order and a ring are preferred."""
    found = []
    for phase, context in wanted:
        fits = [p for p in points if (p.phase, p.context, p.queries) == (phase, context, None)]
        fits.sort(key=lambda p: (p.order != "zigzag", not p.ring))
        if not fits:
            raise ArgumentError(f"halvings: no point of {phase} with {context} tokens; known: the study's other points")
        found.append(fits[0])
    return found


def panels(torch: RuntimeContext) -> list[Row]:
    """Run the panels in a session with data; rows have panel, ranks and counts."""
    rows, seen = [], len(torch.engine.records().commands)
    for panel, point in PANELS.items():
        setting = point.setting(torch.engine.machine.config)
        attention.run_setting(torch, setting)
        commands = torch.engine.records().commands
        rows.append({"panel": panel, "ranks": setting.ranks, **attention.counts(commands[seen:])})
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
