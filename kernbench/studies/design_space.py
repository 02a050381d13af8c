"""What parts of the machine buy: grids of machines, one factor at a time, and what is chance, for each workload."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import isqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernbench.errors import ArgumentError
from kernbench.studies.results import read_results, write_results
from kernbench.sweeps.keys import Row, code_version
from kernbench.sweeps.plan import Plan, make_plan
from kernbench.sweeps.sensitivity import BASE, Factors, sensitivity_plan
from kernbench.sweeps.sweep import run_plan
from kernbench.topology.builder import Machine, resolve_topology

if TYPE_CHECKING:
    import pandas as pd

FILE = "design_space.json"
WORKLOADS = {"decode": "llama3-70b-decode", "gpt2": "gpt2-layers"}
LATENCY, AREA, ENERGY = "latency_us", "area_mm2", "energy_uj"
MESH, UCIE, HBM, SIPS = "cube mesh", "UCIe [GB/s]", "HBM of a PE [GB/s]", "SIP topology"
CHANNELS, CHANNEL_GBS = 8, 32.0

_HBM = ("cube.hbm.channel_bw_gbs", "cube.hbm.bw_gbs", "cube.pe.pe_dma.bw_gbs")
# What is changed one at a time. The link of a slice and that of its PE are no narrower than the slice.
FACTORS: Factors = {
    "HBM bandwidth, with the PE's link": _HBM,
    "UCIe bandwidth": ("cube.ucie.bw_gbs",),
    "UCIe latency": ("cube.ucie.port_ns",),
    "mesh bandwidth": ("cube.noc.link_bw_gbs",),
    "router latency": ("cube.noc.router.overhead_ns",),
    "matrix rate": ("cube.pe.pe_gemm.macs_per_cycle.f16",),
    "vector clock": ("cube.pe.pe_math.clock_ghz",),
    "TCM ports": ("cube.pe.pe_tcm.read_bw_gbs", "cube.pe.pe_tcm.write_bw_gbs"),
    "time of a command": ("cube.pe.pe_cpu.command_ns",),
    "outstanding reads": ("cube.pe.pe_dma.outstanding_reads",),
    "SIP link bandwidth": ("system.sip_link.bw_gbs",),
    "SIP link latency": ("system.sip_link.latency_ns",),
    "cubes, two in a row": {"down": {"sip.cube_mesh.w": 2}},  # a context is cut evenly over powers of two
    "SIP topology": {"up": {"system.sips.topology": "fully_connected"}},
}


def axes(
    meshes: Sequence[Sequence[int]],
    ucie_gbs: Sequence[float],
    hbm_scale: Sequence[float],
    topologies: Sequence[str],
    sips: int,
) -> dict[str, dict[str, Mapping[str, Any]]]:
    """Return the axes of the grid.

    Parameters
    ----------
    meshes : sequence of (w, h)
        Cubes of a SIP.
    ucie_gbs : sequence of float
        Bandwidth of a UCIe connection.
    hbm_scale : sequence of float
        Of the 256 GB/s of a PE's slice; its link and that of its PE are widened with it where they have to be.
    topologies : sequence of str
        Of the SIPs; without any they are no axis.
    sips : int
        SIPs of the machine.
    """
    found: dict[str, dict[str, Mapping[str, Any]]] = {
        MESH: {f"{w}x{h}": {"sip.cube_mesh": {"w": w, "h": h}} for w, h in meshes},
        UCIE: {f"{bw:g}": {"cube.ucie.bw_gbs": bw} for bw in ucie_gbs},
        HBM: {f"{scale * CHANNELS * CHANNEL_GBS:g}": _hbm(scale) for scale in hbm_scale},
    }
    if topologies:
        found[SIPS] = {name: {"system.sips.topology": name} | _grid(name, sips) for name in topologies}
    return found


def _grid(topology: str, sips: int) -> dict[str, int]:
    """Return the two sides of a topology that has two, as near to a square as they come."""
    if topology in {"ring_1d", "fully_connected"}:
        return {}
    h = max(side for side in range(1, isqrt(sips) + 1) if sips % side == 0)
    return {"system.sips.w": sips // h, "system.sips.h": h}


def _hbm(scale: float) -> dict[str, float]:
    wide = CHANNELS * CHANNEL_GBS * max(1.0, scale)
    return {"cube.hbm.channel_bw_gbs": CHANNEL_GBS * scale, "cube.hbm.bw_gbs": wide, "cube.pe.pe_dma.bw_gbs": wide}


def sweep(
    machine: Machine | str | None,
    *,
    meshes: Sequence[Sequence[int]],
    ucie_gbs: Sequence[float],
    hbm_scale: Mapping[str, Sequence[float]],
    topologies: Sequence[str],
    parameters: Mapping[str, Mapping[str, Any]],
    factors: Sequence[str] = (),
    change: float = 0.2,
    ties: int = 4,
    workers: int = 1,
    folder: Path | None = None,
) -> list[Row]:
    """Return the rows of all tables: for each workload its grid, one factor at a time, and other orders of ties.

    Parameters
    ----------
    machine
        As for `kb.load`: what is changed, and the base of the factors.
    meshes, ucie_gbs, hbm_scale, topologies
        As for `axes`; `hbm_scale` for each workload, and the topology is an axis of the decode step alone.
    parameters
        For each of `WORKLOADS` that is to run, the parameters of its study.
    factors
        Names of `FACTORS`; all if none is named.
    change
        The share by which each is changed.
    ties
        Of so many other orders of simultaneous arrivals the latency is had, too.
    workers
        Processes.
    folder
        Where finished points are kept.

    Raises
    ------
    ArgumentError
        If a parameter is wrong; nothing has been run then. Points that fail have their error in their row.
    """
    base = resolve_topology(machine)
    unknown = [name for name in factors if name not in FACTORS]
    if unknown:
        raise ArgumentError(f"factors: {', '.join(unknown)} unknown; known: {', '.join(FACTORS)}")
    assert isinstance(FACTORS, Mapping)
    chosen = {name: FACTORS[name] for name in factors or FACTORS}
    plans: dict[str, Plan] = {}
    for name, given in parameters.items():
        shapes = axes(meshes, ucie_gbs, hbm_scale[name], topologies if name == "decode" else (), base.config.n_sips)
        plans[f"{name} grid"] = make_plan(base, WORKLOADS[name], shapes, parameters=given)
        plans[f"{name} factors"] = sensitivity_plan(base, WORKLOADS[name], chosen, given, change)
        plans[f"{name} ties"] = make_plan(
            base, WORKLOADS[name], {"tie_seed": list(range(1, ties + 1))}, parameters=given
        )
    rows: list[Row] = []
    for table, plan in plans.items():
        done = run_plan(plan, folder=folder, workers=workers, progress=False)
        found = json.loads(done.table.to_json(orient="records"))
        # The machine of a row is its own; that of the study is the one that is changed.
        own = {"machine": base.hash, "code_version": code_version()}
        rows += [{"table": table, **row, "point": row["machine"], **own} for row in found]
        rows += [
            {"table": table, **point.shown, "status": "invalid", "error": point.reason, **own} for point in plan.invalid
        ]
    return rows


def frame(rows: Sequence[Row], table: str) -> pd.DataFrame:
    """Return the points with a result of one table, as "decode grid" or "gpt2 ties", with the columns it has."""
    import pandas as pd

    mine = [
        row | {LATENCY: row["latency_ns"] / 1000} for row in rows if row["table"] == table and row["status"] == "ok"
    ]
    return pd.DataFrame(mine).dropna(axis="columns", how="all")


def chance(rows: Sequence[Row], workload: str) -> float:
    """Return by how much the latency of one machine differs [%]: what moves it by less is no effect.

    Notes
    -----
    Through the order of simultaneous arrivals: (largest - smallest) / smallest over some orders, on the machine that
    the others are changes of.
    """
    factors = frame(rows, f"{workload} factors")
    orders = [*factors.loc[factors["factor"] == BASE, LATENCY], *frame(rows, f"{workload} ties")[LATENCY]]
    return 100 * float(max(orders) / min(orders) - 1)


def write(rows: Sequence[Row], folder: Path) -> Path:
    """Write `design_space.json`, and a CSV file for each table; return the former."""
    import pandas as pd

    path = write_results(folder / FILE, rows)
    for table in dict.fromkeys(row["table"] for row in rows):
        mine = pd.DataFrame([row for row in rows if row["table"] == table]).drop(columns="table")
        mine.to_csv(folder / f"{table.replace(' ', '_')}.csv", index=False, lineterminator="\n")
    return path


def read(folder: Path) -> dict[str, Any]:
    """Return the content of `design_space.json` in `folder`."""
    return read_results(folder / FILE)
