"""The scene of the picture: geometry without collisions, and loads that are those of the log."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import kernbench as kb
from kernbench.analysis._records import MESSAGE, TRANSFERS, Dependencies, LinkTable, Records
from kernbench.viz import _scene

TORUS = ["system.sips={count: 6, topology: torus_2d, w: 3, h: 2}"]
WHOLE_CUBE = ["cube.noc.removed=[]", "cube.pe_layout.pe_routers=[[2, 2], [2, 3], [3, 3], [5, 5]]"]


def gemm(a, b, out, *, tl):
    x, y = tl.ref(a, shape=(64, 128), dtype="f16"), tl.load(b, shape=(128, 64), dtype="f16")
    tl.composite("gemm", x, y, out)


@pytest.fixture(scope="module")
def gemm_records():
    with kb.session(kb.load(), log="tile") as torch:
        a, b, out = (torch.empty(n, m, dtype=torch.float16, device="ahbm") for n, m in ((64, 128), (128, 64), (64, 64)))
        torch.launch("gemm", gemm, a, b, out)
    return torch.result.records


def records_of(moves, busy_ps, span_ps, routes=((0, 1),), nodes=("a", "b")):
    """Records of messages (start, end, route, bytes) over links without latency."""
    names = tuple(dict.fromkeys(f"{nodes[x]}->{nodes[y]}" for route in routes for x, y in pairwise(route)))
    columns = {name: np.full(len(moves), -1, dtype) for name, dtype in TRANSFERS.items()}
    for i, (start, end, route, nbytes) in enumerate(moves):
        values = {"start_ps": start, "end_ps": end, "route": route, "nbytes": nbytes, "kind": MESSAGE}
        for name, value in values.items():
            columns[name][i] = value
    return Records.empty(
        makespan_ps=span_ps,
        links=LinkTable(names, np.zeros(len(names), int), np.array(busy_ps), np.full(len(names), 1000.0)),
        dependencies=Dependencies(columns, nodes, routes),
    )


def test_a_transfer_loads_the_bins_in_which_it_was_under_way():
    # From 100 to 300 of 400 ps at half of the rate: nothing, half, half, nothing.
    load = _scene.link_loads(records_of([(100, 300, 0, 100)], [100], 400), 4).busy
    assert load.tolist() == [[0, 0.5, 0.5, 0]]


def test_what_a_bin_has_no_room_for_is_done_later():
    # Two transfers that each need 100 ps ask for the link between 0 and 100: the second is served after the first.
    load = _scene.link_loads(records_of([(0, 100, 0, 100), (0, 100, 0, 100)], [200], 400), 4).busy
    assert load.tolist() == [[1, 1, 0, 0]]


def test_a_latency_moves_the_load_of_the_links_behind_it():
    records = records_of([(0, 300, 0, 100)], [100, 100], 300, routes=((0, 1, 2),), nodes=("a", "b", "c"))
    records.dependencies.links[0, 1] = (150, 50, 1.0)
    assert _scene.link_loads(records, 3).busy.tolist() == [[1, 0, 0], [0, 0, 1]]


@pytest.mark.parametrize("bins", [1, 7, 512])
def test_loads_of_a_run_sum_to_the_busy_times_of_its_log(gemm_records, bins):
    records = gemm_records
    width = records.makespan_ps / bins
    busy = records.links.busy_ps[records.links.busy_ps > 0]
    links, nodes = _scene.link_loads(records, bins).busy, _scene.node_loads(records, bins).busy
    np.testing.assert_allclose(links.sum(1) * width, busy, atol=1e-3)
    np.testing.assert_allclose(nodes.sum(1) * width, list(_scene.used_nodes(records).values()), atol=1e-3)
    for load in (links, nodes):
        assert load.min() >= 0
        assert load.max() <= 1


@pytest.mark.parametrize("overrides", [(), TORUS, WHOLE_CUBE], ids=["default", "torus", "whole cube"])
def test_no_box_of_a_template_covers_another(overrides):
    for name, template in _scene.machine_section(kb.load(overrides=overrides))["templates"].items():
        inside = [box for box in template["boxes"] if not box["id"].startswith("io.")]
        for i, a in enumerate(inside):
            ax, ay, aw, ah = a["at"]
            assert ax >= 0, name
            assert ay >= 0, name
            assert ax + aw <= template["w"], (name, a["id"])
            assert ay + ah <= template["h"], (name, a["id"])
            for b in inside[:i]:
                bx, by, bw, bh = b["at"]
                assert ax + aw <= bx or bx + bw <= ax or ay + ah <= by or by + bh <= ay, (name, a["id"], b["id"])


def test_every_line_is_a_link_of_the_machine():
    machine = kb.load(overrides=TORUS)
    templates = _scene.machine_section(machine)["templates"]
    drawn = set()
    for prefix, name in (("", "system"), ("sip0.", "sip"), ("sip0.cube5.", "cube")):
        for line in templates[name]["lines"]:
            if line["a"]:
                drawn |= {(prefix + line["a"], prefix + line["b"]), (prefix + line["b"], prefix + line["a"])}
    ours = {(edge.src, edge.dst) for edge in machine.graph.edges()}
    assert drawn <= ours
    # Those that lead to another SIP, or to another cube, are the system's and the SIP's.
    of_cube = {(src, dst) for src, dst in ours if src.startswith("sip0.cube5.") and dst.startswith("sip0.cube5.")}
    of_trunk = {(src, dst) for src, dst in ours if "cube" not in src + dst and ("sip0." in src or "sip0." not in dst)}
    assert of_cube <= drawn
    assert {pair for pair in of_trunk if not pair[0].startswith(("sip1", "sip2", "sip3", "sip4", "sip5"))} <= drawn


def test_a_torus_is_drawn_with_its_wrap_links():
    lines = _scene.machine_section(kb.load(overrides=TORUS))["templates"]["system"]["lines"]
    pairs = {(line["a"][:4], line["b"][:4]): len(line["p"]) // 2 for line in lines if line["kind"] == "sip_link"}
    # Rows of three have one wrap link each, which goes around the SIP in between; columns of two have none.
    assert {pair for pair, corners in pairs.items() if corners > 2} == {("sip0", "sip2"), ("sip3", "sip5")}
    assert len(pairs) == 9
