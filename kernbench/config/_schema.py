"""The keys of a machine file: system, SIP and, from `cube`, the cube; figures derived from them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from functools import cache, cached_property
from typing import Annotated, Literal

from kernbench._units import FLIT_BYTES, GIB, decimal_product, serialization_ps
from kernbench.config._kinds import (
    NOT_EMPTY,
    AutoCount,
    BurstBytes,
    Bytes,
    Count,
    Cycles,
    Depth,
    Efficiency,
    FlitBytes,
    Gbs,
    Ghz,
    Gib,
    Impl,
    Key,
    Kib,
    Levels,
    MeshPlace,
    Mib,
    Mm,
    Mm2,
    Mm2PerGbs,
    Mm2PerMib,
    Model,
    NoBytes,
    NoCount,
    NoMib,
    Ns,
    NsPerMm,
    PipelineCycles,
    Pj,
    PjPerBit,
    PjPerBitMm,
    Position,
    PowerOfTwo,
    Share,
    Side,
    TileSizes,
    Um2,
    Vcs,
    Version,
    _given,
    described,
    duration,
    rate,
    walk,
)


class Energy(Model):
    """Energy of work and data movement; idle power is not included."""

    mac_f16_pj: Pj = described("Energy of an f16 MAC", "A multiply-accumulate of float16")
    mac_bf16_pj: Pj = described("Energy of a bf16 MAC", "Of bfloat16")
    mac_f8_pj: Pj = described("Energy of an f8 MAC", "Of float8_e4m3fn and float8_e5m2")
    mac_i8_pj: Pj = described("Energy of an i8 MAC", "Of int8")
    mac_f32_pj: Pj = described("Energy of an f32 MAC", "Of float32")
    tcm_pj_per_bit: PjPerBit = described("TCM energy", "Read or written in a TCM")
    sram_pj_per_bit: PjPerBit = described("SRAM energy", "Read or written in a cube's SRAM")
    hbm_pj_per_bit: PjPerBit = described("HBM energy", "Read or written in HBM, interface included")
    router_pj_per_bit: PjPerBit = described("Router energy", "Through a router")
    wire_pj_per_bit_mm: PjPerBitMm = described("NoC wire energy", "Over a wire of the mesh between routers")
    ucie_pj_per_bit: PjPerBit = described("UCIe energy", "Over a UCIe link, both ports together")
    sip_link_pj_per_bit: PjPerBit = described("SIP link energy", "From SIP to SIP")
    pcie_pj_per_bit: PjPerBit = described("PCIe energy", "Between a SIP and the PCIe switch")


class Area(Model):
    """Area of the cubes' dies and the IO chiplets; memory stacks are not included."""

    mac_um2: Um2 = described("Area of a MAC", "A multiplier and its accumulator, for f16")
    pe_mm2: Mm2 = described("Area of the rest of a PE", "The rest of a PE: CPU, scheduler, DMA, vector engine")
    tcm_mm2_per_mib: Mm2PerMib = described("TCM area", "TCM")
    sram_mm2_per_mib: Mm2PerMib = described("SRAM area", "SRAM of a cube")
    router_mm2_per_gbs: Mm2PerGbs = described("Router area", "A router, by the bandwidth of a link")
    hbm_mm2_per_gbs: Mm2PerGbs = described(
        "HBM interface area", "Controllers and interface of the HBM, by its bandwidth"
    )
    ucie_mm2_per_gbs: Mm2PerGbs = described("UCIe port area", "A UCIe port, by its bandwidth each way")
    sip_link_mm2_per_gbs: Mm2PerGbs = described(
        "SIP link area", "One end of a link between SIPs, by its bandwidth each way"
    )
    io_mm2: Mm2 = described("Area of the rest of the I/O die", "The rest of an IO chiplet")


class Cost(Model):
    """Energy and area of the parts."""

    energy: Energy
    area: Area


# The implementation of a part, in every group that a component models.
_IMPL = "Registered name of the component, or a dotted path pkg.mod:Class"
_OVERHEAD = "Added to the latency of every flit; occupies nothing"
_SERVICE = "Occupied for this long by each launch or map message"
PROTOCOLS = ("ll", "ll128", "simple")  # of collectives, for the smallest first; the last one has no threshold


class Transit(Model):
    """A network node with a latency."""

    impl: Impl = described("component", _IMPL)
    overhead_ns: Ns = duration("latency", _OVERHEAD)


