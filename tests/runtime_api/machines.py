"""A small machine, and placements on it."""

from __future__ import annotations

from functools import cache

from hypothesis import strategies as st

from kernbench.policy.placement.dp import DPPolicy
from kernbench.topology.builder import Machine, resolve_topology

CUBES, PES = 4, 4


@cache
def small(sips: int = 2) -> Machine:
    """Return 2 SIPs x 2 x 2 cubes x 4 PEs."""
    return resolve_topology(
        "preset:default",
        {
            "system.sips.count": sips,
            "sip.cube_mesh.w": 2,
            "sip.cube_mesh.h": 2,
            "cube.pe_layout.pe_per_corner": 1,
        },
    )


@st.composite
def placed_shapes(draw):
    """Draw (shape, DPPolicy) that fit the small machine."""
    shape = tuple(draw(st.lists(st.integers(1, 13), min_size=1, max_size=3)))
    names = ["replicate", "row_wise", "column_wise", "tiled_row_major", "tiled_column_major"]
    cube, pe = draw(st.sampled_from(names)), draw(st.sampled_from(names))
    tiled = "tiled" in cube + pe
    return shape, DPPolicy(
        cube=cube,
        pe=pe,
        num_cubes=draw(st.sampled_from([None, 1, 2, 3])),
        num_pes=draw(st.sampled_from([None, 1, 2, 3])),
        tile=tuple(draw(st.integers(1, 5)) for _ in shape) if tiled else None,
    )
