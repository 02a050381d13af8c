"""The report of the probe: columns, charts, findings and tables, all from the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kernbench.analysis.transfer import PARTS
from kernbench.studies.study import Finding, Tables, size_name, table
from kernbench.sweeps.keys import Row
from kernbench.topology.builder import Machine
from kernbench.viz import charts as kinds
from kernbench.viz import palette
from kernbench.viz.charts import Chart, Column
from kernbench.viz.heatmap import link_heatmap

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
} | {f"{part}_ns": Column(part) for part in PARTS if part != "queueing"}


def _single(row: Mapping[str, Any]) -> bool:
    return row.get("transfers") == 1


def _pattern(row: Mapping[str, Any]) -> bool:
    return bool(row.get("transfers", 1) > 1)


def _between_pes(row: Mapping[str, Any]) -> bool:
    return row["kind"] in PAIR_KINDS


def _map(case: str) -> Chart:
    """Return the chart of the links of a pattern, on the machine's geometry."""

    def draw(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Column], machine: Machine) -> Figure:
        row = rows[-1]
        busy = f"the busiest links carry flits {row['hottest_share']:.0%} of {row['last_end_ns']:,.0f} ns"
        note = f"links busy for less than {VISIBLE:.2%} of the time are left out"
        return link_heatmap(row["links"], machine, title=f"{_name(row)}: {busy}", note=note)

    name = f"probe_links_{case.replace('-', '_')}"
    return Chart(name, draw, f"Busy links of {case}", where=lambda row: row["case"] == case and bool(row.get("links")))