_FLOW = "Buffers of any length, or virtual channels (VCs) whose buffers are limited by credits"
_VCS = "VCs for each class of messages, requests and replies"
_VC_FLITS = "Flits in the buffer of a VC"
_PIPELINE = "Route computation, VC allocation, switch allocation and switch traversal, of flow: credits"
_ALLOCATOR = "How VCs and the switch are allocated: separable, with rotating pointers, in one iteration"
_TIES = "Of two equally long ways round a ring, the one by the parity of the SIP, or one drawn for each message"

Flow = Literal["unbounded", "credits"]


class Router(Model):
    """A router of a cube's mesh."""

    impl: Impl = described("Router component", _IMPL)
    overhead_ns: Ns = duration(
        "Router latency",
        "Added to the latency of every flit, with flow: unbounded; occupies nothing",
        "routers",
        parts="mesh_link",
    )
    flow: Flow = described("Router flow control", _FLOW, default="unbounded")
    vcs: Vcs = described("Router VCs per class", _VCS, default=4)
    vc_flits: Depth = described("Router VC depth", _VC_FLITS, default=8)
    pipeline: PipelineCycles = described("Router pipeline", _PIPELINE, default=(1, 1, 1, 1))
    allocator: Literal["islip"] = described("Router allocator", _ALLOCATOR, default="islip")


class SipRouter(Model):
    """The router of a SIP towards other SIPs: the network of its IO chiplet."""

    flow: Flow = described("SIP router flow control", _FLOW, default="unbounded")
    vcs: Vcs = described("SIP router VCs per class", _VCS, default=4)
    vc_flits: Depth = described("SIP router VC depth", _VC_FLITS, default=64)
    pipeline: PipelineCycles = described("SIP router pipeline", _PIPELINE, default=(1, 1, 1, 1))
    allocator: Literal["islip"] = described("SIP router allocator", _ALLOCATOR, default="islip")
    ties: Literal["parity", "random"] = described("Equally long ways between SIPs", _TIES, default="parity")


class Cpu(Model):
    """A control processor: a serial server."""

    impl: Impl = described("I/O CPU component", _IMPL)
    service_ns: Ns = duration("I/O CPU time per message", _SERVICE)


class PeLayout(Model):
    """Positions of the PEs of a cube."""

    pe_per_corner: Count = described("PEs per corner", "PEs in each corner")
    corners: Annotated[tuple[Literal["NW", "NE", "SW", "SE"], ...], NOT_EMPTY] = described(
        "Corners with PEs", "Corners with PEs: NW on row 0, NE on row 1, SW on row rows-2, SE on row rows-1"
    )
    pe_routers: Annotated[tuple[MeshPlace, ...], NOT_EMPTY] | None = described(
        "Router of each PE", "[row, column] of the router of each PE; takes the place of the corners", default=None
    )


class Noc(Model):
    """The router mesh of a cube."""

    topology: Literal["mesh", "torus", "rings", "crossbar"] = described(
        "Network of a cube",
        "A mesh of routers; a torus, whose rows and columns are rings; two opposite rings through all routers; or one "
        "router to which all parts are attached",
        default="mesh",
    )
    rows: Side = described("Rows of routers", "Rows of routers; row 0 is north")
    cols: Side = described("Columns of routers", "Columns of routers; column 0 is west")
    pitch_mm: Mm = described("Distance between routers", "Distance between neighbouring routers")
    removed: tuple[MeshPlace, ...] = described(
        "Places without a router", "[row, column] of the places without a router"
    )
    link_bw_gbs: Gbs = rate("NoC link bandwidth", "Each link between routers, each way", "mesh link", parts="router")
    router: Router = described(parts="router")
    header_bytes: NoBytes = described(
        "NoC header per flit", "Sent with each flit over every link of a router", "mesh link", default=0
    )

    @property
    def link_mm(self) -> float:
        """Length of a link between routers [mm]: two pitches if rows or columns are rings, which are folded."""
        folded = self.is_torus and max(self.rows, self.cols) > 2
        return self.pitch_mm * (2 if folded else 1)

    @property
    def is_torus(self) -> bool:
        """Whether rows and columns are rings; `rings` along one row or column are a torus."""
        return self.topology == "torus" or (self.topology == "rings" and min(self.rows, self.cols) == 1)


