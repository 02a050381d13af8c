"""The report of GEMM on one PE: columns, charts, findings and tables, all from the rows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import filterfalse
from typing import Any

from kernbench.analysis._resources import RESOURCES, kind_of
from kernbench.analysis._stages import STAGE_ENGINES as PARTS
from kernbench.points._keys import Row
from kernbench.studies._findings import Finding, claim, ends, fastest, over
from kernbench.studies.study import Tables, groups, scalars, table
from kernbench.topology.builder import Machine
from kernbench.viz import _palette as palette
from kernbench.viz import charts as kinds
from kernbench.viz.charts import Chart, Column
from kernbench.viz.figures import tile_timeline

METHOD = (
    "Each product is one composite command of PE 0. A and B are in the PE's HBM slice, and C is written back there. "
    "`ref_ref` streams both operands tile by tile, `load_ref` loads A into TCM first, `load_load` both. `packed` "
    "stores operands tile after tile, `strided` row after row. The composite's window ends with the acknowledgement of "
    "its last write; the PE's window also contains the loads. Every product is compared with numpy's. `layers.md` of "
    "the milestone is about layers of networks over a whole SIP."
)
# By stage, what limits it.
ENGINES = {"dma_in": RESOURCES["hbm_ctrl"]} | {stage: RESOURCES[kind_of(part)] for stage, part in PARTS.items()}
_COLOURS = (palette.SKY, palette.BLUE, palette.PURPLE, palette.GREEN)
PATH_PARTS = {
    "hbm": (ENGINES["dma_in"], palette.ORANGE), "dma": ("links to the slice", palette.VERMILION),
    **{stage: (ENGINES[stage], colour) for stage, colour in zip(PARTS, _COLOURS, strict=True)},
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
    "over_ideal": Column("composite window / ideal"),
    "percent": Column("share of the matrix engine's rate", "%"),
    "window": Column(""),
    "engine": Column(""),
    "limiter": Column("busiest engine"),
    **{f"path_{stage}_ns": Column(name) for stage, (name, _) in PATH_PARTS.items()},
}


def _melted(names: Mapping[str, str], column: str) -> Callable[[Sequence[Mapping[str, Any]]], list[Row]]:
    """Unpivot columns of shares into `percent`; `column` has their names."""
    return lambda rows: [
        {**row, column: title, "percent": 100 * row[name]} for row in rows for name, title in names.items()
    ]


def _over_ideal(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    return [{**row, "over_ideal": row["composite_window_ns"] / row["ideal_ns"]} for row in rows]


def _tiles(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Column], machine: Machine) -> Any:
    return tile_timeline(_first_tiles(rows), machine=machine.hash, title=_matrix_share(rows))


def _busiest(rows: Sequence[Mapping[str, Any]]) -> str:
    engine, n = Counter(row["limiter"].split(" + ")[0] for row in rows).most_common(1)[0]
    return f"The {ENGINES[engine]} is the busiest engine for {n} of {len(rows)} products while the composite runs"


def _first_tiles(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    return [piece for piece in rows[-1]["timeline"] if 0 <= piece["tile"] < SHOWN_TILES]


def _matrix_share(rows: Sequence[Mapping[str, Any]]) -> str:
    first = _first_tiles(rows)
    window = max(x["end_ns"] for x in first) - min(x["start_ns"] for x in first)
    busy = sum(x["end_ns"] - x["start_ns"] for x in first if x["stage"] == "gemm")
    what = _product(rows[-1])
    return f"{what}: the matrix engine works {busy / window:.0%} of the time of the first {SHOWN_TILES} tiles"


SHOWN_TILES = 12
_IDEAL = "gemm_mac_utilization_theoretical_vs_measured"


def _product(row: Mapping[str, Any]) -> str:
    return f"{row['shape']} {row['variant']}"


def _packed(row: Mapping[str, Any]) -> bool:
    return bool(row["gather"] == "packed")


CHARTS = (
    Chart(
        _IDEAL,
        kinds.bars("percent", "shape", by="window", panel="variant", label=".0f"),
        "Useful share of the matrix engine's rate, by staging",
        where=_packed,
        caption="Percent of the composite's window. Ideal: every tile takes as long as its slowest stage, and reads "
        "and write-back share the HBM slice.",
        derive=_melted({"ideal_utilization": "ideal", "composite_useful": "simulated"}, "window"),
    ),
    Chart(
        "gemm_mac_utilization_measured",
        kinds.heat("variant", "shape", "percent", label=".0f"),
        "Simulated useful share of the matrix engine's rate, loads included",
        where=_packed,
        caption="Percent of the PE's window.",
        derive=_melted({"pe_useful": ""}, "window"),
    ),
    Chart(
        "gemm_stage_breakdown",
        kinds.parts(
            "shape",
            [f"path_{stage}_ns" for stage in PATH_PARTS],
            panel="variant",
            colours={f"path_{stage}_ns": colour for stage, (_, colour) in PATH_PARTS.items()},
        ),
        "What the time from launch to completion is made of",
        where=_packed,
        caption="Shares of the critical path: each instant belongs to the resource that the end of the run waited for.",
    ),
    Chart(
        "gemm_busy",
        kinds.heat("engine", "shape", "percent", panel="variant", label=".0f"),
        _busiest,
        where=_packed,
        caption="Percent of the composite's window: the HBM slice, TCM's read port, the matrix engine and TCM's write "
        "port. They work at the same time.",
        derive=_melted(
            {
                "occupancy_dma_in": "HBM",
                "occupancy_fetch": "fetch",
                "occupancy_gemm": "matrix",
                "occupancy_store_tcm": "store",
            },
            "engine",
        ),
    ),
    Chart(
        "gemm_strided",
        kinds.heat("variant", "shape", "over_ideal", label=".2f"),
        "Operands stored row after row: time over the ideal of packed ones",
        where=lambda row: not _packed(row),
        caption="A tile touches at least one line of memory for each of its rows, and each line is served whole.",
        derive=_over_ideal,
    ),
    Chart(
        "gemm_tile_timeline",
        _tiles,
        _matrix_share,
        where=lambda row: bool(row.get("timeline")),
        caption="Each box is one tile with its number; a read is one operand of it. Reads that overlap wait for the "
        "HBM slice.",
    ),
)


def findings(rows: Sequence[Row]) -> list[Finding]:
    packed = [row for row in rows if _packed(row)] or list(rows)
    return [*_limits(packed), *_launch(packed), *_stagings(packed), *_strided(rows), *_padding(packed), *_ideal(packed)]


def _limits(rows: Sequence[Row]) -> Iterator[Finding]:
    by_work = groups(({**row, "macs": row["m"] * row["k"] * row["n"]} for row in rows), "macs")
    chosen, said, values = by_work[max(by_work)], [], {}
    for row in chosen:
        engines = row["limiter"].split(" + ")
        names = " and ".join(ENGINES[engine] for engine in engines)
        busy = min(row[f"occupancy_{engine}"] for engine in engines)
        said.append(f"{row['composite_useful']:.1%} with {row['variant']} ({names} {busy:.0%} busy)")
        values[row["variant"]] = {"utilization": row["composite_useful"], "limiter": names, "busy": busy}
    best, least = ends(chosen, "composite_useful")
    text = f"{best['shape']} uses {best['composite_useful']:.1%} of the matrix engine's rate with {best['variant']}"
    text += f", {least['composite_useful']:.1%} with {least['variant']}." if least is not best else "."
    values = {"shape": best["shape"], **values}
    yield Finding(text, _IDEAL, 7, values, f"Its composite command reaches {', '.join(said)}.")


def _launch(rows: Sequence[Row]) -> Iterator[Finding]:
    """Size from which launch and completion are a small part of the critical path."""
    rows = [{**row, "share": row["path_launch_ns"] / row["latency_ns"], "product": _product(row)} for row in rows]
    (large, small), (most, least) = ends(rows, "latency_ns"), ends(rows, "path_launch_ns")
    if small is not large:
        yield claim(
            "Launch and completion are {small[share]:.0%} of the smallest product's critical path, "
            "{large[share]:.1%} of the largest's.", "gemm_stage_breakdown", 6,
            "They take {least[path_launch_ns]:,.0f} to {most[path_launch_ns]:,.0f} ns for every product, from "
            "{small[product]} to {large[product]}.", small=small, large=large, least=least, most=most,
        )  # fmt: skip


def _stagings(rows: Sequence[Row]) -> Iterator[Finding]:
    by_shape = groups(rows, "shape").values()
    compared = [sorted(of, key=lambda row: row["pe_window_ns"]) for of in by_shape if len(of) > 1]
    if not compared:
        return
    fast, *_, slow = max(compared, key=lambda of: of[-1]["pe_window_ns"] / of[0]["pe_window_ns"])
    read = [row["load_bytes"] + row["dma_in_bytes"] for row in (slow, fast)]
    yield claim(
        "Staging matters most for {fast[shape]}: {slow[variant]} takes {time_ratio:.2f}x the time of {fast[variant]}, "
        "loads included.", "gemm_mac_utilization_measured", 5,
        "It reads {bytes_ratio:.1f}x the bytes. Of {shapes} shapes, {wins}.", fast=fast, slow=slow,
        time_ratio=slow["pe_window_ns"] / fast["pe_window_ns"], bytes_ratio=read[0] / read[1], shapes=len(compared),
        wins=fastest(of[0]["variant"] for of in compared),
    )  # fmt: skip


def _strided(rows: Sequence[Row]) -> Iterator[Finding]:
    slow = over(filterfalse(_packed, rows), filter(_packed, rows), _product, "composite_window_ns", "ratio")
    if slow:
        most, least = ends(({**row, "product": _product(row)} for row in slow), "ratio")
        stage = max(PATH_PARTS, key=lambda stage: float(most[f"path_{stage}_ns"]))
        yield claim(
            "Operands stored row after row take up to {most[ratio]:.1f}x the time of packed ones.", "gemm_strided", 4,
            "Most at {most[product]} ({part} {share:.0%} of its critical path), least at {least[product]} "
            "({least[ratio]:.2f}x).", most=most, least=least, part=PATH_PARTS[stage][0],
            share=most[f"path_{stage}_ns"] / most["latency_ns"],
        )  # fmt: skip


def _padding(rows: Sequence[Row]) -> Iterator[Finding]:
    under = [{**row, "useful": row["composite_useful"] / row["composite_issued"]} for row in rows if row["under_tile"]]
    if under:
        text = "{shape} is smaller than a tile: {useful:.1%} of what the matrix engine does is useful."
        yield claim(text, "", 2, **ends(under, "useful")[1])


def _ideal(rows: Sequence[Row]) -> Iterator[Finding]:
    worst = ends(({**row, "off": abs(row["over_ideal"] - 1)} for row in _over_ideal(rows)), "off")[0]
    detail = "{shape} {variant} takes {composite_window_ns:,.0f} ns instead of {ideal_ns:,.0f} ns."
    yield claim("No product deviates from the ideal by more than {off:.1%}.", _IDEAL, 3, detail, **worst)


def tables(rows: Sequence[Row]) -> Tables:
    names = [
        "shape", "variant", "tiles", "latency_ns", "pe_window_ns", "composite_window_ns", "ideal_ns",
        "over_ideal", "composite_useful", "composite_issued", "pe_useful", "limiter",
    ]  # fmt: skip
    products = table(_over_ideal(rows)).assign(
        limiter=lambda rows: [" + ".join(ENGINES[engine] for engine in x.split(" + ")) for x in rows["limiter"]],
    )
    return {
        f"Operands {gather}": products[products["gather"] == gather][names].reset_index(drop=True)
        for gather in dict.fromkeys(row["gather"] for row in rows)
    }


def files(rows: Sequence[Row], machine: Machine) -> dict[str, str]:
    """File of the reference design's bench: the rows, with the tile of the matrix engine."""
    tile = machine.config.cube.pe.pe_gemm.tile
    content = {
        "version": 1, "tile_sizes": {"m": tile.m, "k": tile.k, "n": tile.n}, "rows": [scalars(row) for row in rows],
    }  # fmt: skip
    return {"gemm_sweep.json": json.dumps(content, indent=1) + "\n"}
