"""The report of GEMM on one PE: columns, charts, findings and tables, all from the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kernbench.studies.study import Finding
from kernbench.sweeps.keys import Row
from kernbench.topology.builder import Machine
from kernbench.viz import charts as kinds
from kernbench.viz import palette
from kernbench.viz.charts import Chart, Column

if TYPE_CHECKING:
    import pandas as pd

METHOD = (
    "Each product is one composite command of PE 0. A and B are in the PE's HBM slice, and C is written back there. "
    "`ref_ref` streams both operands tile by tile, `load_ref` loads A into TCM first, `load_load` both. `packed` "
    "stores operands tile after tile, `strided` row after row. The composite's window ends with the acknowledgement of "
    "its last write; the PE's window also contains the loads. Every product is compared with numpy's. `layers.md` of "
    "the milestone is about layers of networks over a whole SIP."
)
ENGINES = {
    "dma_in": "HBM slice", "fetch": "TCM read port", "gemm": "matrix engine", "math": "vector engine",
    "store_tcm": "TCM write port",
}  # fmt: skip
PATH = {
    "hbm": ("HBM slice", palette.ORANGE), "dma": ("links to the slice", palette.VERMILION),
    "fetch": ("fetch from TCM", palette.SKY), "gemm": ("matrix engine", palette.BLUE),
    "math": ("vector engine", palette.PURPLE), "store_tcm": ("store to TCM", palette.GREEN),
    "launch": ("launch and completion", palette.GREY),
}  # fmt: skip
COLUMNS = {
    "shape": Column("M x K x N"),
    "variant": Column("staging"),
    "gather": Column("layout"),
    "tiles": Column("tiles"),
    "latency_ns": Column("launch to completion", "ns"),
    "pe_window_ns": Column("PE window", "ns"),
    "composite_window_ns": Column("composite window", "ns"),
    "ideal_ns": Column("ideal", "ns"),
    "composite_useful": Column("useful share of the matrix rate, composite"),
    "composite_issued": Column("issued share, padding included"),
    "pe_useful": Column("useful share, loads included"),
    "ideal_utilization": Column("useful share of the ideal"),
    "limiter": Column("busiest engine"),
    **{f"path_{stage}_ns": Column(name, "ns") for stage, (name, _) in PATH.items()},
}


def _melted(draw: kinds.Draw, names: Mapping[str, str], column: str, value: str) -> kinds.Draw:
    """Return a kind of chart that takes several columns as the values of one, in percent; `column` has their names."""

    def drawn(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Column], machine: Machine) -> Any:
        long = [{**row, column: title, value: 100 * row[name]} for row in rows for name, title in names.items()]
        return draw(long, columns, machine)

    return drawn


def _over_ideal(draw: kinds.Draw) -> kinds.Draw:
    """Return a kind of chart whose rows also have the size of the product, and its time over the ideal."""

    def drawn(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Column], machine: Machine) -> Any:
        more = {"macs": Column("multiply-accumulates"), "over_ideal": Column("composite window / ideal")}
        found = [
            {**row, "macs": row["m"] * row["k"] * row["n"], "over_ideal": row["composite_window_ns"] / row["ideal_ns"]}
            for row in rows
        ]
        return draw(sorted(found, key=lambda row: row["macs"]), {**columns, **more}, machine)

    return drawn


def _tiles(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Column], machine: Machine) -> Any:
    """Draw the first tiles of a product, a lane for each engine and a box with its number for each tile."""
    import altair as alt
    import pandas as pd

    first = [piece for piece in rows[-1]["timeline"] if 0 <= piece["tile"] < SHOWN_TILES]
    begin = min(piece["start_ns"] for piece in first)
    lanes = [lane for lane in LANES if any(piece["stage"] == lane for piece in first)]
    data = pd.DataFrame(
        [
            {
                "engine": LANES[piece["stage"]],
                "tile": piece["tile"],
                "start": piece["start_ns"] - begin,
                "end": piece["end_ns"] - begin,
                "shade": "even" if piece["tile"] % 2 == 0 else "odd",
            }
            for piece in first
        ]
    )
    base = alt.Chart(data).encode(
        y=alt.Y("engine", sort=[LANES[lane] for lane in lanes], title=None),
        x=alt.X("start", title="time since the first read [ns]"),
        x2="end",
        tooltip=["engine", "tile", "start", "end"],
    )
    shades = alt.Scale(domain=["even", "odd"], range=[palette.BLUE, palette.SKY])
    boxes = base.mark_bar(stroke="white", strokeWidth=1).encode(color=alt.Color("shade", scale=shades, legend=None))
    middle = alt.Chart(data).transform_calculate(middle="(datum.start + datum.end) / 2").mark_text(fontSize=9)
    numbers = middle.encode(x="middle:Q", y=alt.Y("engine", sort=[LANES[lane] for lane in lanes]), text="tile")
    return alt.layer(boxes, numbers).properties(width=760, height=34 * len(lanes))


SHOWN_TILES = 12
LANES = {
    "dma_in": "DMA reads", "fetch": "fetch from TCM", "gemm": "matrix engine", "math": "vector engine",
    "store_tcm": "store to TCM", "dma_out": "DMA writes",
}  # fmt: skip
_SHARE = Column("share of the matrix engine's rate", "%")


def _packed(row: Mapping[str, Any]) -> bool:
    return bool(row["gather"] == "packed")


CHARTS = (
    Chart(
        "gemm_utilization",
        _melted(
            kinds.bars("share_pct", "shape", by="window", panel="variant", label=".0f"),
            {
                "ideal_utilization": "ideal",
                "composite_useful": "simulated, the composite alone",
                "pe_useful": "simulated, loads included",
            },
            "window",
            "share_pct",
        ),
        "Useful share of the matrix engine's rate, by staging",
        where=_packed,
        caption="Ideal: every tile takes as long as its slowest stage; reads and write-back share the HBM slice. "
        "Padding of ragged tiles is not useful.",
    ),
    Chart(
        "gemm_over_ideal",
        _over_ideal(kinds.lines("macs", "over_ideal", "variant", rule=1.0)),
        "Time of the composite over the ideal",
        where=_packed,
        caption="1 is the ideal of the machine file: no stall for a full buffer, no queueing.",
    ),
    Chart(
        "gemm_critical_path",
        kinds.parts(
            "shape",
            [f"path_{stage}_ns" for stage in PATH],
            panel="variant",
            colours={f"path_{stage}_ns": colour for stage, (_, colour) in PATH.items()},
        ),
        "What the time from launch to completion is made of",
        where=_packed,
        caption="Shares of the critical path: each instant belongs to the resource that the end of the run waited for.",
    ),
    Chart(
        "gemm_busy",
        _melted(
            kinds.heat("engine", "shape", "busy_pct", panel="variant", label=".0f"),
            {f"occupancy_{engine}": name for engine, name in ENGINES.items()},
            "engine",
            "busy_pct",
        ),
        "How busy each engine is while the composite runs",
        where=_packed,
        caption="Percent of the composite's window. Engines work at the same time, so that rows sum to more than 100.",
    ),
    Chart(
        "gemm_strided",
        _over_ideal(kinds.heat("variant", "shape", "over_ideal", label=".2f")),
        "Operands stored row after row: time over the ideal of packed ones",
        where=lambda row: not _packed(row),
        caption="A tile touches a 256 B line for each of its rows, and each line is served whole.",
    ),
    Chart(
        "gemm_tile_timeline",
        _tiles,
        lambda rows: f"The first {SHOWN_TILES} tiles of {rows[-1]['shape']} {rows[-1]['variant']} on each engine",
        where=lambda row: bool(row.get("timeline")),
        caption="Each box is one tile, with its number. A read serves one operand of a tile.",
    ),
)


def findings(rows: Sequence[Row]) -> list[Finding]:
    """Return what limits products, what staging and layout cost, and how far the ideal is."""
    packed = [row for row in rows if _packed(row)] or list(rows)
    return [*_limits(packed), *_launch(packed), *_stagings(packed), *_strided(rows), *_padding(packed), *_ideal(packed)]


def _limits(rows: Sequence[Row]) -> list[Finding]:
    """Say how much of the matrix rate the largest product reaches in each staging, and what limits it."""
    largest = max(row["m"] * row["k"] * row["n"] for row in rows)
    said = []
    for row in rows:
        if row["m"] * row["k"] * row["n"] == largest:
            engines = row["limiter"].split(" + ")
            busy = " and ".join(f"{ENGINES[e]} ({row[f'occupancy_{e}']:.0%} busy)" for e in engines)
            said.append(f"{row['composite_useful']:.1%} with {row['variant']}, limited by the {busy}")
    shape = next(row["shape"] for row in rows if row["m"] * row["k"] * row["n"] == largest)
    return [Finding(f"{shape} reaches {'; '.join(said)}.", "gemm_utilization", 7)]


def _launch(rows: Sequence[Row]) -> list[Finding]:
    """Say from which size on launch and completion are a small part of the critical path."""
    by_size = sorted(rows, key=lambda row: row["latency_ns"])
    small, large = by_size[0], by_size[-1]
    if small is large:
        return []
    share = {id(row): row["path_launch_ns"] / row["latency_ns"] for row in by_size}
    least, most = (choose(row["path_launch_ns"] for row in rows) for choose in (min, max))
    text = (
        f"Launch and completion are {share[id(small)]:.0%} of the critical path of {small['shape']} "
        f"{small['variant']}, {share[id(large)]:.1%} of that of {large['shape']} {large['variant']}: they take "
        f"{least:,.0f} to {most:,.0f} ns for every product."
    )
    return [Finding(text, "gemm_critical_path", 6)]


def _stagings(rows: Sequence[Row]) -> list[Finding]:
    """Say which staging is fastest for how many shapes, loads included, and where the choice matters most."""
    by_shape: dict[str, list[Row]] = {}
    for row in rows:
        by_shape.setdefault(row["shape"], []).append(row)
    compared = {shape: sorted(of, key=lambda r: r["pe_window_ns"]) for shape, of in by_shape.items() if len(of) > 1}
    if not compared:
        return []
    most = max(compared.values(), key=lambda of: of[-1]["pe_window_ns"] / of[0]["pe_window_ns"])
    fast, slow = most[0], most[-1]
    wins: dict[str, list[str]] = {}
    for shape, of in compared.items():
        wins.setdefault(of[0]["variant"], []).append(shape)
    fastest = "; ".join(f"{variant} is fastest for {', '.join(shapes)}" for variant, shapes in wins.items())
    text = (
        f"Loads included, {fastest}; the "
        f"choice matters most for {fast['shape']}, where {slow['variant']} takes "
        f"{slow['pe_window_ns'] / fast['pe_window_ns']:.2f}x as long as {fast['variant']}."
    )
    return [Finding(text, "gemm_utilization", 5)]


def _strided(rows: Sequence[Row]) -> list[Finding]:
    packed = {(row["shape"], row["variant"]): row for row in rows if _packed(row)}
    ratios = {
        (row["shape"], row["variant"]): row["composite_window_ns"]
        / packed[row["shape"], row["variant"]]["composite_window_ns"]
        for row in rows
        if not _packed(row) and (row["shape"], row["variant"]) in packed
    }
    if not ratios:
        return []
    most, least = (choose(ratios, key=lambda at: ratios[at]) for choose in (max, min))
    text = (
        f"Operands stored row after row cost {ratios[most]:.1f}x the time of packed ones at {' '.join(most)} "
        f"({ratios[least]:.2f}x at {' '.join(least)}): each 256 B line that a tile touches is served whole, and lines "
        "a row apart use few of the channels."
    )
    return [Finding(text, "gemm_strided", 4)]


def _padding(rows: Sequence[Row]) -> list[Finding]:
    under = [row for row in rows if row["under_tile"]]
    if not under:
        return []
    row = min(under, key=lambda row: row["composite_useful"] / row["composite_issued"])
    share = row["composite_useful"] / row["composite_issued"]
    return [
        Finding(f"{row['shape']} is smaller than a tile: {share:.1%} of what the matrix engine does is useful.", "", 2)
    ]


def _ideal(rows: Sequence[Row]) -> list[Finding]:
    def off(row: Row) -> float:
        return float(row["composite_window_ns"] / row["ideal_ns"] - 1)

    worst = max(rows, key=lambda row: abs(off(row)))
    text = (
        f"The largest distance from the ideal is {off(worst):+.1%} ({worst['shape']} {worst['variant']}: "
        f"{worst['composite_window_ns']:,.0f} ns instead of {worst['ideal_ns']:,.0f} ns)."
    )
    return [Finding(text, "gemm_over_ideal", 3)]


def tables(rows: Sequence[Row]) -> dict[str, pd.DataFrame]:
    """Return one row for each product and staging, for each layout."""
    import pandas as pd

    names = [
        "shape", "variant", "tiles", "latency_ns", "pe_window_ns", "composite_window_ns", "ideal_ns",
        "composite_useful", "composite_issued", "pe_useful", "limiter",
    ]  # fmt: skip
    return {
        f"Operands {gather}": pd.DataFrame([row for row in rows if row["gather"] == gather], columns=names)
        for gather in dict.fromkeys(row["gather"] for row in rows)
    }
