"""Figures, sentences and tables of the design-space study, from its rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kernbench.studies.design_space import AREA, ENERGY, HBM, LATENCY, MESH, SIPS, UCIE, frame
from kernbench.sweeps.answers import effects, pareto
from kernbench.sweeps.keys import Row
from kernbench.sweeps.sensitivity import ranked
from kernbench.viz import sweeps as draw_sweeps
from kernbench.viz.figure import save

if TYPE_CHECKING:
    import pandas as pd

SHOWN = {"decode": "a layer of Llama-3 70B in decode", "gpt2": "the products of GPT-2"}


def workloads(rows: Sequence[Row]) -> list[str]:
    """Return the workloads that the rows are of."""
    return list(dict.fromkeys(row["table"].split()[0] for row in rows))


def axes_of(grid: pd.DataFrame) -> list[str]:
    """Return the axes of a grid."""
    return [name for name in (MESH, UCIE, HBM, SIPS) if name in grid and len(grid[name].drop_duplicates()) > 1]


def draw(rows: Sequence[Row], folder: Path, change: float) -> list[Path]:
    """Draw the figures of every workload; return their paths."""
    machine, paths = rows[0]["machine"], []
    for name in workloads(rows):
        grid, factors = frame(rows, f"{name} grid"), frame(rows, f"{name} factors")
        axes = axes_of(grid)
        figures = {
            "front": draw_sweeps.pareto_front(
                grid, pareto(grid, [AREA, LATENCY]), (AREA, LATENCY), machine=machine, label=axes
            ),
            "map": draw_sweeps.heat_map(grid, (UCIE, MESH), LATENCY, machine=machine),
            "factors": draw_sweeps.tornado(ranked(factors, LATENCY), LATENCY, machine=machine, change=change),
        }
        paths += [save(figure, folder / f"{name}_{kind}.png") for kind, figure in figures.items()]
    return paths


def first(rows: Sequence[Row], workload: str) -> pd.DataFrame:
    """Return what to change first for a workload, rounded: `sensitivity.ranked`."""
    return ranked(frame(rows, f"{workload} factors"), LATENCY).round(2)


def front(rows: Sequence[Row], workload: str) -> pd.DataFrame:
    """Return the machines that none beats in area and latency, smallest first, rounded."""
    grid = frame(rows, f"{workload} grid")
    columns = [*axes_of(grid), "pes", AREA, LATENCY, *([ENERGY] if ENERGY in grid else [])]
    return pareto(grid, [AREA, LATENCY])[columns].round(1).reset_index(drop=True)


def findings(rows: Sequence[Row]) -> list[str]:
    """Return what the tables say, in sentences."""
    said = []
    for name in workloads(rows):
        grid = frame(rows, f"{name} grid")
        said += [*_front(name, grid), *_effects(name, grid), *_first(name, first(rows, name)), *_parts(name, grid)]
    failed = [row for row in rows if row["status"] not in {"ok", "invalid"}]
    invalid = [row for row in rows if row["status"] == "invalid"]
    if failed:
        said.append(f"{len(failed)} points failed, the first with: {failed[0]['error'].splitlines()[0]}.")
    if invalid:
        said.append(f"{len(invalid)} points cannot be, the first since {invalid[0]['error'].splitlines()[0]}.")
    return said


def _front(name: str, grid: pd.DataFrame) -> list[str]:
    best = pareto(grid, [AREA, LATENCY])
    small, fast = best.iloc[0], best.iloc[-1]
    said = (
        f"Of {len(grid)} machines for {SHOWN[name]}, {len(best)} are beaten by none in area and latency: from "
        f"{small[AREA]:,.0f} mm2 and {small[LATENCY] / 1000:,.2f} us to {fast[AREA]:,.0f} mm2 and "
        f"{fast[LATENCY] / 1000:,.2f} us."
    )
    return [said]


def _effects(name: str, grid: pd.DataFrame) -> list[str]:
    found = effects(grid, axes_of(grid), LATENCY)
    parts = [f"{row.axis} {row.factor:.2f} x (best {row.best})" for row in found.itertuples()]
    return [f"What an axis moves in {SHOWN[name]}, the others held: {', '.join(parts)}."] if parts else []


def _first(name: str, table: pd.DataFrame) -> list[str]:
    gains = table[table["gain_pct"] > 0.05]
    if not len(gains):
        return [f"No factor by itself makes {SHOWN[name]} faster."]
    parts = [
        f"{row.factor} {row.first} ({row.gain_pct:.1f} % less time, {row.area_pct:+.1f} % silicon)"
        for row in gains.head(3).itertuples()
    ]
    idle = table.loc[table["gain_pct"].abs() < 0.05, "factor"].tolist()
    said = [f"To make {SHOWN[name]} faster, change first: {'; '.join(parts)}."]
    return said + ([f"Of no use for {SHOWN[name]}: {', '.join(idle)}."] if idle else [])


def _parts(name: str, grid: pd.DataFrame) -> list[str]:
    if name != "decode":
        return []
    fast = min(grid.to_dict("records"), key=lambda row: float(row[LATENCY]))
    shares = {part: fast[f"{part}_ns"] / fast[LATENCY] for part in ("attention", "products", "allreduce")}
    parts = ", ".join(f"{part} {share:.0%}" for part, share in shares.items())
    return [f"Of the time of the fastest machine in decode: {parts}."]


def write_findings(found: Sequence[str], rows: Sequence[Row], folder: Path) -> Path:
    """Write the findings and the figures' places as `README.md`, which a repository shows as a page."""
    figures = sorted(path.name for path in folder.glob("*.png"))
    lines = ["# Design space: what parts of the machine buy", "", *(f"- {sentence}" for sentence in found), ""]
    lines += [f"![{name.removesuffix('.png').replace('_', ' ')}]({name})" for name in figures]
    ok = [row for row in rows if row["status"] == "ok"]
    sure = sum(bool(row["certified"]) for row in ok)
    origin = f"machine {rows[0]['machine'][:12]}, code {rows[0]['code_version']}"
    lines += [
        "",
        f"{len(ok)} points, {sure} of them certified; {origin}. Area and energy are proxies: docs/model.md, M1.5.",
    ]
    path = folder / "README.md"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
    return path
