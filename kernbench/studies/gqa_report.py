"""The report of the attention study: charts, findings and tables of its rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from kernbench.analysis._roofline import Roofs, macs_per_ns
from kernbench.studies._findings import Finding, claim, ends, over
from kernbench.studies._start_of_work import KERNELS, START_OF_WORK
from kernbench.studies.study import Tables, groups, table
from kernbench.topology.builder import Machine
from kernbench.viz import _palette as palette
from kernbench.viz import charts as kinds
from kernbench.viz.charts import Chart, ChartRow, Column, first_upper

METHOD = (
    "One layer's attention runs from q, k and v in HBM to the result there; the makespan is that of its launch, from "
    "the host's message to the last completion. Every key and value is stored once, in the slice of the PE (rank) "
    "that reads it first. In prefill, tiles of K and V travel between the ranks of a kv head; in decode, the parts of "
    "the softmax are merged by an all-reduce: by recursive doubling from TCM to TCM, by the others through HBM. "
    "Prefill runs one of the equal subgroups of ranks. The bound is the longest of: keys and values over the HBM "
    "bandwidth of the PEs, whole tiles over the rate of the matrix engine, passes over the scores over the rate of "
    "the vector engine. Whole steps of a model are in the report serving. Short kernels: each PE of a cube reads its "
    f"slice, {KERNELS} times; the time is that from the calls to the last completion, over {KERNELS}."
)

RUN, TIME_US, _PES, _LINE, _SHARE = "run", "time_us", "all_pes", "line", "of_bound"
_RING, MERGED = "K/V around a ring", "parts merged"
COLUMNS = {
    RUN: Column("run"),
    "context": Column("context", "tokens"),
    "batch": Column("sequences"),
    "queries": Column("query tokens"),
    "makespan_ns": Column("makespan", "ns"),
    "bound_ns": Column("lower bound", "ns"),
    "left_out": Column("not simulated because"),
    TIME_US: Column("time of one layer's attention", "us"),
    _PES: Column("PEs"),
    "longer_pct": Column("longer at half the speed of one part", "%"),
    "intensity": Column("useful operations per byte from HBM", "flop/B"),
    "rate": Column("useful operations of a PE"),
    "sent_bytes": Column("sent between PEs", "B"),
    "path_matrix_ns": Column("matrix engines"),
    "path_vector_ns": Column("vector engines"),
    "path_hbm_ns": Column("HBM slices"),
    "path_links_ns": Column("links and routers"),
    "path_tcm_ns": Column("TCM ports"),
    "path_control_ns": Column("control steps"),
    "work_ns": Column("work, no message in flight"),
    "hidden_ns": Column("message hidden behind work"),
    "exposed_ns": Column("message exposed"),
    "idle_ns": Column("neither"),
    _SHARE: Column("share of the bound"),
    "nbytes": Column("read by each PE in a kernel", "B"),
    "host": Column("cost of a launch"),
    "launches_ns": Column("a kernel, launched", "ns"),
    "graph_ns": Column("a kernel of a graph", "ns"),
}
_PATH = {
    "path_matrix_ns": palette.BLUE, "path_vector_ns": palette.PURPLE, "path_hbm_ns": palette.ORANGE,
    "path_links_ns": palette.GREEN, "path_tcm_ns": palette.SKY, "path_control_ns": palette.GREY,
}  # fmt: skip
_BUSY = {
    "busy_matrix_ns": "matrix", "busy_math_ns": "vector", "busy_dma_in_ns": "DMA reads",
    "busy_dma_out_ns": "DMA writes", "busy_send_ns": "sends", "busy_recv_ns": "receives",
}  # fmt: skip
_OVERLAP = {
    "work_ns": palette.BLUE, "hidden_ns": palette.GREEN, "exposed_ns": palette.VERMILION, "idle_ns": palette.GREY,
}  # fmt: skip
CLOSE = 0.1  # slowdowns within this range count as equal


def _simulated(rows: Sequence[ChartRow], *series: str) -> list[ChartRow]:
    return [row for row in rows if row["series"] in series and not row["left_out"]]


def _of(*series: str, has: str = "makespan_ns") -> Callable[[ChartRow], bool]:
    return lambda row: row["series"] in series and row.get(has) is not None


def _name(row: ChartRow) -> str:
    if row["queries"]:
        return f"{row['queries']:.0f} queries on {row['context']:,}, {_way(row)}"
    name = f"{row['phase']} {row['context']:,}"
    if row["phase"] == "prefill":
        return f"{name} {row['order']} {'ring' if row['ring'] else 'chain'}"
    ranks = f"{row['ranks']} ranks" if row["ranks"] > 1 else "1 rank"
    parts = [
        f"batch {row['batch']}" if row["batch"] > 1 else "",
        ranks + (f" over {row['sips']} SIPs" if row["span"] else ""),
        f"{row['sips']} SIPs" if row["sips"] > 1 and not row["span"] else "",
    ]  # fmt: skip
    return ", ".join([name, *filter(None, parts)])


def _way(row: ChartRow) -> str:
    return _RING if row["phase"] == "prefill" else MERGED


def _named(rows: Iterable[ChartRow]) -> list[ChartRow]:
    return [{**row, RUN: _name(row)} for row in rows]


def _timed(row: ChartRow, line: str, column: str = "makespan_ns") -> ChartRow:
    return {**row, _LINE: line, TIME_US: row[column] / 1000}


def _stages(rows: Sequence[ChartRow], columns: Mapping[str, Column], machine: Machine) -> Any:
    named = _named(rows)
    path = kinds.parts(RUN, list(_PATH), colours=_PATH)(named, columns, machine)
    busy = [
        {RUN: row[RUN], "engine": engine, "busy": 100 * row[column] / row["makespan_ns"]}
        for row in named
        for column, engine in _BUSY.items()
    ]
    engines = kinds.heat("engine", RUN, "busy", label=".0f")(busy, {"engine": Column(""), RUN: Column("")}, machine)
    return path.properties(title="Share of the critical path") & engines.properties(title="Busy, mean of all PEs [%]")


def _roofline(rows: Sequence[ChartRow], columns: Mapping[str, Column], machine: Machine) -> Any:
    peak, gbs = 2 * macs_per_ns(machine.config, "f16"), machine.config.cube.hbm.slice_gbs
    shown = []
    for row in rows:
        flops, nbytes = row["flops"] / row["pes"], row["dma_bytes"] / row["pes"]
        shown.append({**row, RUN: "", "intensity": flops / nbytes, "gflops": flops / row["makespan_ns"]})
    for phase in dict.fromkeys(row["phase"] for row in shown):
        own = sorted((row for row in shown if row["phase"] == phase), key=lambda row: float(row["gflops"]))
        shortest, longest = (choose(row["context"] for row in own) for choose in (min, max))
        own[-1][RUN] = f"{phase}, {shortest:,} to {longest:,} tokens" if longest > shortest else phase
    return kinds.roofline(shown, Roofs(peak, {"HBM slice": gbs}), by="phase", label=RUN, columns=columns)


def _by_context(rows: Sequence[ChartRow]) -> list[ChartRow]:
    lines = {("decode", "contiguous"): "decode of one token", ("prefill", "zigzag"): "prefill"}
    return [
        _timed(row, *point)
        for row in rows
        if (line := lines.get((row["phase"], row["order"]))) and row["ring"]
        for point in ((line,), (f"{line}, bound", "bound_ns"))
    ]


def _by_pes(rows: Sequence[ChartRow]) -> list[ChartRow]:
    """Decode steps by PEs of all SIPs; those whose subgroups span SIPs have the same bound."""
    shown = []
    for row in rows:
        placed = {**row, _PES: row["pes"] * (1 if row["span"] else row["sips"])}
        if row["span"]:
            shown.append(_timed(placed, "tokens over SIPs"))
        else:
            shown += [_timed(placed, "kv heads over SIPs"), _timed(placed, "lower bound", "bound_ns")]
    return shown


def _bars(name: Callable[[ChartRow], str]) -> Callable[[Sequence[ChartRow]], list[ChartRow]]:
    return lambda rows: [{**row, RUN: name(row), TIME_US: row["makespan_ns"] / 1000} for row in _ascending(rows)]


def _ascending(rows: Sequence[ChartRow]) -> list[ChartRow]:
    return sorted(rows, key=lambda row: float(row["makespan_ns"]))


def _heads(row: ChartRow) -> str:
    copies, sips = row["group"] // row["query_heads"], row["sips"]
    stored = "K/V stored once" if copies == 1 else f"{copies} copies of K/V"
    return f"{sips} SIP{'s' * (sips > 1)}, {stored}, tokens over {row['ranks']} PEs"


def _at(rows: Sequence[ChartRow]) -> str:
    return f"{rows[0]['context']:,} tokens"


def _longest_part(rows: Sequence[ChartRow]) -> str:
    part, n = Counter(max(_PATH, key=lambda name: float(row[name])) for row in rows).most_common(1)[0]
    return (
        f"{first_upper(COLUMNS[part].description)} are the largest part of the critical path of {n} of {len(rows)} runs"
    )


def _highest_rate(rows: Sequence[ChartRow]) -> str:
    most = {
        phase: max(row["flops"] / row["pes"] / row["makespan_ns"] for row in own)
        for phase, own in groups(rows, "phase").items()
    }
    said = " and ".join(f"{rate:,.0f} Gflop/s in {phase}" for phase, rate in most.items())
    return f"A PE computes up to {said}"


CHARTS = (
    Chart(
        "gqa_halving", kinds.bars("longer_pct", "part", panel=RUN, label=".0f"),
        "How much longer a run takes when one part of the machine is half as fast", where=_of("halving"),
        caption="100 %: the time is inversely proportional to this part's speed. 0: the part has no effect.",
        derive=lambda rows: _named(slowdowns(rows)),
    ),
    Chart(
        "gqa_stage_breakdown", _stages, _longest_part,
        where=_of("decode context", "prefill", has="path_matrix_ns"),
        caption="The critical path is the chain of dependencies from the last completion back to the launch: making "
        "anything else faster does not help. Links include the host's message; control is command issue and plans.",
    ),
    Chart(
        "gqa_overlap", kinds.parts(RUN, list(_OVERLAP), colours=_OVERLAP),
        "Communication hidden behind work, and exposed", where=_of("decode ranks", "prefill", has="work_ns"),
        caption="Mean over PEs. Neither: the launch, dependences, and waiting for slower ranks at the end.",
        derive=lambda rows: list({row[RUN]: row for row in _named(rows) if row["ranks"] > 1}.values()),
    ),
    Chart(
        "gqa_roofline", _roofline, _highest_rate,
        where=_of("decode context", "prefill", has="dma_bytes"),
        caption="Useful operations of a PE against its roofs: the bandwidth of its HBM slice, and the peak of its "
        "matrix engine. Tile padding and softmax do not count as useful operations.",
    ),
    Chart(
        "gqa_latency_by_context", kinds.lines("context", TIME_US, _LINE, log_y=True), "Time by context",
        where=_of("decode context", "prefill"), derive=_by_context,
        caption="Prefill: the whole context, zigzag order, around a ring. Bound: the longest of the HBM, "
        "matrix engine and vector engine bounds.",
    ),
    Chart(
        "gqa_ring_against_merge", kinds.lines("queries", TIME_US, _LINE),
        lambda rows: f"A chunk of a prompt that sees {_at(rows)}: let K and V travel, or merge parts",
        where=_of("chunk"), derive=lambda rows: [_timed(row, _way(row)) for row in rows],
        caption="Around a ring each rank keeps its queries; merged, every rank has all queries of the chunk.",
    ),
    Chart(
        "gqa_scaling", kinds.lines(_PES, TIME_US, _LINE, log_y=True),
        lambda rows: f"One decode step at {_at(rows)}, by PEs", where=_of("decode ranks"), derive=_by_pes,
        caption="The lower bound is inversely proportional to the PEs.",
    ),
    Chart(
        "gqa_merges", kinds.bars(TIME_US, RUN, label=",.2f"),
        lambda rows: f"One decode step at {_at(rows)}, by the all-reduce that merges {rows[0]['ranks']} parts",
        where=_of("decode merge"), derive=_bars(lambda row: row["merge"]),
        caption="Recursive doubling exchanges whole parts, from TCM to TCM. The others take pieces of them from HBM.",
    ),
    Chart(
        "gqa_query_heads", kinds.bars(TIME_US, RUN, label=",.2f"),
        lambda rows: f"One decode step at {_at(rows)}: few ranks with copies of K/V, or many ranks without",
        where=_of("query heads"), derive=_bars(_heads),
    ),
)  # fmt: skip


def slowdowns(rows: Sequence[ChartRow]) -> list[ChartRow]:
    """Halvings of whole rows with `slowdown` and `longer_pct`, against the unchanged run."""
    whole, halved = (
        [row for row in _simulated(rows, "halving") if bool(row["part"]) is part] for part in (False, True)
    )
    found = over(halved, whole, _run, "makespan_ns", "slowdown")
    return [{**row, "longer_pct": 100 * (row["slowdown"] - 1)} for row in found]


def _run(row: ChartRow) -> tuple[str, int]:
    return row["phase"], row["context"]


def tables(rows: Sequence[ChartRow]) -> Tables:
    decode = _simulated(rows, "decode context", "decode batch")
    shares = [{**row, _SHARE: row["bound_ns"] / row["makespan_ns"]} for row in decode]
    one = table(shares, ["context", "batch", "makespan_ns", "bound_ns", _SHARE]).drop_duplicates(["context", "batch"])
    counted = ["gemm_count", "ipcq_send_count", "ipcq_recv_count", "dma_read_count", "dma_write_count"]
    panels = table((row for row in rows if row["series"] == "panel"), ["panel", "ranks", *counted])
    missing = [{**row, RUN: _name(row)} for row in rows if row["left_out"]]
    return {
        "Attention of one token of each sequence": one.sort_values(["batch", "context"]),
        "Commands of all programs, values compared with numpy": panels.rename(
            columns=lambda name: name.removesuffix("_count").replace("_", " ")
        ),
        "Start of work: short kernels, one after another": table(
            starts(rows), ["nbytes", "host", "launches_ns", "graph_ns"]
        ),
        "Not simulated": table(missing, [RUN, "left_out"]),
    }


def starts(rows: Sequence[ChartRow]) -> list[ChartRow]:
    """Short kernels: a row for each size and host, launched one by one and as a graph."""
    found: dict[tuple[int, str], dict[str, Any]] = {}
    for row in _simulated(rows, START_OF_WORK):
        key = row["nbytes"], row["host"]
        times = found.setdefault(key, {"nbytes": row["nbytes"], "host": row["host"]})
        times["graph_ns" if row["graph"] else "launches_ns"] = row["kernel_ns"]
    return list(found.values())


def findings(rows: Sequence[ChartRow]) -> list[Finding]:
    timed = [{**row, "us": row["makespan_ns"] / 1000} if row.get("makespan_ns") else row for row in rows]
    of_rows = (_limits, _context, _starts, _orders, _chunks, _merges, _copies, _more)
    return [finding for find in of_rows for finding in find(timed)]


def _limits(rows: Sequence[ChartRow]) -> Iterator[Finding]:
    for whole in (row for row in _simulated(rows, "halving") if not row["part"]):
        halved = [row for row in slowdowns(rows) if _run(row) == _run(whole)]
        worst, *rest = sorted(halved, key=lambda row: -float(row["slowdown"]))
        binding = [row for row in rest if row["slowdown"] > worst["slowdown"] - CLOSE]
        shown = (worst, *rest[: len(binding) + 1])
        said = ", ".join(f"{row['part']} {row['slowdown']:.2f}x" for row in shown)
        yield Finding(
            f"{whole['phase'].capitalize()} at {whole['context']:,} tokens is limited by "
            f"{' and '.join(row['part'] for row in (worst, *binding))}.",
            "gqa_halving", 10 if whole["phase"] == "decode" else 9,
            {"slowdown": {row["part"]: row["slowdown"] for row in shown}},
            f"Slowdown with one part at half speed: {said}.{_most(whole)}",
        )  # fmt: skip


def _context(rows: Sequence[ChartRow]) -> Iterator[Finding]:
    shares = [{**row, "share": row["bound_ns"] / row["makespan_ns"]} for row in _simulated(rows, "decode context")]
    if len(shares) < 2:
        return
    last, first = ends(shares, "context")
    slope = (last["us"] - first["us"]) / (last["context"] - first["context"])
    yield claim(
        "A decode step reaches {first[share]:.0%} of its bound at {first[context]:,} tokens, {last[share]:.0%} at "
        "{last[context]:,}.", "gqa_latency_by_context", 8,
        "It takes {first[us]:,.2f} us and {last[us]:,.2f} us, of which {fixed_us:,.2f} us do not depend on the context."
        + _most(first), first=first, last=last, fixed_us=first["us"] - slope * first["context"],
    )  # fmt: skip


def _starts(rows: Sequence[ChartRow]) -> Iterator[Finding]:
    """Compare the shortest and the longest kernel, launched one by one and as a graph."""
    times = starts(rows)
    free, paid = ([row for row in times if row["host"] == host] for host in ("none", "gpu_launch"))
    if not paid:
        return
    long, short = ends(paid, "nbytes")
    base = next(row["launches_ns"] for row in free if row["nbytes"] == short["nbytes"])
    yield claim(
        "With measured costs of a launch, a short kernel takes {launched_us:,.2f} us instead of {free_us:,.2f} us.",
        "", 7.5,
        "Each PE reads {short[nbytes]:,} B; with preset gpu_launch the host prepares launches one after another. In "
        "a graph of {kernels} kernels, each takes {graph_us:,.2f} us; with {long[nbytes]:,} B, the graph saves "
        "{saved:.0%}.", launched_us=short["launches_ns"] / 1000, free_us=base / 1000, short=short, kernels=KERNELS,
        graph_us=short["graph_ns"] / 1000, long=long, saved=1 - long["graph_ns"] / long["launches_ns"],
    )  # fmt: skip


def _orders(rows: Sequence[ChartRow]) -> Iterator[Finding]:
    """Compare the orders of tokens at the shortest prompt that ran in several, and the chain against the ring."""
    runs = [{**row, "kind": "ring" if row["ring"] else "chain"} for row in _simulated(rows, "prefill")]
    several = {n: own for n, own in groups(runs, "context").items() if len(own) > 1}
    if not several:
        return
    best, *others = _ascending(several[min(several)])
    times = ", ".join(f"{row['order']} {row['kind']} {row['makespan_ns'] / best['makespan_ns']:.2f}x" for row in others)
    text = "Prefill of {context:,} tokens is fastest in {order} order along a {kind}."
    yield claim(text, "gqa_overlap", 6, f"It takes {{us:,.2f}} us; {times}.{_cause(others[-1], best)}", **best)


def _chunks(rows: Sequence[ChartRow]) -> Iterator[Finding]:
    by_queries = sorted(groups(_simulated(rows, "chunk"), "queries").items())
    ways = {int(n): {_way(row): {**row, "mb": row["sent_bytes"] / 1e6} for row in runs} for n, runs in by_queries}
    pairs = {n: (runs[MERGED], runs[_RING]) for n, runs in ways.items() if len(runs) == 2}
    if not pairs:
        return
    n, (merged, ring) = next(iter(pairs.items()))
    wins = [n for n, (a, b) in pairs.items() if a["makespan_ns"] < b["makespan_ns"]]
    upto = "up to {most} query tokens" if wins else "at no size that was run"
    yield claim(
        f"Merging parts is faster than sending K and V around a ring {upto}.", "gqa_ring_against_merge", 7,
        "With {queries} on {merge[context]:,} tokens it takes {merge[us]:,.2f} us against {ring[us]:,.2f} us and sends "
        "{merge[mb]:,.1f} MB, not {ring[mb]:,.1f}: parts grow with the chunk, K and V with the context.",
        most=wins[-1] if wins else 0, queries=n, merge=merged, ring=ring,
    )  # fmt: skip


def _merges(rows: Sequence[ChartRow]) -> Iterator[Finding]:
    runs = _ascending(_simulated(rows, "decode merge"))
    if len(runs) > 1:
        best, worst = runs[0], runs[-1]
        yield claim(
            "{best[merge]} merges {best[ranks]} parts fastest.", "gqa_merges", 3,
            "The step at {best[context]:,} tokens takes {best[us]:,.2f} us, with {worst[merge]} {worst[us]:,.2f} us."
            + _cause(worst, best), best=best, worst=worst,
        )  # fmt: skip


def _copies(rows: Sequence[ChartRow]) -> Iterator[Finding]:
    runs = _simulated(rows, "query heads")
    pairs = [
        {"few": few, "whole": whole, "ratio": few["makespan_ns"] / whole["makespan_ns"]}
        for whole in runs
        for few in runs
        if few["query_heads"] < whole["query_heads"] == whole["group"] and few["sips"] == whole["sips"]
    ]
    if pairs:
        few, whole, ratio = ends(pairs, "ratio")[0].values()
        yield claim(
            f"On {{sips}} SIP{'s' * (few['sips'] > 1)}, {{copies}} copies of K and V take {{ratio:.2f}}x the time of "
            "one copy over {ranks} PEs.", "gqa_query_heads", 4, _cause(few, whole).lstrip(), ratio=ratio,
            sips=few["sips"], copies=few["group"] // few["query_heads"], ranks=whole["ranks"],
        )  # fmt: skip


def _more(rows: Sequence[ChartRow]) -> Iterator[Finding]:
    runs = _simulated(rows, "decode ranks")
    apart = sorted((row for row in runs if not row["span"]), key=lambda row: row["sips"] * row["cubes"])
    if len(apart) < 2:
        return
    first, last = apart[0], apart[-1]
    detail, ratios = "It takes {first[us]:,.2f} us and {last[us]:,.2f} us." + _most(last), {}
    for span in (row for row in runs if row["span"]):
        for twin in [row for row in apart if (row["sips"], row["cubes"]) == (span["sips"], span["cubes"])][:1]:
            ratios["span_ratio"] = span["makespan_ns"] / twin["makespan_ns"]
            detail += f" Sharing tokens over {span['sips']} SIPs takes {{span_ratio:.1f}}x the time."
            detail += _cause(span, twin)
    yield claim(
        "{more:.0f}x the PEs make a decode step at {first[context]:,} tokens {faster:.1f}x as fast.", "gqa_scaling", 5,
        detail, more=last["sips"] * last["cubes"] / (first["sips"] * first["cubes"]), first=first, last=last,
        faster=first["makespan_ns"] / last["makespan_ns"], **ratios,
    )  # fmt: skip


def _cause(slow: ChartRow, fast: ChartRow) -> str:
    """Sentence on the part of the critical path that is most of the difference; empty if unknown."""
    if slow.get("path_hbm_ns") is None or fast.get("path_hbm_ns") is None:
        return ""
    more = {COLUMNS[name].description: slow[name] - fast[name] for name in _PATH}
    part = max(more, key=lambda name: more[name])
    return f" {more[part] / 1000:,.2f} us more of the critical path go to {part}."


def _most(row: ChartRow) -> str:
    if row.get("path_hbm_ns") is None:
        return ""
    name = max(_PATH, key=lambda name: float(row[name]))
    return f" {first_upper(COLUMNS[name].description)} take {row[name] / row['makespan_ns']:.0%} of the critical path."
