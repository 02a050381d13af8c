"""The report of layers over a whole SIP: figures, and findings in words that are computed from the table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kernbench.analysis.ideal import macs_per_ns
from kernbench.analysis.roofline import Roofs
from kernbench.studies.layers import VISIBLE
from kernbench.studies.layers_lists import layers, source
from kernbench.studies.points import Row
from kernbench.topology.builder import Machine
from kernbench.viz import layers as figures
from kernbench.viz.figure import save
from kernbench.viz.heatmap import link_heatmap

if TYPE_CHECKING:
    import pandas as pd

TITLE = "# Layers over a whole SIP"


def simulated(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that were simulated."""
    return [row for row in rows if not row["left_out"]]


def draw(rows: Sequence[Row], machine: Machine, folder: Path) -> list[Path]:
    """Write all figures; return their paths."""
    name = rows[0]["machine"]
    config = machine.config
    hbm = config.cube.hbm.channels * config.cube.hbm.channel_bw_gbs * config.cube.hbm.efficiency
    roofs = Roofs(
        2 * macs_per_ns(config, rows[0]["dtype"]) * config.pes_per_sip, {"HBM of the SIP": hbm * config.pes_per_sip}
    )
    drawn = [
        ("layers_roofline.png", figures.layer_roofline(rows, roofs, machine=name)),
        ("layers_utilization.png", figures.utilization_against_shape(rows, machine=name)),
        ("layers_placements.png", figures.placement_bars(rows, machine=name)),
        ("layers_hottest_links.png", figures.hottest_links(rows, machine=name)),
    ]
    note = f"links busy for less than {VISIBLE:.0%} are left out"
    for row in simulated(rows):
        if row["links"]:
            title = f"{row['layer']} {row['shape']}, {row['placement']}: {row['makespan_ns'] / 1000:,.1f} us"
            drawn.append((heatmap_name(row), link_heatmap(row["links"], machine, title=title, note=note)))
    return [save(figure, folder / file) for file, figure in drawn]


def heatmap_name(row: Row) -> str:
    """Return the file name of a run's heat map."""
    return f"layers_links_{row['placement'].replace('-', '').lower()}.png"


