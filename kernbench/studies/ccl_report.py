"""The report of the collectives study: its columns, charts, findings and tables. Nothing here decides a row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import log
from re import fullmatch
from statistics import fmean, median
from typing import Any

from kernbench.points._keys import Row
from kernbench.studies._findings import Finding, claim, ends, fastest, over
from kernbench.studies.study import Tables, as_csv, groups, sips_of, size_name, table
from kernbench.topology.builder import Machine
from kernbench.viz import _palette as palette
from kernbench.viz import charts as kinds
from kernbench.viz._machine_layout import machine_section
from kernbench.viz.charts import MOST_LINES, Chart, Column, Draw, first_upper

METHOD = (
    "Each row is one collective on an idle machine, from the first program's start to the last one's end. Queues "
    "are installed before; shards are in HBM before and after. The lower bound is the largest of what latency, a "
    "cut of the machine, all traffic together, the vector engines and the memories allow: no algorithm between the "
    "same PEs can be faster. The model estimate of an algorithm is its messages and bytes at the times that a few "
    "simulated messages take on the machine, with shared links; nothing in it is fitted. Bus bandwidth is that of "
    "nccl-tests. Unless a row says otherwise a queue has the slots of the machine file, so that times are not the "
    "best for long vectors; all-reduces of 1 MiB by cube and those of lists have slots of one chunk."
)
SIZES, OTHERS, KINDS, ROOTS, SCALING, SLOTS, LIMITS, LISTS, MARKS = (
    "sizes", "other collectives", "buffer kinds", "roots", "scaling", "slots", "limits", "lists", "published",
)  # fmt: skip
SMALL = "slots of 1 KiB"
OTHER_KINDS = 65536  # bytes of the reference design's figures with queues in other memories
APART = ("mesh_2d_no_wrap", "fully_connected")  # topologies whose all-reduces by rank have charts of their own
UNCHANGED = "nothing"  # the machine that those of the slice `limits` are compared with
COLUMNS = {
    "slice": Column("slice"),
    "what": Column("variant"),
    "collective": Column("collective"),
    "algorithm": Column("algorithm"),
    "contribution": Column("contribution"),
    "system": Column("system"),
    "n_sips": Column("SIPs"),
    "bytes_per_pe": Column("bytes of a PE", "B"),
    "bytes_per_sip": Column("bytes of a SIP", "B"),
    "buffer_kind": Column("queues in"),
    "n_slots": Column("slots of each queue"),
    "latency_ns": Column("time", "ns"),
    "busbw_gbs": Column("bus bandwidth", "GB/s"),
    "bound_ns": Column("lower bound", "ns"),
    "estimate_ns": Column("model estimate", "ns"),
    "over_bound": Column("time over lower bound"),
    "over_form": Column("time over model estimate"),
    "over_tcm": Column("time over that with queues in TCM"),
    "slowdown": Column("slowdown"),
    "time_us": Column("time", "us"),
    "published_us": Column("published", "us"),
    "analytic_us": Column("published analytic model", "us"),
    "small_us": Column("with slots of 1 KiB", "us"),
    "explained": Column("share of the difference"),
    "series": Column(""),
    "share": Column("busy time of the busiest one", "%"),
    "case": Column("algorithm and bytes of a PE"),
    "resource": Column("halved or doubled"),
    "cube_x": Column("column of the root cube in the mesh of cubes"),
    "cube_y": Column("row of the root cube"),
}
_BOUND = "Dashed: the lower bound for any algorithm between the same PEs."
_FEW = (
    f"{_BOUND} One PE of each SIP. Shown are ring, user-defined algorithms, and the combination of others that is "
    f"closest to the fastest, {MOST_LINES} lines at most. Two more topologies have charts of their own."
)
# The reference design's published times [us], by bytes of a PE and memory of the queues.
_PUBLISHED = {
    (2048, "tcm"): 1.96, (16384, "tcm"): 4.2, (65536, "tcm"): 12.0, (98304, "tcm"): 17.2, (65536, "sram"): 24.3,
    (65536, "hbm"): 21.4,
}  # fmt: skip


def short(algorithm: str) -> str:
    return algorithm.replace("_allreduce", "").removesuffix("_tcm")


def seen(rows: Iterable[Mapping[str, Any]], *slices: str) -> list[Row]:
    """Rows of some slices that ran, with derived columns."""
    return [
        dict(row)
        | {
            "short": short(row["algorithm"]),
            "system": f"{row['n_sips']} SIPs, {row['sip_topology']}",
            "over_bound": row["latency_ns"] / row["bound_ns"],
            "over_form": row["latency_ns"] / row["estimate_ns"] if row["estimate_ns"] else None,
            "time_us": row["latency_ns"] / 1000,
        }
        for row in rows
        if row.get("latency_ns") and (not slices or row["slice"] in slices)
    ]


def _complete(rows: Sequence[Row], by: str, *columns: str) -> dict[Any, list[Row]]:
    """Return groups by `columns` in which every value of `by` that occurs with the same first column ran."""
    known = {key: {row[by] for row in own} for key, own in groups(rows, columns[0]).items()}
    grouped = groups(rows, *columns).items()
    return {key: own for key, own in grouped if {row[by] for row in own} == known[own[0][columns[0]]]}


def _chart(
    name: str,
    draw: Draw,
    title: str | Callable[[Sequence[Mapping[str, Any]]], str],
    slice_name: str,
    caption: str,
    derive: Callable[[list[Row]], Sequence[Row]] = lambda rows: rows,
    where: Callable[[Mapping[str, Any]], bool] = lambda row: True,
) -> Chart:
    def taken(row: Mapping[str, Any]) -> bool:
        return bool(row["slice"] == slice_name and row.get("latency_ns") and where(row))

    return Chart(name, draw, title, taken, caption, lambda rows: derive(seen(rows)))


def _few(rows: list[Row]) -> list[Row]:
    """Rows of user-defined algorithms, of ring, and of those that together are closest to the fastest."""
    times = {key: {r["short"]: _time(r) for r in own} for key, own in groups(rows, "system", "bytes_per_pe").items()}

    def excess(chosen: Sequence[str]) -> float:
        """Mean logarithm of the best chosen time over the best time of all."""
        best = [min(at.get(name, max(at.values())) for name in chosen) / min(at.values()) for at in times.values()]
        return fmean(map(log, best))

    names = list(dict.fromkeys(row["short"] for row in rows))
    kept = list(dict.fromkeys([*(r["short"] for r in rows if r.get("own")), *(n for n in names if n == "ring")]))
    while len(kept) < min(MOST_LINES, len(names)):
        kept.append(min((n for n in names if n not in kept), key=lambda name: excess([*kept, name])))
    return [row for row in rows if row["short"] in kept[:MOST_LINES]]


def _over_tcm(rows: Sequence[Row]) -> list[Row]:
    return over(rows, (row for row in rows if row["buffer_kind"] == "tcm"), _what, "latency_ns", "over_tcm")


def _slowdowns(rows: Sequence[Row]) -> list[Row]:
    named = [row | {"case": _what(row), "resource": row["what"]} for row in rows if row["what"] != UNCHANGED]
    unchanged = (row for row in rows if row["what"] == UNCHANGED)
    changed = over(named, unchanged, _what, "latency_ns", "slowdown")
    most = {what: max(row["slowdown"] for row in own) for what, own in groups(changed, "what").items()}
    return sorted(changed, key=lambda row: -most[row["what"]])


def _series(rows: list[Row]) -> list[Row]:
    named = {"simulated": "latency_ns", "model estimate": "estimate_ns", "lower bound": "bound_ns"}
    return [
        row | {"series": name, "time_us": row[column] / 1000}
        for name, column in named.items()
        for row in rows
        if row[column]
    ]


def _roots(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Column], machine: Machine) -> Any:
    wide = machine.config.sip.cube_mesh.w
    placed = [dict(row) | {"cube_x": row["root_cube"] % wide, "cube_y": row["root_cube"] // wide} for row in rows]
    ordered = sorted(placed, key=lambda row: (row["cube_y"], row["cube_x"]))
    return kinds.heat("cube_x", "cube_y", "latency_ns", label=",.0f")(ordered, columns, machine)


def _systems(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Column], machine: Machine) -> Any:
    alt = kinds.altair()
    shown: list[Row] = []
    for system, own in groups(rows, "system").items():
        count, topology = own[0]["n_sips"], own[0]["sip_topology"]  # rows do not have the sides of a grid
        other = machine.with_({f"system.sips.{key}": value for key, value in sips_of(topology, count).items()})
        view = machine_section(other)["templates"]["system"]
        sips = {
            box["id"]: (box["at"][0] + box["at"][2] / 2, box["at"][1] + box["at"][3] / 2)
            for box in view["boxes"]
            if box["kind"] == "sip"
        }
        between = [
            [
                sips[line["a"].partition(".")[0]],
                *zip(line["p"][::2], line["p"][1::2], strict=True),
                sips[line["b"].partition(".")[0]],
            ]
            for line in view["lines"]
            if line["kind"] == "sip_link"
        ]
        places: list[tuple[Row, tuple[float, float]]]
        places = [({"sip": name.removeprefix("sip")}, centre) for name, centre in sips.items()]
        places += [({"link": i, "at": k}, point) for i, points in enumerate(between) for k, point in enumerate(points)]
        # Rounded, since a scale that spans only rounding errors would show them.
        shown += [{"system": system, "x": round(x, 1), "y": round(y, 1), **what} for what, (x, y) in places]
    scale = alt.Scale(zero=False)
    place = {
        "x": alt.X("x:Q", axis=None, scale=scale),
        "y": alt.Y("y:Q", axis=None, scale=alt.Scale(zero=False, reverse=True)),
    }
    base = alt.Chart().encode(**place)
    layers = [
        base.transform_filter("isValid(datum.link)")
        .mark_line(color=palette.GREY)
        .encode(detail="link:N", order="at:Q"),
        base.transform_filter("isValid(datum.sip)").mark_square(size=300, opacity=1, color=palette.BLUE),
        base.transform_filter("isValid(datum.sip)").mark_text(color="white").encode(text="sip:N"),
    ]
    drawn = alt.layer(*layers, data=table(shown)).properties(width=180, height=140)
    panel = alt.Facet("system:N", sort=list(groups(rows, "system")), header=alt.Header(title=None))
    return drawn.facet(facet=panel, columns=4).resolve_scale(x="independent", y="independent")


def _against_published(rows: list[Row]) -> list[Row]:
    names = {
        "published_us": "published", "time_us": "simulated", "small_us": "simulated, slots of 1 KiB",
        "analytic_us": "published analytic model",
    }  # fmt: skip
    return [
        {"published": f"{size_name(row['bytes_per_pe'])}, queues in {row['buffer_kind'].upper()}"}
        | {"series": name, "time_us": row[column]}
        for row in published(rows)
        for column, name in names.items()
        if row[column] is not None and (column != "analytic_us" or row["buffer_kind"] == "tcm")
    ]


def _busiest(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Busiest link of each kind, in the run that kept its links."""
    share: dict[str, float] = {}
    for link, busy in rows[-1]["links"].items():
        kind = " to ".join(map(_node, link.split("->")))
        share[kind] = max(share.get(kind, 0.0), 100 * busy)
    return [{"link": kind, "share": busy} for kind, busy in sorted(share.items(), key=lambda item: -item[1])]


