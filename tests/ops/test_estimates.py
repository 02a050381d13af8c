"""The estimate of a product orders placements as simulation does, and `kb.gemm` misses none that is faster."""

from __future__ import annotations

import numpy as np
import pytest

import kernbench as kb
from kernbench.ops.matmul import PLACEMENTS

MACHINES = {
    "two cubes": {"sip.cube_mesh.w": 2, "sip.cube_mesh.h": 1},
    "one SIP of one cube": {
        "sip.cube_mesh.w": 1,
        "sip.cube_mesh.h": 1,
        "system.sips": {"count": 1, "topology": "ring_1d"},
    },
    "one PE per cube": {
        "sip.cube_mesh.w": 2,
        "sip.cube_mesh.h": 2,
        "cube.pe_layout.pe_per_corner": 1,
        "cube.pe_layout.corners": ["NW"],
    },
}


def shapes(seed, count):
    """Seeded shapes: skinny, square and deep ones."""
    rng = np.random.default_rng(seed)
    return [tuple(int(2**x) for x in rng.uniform((0, 4, 5), (8, 9, 10))) for _ in range(count)]


def ranks(values):
    return np.argsort(np.argsort(values))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "seed", "count"), [("two cubes", 1, 14), ("one SIP of one cube", 2, 13), ("one PE per cube", 3, 13)]
)
def test_the_estimate_orders_placements_as_simulation_does(name, seed, count):
    machine, both, behind = kb.load("preset:default", MACHINES[name]), [], {}
    for shape in shapes(seed, count):
        all_of_them = kb.gemm(*shape, machine=machine, placements=list(PLACEMENTS)).candidates
        both += [(x.estimate_ns, x.simulated_ns) for x in all_of_them]
        chosen = kb.gemm(*shape, machine=machine).simulated_ns
        behind[shape] = chosen / min(x.simulated_ns for x in all_of_them)
    estimates, simulated = zip(*both, strict=True)
    assert np.corrcoef(ranks(estimates), ranks(simulated))[0, 1] >= 0.9
    assert max(behind.values()) <= 1.05, behind
