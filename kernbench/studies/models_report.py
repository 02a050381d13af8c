"""The report of PyTorch models: columns, charts, findings and tables, all from the rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kernbench.points._keys import Row
from kernbench.studies._findings import Finding, claim, ends
from kernbench.studies.study import Tables, groups, scalars, table
from kernbench.topology.builder import Machine
from kernbench.viz import _palette as palette
from kernbench.viz import charts as kinds
from kernbench.viz.charts import Chart, Column

TIME_COLUMNS = ("products_ns", "attention_ns", "all_reduce_ns", "other_ns")
GRAPH = "launches of a call, sent as one graph"
REASONS = 6

METHOD = (
    "The models are those of the transformers package, compiled by kb.torch.compile without weights and called once in "
    "f16; weights, keys and values are in HBM before. Decode is one token with the keys and values of those before it, "
    "prefill a whole prompt. Over several SIPs (tp), q, k, v, gate and up are cut by columns, o and down by rows, "
    "and an all-reduce follows these two; one SIP is simulated, and the collectives over all. Mixtral is one layer of "
    "8 experts of width 1,024, hidden width 512, each of 512 tokens with 2 of them, over SIPs that have some each: all "
    "are simulated, and the second call counts. Its routing is drawn: balanced, or with shares by Zipf's law of "
    "exponent 1. What the first SIP waits for the products of the last one is shown apart. GPT-2 and ViT are one "
    "block, with what comes before and after the blocks; embeddings of tokens are given. The report's machine is "
    "enlarged to a ring of as many SIPs as a run needs; other machines are as they are. The bound is the larger of two "
    "times: a SIP has to read its weights, keys and values once at the bandwidth of its HBM, and to compute its "
    "products at the rate of its matrix engines. A change makes a part of the machine with one of the "
    "largest shares of the critical path twice as fast, together with the fields that `why` names with it, and the "
    "call is simulated again; where that part is the host, its launches are sent as one graph."
)
COLUMNS = {
    "run": Column("model"),
    "title": Column("model"),
    "on": Column("machine"),
    "tp": Column("SIPs"),
    "launches": Column("launches"),
    "time_us": Column("time", "us"),
    "bound_us": Column("bound", "us"),
    "bound_by": Column("bound by"),
    "over": Column("time / bound"),
    "limit": Column("largest part of the critical path"),
    "products_ns": Column("products"),
    "attention_ns": Column("attention"),
    "all_reduce_ns": Column("all-reduce"),
    "exchange_ns": Column("exchange of tokens"),
    "wait_ns": Column("wait for the busiest experts"),
    "other_ns": Column("other kernels"),
    "between_ns": Column("between launches"),
    "module": Column("module"),
    "share_pct": Column("share", "%"),
    "bytes": Column("moved", "B"),
    "flops": Column("FLOPs"),
    "intensity": Column("FLOPs per byte moved"),
    "roofline_pct": Column("share of the roofline", "%"),
    "part": Column("part"),
    "advice": Column("advice of why"),
    "change": Column("what is twice as fast"),
    "fields": Column("fields"),
    "saved_pct": Column("less time", "%"),
    "ratio": Column("time over that of the report's machine"),
}
_COLOURS = {
    "products_ns": palette.BLUE, "attention_ns": palette.ORANGE, "all_reduce_ns": palette.VERMILION,
    "other_ns": palette.SKY, "between_ns": palette.GREY,
}  # fmt: skip
_OF_EXPERTS = {
    name: _COLOURS.get(name, {"exchange_ns": palette.PURPLE, "wait_ns": palette.GREEN}.get(name, ""))
    for name in ("products_ns", "exchange_ns", "wait_ns", "other_ns", "between_ns")
}


def _own(row: Mapping[str, Any]) -> bool:
    return bool(row["own"])


def _has_experts(row: Mapping[str, Any]) -> bool:
    return bool(row.get("exchange_ns"))


def _named(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    return [
        {
            **row,
            "run": f"{row['title']}, tp {row['tp']}" if row["spread"] else row["title"],
            "time_us": row["latency_ns"] / 1000, "bound_us": row["bound_ns"] / 1000,
            "over": row["latency_ns"] / row["bound_ns"],
        }
        for row in rows
    ]  # fmt: skip


def _nested(rows: Sequence[Mapping[str, Any]], column: str) -> list[Row]:
    found = []
    for row in _named(rows):
        for item in row.get(column, ()):  # a file has no empty ones
            shares = {"share_pct": "share", "roofline_pct": "of_roofline", "saved_pct": "saved"}
            percent = {name: 100 * item[key] for name, key in shares.items() if key in item}
            found.append({**scalars(row), **item, **percent, "time_us": item["ns"] / 1000})
    return found


def _scaling(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    return [
        {"title": row["title"], "tp": row["tp"], "what": what, "time_us": row[name]}
        for row in _named(rows)
        for what, name in (("simulated", "time_us"), ("bound", "bound_us"))
    ]


def _changes(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    found = [{**x, "change": f"{x['run']}: {x['change']}"} for x in _nested(rows, "changes")]
    return sorted(found, key=lambda x: -x["saved_pct"])


def _machines(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Time on each machine over that on the report's machine, with as many SIPs as both have."""
    found = []
    for runs in groups(rows, "title").values():
        own = {row["tp"]: row for row in runs if _own(row)}
        found += [{**row, "ratio": row["latency_ns"] / own[row["tp"]]["latency_ns"]} for row in runs if not _own(row)]
    return _named(found)


