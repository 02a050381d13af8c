"""Energy and area (docs/model.md, M1.5): counters of a run, what they cost, and the silicon of a machine.

Both are proxies from the machine file, for comparing machines, not for building them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernbench.analysis._records import LinkTable
from kernbench.analysis._roofline import matrix_ns, rate_key
from kernbench.config import MachineConfig
from kernbench.points._keys import Row
from kernbench.topology._naming import parse
from kernbench.topology._sip_network import SipNetwork

MACS, BYTES, WIRE = "macs_", "_bytes", "wire_byte_mm"


def counters(config: MachineConfig, links: LinkTable, busy_ps: Mapping[str, int], dtype: object = "f16") -> Row:
    pe = config.cube.pe
    nbytes = dict.fromkeys(("tcm", "sram", "hbm", "router", "ucie", "sip_link", "pcie"), 0.0)
    wire = 0.0
    for name, count in zip(links.names, links.nbytes.tolist(), strict=True):
        src, dst = (parse(end).kind for end in name.split("->"))
        for part in _touched(src, dst):
            nbytes[part] += count
        if src == dst == "router":
            wire += count * config.cube.noc.link_mm
    tile = pe.pe_gemm.tile
    macs, tile_ns = 0.0, matrix_ns(config, (tile.m, tile.k, tile.n), dtype)
    for name, ps in busy_ps.items():
        if name.endswith(".pe_gemm"):
            macs += ps / 1000 / tile_ns * tile.m * tile.k * tile.n
        elif name.endswith(".fetch"):
            nbytes["tcm"] += ps / 1000 * pe.pe_tcm.read_bw_gbs
        elif name.endswith(".store"):
            nbytes["tcm"] += ps / 1000 * pe.pe_tcm.write_bw_gbs
    counts = {f"{part}{BYTES}": round(count) for part, count in nbytes.items()}
    return {f"{MACS}{rate_key(dtype)}": round(macs), **counts, WIRE: round(wire)}


def _touched(src: str, dst: str) -> list[str]:
    """Parts of a machine that move a byte on a link between two kinds of nodes."""
    ends = {src, dst}
    touched = ["router"] if dst == "router" else []
    touched += ["hbm"] if "hbm_ctrl" in ends else []
    touched += ["sram"] if "sram" in ends else []
    touched += ["tcm"] if "pe_dma" in ends else []
    touched += ["ucie"] if ends == {"ucie"} else []
    touched += ["sip_link"] if ends <= {"io_noc", "sip_switch", "nic", "nic_switch"} else []
    touched += ["pcie"] if ends == {"switch", "pcie_ep"} else []
    return touched


_PARTS = ("sram", "hbm", "ucie", "sip_link", "pcie")


def machine_columns(config: MachineConfig) -> Row:
    """Size, bandwidths and area of a machine, as columns of a table.

    `bisection_gbs` is the bandwidth across the middle of a SIP's mesh of cubes, at its narrower cut, in one direction.
    """
    mesh, ucie = config.sip.cube_mesh, config.cube.ucie
    across = [side for side, length in ((mesh.h, mesh.w), (mesh.w, mesh.h)) if length > 1]
    return {
        "sips": config.n_sips,
        "cubes": config.n_sips * config.cubes_per_sip,
        "pes": config.n_pes,
        "hbm_gbs": config.hbm_gbs_per_sip * config.n_sips,
        "bisection_gbs": min(across) * ucie.connections * ucie.flit_gbs if across else 0.0,
        "area_mm2": round(area_mm2(config), 3),
    }


def area_mm2(config: MachineConfig) -> float:
    """Silicon area of all cubes and IO chiplets [mm2]: docs/model.md, M1.5."""
    area, cube, mesh = config.cost.area, config.cube, config.sip.cube_mesh
    pe = area.mac_um2 * 1e-6 * cube.pe.pe_gemm.macs + area.pe_mm2
    pe += area.tcm_mm2_per_mib * cube.pe.pe_tcm.size_mb
    hbm_gbs = config.hbm_slices * cube.hbm.channels * cube.hbm.channel_bw_gbs
    routers = cube.noc.rows * cube.noc.cols - len(cube.noc.removed)
    port = area.ucie_mm2_per_gbs * cube.ucie.bw_gbs
    die = (
        config.pes_per_cube * pe
        + area.sram_mm2_per_mib * cube.sram.size_mib
        + area.router_mm2_per_gbs * routers * cube.noc.link_bw_gbs
        + area.hbm_mm2_per_gbs * hbm_gbs
        + 4 * cube.ucie.connections * port
    )
    shore = area.io_mm2 + mesh.h * cube.ucie.connections * port
    net = SipNetwork(config)
    ends = [net.link(sip, other).bw_gbs for sip in range(config.n_sips) for other in net.neighbours[sip]]
    return config.n_sips * (config.cubes_per_sip * die + shore) + area.sip_link_mm2_per_gbs * sum(ends)


def energy_columns(config: MachineConfig, row: Mapping[str, Any]) -> Row:
    """Energy of a run [uJ] by part and in total, from the columns of `counters`; empty without them."""
    if WIRE not in row:
        return {}
    energy = config.cost.energy
    pj = {
        "matrix": sum(
            float(count) * getattr(energy, f"mac_{name.removeprefix(MACS)}_pj")
            for name, count in row.items()
            if name.startswith(MACS)
        )
    }
    for part in ("tcm", *_PARTS):
        pj[part] = 8 * float(row.get(f"{part}{BYTES}", 0)) * getattr(energy, f"{part}_pj_per_bit")
    pj["mesh"] = 8 * float(row.get(f"router{BYTES}", 0)) * energy.router_pj_per_bit
    pj["mesh"] += 8 * float(row[WIRE]) * energy.wire_pj_per_bit_mm
    return {f"energy_{part}_uj": value * 1e-6 for part, value in pj.items()} | {"energy_uj": sum(pj.values()) * 1e-6}
