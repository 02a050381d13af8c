"""Random small machines for property tests, as overrides of the default one."""

from __future__ import annotations

from hypothesis import assume
from hypothesis import strategies as st

from kernbench.errors import ConfigError
from kernbench.topology.builder import Machine, resolve_topology

_DEFAULT = resolve_topology("preset:default")

SIPS = [
    {"count": 1, "topology": "ring_1d"},
    {"count": 2, "topology": "ring_1d"},
    {"count": 5, "topology": "ring_1d"},
    {"count": 4, "topology": "torus_2d"},
    {"count": 6, "topology": "torus_2d", "w": 3, "h": 2},
    {"count": 9, "topology": "mesh_2d"},
    {"count": 6, "topology": "mesh_2d_no_wrap", "w": 2, "h": 3},
    {"count": 4, "topology": "fully_connected"},
    {"count": 8, "topology": "torus_3d"},
    {"count": 3, "topology": "switch"},
    {"count": 4, "topology": "fat_tree"},
]


def default(**overrides) -> Machine:
    """Return the default machine, changed: `default(cube__noc__rows=4)`."""
    return _DEFAULT.with_({k.replace("__", "."): v for k, v in overrides.items()})


@st.composite
def machines(draw) -> Machine:
    rows, cols = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    # UCIe ports stand on the outer routers, which stay.
    inner = [[r, c] for r in range(1, rows - 1) for c in range(1, cols - 1)]
    removed = draw(st.lists(st.sampled_from(inner), max_size=8, unique_by=tuple)) if inner else []
    present = [[r, c] for r in range(rows) for c in range(cols) if [r, c] not in removed]
    n_pes = draw(st.sampled_from([n for n in (1, 2, 3, 4, 6, 8) if n <= len(present)]))
    pes = draw(st.permutations(present))[:n_pes]
    overrides = {
        "cube.noc.rows": rows,
        "cube.noc.cols": cols,
        "cube.noc.removed": removed,
        "cube.pe_layout.pe_routers": pes,
        "cube.ucie.connections": draw(st.sampled_from([1, 2, 4])),
        "cube.m_cpu.pos_mm": [draw(st.floats(0.1, cols * 3 - 0.1)), draw(st.floats(0.1, rows * 3 - 0.1))],
        "cube.sram.pos_mm": [draw(st.floats(0.1, cols * 3 - 0.1)), draw(st.floats(0.1, rows * 3 - 0.1))],
        "sip.cube_mesh.w": draw(st.integers(1, 3)),
        "sip.cube_mesh.h": draw(st.integers(1, 3)),
        "system.sips": draw(st.sampled_from(SIPS)),
    }
    try:
        return _DEFAULT.with_(overrides)
    except ConfigError as error:
        assume("cut into parts" not in str(error))
        raise


def ends(machine: Machine) -> list[str]:
    """Return every id at which a route may begin or end."""
    kinds = {"host", "pcie_ep", "io_cpu", "io_noc", "router", "hbm_ctrl", "m_cpu", "sram", "pe_cpu", "pe_dma"}
    return [node.id for node in machine.graph.nodes() if node.kind in kinds]