def _node(name: str) -> str:
    """Kind of a network node, in words.

    >>> _node("sip0.cube3.ucie_w.conn1"), _node("sip0.io.noc"), _node("sip0.cube0.r0c1")
    ('UCIe port', 'IO chiplet', 'router')
    """
    known = {
        ".io.ucie": "IO chiplet's UCIe port", ".io.": "IO chiplet", "ucie": "UCIe port", "pe_dma": "PE", "hbm": "HBM",
        "sram": "SRAM",
    }  # fmt: skip
    router = "router" if fullmatch(r".*\.r\d+c\d+", name) else name.rpartition(".")[2]
    return next((kind for part, kind in known.items() if part in name), router)


def _best(what: str, column: str, words: str) -> Callable[[Sequence[Mapping[str, Any]]], str]:
    """Chart title: the algorithm with the least `column`, at the largest size on the most SIPs."""

    def title(rows: Sequence[Mapping[str, Any]]) -> str:
        n_sips, nbytes = max((row["n_sips"], row["bytes_per_pe"]) for row in rows)
        own = (row for row in seen(rows) if (row["n_sips"], row["bytes_per_pe"]) == (n_sips, nbytes))
        best = min(own, key=lambda row: float(row[column]))
        return f"{what}: {best['short']} is {words} at {size_name(nbytes)} on {n_sips} SIPs"

    return title


