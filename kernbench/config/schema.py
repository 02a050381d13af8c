"""The machine file's schema: frozen models, each number with its unit and bounds; unknown keys are refused."""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le
from pydantic import BaseModel, ConfigDict, Field, field_validator

from kernbench.registry import COMPONENTS
from kernbench.units import GIB


def _unit(name: str, finite: bool | None = None) -> Any:
    """Return what carries a unit into messages and into the JSON schema."""
    return Field(allow_inf_nan=None if finite is None else not finite, json_schema_extra={"unit": name})


Ns = Annotated[float, Ge(0), _unit("ns", finite=True)]
Gbs = Annotated[float, Gt(0), _unit("GB/s", finite=True)]
Ghz = Annotated[float, Gt(0), _unit("GHz", finite=True)]
Mm = Annotated[float, Gt(0), _unit("mm", finite=True)]
MibF = Annotated[float, Gt(0), _unit("MiB", finite=True)]
GibF = Annotated[float, Gt(0), _unit("GiB", finite=True)]
Kib = Annotated[int, Gt(0), _unit("KiB")]
Bytes = Annotated[int, Gt(0), _unit("B")]
Count = Annotated[int, Ge(1), _unit("count")]
At = Annotated[tuple[Annotated[int, Ge(0)], Annotated[int, Ge(0)]], _unit("row, column")]


class Model(BaseModel):
    """A part of the file; a bool or a string is no number, and 1.0 is a whole number."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _plain(cls, value: Any, info: Any) -> Any:
        field = cls.model_fields[info.field_name]
        numeric = any(kind in str(field.annotation) for kind in ("int", "float"))
        if numeric and isinstance(value, bool | str):
            raise ValueError("must be a number")
        return value


class Part(Model):
    """A component: `impl` names its class, or gives a dotted path to one."""

    impl: str

    @field_validator("impl")
    @classmethod
    def _known(cls, value: str) -> str:
        if (fault := COMPONENTS.fault(value)) is not None:
            raise ValueError(fault)
        return value


class Transit(Part):
    """A part that messages pass through."""

    overhead_ns: Ns


class Cpu(Part):
    """A control processor: a serial server."""

    service_ns: Ns


class Sips(Model):
    """The packages of a system and how they are joined; 2-D forms take w and h."""

    count: Count
    topology: Literal["ring_1d", "torus_2d", "mesh_2d", "mesh_2d_no_wrap", "fully_connected"]
    w: Count | None = None
    h: Count | None = None


class Wire(Model):
    """A link that is only a wire."""

    bw_gbs: Gbs
    latency_ns: Ns


class HostLink(Model):
    """Host to switch; its bandwidth grows with the SIPs."""

    bw_gbs_per_sip: Gbs
    latency_ns: Ns


class System(Model):
    """Everything outside the packages."""

    sips: Sips
    sip_link: Wire
    switch: Transit
    pcie: Wire
    host_link: HostLink


class CubeMesh(Model):
    """Cubes of a SIP."""

    w: Count
    h: Count


class IoNoc(Transit):
    """The network of the IO chiplet."""

    port_bw_gbs: Gbs


class Io(Model):
    """The IO chiplet."""

    pcie_ep: Transit
    io_cpu: Cpu
    noc: IoNoc


class Sip(Model):
    """A package."""

    cube_mesh: CubeMesh
    io: Io


class PeLayout(Model):
    """Where the PEs stand: by corners, or `pe_routers`, one (row, column) for each PE, instead."""

    pe_per_corner: Count
    corners: tuple[Literal["NW", "NE", "SW", "SE"], ...] = Field(min_length=1)
    pe_routers: tuple[At, ...] | None = None


class Noc(Model):
    """The router mesh of a cube."""

    rows: Count
    cols: Count
    pitch_mm: Mm
    removed: tuple[At, ...]
    link_bw_gbs: Gbs
    router: Transit


class Ucie(Part):
    """UCIe ports on the four sides of a cube."""

    connections: Count
    bw_gbs: Gbs
    router_bw_gbs: Gbs
    port_ns: Ns


class MCpu(Cpu):
    """The management CPU of a cube."""

    pos_mm: tuple[float, float]
    bw_gbs: Gbs


class Hbm(Part):
    """The HBM stack of a cube."""

    size_gib: GibF
    channels: Count
    channel_bw_gbs: Gbs
    burst_bytes: Bytes
    turnaround_ns: Ns
    access_ns: Ns
    efficiency: Annotated[float, Gt(0), Le(1), _unit("share", finite=True)]
    gather: Literal["packed", "strided"]
    bw_gbs: Gbs

    def slice_bytes(self, pes: int) -> int:
        """Return the bytes of each PE's slice."""
        return round(self.size_gib * GIB) // pes