class Ucie(Model):
    """UCIe ports on the four sides of a cube."""

    impl: Impl = described("UCIe component", _IMPL)
    connections: Side = described("UCIe connections per side", "Connections on each side")
    bw_gbs: Gbs = rate("UCIe bandwidth per connection", "Each connection from port to port, each way", "UCIe link")
    router_bw_gbs: Gbs = rate("UCIe port bandwidth", "Between a port and its router, each way", "link of a UCIe port")
    port_ns: Ns = duration(
        "UCIe port latency", "Latency of each port: a crossing passes two", "UCIe ports", parts="ucie_link"
    )
    efficiency: Share = described(
        "UCIe efficiency", "Share of bw_gbs that the protocol of the link leaves for flits", "UCIe link", default=1.0
    )

    @property
    def flit_gbs(self) -> float:
        """Bandwidth of a connection for flits [GB/s], in each direction."""
        return decimal_product(self.bw_gbs, self.efficiency)


class MCpu(Model):
    """The management CPU of a cube."""

    impl: Impl = described("Cube CPU component", _IMPL)
    service_ns: Ns = duration("Cube CPU time per message", _SERVICE, "M_CPU")
    pos_mm: Position = described(
        "Cube CPU position", "From the north-west corner of the die; the nearest router is its own"
    )
    bw_gbs: Gbs = rate("Cube CPU bandwidth", "To its router, each way", "link of M_CPU")


class Hbm(Model):
    """The HBM of a cube: one slice for each PE, or one for each of `controllers`."""

    impl: Impl = described("HBM component", _IMPL)
    size_gib: Gib = described("HBM capacity", "The whole stack; a slice is size // PEs")
    channels: PowerOfTwo = described("HBM channels per PE", "Pseudo channels of a slice")
    channel_bw_gbs: Gbs = rate("HBM bandwidth per channel", "Each pseudo channel", "HBM slice")
    burst_bytes: BurstBytes = described("HBM burst size", "Served as one piece by a channel")
    turnaround_ns: Ns = duration("HBM read/write turnaround", "When a channel changes between reading and writing")
    access_ns: Ns = duration("HBM access latency", "From the service of a burst to its data")
    efficiency: Share = rate("HBM efficiency", "Share of the channels' bandwidth that is reached")
    gather: Literal["packed", "strided"] = described(
        "HBM tile layout", "Layout of a tile in memory: contiguously, or in the lines of the row-major matrix"
    )
    bw_gbs: Gbs = rate(
        "HBM controller bandwidth", "Between the controller of a slice and its router, each way", "link of an HBM slice"
    )
    timing: Literal[
        "simple", "hbm2e", "hbm2_1600", "hbm2_2000", "hbm2_2400", "hbm3", "hbm3_6400", "hbm3e_9200", "gddr6_14000"
    ] = described(
        "HBM timing",
        "One rate for each channel, or the commands, banks and rows of a DRAM standard or of its speed bin",
        default="simple",
    )  # fmt: skip
    mapping: Literal["RoBaBgCo", "RoBaCoBg", "RoBgBaCo", "RoBgCoBa", "RoCoBaBg", "RoCoBgBa"] = described(
        "HBM address mapping",
        "Row, bank, bank group and column in an address of a channel, from the most significant; not for simple timing",
        default="RoBaCoBg",
    )
    hash: Literal["none", "xor"] = described(
        "HBM address hash",
        "Whether bank, bank group and channel are XORed with bits of the row, except if simple, and controllers "
        "are interleaved by a hash",
        default="xor",
    )

    controllers: Count | None = described(
        "HBM controllers",
        "Slices apart from the PEs, of which each has `channels`; left out: one at each PE",
        default=None,
    )
    controller_routers: Annotated[tuple[MeshPlace, ...], NOT_EMPTY] | None = described(
        "Router of each HBM controller", "[row, column] of the router of each of `controllers`, on a mesh", default=None
    )
    interleave_bytes: BurstBytes = described(
        "HBM interleave",
        "Consecutive bytes of an address range on one of `controllers`, before the next one",
        default=4096,
    )

    @property
    def slice_gbs(self) -> float:
        """Bandwidth of a slice [GB/s]: that of its channels times the efficiency."""
        return decimal_product(self.channels, self.channel_bw_gbs, self.efficiency)

    @property
    def burst_ps(self) -> int:
        """Time of one burst on a channel [ps]."""
        return serialization_ps(self.burst_bytes, decimal_product(self.channel_bw_gbs, self.efficiency))

    def slice_bytes(self, pes: int) -> int:
        return round(self.size_gib * GIB) // pes