def _most_published(rows: Sequence[Mapping[str, Any]]) -> str:
    ratios = [row["published_us"] / row["time_us"] for row in published(seen(rows)) if row["published_us"]]
    much = f" are up to {max(ratios):.1f}x" if ratios else ", and"
    return f"The reference design's published times{much} those simulated here"


def _of_topology(topology: str, contribution: str) -> Chart:
    is_rank = contribution == "rank"
    return _chart(
        f"ccl_{topology}",
        kinds.lines("bytes_per_pe", "time_us", "short", panel="system", log_y=True, rank=max),
        _best(
            f"{'One PE of each SIP' if is_rank else 'All cubes, or all PEs,'} in {topology}", "latency_ns", "fastest"
        ),
        SIZES,
        f"Shown are the {MOST_LINES} fastest at the largest size."
        if is_rank
        else "The intercube algorithms sum one shard of each cube, the hierarchical ones one of each PE.",
        where=lambda row: (row["contribution"] == "rank") == is_rank and row["sip_topology"] == topology,
    )


CHARTS = (
    _chart(
        "ccl_rank",
        kinds.lines("bytes_per_pe", "over_bound", "short", panel="system", log_y=True, rule=1.0),
        "All-reduce of one PE of each SIP: time over the lower bound",
        SIZES,
        _FEW,
        _few,
        lambda row: row["contribution"] == "rank" and row["sip_topology"] not in APART,
    ),
    _chart(
        "ccl_limits",
        kinds.heat("case", "resource", "slowdown", label=".2f"),
        "What limits an all-reduce: slowdown with one resource halved (latencies doubled)",
        LIMITS,
        "Time on the changed machine over time on the unchanged one. Six SIPs in a torus, one PE of each.",
        _slowdowns,
    ),
    _chart(
        "ccl_slots",
        kinds.lines("n_slots", "time_us", "series"),
        lambda rows: f"Time by number of slots: ring, {size_name(rows[0]['bytes_per_pe'])}, {rows[0]['n_sips']} SIPs",
        SLOTS,
        "Each queue has this many slots; a sender waits for a free one.",
        _series,
    ),
    _chart(
        "ccl_scaling",
        kinds.lines("n_sips", "over_bound", "short", panel="size", rule=1.0),
        "All-reduce on growing numbers of SIPs: time over the lower bound",
        SCALING,
        f"{_BOUND} One PE of each SIP; panels by bytes of a PE.",
        lambda rows: [row | {"size": size_name(row["bytes_per_pe"])} for row in rows],
    ),
    _chart(
        "buffer_kinds",
        kinds.lines("bytes_per_pe", "over_tcm", "buffer_kind", panel="short", rule=1.0),
        "What queues in SRAM or HBM cost: time over that with queues in TCM",
        KINDS,
        "Six SIPs in a torus.",
        _over_tcm,
    ),
    _chart(
        "ccl_roots",
        _roots,
        lambda rows: f"Time [ns] by root cube: {_what(rows[0])}",
        ROOTS,
        "The root cube sums for its SIP and talks to the other SIPs; the IO chiplet is west of column 0.",
    ),
    _chart(
        "ccl_lists",
        kinds.lines("bytes_per_sip", "over_bound", "short", panel="list", rule=1.0),
        "All-reduces of real programs: time over the lower bound",
        LISTS,
        f"{_BOUND} DeepBench in f32, Llama-3 70B with tensor parallelism in bf16; shards on PE 0 of all cubes.",
        lambda rows: [row | {"list": row["what"].partition(" ")[0]} for row in rows],
    ),
    _chart(
        "ccl_cube_pe",
        kinds.lines("bytes_per_pe", "over_bound", "short", panel="system", log_y=True, rule=1.0),
        _best("All cubes, or all PEs", "over_bound", "closest to its bound"),
        SIZES,
        f"Time over the lower bound. {_BOUND} The intercube algorithms sum one shard of each cube, the hierarchical "
        "ones one of each PE; each is compared with the bound for its PEs.",
        where=lambda row: row["contribution"] != "rank",
    ),
    _chart(
        "ccl_links",
        kinds.bars("share", "link", label=".0f"),
        lambda rows: f"Links of {_what(rows[-1])}: none is busy for more than {_busiest(rows)[0]['share']:.0f} %",
        MARKS,
        "Share of the time in which the busiest link of each kind carries flits. Six SIPs in a torus.",
        _busiest,
        lambda row: bool(row.get("links")),
    ),
    _chart(
        "published",
        kinds.bars("time_us", "published", by="series", label=".1f"),
        _most_published,
        MARKS,
        "All cubes of six SIPs in a torus, by bytes of each cube. Slots are those of the machine file, or of 1 KiB.",
        _against_published,
    ),
    _chart(
        "published_gap",
        kinds.bars("time_us", "resource", label=".1f", rule=_PUBLISHED[OTHER_KINDS, "tcm"]),
        f"The all-reduce of {size_name(OTHER_KINDS)} of each cube, with one part changed at a time",
        MARKS,
        "Dashed: the published time. All cubes of six SIPs in a torus.",
        lambda rows: [row | {"resource": _change(row) if row["what"] else "unchanged"} for row in _accounts(rows)],
        lambda row: _mark(row) == (OTHER_KINDS, "tcm"),
    ),
    *(_of_topology(name, "cube_pe") for name in ("ring_1d", "torus_2d")),
    *(_of_topology(name, "rank") for name in APART),
    _chart(
        "topology",
        _systems,
        "The systems compared: SIPs, and the links between them",
        SIZES,
        "Grids are drawn as square as their number of SIPs allows.",
    ),
)  # fmt: skip


