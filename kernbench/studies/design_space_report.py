"""Figures, sentences and tables of the design-space study, from its rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kernbench.studies.design_space import AREA, ENERGY, HBM, LATENCY, MESH, SIPS, UCIE, chance, frame
from kernbench.sweeps.answers import pareto, steps
from kernbench.sweeps.keys import Row
from kernbench.sweeps.sensitivity import ranked
from kernbench.viz import sweeps as draw_sweeps
from kernbench.viz.figure import save

if TYPE_CHECKING:
    import pandas as pd

SHOWN = {"decode": "a layer of Llama-3 70B in decode", "gpt2": "the products of GPT-2"}
EFFECT, NONE = "effect", "none"


def workloads(rows: Sequence[Row]) -> list[str]:
    """Return the workloads that the rows are of."""
    return list(dict.fromkeys(row["table"].split()[0] for row in rows))


def shown(workload: str, rows: Sequence[Row]) -> str:
    """Return what a workload is, with its size, for titles."""
    context = next((row.get("context") for row in rows if row["table"].startswith(workload)), None)
    return f"{SHOWN[workload]} at a context of {context:,}" if context else SHOWN[workload]


def axes_of(grid: pd.DataFrame) -> list[str]:
    """Return the axes of a grid."""
    return [name for name in (MESH, UCIE, HBM, SIPS) if name in grid and len(grid[name].drop_duplicates()) > 1]


def draw(rows: Sequence[Row], folder: Path, change: float) -> list[Path]:
    """Draw the figures of every workload; return their paths."""
    paths = []
    for name in workloads(rows):
        grid, spread = frame(rows, f"{name} grid"), chance(rows, name)
        about: dict[str, Any] = {"machine": rows[0]["machine"], "of": shown(name, rows)}
        best = _front(grid, spread)
        factors = ranked(frame(rows, f"{name} factors"), LATENCY)
        figures = {
            "front": draw_sweeps.pareto_front(grid, best, (AREA, LATENCY), label=axes_of(grid), **about),
            "map": draw_sweeps.heat_map(grid, (UCIE, MESH), LATENCY, **about),
            "factors": draw_sweeps.tornado(factors, LATENCY, change=change, spread_pct=spread, **about),
        }
        paths += [save(figure, folder / f"{name}_{kind}.png") for kind, figure in figures.items()]
    return paths


def first(rows: Sequence[Row], workload: str) -> pd.DataFrame:
    """Return what to change first for a workload, rounded; what is within chance has no effect, and comes last."""
    table = ranked(frame(rows, f"{workload} factors"), LATENCY)
    spread = chance(rows, workload)
    moves = np.nanmax(np.abs(table[["down_pct", "up_pct"]].to_numpy(float)), axis=1) > spread
    table[EFFECT] = ["" if moved else NONE for moved in moves]
    table.loc[~moves, "first"] = ""
    return table.sort_values(EFFECT, kind="stable", ignore_index=True).round(2)


def bought(rows: Sequence[Row], workload: str) -> pd.DataFrame:
    """Return what each step along each axis buys and costs, rounded: `answers.steps`, and whether that is an effect."""
    grid = frame(rows, f"{workload} grid")
    table, spread = steps(grid, axes_of(grid), LATENCY, AREA), chance(rows, workload)
    table[EFFECT] = ["" if most > spread else NONE for most in table[["least_pct", "most_pct"]].abs().max(axis=1)]
    return table.round(2)


def front(rows: Sequence[Row], workload: str) -> pd.DataFrame:
    """Return the machines that none beats in area and latency by more than chance, smallest first, rounded."""
    grid = frame(rows, f"{workload} grid")
    columns = [*axes_of(grid), "pes", AREA, LATENCY, *([ENERGY] if ENERGY in grid else [])]
    return _front(grid, chance(rows, workload))[columns].round(2).reset_index(drop=True)


def findings(rows: Sequence[Row]) -> list[str]:
    """Return what the tables say, in sentences."""
    said = []
    for name in workloads(rows):
        grid = frame(rows, f"{name} grid")
        said += [*_chance(name, rows), *_bought(name, rows), *_worth(name, rows, grid)]
        said += [*_first(name, first(rows, name)), *_parts(name, grid)]
    failed = [row for row in rows if row["status"] not in {"ok", "invalid"}]
    invalid = [row for row in rows if row["status"] == "invalid"]
    if failed:
        said.append(f"{len(failed)} points failed, the first with: {failed[0]['error'].splitlines()[0]}.")
    if invalid:
        said.append(f"{len(invalid)} points cannot be, the first since {invalid[0]['error'].splitlines()[0]}.")
    return said


def _front(grid: pd.DataFrame, spread_pct: float) -> pd.DataFrame:
    return pareto(grid, [AREA, LATENCY], within=spread_pct / 100)


def _chance(name: str, rows: Sequence[Row]) -> list[str]:
    orders = 1 + len(frame(rows, f"{name} ties"))
    said = f"Over {orders} orders of simultaneous arrivals the latency of {shown(name, rows)} differs by "
    return [f"{said}{chance(rows, name):.2f} %: what moves it by less is called no effect."]


def _bought(name: str, rows: Sequence[Row]) -> list[str]:
    said = []
    for axis, table in bought(rows, name).groupby("axis", sort=False):
        taken: list[dict[Any, Any]] = table.to_dict("records")
        parts = [
            f"{row['step']} no effect"
            if row["effect"] == NONE
            else f"{row['step']} takes {abs(row['gain_pct']):.1f} % {'less' if row['gain_pct'] > 0 else 'more'} time "
            f"({_signed(-row['most_pct'])} to {_signed(-row['least_pct'])} %)"
            for row in taken
        ]
        costs = [f", for {row['cost_pct']:.1f} % more silicon" for row in taken]
        steps_said = "; ".join(part + cost for part, cost in zip(parts, costs, strict=True))
        said.append(f"{axis}, in {SHOWN[name]}: {steps_said}.")
    return said


def _signed(value: float) -> str:
    return f"{value:+.1f}" if round(value, 1) else "0"


def _worth(name: str, rows: Sequence[Row], grid: pd.DataFrame) -> list[str]:
    best = _front(grid, chance(rows, name))
    small, fast = best.iloc[0], best.iloc[-1]
    said = (
        f"Of {len(grid)} machines for {SHOWN[name]}, {len(best)} are beaten by none in area and latency: from "
        f"{small[AREA]:,.0f} mm2 and {small[LATENCY]:,.2f} us to {fast[AREA]:,.0f} mm2 and {fast[LATENCY]:,.2f} us "
        f"({', '.join(f'{axis} {fast[axis]}' for axis in axes_of(grid))})."
    )
    return [said]


def _first(name: str, table: pd.DataFrame) -> list[str]:
    moved = table[table[EFFECT] != NONE]
    gains = moved[moved["gain_pct"] > 0]
    parts = [
        f"{row.factor} {row.first} ({row.gain_pct:.1f} % less time, {row.area_pct:+.1f} % silicon)"
        for row in gains.head(3).itertuples()
    ]
    said = f"To make {SHOWN[name]} faster, change first: {'; '.join(parts)}."
    none = table.loc[table[EFFECT] == NONE, "factor"].tolist()
    return [
        said if parts else f"No factor by itself makes {SHOWN[name]} faster.",
        *([f"No effect on {SHOWN[name]}: {', '.join(none)}."] if none else []),
    ]


def _parts(name: str, grid: pd.DataFrame) -> list[str]:
    if name != "decode":
        return []
    fast = min(grid.to_dict("records"), key=lambda row: float(row[LATENCY]))
    shares = {part: fast[f"{part}_ns"] / fast["latency_ns"] for part in ("attention", "products", "allreduce")}
    parts = ", ".join(f"{part} {share:.0%}" for part, share in shares.items())
    return [f"Of the time of the fastest machine in decode: {parts}."]


def write_findings(found: Sequence[str], rows: Sequence[Row], folder: Path) -> Path:
    """Write the findings and the figures' places as `README.md`, which a repository shows as a page."""
    figures = sorted(path.name for path in folder.glob("*.png"))
    lines = ["# Design space: what parts of the machine buy", "", *(f"- {sentence}" for sentence in found), ""]
    lines += [f"![{name.removesuffix('.png').replace('_', ' ')}]({name})" for name in figures]
    ok = [row for row in rows if row["status"] == "ok"]
    origin = f"machine {rows[0]['machine'][:12]}, code {rows[0]['code_version']}"
    lines += [
        "",
        f"{len(ok)} points; {origin}. Area and energy are proxies: docs/model.md, M1.5.",
    ]
    path = folder / "README.md"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
    return path