def _roofline(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Modules that compute, of each model on one SIP, with their place on the roofline."""
    return [x for x in _nested(rows, "modules") if x["intensity"] > 0]


def _over_bound(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    return [{**row, **{kind: row[kind] / row["bound_ns"] for kind in _COLOURS}} for row in _named(rows)]


def _path(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Column], machine: Machine) -> Any:
    shares = {row["run"]: {x["part"]: x["share"] for x in row["reasons"]} for row in _named(rows)}
    names = sorted(
        {part for own in shares.values() for part in own}, key=lambda n: -sum(own.get(n, 0) for own in shares.values())
    )
    names = names[: len(palette.SERIES) - 1]
    cut = [{"run": run, **{n: own.get(n, 0) for n in names}} for run, own in shares.items()]
    drawn = [{**row, _REST: 1 - sum(row[n] for n in names)} for row in cut]
    return kinds.parts("run", [*names, _REST], colours={_REST: palette.GREY})(drawn, columns, machine)


def _first_part(rows: Sequence[Mapping[str, Any]]) -> str:
    part, n = Counter(row["reasons"][0]["part"] for row in rows).most_common(1)[0]
    return f"The {part} is the longest part of the critical path of {n} of {len(rows)} calls"


def _near_roofline(rows: Sequence[Mapping[str, Any]]) -> str:
    modules = _roofline(rows)
    near = sum(x["roofline_pct"] >= 50 for x in modules)
    return f"{near} of {len(modules)} modules on one SIP reach half of their roofline"


_REST = "other parts"
CHARTS = (
    Chart(
        "models_parts", kinds.parts("run", list(_COLOURS), title="time over the bound", colours=_COLOURS, rule=1.0),
        "What the time over the bound is spent on", where=lambda row: _own(row) and not _has_experts(row),
        derive=_over_bound,
        caption="Dashed: the bound. Launches by what they compute: matrix products, attention, the all-reduce over "
        "SIPs, and the kernels that Inductor generates (norms, rotary embedding, activations).",
    ),
    Chart(
        "models_experts", kinds.parts("run", list(_OF_EXPERTS), title="time [us]", colours=_OF_EXPERTS),
        "A layer of experts: time by part, with waiting for the busiest experts apart", where=_has_experts,
        derive=lambda rows: [{**row, **{part: row[part] / 1000 for part in _OF_EXPERTS}} for row in _named(rows)],
        caption="Exchange: the all-to-all to the experts and back, and the all-gather of results, each from when the "
        "last SIP has come. Wait: how much longer the products of the SIP with the busiest experts take than those of "
        "the first to finish. Other: router, permutation, activation and weighed sum.",
    ),
    Chart(
        "models_path", _path, _first_part, where=_own,
        caption=f"Shares of the critical path of each call by resource; of each call the {REASONS} longest.",
    ),
    Chart(
        "models_scaling", kinds.lines("tp", "time_us", "what", panel="title"),
        "A layer of Llama-3 70B over several SIPs", derive=_scaling,
        where=lambda row: _own(row) and row["spread"] and not _has_experts(row),
        caption="The bound is what one SIP needs to read its weights, keys and values once, or to multiply at the full "
        "rate; it has no all-reduce and no launches.",
    ),
    Chart(
        "models_changes", kinds.bars("saved_pct", "change", label=".1f"), "What to change first", where=_own,
        derive=_changes,
        caption="Time saved if a part of the machine is twice as fast, simulated. The parts are those with the largest "
        "shares of the critical path; what limits with a part, as `why` names it, is twice as fast, too.",
    ),
    Chart(
        "models_roofline", kinds.points("intensity", "roofline_pct", by="title", log_x=True, log_y=True),
        _near_roofline, where=lambda row: _own(row) and row["tp"] == 1,
        derive=_roofline,
        caption="Share of the roofline by intensity. Each dot is a module: the FLOPs that it achieves over those that "
        "matrix engines and HBM allow at its FLOPs per byte.",
    ),
    Chart(
        "models_machines", kinds.bars("ratio", "on", panel="run", label=".2f", rule=1.0),
        "Other machines: time over that of the report's machine", where=lambda row: not _own(row) or row["tp"] >= 1,
        derive=_machines,
        caption="The layer of Llama over as many SIPs as the machine has, against the report's machine with as many.",
    ),
)  # fmt: skip


def tables(rows: Sequence[Mapping[str, Any]]) -> Tables:
    own = list(filter(_own, rows))
    calls = ["run", "on", "launches", "time_us", "bound_us", "bound_by", "over", "limit"]
    modules = [
        "run", "module", "launches", "time_us", "share_pct", "limit", "bytes", "flops", "intensity", "roofline_pct",
    ]  # fmt: skip
    ends = [row for runs in groups(own, "title").values() for row in (runs[0], runs[-1])[: len(runs)]]
    return {
        "Calls": table(_named(rows), calls),
        "What to change first": table(
            _nested(rows, "changes"), ["run", "on", "change", "share_pct", "time_us", "saved_pct", "fields"]
        ),
        "Why: the critical path of each call": table(
            _nested(own, "reasons"), ["run", "part", "time_us", "share_pct", "advice"]
        ),
        "Modules, with the fewest and the most SIPs": table(_nested(ends, "modules"), modules),
    }


def findings(rows: Sequence[Mapping[str, Any]]) -> list[Finding]:
    own = [row for row in _named(rows) if _own(row)]
    found: list[Finding] = []
    for runs in groups([row for row in own if row["spread"]], "title").values():
        found += _over_sips(runs)
    dense = [row for row in own if not _has_experts(row)]
    return [*found, *_why(dense), *_experts(own), *_first(own), *_hidden(own), *_elsewhere(rows)]


def _experts(own: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    waits = [
        {**row, "exchange_us": row["exchange_ns"] / 1000, "wait": row["wait_ns"] / row["latency_ns"]}
        for row in own
        if _has_experts(row)
    ]
    if len(waits) > 1:
        skewed, even = ends(waits, "wait_ns")
        yield claim(
            "{skewed[run]}: {slower:.2f}x the time of balanced experts, {skewed[wait]:.0%} of it waiting for the "
            "busiest ones.", "models_experts", 3.9,
            "It takes {skewed[time_us]:,.1f} us, against {even[time_us]:,.1f} us. The exchange of tokens takes "
            "{skewed[exchange_us]:,.1f} us, against {even[exchange_us]:,.1f} us; the wait is not in it.",
            skewed=skewed, even=even, slower=skewed["latency_ns"] / even["latency_ns"],
        )  # fmt: skip


def _over_sips(runs: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    last, first = ends(({**row, "products": row["products_ns"] / row["bound_ns"]} for row in runs), "tp")
    if first["tp"] < last["tp"]:
        yield claim(
            "{first[title]}: {sips}x the SIPs make it {speedup:.1f}x as fast.", "models_scaling", 5,
            "{last[tp]} SIPs take {last[time_us]:,.1f} us, against {first[time_us]:,.1f} us on {first[tp]}. "
            "All-reduces take {share:.0%}, and products {last[products]:.1f}x the bound ({first[products]:.1f}x "
            "before).", first=first, last=last, sips=last["tp"] // first["tp"],
            speedup=first["latency_ns"] / last["latency_ns"], share=last["all_reduce_ns"] / last["latency_ns"],
        )  # fmt: skip


def _why(own: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """For each model, why it takes longer than its bound, where it does most: by launches, resources and modules."""
    for runs in groups(own, "title").values():
        far = max(runs, key=lambda row: row["over"])
        parts = sorted(_COLOURS, key=lambda kind: -far[kind])[:3]
        over = {COLUMNS[kind].description: far[kind] / far["bound_ns"] for kind in parts if far[kind]}
        modules = sorted(_nested([far], "modules"), key=lambda x: -x["ns"])[:3]
        path = ", ".join(f"{x['part']} {x['share']:.0%}" for x in far["reasons"][:3])
        said = ", ".join(
            f"{x['module'].removeprefix('layer.')} {x['share_pct']:.0f} % at {x['roofline_pct']:.0f} % of its roofline"
            f" ({x['limit']})"
            for x in modules
        )
        yield Finding(
            f"{far['run']} takes {far['over']:.1f}x its bound: "
            f"{', '.join(f'{name} {times:.1f}x' for name, times in over.items())}.",
            "models_parts",
            (5.5 if far["spread"] else 5.2) + far["over"] / 1000,
            {"run": far["run"], "over": far["over"], "parts": over, "limit": far["limit"]},
            f"Its bound is {far['bound_us']:,.1f} us ({far['bound_by']}). Critical path: {path or far['limit']}. "
            f"Longest modules: {said}.",
        )


def _first(own: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    tried = [max(_nested([row], "changes"), key=lambda x: x["saved"]) for row in own if row.get("changes")]
    best = [max(runs, key=lambda x: x["saved"]) for runs in groups(tried, "title").values()]
    if not best:
        return
    first = {x["run"]: f"{x['change']} twice as fast" if x["fields"] else GRAPH for x in best}
    most = max(best, key=lambda x: x["saved"])
    yield Finding(
        f"Change first for {most['run']}: {first[most['run']]}, {most['saved_pct']:.0f} % less time.",
        "models_changes",
        4,
        {x["run"]: {"change": first[x["run"]], "saved_pct": x["saved_pct"]} for x in best},
        " ".join(f"{x['run']}: {first[x['run']]}, {x['saved_pct']:.0f} %." for x in best if x is not most),
    )


def _hidden(own: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """Find the change that saves least of what its share of the critical path promises."""
    tried = [x for x in _nested(own, "changes") if x["fields"]]
    if not tried:
        return
    x = max(tried, key=lambda x: x["share"] / 2 - x["saved"])
    if x["share"] / 2 - x["saved"] > 0.03:
        yield claim(
            "{run}: {change} twice as fast saves {saved_pct:.0f} %, not {half_pct:.0f} %.", "models_changes", 2,
            "It is {share_pct:.0f} % of the critical path; what ran at the same time then limits.",
            half_pct=x["share_pct"] / 2, **x,
        )  # fmt: skip


def _elsewhere(rows: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    others = _machines(rows)
    if not others:
        return
    slow, fast = ends(others, "ratio")
    text = "{run} takes {ratio:.1f}x the time on {on}."
    yield claim(text, "models_machines", 2.8, "It takes {time_us:,.1f} us there.", **slow)
    if fast["ratio"] < 0.95:
        own = next(x for x in rows if _own(x) and (x["title"], x["tp"]) == (fast["title"], fast["tp"]))
        yield claim(
            "{run} takes {ratio:.2f}x the time on {on}.", "models_machines", 3.5,
            "On {ours[on]}, the largest part of its critical path is {ours[limit]} ({share:.0%}).", ours=own,
            share=own["reasons"][0]["share"], **fast,
        )  # fmt: skip