class Sram(Part):
    """The shared SRAM of a cube."""

    size_mib: MibF
    bw_gbs: Gbs
    pos_mm: tuple[float, float]


class PeCpuConfig(Part):
    """Issues commands."""

    command_ns: Ns
    bw_gbs: Gbs


class PeSchedulerConfig(Part):
    """Plans tiles."""

    tile_ns: Ns


class PeDmaConfig(Part):
    """Moves data between TCM and memory."""

    bw_gbs: Gbs
    outstanding_reads: Count
    outstanding_writes: Count


class PeFetchStoreConfig(Part):
    """Moves tiles between TCM and the engines."""


class MacsPerCycle(Model):
    """Multiply-accumulates per cycle, by operand type."""

    f16: Count
    bf16: Count
    f8: Count
    i8: Count
    f32: Count


class Tile(Model):
    """Sizes of a tile of the matrix engine."""

    m: Count
    k: Count
    n: Count


class PeGemmConfig(Part):
    """The matrix engine."""

    clock_ghz: Ghz
    macs_per_cycle: MacsPerCycle
    tile: Tile


class PeMathConfig(Part):
    """The vector engine."""

    clock_ghz: Ghz
    lanes_16bit: Count
    lanes_32bit: Count
    slow_op_cycles: Count


class PeTcmConfig(Part):
    """Tightly coupled memory."""

    size_mb: MibF
    tile_buffer_mb: MibF
    kernel_scratch_mb: MibF
    scratch_result_kib: Kib
    read_bw_gbs: Gbs
    write_bw_gbs: Gbs
    buffers_per_operand: Count
    stage_buffers: Count


class PeMmuConfig(Part):
    """Address translation."""

    lookup_ns: Ns


class PeIpcqConfig(Model):
    """Queues between PEs: the rings that TCM must hold."""

    n_slots: Count
    slot_bytes: Bytes
    credit_bytes: Bytes
    sram_setup_ns: Ns
    hbm_setup_ns: Ns


class Pe(Model):
    """A processing element."""

    pe_cpu: PeCpuConfig
    pe_scheduler: PeSchedulerConfig
    pe_dma: PeDmaConfig
    pe_fetch_store: PeFetchStoreConfig
    pe_gemm: PeGemmConfig
    pe_math: PeMathConfig
    pe_tcm: PeTcmConfig
    pe_mmu: PeMmuConfig
    pe_ipcq: PeIpcqConfig


class Cube(Model):
    """An HBM stack with its die."""

    propagation_ns_per_mm: Annotated[float, Ge(0), _unit("ns/mm", finite=True)]
    pe_layout: PeLayout
    noc: Noc
    ucie: Ucie
    m_cpu: MCpu
    hbm: Hbm
    sram: Sram
    pe: Pe


class MachineConfig(Model):
    """A machine as its file describes it, validated."""

    schema_version: Literal[1]
    system: System
    sip: Sip
    cube: Cube

    @property
    def n_sips(self) -> int:
        """Packages."""
        return self.system.sips.count

    @property
    def cubes_per_sip(self) -> int:
        """Cubes of a package."""
        return self.sip.cube_mesh.w * self.sip.cube_mesh.h

    @property
    def pes_per_cube(self) -> int:
        """PEs of a cube."""
        layout = self.cube.pe_layout
        return len(layout.pe_routers) if layout.pe_routers else layout.pe_per_corner * len(layout.corners)

    @property
    def pes_per_sip(self) -> int:
        """PEs of a package."""
        return self.cubes_per_sip * self.pes_per_cube

    @property
    def n_pes(self) -> int:
        """PEs of the machine."""
        return self.n_sips * self.pes_per_sip

    def to_spec(self) -> dict[str, Any]:
        """Return the content as plain values, reading as the file does."""
        return self.model_dump(mode="json", exclude_none=True)

    @cached_property
    def hash(self) -> str:
        """The sha256 of the validated content: neither comments, nor the order of keys, nor 1 for 1.0 change it."""
        return hashlib.sha256(json.dumps(self.to_spec(), sort_keys=True).encode()).hexdigest()
