"""Cost and benefit of parts of a machine: the products of GPT-2 over one SIP, on grids of machines.

Steps of a served model, and what a faster part of the machine gains them, are those of the study `serving`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import kernbench.studies.design_space_report as report
from kernbench._registry import hint
from kernbench.analysis.result import Result
from kernbench.points._keys import Row
from kernbench.studies.layers import StoredProduct, run, select_layers, simulated_ns
from kernbench.studies.study import Parameter, Study
from kernbench.sweeps._energy_area import counters, energy_columns, machine_columns
from kernbench.sweeps._plan import Plan, make_plan
from kernbench.sweeps.sensitivity import Factors, sensitivity_plan
from kernbench.topology.builder import Machine

_MESH, _UCIE, _HBM_AXIS = report.AXES
LATENCY = "latency_ns"
_REASONS = 3  # of each product, longest first
CHANNELS, CHANNEL_GBS = 8, 32.0

_HBM = ("cube.hbm.channel_bw_gbs", "cube.hbm.bw_gbs", "cube.pe.pe_dma.bw_gbs")
# What is changed one at a time. The link of a slice and that of its PE are at least as wide as the slice.
_FACTORS: Factors = {
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
    "cubes, two in a row": {"down": {"sip.cube_mesh.w": 2}},
}


class DesignSpaceStudy(Study):
    """Grids of machines, and one factor at a time, for the products of GPT-2 over one SIP."""

    name, title = "design_space", "Design space: what parts of the machine buy for GPT-2"
    parameters: ClassVar = {
        "layer_list": Parameter("gpt2 QKTV", "layer list, and words that the names of its layers contain"),
        "placements": Parameter(["2-D"], "placements of a product, of which the fastest counts"),
        "meshes": Parameter([[1, 1], [2, 1]], "w and h of the cubes of a SIP"),
        "ucie_gbs": Parameter([64, 128], "bandwidth of a UCIe connection", "GB/s"),
        "hbm_scale": Parameter([1, 2], "bandwidth of HBM, as a factor of 256 GB/s for each PE"),
        "factors": Parameter(["UCIe bandwidth", "router latency"], "factors changed one at a time; none named: all"),
        "change": Parameter(0.2, "share by which each is changed"),
        "ties": Parameter(2, "other orders of simultaneous arrivals"),
    }
    method, columns, charts = report.METHOD, report.COLUMNS, report.CHARTS
    tables, findings = staticmethod(report.tables), staticmethod(report.findings)

    def points(self, machine: Machine, **parameters: Any) -> list[Row]:
        found = []
        for table, plan in self._plans(machine, parameters).items():
            for point in plan.points:
                asked = dict(point.parameters)
                mesh = point.overrides.get("sip.cube_mesh")
                if table == "grid" and mesh and point.machine.hash == machine.with_({"sip.cube_mesh": mesh}).hash:
                    asked["why"] = True
                shown = {"table": table, **point.shown, **_plain(point.overrides)}
                found.append({"machine": point.overrides, "labels": shown, **asked})
        return found

    def check(self, machine: Machine, **parameters: Any) -> list[str]:
        if unknown := [name for name in parameters["factors"] if name not in _FACTORS]:
            return [f"factors: {name} is unknown; {hint(name, _FACTORS)}" for name in unknown]
        reasons = [reason for plan in self._plans(machine, parameters).values() for reason in plan.reasons()]
        return list(dict.fromkeys(reasons))

    def work(self, machine: Machine, **_: Any) -> float:
        return machine.config.pes_per_sip

    def simulate(
        self, machine: Machine, *, layer_list: str = "gpt2", placements: Sequence[str] = ("2-D",),
        tie_seed: int | None = None, why: bool = False,
    ) -> Row:  # fmt: skip
        """Simulate products one after the other, each in the fastest of `placements`.

        `layer_list` is as for `layers.layers`: "gpt2 QKT" is one of them. `tie_seed` permutes the order of simultaneous
        arrivals. With `why`, the row has a column `why`: for each product the longest resources of its critical path.
        """
        best = []
        for layer in select_layers([layer_list]):
            products = (StoredProduct(layer.m, layer.n, layer.k, placement) for placement in placements)
            tried = [_simulated(machine, layer.name, x, tie_seed, why) for x in products]
            best.append(min(tried, key=lambda part: float(part[LATENCY])))
        counts = [name for name in best[0] if name != "why"]
        found: Row = {name: sum(part[name] for part in best) for name in counts}
        shown = _plain({"layer_list": layer_list, "placements": list(placements)})
        shown |= {} if tie_seed is None else {"tie_seed": tie_seed}
        row = {**shown, **machine_columns(machine.config), **energy_columns(machine.config, found), **found}
        row = {name: round(value, 10) if isinstance(value, float) else value for name, value in row.items()}
        return row | ({"why": [reason for part in best for reason in part["why"]]} if why else {})

    def _plans(self, base: Machine, given: Row) -> dict[str, Plan]:
        """Points of each table: the grid, one factor at a time, and other orders of ties."""
        assert isinstance(_FACTORS, Mapping)
        chosen = {name: _FACTORS[name] for name in given["factors"] or _FACTORS}
        fixed = {"layer_list": given["layer_list"], "placements": list(given["placements"])}
        grid = axes(given["meshes"], given["ucie_gbs"], given["hbm_scale"])
        plans = {
            "grid": make_plan(base, self.simulate, grid, parameters=fixed),
            "factors": sensitivity_plan(base, self.simulate, chosen, fixed, given["change"]),
        }
        if given["ties"]:
            orders = {"tie_seed": list(range(1, given["ties"] + 1))}
            plans["ties"] = make_plan(base, self.simulate, orders, parameters=fixed)
        return plans


def axes(
    meshes: Sequence[Sequence[int]], ucie_gbs: Sequence[float], hbm_scale: Sequence[float]
) -> dict[str, dict[str, Mapping[str, Any]]]:
    return {
        _MESH: {f"{w}x{h}": {"sip.cube_mesh": {"w": w, "h": h}} for w, h in meshes},
        _UCIE: {f"{bw:g}": {"cube.ucie.bw_gbs": bw} for bw in ucie_gbs},
        _HBM_AXIS: {f"{scale * CHANNELS * CHANNEL_GBS:g}": _hbm(scale) for scale in hbm_scale},
    }


def _hbm(scale: float) -> dict[str, float]:
    wide = CHANNELS * CHANNEL_GBS * max(1.0, scale)
    return {"cube.hbm.channel_bw_gbs": CHANNEL_GBS * scale, "cube.hbm.bw_gbs": wide, "cube.pe.pe_dma.bw_gbs": wide}


def _plain(row: Mapping[str, Any]) -> Row:
    return {name: json.dumps(value) if isinstance(value, (dict, list)) else value for name, value in row.items()}


def _simulated(machine: Machine, name: str, product: StoredProduct, tie_seed: int | None, why: bool) -> Row:
    """Time from the first launch leaving the host to the last completion, and counts."""
    result, traffic = run(machine, product, log="tile" if why else "off", tie_seed=tie_seed)
    row = {LATENCY: simulated_ns(result), **counters(machine.config, traffic, result.records.busy_by_component())}
    return row | ({"why": _why(name, result)} if why else {})


def _why(part: str, result: Result) -> list[Row]:
    reasons = list(result.why(result.launches[-1]))[:_REASONS]
    names = ("what", "resource", "kind", "ns", "share")
    return [{"part": part, **{name: getattr(reason, name) for name in names}} for reason in reasons]
