"""The scene of the picture: geometry without collisions, and loads that are those of the log."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings

import kernbench as kb
from kernbench.viz._machine_layout import machine_section
from tests.topology.machines import default, machines

TORUS = ["system.sips={count: 6, topology: torus_2d, w: 3, h: 2}"]
DIE = ["cube.noc.topology=torus", "cube.noc.removed=[]"]
CIRCLE = ["system.sips={count: 7, topology: fully_connected}"]
DEVICE = "preset:a100_sxm"
APART = [  # on a mesh: two controllers at routers without PEs, caches in front of them
    "cube.hbm.controllers=2", "cube.hbm.controller_routers=[[2, 0], [3, 5]]", "cube.llc.size_mib=8",
]  # fmt: skip
WHOLE_CUBE = ["cube.noc.removed=[]", "cube.pe_layout.pe_routers=[[2, 2], [2, 3], [3, 3], [5, 5]]"]


@pytest.mark.parametrize(
    ("source", "overrides"),
    [
        ("preset:default", ()), ("preset:default", TORUS), ("preset:default", CIRCLE), ("preset:default", WHOLE_CUBE),
        ("preset:default", APART), ("preset:default", ["cube.llc.size_mib=8"]), (DEVICE, ()),
        (DEVICE, ["cube.hbm.controllers=5", "cube.pe_layout.pe_per_corner=1", "cube.ucie.connections=3"]),
        (DEVICE, ["cube.pe_layout.pe_per_corner=256", "cube.llc.size_mib=0"]), ("preset:wormhole_n150", ()),
    ],
    ids=[
        "default", "torus", "circle", "whole cube", "memory apart", "caches at PEs", "device", "small device",
        "1,024 PEs", "wormhole",
    ],
)  # fmt: skip
def test_no_box_of_a_template_covers_another(source, overrides):
    for name, template in machine_section(kb.load(source, overrides))["templates"].items():
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


@pytest.mark.parametrize(
    ("source", "overrides"),
    [
        ("preset:default", TORUS),
        ("preset:default", [*TORUS, *APART]),
        (DEVICE, ["sip.cube_mesh={w: 3, h: 2}"]),
        ("preset:default", DIE),
    ],
    ids=["default", "memory apart", "device", "torus on the die"],
)
def test_every_line_is_a_link_of_the_machine(source, overrides):
    machine = kb.load(source, overrides)
    templates = machine_section(machine)["templates"]
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
    others = tuple(f"sip{sip}" for sip in range(1, machine.config.n_sips))
    assert {pair for pair in of_trunk if not pair[0].startswith(others)} <= drawn


def test_a_torus_is_drawn_with_its_wrap_links():
    lines = machine_section(kb.load(overrides=TORUS))["templates"]["system"]["lines"]
    pairs = {(line["a"][:4], line["b"][:4]): len(line["p"]) // 2 for line in lines if line["kind"] == "sip_link"}
    # Rows of three have one wrap link each, which goes around the SIP in between; columns of two have none.
    assert {pair for pair, corners in pairs.items() if corners > 2} == {("sip0", "sip2"), ("sip3", "sip5")}
    assert len(pairs) == 9


def test_a_torus_on_the_die_is_drawn_with_its_wrap_links_beside_the_rows():
    template = machine_section(kb.load(overrides=DIE))["templates"]["cube"]
    routers = [box["at"] for box in template["boxes"] if box["kind"] == "router"]
    wraps = [line["p"] for line in template["lines"] if line["kind"] == "mesh_link" and len(line["p"]) > 4]
    assert len(wraps) == 6 + 6
    for points in wraps:
        assert not any(x < px < x + w and y < py < y + h for x, y, w, h in routers for px, py in _between(points))


def test_rings_on_the_die_are_drawn_with_a_link_from_each_router_to_the_next():
    section = machine_section(kb.load(overrides=["cube.noc.topology=rings", "cube.noc.removed=[]"]))
    lines = [line for line in section["templates"]["cube"]["lines"] if line["kind"] == "mesh_link"]
    assert len(lines) == 36
    assert all(len(line["p"]) == 4 for line in lines)
    assert section["templates"]["cube"]["title"] == "Cube: 6 x 6 routers, rings, 8 PEs"


def _between(points):
    """Yield places along a polyline, without its ends."""
    corners = list(zip(points[::2], points[1::2], strict=True))
    for (ax, ay), (bx, by) in pairwise(corners):
        yield from ((ax + i / 50 * (bx - ax), ay + i / 50 * (by - ay)) for i in range(1, 50))


@settings(max_examples=25)
@given(machines())
def test_boxes_of_any_machine_are_within_their_template(machine):
    templates = machine_section(machine)["templates"]
    for template in templates.values():
        assert len({box["id"] for box in template["boxes"]}) == len(template["boxes"])
        for box in template["boxes"]:
            x, y, w, h = box["at"]
            assert min(w, h) > 0
            assert 0 <= x <= x + w <= template["w"] + 1e-3
            assert 0 <= y <= y + h <= template["h"] + 1e-3


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("sip", ["16 cubes", "128 PEs"]),
        ("cube", ["8 PEs", "48 GiB HBM", "32 MiB SRAM"]),
        ("hbm_ctrl", ["6 GiB", "8 x 32 GB/s"]),
        ("pe_gemm", ["4096 MAC/cycle f16", "1 GHz", "tile 32 x 64 x 32"]),
        ("pe_fetch_store", ["512 / 512 GB/s"]),
        ("pcie_link", ["64 GB/s, 100 ns"]),
        ("sip_link", ["128 GB/s, 50 ns"]),
        ("ucie_link", ["128 GB/s, 4 a side, 8 ns a port"]),
        ("mesh_link", ["256 GB/s, 1 ns a router, 0.03 ns a wire"]),
    ],
)
def test_parts_and_links_are_described_in_words(kind, words):
    assert machine_section(default())["kinds"][kind]["detail"] == words


def test_the_words_follow_the_file():
    machine = default(system__sip_link__bw_gbs=100, cube__pe__pe_gemm__tile__k=128)
    kinds = machine_section(machine)["kinds"]
    assert kinds["sip_link"]["detail"] == ["100 GB/s, 50 ns"]
    assert "tile 32 x 128 x 32" in kinds["pe_gemm"]["detail"]
    cached = machine_section(default(cube__llc__size_mib=20, cube__llc__hit_ns=30))["kinds"]
    assert cached["llc"]["detail"] == ["2.5 MiB, 30 ns"]  # of eight slices


@pytest.mark.parametrize(
    ("sips", "switches"),
    [
        ({"topology": "fat_tree"}, [f"net{i}.sip_switch" for i in range(12)]),
        (
            {"topology": "switch", "per_host": 2},
            [f"net{i}.{kind}" for kind, n in (("sip_switch", 4), ("nic", 8), ("nic_switch", 12)) for i in range(n)],
        ),
        ({"topology": "ring_1d", "per_host": 4}, [f"net{i}.nic" for i in range(8)]),
    ],
)
def test_switches_are_drawn_between_their_sips(sips, switches):
    tree = default(system__sips={"count": 8, **sips}, system__sip_switch__ports=4, system__fat_tree__levels=3)
    section = machine_section(tree)
    system, kinds = section["templates"]["system"], section["kinds"]
    assert kinds["sip_switch"]["detail"] == kinds["nic_switch"]["detail"] == ["4 ports, 100 ns"]
    assert kinds["sip_switch"]["fields"] == [
        "system.sip_switch.ports", "system.sip_switch.overhead_ns", "system.sip_switch.reduce",
        "system.fat_tree.levels", "system.fat_tree.oversubscription",
    ]  # fmt: skip
    assert kinds["nic_link"]["detail"] == ["50 GB/s, 500 ns"]
    boxes = {box["id"]: box["at"] for box in system["boxes"]}
    for name in switches:
        x, y, w, h = boxes[name]
        assert 0 <= x < x + w < system["w"]
        assert 0 <= y < y + h < system["h"]
        others = [box for other, box in boxes.items() if other != name]
        assert not any(x < ox + ow and ox < x + w and y < oy + oh and oy < y + h for ox, oy, ow, oh in others)
    of_kind = {kind: [x for x in system["lines"] if x["kind"] == kind] for kind in ("sip_link", "nic_link")}
    ends = {frozenset((line["a"], line["b"])) for lines in of_kind.values() for line in lines}
    ids = tree.graph.sips.node_id
    assert ends == {frozenset((ids(a), ids(b))) for a, near in enumerate(tree.graph.sips.neighbours) for b in near}
    assert all(".nic" in line["a"] + line["b"] for line in of_kind["nic_link"])
    assert not any(".nic" in line["a"] + line["b"] for line in of_kind["sip_link"])


def test_a_system_of_rows_shows_its_columns_and_rows():
    grid = {"count": 6, "topology": "torus_2d", "w": 3, "h": 2}
    title = machine_section(default(system__sips=grid))["templates"]["system"]["title"]
    assert title == "System: 6 SIPs, torus_2d 3 x 2"