class Llc(Model):
    """The last-level cache of a cube: one slice in front of each HBM slice."""

    impl: Impl = described("LLC component", _IMPL)
    size_mib: NoMib = described("LLC capacity", "All slices of a cube; 0: no cache")
    ways: Count = described("LLC ways", "Lines of a set; the least recently used one is replaced")
    line_bytes: BurstBytes = described("LLC line size", "Read from and written to HBM as a whole")
    hit_ns: Ns = duration("LLC hit latency", "From a request's arrival at a slice to its first data", "LLC")
    bw_gbs: Gbs = rate("LLC bandwidth per slice", "Between a slice and its router, each way", "link of an LLC slice")


class Sram(Model):
    """The shared SRAM of a cube."""

    impl: Impl = described("SRAM component", _IMPL)
    size_mib: Mib = described("SRAM capacity per cube", "For each cube")
    bw_gbs: Gbs = rate("SRAM bandwidth", "To its router, each way", ("SRAM", "link of SRAM"))
    pos_mm: Position = described(
        "SRAM position", "From the north-west corner of the die; the nearest router is its own"
    )


class PeCpuConfig(Model):
    """The control processor of a PE."""

    impl: Impl = described("PE CPU component", _IMPL)
    command_ns: Ns = duration("PE CPU time per command", "For each command issued, and each launch taken", "PE_CPU")
    bw_gbs: Gbs = rate("PE CPU bandwidth", "To its router, each way", "link of PE_CPU")


class PeSchedulerConfig(Model):
    """Cuts composite commands into tiles."""

    impl: Impl = described("Scheduler component", _IMPL)
    tile_ns: Ns = duration("Scheduler time per tile", "For each tile, hidden behind the tile before", "PE_SCHEDULER")


class PeDmaConfig(Model):
    """Moves data between TCM and other memories."""

    impl: Impl = described("DMA component", _IMPL)
    bw_gbs: Gbs = rate("DMA bandwidth", "To its router, each way", "link of PE_DMA")
    outstanding_reads: AutoCount = described(
        "DMA reads in flight",
        "Requests of the read channel under way at once; auto or 0: as many as cover the latency of a PE's memory",
        "the limit of outstanding requests",
    )
    outstanding_writes: Count = described(
        "DMA writes in flight", "Requests of the write channel under way at once", "the limit of outstanding requests"
    )


class PeFetchStoreConfig(Model):
    """Moves tiles between TCM and the engines, at the speed of the TCM's ports."""

    impl: Impl = described("Fetch/store component", _IMPL)


class MacsPerCycle(Model):
    """Multiply-accumulates per cycle, by type of operand."""

    f16: Count = rate("MACs per cycle, f16", "For float16")
    bf16: Count = rate("MACs per cycle, bf16", "For bfloat16")
    f8: Count = rate("MACs per cycle, f8", "For float8_e4m3fn and float8_e5m2")
    i8: Count = rate("MACs per cycle, i8", "For int8")
    f32: Count = rate("MACs per cycle, f32", "For float32")


class Tile(Model):
    """The tile of the matrix engine, in elements."""

    m: Count = described("Tile rows (M)", "Rows of the first operand and of the result")
    k: Count = described("Tile depth (K)", "The dimension that is summed over")
    n: Count = described("Tile columns (N)", "Columns of the second operand and of the result")


class Systolic(Model):
    """A systolic array."""

    rows: Count = described("Systolic array rows", "Rows of the array")
    cols: Count = described("Systolic array columns", "Columns of the array")
    dataflow: Literal["output_stationary", "weight_stationary", "input_stationary"] = described(
        "Systolic dataflow", "What stays in the array while the rest streams through it"
    )


