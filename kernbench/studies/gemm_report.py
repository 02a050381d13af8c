"""The report of GEMM on one PE: columns, charts, findings and tables, all from the rows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import filterfalse
from typing import Any

from kernbench.analysis._resources import RESOURCES, kind_of
from kernbench.analysis._stages import STAGE_ENGINES as PARTS
from kernbench.points._keys import Row
from kernbench.studies._findings import Finding, fastest, over
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


def _product(row: Mapping[str, Any]) -> str:
    return f"{row['shape']} {row['variant']}"


def _packed(row: Mapping[str, Any]) -> bool:
    return bool(row["gather"] == "packed")


CHARTS = (
    Chart(
        "gemm_mac_utilization_theoretical_vs_measured",
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


def _limits(rows: Sequence[Row]) -> list[Finding]:
    by_work = groups(({**row, "macs": row["m"] * row["k"] * row["n"]} for row in rows), "macs")
    chosen, said, values = by_work[max(by_work)], [], {}
    for row in chosen:
        engines = row["limiter"].split(" + ")
        names = " and ".join(ENGINES[engine] for engine in engines)
        busy = min(row[f"occupancy_{engine}"] for engine in engines)
        said.append(f"{row['composite_useful']:.1%} with {row['variant']} ({names} {busy:.0%} busy)")
        values[row["variant"]] = {"utilization": row["composite_useful"], "limiter": names, "busy": busy}
    best, least = (choose(chosen, key=lambda row: float(row["composite_useful"])) for choose in (max, min))
    text = f"{best['shape']} uses {best['composite_useful']:.1%} of the matrix engine's rate with {best['variant']}"
    text += f", {least['composite_useful']:.1%} with {least['variant']}." if least is not best else "."
    values = {"shape": chosen[0]["shape"], **values}
    detail = f"Its composite command reaches {', '.join(said)}."
    return [Finding(text, "gemm_mac_utilization_theoretical_vs_measured", 7, values, detail)]


def _launch(rows: Sequence[Row]) -> list[Finding]:
    """Size from which launch and completion are a small part of the critical path."""
    by_size = sorted(rows, key=lambda row: row["latency_ns"])
    small, large = by_size[0], by_size[-1]
    if small is large:
        return []
    first, last = (row["path_launch_ns"] / row["latency_ns"] for row in (small, large))
    least, most = (choose(row["path_launch_ns"] for row in rows) for choose in (min, max))
    text = (
        f"Launch and completion are {first:.0%} of the smallest product's critical path, {last:.1%} of the largest's."
    )
    detail = f"They take {least:,.0f} to {most:,.0f} ns for every product, from {_product(small)} to {_product(large)}."
    values = {"share_of_smallest": first, "share_of_largest": last, "least_ns": least, "most_ns": most}
    return [Finding(text, "gemm_stage_breakdown", 6, values, detail)]


def _stagings(rows: Sequence[Row]) -> list[Finding]:
    by_shape = groups(rows, "shape").values()
    compared = [sorted(of, key=lambda row: row["pe_window_ns"]) for of in by_shape if len(of) > 1]
    if not compared:
        return []
    fast, *_, slow = max(compared, key=lambda of: of[-1]["pe_window_ns"] / of[0]["pe_window_ns"])
    read = [row["load_bytes"] + row["dma_in_bytes"] for row in (slow, fast)]
    ratio = slow["pe_window_ns"] / fast["pe_window_ns"]
    text = (
        f"Staging matters most for {fast['shape']}: {slow['variant']} takes {ratio:.2f}x the time of "
        f"{fast['variant']}, loads included."
    )
    detail = (
        f"It reads {read[0] / read[1]:.1f}x the bytes. Of {len(compared)} shapes, "
        f"{fastest(of[0]['variant'] for of in compared)}."
    )
    values = {
        "shape": fast["shape"], "fast": fast["variant"], "slow": slow["variant"], "time_ratio": ratio,
        "bytes_ratio": read[0] / read[1], "shapes": len(compared),
    }  # fmt: skip
    return [Finding(text, "gemm_mac_utilization_measured", 5, values, detail)]


def _strided(rows: Sequence[Row]) -> list[Finding]:
    slow = over(filterfalse(_packed, rows), filter(_packed, rows), _product, "composite_window_ns", "ratio")
    if not slow:
        return []
    most, least = (choose(slow, key=lambda row: row["ratio"]) for choose in (max, min))
    text = f"Operands stored row after row take up to {most['ratio']:.1f}x the time of packed ones."
    stage = max(PATH_PARTS, key=lambda stage: float(most[f"path_{stage}_ns"]))
    path = f"{PATH_PARTS[stage][0]} {most[f'path_{stage}_ns'] / most['latency_ns']:.0%} of its critical path"
    detail = f"Most at {_product(most)} ({path}), least at {_product(least)} ({least['ratio']:.2f}x)."
    values = {
        "most": _product(most), "most_ratio": most["ratio"], "least": _product(least), "least_ratio": least["ratio"],
    }  # fmt: skip
    return [Finding(text, "gemm_strided", 4, values, detail)]


def _padding(rows: Sequence[Row]) -> list[Finding]:
    under = [row for row in rows if row["under_tile"]]
    if not under:
        return []
    row = min(under, key=lambda row: row["composite_useful"] / row["composite_issued"])
    share = row["composite_useful"] / row["composite_issued"]
    text = f"{row['shape']} is smaller than a tile: {share:.1%} of what the matrix engine does is useful."
    return [Finding(text, "", 2, {"shape": row["shape"], "useful": share})]


def _ideal(rows: Sequence[Row]) -> list[Finding]:
    worst = max(_over_ideal(rows), key=lambda row: abs(row["over_ideal"] - 1))
    text = f"No product deviates from the ideal by more than {abs(worst['over_ideal'] - 1):.1%}."
    detail = f"{_product(worst)} takes {worst['composite_window_ns']:,.0f} ns instead of {worst['ideal_ns']:,.0f} ns."
    names = ("shape", "variant", "over_ideal", "composite_window_ns", "ideal_ns")
    values = {name: worst[name] for name in names}
    return [Finding(text, "gemm_mac_utilization_theoretical_vs_measured", 3, values, detail)]


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
