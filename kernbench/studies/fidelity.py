"""The model compared with the outside world: other simulators, measurements, and the defaults that have no source.

A reference is a number that another tool or a device produced, with its inputs. The same inputs run here, once on the
machine as it is and once with each mechanism that the reference contains and the machine leaves out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from html import escape
from itertools import permutations
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import kernbench.studies.fidelity_report as report
from kernbench._dtypes import as_dtype
from kernbench._registry import hint
from kernbench._units import KIB, MIB
from kernbench.analysis._roofline import matrix_engine
from kernbench.analysis.compare import machine_changes
from kernbench.ccl.install import load_ccl_config, names
from kernbench.config import MachineConfig, load_yaml, preset_path
from kernbench.config._dram import dram, dram_names
from kernbench.errors import ConfigError, quote
from kernbench.kernels.gemm import STAGINGS
from kernbench.points._keys import Row, machine_of
from kernbench.runtime_api.bench_runner import run_program
from kernbench.studies._fidelity_collectives import CALLS, MOST_BYTES, timed_collective
from kernbench.studies._fidelity_device import device_attention, device_product, refuse_attention
from kernbench.studies._fidelity_hbm import FULL, measure, stream
from kernbench.studies._page import cell
from kernbench.studies._references import TOOLS, Reference, read_references
from kernbench.studies.ccl import CclStudy
from kernbench.studies.fidelity_report import REFERENCES, SENSITIVITY, TOGETHER
from kernbench.studies.gemm import product
from kernbench.studies.gqa import GqaStudy
from kernbench.studies.load_curve import PATTERNS, latency_cycles, saturation
from kernbench.studies.study import LABELS, MACHINE, Parameter, Study, scaled, size_name
from kernbench.topology.builder import Machine, resolve_topology

if TYPE_CHECKING:
    import pandas as pd


_Values = Mapping[str, Any]
MOST_DEVICE_BYTES = 64 * MIB  # the same on a device that is held against its measurements
_TYPES = ("f16", "bf16", "f32")


@dataclass(frozen=True)
class Mechanism:
    """An effect that a reference contains and a machine may leave out: overrides that enable it, and their source."""

    name: str
    changes: Callable[[MachineConfig, _Values], _Values]


@dataclass(frozen=True)
class _Workload:
    """A kind of reference, and our counterpart.

    `run` returns our value on a machine, `machine` the overrides for the parameters, `refuse` why a case cannot run (or
    empty), `host_s` its approximate host time. The parameters determine which of `units` the value has. `mechanisms`
    may explain a difference.
    """

    units: tuple[str, ...]
    required: tuple[str, ...]
    optional: tuple[str, ...]
    run: Callable[..., float]
    machine: Callable[[_Values], _Values] = field(default=lambda parameters: {})
    mechanisms: tuple[Mechanism, ...] = ()
    refuse: Callable[..., str] = field(default=lambda config, **parameters: "")
    host_s: Callable[..., float] = field(default=lambda config, **parameters: 0.01)


# -- collectives


def _refuse_collective(
    config: MachineConfig, *, bytes: int, ranks: int, dtype: str = "f32", cubes: int = 0, pes: int = 1,
    most_bytes: int = MOST_BYTES, **_: Any,
) -> str:  # fmt: skip
    if ranks != config.n_sips:
        return f"it has {ranks} ranks, the machine has {config.n_sips} SIPs; change system.sips.count"
    if dtype not in _TYPES:
        return f"dtype {dtype}: only {', '.join(_TYPES)} are reduced here"
    if cubes > config.cubes_per_sip or pes > config.pes_per_cube:
        most = f"a SIP of the machine has {config.cubes_per_sip} cubes of {config.pes_per_cube} PEs"
        return f"it runs on {cubes} cubes and {pes} PEs of each; {most}"
    if bytes > most_bytes:
        return f"{bytes:,} B are more than most_bytes = {most_bytes:,}"
    return ""


def _start(_: MachineConfig, given: _Values) -> _Values:
    """Launch costs of the preset gpu_launch; a host thread prepares those of its devices in turn."""
    host = load_yaml(preset_path("gpu_launch"))["system"]["host"]
    devices = given.get("devices_per_thread", 1)
    return {f"system.host.{name}": ns * (devices if name in _BY_THREAD else 1) for name, ns in host.items()}


_BY_THREAD = ("launch_ns", "collective_ns")
_START = Mechanism("start of work (preset gpu_launch)", _start)
_LINKS = Mechanism(
    "protocol of the links between SIPs",  # NCCL reaches 370 of 450 GB/s: nccl-tests issue 212
    lambda config, _: {"system.sip_link.bw_gbs": config.system.sip_link.bw_gbs * 370 / 450},
)
_NEUTRAL = {"cube.hbm.access_ns": 0.0, "cube.hbm.turnaround_ns": 0.0, "cube.hbm.efficiency": 1.0}
_DETAIL = Mechanism(
    "commands of HBM3 and routers with credits",
    lambda _, __: {
        "cube.hbm.timing": "hbm3", **_NEUTRAL,
        "cube.noc.router.flow": "credits", "system.sip_link.router.flow": "credits",
    },
)  # fmt: skip
_COLLECTIVES = {
    name: _Workload(
        ("ns",), ("bytes", "ranks"),
        ("dtype", "algorithm", "cubes", "pes", "devices_per_thread", "calls", "call_us"),
        partial(timed_collective, name),
        machine=lambda given: {"system.host.collective_ns": 1e3 * given["call_us"]} if "call_us" in given else {},
        mechanisms=(_START, _LINKS, _DETAIL), refuse=_refuse_collective,
        host_s=lambda config, **given: (
            (1 + 10 * given["bytes"] / MIB) * (5 if config.cube.noc.router.flow == "credits" else 1)
        ),
    )
    for name in CALLS
}  # fmt: skip


# -- products


def _gemm(
    machine: Machine, *, m: int, k: int, n: int, dtype: str = "f16", staging: str = "ref_ref", l2: str = "warm"
) -> float:
    """Time on one PE, from launch to completion [ns]; where PEs share memory, on all of them, the launch included."""
    if machine.config.memory_apart:
        return device_product(machine, m, k, n, dtype, l2)
    program = partial(product, m=m, k=k, n=n, staging=staging, dtype=dtype)
    launch = run_program(machine, program, log="operation", data=False).launches[-1]
    return (launch.end_ps - launch.start_ps) / 1000


def _refuse_gemm(config: MachineConfig, *, staging: str = "", **_: Any) -> str:
    if staging and config.memory_apart:
        return f"staging = {staging}: with cube.hbm.controllers the whole device computes, in blocks; leave it out"
    return ""


def _tile(machine: Machine, *, m: int, k: int, n: int, dtype: str = "f16", **_: Any) -> float:
    """Time in the matrix engine alone [cycles]."""
    gemm = machine.config.cube.pe.pe_gemm
    return matrix_engine(gemm).tile_ps(m, k, n, as_dtype(dtype)) * gemm.clock_ghz / 1000


def _one_tile(given: _Values) -> _Values:
    """Make the product a single tile, in a TCM with room for it: the engine alone never waits."""
    m, k, n = (given[name] for name in ("m", "k", "n"))
    room = 16 * (m * k + k * n) // MIB + 1
    return {
        f"{_ENGINE}.macs_per_cycle.f16": given["rows"] * given["cols"],
        f"{_ENGINE}.tile": {"m": m, "k": k, "n": n},
        f"{_ENGINE}.other_tiles": [],
        "cube.pe.pe_tcm.tile_buffer_mb": room,
        "cube.pe.pe_tcm.buffers_per_operand": 2,
        "cube.pe.pe_tcm.size_mb": room + 64,
    }


_ENGINE = "cube.pe.pe_gemm"
_SYSTOLIC = Mechanism(
    "fill and drain of a systolic array",
    lambda _, given: {
        f"{_ENGINE}.model": "systolic",
        f"{_ENGINE}.systolic": {name: given[name] for name in ("rows", "cols", "dataflow")},
    },
)
# -- memory


def _hbm(machine: Machine, **given: Any) -> float:
    """Throughput [GB/s] or mean latency of reads [ns] of a stream of accesses to one channel."""
    if machine.config.cube.hbm.timing != "simple":
        return measure(machine, **given)
    hbm, itemsize = machine.config.cube.hbm, dram(given["timing"]).access_bytes
    bw = float(given["channel_bw_gbs"])
    requests, load = int(given["requests"]), str(given.get("load", FULL))
    asked = stream(
        given["pattern"], requests, itemsize, stride=int(given.get("stride", 0)), reads=float(given.get("reads", 1)),
        load=load, seed=int(given.get("seed", 1)),
    )  # fmt: skip
    end_ns, before, waits = 0.0, None, []
    for access in asked:  # M4.5: in order, each for its bytes over the rate of the channel
        arrival_ns = access.clock * itemsize / bw / 2
        turn_ns = hbm.turnaround_ns if before not in (None, access.write) else 0.0
        end_ns = max(end_ns, arrival_ns) + turn_ns + itemsize / (bw * hbm.efficiency)
        before = access.write
        if not access.write:
            waits.append(end_ns + hbm.access_ns - arrival_ns)
    return requests * itemsize / end_ns if given["metric"] == "throughput" else sum(waits) / len(waits)


_DRAM = Mechanism(
    "banks, rows and refresh (cube.hbm.timing)",
    lambda _, given: {"cube.hbm.timing": given["timing"], **_NEUTRAL},
)
# -- networks


def _noc(
    machine: Machine, *, topology: str, traffic: str, load: float, packet: int = 1, packets: str = "all", **_: Any
) -> float:
    """Mean latency of packets at a load [cycles]."""
    return latency_cycles(
        machine, pattern=traffic, load=load, packet=packet, network=_NETWORKS[topology], others=packets == "others"
    )


def _saturation(machine: Machine, *, topology: str, traffic: str, packet: int = 1, **_: Any) -> float:
    """Load at which the mean latency is three times the zero-load latency [flits per cycle and terminal]."""
    return saturation(machine, pattern=traffic, packet=packet, network=_NETWORKS[topology])


def _network_host_s(
    config: MachineConfig, *, topology: str, traffic: str, k: int, load: float = 0, packet: int = 1, **_: Any
) -> float:
    """Host time of a load; without one, of the bisection for the saturation: eight loads."""
    router = config.cube.noc.router if topology == "mesh" else config.system.sip_link.router
    each_s = 9e-6 + 3e-6 * packet if router.flow == "credits" else 10e-6
    if load:
        return max(12_000 * k * k * load / packet, 50_000) * each_s
    cycles = 10_000 if packet == 1 else 30_000
    return 8 * cycles * k * k * _ABOUT_SATURATED[traffic] / packet * each_s


_ABOUT_SATURATED = {"uniform": 0.45, "transpose": 0.18, "tornado": 0.22, "hotspot": 0.11}
_NETWORKS = {"mesh": "cube", "torus": "sips"}


def _network(given: _Values) -> _Values:
    """Square network of terminals: the routers of a cube with a PE each, or a torus of SIPs."""
    k = given["k"]
    one: dict[str, Any] = {"sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1}
    if given["topology"] == "mesh":
        places = [[row, column] for row in range(k) for column in range(k)]
        mesh = {"rows": k, "cols": k, "removed": []}
        one |= {"system.sips.count": 1, "cube.pe_layout.pe_routers": places}
        return one | {f"cube.noc.{name}": value for name, value in mesh.items()}
    one |= {"system.sips.count": k * k, "system.sips.topology": "torus_2d"}
    return one | {"system.sip_link.bw_gbs": 256, "system.sip_link.latency_ns": 1}


def _refuse_network(_: MachineConfig, *, traffic: str, n: int = 2, packets: str = "all", **__: Any) -> str:
    if packets != "all" and (packets, traffic) != ("others", "hotspot"):
        return f"packets = {packets}: of traffic hotspot, packets that do not go to the hot spot (others) are compared"
    return "" if n == 2 else f"n = {n}: networks of two dimensions are compared"


def _credits(_: MachineConfig, given: _Values) -> _Values:
    router = {"mesh": "cube.noc.router", "torus": "system.sip_link.router"}[given["topology"]]
    sizes = {f"{router}.{name}": given[name] for name in ("vcs", "vc_flits") if name in given}
    return {f"{router}.flow": "credits", **sizes}


_CREDITS = Mechanism("virtual channels and credits (flow: credits)", _credits)
_TIES = Mechanism(
    "equally long ways at random (ties: random)",
    lambda config, given: {"system.sip_link.router.ties": "random"} if given["topology"] == "torus" else {},
)

WORKLOADS: dict[str, _Workload] = {
    **_COLLECTIVES,
    "noc": _Workload(
        ("cycles",), ("topology", "k", "traffic", "load"), ("n", "packet", "packets", "vcs", "vc_flits"), _noc,
        machine=_network, mechanisms=(_CREDITS, _TIES), refuse=_refuse_network, host_s=_network_host_s,
    ),
    "saturation": _Workload(
        ("flits/node/cycle",), ("topology", "k", "traffic"), ("n", "packet", "vcs", "vc_flits"), _saturation,
        machine=_network, mechanisms=(_CREDITS, _TIES), refuse=_refuse_network, host_s=_network_host_s,
    ),
    "hbm": _Workload(
        ("GB/s", "ns"), ("timing", "pattern", "requests", "metric", "channel_bw_gbs"),
        ("load", "stride", "reads", "seed", "mapping", "refresh"), _hbm, mechanisms=(_DRAM,),
        host_s=lambda config, *, requests, **_: requests * (2e-6 if config.cube.hbm.timing == "simple" else 13e-6),
    ),
    "gemm": _Workload(
        ("ns",), ("m", "k", "n"), ("dtype", "staging", "l2"), _gemm, refuse=_refuse_gemm,
        host_s=lambda config, *, m, k, n, **_: (
            0.2 + 4e-10 * m * k * n if config.memory_apart else 0.05 + 4e-9 * m * k * n
        ),
    ),
    "attention": _Workload(
        ("ns",), ("q_len", "kv_len", "heads", "kv_heads", "head_dim"), ("batch", "dtype", "l2"), device_attention,
        refuse=refuse_attention,
        host_s=lambda config, *, q_len, kv_len, heads, batch=1, **_: 0.5 + 1e-7 * batch * heads * q_len * kv_len,
    ),
    "tile": _Workload(
        ("cycles",), ("m", "k", "n", "rows", "cols", "dataflow"), ("dtype",), _tile,
        machine=_one_tile,
        mechanisms=(_SYSTOLIC,),
    ),
}  # fmt: skip


# -- sensitivity


def _all_reduce(machine: Machine) -> float:
    return float(CclStudy().simulate(machine, algorithm="torus_allreduce", nbytes=96 * KIB)["latency_ns"])


def _decode(machine: Machine) -> float:
    return float(GqaStudy().simulate(machine, phase="decode", context=2048, cubes=4)["makespan_ns"])


_SIX = {f"system.sips.{key}": value for key, value in {"count": 6, "topology": "torus_2d", "w": 3, "h": 2}.items()}
# Name of a figure of the reports: what it changes in the machine, and how to compute it [ns].
FIGURES: dict[str, tuple[_Values, Callable[[Machine], float]]] = {
    "GEMM 256^3, ref_ref": ({}, partial(_gemm, m=256, k=256, n=256)),
    "GEMM 256^3, load_ref": ({}, partial(_gemm, m=256, k=256, n=256, staging="load_ref")),
    "GEMM 512^3, ref_ref": ({}, partial(_gemm, m=512, k=512, n=512)),
    "GEMM 512^3, load_ref": ({}, partial(_gemm, m=512, k=512, n=512, staging="load_ref")),
    "all-reduce 96 KiB": (_SIX, _all_reduce),
    "decode step": ({}, _decode),
}
SCALES = (0.5, 2.0)
# Defaults with a public source, which the ranking shows for comparison.
SOURCED = {
    "cube.hbm.channels": "HBM4 (JESD270-4)",
    "cube.hbm.channel_bw_gbs": "HBM4 (JESD270-4)",
    "cube.ucie.bw_gbs": "UCIe 1.0",
}
# Fields that are scaled together; the first one names the factor. Links of a slice are at least as wide as the slice.
_TOGETHER = {
    "cube.hbm.channel_bw_gbs": ("cube.hbm.bw_gbs", "cube.pe.pe_dma.bw_gbs"),
    "cube.hbm.channels": ("cube.hbm.bw_gbs", "cube.pe.pe_dma.bw_gbs"),
    "cube.pe.pe_tcm.read_bw_gbs": ("cube.pe.pe_tcm.write_bw_gbs",),
    "cube.pe.pe_math.lanes_16bit": ("cube.pe.pe_math.lanes_32bit",),
    "cube.pe.pe_dma.outstanding_reads": ("cube.pe.pe_dma.outstanding_writes",),
}
# Defaults that times are made of.
_FACTORS = (
    "system.flit_bytes", "system.sip_link.bw_gbs", "system.sip_link.latency_ns", "system.switch.overhead_ns",
    "system.pcie.latency_ns", "sip.io.pcie_ep.overhead_ns", "sip.io.io_cpu.service_ns", "sip.io.noc.port_bw_gbs",
    "cube.propagation_ns_per_mm", "cube.noc.pitch_mm", "cube.noc.link_bw_gbs", "cube.noc.router.overhead_ns",
    "cube.ucie.bw_gbs", "cube.ucie.router_bw_gbs", "cube.ucie.port_ns", "cube.m_cpu.service_ns", "cube.m_cpu.bw_gbs",
    "cube.hbm.channels", "cube.hbm.channel_bw_gbs", "cube.hbm.burst_bytes", "cube.sram.bw_gbs",
    "cube.pe.pe_cpu.command_ns", "cube.pe.pe_cpu.bw_gbs", "cube.pe.pe_scheduler.tile_ns",
    "cube.pe.pe_dma.outstanding_reads", "cube.pe.pe_gemm.clock_ghz", "cube.pe.pe_gemm.macs_per_cycle.f16",
    "cube.pe.pe_math.clock_ghz", "cube.pe.pe_math.lanes_16bit", "cube.pe.pe_math.slow_op_cycles",
    "cube.pe.pe_tcm.read_bw_gbs", "cube.pe.pe_tcm.buffers_per_operand", "cube.pe.pe_tcm.stage_buffers",
    "cube.pe.pe_ipcq.n_slots", "cube.pe.pe_ipcq.slot_bytes", "cube.pe.pe_ipcq.credit_bytes",
)  # fmt: skip
# Defaults that switch an effect off, which no factor switches on: the value that is tried instead.
ZEROS: dict[str, float] = {
    "cube.hbm.access_ns": 40, "cube.hbm.turnaround_ns": 15, "cube.hbm.efficiency": 0.8, "cube.pe.pe_mmu.lookup_ns": 2,
    "sip.io.noc.overhead_ns": 2, "system.host_link.latency_ns": 100, "system.command_bytes": 16,
    "cube.noc.header_bytes": 16, "system.sip_link.header_bytes": 16, "system.pcie.efficiency": 0.9,
    "cube.ucie.efficiency": 0.92,
}  # fmt: skip


# Parts of the preset detailed that are tried alone, by the keys that they change; headers are the rest of it.
_SWITCHES = {
    "HBM3": ("cube.hbm.", "cube.pe.pe_dma."),
    "credits": ("cube.noc.router.", "system.sip_link.router."),
    "systolic array": ("cube.pe.pe_gemm.",),
}


def _detailed() -> dict[str, dict[str, Any]]:
    """Return changes of a machine by name: none, those of the preset detailed, and its parts."""
    plain, detailed = (resolve_topology(f"preset:{name}").spec for name in ("default", "detailed"))
    changes = {change.field: change.after for change in machine_changes(plain, detailed)}
    parts: dict[str, dict[str, Any]] = {report.IDEAL: {}, report.DETAILED: changes}
    rest = dict(changes)
    for name, prefixes in _SWITCHES.items():
        parts[name] = {path: rest.pop(path) for path in changes if path.startswith(prefixes)}
    return {**parts, "headers": rest}


class FidelityStudy(Study):
    """Results of other simulators and of devices compared with ours, and the defaults that have no source."""

    name, title = "fidelity", "The model and the outside world"
    method, columns, charts = report.METHOD, report.COLUMNS, report.CHARTS
    tables, findings = staticmethod(report.tables), staticmethod(report.findings)
    parameters: ClassVar = {
        "files": Parameter([], f"results of other tools: {TOOLS}"),
        "pairs": Parameter([], "figures that are repeated with the models of the preset detailed", known=FIGURES),
        "figures": Parameter([], "figures whose sensitivity to defaults is ranked", known=FIGURES),
        "factors": Parameter([], "fields of the machine file that are changed for it; none named: all"),
        "most_bytes": Parameter(MOST_BYTES, "largest collective that is simulated", "B"),
        "measured": Parameter(
            [], f"MACHINE=FILE of a device, or a folder of files: measurements that were not used for it: {TOOLS}"
        ),
    }

    def check(
        self, machine: Machine, *, files: Sequence[str], factors: Sequence[str], measured: Sequence[str] = (), **_: Any
    ) -> list[str]:
        faults = [
            f"factors: {name} is unknown; {hint(name, (*_FACTORS, *ZEROS))}"
            for name in factors
            if name not in (*_FACTORS, *ZEROS)
        ]
        every: list[str | Path] = [*files]
        for text in measured:
            name = text.partition("=")[2]
            if "=" not in text:
                faults.append(f"measured: {text} names no machine; write MACHINE=FILE, as in preset:a100_sxm=gemm.csv")
                continue
            paths = _measurements(name)
            every += paths
            if not paths:
                faults.append(f"measured: {name} holds no CSV file; give the folder of the measurements, or a file")
        try:
            references = read_references(every) if every else []
        except ConfigError as error:
            return faults + error.faults
        return faults + [fault for reference in references for fault in _wrong(reference)]

    def points(self, machine: Machine, **given: Any) -> list[Row]:
        compared = (points for _, points in self._compared(machine, **given) if not isinstance(points, str))
        found = [point for points in compared for point in points]
        found += [point for _, point in _measured(machine, **given) if not isinstance(point, str)]
        found += list(_pairs(given["pairs"]))
        return found + list(_sensitivity(machine, given["figures"], given["factors"] or (*_FACTORS, *ZEROS)))

    def refused(self, machine: Machine, **given: Any) -> dict[str, str]:
        compared = [*self._compared(machine, **given), *_measured(machine, **given)]
        return {
            f"{title_of(reference)} ({reference.where})": why for reference, why in compared if isinstance(why, str)
        }

    def work(self, machine: Machine, *, workload: str, given: Mapping[str, Any] | None = None) -> float:
        return 0.2 if workload in FIGURES else WORKLOADS[workload].host_s(machine.config, **dict(given or {}))

    def simulate(self, machine: Machine, *, workload: str = "gemm", given: Mapping[str, Any] | None = None) -> Row:
        if workload in FIGURES:
            return {"ours": FIGURES[workload][1](machine)}
        return {"ours": WORKLOADS[workload].run(machine, **dict(given or {"m": 64, "k": 64, "n": 64}))}

    def _compared(
        self, machine: Machine, *, files: Sequence[str], most_bytes: int, **_: Any
    ) -> Iterator[tuple[Reference, list[Row] | str]]:
        for number, reference in enumerate(read_references(files) if files else []):
            yield reference, _points(machine, number, reference, most_bytes)


def title_of(reference: Reference) -> str:
    given = {key: value for key, value in reference.parameters.items() if "." not in key}
    nbytes = given.pop("bytes", None)
    words = [size_name(nbytes)] if isinstance(nbytes, int) else []
    words += [f"{key} {value}" for key, value in given.items()]
    return f"{reference.workload} {', '.join(words)}"


def kind_of(reference: Reference) -> str:
    """Return the named workload, or the only one with these parameters and this unit."""
    name, given = reference.workload, {key for key in reference.parameters if "." not in key}
    if name in WORKLOADS:
        return name
    fits = [
        kind
        for kind, x in WORKLOADS.items()
        if {*x.required} <= given <= {*x.required, *x.optional} and reference.unit in x.units
    ]
    return fits[0] if len(fits) == 1 else ""


def _wrong(reference: Reference) -> list[str]:
    at, kind = reference.where, kind_of(reference)
    if reference.refused:
        return []
    if not kind:
        return [f"{at}: workload = {quote(reference.workload)} is unknown; {hint(reference.workload, WORKLOADS)}"]
    workload = WORKLOADS[kind]
    names = (*workload.required, *workload.optional)
    faults = [
        f"{at}: parameter {key} is missing; add {key}=..."
        for key in workload.required
        if key not in reference.parameters
    ]
    for key, value in reference.parameters.items():
        if "." not in key and key not in names:
            faults.append(f"{at}: parameter {key} is unknown; {hint(key, names)}; a field of the machine has its path")
        elif key in _RANGES and not (key == "load" and kind == "hbm" and value == FULL):
            least, most = _RANGES[key]
            if isinstance(value, str) or not least <= value <= most:
                faults.append(f"{at}: {key} = {quote(value)} must be a number from {least:,g} to {most:,g}")
        elif key in _NAMED and (why := _NAMED[key](kind, value)):
            faults.append(f"{at}: {why}")
        elif value not in _CHOICES.get(key, (value,)):
            faults.append(f"{at}: {key} = {quote(value)} is unknown; {hint(value, _CHOICES[key])}")
        elif key in _SIZES and not (isinstance(value, int) and not isinstance(value, bool) and value > 0):
            faults.append(f"{at}: {key} = {quote(value)} must be a whole number above 0")
    if reference.parameters.get("pattern") == "strided" and "stride" not in reference.parameters:
        faults.append(f"{at}: parameter stride is missing; add stride=... [B]")
    if reference.unit not in workload.units:
        units = " or ".join(workload.units)
        faults.append(f"{at}: {kind} is compared in {units}, not in {reference.unit}; convert value and unit")
    return faults


def _wrong_type(kind: str, name: object) -> str:
    try:
        as_dtype(str(name))
    except TypeError as error:
        return str(error)
    return ""


def _wrong_algorithm(kind: str, name: object) -> str:
    known = () if kind == "all_to_all" else names(load_ccl_config(), kind)
    return "" if name in known else f"algorithm = {quote(name)} is unknown; {hint(str(name), known)}"


_NAMED = {"dtype": _wrong_type, "algorithm": _wrong_algorithm}
_CHOICES = {
    "pattern": ("sequential", "strided", "random"), "metric": ("throughput", "latency"), "timing": dram_names(),
    "dataflow": ("output_stationary", "weight_stationary", "input_stationary"), "refresh": ("on", "off", "bank"),
    "topology": ("mesh", "torus"), "traffic": PATTERNS, "packets": ("all", "others"),
    "staging": STAGINGS, "l2": ("warm", "cold"), "calls": ("eager", "graph", "difference"),
    "mapping": tuple("".join(("Ro", *parts)) for parts in permutations(("Ba", "Bg", "Co"))),
}  # fmt: skip
_SIZES = (
    "bytes", "ranks", "m", "k", "n", "cubes", "pes", "rows", "cols", "devices_per_thread", "requests", "packet", "vcs",
    "vc_flits", "q_len", "kv_len", "heads", "kv_heads", "head_dim", "batch",
)  # fmt: skip
_RANGES = {
    "channel_bw_gbs": (0.1, 1e4),
    "load": (1e-4, 1.0),
    "call_us": (0.0, 1e6),
    "reads": (0.0, 1.0),
    "stride": (0, 2**40),
    "seed": (0, 2**62),
}


def point_of(machine: Machine, reference: Reference, most_bytes: int = MOST_BYTES) -> Row | str:
    """Return the point that runs what a reference measures, or the reason why the machine cannot run it."""
    if reference.refused:
        return reference.refused
    kind = kind_of(reference)
    workload = WORKLOADS[kind]
    given = {key: value for key, value in reference.parameters.items() if "." not in key}
    own = {key: value for key, value in reference.parameters.items() if "." in key}
    own |= workload.machine(given)
    try:
        config = machine_of(machine.spec, own).config
    except ConfigError as error:
        return "; ".join(error.faults)
    why = workload.refuse(config, **given, most_bytes=most_bytes)
    return why or {MACHINE: own, "workload": kind, "given": given}


def _points(machine: Machine, number: int, reference: Reference, most_bytes: int) -> list[Row] | str:
    """Points of a reference, first on the unchanged machine, or the reason why it cannot be compared."""
    point = point_of(machine, reference, most_bytes)
    if isinstance(point, str):
        return point
    kind, given, own = point["workload"], point["given"], point[MACHINE]
    workload, config = WORKLOADS[kind], machine_of(machine.spec, own).config
    shown = {
        "table": REFERENCES, "reference": number, "kind": kind, "what": title_of(reference),
        "expected": reference.value, "unit": reference.unit, "source": reference.source, "where": reference.where,
    }  # fmt: skip
    tried, together, joined = {"": own}, own, 0
    for one in workload.mechanisms:
        if changes := one.changes(config, given):
            with suppress(ConfigError):  # a mechanism that the rest of this machine, or the lack of another, rules out
                machine_of(machine.spec, {**own, **changes})
                tried[one.name] = {**own, **changes}
            with suppress(ConfigError):
                machine_of(machine.spec, {**together, **changes})
                together, joined = {**together, **changes}, joined + 1
    if joined > 1:
        tried[TOGETHER] = together
    return [{**point, MACHINE: changes, LABELS: {**shown, "mechanism": name}} for name, changes in tried.items()]


def _measurements(name: str) -> list[Path]:
    path = Path(name)
    return sorted(path.glob("*.csv")) if path.is_dir() else [path]


def _measured(
    machine: Machine, *, measured: Sequence[str], most_bytes: int, **_: Any
) -> Iterator[tuple[Reference, Row | str]]:
    """Yield each measurement of a device with the point that predicts it, or why it cannot be predicted."""
    for text in measured:
        device, name = text.split("=", 1)
        base = resolve_topology(device)
        changes = {change.field: change.after for change in machine_changes(machine.spec, base.spec)}
        for reference in read_references(_measurements(name)):
            point = point_of(base, reference, max(most_bytes, MOST_DEVICE_BYTES))
            if not isinstance(point, str):
                shown = {
                    "table": report.DEVICE, "device": Path(device.removeprefix("preset:")).stem,
                    "group": Path(reference.where.rpartition(":")[0]).stem, "what": title_of(reference),
                    "expected": reference.value, "unit": reference.unit, "source": reference.source,
                    "where": reference.where,
                }  # fmt: skip
                point = {**point, MACHINE: {**changes, **point[MACHINE]}, LABELS: shown}
            yield reference, point


def _pairs(figures: Sequence[str]) -> Iterator[Row]:
    """Points of each figure on the machine as it is, with all of the preset detailed, and with each part alone."""
    for figure in figures:
        for name, changes in _detailed().items():
            shown = {"table": report.PAIRS, "figure": figure, "models": name}
            yield {MACHINE: {**FIGURES[figure][0], **changes}, LABELS: shown, "workload": figure}


def _sensitivity(machine: Machine, figures: Sequence[str], factors: Sequence[str]) -> Iterator[Row]:
    for figure in figures:
        own, _ = FIGURES[figure]
        config = machine.with_(own).config if own else machine.config
        for factor, changes in (("", {}), *_changes(machine, own, factors)):
            shown = {"table": SENSITIVITY, "figure": figure, "factor": factor, "tried": changes.get(factor)}
            shown["default"] = attrgetter(factor)(config) if factor else None
            shown["public_source"] = SOURCED.get(factor, "none")
            yield {MACHINE: {**own, **changes}, LABELS: shown, "workload": figure}


def _changes(machine: Machine, own: _Values, factors: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each factor with its changes, without the machines that the rules refuse."""
    config = machine_of(machine.spec, own).config
    for factor in factors:
        fields = (factor, *_TOGETHER.get(factor, ()))
        tried = (
            [{factor: ZEROS[factor]}] if factor in ZEROS else [scaled(config, dict.fromkeys(fields, x)) for x in SCALES]
        )
        for changes in tried:
            with suppress(ConfigError):
                machine_of(machine.spec, {**own, **changes})
                yield factor, changes