def _smallest(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    least = min(row["nbytes"] for row in rows)
    return [row for row in rows if row["nbytes"] == least]


def _name(row: Mapping[str, Any]) -> str:
    return f"{row['case']}, {row['transfers']} x {size_name(row['nbytes'])}"


CHARTS = (
    Chart(
        "probe_single_bandwidth",
        kinds.lines("nbytes", "path_utilization", "route", panel="kind", rule=1.0),
        "Bandwidth of single transfers: only large ones hide the latency",
        where=lambda row: _single(row) and not row["case"].startswith(("h2d", "d2h", "same")),
        caption="Bytes over time, as a share of the slowest link's bandwidth. One transfer on an idle machine.",
    ),
    Chart(
        "probe_single_parts",
        kinds.parts("case", list(_COLOURS), title="time [ns]", colours=_COLOURS),
        lambda rows: f"Where the time of a single transfer of {size_name(min(r['nbytes'] for r in rows))} goes",
        where=_single,
        caption="Parts sum to the time exactly: wires, nodes, one flit's time on the faster links (fill), bytes on "
        "the slowest link (serialization), and what the memory adds.",
        derive=_smallest,
    ),
    Chart(
        "probe_pattern_bandwidth",
        kinds.lines("nbytes", "fair_utilization", "route", panel="kind", rule=1.0),
        "Bandwidth under contention, as a share of fair streams",
        where=_pattern,
        caption="1 is the time of the same bytes as streams that share every link fairly and have no latency.",
    ),
    Chart(
        "probe_pe_to_pe",
        kinds.lines("nbytes", "time_ns", "kind", panel="route"),
        "PE to PE: a queue message against a load and a store",
        where=_between_pes,
        caption="From PE 0 of cube 0 to the next PE, and to the next cube, of its row and column. A message ends "
        "in TCM, where the receiver waits for it. A load, which reads HBM, and a store, which ends in HBM, do not "
        "notify the other PE.",
    ),
    *map(_map, ("all-one-read", "eastbound-read", "to-other-sip-write", "all-pe0-read")),
)  # fmt: skip


def tables(rows: Sequence[Row]) -> Tables:
    parts = [f"{part}_ns" for part in PARTS]
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


def findings(rows: Sequence[Row]) -> list[Finding]:
    alone, together = ([r for r in rows if where(r)] for where in (_single, _pattern))
    return [*_latency(alone), *_congestion(together), *_directions(together), *_messages(side_by_side(rows))]


def side_by_side(rows: Sequence[Row]) -> list[Row]:
    """Return the times from PE to PE, of a message, a load and a store in one row."""
    found: dict[tuple[str, int], Row] = {}
    for r in filter(_between_pes, rows):
        at = r["route"], r["nbytes"]
        found.setdefault(at, {"route": at[0], "nbytes": at[1]})[r["kind"]] = r["time_ns"]
    return list(found.values())


def _messages(pairs: Sequence[Row]) -> list[Finding]:
    """Compare the smallest and the largest message with a load, where a message gains most and where least."""
    whole = [pair for pair in pairs if {"message", "load"} <= pair.keys()]
    if not whole:
        return []

    def ratio(pair: Row) -> float:
        return float(pair["message"] / pair["load"])

    best, worst = min(whole, key=ratio), max(whole, key=ratio)
    text = (
        f"{size_name(best['nbytes'])} over {best['route']} take {best['message']:,.1f} ns as a message and "
        f"{best['load']:,.1f} ns as a load: a message crosses the path once, a load crosses it twice and reads HBM"
    )
    if ratio(worst) > 1:
        text += (
            f"; {size_name(worst['nbytes'])} over {worst['route']} take {worst['message']:,.1f} against "
            f"{worst['load']:,.1f} ns: a message is written to a slot in TCM and read again"
        )
    return [Finding(f"{text}.", "probe_pe_to_pe", 2.7)]


def _latency(single: Sequence[Row]) -> list[Finding]:
    if not single:
        return []
    off = max(abs(r["queueing_ns"]) for r in single)
    agreed = "all equal their closed form to the picosecond" if not off else f"the largest error is {off:,.3f} ns"
    least, most = min(r["nbytes"] for r in single), max(r["nbytes"] for r in single)
    small = [r for r in single if r["nbytes"] == least]
    near, far = (choose(small, key=lambda r: r["last_end_ns"]) for choose in (min, max))
    part = max(PARTS, key=lambda name: far[f"{name}_ns"])
    found = [
        Finding(
            f"{size_name(least)} take {near['last_end_ns']:,.0f} ns ({near['case']}) to {far['last_end_ns']:,.0f} ns "
            f"({far['case']}, {far[f'{part}_ns'] / far['last_end_ns']:.0%} of it {part}).",
            "probe_single_parts",
            3,
        ),
        Finding(f"{len(single)} single transfers: {agreed}.", "", 1),
    ]
    if most > least:
        poor = min(small, key=lambda r: r["path_utilization"])
        worst = min((r for r in single if r["nbytes"] == most), key=lambda r: r["path_utilization"])
        found.append(
            Finding(
                f"{poor['case']} reaches {poor['path_utilization']:.0%} of its slowest link with {size_name(least)}; "
                f"with {size_name(most)} every route reaches at least {worst['path_utilization']:.0%}.",
                "probe_single_bandwidth",
                2.5,
            )
        )
    return found


def _congestion(patterns: Sequence[Row]) -> list[Finding]:
    """Say which pattern falls furthest below fair streams, at its largest size."""
    largest = list({r["case"]: r for r in sorted(patterns, key=lambda r: r["nbytes"])}.values())
    if not largest:
        return []
    worst = min(largest, key=lambda r: r["fair_utilization"])
    slow = max(largest, key=lambda r: r["mean_ns"] / r["alone_ns"])
    others = min(r["fair_utilization"] for r in largest if r is not worst) if len(largest) > 1 else None
    rest = f"; every other pattern reaches at least {others:.0%}" if others is not None else ""
    return [
        Finding(
            f"{_name(worst)} carries {worst['bandwidth_gbs']:,.0f} GB/s, {worst['fair_utilization']:.0%} of fair "
            f"streams{rest}.",
            "probe_pattern_bandwidth",
            4,
        ),
        Finding(
            f"{_name(slow)}: a transfer takes {slow['mean_ns'] / slow['alone_ns']:,.0f}x its uncontended time; "
            f"{slow['hottest_link']} is busy {slow['hottest_share']:.0%}.",
            f"probe_links_{slow['case'].replace('-', '_')}",
            2,
        ),
    ]


def _directions(patterns: Sequence[Row]) -> list[Finding]:
    """Say which pattern depends most on whether it reads or writes."""
    time = {(r["case"], r["nbytes"]): r for r in patterns}
    pairs = [
        (r, time[other])
        for r in patterns
        if r["kind"] == "read" and (other := (r["case"].replace("-read", "-write"), r["nbytes"])) in time
    ]
    if not pairs:
        return []
    pair = max(pairs, key=lambda pair: abs(pair[0]["last_end_ns"] / pair[1]["last_end_ns"] - 1))
    fast, slow = sorted(pair, key=lambda r: r["last_end_ns"])
    gap = slow["last_end_ns"] / fast["last_end_ns"] - 1
    why = ""
    if slow["kind"] == "read" and gap > 0.1:
        why = (
            ": a memory serves each read as a whole, so links to distant PEs idle meanwhile; writes interleave by flit"
        )
    name = slow["case"].rsplit("-", 1)[0]
    text = f"{name} at {size_name(slow['nbytes'])}: {slow['kind']}s take {gap:.0%} longer than {fast['kind']}s{why}."
    return [Finding(text, f"probe_links_{slow['case'].replace('-', '_')}", 2.2)]
