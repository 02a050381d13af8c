"""The report of layers over a whole SIP: columns, charts, findings and tables, all from the rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kernbench.studies.layers_lists import layers, source
from kernbench.studies.layers_work import LINK_KINDS, VISIBLE
from kernbench.studies.study import Finding
from kernbench.sweeps.keys import Row
from kernbench.topology.builder import Machine
from kernbench.viz.charts import Chart, Column
from kernbench.viz.heatmap import link_heatmap

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

METHOD = (
    "C[M, N] = A[M, K] B[K, N] over all PEs of SIP 0. A is cut by rows over the PEs, B by columns, so that each weight "
    "exists once. K is never split. In `rows` a PE computes rows of C and reads all of B; in `columns` it computes "
    "columns of C and reads all of A; in `2-D` a cube computes columns and each of its PEs rows. Operands larger than "
    "a third of the operands' part of TCM are streamed. C stays with the PE that computed it. The makespan runs from "
    "the launch leaving the host to the last completion coming back. A layer under tensor parallelism (tp) is the part "
    "of one SIP, without the all-reduce between SIPs. The bound is the larger of the busiest PE's tiles at the matrix "
    "rate and of the bytes it reads from others at the rate of its link."
)
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
    **{f"busy_{kind}": Column(f"busiest {name}") for kind, name in LINK_KINDS.items()},
}


def simulated(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that were simulated."""
    return [row for row in rows if not row["left_out"]]


def best(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the simulated runs of each layer, the fastest placement first."""
    by_layer: dict[str, list[Row]] = {}
    for row in simulated(rows):
        by_layer.setdefault(row["layer"], []).append(row)
    return {layer: sorted(runs, key=lambda row: row["makespan_ns"]) for layer, runs in by_layer.items()}


def _map(placement: str) -> Chart:
    """Return the chart of the links of a placement, on the machine's geometry."""

    def draw(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Column], machine: Machine) -> Figure:
        row = rows[-1]
        title = f"{row['layer']} {row['shape']}, {row['placement']}: {row['makespan_ns'] / 1000:,.1f} us"
        return link_heatmap(
            row["links"], machine, title=title, note=f"links busy for less than {VISIBLE:.0%} are left out"
        )

    def where(row: Mapping[str, Any]) -> bool:
        return row["placement"] == placement and bool(row.get("links"))

    return Chart(f"layers_links_{placement.replace('-', '').lower()}", draw, f"Busy links, {placement}", where=where)


CHARTS = tuple(map(_map, ("rows", "columns", "2-D")))


def findings(rows: Sequence[Row]) -> list[Finding]:
    """Return which placement is fastest and why, and what limits it."""
    ranked = best(rows)
    if not ranked:
        return []
    count = Counter(runs[0]["placement"] for runs in ranked.values())
    wins = ", ".join(f"{name} {n}" for name, n in count.most_common())
    return [Finding(f"Fastest placement of {len(ranked)} layers: {wins}.", "", 7)]


def tables(rows: Sequence[Row]) -> dict[str, pd.DataFrame]:
    """Return the placements of each layer, those that were not simulated, and where the lists are from."""
    import pandas as pd

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
    left = [row for row in rows if row["left_out"]]
    return {
        "Fastest placement": pd.DataFrame(out),
        "Not simulated": pd.DataFrame(left, columns=["layer", "placement", "left_out", "bound_ns", "limiter"]),
        "Lists": pd.DataFrame(
            [
                {"list": name, "layers": _several(name, rows), "source": source(name)}
                for name in dict.fromkeys(row["list"] for row in rows if row["list"])
            ]
        ),
    }


def _several(name: str, rows: Sequence[Row]) -> str:
    """Say how many layers of a list are here."""
    every, here = layers(name), {row["layer"] for row in rows}
    return f"{sum(layer.label in here for layer in every)} of {len(every)}"