@dataclass(frozen=True, eq=False, repr=False)
class Fidelity:
    """References and our values; it prints itself and shows itself in a notebook.

    Attributes
    ----------
    table : DataFrame
        A row for each reference: `what`, `expected`, `ours`, `unit`, `error_pct` (signed), `explained_by`, `share_pct`
        (of the error, that the mechanism removes), `left_pct` (the error with it), `together_pct` (the error with all
        mechanisms of the workload, which remains unexplained), `source`.
    refused : mapping
        References that cannot be compared, each with the reason.
    """

    table: pd.DataFrame
    refused: Mapping[str, str]
    machine: Machine

    def __repr__(self) -> str:
        lines = [self._head()]
        if len(self.table):
            lines += [_shown(self.table.drop(columns="source")).to_string(index=False)]
        return "\n".join([*lines, *(f"not comparable: {name}: {why}" for name, why in self.refused.items())])

    def _repr_html_(self) -> str:
        head = f"<p>{escape(self._head())}</p>"
        body = _shown(self.table).to_html(index=False, border=0) if len(self.table) else ""
        rest = "".join(f"<li>{escape(f'not comparable: {name}: {why}')}</li>" for name, why in self.refused.items())
        return f"{head}{body}<ul>{rest}</ul>" if rest else f"{head}{body}"

    def _head(self) -> str:
        n = len(self.table)
        return f"{n} reference{'s' * (n != 1)} compared on {self.machine!r}"


