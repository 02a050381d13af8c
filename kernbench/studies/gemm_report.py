"""The GEMM study's report: figures, and findings in words that are computed from the table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kernbench.analysis.timeline import timeline
from kernbench.studies import gemm
from kernbench.studies.points import Row
from kernbench.topology.builder import Machine
from kernbench.viz import gemm as figures
from kernbench.viz.figure import save
from kernbench.viz.gather import packed_against_strided
from kernbench.viz.timeline import tile_timeline

if TYPE_CHECKING:
    import pandas as pd

_FIELDS = {
    "dma_in": ("cube.hbm.channel_bw_gbs", "cube.hbm.channels", "cube.hbm.efficiency"),
    "fetch": ("cube.pe.pe_tcm.read_bw_gbs",),
    "gemm": ("cube.pe.pe_gemm.macs_per_cycle", "cube.pe.pe_gemm.clock_ghz"),
    "math": ("cube.pe.pe_math.lanes_32bit", "cube.pe.pe_math.clock_ghz"),
    "store_tcm": ("cube.pe.pe_tcm.write_bw_gbs",),
}
_NAMES = {
    "dma_in": "the HBM slice",
    "fetch": "the TCM read port",
    "gemm": "the matrix engine",
    "math": "the vector engine",
    "store_tcm": "the TCM write port",
}


def draw(rows: Sequence[Row], machine_hash: str, folder: Path) -> list[Path]:
    """Write the figures that need the table only; return their paths."""
    packed = [row for row in rows if row["gather"] == "packed"]
    drawn = [
        ("gemm_stage_breakdown.png", figures.stage_breakdown),
        ("gemm_mac_utilization_measured.png", figures.mac_utilization_measured),
        ("gemm_mac_utilization_theoretical_vs_measured.png", figures.mac_utilization_theoretical_vs_measured),
    ]
    paths = [save(figure(packed or list(rows), machine=machine_hash), folder / name) for name, figure in drawn]
    if len({row["gather"] for row in rows}) == 2:
        figure = packed_against_strided(rows, machine=machine_hash)
        paths.append(save(figure, folder / "gemm_packed_against_strided.png"))
    return paths


def draw_timeline(machine: Machine, shape: Sequence[int], variant: str, folder: Path) -> Path:
    """Run one product and write the timeline of its tiles."""
    result = gemm.run(machine, shape, variant)
    title = f"Tiles of GEMM {'x'.join(map(str, shape))} {variant} on one PE"
    figure = tile_timeline(timeline(result.records, (0, 0, 0)), machine=machine.hash, title=title, zoom_ns=300)
    return save(figure, folder / "gemm_tile_timeline.png")


def findings(rows: Sequence[Row]) -> list[str]:
    """Return what the table says, one sentence each."""
    packed = [row for row in rows if row["gather"] == "packed"] or list(rows)
    largest = max(row["m"] * row["k"] * row["n"] for row in packed)
    said = [_limit(row) for row in packed if row["m"] * row["k"] * row["n"] == largest]
    said += _staging(packed)
    said += _padding(packed)
    said += _gather(rows)
    worst = max(packed, key=lambda row: abs(row["composite_window_ns"] / row["ideal_ns"] - 1))
    said.append(
        f"Against the ideal model of the machine file, the largest difference is {worst['shape']} {worst['variant']}: "
        f"{worst['composite_window_ns']:,.1f} ns measured, {worst['ideal_ns']:,.1f} ns ideal "
        f"({worst['composite_window_ns'] / worst['ideal_ns'] - 1:+.1%})."
    )
    return said


def _limit(row: Row) -> str:
    engines = row["limiter"].split(" + ")
    names = " and ".join(_NAMES[engine] for engine in engines)
    shares = ", ".join(f"{row[f'occupancy_{engine}']:.1%}" for engine in engines)
    fields = ", ".join(field for engine in engines for field in _FIELDS[engine])
    return (
        f"{row['shape']} {row['variant']}: {names} {'limits' if len(engines) == 1 else 'limit together'} "
        f"(busy {shares} of the composite's {row['composite_window_ns']:,.0f} ns; machine file: {fields}); "
        f"{row['composite_useful']:.1%} of the matrix engine's rate does useful work."
    )


def _staging(rows: Sequence[Row]) -> list[str]:
    """Say what loading first costs and gains where a shape was run in all stagings."""
    by_shape: dict[str, dict[str, Row]] = {}
    for row in rows:
        by_shape.setdefault(row["shape"], {})[row["variant"]] = row
    said = []
    for shape, variants in by_shape.items():
        if len(variants) < 2:
            continue
        fast = min(variants.values(), key=lambda row: row["pe_window_ns"])
        slow = max(variants.values(), key=lambda row: row["pe_window_ns"])
        said.append(
            f"{shape}: {fast['variant']} is the fastest staging counted with its loads "
            f"({fast['pe_window_ns']:,.1f} ns, {fast['pe_useful']:.1%} useful), "
            f"{slow['variant']} the slowest ({slow['pe_window_ns']:,.1f} ns)."
        )
    return said


def _padding(rows: Sequence[Row]) -> list[str]:
    under = sorted({row["shape"] for row in rows if row["under_tile"]})
    if not under:
        return []
    wasted = [row for row in rows if row["under_tile"]]
    least = min(row["composite_useful"] / row["composite_issued"] for row in wasted)
    said = (
        f"Smaller than a tile in some size: {', '.join(under)}; the matrix engine spends whole tiles on them, "
        f"down to {least:.1%} of what it issues being useful."
    )
    return [said]


def _gather(rows: Sequence[Row]) -> list[str]:
    packed = {(row["shape"], row["variant"]): row for row in rows if row["gather"] == "packed"}
    pairs = [
        (packed[row["shape"], row["variant"]], row)
        for row in rows
        if row["gather"] == "strided" and (row["shape"], row["variant"]) in packed
    ]
    if not pairs:
        return []
    one, other = max(pairs, key=lambda pair: pair[1]["composite_window_ns"] / pair[0]["composite_window_ns"])
    factor = other["composite_window_ns"] / one["composite_window_ns"]
    said = (
        f"Storing operands row by row instead of tile by tile costs most at {other['shape']} {other['variant']}: "
        f"{factor:.2f} x the time, since every 256 B line that a tile touches is served whole, and lines a row apart "
        "share few of the channels."
    )
    return [said]


def table(rows: Sequence[Row]) -> pd.DataFrame:
    """Return the columns that a reader looks at first, rounded."""
    import pandas as pd

    columns = [
        "shape", "variant", "gather", "tiles", "pe_window_ns", "composite_window_ns", "ideal_ns", "composite_useful",
        "composite_issued", "pe_useful", "limiter",
    ]  # fmt: skip
    return pd.DataFrame(rows)[columns].round(3)


def write_findings(found: Sequence[str], rows: Sequence[Row], folder: Path) -> Path:
    """Write the findings and the figures' places as `README.md`, which a repository shows as a page."""
    figures = sorted(path.name for path in folder.glob("gemm_*.png"))
    lines = ["# GEMM on one PE", "", *(f"- {sentence}" for sentence in found), ""]
    lines += [f"![{name.removesuffix('.png').replace('_', ' ')}]({name})" for name in figures]
    first = rows[0]
    lines += [
        "",
        f"{len(rows)} runs, machine {first['machine'][:12]}, code {first['code_version']}.",
    ]
    path = folder / "README.md"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
    return path