def findings(rows: Sequence[Row]) -> list[Finding]:
    """Make no finding about a comparison of which a part did not run."""
    ran = seen(rows)
    if not ran:
        return []
    made = {
        SIZES: _winners, LIMITS: _limits, SLOTS: _slots, SCALING: _scaling,
        KINDS: _kinds, ROOTS: _root, LISTS: _real, MARKS: _marks,
    }  # fmt: skip
    return [*_bounds(ran), *(finding for name, find in made.items() for finding in find(seen(ran, name)))]


def broken(rows: Iterable[Row]) -> list[Row]:
    """Rows with a simulated time or an estimate below their bound: there must be none."""
    times = ("latency_ns", "estimate_ns")
    return [row for row in rows if any(row.get(time) and row[time] < row["bound_ns"] for time in times)]


def _bounds(ran: Sequence[Row]) -> list[Finding]:
    times: Row = {"times": len(ran)}
    if wrong := broken(ran):
        text = "{below} of {times} times are below their lower bound, first {which}, {system}."
        return [claim(text, "", 100, below=len(wrong), which=_what(wrong[0]), system=wrong[0]["system"], **times)]
    detail, text = "", "All {times} times are at or above their lower bound."
    ratios = sorted(row["over_form"] for row in ran if row["over_form"])
    if ratios:
        times |= {"median": median(ratios), "near": sum(0.8 <= ratio <= 1.25 for ratio in ratios) / len(ratios)}
        detail = "The median ratio to the model estimate is {median:.2f}; {near:.0%} are within 0.8 to 1.25."
    return [claim(text, "", 5.2, detail, **times)]


