"""The report of the attention study: figures, tables, and findings in words that are computed from the rows."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernbench.analysis.ideal import macs_per_ns
from kernbench.analysis.roofline import Roofs
from kernbench.studies.gqa_limits import binding
from kernbench.studies.gqa_work import GROUP, LAYERS, WEIGHTS, slice_gbs
from kernbench.studies.points import Row
from kernbench.topology.builder import Machine
from kernbench.viz import gqa as figures
from kernbench.viz.figure import save
from kernbench.viz.roofline import roofline

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

TITLE = "# Attention of Llama-3 70B"
PAGE = "README.md"
TOKENS = "gqa_tokens.csv"
COLUMNS = {  # of the table of tokens, and what they are called in its file
    "context": "context_tokens",
    "batch": "batch_sequences",
    "bound: tokens/s/SIP": "bound_tokens_per_s_per_sip",
    "bound with weights": "bound_with_weights_tokens_per_s_per_sip",
    "attention: tokens/s/SIP": "attention_tokens_per_s_per_sip",
    "with weights at HBM speed": "attention_with_weights_tokens_per_s_per_sip",
    "of the bound": "attention_of_bound_ratio",
    "note": "note",
}
CLOSE = 0.1  # slowdowns that are no further apart are told together


def simulated(rows: Sequence[Row], *series: str) -> list[Row]:
    """Return the rows of some series (of all) that were simulated."""
    return [row for row in rows if not row["left_out"] and (not series or row["series"] in series)]


def logged(rows: Sequence[Row], *series: str) -> list[Row]:
    """Return those of `simulated` that say where their time went."""
    return [row for row in simulated(rows, *series) if "work_ns" in row]


def label(row: Row) -> str:
    """Return what a row is called in figures."""
    name = f"{row['phase']} {row['context']:,}"
    if row["queries"]:
        return f"{row['queries']} queries on {row['context']:,}, {way(row)}"
    if row["phase"] == "prefill":
        return f"{name} {row['order']} {'ring' if row['ring'] else 'chain'}"
    n = row["query_heads"]
    heads = "" if n == GROUP else f", {n} head{'s' * (n > 1)}"
    sips = f", {row['sips']} SIPs" if row["sips"] > 1 else ""
    return f"{name} batch {row['batch']}, {row['ranks']} ranks{heads}{sips}"


def way(row: Row) -> str:
    """Return what travels in a row's run."""
    return "K/V round a ring" if row["phase"] == "prefill" else "parts merged"