def _shown(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.map(cell).rename(columns={name: column.title for name, column in report.COLUMNS.items()})


def fidelity(
    files: str | Path | Sequence[str | Path],
    machine: Machine | str | None = None,
    *,
    most_bytes: int = MOST_BYTES,
    workers: int = 1,
) -> Fidelity:
    """Compare results of other tools and of devices with a machine.

    Parameters
    ----------
    files : path or sequence of paths
        nccl-tests output (rccl-tests prints the same), or a CSV `workload,parameters,value,unit,source`, whose
        parameters are `key=value` pairs separated by semicolons. A key with dots is a field of the machine.
    machine : Machine or str, optional
        As for `kb.load`.
    most_bytes : int
        Collectives of more bytes are not simulated [B].
    workers : int
        Processes.

    Returns
    -------
    Fidelity
        A table that displays itself.

    Raises
    ------
    ConfigError
        If a file is missing, unknown or malformed: a fault for each problem, with file, line and remedy.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "mine.csv")
    ...     rows = ["workload,parameters,value,unit,source", "gemm,m=64; k=64; n=64,1,us,a device of mine"]
    ...     _ = path.write_text(chr(10).join(rows))
    ...     found = fidelity(path, "preset:small")
    >>> found.table["what"][0]
    'gemm m 64, k 64, n 64'
    """
    base, study = resolve_topology(machine), FidelityStudy()
    paths = [files] if isinstance(files, str | Path) else list(files)
    given = study.complete({"files": [str(path) for path in paths], "most_bytes": most_bytes})
    if faults := study.check(base, **given):
        raise ConfigError(faults)
    rows = study.run(base, workers=workers, **given) if study.points(base, **given) else []
    return Fidelity(report.tables(rows)[report.COMPARED], study.refused(base, **given), base)