def _winners(rows: Sequence[Row]) -> list[Finding]:
    """All-reduces by rank that win at the smallest and at the largest size that all of a system ran."""
    systems: dict[str, list[list[Row]]] = {}
    ran = _complete([row for row in rows if row["contribution"] == "rank"], "short", "system", "bytes_per_pe")
    for (system, _), own in sorted(ran.items(), key=lambda item: item[0][1]):
        if len(own) > 1:
            systems.setdefault(system, []).append(own)
    found = []
    for words, place, weight in (("largest", -1, 9.0), ("smallest", 0, 8.0)):
        compared = [sizes[place] for sizes in systems.values()]
        best = [min(own, key=_time) for own in compared]
        for winner, wins in Counter(row["short"] for row in best).most_common(1):
            won = [(row, own) for row, own in zip(best, compared, strict=True) if row["short"] == winner]
            over_bound = [row["over_bound"] for row, _ in won]
            ring = [_time(r) / _time(row) for row, own in won for r in own if r["short"] == "ring" and winner != "ring"]
            sizes = sorted({row["bytes_per_pe"] for row in best})
            at = " to ".join(dict.fromkeys(size_name(size) for size in (sizes[0], sizes[-1])))
            where = f"on {wins} of {len(best)} systems" if len(best) > 1 else f"on {best[0]['system']}"
            detail = f"The {words} size is {at}{f'; ring takes {_span(ring)} the time' if ring else ''}."
            text = f"At the {words} size {winner} is fastest {where}, at {_span(over_bound)} the bound."
            values = {
                "bytes": sizes, "algorithm": winner, "wins": wins, "systems": len(best), "over_bound": over_bound,
                "ring_ratio": ring,
            }  # fmt: skip
            found.append(Finding(text, "ccl_rank", weight, values, detail))
    return found