def counts(panels: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Return how many commands of each kind the panels take."""
    import pandas as pd

    return pd.DataFrame([{"panel": p["panel"], "ranks": p["n_ranks"], **p["op_log_summary"]} for p in panels])


def draw(
    rows: Sequence[Row], panels: Sequence[dict[str, Any]], limits: Sequence[Row], machine: Machine, folder: Path
) -> list[Path]:
    """Write all figures; return their paths.

    Parameters
    ----------
    rows
        Of the study.
    panels
        Of the validation sweep.
    limits
        Of `gqa_limits.halved`.
    machine
        What they belong to.
    folder
        Where the figures go.
    """
    name = machine.hash
    counted = [{"panel": p["panel"], "n_ranks": p["n_ranks"], **p["op_log_summary"]} for p in panels]
    drawn: dict[str, Figure] = {"gqa_op_counts.png": figures.op_counts(counted, machine=name)}
    mixed = _labelled(logged(rows, "decode context", "prefill"))
    drawn["gqa_stage_breakdown.png"] = figures.stage_breakdown(mixed, machine=name)
    drawn["gqa_roofline.png"] = _roofline(rows, machine)
    drawn["gqa_halving.png"] = figures.halving(
        [{**row, "label": f"{row['phase']}, {row['context']:,} tokens"} for row in limits], machine=name
    )
    told = [row for row in logged(rows) if row["ranks"] > 1 and row["series"] != "decode batch"]
    drawn["gqa_overlap.png"] = figures.overlap(_labelled(_distinct(told)), machine=name)
    by_context = [{**row, "line": "decode of one token"} for row in simulated(rows, "decode context")]
    orders = [row for row in simulated(rows, "prefill") if row["ring"]]
    by_context += [
        {**row, "line": f"prefill of the whole context, {row['order']} ring"}
        for row in orders
        if len({other["context"] for other in orders if other["order"] == row["order"]}) > 1
    ]
    if by_context:
        drawn["gqa_latency_by_context.png"] = figures.latency(
            by_context, machine=name, x="context", label="tokens in the context", title="Attention: latency by context"
        )
    chunks = [{**row, "line": way(row)} for row in simulated(rows, "chunk")]
    if chunks:
        drawn["gqa_ring_against_merge.png"] = figures.latency(
            chunks, machine=name, x="queries", label="query tokens that see the context",
            title="Attention: ring against merge", note=_at(chunks[0]),
        )  # fmt: skip
    scaling = [
        {**row, "line": _span(row), "all_pes": _all_pes(row, machine)} for row in simulated(rows, "decode ranks")
    ]
    if scaling:
        drawn["gqa_scaling.png"] = figures.latency(
            scaling, machine=name, x="all_pes", label="PEs", title="Attention: strong scaling of one decode step",
            note=f", which scales ideally{_at(scaling[0])}",
        )  # fmt: skip
    merges = [{**row, "label": row["merge"]} for row in simulated(rows, "decode merge")]
    if merges:
        drawn["gqa_merges.png"] = figures.bars(
            merges, machine=name, title="Attention: decode by the merging algorithm",
            note=f"{_at(merges[0])}, {merges[0]['ranks']} ranks",
        )  # fmt: skip
    heads = [{**row, "label": _heads(row)} for row in simulated(rows, "query heads")]
    if heads:
        drawn["gqa_query_heads.png"] = figures.bars(
            heads, machine=name, title="Attention: query heads of an item", note=_at(heads[0])
        )
    return [save(figure, folder / file) for file, figure in drawn.items()]


def _labelled(rows: Sequence[Row]) -> list[Row]:
    return [{**row, "label": label(row)} for row in rows]


def _distinct(rows: Sequence[Row]) -> list[Row]:
    """Return the first row of each label."""
    return list({label(row): row for row in reversed(rows)}.values())[::-1]


def _all_pes(row: Row, machine: Machine) -> int:
    return int(row["sips"] * row["cubes"] * machine.config.pes_per_cube)


def _at(row: Row) -> str:
    return f"; {row['context']:,} tokens in the context"


def _span(row: Row) -> str:
    return "tokens over SIPs" if row["span"] else "kv heads over SIPs, tokens over PEs"


def _heads(row: Row) -> str:
    return f"SIPs: {row['sips']}, query heads: {row['query_heads']}, tokens over {row['ranks']} PEs"


def _roofline(rows: Sequence[Row], machine: Machine) -> Figure:
    config = machine.config
    roofs = Roofs(2 * macs_per_ns(config, "f16"), {"HBM slice": slice_gbs(config)})
    table: dict[str, dict[str, Any]] = {}  # a point that two series share is drawn once
    for row in logged(rows, "decode context", "decode batch", "prefill"):
        per_pe = row["flops"] / row["pes"]
        nbytes = row["dma_bytes"] / row["pes"]
        table.setdefault(
            label(row),
            {
                "name": label(row), "series": row["phase"], "intensity": per_pe / nbytes,
                "gflops": per_pe / row["makespan_ns"],
            },
        )  # fmt: skip
    return roofline(list(table.values()), roofs, machine=machine.hash, title="Attention: roofline of a PE")


def tokens_table(rows: Sequence[Row], machine: Machine) -> pd.DataFrame:
    """Return tokens per second and SIP of decode, by attention alone and with the linear layers at the speed of HBM.

    The bound is what reading keys and values (and weights) at the full HBM bandwidth would allow.
    """
    import pandas as pd

    config = machine.config
    out = []
    for row in rows:
        if row["phase"] != "decode" or row["queries"] or row["series"] not in ("decode context", "decode batch"):
            continue
        gbs = slice_gbs(config) * config.pes_per_sip * row["sips"]
        bound = LAYERS * row["hbm_ns"]
        weights = WEIGHTS * 2 / gbs
        line = {"context": row["context"], "batch": row["batch"], "bound: tokens/s/SIP": _rate(row, bound)}
        line["bound with weights"] = _rate(row, bound + weights)
        if row["left_out"]:
            out.append({**line, "note": row["left_out"].partition(":")[0]})
            continue
        took = LAYERS * row["makespan_ns"]
        out.append(
            {
                **line, "attention: tokens/s/SIP": _rate(row, took),
                "with weights at HBM speed": _rate(row, took + weights), "of the bound": round(bound / took, 3),
                "note": "",
            }
        )  # fmt: skip
    frame = pd.DataFrame(out).drop_duplicates(["context", "batch"]).sort_values(["batch", "context"])
    return frame[[*(c for c in frame.columns if c != "note"), "note"]].reset_index(drop=True)


def _rate(row: Row, ns: float) -> float:
    return round(float(row["batch"] / row["sips"]) / ns * 1e9, 1)


def findings(rows: Sequence[Row], limits: Sequence[Row]) -> list[str]:
    """Return what the rows say, one sentence each."""
    said = []
    for phase, context in dict.fromkeys((row["phase"], row["context"]) for row in limits):
        own = [row for row in limits if (row["phase"], row["context"]) == (phase, context)]
        _, factor = binding(limits, phase, context)
        first = " and the ".join(row["part"] for row in own if row["slowdown"] > factor - CLOSE)
        verdict = f"is limited by the {first}" if factor > 1.5 else f"has no single limit; first comes the {first}"
        told = ", ".join(f"{r['part']} {r['slowdown']:.2f}" for r in sorted(own, key=lambda r: -r["slowdown"]))
        said.append(
            f"{phase.capitalize()} at {context:,} tokens {verdict}. At half the speed of one part, a run takes so many "
            f"times as long: {told}."
        )
    said += _context(rows) + _prefill(rows) + _chunks(rows) + _merges(rows) + _heads_found(rows) + _scaling(rows)
    left_out = [row for row in rows if row["left_out"]]
    return said + [f"Not simulated: {label(row)}: {row['left_out']}." for row in left_out]


def _context(rows: Sequence[Row]) -> list[str]:
    runs = sorted(simulated(rows, "decode context"), key=lambda row: row["context"])
    if len(runs) < 2:
        return []
    first, last = runs[0], runs[-1]
    slope = (last["makespan_ns"] - first["makespan_ns"]) / (last["context"] - first["context"])
    ideal = (last["bound_ns"] - first["bound_ns"]) / (last["context"] - first["context"])
    fixed = first["makespan_ns"] - slope * first["context"]
    grown = (
        f"One decode step takes {_us(first)} at {first['context']:,} tokens and {_us(last)} at {last['context']:,}: "
        f"{fixed / 1000:,.2f} us whatever the context (launch, first tiles, merge), and {slope * 1000:,.1f} ps per "
        f"token beside {ideal * 1000:,.1f} at the speed of HBM; {first['bound_ns'] / first['makespan_ns']:.0%} and "
        f"{last['bound_ns'] / last['makespan_ns']:.0%} of the bound's rate."
    )
    return [
        grown,
        f"The {first['query_heads']} query heads of a kv head fill {first['useful']:.0%} of the matrix engine's tiles.",
    ]


def _us(row: Row) -> str:
    return f"{row['makespan_ns'] / 1000:,.2f} us"


def _prefill(rows: Sequence[Row]) -> list[str]:
    runs = [row for row in simulated(rows, "prefill") if row["ring"]]
    shortest = min((row["context"] for row in runs), default=0)
    same = {row["order"]: row for row in runs if row["context"] == shortest}
    said = []
    if len(same) > 1:
        times = ", ".join(f"{order} {_us(row)}" for order, row in same.items())
        best = min(same, key=lambda order: same[order]["makespan_ns"])
        said.append(
            f"Causal prefill of {shortest:,} tokens over {same[best]['ranks']} ranks: {times}; fastest are {best} "
            f"tokens, and of their communication {_exposed(same[best]):.1%} is exposed."
        )
    grown = sorted((row for row in runs if row["order"] == "zigzag"), key=lambda row: row["context"])
    if len(grown) > 1:
        first, last = grown[0], grown[-1]
        said.append(
            f"Causal prefill round a ring (zigzag) takes {_us(first)} at {first['context']:,} tokens and {_us(last)} "
            f"at {last['context']:,}, {first['makespan_ns'] / first['bound_ns']:.2f} x and "
            f"{last['makespan_ns'] / last['bound_ns']:.2f} x their bounds ({first['limiter']}; {last['limiter']})."
        )
    chains = [row for row in simulated(rows, "prefill") if not row["ring"]]
    for chain in chains:
        twin = next((r for r in runs if (r["context"], r["order"]) == (chain["context"], chain["order"])), None)
        if twin:
            said.append(
                f"Along an open chain the same prefill ({chain['order']}) takes {_us(chain)}, round a ring {_us(twin)}."
            )
    return said


def _exposed(row: Row) -> float:
    both = row["hidden_ns"] + row["exposed_ns"]
    return float(row["exposed_ns"] / both) if both else 0.0


def _chunks(rows: Sequence[Row]) -> list[str]:
    by_queries: dict[int, dict[str, Row]] = {}
    for row in simulated(rows, "chunk"):
        by_queries.setdefault(row["queries"], {})[way(row)] = row
    ways = ("K/V round a ring", "parts merged")
    pairs = {n: [found[w] for w in ways] for n, found in sorted(by_queries.items()) if all(w in found for w in ways)}
    if not pairs:
        return []
    text = "; ".join(
        f"{n}: " + " and ".join(f"{_us(row)} ({row['sent_bytes'] / 1e6:,.2f} MB sent)" for row in pair)
        for n, pair in pairs.items()
    )
    context = next(iter(pairs.values()))[0]["context"]
    return [f"Query tokens that see {context:,} tokens, {' and '.join(ways)}: {text}."]


def _merges(rows: Sequence[Row]) -> list[str]:
    runs = sorted(simulated(rows, "decode merge"), key=lambda row: row["makespan_ns"])
    if len(runs) < 2:
        return []
    text = ", ".join(f"{row['merge']} {_us(row)}" for row in runs)
    return [f"Merging {runs[0]['ranks']} parts of {runs[0]['context']:,} tokens: {text}."]


def _heads_found(rows: Sequence[Row]) -> list[str]:
    runs = simulated(rows, "query heads")
    said = []
    for sips in dict.fromkeys(row["sips"] for row in runs):
        own = {row["query_heads"]: row for row in runs if row["sips"] == sips}
        if len(own) == 2 and max(own) == 8:
            few = min(own)
            said.append(
                f"On {sips} SIP{'s' * (sips > 1)} with {few} query head{'s' * (few > 1)} per cube, keys and values are "
                f"read {8 // few} times: "
                f"{_us(own[few])}, against {_us(own[8])} with whole groups whose tokens are spread over "
                f"{own[8]['ranks']} PEs."
            )
    return said


def _scaling(rows: Sequence[Row]) -> list[str]:
    runs = sorted(simulated(rows, "decode ranks"), key=lambda row: (row["sips"], row["cubes"], row["span"]))
    if len(runs) < 2:
        return []
    text = ", ".join(
        f"{row['sips']} x {row['cubes']} cubes{' (tokens over SIPs)' if row['span'] else ''} {_us(row)}" for row in runs
    )
    return [f"One decode step at {runs[0]['context']:,} tokens by SIPs and cubes: {text}."]


def write_page(said: Sequence[str], rows: Sequence[Row], drawn: Sequence[Path], machine: Machine, folder: Path) -> Path:
    """Write findings, tokens per second and figures as a page, and `gqa_tokens.csv`; return the page's path."""
    tokens = tokens_table(rows, machine)
    tokens.rename(columns=COLUMNS).to_csv(folder / TOKENS, index=False, lineterminator="\n")
    lines = [TITLE, "", *(f"- {sentence}" for sentence in said), "", "## Tokens per second and SIP of decode", ""]
    lines += [
        "The bound reads the keys and values of all layers at the full bandwidth of HBM. *With weights* adds the",
        "linear layers, which are not simulated: their weights at the full bandwidth of HBM.",
        f"The same numbers are in [{TOKENS}]({TOKENS}).",
        "",
        *_table(tokens),
        "",
    ]
    lines += [f"![{path.stem}]({path.name})" for path in drawn]
    lines += [
        "",
        f"Machine {rows[0]['machine'][:12]}, code {rows[0]['code_version']}.",
        "",
    ]
    path = folder / PAGE
    path.write_text("\n".join(lines), encoding="utf-8", newline="\n")
    return path


def _table(frame: pd.DataFrame) -> list[str]:
    """Return a frame as the lines of a markdown table; what is missing is a dash."""
    lines = [list(frame.columns), ["---" if name == "note" else "---:" for name in frame.columns]]
    lines += [list(map(_cell, frame.columns, row)) for row in frame.itertuples(index=False)]
    return [f"| {' | '.join(line)} |" for line in lines]


def _cell(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if isnan(value):  # not simulated
        return "-"
    if name == "of the bound":
        return f"{value:.3f}"
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"
