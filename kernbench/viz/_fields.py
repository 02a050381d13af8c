"""Labels, units, bounds and sliders for the fields of a machine file and the parameters of programs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from kernbench import config
from kernbench.config._schema import LARGEST

# By the field's path in the machine file.
_LABELS = {
    "system.sips.count": "SIPs",
    "system.sips.topology": "Topology of the SIPs",
    "system.sips.w": "Columns of SIPs",
    "system.sips.h": "Rows of SIPs",
    "system.sip_link.bw_gbs": "Bandwidth between SIPs",
    "system.sip_link.latency_ns": "Latency between SIPs",
    "system.sip_link.header_bytes": "SIP link header per flit",
    "system.sip_link.router.flow": "SIP router flow control",
    "system.sip_link.router.vcs": "SIP router VCs per class",
    "system.sip_link.router.vc_flits": "SIP router VC depth",
    "system.sip_link.router.pipeline": "SIP router pipeline",
    "system.sip_link.router.allocator": "SIP router allocator",
    "system.sip_link.router.ties": "Equally long ways between SIPs",
    "system.switch.impl": "PCIe switch component",
    "system.switch.overhead_ns": "PCIe switch latency",
    "system.pcie.bw_gbs": "PCIe bandwidth",
    "system.pcie.latency_ns": "PCIe latency",
    "system.pcie.efficiency": "PCIe efficiency",
    "system.host_link.bw_gbs_per_sip": "Host bandwidth per SIP",
    "system.host_link.latency_ns": "Host latency",
    "system.host.launch_ns": "Host time per launch",
    "system.host.collective_ns": "Host time per collective",
    "system.host.doorbell_ns": "Doorbell latency",
    "system.host.descriptor_ns": "Descriptor fetch",
    "system.flit_bytes": "Flit size",
    "system.command_bytes": "Read command size",
    "sip.cube_mesh.w": "Cubes per row",
    "sip.cube_mesh.h": "Rows of cubes",
    "sip.io.pcie_ep.impl": "PCIe endpoint component",
    "sip.io.pcie_ep.overhead_ns": "PCIe endpoint latency",
    "sip.io.io_cpu.impl": "I/O CPU component",
    "sip.io.io_cpu.service_ns": "I/O CPU time per message",
    "sip.io.noc.impl": "I/O network component",
    "sip.io.noc.overhead_ns": "I/O network latency",
    "sip.io.noc.port_bw_gbs": "I/O bandwidth per port",
    "cube.pe_layout.pe_per_corner": "PEs per corner",
    "cube.pe_layout.corners": "Corners with PEs",
    "cube.pe_layout.pe_routers": "Router of each PE",
    "cube.propagation_ns_per_mm": "Wire delay",
    "cube.noc.rows": "Rows of routers",
    "cube.noc.cols": "Columns of routers",
    "cube.noc.pitch_mm": "Distance between routers",
    "cube.noc.removed": "Places without a router",
    "cube.noc.link_bw_gbs": "NoC link bandwidth",
    "cube.noc.header_bytes": "NoC header per flit",
    "cube.noc.router.impl": "Router component",
    "cube.noc.router.overhead_ns": "Router latency",
    "cube.noc.router.flow": "Router flow control",
    "cube.noc.router.vcs": "Router VCs per class",
    "cube.noc.router.vc_flits": "Router VC depth",
    "cube.noc.router.pipeline": "Router pipeline",
    "cube.noc.router.allocator": "Router allocator",
    "cube.ucie.impl": "UCIe component",
    "cube.ucie.connections": "UCIe connections per side",
    "cube.ucie.bw_gbs": "UCIe bandwidth per connection",
    "cube.ucie.router_bw_gbs": "UCIe port bandwidth",
    "cube.ucie.efficiency": "UCIe efficiency",
    "cube.ucie.port_ns": "UCIe port latency",
    "cube.hbm.impl": "HBM component",
    "cube.hbm.size_gib": "HBM capacity",
    "cube.hbm.channels": "HBM channels per PE",
    "cube.hbm.channel_bw_gbs": "HBM bandwidth per channel",
    "cube.hbm.burst_bytes": "HBM burst size",
    "cube.hbm.turnaround_ns": "HBM read/write turnaround",
    "cube.hbm.access_ns": "HBM access latency",
    "cube.hbm.efficiency": "HBM efficiency",
    "cube.hbm.gather": "HBM tile layout",
    "cube.hbm.bw_gbs": "HBM controller bandwidth",
    "cube.hbm.timing": "HBM timing",
    "cube.hbm.mapping": "HBM address mapping",
    "cube.sram.impl": "SRAM component",
    "cube.sram.size_mib": "SRAM capacity per cube",
    "cube.sram.bw_gbs": "SRAM bandwidth",
    "cube.sram.pos_mm": "SRAM position",
    "cube.pe.pe_gemm.impl": "Matrix engine component",
    "cube.pe.pe_gemm.clock_ghz": "Matrix engine clock",
    "cube.pe.pe_gemm.macs_per_cycle.f16": "MACs per cycle, f16",
    "cube.pe.pe_gemm.macs_per_cycle.bf16": "MACs per cycle, bf16",
    "cube.pe.pe_gemm.macs_per_cycle.f8": "MACs per cycle, f8",
    "cube.pe.pe_gemm.macs_per_cycle.i8": "MACs per cycle, i8",
    "cube.pe.pe_gemm.macs_per_cycle.f32": "MACs per cycle, f32",
    "cube.pe.pe_gemm.tile.m": "Tile rows (M)",
    "cube.pe.pe_gemm.tile.k": "Tile depth (K)",
    "cube.pe.pe_gemm.tile.n": "Tile columns (N)",
    "cube.pe.pe_gemm.model": "Matrix engine model",
    "cube.pe.pe_gemm.systolic.rows": "Systolic array rows",
    "cube.pe.pe_gemm.systolic.cols": "Systolic array columns",
    "cube.pe.pe_gemm.systolic.dataflow": "Systolic dataflow",
    "cube.pe.pe_gemm.table": "Efficiency by tile shape",
    "cube.pe.pe_math.impl": "Vector engine component",
    "cube.pe.pe_math.clock_ghz": "Vector engine clock",
    "cube.pe.pe_math.lanes_16bit": "Vector lanes, 16 bit",
    "cube.pe.pe_math.lanes_32bit": "Vector lanes, 32 bit",
    "cube.pe.pe_math.slow_op_cycles": "Cycles of exp, log, sqrt, /",
    "cube.pe.pe_fetch_store.impl": "Fetch/store component",
    "cube.pe.pe_tcm.impl": "TCM component",
    "cube.pe.pe_tcm.size_mb": "TCM capacity",
    "cube.pe.pe_tcm.tile_buffer_mb": "TCM for tile buffers",
    "cube.pe.pe_tcm.kernel_scratch_mb": "TCM for kernel scratch",
    "cube.pe.pe_tcm.scratch_result_kib": "Largest result in scratch",
    "cube.pe.pe_tcm.read_bw_gbs": "TCM read bandwidth",
    "cube.pe.pe_tcm.write_bw_gbs": "TCM write bandwidth",
    "cube.pe.pe_tcm.buffers_per_operand": "Tiles fetched ahead",
    "cube.pe.pe_tcm.stage_buffers": "Tiles between stages",
    "cube.pe.pe_scheduler.impl": "Scheduler component",
    "cube.pe.pe_scheduler.tile_ns": "Scheduler time per tile",
    "cube.pe.pe_dma.impl": "DMA component",
    "cube.pe.pe_dma.bw_gbs": "DMA bandwidth",
    "cube.pe.pe_dma.outstanding_reads": "DMA reads in flight",
    "cube.pe.pe_dma.outstanding_writes": "DMA writes in flight",
    "cube.pe.pe_mmu.impl": "MMU component",
    "cube.pe.pe_mmu.lookup_ns": "MMU lookup time",
    "cube.pe.pe_ipcq.impl": "Message queue component",
    "cube.pe.pe_ipcq.n_slots": "Slots per queue",
    "cube.pe.pe_ipcq.slot_bytes": "Slot size",
    "cube.pe.pe_ipcq.credit_bytes": "Credit message size",
    "cube.pe.pe_ipcq.sram_setup_ns": "Set-up time, queue in SRAM",
    "cube.pe.pe_ipcq.hbm_setup_ns": "Set-up time, queue in HBM",
    "cube.pe.pe_cpu.impl": "PE CPU component",
    "cube.pe.pe_cpu.command_ns": "PE CPU time per command",
    "cube.pe.pe_cpu.bw_gbs": "PE CPU bandwidth",
    "cube.m_cpu.impl": "Cube CPU component",
    "cube.m_cpu.service_ns": "Cube CPU time per message",
    "cube.m_cpu.pos_mm": "Cube CPU position",
    "cube.m_cpu.bw_gbs": "Cube CPU bandwidth",
    "cost.energy.mac_f16_pj": "Energy of an f16 MAC",
    "cost.energy.mac_bf16_pj": "Energy of a bf16 MAC",
    "cost.energy.mac_f8_pj": "Energy of an f8 MAC",
    "cost.energy.mac_i8_pj": "Energy of an i8 MAC",
    "cost.energy.mac_f32_pj": "Energy of an f32 MAC",
    "cost.energy.tcm_pj_per_bit": "TCM energy",
    "cost.energy.sram_pj_per_bit": "SRAM energy",
    "cost.energy.hbm_pj_per_bit": "HBM energy",
    "cost.energy.router_pj_per_bit": "Router energy",
    "cost.energy.wire_pj_per_bit_mm": "NoC wire energy",
    "cost.energy.ucie_pj_per_bit": "UCIe energy",
    "cost.energy.sip_link_pj_per_bit": "SIP link energy",
    "cost.energy.pcie_pj_per_bit": "PCIe energy",
    "cost.area.mac_um2": "Area of a MAC",
    "cost.area.pe_mm2": "Area of the rest of a PE",
    "cost.area.tcm_mm2_per_mib": "TCM area",
    "cost.area.sram_mm2_per_mib": "SRAM area",
    "cost.area.router_mm2_per_gbs": "Router area",
    "cost.area.hbm_mm2_per_gbs": "HBM interface area",
    "cost.area.ucie_mm2_per_gbs": "UCIe port area",
    "cost.area.sip_link_mm2_per_gbs": "SIP link area",
    "cost.area.io_mm2": "Area of the rest of the I/O die",
}

# The parameters of studies, which mean the same in all of them.
_PARAMETERS = {
    "m": "Rows of A and C (M)",
    "k": "Inner dimension (K)",
    "n": "Columns of B and C (N)",
    "staging": "Operands",
    "dtype": "Data type",
    "algorithm": "Algorithm",
    "elements": "Elements per SIP",
    "cubes": "Cubes",
    "sips": "SIPs",
    "topology": "Topology of the SIPs",
    "pes": "PEs per cube",
    "phase": "Phase",
    "tokens": "Tokens per rank",
    "ranks": "Ranks per KV head",
    "across": "Ranks are placed across",
    "items": "KV heads per group of ranks",
    "group": "Query heads per KV head",
    "head_dim": "Head dimension",
    "causal": "Causal mask",
    "order": "Order of tokens",
    "ring": "Ring of keys and values",
    "merge": "Merge of partial results",
    "placement": "Placement of C",
    "trans_a": "A is transposed",
    "trans_b": "B is transposed",
    "case": "Transfer",
    "nbytes": "Bytes per transfer",
}

_UNITS = {"um2": "µm²", "mm2": "mm²", "mm2/MiB": "mm²/MiB", "mm2 per GB/s": "mm² per GB/s"}
_EACH = 32  # up to here, a slider of whole numbers offers each one
_STEPS = (1.0, 1.25, 1.5, 1.75)
_FACTORS = (*(step * 2.0**octave for octave in range(-3, 3) for step in _STEPS), 8.0)
_FROM_ZERO = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)


@dataclass(frozen=True, slots=True)
class Field:
    path: str
    label: str
    unit: str
    description: str
    choices: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    open: bool = False
    whole: bool = False

    @property
    def bounds(self) -> str:
        """Bounds of a number, as in "> 0, <= 1"; empty for other values."""
        low = [] if self.low is None else [f"{'>' if self.open else '>='} {self.low:g}"]
        return ", ".join(low + ([] if self.high is None else [f"<= {self.high:g}"]))

    def stops(self, value: object) -> tuple[float, ...]:
        """Slider values around `value`, ascending; empty if it is not a single number.

        >>> fields()["cube.hbm.channels"].stops(8)
        (1, 2, 4, 8, 16, 32, 64)
        >>> fields()["cube.hbm.channel_bw_gbs"].stops(32.0)[:6]
        (4.0, 5.0, 6.0, 7.0, 8.0, 10.0)
        """
        if self.low is None or isinstance(value, bool) or not isinstance(value, int | float):
            return ()
        if self.whole:
            whole = int(value)
            doubles = whole >= 8 and whole & (whole - 1) == 0
            at = [whole * 2**n / 8 for n in range(7)] if doubles else range(1, max(8, 4 * whole) + 1)
            at = at if doubles or whole <= _EACH else [round(whole * factor) for factor in _FACTORS]
            return self._allowed({int(x) for x in at if x == int(x)} | {value})
        if self.high == 1:
            return self._allowed({n / 20 for n in range(21)} | {value})
        near = {float(f"{value * factor:.3g}") for factor in _FACTORS} if value else _FROM_ZERO
        return self._allowed({float(self.low), *near, value})

    def _allowed(self, stops: Iterable[float]) -> tuple[float, ...]:
        low, high = self.low or 0, self.high or LARGEST
        return tuple(sorted(x for x in stops if (x > low if self.open else x >= low) and x <= high))


@cache
def fields() -> dict[str, Field]:
    schema = config.json_schema()["$defs"]
    return {field.path: field for field in _leaves(schema, schema["Machine"], "")}


_SOURCES = {"ref": "reference design", "std": "standard", "chosen": "assumption"}
_LINE = re.compile(r"( *)(\w+):\s*([^#]*)(?:#.*\((ref|std|chosen)\b[:;]?\s*([^)]*)\))?")


@cache
def sources() -> dict[str, str]:
    """Source of each default, from the comments of the packaged machine file.

    >>> sources()["cube.pe.pe_gemm.tile.m"], sources()["system.sip_link.latency_ns"]
    ('reference design', 'assumption: a short package-to-package serial link; tried 25 to 100')
    """
    found: dict[str, str] = {}
    keys: list[str] = []
    for line in config.preset_path("default").read_text("utf-8").splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        indent, key, value, source, reason = match.groups()
        keys[len(indent) // 2 :] = [key]
        path = ".".join(keys)
        if source:
            text = f"{_SOURCES[source]}: {reason}" if reason else _SOURCES[source]
            found |= {
                leaf: text for leaf in fields() if leaf == path or (value.strip() and leaf.startswith(f"{path}."))
            }
    return found


def parameter_label(name: str) -> str:
    """Label of a program's parameter; without an entry, its name as words.

    >>> parameter_label("tokens"), parameter_label("block_size")
    ('Tokens per rank', 'Block size')
    """
    return _PARAMETERS.get(name) or name.replace("_", " ").strip().capitalize()


def _leaves(schema: Mapping[str, Any], group: Mapping[str, Any], path: str) -> Iterator[Field]:
    for name, value in group["properties"].items():
        here = f"{path}.{name}".lstrip(".")
        inner = value.get("$ref") or next((x["$ref"] for x in value.get("allOf", ()) if "$ref" in x), "")
        if here == "schema_version":
            continue
        if inner:
            yield from _leaves(schema, schema[inner.rpartition("/")[2]], here)
        else:
            yield _field(here, value)


def _field(path: str, value: Mapping[str, Any]) -> Field:
    kind = next((x for x in value.get("anyOf", ()) if x.get("type") != "null"), value)
    low = kind.get("exclusiveMinimum", kind.get("minimum"))
    high = kind.get("maximum", LARGEST)
    unit = str(kind.get("unit", ""))
    return Field(
        path,
        _LABELS[path],
        _UNITS.get(unit, unit),
        str(value.get("description", "")).removesuffix(f"[{unit}]").strip(),
        tuple(kind.get("enum", ())),
        low,
        high if high < LARGEST else None,
        "exclusiveMinimum" in kind,
        kind.get("type") == "integer",
    )