def _limits(rows: Sequence[Row]) -> list[Finding]:
    changed = [{**row, "change": _change(row)} for row in _slowdowns(rows)]
    first, *rest = sorted(changed, key=lambda row: -row["slowdown"]) or [{}]  # of all cases
    if not first:
        return []
    then = [row for row in rest if row["case"] == first["case"]]
    text = "{first[case]}: {first[change]} costs most, {first[slowdown]:.2f}x the time."
    detail = "Next, {second[change]} takes {second[slowdown]:.2f}x the time." if then else ""
    return [claim(text, "ccl_limits", 7, detail, first=first, second=then[0] if then else {})]


def _slots(rows: Sequence[Row]) -> list[Finding]:
    own = sorted(rows, key=lambda row: row["n_slots"])
    if len(own) < 2:
        return []
    least, few = min(map(_time, own)), own[0]
    enough = next(row["n_slots"] for row in own if _time(row) <= 1.05 * least)
    text, detail = "{what}: {enough} slots are within 5 % of the best.", "{fewest} take {ratio:.2f}x it."
    values = {"what": _what(few), "enough": enough, "fewest": few["n_slots"], "ratio": _time(few) / least}
    return [claim(text, "ccl_slots", 2, detail, **values)]


def _scaling(rows: Sequence[Row]) -> list[Finding]:
    """Algorithms on the most SIPs, compared at the smallest size at which all of them ran there."""
    counts = sorted({row["n_sips"] for row in rows})
    ran = _complete(rows, "short", "bytes_per_pe", "n_sips")
    sizes = [size for size in sorted({row["bytes_per_pe"] for row in rows}) if (size, counts[-1]) in ran]
    if len(counts) < 2 or not sizes:
        return []
    slow, fast = ends(ran[sizes[0], counts[-1]], "latency_ns")
    return [claim(
        "{size} on {fast[n_sips]} SIPs: {fast[short]} is fastest, at {fast[over_bound]:.1f}x the bound.",
        "ccl_scaling", 6, "It takes {fast[latency_ns]:,.0f} ns; {slow[short]} takes {ratio:.1f}x that time.",
        size=size_name(sizes[0]), fast=fast, slow=slow, ratio=_time(slow) / _time(fast),
    )]  # fmt: skip


