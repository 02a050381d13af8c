"""The report of the probe: columns, charts, findings and tables, all from the rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kernbench.analysis._transfer import TRANSFER_PARTS
from kernbench.studies._findings import Finding, claim, ends
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
    """Compare messages with loads, where a message gains most and least."""
    both = [
        {**pair, "size": size_name(pair["nbytes"]), "ratio": pair["message"] / pair["load"]}
        for pair in pairs
        if {"message", "load"} <= pair.keys()
    ]
    if both:
        worst, best = ends(both, "ratio")
        slower = (
            " {worst[size]} over {worst[route]} take {worst[message]:,.1f} against {worst[load]:,.1f} ns: a message is "
            "written to a slot in TCM and read again."
        )
        yield claim(
            "{best[size]} over {best[route]} take {best[message]:,.1f} ns as a message, {best[load]:,.1f} ns as a "
            "load.", "probe_pe_to_pe", 2.7,
            "A message crosses the path once, a load crosses it twice and reads HBM."
            + slower * (worst["ratio"] > 1), best=best, worst=worst,
        )  # fmt: skip


def _latency(single: Sequence[ChartRow]) -> Iterator[Finding]:
    if not single:
        return
    off, n = max(abs(row["queueing_ns"]) for row in single), len(single)
    agreed = "the largest error is {error_ns:,.3f} ns" if off else "all equal their closed form to the picosecond"
    yield claim(f"{{transfers}} single transfers: {agreed}.", "", 1, transfers=n, error_ns=off)
    small, most = _smallest(single), max(row["nbytes"] for row in single)
    far, near = ends(small, "last_end_ns")
    part, size = max(TRANSFER_PARTS, key=lambda name: far[f"{name}_ns"]), size_name(near["nbytes"])
    yield claim(
        "{size} take {near[last_end_ns]:,.0f} to {far[last_end_ns]:,.0f} ns.", "probe_single_parts", 3,
        "Least {near[case]}, most {far[case]}: {share:.0%} of it is {part}.", size=size, near=near, far=far, part=part,
        share=far[f"{part}_ns"] / far["last_end_ns"],
    )  # fmt: skip
    if most > near["nbytes"]:
        poor = ends(small, "path_utilization")[1]
        worst = ends([row for row in single if row["nbytes"] == most], "path_utilization")[1]
        yield claim(
            "{poor[case]} reaches {poor[path_utilization]:.0%} of its slowest link with {size}.",
            "probe_single_bandwidth", 2.5, "With {large} every route reaches at least {worst[path_utilization]:.0%}.",
            poor=poor, size=size, large=size_name(most), worst=worst,
        )  # fmt: skip


def _congestion(patterns: Sequence[ChartRow]) -> Iterator[Finding]:
    """Find the pattern that is furthest below fair streams, at its largest size."""
    largest = {row["case"]: row for row in sorted(patterns, key=lambda row: row["nbytes"])}.values()
    named = [{**row, "name": _name(row), "slowdown": row["mean_ns"] / row["alone_ns"]} for row in largest]
    if not named:
        return
    worst, *others = sorted(named, key=lambda row: row["fair_utilization"])
    rest = " Every other pattern reaches at least {next[fair_utilization]:.0%}." if others else ""
    yield claim(
        "{name} carries {fair_utilization:.0%} of what fair streams carry.", "probe_pattern_bandwidth", 4,
        "It carries {bandwidth_gbs:,.0f} GB/s." + rest, **worst, next=others[0] if others else {},
    )  # fmt: skip
    slow = ends(named, "slowdown")[0]
    text = "{name}: a transfer takes {slowdown:,.0f}x its uncontended time."
    yield claim(text, _links(slow["case"]), 2, "{hottest_link} is busy {hottest_share:.0%}.", **slow)


def _directions(patterns: Sequence[ChartRow]) -> Iterator[Finding]:
    """Find the pattern that depends most on whether it reads or writes."""
    same = [sorted(rows, key=lambda row: row["last_end_ns"]) for rows in groups(patterns, "route", "nbytes").values()]
    pairs = [
        {"fast": fast, "slow": slow, "longer_by": slow["last_end_ns"] / fast["last_end_ns"] - 1}
        for fast, slow in (rows for rows in same if {row["kind"] for row in rows} == {"read", "write"})
    ]
    if pairs:
        most = ends(pairs, "longer_by")[0]
        text = "{slow[route]} at {size}: {slow[kind]}s take {longer_by:.0%} longer than {fast[kind]}s."
        yield claim(text, _links(most["slow"]["case"]), 2.2, size=size_name(most["slow"]["nbytes"]), **most)