class PeGemmConfig(Model):
    """The matrix engine."""

    impl: Impl = described("Matrix engine component", _IMPL)
    clock_ghz: Ghz = rate("Matrix engine clock", "Clock of the matrix engine", "matrix engine")
    macs_per_cycle: MacsPerCycle
    tile: Tile
    other_tiles: tuple[TileSizes, ...] = described(
        "Other matrix tiles",
        "[m, k, n] of more tiles; each product takes the tile with the least ideal time for its shape",
        default=(),
    )
    model: Literal["rate", "systolic", "table"] = described(
        "Matrix engine model",
        "Time of a tile: at macs_per_cycle, of a systolic array, or at the efficiency that a table has for its shape",
        default="rate",
    )
    systolic: Systolic = described("Systolic array", default=Systolic(rows=64, cols=64, dataflow="output_stationary"))
    table: tuple[Efficiency, ...] = described(
        "Efficiency by tile shape",
        "[m, k, n, efficiency] of tile shapes, for model: table; or a CSV file with these columns",
        default=(),
    )

    @property
    def by_tile(self) -> tuple[PeGemmConfig, ...]:
        """The engine with each of its tiles alone, `tile` first."""
        tiles = (self.tile, *(Tile(m=m, k=k, n=n) for m, k, n in self.other_tiles))
        return tuple(replace(self, tile=tile, other_tiles=()) for tile in tiles)

    @property
    def macs(self) -> int:
        """Multiply-accumulates of f16 per cycle; one per position of a systolic array."""
        return self.systolic.rows * self.systolic.cols if self.model == "systolic" else self.macs_per_cycle.f16


class PeMathConfig(Model):
    """The vector engine."""

    impl: Impl = described("Vector engine component", _IMPL)
    clock_ghz: Ghz = rate("Vector engine clock", "Clock of the vector engine", "vector engine")
    lanes_16bit: Count = rate("Vector lanes, 16 bit", "Values of up to 16 bits in a cycle")
    lanes_32bit: Count = rate("Vector lanes, 32 bit", "Values of 32 bits in a cycle; accumulators are 32 bits wide")
    slow_op_cycles: Cycles = duration(
        "Cycles of exp, log, sqrt, /", "For exp, log, sqrt, division, sin, cos, per element and lane"
    )


class PeTcmConfig(Model):
    """The memory of a PE. The *_mb keys count MiB."""

    impl: Impl = described("TCM component", _IMPL)
    size_mb: Mib = described(
        "TCM capacity", "Tile buffers, kernel scratch, and the rest for operands, handles and rings"
    )
    tile_buffer_mb: Mib = described("TCM for tile buffers", "Buffers of streamed tiles")
    kernel_scratch_mb: Mib = described("TCM for kernel scratch", "Scratch of kernels")
    scratch_result_kib: Kib = described("Largest result in scratch", "Results up to this size are stored in scratch")
    read_bw_gbs: Gbs = rate("TCM read bandwidth", "The read port", "fetch from TCM", parts="pe_fetch_store")
    write_bw_gbs: Gbs = rate("TCM write bandwidth", "The write port", "store to TCM", parts="pe_fetch_store")
    buffers_per_operand: Count = described(
        "Tiles fetched ahead", "Tiles of each streamed operand that are fetched ahead", "a free tile buffer"
    )
    stage_buffers: Count = described(
        "Tiles between stages", "Tiles between the later stages of the pipeline", "a full buffer behind"
    )


class PeMmuConfig(Model):
    """Address translation of a PE."""

    impl: Impl = described("MMU component", _IMPL)
    lookup_ns: Ns = duration("MMU lookup time", "For each request", "PE_MMU")


class Protocol(Model):
    """How collectives of some sizes send their messages, after NCCL's protocols."""

    up_to_bytes: NoBytes = described(
        "largest call", "Of the larger side of a call on a device; 0 if the protocol is not used", default=0
    )
    start_ns: Ns = duration("start", "Added to system.host.collective_start_ns", "start of a protocol", default=0.0)
    chunk_ns: Ns = described(
        "cost per chunk", "The receiving PE's, added to writing each message to its slot", default=0.0
    )
    payload: Share = described(
        "share of payload", "Of the bytes of a message on links; the rest are flags", default=1.0
    )
    n_slots: NoCount = described("slots", "Slots of a ring; 0: n_slots of pe_ipcq", default=0)
    slot_bytes: NoBytes = described("slot size", "Each slot; 0: slot_bytes of pe_ipcq", default=0)
    channels: NoCount = described("channels", "0: channels of pe_ipcq", default=0)


