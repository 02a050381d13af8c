"""What the collectives study found, in words that are computed from its rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median

from kernbench.studies import ccl_cases as cases
from kernbench.studies.ccl import of_slice
from kernbench.studies.ccl_report import published
from kernbench.studies.points import Row
from kernbench.viz.ccl import by, crossovers, size_label


def findings(rows: Sequence[Row]) -> list[str]:
    """Return what the table says, one sentence each."""
    if not rows:
        return ["No case ran: every algorithm refused its system."]
    said = [*_bounds(rows), *_forms(rows)]
    said += _winners(of_slice(rows, cases.SIZES))
    said += _kinds(of_slice(rows, cases.KINDS))
    said += _roots(of_slice(rows, cases.ROOTS))
    said += _scaling(of_slice(rows, cases.SCALING))
    said += _slots(of_slice(rows, cases.SLOTS))
    said += _limits(of_slice(rows, cases.LIMITS))
    said += _lists(of_slice(rows, cases.LISTS))
    said += _marks(of_slice(rows, cases.MARKS))
    return said + _links(rows)


def broken(rows: Iterable[Row]) -> list[Row]:
    """Return the rows with a simulated time, or a closed form, below their bound: there must be none."""
    times = ("latency_ns", "closed_form_ns")
    return [row for row in rows if any(row[time] is not None and row[time] < row["bound_ns"] for time in times)]


def _bounds(rows: Sequence[Row]) -> list[str]:
    least = min(rows, key=lambda row: row["latency_ns"] / row["bound_ns"])
    wrong = len(broken(rows))
    hold = f"The lower bound holds in all {len(rows)} rows" if not wrong else f"{wrong} rows BREAK their bound"
    return [
        (
            f"{hold}; closest to it is {_name(least)} with {least['latency_ns'] / least['bound_ns']:.2f} x the bound "
            f"({least['bound_by']})."
        )
    ]


def _forms(ran: Sequence[Row]) -> list[str]:
    formed = [row for row in ran if row["closed_form_ns"]]
    if not formed:
        return []
    ratio = {id(row): row["latency_ns"] / row["closed_form_ns"] for row in formed}
    factor = {key: max(r, 1 / r) for key, r in ratio.items()}
    near = sum(0.8 <= r <= 1.25 for r in ratio.values()) / len(formed)
    most = sorted(factor.values())[-1 - len(formed) // 20]
    worst = max(formed, key=lambda row: factor[id(row)])
    where = f"{worst['slice']}{': ' if worst['what'] else ''}{worst['what']}"
    return [
        (
            f"Simulated time over closed form is {median(ratio.values()):.2f} in the median of {len(formed)} rows, "
            f"between 0.8 and 1.25 in {near:.0%}, and no more than a factor of {most:.2f} away in 95 of 100; furthest "
            f"off is {_name(worst)} ({where}): {worst['latency_ns']:,.0f} ns simulated, "
            f"{worst['closed_form_ns']:,.0f} ns by closed form."
        )
    ]


def _winners(rows: Sequence[Row]) -> list[str]:
    said = []
    systems: dict[tuple[int, str], list[Row]] = {}
    for row in rows:
        if row["contribution"] == "rank":
            systems.setdefault((row["n_sips"], row["sip_topology"]), []).append(row)
    for (n, shape), own in systems.items():
        sizes = by(sorted(own, key=lambda row: row["bytes_per_pe"]), "bytes_per_pe")
        ends = [min(sizes[size], key=lambda row: row["latency_ns"]) for size in (min(sizes), max(sizes))]
        changes = "; ".join(f"{before} to {after} at {size_label(x)}" for x, before, after in crossovers(own))
        said.append(
            f"{n} SIPs, {shape}, by rank: {ends[0]['algorithm']} is fastest at {size_label(min(sizes))} "
            f"({ends[0]['latency_ns']:,.0f} ns), {ends[1]['algorithm']} at {size_label(max(sizes))} "
            f"({ends[1]['busbw_gbs']:.1f} GB/s of bus bandwidth)"
            f"{f'; the fastest changes from {changes}' if changes else ''}."
        )
    return said


def _kinds(rows: Sequence[Row]) -> list[str]:
    said = []
    for algorithm, own in by(list(rows), "algorithm").items():
        largest = max(row["bytes_per_pe"] for row in own)
        times = {row["buffer_kind"]: row["latency_ns"] for row in own if row["bytes_per_pe"] == largest}
        if "tcm" not in times:
            continue
        others = ", ".join(f"{kind} {times[kind] / times['tcm'] - 1:+.0%}" for kind in times if kind != "tcm")
        said.append(
            f"{algorithm} at {size_label(largest)}: rings in TCM take {times['tcm']:,.0f} ns; against that {others}."
        )
    return said


def _roots(rows: Sequence[Row]) -> list[str]:
    if not rows:
        return []
    best, worst = (pick(rows, key=lambda row: row["latency_ns"]) for pick in (min, max))
    return [
        (
            f"Of the cubes that may stand for a SIP, cube {best['root_cube']} is best ({best['latency_ns']:,.0f} ns "
            f"at {size_label(best['bytes_per_pe'])}) and cube {worst['root_cube']} worst "
            f"({worst['latency_ns'] / best['latency_ns'] - 1:+.0%})."
        )
    ]


def _scaling(rows: Sequence[Row]) -> list[str]:
    said = []
    for size, own in by(sorted(rows, key=lambda row: row["n_sips"]), "bytes_per_pe").items():
        last = max(row["n_sips"] for row in own)
        first = min(row["n_sips"] for row in own)
        times: dict[str, dict[int, float]] = {}
        for row in own:
            times.setdefault(row["algorithm"], {})[row["n_sips"]] = row["latency_ns"]
        both = {name: t[last] / t[first] for name, t in times.items() if {first, last} <= t.keys()}
        best = min((name for name in times if last in times[name]), key=lambda name: times[name][last])
        grown = ", ".join(f"{name} {factor:.1f} x" for name, factor in both.items())
        said.append(f"{size_label(size)} from {first} to {last} SIPs: {grown}; fastest on {last} is {best}.")
    return said


def _slots(rows: Sequence[Row]) -> list[str]:
    said = []
    for algorithm, own in by(sorted(rows, key=lambda row: row["n_slots"]), "algorithm").items():
        least = min(row["latency_ns"] for row in own)
        enough = next(row for row in own if row["latency_ns"] <= 1.05 * least)
        first = own[0]
        said.append(
            f"{algorithm} at {size_label(first['bytes_per_pe'])}: {enough['n_slots']} slots come within 5 % of the "
            f"best; {first['n_slots']} slots take {first['latency_ns'] / least:.2f} x as long."
        )
    return said


def _limits(rows: Sequence[Row]) -> list[str]:
    said = []
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["algorithm"], row["bytes_per_pe"]), []).append(row)
    for (algorithm, size), own in groups.items():
        times = {row["what"]: row["latency_ns"] for row in own}
        if len(times) < 3 or "nothing" not in times:
            continue
        growth = {what: t / times["nothing"] - 1 for what, t in times.items() if what != "nothing"}
        first, second = sorted(growth, key=lambda what: -growth[what])[:2]
        said.append(
            f"{algorithm} at {size_label(size)}: of all things halved one at a time (latencies doubled), '{first}' "
            f"costs most ({growth[first]:+.0%}), then '{second}' ({growth[second]:+.0%})."
        )
    return said


def _lists(rows: Sequence[Row]) -> list[str]:
    if not rows:
        return []
    best = [min(own, key=lambda row: row["latency_ns"]) for own in by(list(rows), "what").values()]
    wins = Counter(row["algorithm"] for row in best)
    top = max(best, key=lambda row: row["busbw_gbs"])
    return [
        (
            f"Of {len(best)} all-reduces of DeepBench and Llama-3 70B, "
            f"{', '.join(f'{name} wins {n}' for name, n in wins.most_common())}; the best bus bandwidth is "
            f"{top['busbw_gbs']:.0f} GB/s ({top['what']})."
        )
    ]


def _marks(rows: Sequence[Row]) -> list[str]:
    said = []
    marks = {(m["bytes_per_pe"], m["buffer_kind"]): m["latency_us"] for m in published() if m["source"] == "published"}
    pairs = [
        (row, marks[row["bytes_per_pe"], row["buffer_kind"]])
        for row in rows
        if (row["bytes_per_pe"], row["buffer_kind"]) in marks
    ]
    if pairs:
        each = ", ".join(
            f"{size_label(row['bytes_per_pe'])} {row['buffer_kind']} {row['latency_ns'] / 1000:.1f} us ({mark:g} us)"
            for row, mark in pairs
        )
        said.append(f"Beside the published figures of the reference design (in brackets): {each}.")
    return said


def _links(ran: Sequence[Row]) -> list[str]:
    between = sum(".io.noc->" in row["hottest_link"] and row["hottest_link"].endswith(".io.noc") for row in ran)
    shore = sum(".io.ucie" in row["hottest_link"] for row in ran)
    return [
        (
            f"The hottest link joins two SIPs in {between / len(ran):.0%} of the rows and an IO chiplet with its cubes "
            f"in {shore / len(ran):.0%}."
        )
    ]


def _name(row: Row) -> str:
    return f"{row['algorithm']}, {size_label(row['bytes_per_pe'])}, {row['n_sips']} SIPs {row['sip_topology']}"
