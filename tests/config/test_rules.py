"""Rules between keys: on each bound a machine loads, and one step beyond it does not."""

from __future__ import annotations

import pytest

from kernbench._units import GIB, MIB
from kernbench.config import _rules as rules
from kernbench.config import read_machine
from kernbench.policy.address import phyaddr
from tests.config.contents import DEFAULT, ONE_PE, changed, faults

SIPS = "system.sips"
RATIO, CREDITS = "system.fat_tree.oversubscription", "system.sip_link.router.flow"
RAILS, REDUCE = "system.nic.wiring", "system.sip_switch.reduce"
TCM = "cube.pe.pe_tcm"
IPCQ = "cube.pe.pe_ipcq"
SIXTEEN = {"cube.noc.rows": 16, "cube.noc.cols": 16, "cube.noc.removed": []}


def row(r: int, n: int) -> list[list[int]]:
    return [[r, c] for c in range(n)]


# What just fits, what just does not, and what is said of it.
CROSSBAR = {
    "cube.noc.topology": "crossbar", "cube.noc.rows": 1, "cube.noc.cols": 1, "cube.noc.pitch_mm": 20.0,
    "cube.noc.removed": [], "cube.pe_layout.corners": ["NW"] * 16,
}  # fmt: skip

BOUNDS = {
    "SIPs of an address": (
        {f"{SIPS}.count": 1024},
        {f"{SIPS}.count": 1025},
        "system.sips.count = 1025 must be <= 1024: the address fields rack and sip",
    ),
    "cubes of an address": (
        {"sip.cube_mesh": {"w": 16, "h": 4}},
        {"sip.cube_mesh": {"w": 65, "h": 1}},
        "sip.cube_mesh = 65 x 1 = 65 cubes must be <= 64: the address field die",
    ),
    "PEs of an address": (
        {**CROSSBAR, "cube.pe_layout.pe_per_corner": 64},
        {**CROSSBAR, "cube.pe_layout.pe_per_corner": 64, "cube.pe_layout.corners": ["NW"] * 17},
        "cube.pe_layout: 1088 PEs must be <= 1024",
    ),
    "HBM window": (
        {"cube.hbm.size_gib": 256},
        {"cube.hbm.size_gib": 256.5},
        "cube.hbm.size_gib = 256.5 must be <= 256 [GiB]",
    ),
    "TCM window": ({f"{TCM}.size_mb": 256}, {f"{TCM}.size_mb": 257}, f"{TCM}.size_mb = 257 must be <= 256 [MiB]"),
    "SRAM window": (
        {"cube.sram.size_mib": 4096},
        {"cube.sram.size_mib": 4097},
        "cube.sram.size_mib = 4097 must be <= 4096 [MiB]",
    ),
    "a command": (
        {"system.flit_bytes": 64, "system.command_bytes": 64},
        {"system.flit_bytes": 64, "system.command_bytes": 65},
        "system.command_bytes = 65 must be <= 64: a command is one flit; use smaller commands",
    ),
    "a square count": (
        {SIPS: {"count": 4, "topology": "torus_2d"}},
        {SIPS: {"count": 5, "topology": "torus_2d"}},
        "system.sips.count = 5 is not a square number: topology torus_2d then needs system.sips.w and h",
    ),
    "w x h": (
        {SIPS: {"count": 6, "topology": "mesh_2d_no_wrap", "w": 3, "h": 2}},
        {SIPS: {"count": 6, "topology": "mesh_2d_no_wrap", "w": 3, "h": 3}},
        "system.sips: w x h = 3 x 3 = 9 must equal count = 6",
    ),
    "both w and h": (
        {SIPS: {"count": 9, "topology": "mesh_2d"}},
        {SIPS: {"count": 9, "topology": "mesh_2d", "w": 3}},
        "system.sips: topology mesh_2d needs both w and h, or neither",
    ),
    "a cube count": (
        {SIPS: {"count": 8, "topology": "torus_3d"}},
        {SIPS: {"count": 9, "topology": "torus_3d"}},
        "system.sips.count = 9 is not a cube number: topology torus_3d then needs system.sips.w, h and d",
    ),
    "w x h x d": (
        {SIPS: {"count": 12, "topology": "torus_3d", "w": 3, "h": 2, "d": 2}},
        {SIPS: {"count": 12, "topology": "torus_3d", "w": 3, "h": 3, "d": 2}},
        "system.sips: w x h x d = 3 x 3 x 2 = 18 must equal count = 12; change one of them",
    ),
    "all of w, h and d": (
        {SIPS: {"count": 6, "topology": "torus_3d", "w": 3, "h": 2, "d": 1}},
        {SIPS: {"count": 6, "topology": "torus_3d", "w": 3, "h": 2}},
        "system.sips: topology torus_3d needs w, h and d, or none for a cube count; give the rest",
    ),
    "d of two dimensions": (
        {SIPS: {"count": 6, "topology": "torus_2d", "w": 3, "h": 2, "d": None}},
        {SIPS: {"count": 6, "topology": "torus_2d", "w": 3, "h": 2, "d": 1}},
        "system.sips.d = 1 belongs to torus_3d, torus_2d has w and h; remove it",
    ),
    "d of a ring": (
        {SIPS: {"count": 6, "topology": "ring_1d"}},
        {SIPS: {"count": 6, "topology": "ring_1d", "d": 6}},
        "system.sips: d belongs to torus_3d, ring_1d has none; remove it",
    ),
    "ports of a switch": (
        {SIPS: {"count": 64, "topology": "switch"}},
        {SIPS: {"count": 65, "topology": "switch"}},
        "system.sips.count = 65 must be <= 64, the ports of the switch; raise system.sip_switch.ports, or use topology",
    ),
    "sums at a switch": (
        {SIPS: {"count": 4, "topology": "switch"}, REDUCE: "sum"},
        {SIPS: {"count": 4, "topology": "fat_tree"}, REDUCE: "sum"},
        "system.sip_switch.reduce = sum needs system.sips.topology = switch, not fat_tree; change one of them",
    ),
    "sums without credits": (
        {SIPS: {"count": 4, "topology": "switch"}, REDUCE: "sum"},
        {SIPS: {"count": 4, "topology": "switch"}, REDUCE: "sum", CREDITS: "credits", "sip.io.noc.overhead_ns": 0},
        "system.sip_switch.reduce = sum needs system.sip_link.router.flow = unbounded, not credits; change one of them",
    ),
    "ports of a fat tree": (
        {SIPS: {"count": 8, "topology": "fat_tree"}, "system.sip_switch.ports": 6, RATIO: 2},
        {SIPS: {"count": 8, "topology": "fat_tree"}, "system.sip_switch.ports": 8, RATIO: 2},
        "oversubscription = 2, 2 of 3 ports lead down; use 6",
    ),
    "ends of a fat tree": (
        {SIPS: {"count": 24, "topology": "fat_tree"}, "system.sip_switch.ports": 6, RATIO: 2},
        {SIPS: {"count": 25, "topology": "fat_tree"}, "system.sip_switch.ports": 6, RATIO: 2},
        "count = 25 must be <= 24, what system.fat_tree.levels = 2 and system.sip_switch.ports = 6 connect; raise one",
    ),
    "hosts of equal size": (
        {SIPS: {"count": 8, "topology": "switch", "per_host": 4}, "system.nic.sips": 2},
        {SIPS: {"count": 8, "topology": "switch", "per_host": 3}, "system.nic.sips": 2},
        "system.sips.per_host = 3 must divide count = 8, and be a multiple of system.nic.sips = 2; change one of them",
    ),
    "a fat tree in a host": (
        {SIPS: {"count": 8, "topology": "fat_tree", "per_host": 8}},
        {SIPS: {"count": 8, "topology": "fat_tree", "per_host": 4}},
        "system.sips.topology = fat_tree connects SIPs of a host, and hosts have a fat tree between them; use switch",
    ),
    "credits between hosts": (
        {SIPS: {"count": 8, "topology": "ring_1d", "per_host": 8}, CREDITS: "credits"},
        {SIPS: {"count": 8, "topology": "ring_1d", "per_host": 4}, CREDITS: "credits"},
        "system.sip_link.router.flow = credits is not modelled between hosts; use unbounded, or remove per_host",
    ),
    "ends of rails": (
        {SIPS: {"count": 24, "topology": "ring_1d", "per_host": 3}, "system.sip_switch.ports": 4, RAILS: "by_rail"},
        {SIPS: {"count": 27, "topology": "ring_1d", "per_host": 3}, "system.sip_switch.ports": 4, RAILS: "by_rail"},
        "hosts = 9 must be <= 8, what system.fat_tree.levels = 2 and system.sip_switch.ports = 4 connect; raise one of",
    ),
    "sides of hosts": (
        {SIPS: {"count": 12, "per_host": 6, "topology": "torus_2d", "w": 3, "h": 2}},
        {SIPS: {"count": 12, "per_host": 6, "topology": "torus_2d", "w": 3, "h": 4}},
        "system.sips: w x h = 3 x 4 = 12 must equal per_host = 6; change one of them",
    ),
    "latency of a switch with credits": (
        {SIPS: {"count": 4, "topology": "ring_1d"}, "system.sip_switch.overhead_ns": 50, CREDITS: "credits"},
        {SIPS: {"count": 4, "topology": "switch"}, "system.sip_switch.overhead_ns": 50, CREDITS: "credits"},
        "system.sip_switch.overhead_ns = 50 has no effect with system.sip_link.router.flow: credits",
    ),
    "w and h of a ring": (
        {SIPS: {"count": 6, "topology": "ring_1d", "w": None, "h": None}},
        {SIPS: {"count": 6, "topology": "ring_1d", "w": 3, "h": 2}},
        "system.sips: w and h belong to 2-D topologies, ring_1d has none; remove them",
    ),
    "PEs inside the grid": (
        {"cube.pe_layout.pe_per_corner": 3},
        {**ONE_PE, "cube.noc.rows": 2, "cube.pe_layout": {"pe_per_corner": 7, "corners": ["NW"]}},
        "cube.pe_layout: PE 6 at router [0, 6] is outside the 2 x 6 mesh; give cube.pe_layout.pe_routers",
    ),
    "PEs of their own": (
        {"cube.pe_layout.pe_routers": [[0, 0], [0, 1]]},
        {"cube.pe_layout.pe_routers": [[0, 0], [0, 0]]},
        "cube.pe_layout: PE 1 at router [0, 0] collides with PE 0; give cube.pe_layout.pe_routers",
    ),
    "corners that collide": (
        {"cube.pe_layout.corners": ["NW", "NE"]},
        {"cube.pe_layout.corners": ["NW", "NW"]},
        "cube.pe_layout: PE 2 at router [0, 0] collides with PE 0; give cube.pe_layout.pe_routers",
    ),
    "PEs on routers": (
        {"cube.pe_layout.pe_routers": [[2, 1]]},
        {"cube.pe_layout.pe_routers": [[2, 2]]},
        "cube.pe_layout: PE 0 at router [2, 2] is on a removed router; give cube.pe_layout.pe_routers",
    ),
    "removed places": (
        {"cube.noc.removed": [[0, 5]], "cube.pe_layout.pe_routers": [[0, 0]]},
        {"cube.noc.removed": [[0, 6]]},
        "cube.noc.removed: [0, 6] is outside the 6 x 6 mesh",
    ),
    "routers of ports": (
        {"cube.noc.removed": [[0, 4]], "cube.ucie.connections": 3, "cube.pe_layout.pe_routers": [[0, 0]]},
        {"cube.noc.removed": [[0, 4]], "cube.ucie.connections": 4, "cube.pe_layout.pe_routers": [[0, 0]]},
        "cube.noc.removed: router [0, 4] carries UCIe connection 3 of side N; keep it, or lower",
    ),
    "one mesh": (
        {"cube.noc.removed": [[1, 2], [2, 1], [2, 3]], "cube.pe_layout.pe_routers": [[0, 0]]},
        {"cube.noc.removed": [[1, 2], [2, 1], [2, 3], [3, 2]], "cube.pe_layout.pe_routers": [[0, 0]]},
        "cube.noc.removed: the routers left are cut into parts",
    ),
    "some router": (
        {**ONE_PE, "cube.noc.rows": 1, "cube.noc.cols": 1},
        {**ONE_PE, "cube.noc.rows": 1, "cube.noc.cols": 1, "cube.noc.removed": [[0, 0]]},
        "cube.noc.removed: no router is left",
    ),
    "M_CPU on the die": (
        {"cube.m_cpu.pos_mm": [18, 0]},
        {"cube.m_cpu.pos_mm": [18.1, 0]},
        "cube.m_cpu.pos_mm = [18.1, 0] must be on the die of 18 x 18 [mm]",
    ),
    "SRAM on the die": (
        {"cube.sram.pos_mm": [0, 18]},
        {"cube.sram.pos_mm": [0, -0.1]},
        "cube.sram.pos_mm = [0, -0.1] must be on the die of 18 x 18 [mm]",
    ),
    "link of a slice": (
        {"cube.hbm.bw_gbs": 256},
        {"cube.hbm.bw_gbs": 255},
        "cube.hbm.bw_gbs = 255 must be >= 256 [GB/s], the slice's own bandwidth",
    ),
    "link of a PE_DMA": (
        {"cube.pe.pe_dma.bw_gbs": 204.8, "cube.hbm.efficiency": 0.8},
        {"cube.pe.pe_dma.bw_gbs": 204.7, "cube.hbm.efficiency": 0.8},
        "cube.pe.pe_dma.bw_gbs = 204.7 must be >= 204.8 [GB/s], the slice's own bandwidth",
    ),
    "a row of bursts": (
        {"cube.hbm.size_gib": 16384 / GIB},
        {"cube.hbm.size_gib": 16383 / GIB},
        "over 8 PEs leaves slices of 2047 B, less than one burst of each channel (2048 B); enlarge it",
    ),
    "room in TCM": (
        {f"{TCM}.size_mb": 5 + 131073 / MIB},
        {f"{TCM}.size_mb": 5 + 131072 / MIB},
        f"{TCM}.size_mb = 5.125 must be > 5.125 [MiB]: tile buffers, kernel scratch and 8 rings of 4 x 4096 B",
    ),
    "rings in TCM": (
        {f"{IPCQ}.n_slots": 351},
        {f"{IPCQ}.n_slots": 352},
        f"{TCM}.size_mb = 16 must be > 16 [MiB]: tile buffers, kernel scratch and 8 rings of 352 x 4096 B",
    ),
    "results in scratch": (
        {f"{TCM}.scratch_result_kib": 1024},
        {f"{TCM}.scratch_result_kib": 1025},
        f"{TCM}.scratch_result_kib = 1025 must be <= 1024 [KiB], the whole kernel scratch",
    ),
    "tile buffers": (
        {f"{TCM}.buffers_per_operand": 254},
        {f"{TCM}.buffers_per_operand": 255},
        f"{TCM}.tile_buffer_mb = 4 must be >= 4.0156 [MiB]: 255 buffers of each operand's tile, and of a bias, at 4 B",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BOUNDS)
def test_on_the_bound_a_machine_loads(name):
    assert faults(changed(BOUNDS[name][0])) == []


@pytest.mark.parametrize("name", BOUNDS)
def test_beyond_it_the_fault_says_what_to_change(name):
    _, beyond, said = BOUNDS[name]
    lines = faults(changed(beyond))
    assert len([line for line in lines if said in line]) == 1
    assert all(";" in line or ":" in line for line in lines)


def test_slices_need_not_divide_evenly():
    config = read_machine(changed({"cube.pe_layout.pe_routers": row(0, 3) + row(1, 2) + row(4, 2)}))
    assert config.pes_per_cube == 7
    assert config.cube.hbm.slice_bytes(7) == 48 * GIB // 7


def test_limits_are_those_of_the_address_format():
    sizes = {resource.name: resource.size for resource in reversed(phyaddr.RESOURCE_WINDOW)}
    windows = (phyaddr.WINDOW_BYTES, sizes["pe_tcm"], sizes["sram"])
    assert windows == (rules.HBM_WINDOW_GIB * GIB, rules.TCM_WINDOW_MIB * MIB, rules.SRAM_WINDOW_MIB * MIB)


def test_the_smallest_machine():
    config = read_machine(
        changed(
            {
                **ONE_PE,
                "system.sips.count": 1,
                "sip.cube_mesh": {"w": 1, "h": 1},
                "cube.noc.rows": 1,
                "cube.noc.cols": 1,
            }
        )
    )
    assert config.n_pes == 1


def test_derived_counts():
    config = read_machine(DEFAULT)
    assert (config.n_sips, config.cubes_per_sip, config.pes_per_cube) == (2, 16, 8)
    assert (config.pes_per_sip, config.n_pes) == (128, 256)
    assert config.cube.hbm.slice_bytes(8) == 6 * GIB


def test_corners_are_rows_of_their_own():
    places = [(0, 0), (0, 1), (1, 4), (1, 5), (4, 0), (4, 1), (5, 4), (5, 5)]
    assert rules.pe_places(read_machine(DEFAULT)) == places


@pytest.mark.parametrize("side", ["w", "h"])
def test_one_of_w_and_h_is_too_much_for_a_ring(side):
    (line,) = faults(changed({f"{SIPS}.{side}": 2}))
    assert "w and h belong to 2-D topologies, ring_1d has none" in line


def test_products_of_decimal_fractions_are_forgiven_their_rounding():
    fractions = {"cube.hbm.channels": 1, "cube.hbm.channel_bw_gbs": 1.1, "cube.hbm.efficiency": 0.1}
    assert 1.1 * 0.1 > 0.11
    assert faults(changed({**fractions, "cube.hbm.bw_gbs": 0.11})) == []
    (line,) = faults(changed({**fractions, "cube.hbm.bw_gbs": 0.1099}))
    assert line.startswith("cube.hbm.bw_gbs = 0.1099 must be >= 0.11 [GB/s]")
