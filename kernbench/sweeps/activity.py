"""What a run did, in counts that energy follows from: products, and bytes by what they were moved over."""

from __future__ import annotations

from collections.abc import Mapping

from kernbench.analysis.ideal import macs_per_ns, rate_key
from kernbench.analysis.records import LinkTable
from kernbench.config import MachineConfig
from kernbench.sweeps.keys import Row
from kernbench.topology.naming import parse

MACS, BYTES, WIRE = "macs_", "_bytes", "wire_byte_mm"


def activity(config: MachineConfig, links: LinkTable, busy_ps: Mapping[str, int], dtype: object = "f16") -> Row:
    """Return the counts of a run.

    Parameters
    ----------
    config : MachineConfig
    links : LinkTable
        Traffic of the run, or of the part that counts.
    busy_ps : mapping
        Busy time of the components, as `Records.busy_by_component` has it.
    dtype : DType or name
        Of the products.

    Returns
    -------
    dict
        `macs_<type>`, padding included; `<part>_bytes` of TCM, SRAM and HBM (read and written), of routers, UCIe, SIP
        links and PCIe; and for the wires between routers bytes times mm.

    Notes
    -----
    TCM is touched by a DMA once for each byte, and by the engines' fetch and store: their busy time at the port's
    bandwidth.
    """
    pe = config.cube.pe
    nbytes = dict.fromkeys(("tcm", "sram", "hbm", "router", "ucie", "sip_link", "pcie"), 0.0)
    wire = 0.0
    for name, count in zip(links.names, links.nbytes.tolist(), strict=True):
        src, dst = (parse(end).kind for end in name.split("->"))
        for part in _touched(src, dst):
            nbytes[part] += count
        if src == dst == "router":
            wire += count * config.cube.noc.pitch_mm
    macs = 0.0
    for name, ps in busy_ps.items():
        if name.endswith(".pe_gemm"):
            macs += ps / 1000 * macs_per_ns(config, dtype)
        elif name.endswith(".fetch"):
            nbytes["tcm"] += ps / 1000 * pe.pe_tcm.read_bw_gbs
        elif name.endswith(".store"):
            nbytes["tcm"] += ps / 1000 * pe.pe_tcm.write_bw_gbs
    counts = {f"{part}{BYTES}": round(count) for part, count in nbytes.items()}
    return {f"{MACS}{rate_key(dtype)}": round(macs), **counts, WIRE: round(wire)}


def _touched(src: str, dst: str) -> list[str]:
    """Return what a byte over a link between two kinds of nodes touches."""
    ends = {src, dst}
    touched = ["router"] if dst == "router" else []
    touched += ["hbm"] if "hbm_ctrl" in ends else []
    touched += ["sram"] if "sram" in ends else []
    touched += ["tcm"] if "pe_dma" in ends else []
    touched += ["ucie"] if ends == {"ucie"} else []
    touched += ["sip_link"] if ends == {"io_noc"} else []
    touched += ["pcie"] if ends == {"switch", "pcie_ep"} else []
    return touched
