"""What a launch costs the host counts, unless the launch is part of a graph."""

from __future__ import annotations

import kernbench as kb
from kernbench import DPPolicy
from kernbench.ops.matmul import SPLITS

ROWS = DPPolicy(cube="row_wise", pe="row_wise")
FREE = {"sip.cube_mesh.w": 2, "sip.cube_mesh.h": 1}
DEAR = {**FREE, "system.host.launch_ns": 5000.0}


def placement(changes, graph):
    with kb.session(kb.load("preset:default", changes)) as torch:
        x, w = (torch.empty(*size, dtype=torch.float16, device="ahbm", dp=ROWS) for size in ((4, 4096), (64, 4096)))
        if not graph:
            return torch.nn.functional.linear(x, w).choice.placement
        with torch.ahbm.graph():
            return torch.nn.functional.linear(x, w).choice.placement


def test_more_launches_are_chosen_where_they_are_cheap():
    assert placement(FREE, graph=False) in SPLITS
    assert placement(DEAR, graph=True) in SPLITS
    assert placement(DEAR, graph=False) not in SPLITS


def launches(changes):
    with kb.session(kb.load("preset:default", changes)) as torch:
        size = 1, 4, 1, 64
        q, k, v = (
            torch.empty(*x, dtype=torch.float16, device="ahbm", dp=ROWS) for x in (size, *[(1, 1, 4096, 64)] * 2)
        )
        torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    return [launch.name for launch in torch.result.launches]


def test_keys_are_cut_into_parts_where_one_more_launch_is_cheap():
    assert launches(FREE) == ["attention", "attention_merge"]
    assert launches({**FREE, "system.host.launch_ns": 1e5}) == ["attention"]