def _kinds(rows: Sequence[Row]) -> list[Finding]:
    other = [row for row in _over_tcm(rows) if row["buffer_kind"] != "tcm"]
    if not other:
        return []
    worst = max(other, key=lambda row: row["over_tcm"])
    values = {row["buffer_kind"].upper(): row["over_tcm"] for row in other if _what(row) == _what(worst)}
    costs = " and ".join(f"{kind} {ratio - 1:+.0%}" for kind, ratio in values.items())
    return [Finding(f"{_what(worst)}: against queues in TCM, {costs}.", "buffer_kinds", 3, {"over_tcm": values})]


def _root(rows: Sequence[Row]) -> list[Finding]:
    if len(rows) < 2:
        return []
    slow, fast = ends(rows, "latency_ns")
    return [claim(
        "{what}: root cube {fast[root_cube]} is fastest; cube {slow[root_cube]} takes {slower:.0%} longer.",
        "ccl_roots", 4, "It takes {fast[latency_ns]:,.0f} ns.", what=_what(fast), fast=fast, slow=slow,
        slower=_time(slow) / _time(fast) - 1,
    )]  # fmt: skip


def _real(rows: Sequence[Row]) -> list[Finding]:
    cases, names = groups(rows, "what"), {row["short"] for row in rows}
    if len(names) < 2 or any({row["short"] for row in own} != names for own in cases.values()):
        return []
    best = [min(own, key=_time) for own in cases.values()]
    wins = fastest(row["short"] for row in best)
    ratios = [row["over_bound"] for row in best]
    text, detail = f"Of {len(best)} all-reduces of real programs, {wins}.", f"They take {_span(ratios)} their bounds."
    values = {"wins": dict(Counter(row["short"] for row in best)), "over_bound": ratios}
    return [Finding(text, "ccl_lists", 5.5, values, detail)]


def _marks(ran: Sequence[Row]) -> list[Finding]:
    changed, mark = [row for row in _accounts(ran) if row["what"]], (OTHER_KINDS, "tcm")
    if len(changed) < 2:
        return []
    small = next((row for row in changed if row["what"] == SMALL), changed[0])
    other = next(row for row in changed if row["what"] not in (SMALL, "slots"))
    return [claim(
        "The reference design's {size} take {published:g} us as published, {simulated:.1f} us here: {small[what]} "
        "would account for {small[explained]:.0%} of the gap.", "published_gap", 5.3,
        "{change} would account for {other[explained]:.0%}.", size=size_name(OTHER_KINDS), published=_PUBLISHED[mark],
        simulated={_mark(row): row["time_us"] for row in published(ran)}[mark], small=small, other=other,
        change=first_upper(_change(other)),
    )]  # fmt: skip


def tables(rows: Sequence[Row]) -> Tables:
    ran = seen(rows)
    sizes = [row for row in ran if row["slice"] == SIZES]
    furthest = sorted((r for r in ran if r["over_form"]), key=lambda row: -abs(log(row["over_form"])))[:5]
    made = {
        "Fastest all-reduce of one PE of each SIP (time, over lower bound)": table(
            _fastest([r for r in sizes if r["contribution"] == "rank"])
        ),
        "Other collectives (time, over lower bound)": table(_others([r for r in ran if r["slice"] == OTHERS])),
        "The reference design's all-reduces": table(
            published(ran), ["bytes_per_pe", "buffer_kind", "time_us", "published_us", "small_us", "analytic_us"]
        ),
        f"What would account for its time at {size_name(OTHER_KINDS)}": table(
            (row for row in _accounts(ran) if row["what"]), ["what", "time_us", "explained"]
        ),
        "Furthest from the model estimate": table(
            furthest,
            ["slice", "what", "algorithm", "system", "bytes_per_pe", "latency_ns", "estimate_ns", "over_form"],
        ),
        "Failed": table(
            (row for row in rows if row.get("failed")),
            ["algorithm", "n_sips", "sip_topology", "bytes_per_pe", "failed"],
        ),
    }
    return {heading: shown for heading, shown in made.items() if len(shown)}


