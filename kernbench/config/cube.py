"""The keys below `cube`: the die of a cube, its memories and its PEs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from kernbench.config.values import (
    BurstBytes,
    Bytes,
    Count,
    Cycles,
    Gbs,
    Ghz,
    Gib,
    Impl,
    Kib,
    Mib,
    Mm,
    Model,
    Ns,
    NsPerMm,
    Place,
    Point,
    PowerOfTwo,
    Share,
    Side,
)
from kernbench.units import GIB


class Part(Model):
    """A part that a component models."""

    impl: Impl = Field(description="Registered name of the component, or a dotted path pkg.mod:Class")


class Transit(Part):
    """A part that messages pass through."""

    overhead_ns: Ns = Field(description="Added to the latency of every flit; occupies nothing")


class Cpu(Part):
    """A control processor: a serial server."""

    service_ns: Ns = Field(description="Occupied for this long by each launch or map message")


class PeLayout(Model):
    """Where the PEs of a cube stand."""

    pe_per_corner: Side = Field(description="PEs in each corner")
    corners: tuple[Literal["NW", "NE", "SW", "SE"], ...] = Field(
        min_length=1, description="Corners with PEs: NW on row 0, NE on row 1, SW on row rows-2, SE on row rows-1"
    )
    pe_routers: tuple[Place, ...] | None = Field(
        None, min_length=1, description="[row, column] of the router of each PE; takes the place of the corners"
    )


class Noc(Model):
    """The router mesh of a cube."""

    rows: Side = Field(description="Rows of routers; row 0 is north")
    cols: Side = Field(description="Columns of routers; column 0 is west")
    pitch_mm: Mm = Field(description="Distance between neighbouring routers")
    removed: tuple[Place, ...] = Field(description="[row, column] of the places without a router")
    link_bw_gbs: Gbs = Field(description="Each link between routers, each way")
    router: Transit


class Ucie(Part):
    """UCIe ports on the four sides of a cube."""

    connections: Side = Field(description="Connections on each side")
    bw_gbs: Gbs = Field(description="Each connection from port to port, each way")
    router_bw_gbs: Gbs = Field(description="Between a port and its router, each way")
    port_ns: Ns = Field(description="Latency of each port: a crossing passes two")


class MCpu(Cpu):
    """The management CPU of a cube."""

    pos_mm: Point = Field(description="From the north-west corner of the die; the nearest router is its own")
    bw_gbs: Gbs = Field(description="To its router, each way")


class Hbm(Part):
    """The HBM stack of a cube, one slice for each PE."""

    size_gib: Gib = Field(description="The whole stack; a slice is size // PEs")
    channels: PowerOfTwo = Field(description="Pseudo channels of a slice")
    channel_bw_gbs: Gbs = Field(description="Each pseudo channel")
    burst_bytes: BurstBytes = Field(description="Served as one piece by a channel")
    turnaround_ns: Ns = Field(description="When a channel changes between reading and writing")
    access_ns: Ns = Field(description="From the service of a burst to its data")
    efficiency: Share = Field(description="Share of the channels' bandwidth that is reached")
    gather: Literal["packed", "strided"] = Field(
        description="How a tile lies in memory: contiguously, or in the lines of the row-major matrix"
    )
    bw_gbs: Gbs = Field(description="Between the controller of a slice and its router, each way")

    def slice_bytes(self, pes: int) -> int:
        """Return the bytes of each slice of a cube with `pes` PEs."""
        return round(self.size_gib * GIB) // pes


class Sram(Part):
    """The shared SRAM of a cube."""

    size_mib: Mib = Field(description="For each cube")
    bw_gbs: Gbs = Field(description="To its router, each way")
    pos_mm: Point = Field(description="From the north-west corner of the die; the nearest router is its own")


class PeCpuConfig(Part):
    """The control processor of a PE."""

    command_ns: Ns = Field(description="For each command issued, and each launch taken")
    bw_gbs: Gbs = Field(description="To its router, each way")


class PeSchedulerConfig(Part):
    """What cuts a composite command into tiles."""

    tile_ns: Ns = Field(description="For each tile, hidden behind the tile before")


class PeDmaConfig(Part):
    """What moves data between TCM and other memories."""

    bw_gbs: Gbs = Field(description="To its router, each way")
    outstanding_reads: Count = Field(description="Requests of the read channel under way at once")
    outstanding_writes: Count = Field(description="Requests of the write channel under way at once")


class PeFetchStoreConfig(Part):
    """What moves tiles between TCM and the engines, at the speed of the TCM's ports."""


class MacsPerCycle(Model):
    """Multiply-accumulates per cycle, by type of operand."""

    f16: Count = Field(description="For float16")
    bf16: Count = Field(description="For bfloat16")
    f8: Count = Field(description="For float8_e4m3fn and float8_e5m2")
    i8: Count = Field(description="For int8")
    f32: Count = Field(description="For float32")


class Tile(Model):
    """The tile of the matrix engine, in elements."""

    m: Count = Field(description="Rows of the first operand and of the result")
    k: Count = Field(description="The dimension that is summed over")
    n: Count = Field(description="Columns of the second operand and of the result")


class PeGemmConfig(Part):
    """The matrix engine."""

    clock_ghz: Ghz = Field(description="Clock of the matrix engine")
    macs_per_cycle: MacsPerCycle
    tile: Tile


class PeMathConfig(Part):
    """The vector engine."""

    clock_ghz: Ghz = Field(description="Clock of the vector engine")
    lanes_16bit: Count = Field(description="Values of up to 16 bits in a cycle")
    lanes_32bit: Count = Field(description="Values of 32 bits in a cycle; accumulators are 32 bits wide")
    slow_op_cycles: Cycles = Field(description="For exp, log, sqrt, division, sin, cos, per element and lane")


class PeTcmConfig(Part):
    """The memory of a PE. The *_mb keys count MiB."""

    size_mb: Mib = Field(description="Tile buffers, kernel scratch, and the rest for operands, handles and rings")
    tile_buffer_mb: Mib = Field(description="Buffers of streamed tiles")
    kernel_scratch_mb: Mib = Field(description="Scratch of kernels")
    scratch_result_kib: Kib = Field(description="Results up to this size lie in scratch")
    read_bw_gbs: Gbs = Field(description="The read port")
    write_bw_gbs: Gbs = Field(description="The write port")
    buffers_per_operand: Count = Field(description="Tiles of each streamed operand that are fetched ahead")
    stage_buffers: Count = Field(description="Tiles between the later stages of the pipeline")


class PeMmuConfig(Part):
    """Address translation of a PE."""

    lookup_ns: Ns = Field(description="For each request")


class PeIpcqConfig(Part):
    """Queues between PEs."""

    n_slots: Count = Field(description="Slots of a ring: one ring for each direction")
    slot_bytes: Bytes = Field(description="Each slot")
    credit_bytes: Bytes = Field(description="The message that gives a slot back to the sender")
    sram_setup_ns: Ns = Field(description="Once per access to a ring in SRAM")
    hbm_setup_ns: Ns = Field(description="Once per access to a ring in HBM")


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
    """An HBM stack with the die under it."""

    propagation_ns_per_mm: NsPerMm = Field(description="Of wires on the die and on the interposer")
    pe_layout: PeLayout
    noc: Noc
    ucie: Ucie
    m_cpu: MCpu
    hbm: Hbm
    sram: Sram
    pe: Pe
