"""The report of the probe: columns, charts, findings and tables, all from the rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kernbench.analysis._transfer import TRANSFER_PARTS
from kernbench.studies._findings import Finding
from kernbench.studies.study import Tables, groups, size_name, table
from kernbench.topology.builder import Machine
from kernbench.viz import _palette as palette
from kernbench.viz import charts as kinds
from kernbench.viz.charts import Chart, ChartRow, Column
from kernbench.viz.still import Still, link_heatmap

METHOD = (
    "Each transfer is one transaction of the network, as a DMA engine sends it; all transfers of a case start at "
    "the same instant on an idle machine. Commands of a PE and its limit of outstanding requests are left out, so "
    "that only links and memory show. The closed form is that of an idle machine. Fair streams are the same bytes "
    "as streams that share every link by max-min fairness and have no latency. Messages, loads and stores from PE "
    "to PE are commands of programs on an otherwise idle machine, timed from the start of the command on."
)
_COLOURS = {
    "wire_ns": palette.SKY, "nodes_ns": palette.BLUE, "fill_ns": palette.PURPLE, "serialization_ns": palette.ORANGE,
    "memory_ns": palette.GREEN,
}  # fmt: skip
PAIR_KINDS = ("message", "load", "store")
VISIBLE = 0.0005  # share of the time from which a link is shown
COLUMNS = {
    "case": Column("case"),
    "route": Column("route"),
    "time_ns": Column("time", "ns"),
    "transfers": Column("transfers"),
    "nbytes": Column("bytes of each transfer", "B"),
    "last_end_ns": Column("last end", "ns"),
    "mean_ns": Column("mean time", "ns"),
    "alone_ns": Column("closed form, alone", "ns"),
    "queueing_ns": Column("queueing", "ns"),
    "bandwidth_gbs": Column("total bandwidth", "GB/s"),
    "path_utilization": Column("share of its slowest link's bandwidth"),
    "fair_utilization": Column("share of fair streams' bandwidth"),
} | {f"{part}_ns": Column(part) for part in TRANSFER_PARTS if part != "queueing"}


def _single(row: ChartRow) -> bool:
    return row.get("transfers") == 1


def _pattern(row: ChartRow) -> bool:
    return bool(row.get("transfers", 1) > 1)


def _between_pes(row: ChartRow) -> bool:
    return row["kind"] in PAIR_KINDS


def _links(case: str) -> str:
    return f"probe_links_{case.replace('-', '_')}"


def _map(case: str) -> Chart:
    def draw(rows: Sequence[ChartRow], columns: Mapping[str, Column], machine: Machine) -> Still:
        row = rows[-1]
        busy = f"the busiest links carry flits {row['hottest_share']:.0%} of {row['last_end_ns']:,.0f} ns"
        note = f"links busy for less than {VISIBLE:.2%} of the time are left out"
        return link_heatmap(row["links"], machine, title=f"{_name(row)}: {busy}", note=note)

    def drawn(row: ChartRow) -> bool:
        return bool(row["case"] == case and row.get("links"))

    return Chart(_links(case), draw, f"Busy links of {case}", where=drawn)


def _smallest(rows: Sequence[ChartRow]) -> list[ChartRow]:
    least = min(row["nbytes"] for row in rows)
    return [row for row in rows if row["nbytes"] == least]


def _name(row: ChartRow) -> str:
    return f"{row['case']}, {row['transfers']} x {size_name(row['nbytes'])}"


CHARTS = (
    Chart(
        "probe_single_bandwidth", kinds.lines("nbytes", "path_utilization", "route", panel="kind", rule=1.0),
        "Bandwidth of single transfers: only large ones hide the latency",
        where=lambda row: _single(row) and not row["case"].startswith(("h2d", "d2h", "same")),
        caption="Bytes over time, as a share of the slowest link's bandwidth. One transfer on an idle machine.",
    ),
    Chart(
        "probe_single_parts", kinds.parts("case", list(_COLOURS), title="time [ns]", colours=_COLOURS),
        lambda rows: f"Where the time of a single transfer of {size_name(min(r['nbytes'] for r in rows))} goes",
        where=_single, derive=_smallest,
        caption="Parts sum to the time exactly: wires, nodes, one flit's time on the faster links (fill), bytes on "
        "the slowest link (serialization), and what the memory adds.",
    ),
    Chart(
        "probe_pattern_bandwidth", kinds.lines("nbytes", "fair_utilization", "route", panel="kind", rule=1.0),
        "Bandwidth under contention, as a share of fair streams", where=_pattern,
        caption="1 is the time of the same bytes as streams that share every link fairly and have no latency.",
    ),
    Chart(
        "probe_pe_to_pe", kinds.lines("nbytes", "time_ns", "kind", panel="route"),
        "PE to PE: a queue message against a load and a store", where=_between_pes,
        caption="From PE 0 of cube 0 to the next PE, and to the next cube, of its row and column. A message ends "
        "in TCM, where the receiver waits for it. A load, which reads HBM, and a store, which ends in HBM, do not "
        "notify the other PE.",
    ),
    *map(_map, ("all-one-read", "eastbound-read", "to-other-sip-write", "all-pe0-read")),
)  # fmt: skip


def tables(rows: Sequence[ChartRow]) -> Tables:
    parts = [f"{part}_ns" for part in TRANSFER_PARTS]
    single = ["case", "nbytes", "last_end_ns", *parts, "path_utilization"]
    pattern = [
        "case", "transfers", "nbytes", "last_end_ns", "mean_ns", "alone_ns", "queueing_ns", "bandwidth_gbs",
        "fair_utilization", "hottest_link", "hottest_share",
    ]  # fmt: skip
    return {
        "Single transfers": table(filter(_single, rows), single),
        "Patterns": table(filter(_pattern, rows), pattern),
        "PE to PE, times in ns": table(side_by_side(rows), ["route", "nbytes", *PAIR_KINDS]),
    }


def findings(rows: Sequence[ChartRow]) -> list[Finding]:
    alone, together = list(filter(_single, rows)), list(filter(_pattern, rows))
    return [*_latency(alone), *_congestion(together), *_directions(together), *_messages(side_by_side(rows))]


def side_by_side(rows: Sequence[ChartRow]) -> list[ChartRow]:
    pairs = groups(filter(_between_pes, rows), "route", "nbytes")
    return [
        {"route": route, "nbytes": nbytes, **{row["kind"]: row["time_ns"] for row in same}}
        for (route, nbytes), same in pairs.items()
    ]


def _messages(pairs: Sequence[ChartRow]) -> Iterator[Finding]:
    """Compare the smallest and the largest message with a load, and where a message gains most and least."""
    whole = sorted(
        (pair for pair in pairs if {"message", "load"} <= pair.keys()), key=lambda pair: pair["message"] / pair["load"]
    )
    if not whole:
        return
    best, worst = whole[0], whole[-1]
    text = (
        f"{size_name(best['nbytes'])} over {best['route']} take {best['message']:,.1f} ns as a message, "
        f"{best['load']:,.1f} ns as a load."
    )
    detail = "A message crosses the path once, a load crosses it twice and reads HBM."
    if worst["message"] > worst["load"]:
        detail += (
            f" {size_name(worst['nbytes'])} over {worst['route']} take {worst['message']:,.1f} against "
            f"{worst['load']:,.1f} ns: a message is written to a slot in TCM and read again."
        )
    names = ("route", "nbytes", "message", "load")
    values = {which: {name: pair[name] for name in names} for which, pair in (("best", best), ("worst", worst))}
    yield Finding(text, "probe_pe_to_pe", 2.7, values, detail)


def _latency(single: Sequence[ChartRow]) -> Iterator[Finding]:
    if not single:
        return
    off = max(abs(row["queueing_ns"]) for row in single)
    agreed = f"the largest error is {off:,.3f} ns" if off else "all equal their closed form to the picosecond"
    small, most = _smallest(single), max(row["nbytes"] for row in single)
    near, far = (choose(small, key=lambda row: row["last_end_ns"]) for choose in (min, max))
    part, least = max(TRANSFER_PARTS, key=lambda name: far[f"{name}_ns"]), near["nbytes"]
    ends = (("near", near), ("far", far))
    yield Finding(
        f"{size_name(least)} take {near['last_end_ns']:,.0f} to {far['last_end_ns']:,.0f} ns.",
        "probe_single_parts",
        3,
        {"nbytes": least, **{f"{which}_{name}": row[name] for which, row in ends for name in ("case", "last_end_ns")}},
        f"Least {near['case']}, most {far['case']}: {far[f'{part}_ns'] / far['last_end_ns']:.0%} of it is {part}.",
    )
    yield Finding(f"{len(single)} single transfers: {agreed}.", "", 1, {"transfers": len(single), "error_ns": off})
    if most > least:
        poor = min(small, key=lambda row: row["path_utilization"])
        worst = min(row["path_utilization"] for row in single if row["nbytes"] == most)
        yield Finding(
            f"{poor['case']} reaches {poor['path_utilization']:.0%} of its slowest link with {size_name(least)}.",
            "probe_single_bandwidth",
            2.5,
            {
                "case": poor["case"],
                "nbytes": least,
                "share": poor["path_utilization"],
                "most_bytes": most,
                "least": worst,
            },
            f"With {size_name(most)} every route reaches at least {worst:.0%}.",
        )


def _congestion(patterns: Sequence[ChartRow]) -> Iterator[Finding]:
    """Find the pattern that is furthest below fair streams, at its largest size."""
    largest = list({row["case"]: row for row in sorted(patterns, key=lambda row: row["nbytes"])}.values())
    if not largest:
        return
    worst, *others = sorted(largest, key=lambda row: row["fair_utilization"])
    slow = max(largest, key=lambda row: row["mean_ns"] / row["alone_ns"])
    rest = f" Every other pattern reaches at least {others[0]['fair_utilization']:.0%}." if others else ""
    yield Finding(
        f"{_name(worst)} carries {worst['fair_utilization']:.0%} of what fair streams carry.",
        "probe_pattern_bandwidth",
        4,
        {name: worst[name] for name in ("case", "nbytes", "bandwidth_gbs", "fair_utilization")},
        f"It carries {worst['bandwidth_gbs']:,.0f} GB/s.{rest}",
    )
    yield Finding(
        f"{_name(slow)}: a transfer takes {slow['mean_ns'] / slow['alone_ns']:,.0f}x its uncontended time.",
        _links(slow["case"]),
        2,
        {name: slow[name] for name in ("case", "nbytes", "mean_ns", "alone_ns", "hottest_link", "hottest_share")},
        f"{slow['hottest_link']} is busy {slow['hottest_share']:.0%}.",
    )


def _directions(patterns: Sequence[ChartRow]) -> Iterator[Finding]:
    """Find the pattern that depends most on whether it reads or writes."""
    same = [{row["kind"]: row for row in rows} for rows in groups(patterns, "route", "nbytes").values()]
    pairs = [(both["read"], both["write"]) for both in same if len(both) == 2]
    if not pairs:
        return
    pair = max(pairs, key=lambda pair: abs(pair[0]["last_end_ns"] / pair[1]["last_end_ns"] - 1))
    fast, slow = sorted(pair, key=lambda row: row["last_end_ns"])
    gap = slow["last_end_ns"] / fast["last_end_ns"] - 1
    yield Finding(
        f"{slow['route']} at {size_name(slow['nbytes'])}: {slow['kind']}s take {gap:.0%} longer than {fast['kind']}s.",
        _links(slow["case"]),
        2.2,
        {"route": slow["route"], "nbytes": slow["nbytes"], "slow": slow["kind"], "longer_by": gap},
    )