def best(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the simulated runs of each layer, the fastest placement first."""
    by_layer: dict[str, list[Row]] = {}
    for row in simulated(rows):
        by_layer.setdefault(row["layer"], []).append(row)
    return {layer: sorted(runs, key=lambda row: row["makespan_ns"]) for layer, runs in by_layer.items()}


def table(rows: Sequence[Row]) -> pd.DataFrame:
    """Return the best placement of each layer beside the others' times."""
    import pandas as pd

    placements = list(dict.fromkeys(row["placement"] for row in rows))
    out = []
    for layer, runs in best(rows).items():
        first = runs[0]
        times = {row["placement"]: row["makespan_ns"] / 1000 for row in runs}
        out.append(
            {
                "layer": layer, "shape": first["shape"], "best": first["placement"],
                **{f"{p} [us]": round(times[p], 2) if p in times else None for p in placements},
                "utilization": round(first["utilization"], 4), "PEs": first["pes"],
                "remote MB": round(first["remote_bytes"] / 1e6, 1), "hottest link": first["hottest_link"],
                "busy": round(first["hottest_busy"], 3),
            }
        )  # fmt: skip
    return pd.DataFrame(out)


def findings(rows: Sequence[Row]) -> list[str]:
    """Return what the table says, one sentence each."""
    ranked = best(rows)
    said = _winners(rows)
    said += [_why(layer, ranked[layer]) for layer in _examples(ranked)]
    said += _utilization(ranked) + _links(rows) + _left_out(rows)
    return said + [_completeness(name, rows) for name in dict.fromkeys(row["list"] for row in rows)]


def _winners(rows: Sequence[Row]) -> list[str]:
    ranked = best(rows)
    count = Counter(runs[0]["placement"] for runs in ranked.values())
    wins = ", ".join(f"{name} {n}" for name, n in count.most_common())
    return [f"Fastest placement, of {len(ranked)} layers: {wins}."]


def _examples(ranked: dict[str, list[Row]]) -> list[str]:
    """Return for each list and winner the layer with most work."""
    chosen: dict[tuple[str, str], str] = {}
    for layer, runs in sorted(ranked.items(), key=lambda item: -item[1][0]["m"] * item[1][0]["n"] * item[1][0]["k"]):
        if len(runs) > 1:
            chosen.setdefault((runs[0]["list"], runs[0]["placement"]), layer)
    return [layer for layer in ranked if layer in chosen.values()]


def _why(layer: str, runs: Sequence[Row]) -> str:
    first, *others = runs
    against = "; ".join(
        f"{row['placement']} takes {row['makespan_ns'] / first['makespan_ns']:.1f} x: {_reasons(row, first)}"
        for row in others
    )
    return (
        f"{layer} ({first['shape']}): {first['placement']} is best, {first['makespan_ns'] / 1000:,.1f} us, with "
        f"{first['pes']} PEs at work, {first['remote_bytes'] / 1e6:,.1f} MB read from other PEs and "
        f"{first['issued']:.1%} of each tile useful; {against}."
    )


def _reasons(row: Row, first: Row) -> str:
    """Say in what a placement asks more of the machine than the fastest one."""
    reasons = []
    if row["pes"] < first["pes"]:
        reasons.append(f"only {row['pes']} PE{'s' if row['pes'] > 1 else ''} at work")
    if row["remote_bytes"] > 1.05 * first["remote_bytes"]:
        reasons.append(f"{row['remote_bytes'] / 1e6:,.1f} MB read from other PEs")
    if row["issued"] < 0.95 * first["issued"]:
        reasons.append(f"{row['issued']:.1%} of each tile useful")
    if row["hottest_busy"] > 1.05 * first["hottest_busy"]:
        reasons.append(
            f"its hottest link is busy {row['hottest_busy']:.0%} of the time, not {first['hottest_busy']:.0%}"
        )
    return ", ".join(reasons) or "no more bytes or tiles: it waits longer for them"


def _utilization(ranked: dict[str, list[Row]]) -> list[str]:
    firsts = sorted((runs[0] for runs in ranked.values()), key=lambda row: row["utilization"])
    low, high = firsts[0], firsts[-1]
    said = (
        f"Utilization of the SIP's matrix rate in the best placement: from {low['utilization']:.3%} "
        f"({low['layer']}, {low['shape']}) to {high['utilization']:.1%} ({high['layer']}, {high['shape']})."
    )
    return [said]


def _links(rows: Sequence[Row]) -> list[str]:
    row = max(simulated(rows), key=lambda row: row["hottest_busy"])
    ucie = sum(".ucie_" in row["hottest_link"] for row in simulated(rows))
    said = (
        f"The hottest link of all: {row['hottest_link']}, busy {row['hottest_busy']:.0%} of {row['layer']} in "
        f"{row['placement']}; a link of a UCIe port is the hottest in {ucie} of {len(simulated(rows))} runs."
    )
    return [said]


def _left_out(rows: Sequence[Row]) -> list[str]:
    left = [row for row in rows if row["left_out"]]
    return [
        f"Not simulated: {row['layer']} in {row['placement']}: {row['left_out']}; it takes at least "
        f"{row['bound_ns'] / 1000:,.0f} us ({row['limiter']})."
        for row in left
    ]


def _completeness(name: str, rows: Sequence[Row]) -> str:
    """Say where a list is from, and how much of it is here."""
    every, here = layers(name), {row["layer"] for row in rows}
    there = [layer for layer in every if layer.label in here]
    if len(there) == len(every):
        return f"All {len(every)} layers of {name}: {source(name)}"
    cuts = dict.fromkeys((layer.tp, layer.m) for layer in there)
    shown = ", ".join(f"m {m} at tp {tp}" for tp, m in cuts) if max(layer.tp for layer in every) > 1 else ""
    degrees, tokens = ({getattr(layer, size) for layer in every} for size in ("tp", "m"))
    of = f" ({shown}, of tp {_several(degrees)} and m {_several(tokens)})" if shown else ""
    return f"{len(there)} of {len(every)} layers of {name}{of}: {source(name)}"


def _several(numbers: set[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))


def write_findings(found: Sequence[str], rows: Sequence[Row], folder: Path) -> Path:
    """Add the findings and the figures' places to the report's `README.md`."""
    path = folder / "README.md"
    before = path.read_text(encoding="utf-8").split(TITLE)[0].rstrip() if path.is_file() else ""
    names = sorted(file.name for file in folder.glob("layers_*.png"))
    lines = [TITLE, "", *(f"- {sentence}" for sentence in found), ""]
    lines += [f"![{name.removesuffix('.png').replace('_', ' ')}]({name})" for name in names]
    first = rows[0]
    lines += ["", f"{len(simulated(rows))} runs, machine {first['machine'][:12]}, code {first['code_version']}."]
    path.write_text("\n".join([*([before, ""] if before else []), *lines]) + "\n", encoding="utf-8", newline="\n")
    return path
