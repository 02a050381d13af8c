"""The collectives study's report: its figures, and where each comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kernbench.studies import ccl_cases as cases
from kernbench.studies.ccl import VISIBLE, Case, of_slice
from kernbench.studies.points import Row
from kernbench.topology.builder import Machine
from kernbench.viz import ccl as by_size
from kernbench.viz import ccl_slices as figures
from kernbench.viz.figure import save
from kernbench.viz.heatmap import link_heatmap

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

TITLE = "# Collectives"
_CONTRIBUTIONS = {"rank": ("rank",), "cube_pe": ("cube", "pe")}


def published(size_bytes: Sequence[int] = ()) -> list[Row]:
    """Return the reference design's published all-reduces: cube leaders, centre root, six SIPs in a torus.

    The analytic line is 1346 ns and 1.20 ns for each packet of 128 B of 8 PEs, for `size_bytes` of each PE. They stand
    beside the figures for orientation; nothing is fitted to them.
    """
    said = {"tcm": {2: 1.96, 16: 4.2, 64: 12.0, 96: 17.2}, "sram": {64: 24.3}, "hbm": {64: 21.4}}
    marks: list[Row] = [
        {"bytes_per_pe": kib << 10, "buffer_kind": kind, "latency_us": us, "source": "published"}
        for kind, values in said.items()
        for kib, us in values.items()
    ]
    marks.append({"bytes_per_pe": 96 << 10, "buffer_kind": "", "latency_us": 366.0, "source": "external simulator"})
    marks += [
        {
            "bytes_per_pe": nbytes,
            "buffer_kind": "",
            "latency_us": (1346 + 1.20 * 8 * nbytes / 128) / 1000,
            "source": "published analytic model",
        }
        for nbytes in size_bytes
    ]
    return marks


def draw(rows: Sequence[Row], machine: Machine, folder: Path) -> list[Path]:
    """Write all figures for which there are rows; return their paths."""
    name, link_gbs = machine.hash, machine.config.system.sip_link.bw_gbs
    drawn: list[tuple[str, Figure]] = []
    sizes = of_slice(rows, cases.SIZES)
    for title, contributions in _CONTRIBUTIONS.items():
        chosen = [row for row in sizes if row["contribution"] in contributions]
        if chosen:
            what = f"All-reduce by {' or '.join(map(by_size.named, contributions))}"
            drawn.append((f"latency_{title}.png", by_size.latency_by_size(chosen, machine=name, title=what)))
            figure = by_size.busbw_by_size(chosen, machine=name, link_gbs=link_gbs, title=what)
            drawn.append((f"busbw_{title}.png", figure))
    if others := of_slice(rows, cases.OTHERS):
        figure = by_size.latency_by_size(others, machine=name, title="Other collectives")
        drawn.append(("latency_other_collectives.png", figure))
    for file, slice_name, figure_of in (
        ("buffer_kinds.png", cases.KINDS, figures.buffer_kinds),
        ("slots.png", cases.SLOTS, figures.slots),
        ("limits.png", cases.LIMITS, figures.limits),
    ):
        if chosen := of_slice(rows, slice_name):
            drawn.append((file, figure_of(chosen, machine=name)))
    if grown := of_slice(rows, cases.SCALING):
        drawn.append(("scaling.png", figures.scaling(grown, machine=name)))
    if roots := of_slice(rows, cases.ROOTS):
        figure = figures.root_placement(roots, machine=name, cube_columns=machine.config.sip.cube_mesh.w)
        drawn.append(("root_placement.png", figure))
    if real := of_slice(rows, cases.LISTS):
        drawn.append(("lists.png", figures.lists(real, machine=name)))
    if marked := of_slice(rows, cases.MARKS):
        marks = published(sorted({row["bytes_per_pe"] for row in marked}))
        note = "cube leaders, centre root, six SIPs in a torus; crosses: the reference design, for orientation"
        drawn.append(("published_marks.png", figures.published_marks(marked, marks, machine=name, note=note)))
    return [save(figure, folder / file) for file, figure in drawn]


def draw_topologies(chosen: Sequence[Case], machine: Machine, folder: Path) -> Path:
    """Write the numbers and shapes of SIPs that cases ran on."""
    systems = {(case.n_sips, case.topology): case for case in chosen}
    machines = {f"{n} SIPs, {shape}": systems[n, shape].machine(machine) for n, shape in sorted(systems)}
    return save(by_size.topologies(machines, machine=machine.hash), folder / "topology.png")


def draw_links(rows: Sequence[Row], chosen: Sequence[Case], machine: Machine, folder: Path) -> list[Path]:
    """Write the heat map of links of each run that kept them."""
    paths = []
    systems = {(case.n_sips, case.topology): case for case in chosen if case.links}
    for row in rows:
        if row["links"]:
            there = systems[row["n_sips"], row["sip_topology"]].machine(machine)
            size = by_size.size_label(row["bytes_per_pe"])
            title = f"{row['algorithm']}, {size} of each, {row['n_sips']} SIPs: {row['latency_ns'] / 1000:,.1f} us"
            note = f"links busy for less than {VISIBLE:.0%} are left out"
            path = folder / f"links_{by_size.short(row['algorithm'])}.png"
            paths.append(save(link_heatmap(row["links"], there, title=title, note=note), path))
    return paths


def table(rows: Sequence[Row]) -> pd.DataFrame:
    """Return the columns that a reader looks at first, rounded."""
    import pandas as pd

    columns = [
        "slice", "algorithm", "contribution", "sip_topology", "n_sips", "bytes_per_pe", "buffer_kind", "n_slots",
        "latency_ns", "busbw_gbs", "bound_ns", "closed_form_ns",
    ]  # fmt: skip
    return pd.DataFrame(rows)[columns].round(1)


def write_findings(found: Sequence[str], rows: Sequence[Row], refused: Mapping[str, str], folder: Path) -> Path:
    """Write the findings and the figures' places as `README.md`, which a repository shows as a page."""
    lines = [TITLE, "", *(f"- {sentence}" for sentence in found), ""]
    lines += [f"![{path.stem.replace('_', ' ')}]({path.name})" for path in sorted(folder.glob("*.png"))]
    if refused:
        lines += ["", "## Refused", "", *(f"- {name}: {why}" for name, why in refused.items())]
    lines += ["", f"{len(rows)} rows, code {rows[0]['code_version']}. Each row names its machine."]
    path = folder / "README.md"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
    return path