_SUMMARY = (
    "sip_topology", "n_sips", "contribution", "algorithm", "buffer_kind", "n_slots", "slot_size", "bytes_per_pe",
    "bytes_per_sip", "latency_ns", "bound_ns", "estimate_ns", "busbw_gbs",
)  # fmt: skip


def files(rows: Sequence[Row], machine: Machine) -> dict[str, str]:
    """Files of the reference design's bench: all-reduces by system and size, and by memory of queues."""
    found = {"summary.csv": seen(rows, SIZES), "buffer_kinds.csv": seen(rows, KINDS)}
    return {name: as_csv([{key: row[key] for key in _SUMMARY} for row in own]) for name, own in found.items() if own}


def _fastest(rows: Sequence[Row]) -> list[Row]:
    ran = _complete(rows, "short", "system", "bytes_per_pe")
    best = {key: min(own, key=_time) for key, own in ran.items()}
    sizes = sorted({nbytes for _, nbytes in best})
    return [
        {"system": system}
        | {size_name(n): f"{row['short']}, {_cell(row)}" if (row := best.get((system, n))) else "" for n in sizes}
        for system in dict.fromkeys(system for system, _ in best)
    ]


def _others(rows: Sequence[Row]) -> list[Row]:
    columns = ("collective", "algorithm", "bytes_per_pe")
    return [
        dict(zip(columns, key, strict=True)) | {row["system"]: _cell(row) for row in own}
        for key, own in groups(rows, *columns).items()
    ]


def published(ran: Sequence[Row]) -> list[Row]:
    """Return simulated times beside those published for the reference design, and its analytic model."""
    marks = groups([row for row in ran if row["slice"] == MARKS], "what")
    small = {_mark(row): row["time_us"] for row in marks.get(SMALL, [])}
    return [
        row
        | {
            "published_us": _PUBLISHED.get(_mark(row)),
            "small_us": small.get(_mark(row)),
            "analytic_us": (1346 + 1.20 * 8 * row["bytes_per_pe"] / 128) / 1000,
        }
        for row in marks.get("", [])
    ]


def _mark(row: Mapping[str, Any]) -> tuple[int, str]:
    return row["bytes_per_pe"], row["buffer_kind"]


def _accounts(ran: Sequence[Row]) -> list[Row]:
    """Part of the difference to the published time that each changed parameter, and none, accounts for."""
    own = [row for row in ran if row["slice"] == MARKS and _mark(row) == (OTHER_KINDS, "tcm")]
    usual = next((row["time_us"] for row in own if not row["what"]), None)
    if usual is None:
        return []
    gap = _PUBLISHED[OTHER_KINDS, "tcm"] - usual
    changed = [row | {"explained": (row["time_us"] - usual) / gap} for row in own]
    return sorted(changed, key=lambda row: -row["explained"])


def _what(row: Mapping[str, Any]) -> str:
    return f"{short(row['algorithm'])}, {size_name(row['bytes_per_pe'])}"


def _change(row: Mapping[str, Any]) -> str:
    if row["what"] == SMALL:
        return SMALL
    return f"{'doubling' if row['what'].startswith(('latency', 'issue')) else 'halving'} {row['what']}"


def _cell(row: Mapping[str, Any]) -> str:
    return f"{_time(row):,.0f} ns, {row['over_bound']:.1f}x"


def _time(row: Mapping[str, Any]) -> float:
    return float(row["latency_ns"])


def _span(ratios: Sequence[float]) -> str:
    """Smallest and largest of ratios.

    >>> _span([1.5, 2.24]), _span([2.0])
    ('1.5x to 2.2x', '2.0x')
    """
    return " to ".join(dict.fromkeys(f"{ratio:.1f}x" for ratio in (min(ratios), max(ratios))))
