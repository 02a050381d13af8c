"""Which lines of the machine file a part of the critical path stands in."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple


class Blame(NamedTuple):
    """What a resource is called where there are many alike, and the fields that would change its time."""

    group: str
    fields: tuple[str, ...]


_PE = "cube.pe."
_COMPONENTS = {
    "hbm_ctrl": Blame("HBM slice", ("cube.hbm.channel_bw_gbs",)),
    "sram": Blame("SRAM", ("cube.sram.bw_gbs",)),
    "pe_gemm": Blame("matrix engine", (f"{_PE}pe_gemm.clock_ghz",)),
    "pe_math": Blame("vector engine", (f"{_PE}pe_math.clock_ghz",)),
    "fetch": Blame("fetch from TCM", (f"{_PE}pe_tcm.read_bw_gbs",)),
    "store": Blame("store to TCM", (f"{_PE}pe_tcm.write_bw_gbs",)),
    "pe_scheduler": Blame("PE_SCHEDULER", (f"{_PE}pe_scheduler.tile_ns",)),
    "pe_mmu": Blame("PE_MMU", (f"{_PE}pe_mmu.lookup_ns",)),
    "pe_cpu": Blame("PE_CPU", (f"{_PE}pe_cpu.command_ns",)),
    "m_cpu": Blame("M_CPU", ("cube.m_cpu.service_ns",)),
    "io_cpu": Blame("IO_CPU", ("sip.io.io_cpu.service_ns",)),
    "router": Blame("routers", ("cube.noc.router.overhead_ns",)),
    "ucie": Blame("UCIe ports", ("cube.ucie.port_ns",)),
    "switch": Blame("PCIe switch", ("system.switch.overhead_ns",)),
    "pcie_ep": Blame("PCIe end point", ("sip.io.pcie_ep.overhead_ns",)),
    "noc": Blame("IO NoC", ("sip.io.noc.overhead_ns",)),
}
# Links by the kinds of their two ends, in either direction: name, bandwidth, latency.
_LINKS: dict[frozenset[str], tuple[str, str, str]] = {
    frozenset(ends): (name, bandwidth, latency)
    for ends, name, bandwidth, latency in (
        (("host", "switch"), "host link", "system.host_link.bw_gbs_per_sip", "system.host_link.latency_ns"),
        (("switch", "pcie_ep"), "PCIe link", "system.pcie.bw_gbs", "system.pcie.latency_ns"),
        (("noc",), "SIP link", "system.sip_link.bw_gbs", "system.sip_link.latency_ns"),
        (("ucie",), "UCIe link", "cube.ucie.bw_gbs", ""),
        (("ucie", "router"), "link of a UCIe port", "cube.ucie.router_bw_gbs", ""),
        (("router",), "mesh link", "cube.noc.link_bw_gbs", "cube.propagation_ns_per_mm"),
        (("hbm_ctrl", "router"), "link of an HBM slice", "cube.hbm.bw_gbs", ""),
        (("sram", "router"), "link of SRAM", "cube.sram.bw_gbs", ""),
        (("m_cpu", "router"), "link of M_CPU", "cube.m_cpu.bw_gbs", ""),
        (("pe_dma", "router"), "link of PE_DMA", f"{_PE}pe_dma.bw_gbs", ""),
        (("pe_cpu", "router"), "link of PE_CPU", f"{_PE}pe_cpu.bw_gbs", ""),
        (("noc", "pcie_ep"), "port of the IO NoC", "sip.io.noc.port_bw_gbs", ""),
        (("noc", "io_cpu"), "port of the IO NoC", "sip.io.noc.port_bw_gbs", ""),
        (("noc", "ucie"), "port of the IO NoC", "sip.io.noc.port_bw_gbs", ""),
    )
}
_ROUTER = re.compile(r"r\d+c\d+")


@lru_cache(maxsize=1 << 16)
def kind_of(node: str) -> str:
    """Return the kind of a component, from its id.

    Examples
    --------
    >>> [kind_of(x) for x in ("sip0.cube1.hbm_ctrl.pe0", "sip0.cube0.r1c2", "sip0.io.ucie_r0.conn1", "host")]
    ['hbm_ctrl', 'router', 'ucie', 'host']
    """
    *before, last = node.split(".")
    if _ROUTER.fullmatch(last):
        return "router"
    if before and before[-1].startswith("ucie_"):
        return "ucie"
    return "hbm_ctrl" if before and before[-1] == "hbm_ctrl" else last


def blame(kind: str, resource: str) -> Blame:
    """Return what stands behind a part of a step: `kind` is the part's, `resource` a component or a link.

    Examples
    --------
    >>> blame("queueing", "sip0.io.noc->sip1.io.noc")
    Blame(group='SIP link', fields=('system.sip_link.bw_gbs',))
    """
    if kind == "composite":
        return Blame("composites, tiles not logged:", ())
    src, arrow, dst = resource.partition("->")
    if not arrow:
        return _COMPONENTS.get(kind_of(src), Blame(resource, ()))
    name, bandwidth, latency = _LINKS.get(frozenset((kind_of(src), kind_of(dst))), (resource, "", ""))
    if kind == "wire":
        return Blame(f"wire of the {name}" if len(name.split()) == 2 else name, (latency,) if latency else ())
    return Blame(name, (bandwidth,) if bandwidth else ())
