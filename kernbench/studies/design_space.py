"""What parts of a machine buy: a layer of Llama-3 70B in decode, and the products of GPT-2, on grids of machines.

A decode step of one user is divided over all SIPs by heads (tensor parallelism): each SIP has the whole context of its
kv heads and its columns of the weights. Two all-reduces of the hidden state join them. GPT-2 is spread over one SIP.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import kernbench.studies.design_space_report as report
from kernbench._registry import hint
from kernbench.analysis._records import LinkTable
from kernbench.analysis.result import Result
from kernbench.errors import ArgumentError
from kernbench.points._cache import default_cache
from kernbench.points._keys import Row, key_of, study_version
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.bench_runner import run_program
from kernbench.runtime_api.context import RuntimeContext
from kernbench.studies.attention import FFN, GROUP, HEAD_DIM, HIDDEN, KV_HEADS, Setting, run_setting
from kernbench.studies.layers import StoredProduct, select_layers, simulated_ns
from kernbench.studies.layers import run as run_layer
from kernbench.studies.study import Parameter, Study, sips_of
from kernbench.sweeps._energy_area import counters, energy_columns, machine_columns
from kernbench.sweeps._plan import Plan, make_plan
from kernbench.sweeps.sensitivity import Factors, sensitivity_plan
from kernbench.topology.builder import Machine

_MESH, _UCIE, _HBM_AXIS, _SIPS = report.AXES
LATENCY = "latency_ns"
_REASONS = 3  # of each part, longest first
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
    "SIP link bandwidth": ("system.sip_link.bw_gbs",),
    "SIP link latency": ("system.sip_link.latency_ns",),
    "cubes, two in a row": {"down": {"sip.cube_mesh.w": 2}},  # a context is divided evenly over powers of two
    "SIP topology": {"up": {"system.sips.topology": "fully_connected"}},
}


class DesignSpaceStudy(Study):
    """Grids of machines, and one factor at a time, for a decode step of Llama-3 70B and the products of GPT-2."""

    name, title = "design_space", "Design space: what parts of the machine buy"
    parameters: ClassVar = {
        "context": Parameter(256, "tokens whose keys and values are kept", "tokens"),
        "hidden": Parameter(512, "elements of the hidden state"),
        "ffn": Parameter(1024, "elements of the feed-forward network"),
        "gpt2": Parameter("gpt2 QKTV", "layer list, and words that the names of its layers contain"),
        "placements": Parameter(["2-D"], "placements of a product, of which the fastest counts"),
        "meshes": Parameter([[1, 1], [2, 1]], "w and h of the cubes of a SIP"),
        "ucie_gbs": Parameter([64, 128], "bandwidth of a UCIe connection", "GB/s"),
        "hbm_scale": Parameter([1, 2], "bandwidth of HBM for decode, as a factor of 256 GB/s for each PE"),
        "gpt2_hbm_scale": Parameter([1, 2], "the same for GPT-2"),
        "topologies": Parameter(["ring_1d", "fully_connected"], "topologies of the SIPs, for decode"),
        "factors": Parameter(["UCIe bandwidth", "router latency"], "factors changed one at a time; none named: all"),
        "change": Parameter(0.2, "share by which each is changed"),
        "ties": Parameter(2, "other orders of simultaneous arrivals"),
    }
    method, columns, charts = report.METHOD, report.COLUMNS, report.CHARTS
    tables, findings = staticmethod(report.tables), staticmethod(report.findings)

    def points(self, machine: Machine, **parameters: Any) -> list[Row]:
        found = []
        for table, plan in _plans(machine, parameters).items():
            workload, _, kind = table.partition(" ")
            for point in plan.points:
                asked = {"workload": workload, **point.parameters}
                mesh = point.overrides.get("sip.cube_mesh")
                if kind == "grid" and mesh and point.machine.hash == machine.with_({"sip.cube_mesh": mesh}).hash:
                    asked["why"] = True
                shown = {"table": table, **point.shown, **_plain(point.overrides)}
                found.append({"machine": point.overrides, "labels": shown, **asked})
        return found

    def check(self, machine: Machine, **parameters: Any) -> list[str]:
        names = parameters["factors"]
        if unknown := [name for name in names if name not in _FACTORS]:
            return [f"factors: {name} is unknown; {hint(name, _FACTORS)}" for name in unknown]
        faults = []
        for table, plan in _plans(machine, parameters).items():
            faults += plan.reasons()
            if table.startswith("decode"):
                faults += [fault for point in plan.points if (fault := _uneven(point.machine, parameters["context"]))]
        return list(dict.fromkeys(faults))

    def work(self, machine: Machine, *, workload: str, **_: Any) -> float:
        return machine.config.pes_per_sip * (1 if workload == "decode" else 16)

    def simulate(self, machine: Machine, *, workload: str = "decode", **parameters: Any) -> Row:
        found = _WORKLOADS[workload](machine, **parameters)
        shown = _plain({name: value for name, value in parameters.items() if name != "why"})
        row = {**shown, **machine_columns(machine.config), **energy_columns(machine.config, found), **found}
        return {name: round(value, 10) if isinstance(value, float) else value for name, value in row.items()}


def _plans(base: Machine, given: Row) -> dict[str, Plan]:
    """Points of each table: for each workload its grid, one factor at a time, and other orders of ties."""
    assert isinstance(_FACTORS, Mapping)
    chosen = {name: _FACTORS[name] for name in given["factors"] or _FACTORS}
    size = {name: given[name] for name in ("context", "hidden", "ffn")}
    layers = {"layer_list": given["gpt2"], "placements": list(given["placements"])}
    plans = {}
    for name, parameters, scales, topologies in (
        ("decode", size, given["hbm_scale"], given["topologies"]),
        ("gpt2", layers, given["gpt2_hbm_scale"], ()),
    ):
        study = _WORKLOADS[name]
        grid = axes(given["meshes"], given["ucie_gbs"], scales, topologies, base.config.n_sips)
        plans[f"{name} grid"] = make_plan(base, study, grid, parameters=parameters)
        plans[f"{name} factors"] = sensitivity_plan(base, study, chosen, parameters, given["change"])
        if given["ties"]:
            orders = {"tie_seed": list(range(1, given["ties"] + 1))}
            plans[f"{name} ties"] = make_plan(base, study, orders, parameters=parameters)
    return plans


def axes(
    meshes: Sequence[Sequence[int]],
    ucie_gbs: Sequence[float],
    hbm_scale: Sequence[float],
    topologies: Sequence[str],
    sips: int,
) -> dict[str, dict[str, Mapping[str, Any]]]:
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    if topologies:  # first, so that machines that differ in other parts of a row run at the same time
        found[_SIPS] = {name: {"system.sips.topology": name} | _grid(name, sips) for name in topologies}
    return found | {
        _MESH: {f"{w}x{h}": {"sip.cube_mesh": {"w": w, "h": h}} for w, h in meshes},
        _UCIE: {f"{bw:g}": {"cube.ucie.bw_gbs": bw} for bw in ucie_gbs},
        _HBM_AXIS: {f"{scale * CHANNELS * CHANNEL_GBS:g}": _hbm(scale) for scale in hbm_scale},
    }


def _grid(topology: str, sips: int) -> dict[str, int]:
    """Sides of a topology of two or three dimensions, as near to each other as possible."""
    sides = {key: value for key, value in sips_of(topology, sips).items() if key in "whd" and value}
    return {f"system.sips.{key}": value for key, value in sides.items()}


def _hbm(scale: float) -> dict[str, float]:
    wide = CHANNELS * CHANNEL_GBS * max(1.0, scale)
    return {"cube.hbm.channel_bw_gbs": CHANNEL_GBS * scale, "cube.hbm.bw_gbs": wide, "cube.pe.pe_dma.bw_gbs": wide}


def _plain(row: Mapping[str, Any]) -> Row:
    return {name: json.dumps(value) if isinstance(value, (dict, list)) else value for name, value in row.items()}


def llama3_70b_decode(
    machine: Machine,
    *,
    context: int = 32768,
    hidden: int = HIDDEN,
    ffn: int = FFN,
    tie_seed: int | None = None,
    why: bool = False,
) -> Row:
    """One token through a layer of Llama-3 70B: attention, four products, two all-reduces.

    The SIPs divide the 8 kv heads. The keys and values of `context` tokens are spread over the PEs of a SIP; an
    ArgumentError says what cannot be divided evenly. `tie_seed` permutes the order of simultaneous arrivals. With
    `why`, the row has a column `why`: for each part the longest resources of its critical path.
    """
    if fault := _uneven(machine, context):
        raise ArgumentError(fault)
    tp, one = machine.config.n_sips, _single(machine)
    products = {
        "qkv": (1, (hidden + 2 * KV_HEADS * HEAD_DIM) // tp, hidden), "o": (1, hidden, hidden // tp),
        "gate and up": (1, 2 * ffn // tp, hidden), "down": (1, hidden, ffn // tp),
    }  # fmt: skip
    run = partial(_part, tie_seed=tie_seed, why=why)
    found = [run(one, "attention", {"context": context, "tp": tp}, _attention)]
    found += [run(one, name, {"shape": shape, "placement": "columns"}, _product) for name, shape in products.items()]
    joined = _all_reduce(machine, hidden, run)
    times = {
        "attention_ns": found[0][LATENCY],
        "products_ns": sum(part[LATENCY] for part in found[1:]),
        "allreduce_ns": 2 * joined[LATENCY],
    }
    row = {LATENCY: sum(times.values()), **times, **_summed([*found] * tp + [joined] * 2)}
    return row | _reasons([*found, joined])


def gpt2_layers(
    machine: Machine,
    *,
    layer_list: str = "gpt2",
    placements: Sequence[str] = ("2-D",),
    tie_seed: int | None = None,
    why: bool = False,
) -> Row:
    """Products of GPT-2, one after the other over SIP 0, each in the fastest of `placements`.

    `layer_list` is as for `layers.layers`: "gpt2 QKT" is one of them. `tie_seed`, `why`: as for `llama3_70b_decode`.
    """
    one, best = _single(machine), []
    for layer in select_layers([layer_list]):
        tried = [
            _part(one, layer.name, {"shape": (layer.m, layer.n, layer.k), "placement": p}, _product, tie_seed, why)
            for p in placements
        ]
        best.append(min(tried, key=lambda part: float(part[LATENCY])))
    return {LATENCY: sum(part[LATENCY] for part in best), **_summed(best)} | _reasons(best)


_WORKLOADS: dict[str, Callable[..., Row]] = {"decode": llama3_70b_decode, "gpt2": gpt2_layers}


def _uneven(machine: Machine, context: int) -> str:
    """Reason why a decode step cannot be divided over a machine, or empty."""
    tp, pes = machine.config.n_sips, machine.config.pes_per_sip
    if KV_HEADS % tp or context % pes:
        return f"{KV_HEADS} kv heads over {tp} SIPs, context = {context} tokens over {pes} PEs: expected divisors"
    return ""


def _single(machine: Machine) -> Machine:
    """One SIP, without what it does not use: machines that differ only there share cached parts."""
    return machine.with_(
        {"system.sips": {"count": 1, "topology": "ring_1d"}, "system.sip_link": {"bw_gbs": 1, "latency_ns": 0}}
    )


Ran = tuple[Result, LinkTable]


def _part(
    machine: Machine, name: str, what: Mapping[str, Any], run: Callable[..., Ran], tie_seed: int | None, why: bool
) -> Row:
    """One part of a row, cached: machines that differ elsewhere share it."""
    log = "tile" if why else "off"

    def row() -> Row:
        result, traffic = run(machine, **what, log=log, tie_seed=tie_seed)
        return {"part": name, **_row(machine, result, traffic), **({"why": _why(name, result)} if why else {})}

    cache, study, version = default_cache(), f"{__name__}:{name}", study_version(_part)
    if cache is None:
        return row()
    key = key_of(study, version, machine.hash, {**what, "tie_seed": tie_seed, "log": log})
    return cache.rows_of(row, key, study=study, machine=machine.hash, version=version)


def _attention(machine: Machine, *, context: int, tp: int, log: str, tie_seed: int | None) -> Ran:
    config = machine.config
    ranks = config.pes_per_sip
    setting = Setting(
        "decode", ranks, cubes=config.cubes_per_sip, pes=config.pes_per_cube, items=KV_HEADS // tp, group=GROUP,
        head_dim=HEAD_DIM, tokens=context // ranks,
    )  # fmt: skip
    return _run(machine, lambda torch: run_setting(torch, setting), log, tie_seed)


def _run(machine: Machine, program: Callable[[RuntimeContext], None], log: str, tie_seed: int | None) -> Ran:
    result = run_program(machine, program, log=log, tie_seed=tie_seed)
    return result, result.records.links


def _product(machine: Machine, *, shape: tuple[int, int, int], placement: str, log: str, tie_seed: int | None) -> Ran:
    return run_layer(machine, StoredProduct(*shape, placement), log=log, tie_seed=tie_seed)


def _all_reduce(machine: Machine, hidden: int, run: Callable[..., Row]) -> Row:
    """Sum of the hidden state over all SIPs, in one PE of each, by the fastest of several algorithms."""
    if machine.config.n_sips == 1:
        return {"part": "all-reduce", LATENCY: 0.0}
    bare = machine.with_({"sip.cube_mesh": {"w": 1, "h": 1}})
    tried = [
        run(bare, "all-reduce", {"hidden": hidden, "algorithm": name}, _all_reduce_by)
        for name in ("recursive_doubling_allreduce", "ring_allreduce_tcm")
    ]
    return min(tried, key=lambda part: float(part[LATENCY]))


def _all_reduce_by(machine: Machine, *, hidden: int, algorithm: str, log: str, tie_seed: int | None) -> Ran:
    def program(torch: RuntimeContext) -> None:
        where: Row = {"dtype": "f16", "dp": DPPolicy(num_cubes=1, num_pes=1)}
        sips = range(machine.config.n_sips)
        torch.collective([torch.empty(1, hidden, device=f"ahbm:{sip}", **where) for sip in sips], algorithm)
        torch.ahbm.synchronize()

    return _run(machine, program, log, tie_seed)


def _row(machine: Machine, result: Result, traffic: LinkTable) -> Row:
    """Time from the first launch leaving the host to the last completion, and counts."""
    counts = counters(machine.config, traffic, result.records.busy_by_component())
    return {LATENCY: simulated_ns(result), **counts}


def _why(part: str, result: Result) -> list[Row]:
    reasons = list(result.why(result.launches[-1]))[:_REASONS]
    names = ("what", "resource", "kind", "ns", "share")
    return [{"part": part, **{name: getattr(reason, name) for name in names}} for reason in reasons]


def _summed(parts: Sequence[Row]) -> Row:
    names = dict.fromkeys(name for part in parts for name in part if name not in ("part", "why", LATENCY))
    return {name: sum(part.get(name, 0) for part in parts) for name in names}


def _reasons(parts: Sequence[Row]) -> Row:
    found = [reason for part in parts for reason in part.get("why", ())]
    return {"why": found} if found else {}
