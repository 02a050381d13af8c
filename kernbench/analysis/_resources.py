"""Resources of a machine: the group of each, the fields of the machine file that change it, and why it took time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from kernbench.config._kinds import DURATION
from kernbench.config._schema import speeds


class Attribution(NamedTuple):
    """The group of a resource, and the fields of the machine file that change its time."""

    group: str
    fields: tuple[str, ...]


_PE_KEY = "cube.pe."
_COMPONENTS = {
    "hbm_ctrl": Attribution("HBM slice", ("cube.hbm.channel_bw_gbs",)),
    "sram": Attribution("SRAM", ("cube.sram.bw_gbs",)),
    "pe_gemm": Attribution("matrix engine", (f"{_PE_KEY}pe_gemm.clock_ghz",)),
    "pe_math": Attribution("vector engine", (f"{_PE_KEY}pe_math.clock_ghz",)),
    "fetch": Attribution("fetch from TCM", (f"{_PE_KEY}pe_tcm.read_bw_gbs",)),
    "store": Attribution("store to TCM", (f"{_PE_KEY}pe_tcm.write_bw_gbs",)),
    "pe_scheduler": Attribution("PE_SCHEDULER", (f"{_PE_KEY}pe_scheduler.tile_ns",)),
    "pe_mmu": Attribution("PE_MMU", (f"{_PE_KEY}pe_mmu.lookup_ns",)),
    "pe_cpu": Attribution("PE_CPU", (f"{_PE_KEY}pe_cpu.command_ns",)),
    "m_cpu": Attribution("M_CPU", ("cube.m_cpu.service_ns",)),
    "io_cpu": Attribution("IO_CPU", ("sip.io.io_cpu.service_ns",)),
    "router": Attribution("routers", ("cube.noc.router.overhead_ns",)),
    "ucie": Attribution("UCIe ports", ("cube.ucie.port_ns",)),
    "switch": Attribution("PCIe switch", ("system.switch.overhead_ns",)),
    "pcie_ep": Attribution("PCIe end point", ("sip.io.pcie_ep.overhead_ns",)),
    "noc": Attribution("IO NoC", ("sip.io.noc.overhead_ns",)),
    "launch": Attribution("host, start of launches", ("system.host.launch_ns", "system.host.collective_ns")),
    "doorbell": Attribution("doorbell", ("system.host.doorbell_ns",)),
    "descriptor": Attribution("descriptor fetch", ("system.host.descriptor_ns",)),
}
# Links by the kinds of their two ends, in either direction: name, field of the bandwidth, field of the latency.
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
        (("pe_dma", "router"), "link of PE_DMA", f"{_PE_KEY}pe_dma.bw_gbs", ""),
        (("pe_cpu", "router"), "link of PE_CPU", f"{_PE_KEY}pe_cpu.bw_gbs", ""),
        (("noc", "pcie_ep"), "port of the IO NoC", "sip.io.noc.port_bw_gbs", ""),
        (("noc", "io_cpu"), "port of the IO NoC", "sip.io.noc.port_bw_gbs", ""),
        (("noc", "ucie"), "port of the IO NoC", "sip.io.noc.port_bw_gbs", ""),
    )
}
_ROUTER = re.compile(r"r\d+c\d+")


@lru_cache(maxsize=1 << 16)
def kind_of(node: str) -> str:
    """Kind of a component, from its id.

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


def attribution(kind: str, resource: str) -> Attribution:
    """Group and fields of a part of a step, given its kind and its component or link.

    Examples
    --------
    >>> attribution("queueing", "sip0.io.noc->sip1.io.noc")
    Attribution(group='SIP link', fields=('system.sip_link.bw_gbs',))
    """
    src, arrow, dst = resource.partition("->")
    if not arrow:
        return _COMPONENTS.get(kind_of(src), Attribution(resource, ()))
    name, bandwidth, latency = _LINKS.get(frozenset((kind_of(src), kind_of(dst))), (resource, "", ""))
    if kind == "wire":
        return Attribution(f"wire of the {name}" if len(name.split()) == 2 else name, (latency,) if latency else ())
    return Attribution(name, (bandwidth,) if bandwidth else ())


@dataclass(frozen=True, slots=True)
class Reason:
    """A resource on the critical path.

    `share` is its part of the device's time or, with `host`, of the time of host copies, launches and completions.
    `note` says why these fields limit, or what would help if no field does.
    """

    what: str
    resource: str
    others: int
    kind: str
    ns: float
    share: float
    fields: tuple[str, ...]
    together: tuple[str, ...] = ()
    impl: str = ""
    host: bool = False
    note: str = ""

    def advice(self) -> str:
        if not self.fields:
            return self.note
        verb = "lower" if speeds().get(self.fields[0]) == DURATION else "raise"
        text = f"{verb} {', '.join(self.fields)}"
        text = f"{text} together with {', '.join(self.together)}" if self.together else text
        text = f"{text}, or change {self.impl}" if self.impl else text
        return f"{text}: {self.note}" if self.note else text