class PeIpcqConfig(Model):
    """Queues between PEs."""

    impl: Impl = described("Message queue component", _IMPL)
    n_slots: Count = described("Slots per queue", "Slots of a ring: one ring for each direction", "a credit")
    slot_bytes: Bytes = described("Slot size", "Each slot", "a credit")
    credit_bytes: Bytes = described("Credit message size", "The message that gives a slot back to the sender")
    sram_setup_ns: Ns = duration("Set-up time, queue in SRAM", "Once per access to a ring in SRAM")
    hbm_setup_ns: Ns = duration("Set-up time, queue in HBM", "Once per access to a ring in HBM")
    channels: Count = described(
        "Channels", "PEs of a die that a collective uses at least, each for a part, where PEs share memory", default=1
    )
    ll: Protocol = described("Protocol LL", default=Protocol())
    ll128: Protocol = described("Protocol LL128", default=Protocol())
    simple: Protocol = described("Protocol Simple", default=Protocol())


class Pe(Model):
    """A processing element."""

    pe_cpu: PeCpuConfig = described(parts="pe_cpu")
    pe_scheduler: PeSchedulerConfig = described(parts="pe_scheduler")
    pe_dma: PeDmaConfig = described(parts=("pe", "pe_dma"))
    pe_fetch_store: PeFetchStoreConfig
    pe_gemm: PeGemmConfig = described(parts=("pe", "pe_gemm"))
    pe_math: PeMathConfig = described(parts=("pe", "pe_math"))
    pe_tcm: PeTcmConfig = described(parts="pe_tcm")
    pe_mmu: PeMmuConfig = described(parts="pe_mmu")
    pe_ipcq: PeIpcqConfig = described(parts="pe_ipcq")


class Cube(Model):
    """An HBM stack with the die under it."""

    propagation_ns_per_mm: NsPerMm = duration("Wire delay", "Of wires on the die and on the interposer", "mesh link")
    pe_layout: PeLayout
    noc: Noc = described(parts="cube")
    ucie: Ucie = described(parts=("cube", "ucie"))
    m_cpu: MCpu = described(parts="m_cpu")
    hbm: Hbm = described(parts=("cube", "hbm", "hbm_ctrl"))
    llc: Llc = described(
        parts="llc", default=Llc(impl="llc", size_mib=0, ways=16, line_bytes=256, hit_ns=20.0, bw_gbs=256.0)
    )
    sram: Sram = described(parts="sram")
    pe: Pe


class Sips(Model):
    """The SIPs of a system, and their topology."""

    count: Count = described("SIPs", "SIPs")
    per_host: Count | None = described(
        "SIPs per host", "SIPs of a host, which the topology connects; NICs connect hosts", default=None
    )
    topology: Literal[
        "ring_1d", "torus_2d", "mesh_2d", "mesh_2d_no_wrap", "torus_3d", "fully_connected", "switch", "fat_tree"
    ] = described("Topology of the SIPs", "Links between SIPs; mesh_2d is another name of torus_2d")  # fmt: skip
    w: Count | None = described(
        "Columns of SIPs", "Columns of a 2-D or 3-D topology whose count is no square or cube number", default=None
    )
    h: Count | None = described(
        "Rows of SIPs", "Rows of a 2-D or 3-D topology whose count is no square or cube number", default=None
    )
    d: Count | None = described(
        "Layers of SIPs", "Layers of a 3-D topology whose count is no cube number", default=None
    )

    @property
    def of_host(self) -> int:
        """SIPs of a host, which `topology` connects; all of them unless `per_host` is given."""
        return self.per_host or self.count


class Pcie(Model):
    """The PCIe link of a SIP."""

    bw_gbs: Gbs = rate("PCIe bandwidth", "Each way")
    latency_ns: Ns = duration("PCIe latency", "Each way")
    efficiency: Share = described(
        "PCIe efficiency", "Share of bw_gbs that the protocol of the link leaves for flits", default=1.0
    )


class SipLink(Model):
    """A link between two SIPs, and the routers at its ends."""

    bw_gbs: Gbs = rate("Bandwidth between SIPs", "Each way")
    latency_ns: Ns = duration("Latency between SIPs", "Each way")
    header_bytes: NoBytes = described("SIP link header per flit", "Sent with each flit", default=0)
    router: SipRouter = described("SIP router", default=SipRouter())


