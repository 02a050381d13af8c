"""The probe's report: figures, and findings in words that are computed from the table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kernbench.analysis.transfer import PARTS
from kernbench.studies import probe
from kernbench.studies.points import Row
from kernbench.topology.builder import Machine
from kernbench.viz import probe as figures
from kernbench.viz.figure import save
from kernbench.viz.heatmap import link_heatmap

if TYPE_CHECKING:
    import pandas as pd

size_name = figures.size_name


def draw(rows: Sequence[Row], machine: Machine, folder: Path) -> list[Path]:
    """Write all figures; return their paths."""
    single = [row for row in rows if row["transfers"] == 1]
    patterns = [row for row in rows if row["transfers"] > 1]
    drawn = []
    if single:
        drawn.append(("probe_single_bandwidth.png", figures.single_bandwidth(single, machine=machine.hash)))
        least = min(row["nbytes"] for row in single)
        figure = figures.parts(
            [row for row in single if row["nbytes"] == least],
            machine=machine.hash,
            title=f"Single transfers of {size_name(least)}: where the time goes",
        )
        drawn.append(("probe_single_parts.png", figure))
    if patterns:
        drawn.append(("probe_pattern_bandwidth.png", figures.pattern_saturation(patterns, machine=machine.hash)))
        most = max(set.intersection(*({r["nbytes"] for r in patterns if r["case"] == c} for c in _cases(patterns))))
        figure = figures.parts(
            [row for row in patterns if row["nbytes"] == most],
            machine=machine.hash,
            title=f"Patterns, {size_name(most)} a transfer: where the time goes, without and with congestion",
        )
        drawn.append(("probe_pattern_parts.png", figure))
    note = f"links busy for less than {probe.VISIBLE:.2%} of the time are left out"
    for row in probe.largest_patterns(rows):
        title = (
            f"{row['case']}: {row['transfers']} transfers of {size_name(row['nbytes'])}, {row['last_end_ns']:,.0f} ns"
        )
        drawn.append((heatmap_name(row["case"]), link_heatmap(row["links"], machine, title=title, note=note)))
    return [save(figure, folder / name) for name, figure in drawn]


def heatmap_name(case: str) -> str:
    """Return the file name of a pattern's heat map."""
    return f"probe_links_{case.replace('-', '_')}.png"


def table(rows: Sequence[Row]) -> pd.DataFrame:
    """Return the columns that a reader looks at first, rounded."""
    import pandas as pd

    columns = {
        "case": "case", "transfers": "transfers", "size": "size", "last_end_ns": "last end [ns]",
        "mean_ns": "mean [ns]", "alone_ns": "alone [ns]", "queueing_ns": "queueing [ns]",
        "bandwidth_gbs": "GB/s", "path_utilization": "of its path", "fair_utilization": "of fair streams",
    }  # fmt: skip
    shown = pd.DataFrame([row | {"size": size_name(row["nbytes"])} for row in rows])[list(columns)]
    return shown.rename(columns=columns).round(3)


def findings(rows: Sequence[Row]) -> list[str]:
    """Return what the table says, one sentence each."""
    single = [row for row in rows if row["transfers"] == 1]
    said = []
    if single:
        off = max(abs(row["queueing_ns"]) for row in single)
        agreed = "each equals its closed form to the picosecond" if not off else f"the largest is {off:,.3f} ns off"
        said.append(f"{len(single)} single transfers against the closed form of an idle machine: {agreed}.")
        said += _latency(single)
    for row in probe.largest_patterns(rows):
        said.append(_pattern(row))
    said += _directions(rows)
    return said


def _latency(single: Sequence[Row]) -> list[str]:
    least, most = (choose(row["nbytes"] for row in single) for choose in (min, max))
    small = [row for row in single if row["nbytes"] == least]
    near, far = (choose(small, key=lambda row: row["last_end_ns"]) for choose in (min, max))
    part = max(PARTS, key=lambda name: far[f"{name}_ns"])
    span = f"{near['last_end_ns']:,.2f} ns in {near['case']} to {far['last_end_ns']:,.2f} ns in {far['case']}"
    said = [f"{size_name(least)} take from {span}, of it {far[f'{part}_ns']:,.1f} ns {part}."]
    if most > least:
        large = [row for row in single if row["nbytes"] == most]
        worst = min(large, key=lambda row: row["path_utilization"])
        poor = min(small, key=lambda row: row["path_utilization"])
        said.append(
            f"Latency hides only behind size: of its slowest link's bandwidth, {poor['case']} reaches "
            f"{poor['path_utilization']:.0%} with {size_name(least)}; with {size_name(most)} every case reaches "
            f"{worst['path_utilization']:.0%} or more (least: {worst['case']})."
        )
    return said


def _pattern(row: Row) -> str:
    alike = f" and {row['hottest_alike'] - 1} more like it" if row["hottest_alike"] > 1 else ""
    return (
        f"{row['case']}, {row['transfers']} x {size_name(row['nbytes'])}: {row['bandwidth_gbs']:,.0f} GB/s in all, "
        f"{row['fair_utilization']:.0%} of what max-min fair streams would carry ({row['fair_gbs']:,.0f} GB/s); "
        f"hottest {row['hottest_link']}{alike}, busy {row['hottest_share']:.0%}; queueing is "
        f"{row['queueing_ns'] / row['mean_ns']:.0%} of a transfer's mean time, the first ends at "
        f"{row['first_end_ns']:,.0f} ns and the last at {row['last_end_ns']:,.0f} ns."
    )


def _directions(rows: Sequence[Row]) -> list[str]:
    """Say which pattern depends most on whether it reads or writes."""
    time = {(row["case"], row["nbytes"]): row for row in rows if row["transfers"] > 1}
    pairs = [
        (row, time[name, row["nbytes"]])
        for row in time.values()
        if row["kind"] == "read" and ((name := row["case"].replace("-read", "-write")), row["nbytes"]) in time
    ]
    if not pairs:
        return []
    pair = max(pairs, key=lambda pair: abs(pair[0]["last_end_ns"] - pair[1]["last_end_ns"]) / pair[1]["last_end_ns"])
    fast, slow = sorted(pair, key=lambda row: row["last_end_ns"])
    gap = slow["last_end_ns"] / fast["last_end_ns"] - 1
    said = (
        f"Reading and writing differ most in {slow['case'].rsplit('-', 1)[0]} at {size_name(slow['nbytes'])}: "
        f"{slow['kind']}s take {gap:.0%} longer than {fast['kind']}s."
    )
    if slow["kind"] == "read" and gap > 0.1:
        said += (
            " A memory serves reads in the order in which their commands arrive, each as a whole, so near askers come "
            "first and the links of far ones stand idle meanwhile; writes interleave flit by flit on the way."
        )
    return [said]


def write_findings(found: Sequence[str], rows: Sequence[Row], folder: Path) -> Path:
    """Write the findings and the figures' places as `README.md`, which a repository shows as a page."""
    names = sorted(path.name for path in folder.glob("probe_*.png"))
    lines = ["# Probe: the machine's links and memories", "", *(f"- {sentence}" for sentence in found), ""]
    lines += [f"![{name.removesuffix('.png').replace('_', ' ')}]({name})" for name in names]
    first = rows[0]
    lines += ["", f"{len(rows)} runs, machine {first['machine'][:12]}, code {first['code_version']}."]
    path = folder / "README.md"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
    return path


def _cases(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["case"] for row in rows))
