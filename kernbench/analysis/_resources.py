"""Resources of a machine: what readers call each, the fields that set it, and why it took time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from kernbench.config._kinds import DURATION, RATE
from kernbench.config._schema import PROTOCOLS, settings, speeds


class Attribution(NamedTuple):
    """Name of a resource for readers, and the fields of the machine file that set its time."""

    group: str
    fields: tuple[str, ...]


# By the kind of the component.
RESOURCES = {
    "hbm_ctrl": "HBM slice", "llc": "LLC", "sram": "SRAM", "pe_gemm": "matrix engine", "pe_math": "vector engine",
    "fetch": "fetch from TCM", "store": "store to TCM", "pe_scheduler": "PE_SCHEDULER", "pe_mmu": "PE_MMU",
    "pe_cpu": "PE_CPU", "m_cpu": "M_CPU", "io_cpu": "IO_CPU", "router": "routers", "ucie": "UCIe ports",
    "switch": "PCIe switch", "pcie_ep": "PCIe end point", "noc": "IO NoC", "launch": "host, start of launches",
    "doorbell": "doorbell", "descriptor": "descriptor fetch", "attention_start": "start of attention",
    "collective_start": "start of a collective",
    **dict.fromkeys(PROTOCOLS, "start of a protocol"),
    "sip_switch": "SIP switch", "nic_switch": "SIP switch",
}  # fmt: skip
# Kinds of links: what readers call them, and the kinds of their two ends, in either direction.
_LINKS: tuple[tuple[str, str, tuple[tuple[str, ...], ...]], ...] = (
    ("host", "host link", (("host", "switch"),)),
    ("pcie", "PCIe link", (("switch", "pcie_ep"),)),
    ("sip", "SIP link", (("noc",), ("noc", "sip_switch"), ("sip_switch",))),
    ("nic", "NIC link", (("noc", "nic"), ("nic", "nic_switch"), ("nic_switch",))),
    ("io", "port of the IO NoC", (("noc", "pcie_ep"), ("noc", "io_cpu"), ("noc", "ucie"))),
    ("ucie", "UCIe link", (("ucie",),)),
    ("ucie_port", "link of a UCIe port", (("ucie", "router"),)),
    ("mesh", "mesh link", (("router",),)),
    ("hbm", "link of an HBM slice", (("hbm_ctrl", "router"), ("hbm_ctrl", "llc"))),
    ("llc", "link of an LLC slice", (("llc", "router"),)),
    ("sram", "link of SRAM", (("sram", "router"),)),
    ("m_cpu", "link of M_CPU", (("m_cpu", "router"),)),
    ("pe_dma", "link of PE_DMA", (("pe_dma", "router"),)),
    ("pe_cpu", "link of PE_CPU", (("pe_cpu", "router"),)),
)
LINKS = {kind: name for kind, name, _ in _LINKS}
_BY_ENDS = {frozenset(ends): name for _, name, pairs in _LINKS for ends in pairs}
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
    return before[-1] if before and before[-1] in ("hbm_ctrl", "llc") else last


def attribution(kind: str, resource: str) -> Attribution:
    """Group and fields of a part of a step, given its kind and its component or link.

    Examples
    --------
    >>> attribution("queueing", "sip0.io.noc->sip1.io.noc")
    Attribution(group='SIP link', fields=('system.sip_link.bw_gbs',))
    """
    src, arrow, dst = resource.partition("->")
    name = _BY_ENDS.get(frozenset((kind_of(src), kind_of(dst)))) if arrow else RESOURCES.get(kind_of(src))
    if name is None:
        return Attribution(resource, ())
    if not arrow:
        fields = settings(name, RATE, DURATION)
        of_protocol = tuple(field for field in fields if field.split(".")[-2] == kind_of(src))
        return Attribution(name, of_protocol or fields)
    if kind == "wire":
        return Attribution(f"wire of the {name}" if len(name.split()) == 2 else name, settings(name, DURATION))
    return Attribution(name, settings(name, RATE))


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
