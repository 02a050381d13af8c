"""Attention of Llama-3 70B over ranks: what limits prefill and decode, and what the ranks tell each other costs.

One layer's attention is run, from q, k and v in HBM to the result there. Sequences and kv heads are *items*; items
are dealt to lanes of ranks, and the ranks of a lane share the tokens of its items. Every key and value lies once in
the HBM slice of the rank that reads it first (`query_heads` below 8 per item: once for each group of heads). What
spreads them and what gathers the result is inside the makespan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from kernbench.analysis.breakdown import breakdown
from kernbench.analysis.overlap import overlap
from kernbench.analysis.result import Result
from kernbench.errors import ArgumentError
from kernbench.studies.gqa_panels import op_log_summary
from kernbench.studies.gqa_run import PHASES, Setting, run
from kernbench.studies.gqa_work import GROUP, HEAD_DIM, KV_HEADS, need, work
from kernbench.studies.points import Row, code_version, machine_of, run_points
from kernbench.studies.results import read_results, write_results
from kernbench.topology.builder import Machine, resolve_topology

FILE = "gqa.json"
# Scores of a run whose log is kept. A prompt of 131,072 tokens has 69 billion, in 144 million commands of 0.8 KB each.
LOGGED = 1 << 31
SERIES = ("decode context", "decode batch", "decode ranks", "decode merge", "query heads", "prefill", "chunk")


@dataclass(frozen=True, slots=True)
class Point:
    """One run of the study.

    Attributes
    ----------
    series : str
        Which question it belongs to.
    phase : str
        "prefill" or "decode".
    context, batch : int
        Tokens of each sequence, and sequences.
    sips, cubes : int
        Devices, and cubes of each.
    query_heads : int
        Of an item: 8 is a kv head's whole group; fewer share its keys and values, which are there once for each.
    span : bool
        Whether a lane has ranks on every SIP; else each SIP has its items, and one SIP is run for all.
    lane_of : int
        In prefill: how many equal lanes one stands for; that one is run.
    queries : int or None
        Query tokens of each sequence; by default all (prefill) or one (decode).
    across, causal, order, ring, merge : optional
        As in `gqa_run.Setting`.
    """

    series: str
    phase: str
    context: int
    batch: int = 1
    sips: int = 1
    cubes: int = 16
    query_heads: int = GROUP
    span: bool = False
    lane_of: int = 1
    queries: int | None = None
    across: str = "pe"
    causal: bool = False
    order: str = "contiguous"
    ring: bool = True
    merge: str = "recursive_doubling_allreduce"

    def setting(self, pes_per_cube: int, dtype: str = "f16") -> Setting:
        """Return what is run.

        Raises
        ------
        ArgumentError
            If items or tokens cannot be dealt out evenly.
        """
        items = self.batch * KV_HEADS * (GROUP // self.query_heads)
        programs = self.sips * self.cubes * pes_per_cube
        ranks = max(1, programs // items)
        lanes = programs // ranks
        if items % lanes or self.context % ranks or programs % ranks:
            raise ArgumentError(
                f"{self.phase} of {self.batch} x {self.context} tokens: {items} kv heads of sequences on {lanes} lanes "
                f"of {ranks} ranks; expected whole numbers"
            )
        if self.sips > 1 and (ranks % self.sips if self.span else lanes % self.sips):
            raise ArgumentError(f"{lanes} lanes of {ranks} ranks on {self.sips} SIPs: expected whole numbers for each")
        cubes, sips, per_lane = self.cubes, self.sips if self.span else 1, items // lanes
        if self.lane_of > 1:
            cubes, sips, per_lane = max(1, ranks // pes_per_cube), 1, 1
        tokens = self.context // ranks
        queries = self.queries
        if queries is not None and self.phase == "prefill":
            queries //= ranks
        return Setting(
            self.phase, ranks, self.across, sips, cubes, min(pes_per_cube, ranks) if self.lane_of > 1 else pes_per_cube,
            per_lane, self.query_heads, HEAD_DIM, tokens, queries, self.causal, self.order, self.ring, self.merge,
            dtype,
        )  # fmt: skip


def plan(
    *,
    contexts: Sequence[int],
    batches: Sequence[Sequence[int]],
    scaling: Sequence[Sequence[int]],
    merges: Sequence[str],
    query_heads: Sequence[Sequence[int]],
    prompts: Sequence[Sequence[Any]],
    chunks: Sequence[int],
    context: int,
    cubes: int = 16,
) -> list[Point]:
    """Return the points of the study.

    Parameters
    ----------
    contexts : sequence of int
        For one decode step of one sequence.
    batches : sequence of (context, batch)
        For decode.
    scaling : sequence of (sips, cubes, span)
        Ranks for one decode step at `context`.
    merges : sequence of str
        All-reduce algorithms for the parts of a decode step at `context`.
    query_heads : sequence of (sips, heads)
        Query heads of an item, at `context`; with 8 the ranks of all cubes share the tokens of a kv head.
    prompts : sequence of (tokens, order, ring)
        For causal prefill.
    chunks : sequence of int
        Query tokens that see the whole of `context`: by a ring, and by a merge.
    context : int
        For the series that do not vary it.
    cubes : int
        Of a SIP.
    """
    points = [Point("decode context", "decode", n, cubes=cubes) for n in contexts]
    points += [Point("decode batch", "decode", n, batch, cubes=cubes) for n, batch in batches]
    points += [
        Point("decode ranks", "decode", context, sips=sips, cubes=n, span=bool(span)) for sips, n, span in scaling
    ]
    points += [Point("decode merge", "decode", context, cubes=cubes, merge=merge) for merge in merges]
    points += [
        Point("query heads", "decode", context, sips=sips, cubes=cubes, query_heads=heads)
        for sips, heads in query_heads
    ]
    points += [
        Point("prefill", "prefill", n, cubes=cubes, lane_of=KV_HEADS, causal=True, order=order, ring=ring)
        for n, order, ring in prompts
    ]
    one_lane = Point("chunk", "prefill", context, cubes=cubes, lane_of=KV_HEADS)
    for n in chunks:
        points.append(replace(one_lane, queries=n))
        points.append(replace(one_lane, phase="decode", queries=n))
    return points


def sweep(
    machine: Machine | str | None,
    points: Sequence[Point],
    *,
    dtype: str = "f16",
    workers: int = 1,
    folder: Path | None = None,
) -> list[Row]:
    """Return one row per point; one that does not fit in HBM says so, and has its bounds only.

    A point with more than `LOGGED` scores (query heads x query tokens x tokens that they see) runs without a log: its
    row has its makespan, but not where the time went.

    Parameters
    ----------
    machine
        As for `kb.load`; points of several SIPs add as many as they need.
    points
        What to run.
    dtype
        Of q, k, v and the result.
    workers
        Processes.
    folder
        Where finished points are kept.

    Raises
    ------
    ArgumentError
        If a point is wrong; nothing has been run then.
    """
    resolved = resolve_topology(machine)
    given = []
    for point in points:
        if point.phase not in PHASES:
            raise ArgumentError(f"phase = {point.phase!r} is unknown; known: {', '.join(PHASES)}")
        own = resolved if point.sips <= resolved.config.n_sips else resolved.with_({"system.sips.count": point.sips})
        point.setting(own.config.pes_per_cube, dtype)
        asked = asdict(point)
        del asked["series"]  # what several series ask is run once
        given.append({"machine": dict(own.spec), "point": asked, "dtype": dtype})
    rows = run_points(simulate, given, folder=folder, workers=workers)
    return [{"series": point.series, **row} for point, row in zip(points, rows, strict=True)]


def simulate(point: Row) -> Row:
    """Run one point and return its row."""
    machine, asked, dtype = machine_of(point["machine"]), Point("", **point["point"]), point["dtype"]
    config = machine.config
    setting = asked.setting(config.pes_per_cube, dtype)
    counted = work(config, setting)
    held = need(config, asked.sips, asked.context, asked.batch, GROUP // asked.query_heads, dtype)
    scores = counted.flops // (4 * setting.head_dim)
    out: Row = {
        **point["point"], "ranks": setting.ranks, "lanes": setting.n_lanes, "items": setting.items,
        "tokens": setting.tokens, "pes": setting.programs, "dtype": dtype, "weights_bytes": held.weights,
        "kv_model_bytes": held.kv, "hbm_bytes": held.room, "flops": counted.flops, "kv_bytes": counted.kv_bytes,
        "hbm_ns": counted.hbm_ns, "matrix_ns": counted.matrix_ns, "vector_ns": counted.vector_ns,
        "bound_ns": counted.bound_ns, "limiter": counted.limiter, "useful": counted.useful, "scores": scores,
        "left_out": held.obstacle, "machine": machine.hash, "code_version": code_version(),
    }  # fmt: skip
    if held.obstacle:
        return out
    if scores > LOGGED:
        return out | {"makespan_ns": _makespan_ns(run(machine, setting, log="off"))}
    return out | measured(run(machine, setting))


def _makespan_ns(result: Result) -> float:
    launch = result.launches[-1]
    return (launch.end_ps - launch.start_ps) / 1000


def measured(result: Result) -> Row:
    """Return what the study keeps of one run; times are those of the launch."""
    records, launch = result.records, result.launches[-1]
    window = launch.start_ps, launch.end_ps
    parts = overlap(records, window)
    return {
        "makespan_ns": _makespan_ns(result),
        "work_ns": parts.work_ns,
        "hidden_ns": parts.hidden_ns,
        "exposed_ns": parts.exposed_ns,
        "idle_ns": parts.idle_ns,
        **breakdown(records, window=window).columns(),
        **op_log_summary(records.commands),
        "sent_bytes": int(records.of_kind("send").nbytes.sum()),
        "dma_bytes": int(records.of_kind("load", "store").nbytes.sum()),
    }


def write(rows: Sequence[Row], limits: Sequence[Row], folder: Path) -> Path:
    """Write `gqa.json` (with the rows of `gqa_limits.halved`) and `gqa.csv`; return the former."""
    import pandas as pd

    path = write_results(folder / FILE, rows, limits=list(limits))
    pd.DataFrame(rows).to_csv(path.with_suffix(".csv"), index=False, lineterminator="\n")
    return path


def read(folder: Path) -> dict[str, Any]:
    """Return the content of `gqa.json` in `folder`."""
    return read_results(folder / FILE)