class SipSwitch(Model):
    """A switch; its ports have SIP links, or NIC links between hosts."""

    ports: Count = described("Ports of a SIP switch", "Links to SIPs and other switches")
    impl: Impl = described("SIP switch component", _IMPL)
    overhead_ns: Ns = duration("SIP switch latency", _OVERHEAD, "SIP switch")
    reduce: Literal["none", "sum"] = described(
        "Reduction in a SIP switch",
        "sum: the switch adds what the SIPs of a collective send, and sends them the sum",
        default="none",
    )


class FatTree(Model):
    """The switches of topology fat_tree, and those between hosts."""

    levels: Levels = described("Levels of a fat tree", "Levels of switches above the SIPs")
    oversubscription: Count = described(
        "Oversubscription of a fat tree", "Ports down for each port up, of the switches below the top"
    )


class Nic(Model):
    """The network interfaces of hosts; a fat tree of switches connects them."""

    bw_gbs: Gbs = rate("NIC bandwidth", "Each way")
    latency_ns: Ns = duration("NIC latency", "Between NIC and switch, and between switches, each way")
    sips: Count = described("SIPs per NIC", "SIPs of a host that share a NIC")
    wiring: Literal["by_host", "by_rail"] = described(
        "Wiring of NICs", "One tree of all NICs, or one for each NIC of a host: NICs of one number are a rail"
    )


class HostLink(Model):
    """The link between host and switch."""

    bw_gbs_per_sip: Gbs = rate("Host bandwidth per SIP", "Each way, times the number of SIPs")
    latency_ns: Ns = duration("Host latency", "Each way")


class Host(Model):
    """Cost of a launch on the host before its message is sent."""

    launch_ns: Ns = duration(
        "Host time per launch",
        "Of the host's program for each launch or graph; hidden by earlier work",
        "host, start of launches",
    )
    collective_ns: Ns = duration(
        "Host time per collective", "Added to that for each call of a collective", "host, start of launches"
    )
    doorbell_ns: Ns = duration(
        "Doorbell latency", "From the host's write until the device sees it; hidden by earlier work", "doorbell"
    )
    descriptor_ns: Ns = duration(
        "Descriptor fetch", "The device's fetch of a launch or graph, after earlier work", "descriptor fetch"
    )
    attention_start_ns: Ns = duration(
        "Start of attention",
        "Added to the descriptor fetch of a launch whose name begins with attention, outside a graph",
        "start of attention",
        default=0.0,
    )
    collective_start_ns: Ns = duration(
        "Start of a collective", "Added to the descriptor fetch of a collective", "start of a collective", default=0.0
    )

    @staticmethod
    def start_field(name: str, collective: bool = False) -> str:
        """Return the field that is added to the descriptor fetch of a launch or collective, "" if none is."""
        if collective:
            return "collective_start_ns"
        return "attention_start_ns" if name.startswith("attention") else ""

    def fetch_ns(self, name: str, collective: bool = False) -> float:
        """Time of the device from the doorbell to the start of a launch or collective [ns]."""
        added = self.start_field(name, collective)
        return self.descriptor_ns + (float(getattr(self, added)) if added else 0.0)


class System(Model):
    """The parts outside the SIPs."""

    sips: Sips = described(parts="sip")
    sip_link: SipLink = described(sets="SIP link", parts=("sip", "io"))
    sip_switch: SipSwitch = described(
        parts=("sip_switch", "nic_switch"), default=SipSwitch(ports=64, impl="sip_switch", overhead_ns=100.0)
    )
    fat_tree: FatTree = described(parts=("sip_switch", "nic_switch"), default=FatTree(levels=2, oversubscription=1))
    nic: Nic = described(
        sets="NIC link",
        parts=("nic", "nic_switch"),
        default=Nic(bw_gbs=50.0, latency_ns=500.0, sips=1, wiring="by_host"),
    )
    switch: Transit = described("PCIe switch", sets="PCIe switch", parts="switch")
    pcie: Pcie = described(sets="PCIe link", parts=("switch", "pcie_ep"))
    host_link: HostLink = described(sets="host link", parts=("host", "switch"))
    host: Host = described(
        "Host", parts="host", default=Host(launch_ns=0.0, collective_ns=0.0, doorbell_ns=0.0, descriptor_ns=0.0)
    )
    flit_bytes: FlitBytes = described("Flit size", "Unit in which messages are sent over all links", default=FLIT_BYTES)
    command_bytes: NoBytes = described("Read command size", "The command of a read, at most one flit", default=0)
    attention: Literal["auto", "flash_2", "flash_3"] = described(
        "Blocks of attention",
        "Chosen by estimate, or as FlashAttention-2 or -3: whole tiles, parts by its rule, copies of grouped heads (2)",
        default="auto",
    )


