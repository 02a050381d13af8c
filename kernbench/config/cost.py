"""The keys below `cost`: what machines are compared by beside their time. No time depends on them."""

from __future__ import annotations

from typing import Annotated

from kernbench.config.values import Model, Proxy, Unit, described

Pj = Annotated[Proxy, Unit("pJ")]
PjPerBit = Annotated[Proxy, Unit("pJ/bit")]
PjPerBitMm = Annotated[Proxy, Unit("pJ/bit/mm")]
Um2 = Annotated[Proxy, Unit("um2")]
Mm2 = Annotated[Proxy, Unit("mm2")]
Mm2PerMib = Annotated[Proxy, Unit("mm2/MiB")]
Mm2PerGbs = Annotated[Proxy, Unit("mm2 per GB/s")]


class Energy(Model):
    """Energy of what is done and moved; what a machine takes while it waits is not in it."""

    mac_f16_pj: Pj = described("A multiply-accumulate of float16")
    mac_bf16_pj: Pj = described("Of bfloat16")
    mac_f8_pj: Pj = described("Of float8_e4m3fn and float8_e5m2")
    mac_i8_pj: Pj = described("Of int8")
    mac_f32_pj: Pj = described("Of float32")
    tcm_pj_per_bit: PjPerBit = described("Read or written in a TCM")
    sram_pj_per_bit: PjPerBit = described("Read or written in a cube's SRAM")
    hbm_pj_per_bit: PjPerBit = described("Read or written in HBM, interface included")
    router_pj_per_bit: PjPerBit = described("Through a router")
    wire_pj_per_bit_mm: PjPerBitMm = described("Over a wire of the mesh between routers")
    ucie_pj_per_bit: PjPerBit = described("Over a UCIe link, both ports together")
    sip_link_pj_per_bit: PjPerBit = described("From SIP to SIP")
    pcie_pj_per_bit: PjPerBit = described("Between a SIP and the PCIe switch")


class Area(Model):
    """Silicon of the cubes' dies and the IO chiplets; memory stacks are not in it."""

    mac_um2: Um2 = described("A multiplier and its accumulator, for f16")
    pe_mm2: Mm2 = described("The rest of a PE: CPU, scheduler, DMA, vector engine")
    tcm_mm2_per_mib: Mm2PerMib = described("TCM")
    sram_mm2_per_mib: Mm2PerMib = described("SRAM of a cube")
    router_mm2_per_gbs: Mm2PerGbs = described("A router, by the bandwidth of a link")
    hbm_mm2_per_gbs: Mm2PerGbs = described("Controllers and interface of the HBM, by its bandwidth")
    ucie_mm2_per_gbs: Mm2PerGbs = described("A UCIe port, by its bandwidth each way")
    sip_link_mm2_per_gbs: Mm2PerGbs = described("One end of a link between SIPs, by its bandwidth each way")
    io_mm2: Mm2 = described("The rest of an IO chiplet")


class Cost(Model):
    """Energy and area of parts."""

    energy: Energy
    area: Area
