"""The report of layers over a whole SIP: columns, charts, findings and tables, all from the rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from kernbench.analysis._resources import attribution
from kernbench.analysis._roofline import Roofs, macs_per_ns
from kernbench.ops.matmul import PLACEMENTS
from kernbench.points._keys import Row
from kernbench.studies._findings import Finding, claim, ends, fastest
from kernbench.studies.study import Tables, groups, table
from kernbench.topology import _naming as naming
from kernbench.topology.builder import Machine
from kernbench.viz import _palette as palette
from kernbench.viz import charts as kinds
from kernbench.viz.charts import Chart, Column

METHOD = (
    "C[M, N] = A[M, K] B[K, N] over all PEs of SIP 0. A is cut by rows over the PEs, B by columns, so that each weight "
    "exists once. In `rows` a PE computes rows of C and reads all of B; in `columns` it computes columns of C and "
    "reads all of A; in `2-D` a cube computes columns and each of its PEs rows. In `split-K` A and B are cut by K, so "
    "that a PE multiplies what it holds; two more launches add the partial sums, in each cube and then over cubes. "
    "Operands larger than a third of the operands' part of TCM are streamed. C stays with the PE that computed it. The "
    "makespan runs from the first launch leaving the host to the last completion coming back. A layer under tensor "
    "parallelism (tp) is the part of one SIP, without the all-reduce between SIPs. The bound is the larger of the "
    "busiest PE's tiles at the matrix rate and of the bytes it reads from others at the rate of its link, in `split-K` "
    "their sum. What takes long to simulate and has a bound far over another placement's estimate is refused."
)
# Parts of the critical path, and their colours.
PATH_RESOURCES = {
    "hbm": ("HBM slices", palette.ORANGE), "dma": ("links to slices", palette.VERMILION),
    "links": ("links between PEs", palette.DARK_GREY),
    "fetch": ("fetch from TCM", palette.SKY), "gemm": ("matrix engine", palette.BLUE),
    "math": ("vector engine", palette.PURPLE), "store": ("store to TCM", palette.GREEN),
    "launch": ("launch and completion", palette.GREY),
}  # fmt: skip
COLUMNS = {
    "layer": Column("layer"),
    "shape": Column("M x K x N"),
    "placement": Column("placement"),
    "makespan_ns": Column("makespan", "ns"),
    "bound_ns": Column("lower bound", "ns"),
    "utilization": Column("useful share of the SIP's matrix rate"),
    "pes": Column("PEs at work"),
    "remote_bytes": Column("read from other PEs", "B"),
    "issued": Column("useful share of tiles"),
    "hottest_link": Column("hottest link"),
    "hottest_busy": Column("busy"),
    **{f"path_{part}_ns": Column(title) for part, (title, _) in PATH_RESOURCES.items()},
    "macs_per_pe": Column("multiply-accumulates for each PE of the SIP"),
    "percent": Column("useful share of the SIP's matrix rate", "%"),
}
_COLOURS = (palette.ORANGE, palette.SKY, palette.BLUE, palette.PURPLE, palette.GREEN, palette.VERMILION, palette.GREY)
_SHOWN = 12  # layers with the busiest links
PLACEMENT_COLOURS = dict(zip(PLACEMENTS, _COLOURS, strict=True))


def best(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Row]]:
    by_layer = groups(map(dict, filter(_ran, rows)), "layer")
    return {layer: sorted(runs, key=lambda row: row["makespan_ns"]) for layer, runs in by_layer.items()}


def _fastest(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    return [runs[0] for runs in best(rows).values()]


def _over_bound(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Column], machine: Machine) -> Any:
    alt = kinds.altair()
    found = [
        {
            "list": row["list"], "label": f"{_title(row)}: {runs[0]['makespan_ns'] / 1000:,.1f} us",
            "placement": row["placement"], "makespan_ns": row["makespan_ns"],
            "over": row["makespan_ns"] / min(run["bound_ns"] for run in runs),
        }
        for runs in best(rows).values()
        for row in runs
    ]  # fmt: skip
    data = table(found)
    names = [name for name in PLACEMENT_COLOURS if name in set(data["placement"])]
    log, colours = alt.Scale(type="log", domainMin=1), [PLACEMENT_COLOURS[name] for name in names]
    labels = list(dict.fromkeys(data["label"]))
    dots = alt.Chart(data).mark_point(filled=True, size=70, opacity=1)
    dots = dots.encode(
        x=alt.X("over:Q", title="makespan / lower bound", scale=log, axis=kinds.log_axis(data["over"])),
        y=alt.Y("label:N", sort=labels, title=None, axis=alt.Axis(ticks=False)),
        color=alt.Color("placement:N", title="placement", scale=alt.Scale(domain=names, range=colours)),
        shape=alt.Shape("placement:N", title="placement", scale=alt.Scale(domain=names)),
        tooltip=["list", "label", "placement", "makespan_ns", "over"],
    )
    header = alt.Header(title=None, labelFontWeight="bold", labelAnchor="start", labelAngle=0, labelOrient="top")
    return (
        dots.properties(width=460)
        .facet(row=alt.Row("list:N", header=header, sort=list(dict.fromkeys(data["list"]))))
        .resolve_scale(y="independent")
    )


def _roofline(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Column], machine: Machine) -> Any:
    config = machine.config
    peak, gbs = 2 * macs_per_ns(config, rows[0]["dtype"]), config.cube.hbm.slice_gbs
    roofs = Roofs(peak * config.pes_per_sip, {"HBM of the SIP": gbs * config.pes_per_sip})
    return kinds.roofline(_fastest(rows), roofs, by="list", columns={"list": Column("")})


def _title(row: Mapping[str, Any]) -> str:
    return str(row["shape"] if row["shape"] in row["layer"] else f"{row['name']}  {row['shape']}")


def _work(row: Mapping[str, Any]) -> int:
    return int(row["m"] * row["n"] * row["k"])


def _utilization_by_work(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Column], machine: Machine) -> Any:
    pes = machine.config.pes_per_sip
    found = [{**row, "macs_per_pe": _work(row) / pes, "percent": 100 * row["utilization"]} for row in _fastest(rows)]
    return kinds.points("macs_per_pe", "percent", by="list", log_x=True, log_y=True)(found, columns, machine)


def _link_kinds(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Column], machine: Machine) -> Any:
    names = {"hbm": "HBM slice", "pe_dma": "PE_DMA", "mesh": "mesh", "ucie_port": "UCIe port", "ucie": "UCIe"}
    cells = [
        {"layer": f"{row['layer']}, {row['placement']}", "link": name, "percent": 100 * row[f"busy_{kind}"]}
        for row in sorted(_fastest(rows), key=lambda row: -row["hottest_busy"])[:_SHOWN]
        for kind, name in names.items()
    ]
    titles = {"layer": Column(""), "link": Column("busiest link of"), "percent": Column("busy", "%")}
    return kinds.heat("link", "layer", "percent", label=".0f")(cells, titles, machine)


def _cubes(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Column], machine: Machine) -> Any:
    alt = kinds.altair()
    w, h = machine.config.sip.cube_mesh.w, machine.config.sip.cube_mesh.h
    busiest: dict[tuple[str, int, int], float] = {}
    for row in rows:
        for link, busy in row["links"].items():
            if _between_cubes(link):
                first, second = sorted(naming.parse(end).cube or 0 for end in link.split("->"))
                key = row["placement"], first, second
                busiest[key] = max(busiest.get(key, 0.0), busy)
    at = [(i % w, i // w) for i in range(machine.config.cubes_per_sip)]
    edges = [
        {"placement": p, "x": at[a][0], "y": at[a][1], "x2": at[b][0], "y2": at[b][1],
         "mx": (at[a][0] + at[b][0]) / 2, "my": (at[a][1] + at[b][1]) / 2, "percent": 100 * busy, "cube": ""}
        for (p, a, b), busy in busiest.items()
    ]  # fmt: skip
    placements = dict.fromkeys(row["placement"] for row in rows)
    cubes = [{"placement": p, "x": x, "y": y, "cube": i} for p in placements for i, (x, y) in enumerate(at)]
    data = table([*edges, *cubes])
    x = alt.X("x:Q", axis=None, scale=alt.Scale(padding=24, nice=False, zero=False))
    y = alt.Y("y:Q", axis=None, scale=alt.Scale(padding=24, reverse=True, nice=False, zero=False))
    # No legend: the numbers are there, and its gradient would have another name each time.
    colour = alt.Color("percent:Q", scale=alt.Scale(scheme="oranges", domainMin=0), legend=None)
    link, cube = (alt.Chart().transform_filter(f"{no}isValid(datum.x2)") for no in ("", "!"))
    line = link.encode(x=x, y=y).mark_rule(strokeWidth=7).encode(x2="x2:Q", y2="y2:Q", color=colour)
    box = cube.encode(x=x, y=y).mark_square(size=420, color="white", stroke=palette.GREY, opacity=1)
    number = cube.encode(x=x, y=y).mark_text().encode(text="cube:N")
    middle = link.encode(
        x=alt.X("mx:Q", axis=None), y=alt.Y("my:Q", axis=None), text=alt.Text("percent:Q", format=".0f")
    )
    halo = middle.mark_square(size=260, color="white", opacity=1)
    busy = middle.mark_text()
    header = alt.Header(title=None, labelFontWeight="bold", labelAnchor="start")
    panel = alt.Facet("placement:N", header=header, sort=list(dict.fromkeys(data["placement"])))
    return (
        alt.layer(line, box, number, halo, busy, data=data)
        .properties(width=68 * w, height=68 * h)
        .facet(facet=panel, columns=2 if len(placements) == 4 else 3)
    )


def _ran(row: Mapping[str, Any]) -> bool:
    return not row["left_out"]


def _between_cubes(link: str) -> bool:
    return link.count(".cube") == link.count(".ucie_") == 2


def _hottest_between_cubes(rows: Sequence[Mapping[str, Any]]) -> str:
    busiest = {r["placement"]: max(busy for link, busy in r["links"].items() if _between_cubes(link)) for r in rows}
    (least, low), *_, (most, high) = sorted(busiest.items(), key=lambda item: item[1]) * 2
    return f"{rows[-1]['layer']}: the busiest link between cubes is busy {high:.0%} in {most}, {low:.0%} in {least}"


def _highest_rate(rows: Sequence[Mapping[str, Any]]) -> str:
    row = max(_fastest(rows), key=lambda row: float(row["gflops"]))
    return f"{row['layer']} reaches {row['gflops'] / 1000:,.0f} Tflop/s, the most of all layers"


CHARTS = (
    Chart(
        "layers_over_bound",
        _over_bound,
        "Makespan over the lower bound, in each placement",
        where=_ran,
        caption="One mark for each placement; the label has the makespan of the fastest. The lower bound is the "
        "smallest of the placements' bounds.",
    ),
    Chart(
        "layers_utilization",
        _utilization_by_work,
        lambda rows: f"Useful share of the SIP's matrix rate: up to {max(row['utilization'] for row in rows):.0%}",
        where=_ran,
        caption="The fastest placement of each layer; utilization over its makespan.",
    ),
    Chart(
        "layers_roofline",
        _roofline,
        _highest_rate,
        where=_ran,
        caption="Rate of each layer under the roofs of the SIP, in its fastest placement.",
    ),
    Chart(
        "layers_path",
        kinds.parts(
            "layer",
            [f"path_{part}_ns" for part in PATH_RESOURCES],
            colours={f"path_{part}_ns": colour for part, (_, colour) in PATH_RESOURCES.items()},
        ),
        "What the time of a layer is made of",
        where=_ran,
        derive=_fastest,
        caption="Shares of the critical path of the fastest placement: each instant belongs to the resource that the "
        "end of the launches waited for.",
    ),
    Chart(
        "layers_link_kinds",
        _link_kinds,
        "How busy the busiest link of each kind is",
        where=_ran,
        caption=f"Percent of the makespan, in the fastest placement, for the {_SHOWN} layers with the busiest links.",
    ),
    Chart(
        "layers_links",
        _cubes,
        _hottest_between_cubes,
        where=lambda row: any(map(_between_cubes, row.get("links") or ())),
        caption="Percent of the makespan that the busiest UCIe connection between two cubes is busy, of both "
        "directions; squares are cubes.",
    ),
)


def findings(rows: Sequence[Row]) -> list[Finding]:
    ranked = best(rows)
    compared = {layer: runs for layer, runs in ranked.items() if len(runs) > 1}
    found = [*_winners(compared), *_utilization(ranked), *_links(ranked), *_on_path(ranked)]
    found += [_example(runs) for runs in _examples(compared)]
    return found + _left_out(rows)


def _winners(compared: Mapping[str, Sequence[Row]]) -> list[Finding]:
    if not compared:
        return []
    fast, *_, slow = max(compared.values(), key=lambda runs: runs[-1]["makespan_ns"] / runs[0]["makespan_ns"])
    return [claim(
        "Of {layers} layers {wins}.", "layers_over_bound", 7,
        "The wrong placement costs up to {ratio:.0f}x: {slow[layer]} with {slow[placement]} instead of "
        f"{{fast[placement]}} has {_reasons(slow, fast)}.", layers=len(compared), slow=slow, fast=fast,
        wins=fastest(runs[0]["placement"] for runs in compared.values()),
        ratio=slow["makespan_ns"] / fast["makespan_ns"],
    )]  # fmt: skip


def _examples(compared: Mapping[str, Sequence[Row]]) -> list[Sequence[Row]]:
    """For each placement, the layer with most work for which it is fastest."""
    chosen: dict[str, Sequence[Row]] = {}
    for runs in sorted(compared.values(), key=lambda runs: -_work(runs[0])):
        chosen.setdefault(runs[0]["placement"], runs)
    return list(chosen.values())


def _example(runs: Sequence[Row]) -> Finding:
    first, second = runs[0], runs[1]
    return claim(
        "{first[layer]} is fastest in {first[placement]}; {second[placement]} takes {ratio:.2f}x the time.",
        "layers_over_bound", 4,
        "{first[shape]} takes {us:,.1f} us in {first[placement]}; {second[placement]} has "
        f"{_reasons(second, first)}.", first=first, second=second, us=first["makespan_ns"] / 1000,
        ratio=second["makespan_ns"] / first["makespan_ns"],
    )  # fmt: skip


def _reasons(row: Row, first: Row) -> str:
    """Work that a placement adds to that of the fastest one, without claiming that it is the cause."""
    reasons = []
    if row["pes"] < first["pes"]:
        reasons.append(f"only {row['pes']} PE{'s' if row['pes'] > 1 else ''} at work")
    if row["remote_bytes"] > 1.05 * first["remote_bytes"]:
        more = row["remote_bytes"] / first["remote_bytes"] if first["remote_bytes"] else 0
        reasons.append(f"{more:,.1f}x the bytes read from other PEs" if more else "bytes read from other PEs")
    if row["issued"] < 0.95 * first["issued"]:
        reasons.append(f"{row['issued']:.1%} of each tile useful instead of {first['issued']:.1%}")
    if row["hottest_busy"] > 1.05 * first["hottest_busy"]:
        reasons.append(f"its hottest link busy {row['hottest_busy']:.0%} instead of {first['hottest_busy']:.0%}")
    return ", ".join(reasons) or "no more bytes or tiles, and no busier link"


def _utilization(ranked: Mapping[str, Sequence[Row]]) -> list[Finding]:
    if len(ranked) < 2:
        return []
    high, low = ends((runs[0] for runs in ranked.values()), "utilization")
    return [claim(
        "Layers use between {low[utilization]:.2%} and {high[utilization]:.1%} of the SIP's matrix rate.",
        "layers_utilization", 6,
        "Least {low[layer]}, most {high[layer]}, which is {ratio:,.0f}x the work.", low=low, high=high,
        ratio=_work(high) / _work(low),
    )]  # fmt: skip


def _links(ranked: Mapping[str, Sequence[Row]]) -> list[Finding]:
    fastest = [runs[0] for runs in ranked.values()]
    if not fastest:
        return []
    name, n = Counter(attribution("serialization", row["hottest_link"]).group for row in fastest).most_common(1)[0]
    full = sum(row["hottest_busy"] >= 0.8 for row in fastest)
    return [claim(
        f"{full or 'None'} of {{layers}} layers {'has' if full < 2 else 'have'} a link that is busy 80% of the time.",
        "layers_link_kinds", 5,
        "In the fastest placement; the most is {most[hottest_busy]:.0%}, for {most[layer]}. The hottest link of the "
        "median layer is busy {median_busy:.0%}, and it is a {link} for {link_layers}.", layers=len(fastest), link=name,
        most=ends(fastest, "hottest_busy")[0], link_layers=n,
        median_busy=median(row["hottest_busy"] for row in fastest),
    )]  # fmt: skip


def _on_path(ranked: Mapping[str, Sequence[Row]]) -> list[Finding]:
    rows = [runs[0] for runs in ranked.values()]
    if not rows:
        return []
    first = [max(PATH_RESOURCES, key=lambda part: float(row[f"path_{part}_ns"])) for row in rows]
    (part, n), *_ = Counter(first).most_common(1)
    most = ends(({**row, "share": row[f"path_{part}_ns"] / row["makespan_ns"]} for row in rows), "share")[0]
    text = "The largest part of the critical path is {part} for {part_layers} of {layers} layers."
    detail = "In the fastest placement; the largest share is {share:.0%}, for {layer}."
    named = {**most, "part": PATH_RESOURCES[part][0], "part_layers": n, "layers": len(rows)}
    return [claim(text, "layers_path", 5.5, detail, **named)]


def _left_out(rows: Sequence[Row]) -> list[Finding]:
    left = [row for row in rows if row["left_out"]]
    if not left:
        return []
    text = "{left_out} of {points} points do not fit in HBM and have no time."
    return [claim(text, "", 1, "The table names them.", left_out=len(left), points=len(rows))]


def tables(rows: Sequence[Row]) -> Tables:
    placements = list(dict.fromkeys(row["placement"] for row in rows))
    out = []
    for runs in best(rows).values():
        first = runs[0]
        times = {row["placement"]: row["makespan_ns"] / 1000 for row in runs}
        out.append(
            {
                "layer": first["layer"], "shape": first["shape"], "fastest": first["placement"],
                **{f"{p} [us]": times.get(p) for p in placements},
                "over bound": first["makespan_ns"] / first["bound_ns"], "utilization": first["utilization"],
                "pes": first["pes"], "remote MB": first["remote_bytes"] / 1e6, "hottest_link": first["hottest_link"],
                "hottest_busy": first["hottest_busy"],
            }
        )  # fmt: skip
    left = (row for row in rows if row["left_out"])
    return {
        "Fastest placement": table(out),
        "Not simulated": table(left, ["layer", "placement", "left_out", "bound_ns", "limiter"]),
    }