class CubeMesh(Model):
    """The cubes of a SIP."""

    w: Count = described("Cubes per row", "Cubes in a row")
    h: Count = described("Rows of cubes", "Rows of cubes; row 0 is north")


class IoNoc(Model):
    """The network of an IO chiplet."""

    impl: Impl = described("I/O network component", _IMPL)
    overhead_ns: Ns = duration("I/O network latency", _OVERHEAD, "IO NoC", parts="io_link")
    port_bw_gbs: Gbs = rate("I/O bandwidth per port", "Each port, each way", "port of the IO NoC")


class Io(Model):
    """The IO chiplet of a SIP."""

    pcie_ep: Transit = described("PCIe endpoint", sets="PCIe end point", parts="pcie_ep")
    io_cpu: Cpu = described(sets="IO_CPU", parts="io_cpu")
    noc: IoNoc = described(parts="io_noc")


class Sip(Model):
    """A SIP: the device that one rank drives."""

    cube_mesh: CubeMesh = described(parts="sip")
    io: Io = described(parts="io")


class MachineConfig(Model):
    """A machine as its file describes it, validated and frozen. `read_machine` creates it and checks the rules."""

    schema_version: Version = described("Schema version", "Form of the file")
    system: System
    sip: Sip
    cube: Cube
    cost: Cost

    @property
    def n_sips(self) -> int:
        return self.system.sips.count

    @property
    def cubes_per_sip(self) -> int:
        return self.sip.cube_mesh.w * self.sip.cube_mesh.h

    @property
    def pes_per_cube(self) -> int:
        layout = self.cube.pe_layout
        return len(layout.pe_routers) if layout.pe_routers else layout.pe_per_corner * len(layout.corners)

    @property
    def hbm_slices(self) -> int:
        """HBM slices of a cube: one for each PE, or for each of `cube.hbm.controllers`."""
        return self.cube.hbm.controllers or self.pes_per_cube

    @property
    def memory_apart(self) -> bool:
        """Whether HBM slices are apart from PEs."""
        return self.cube.hbm.controllers is not None

    @property
    def hbm_gbs_per_pe(self) -> float:
        """HBM bandwidth of a cube over its PEs [GB/s]."""
        hbm = self.cube.hbm
        return hbm.slice_gbs * hbm.controllers / self.pes_per_cube if hbm.controllers else hbm.slice_gbs

    @property
    def hbm_gbs_per_sip(self) -> float:
        """HBM bandwidth of a SIP [GB/s]."""
        return self.hbm_gbs_per_pe * self.pes_per_sip

    @property
    def pes_per_sip(self) -> int:
        return self.cubes_per_sip * self.pes_per_cube

    @property
    def n_pes(self) -> int:
        return self.n_sips * self.pes_per_sip

    @cached_property
    def hash(self) -> str:
        """The sha256 of the validated content: independent of comments, the order of keys, and 1 for 1.0.

        Costs are excluded: no result of a simulation depends on them. So are optional keys that have their default: a
        new key changes no hash.
        """
        spec = {name: value for name, value in _given(self).items() if name != "cost"}
        return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()


@cache
def machine_keys() -> tuple[Key, ...]:
    """Every key of a machine file, in its order."""
    return tuple(walk(MachineConfig))


@cache
def speeds() -> dict[str, str]:
    """Map the path of each key that only tells how fast a part is to RATE or DURATION."""
    return {key.path: key.speed for key in machine_keys() if key.speed}


@cache
def settings(resource: str, *speeds: str) -> tuple[str, ...]:
    """Paths of the keys that set a resource or limit, of all speeds or of some.

    >>> settings("mesh link"), settings("mesh link", "rate")
    (('cube.propagation_ns_per_mm', 'cube.noc.link_bw_gbs', 'cube.noc.header_bytes'), ('cube.noc.link_bw_gbs',))
    """
    keys = (key for key in machine_keys() if resource in key.sets)
    return tuple(key.path for key in keys if not speeds or key.speed in speeds)
