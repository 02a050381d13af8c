from __future__ import annotations

from itertools import groupby, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench._units import FLIT_BYTES, serialization_ps
from kernbench.errors import KernbenchError
from kernbench.policy._routing import RouteTable, path_of, reverse
from kernbench.topology import _naming as naming
from tests.topology.machines import default, ends, machines


@pytest.fixture(scope="module")
def graph():
    return default().graph


@pytest.fixture(scope="module")
def router(graph):
    return RouteTable(graph)


def links(graph, path):
    return [graph.edge(src, dst) for src, dst in pairwise(path)]


def latency_ns(graph, path):
    return sum(edge.latency_ps for edge in links(graph, path)) / 1000


def fill_ns(graph, path):
    return sum(serialization_ps(FLIT_BYTES, edge.bw_gbs) for edge in links(graph, path)) / 1000


PE0 = "sip0.cube0.pe0.pe_dma"
BURST_NS = 8


@pytest.mark.parametrize(
    ("src", "dst", "one_way", "fill", "read_256"),
    [
        (PE0, "sip0.cube0.hbm_ctrl.pe0", 1.00, 2, 12.00),
        (PE0, "sip0.cube0.hbm_ctrl.pe1", 2.03, 3, 15.06),
        (PE0, "sip0.cube0.hbm_ctrl.pe7", 11.30, 12, 42.60),
        (PE0, "sip0.cube1.hbm_ctrl.pe0", 25.21, 13, 71.42),
        (PE0, "sip1.cube0.hbm_ctrl.pe0", 86.06, 14, 194.12),
        ("host", "sip0.cube0.hbm_ctrl.pe0", 128.03, 13, 277.06),
    ],
)
def test_check_values_of_the_model(graph, router, src, dst, one_way, fill, read_256):
    there = router.path(src, dst)
    back = reverse(there)
    assert latency_ns(graph, there) == latency_ns(graph, back) == one_way
    assert fill_ns(graph, back) == fill
    assert round(2 * one_way + BURST_NS + fill, 3) == read_256


# The target's PE chooses the connection for the host, the initiator's for a PE; an M_CPU has connection 0.
HOST_TO_PE5 = """
    switch sip0.io.pcie_ep sip0.io.noc sip0.io.ucie_r1.conn1 sip0.cube4.ucie_w.conn1
    sip0.cube4.r2c0 sip0.cube4.r2c1 sip0.cube4.r3c1 sip0.cube4.r4c1
"""
LAUNCH = """
    sip0.io.noc sip0.io.ucie_r1.conn0 sip0.cube4.ucie_w.conn0
    sip0.cube4.r1c0 sip0.cube4.r1c1 sip0.cube4.r1c2 sip0.cube4.r0c2
"""
PE2_TO_SRAM = """
    sip0.cube4.r1c4 sip0.cube4.r1c3 sip0.cube4.r0c3 sip0.cube4.ucie_n.conn2 sip0.cube0.ucie_s.conn2
    sip0.cube0.r5c3 sip0.cube0.r5c2 sip0.cube0.r5c1 sip0.cube0.r5c0 sip0.cube0.r4c0 sip0.cube0.r3c0
"""


@pytest.mark.parametrize(
    ("src", "dst", "hops"),
    [
        ("host", "sip1.io.io_cpu", "switch sip1.io.pcie_ep sip1.io.noc"),
        ("host", "sip1.io.pcie_ep", "switch"),
        ("sip1.io.io_cpu", "host", "sip1.io.noc sip1.io.pcie_ep switch"),
        ("sip0.io.io_cpu", "sip1.io.io_cpu", "sip0.io.noc sip1.io.noc"),
        ("sip0.io.noc", "sip1.io.noc", ""),
        ("sip0.cube0.m_cpu", "sip0.cube0.pe0.pe_cpu", "sip0.cube0.r0c2 sip0.cube0.r0c1 sip0.cube0.r0c0"),
        ("host", "sip0.cube4.hbm_ctrl.pe5", HOST_TO_PE5),
        ("sip0.io.io_cpu", "sip0.cube4.m_cpu", LAUNCH),
        ("sip0.cube4.pe2.pe_dma", "sip0.cube0.sram", PE2_TO_SRAM),
    ],
)
def test_routes_hop_by_hop(router, src, dst, hops):
    assert router.path(src, dst) == (src, *hops.split(), dst)


def test_between_cubes_the_column_comes_first(router):
    cubes = _cubes(router.path("sip0.cube1.pe0.pe_dma", "sip0.cube11.hbm_ctrl.pe0"))
    assert cubes == ["cube1", "cube2", "cube3", "cube7", "cube11"]


def test_other_sips_are_reached_along_the_row_of_each_cube(router):
    path = router.path("sip0.cube6.pe3.pe_dma", "sip1.cube9.hbm_ctrl.pe0")
    assert _cubes(path) == ["cube6", "cube5", "cube4", "io", "io", "cube8", "cube9"]
    assert {naming.parse(node).conn for node in path if "ucie" in node} == {3}


def test_a_route_over_several_sips_passes_through_their_io_nocs():
    router = RouteTable(default(system__sips={"count": 6, "topology": "ring_1d"}).graph)
    path = router.path("sip0.cube0.pe0.pe_dma", "sip3.cube0.hbm_ctrl.pe0")
    assert [node for node in path if node.endswith("io.noc")] == [f"sip{n}.io.noc" for n in (0, 1, 2, 3)]


@pytest.mark.parametrize(
    ("src", "dst", "connection"),
    [
        ("sip0.cube4.pe6.pe_dma", "sip0.cube0.hbm_ctrl.pe1", 2),
        ("sip0.cube4.pe7.pe_dma", "sip0.cube0.sram", 3),
        ("host", "sip0.cube0.hbm_ctrl.pe6", 2),
        ("sip0.io.io_cpu", "sip0.cube0.pe7.pe_cpu", 3),
        ("host", "sip0.cube0.sram", 0),
        ("sip0.cube4.m_cpu", "sip0.cube0.hbm_ctrl.pe5", 0),
        ("sip0.cube4.pe5.pe_dma", "sip0.cube0.m_cpu", 0),
    ],
)
def test_the_asking_pe_chooses_the_connection_else_the_target_and_an_m_cpu_has_0(router, src, dst, connection):
    assert {naming.parse(node).conn for node in router.path(src, dst) if "ucie" in node} == {connection}


def test_a_route_is_found_once(router):
    assert router.path(PE0, "sip1.cube3.sram") is router.path(PE0, "sip1.cube3.sram")
    assert router.path(PE0, PE0) == (PE0,)


def test_routes_through_a_cube_share_its_parts(router):
    (first,) = router.ways("sip0.cube0.pe0.pe_dma", "sip0.cube6.hbm_ctrl.pe0")
    (second,) = router.ways("sip0.cube0.pe0.pe_dma", "sip0.cube10.hbm_ctrl.pe5")
    # From the PE to its router, through cubes 0, 1 and 2 into 6; then to the memory, or on into 10.
    assert len(first) == 1 + 3 + 2
    assert [a is b for a, b in zip(first, second, strict=False)] == [True] * 4 + [False] * 2
    (other,) = router.ways("sip0.cube0.pe1.pe_dma", "sip0.cube6.hbm_ctrl.pe0")  # over another connection
    assert not {*first[:-1]} & {*other}
    for parts in (first, second, other):
        assert path_of(parts) == router.path(parts[0].nodes[0], parts[-1].nodes[-1])


def test_ports_are_no_ends(router):
    with pytest.raises(
        KernbenchError, match=r"no route begins or ends at sip0.cube0.ucie_w.conn0; ends are .*hbm_ctrl"
    ):
        router.path(PE0, "sip0.cube0.ucie_w.conn0")
    with pytest.raises(KernbenchError, match=r"no node sip0\.cube0\.pe9\.pe_dma"):
        router.path("sip0.cube0.pe9.pe_dma", PE0)


@settings(max_examples=60)
@given(machines(), st.data())
def test_every_route_is_a_chain_of_links_under_the_rules(machine, data):
    graph = machine.graph
    router = RouteTable(graph)
    all_ends = st.sampled_from(ends(machine))
    for _ in range(8):
        src, dst = data.draw(all_ends), data.draw(all_ends)
        path = router.path(src, dst)
        assert (path[0], path[-1]) == (src, dst)
        for way in (path, reverse(path)):
            assert len(links(graph, way)) == len(path) - 1, "every hop is a link"
        assert len(set(path)) == len(path), "no node twice"
        places = [naming.parse(node) for node in path]
        a, b = places[0], places[-1]
        if a.cube is not None and (a.sip, a.cube) == (b.sip, b.cube):
            assert {(place.sip, place.cube) for place in places} == {(a.sip, a.cube)}, "inside its cube"
        if a.sip == b.sip and a.cube is not None and b.cube is not None:
            assert {place.sip for place in places} == {a.sip}, "inside its SIP"
            assert all(place.kind != "io_noc" for place in places)
        assert len({place.conn for place in places if place.kind == "ucie"}) <= 1, "one connection all the way"
        _check_cube_order(machine, places)
        for walk in _meshes(places):
            assert tuple(walk) == graph.layout.walk(walk[0], walk[-1])


def test_a_link_merges_where_routes_come_to_it_over_several():
    machine = default(sip__cube_mesh__w=2, sip__cube_mesh__h=2, system__sips={"count": 1, "topology": "ring_1d"})
    router, before = RouteTable(machine.graph), {}
    all_ends = [end for end in ends(machine) if naming.parse(end).kind != "router"]
    for src in all_ends:
        for dst in all_ends:
            path = router.path(src, dst)
            for way in (path, reverse(path)):
                for a, b, c in zip(way, way[1:], way[2:], strict=False):
                    before.setdefault((b, c), set()).add(a)
    merging = {(edge.src, edge.dst) for edge in machine.graph.edges() if router.merges(edge.src, edge.dst)}
    assert {link for link, sources in before.items() if len(sources) > 1} <= merging
    lonely = [link for link, sources in before.items() if len(sources) == 1 and naming.parse(link[0]).kind == "router"]
    assert any(link not in merging for link in lonely)


def _cubes(path):
    """Return the cubes and IO chiplets that a route passes, each once."""
    places = [tuple(node.split(".")[:2]) for node in path if node.startswith("sip")]
    return [place[1] for place, _ in groupby(places)]


def _check_cube_order(machine, places):
    w = machine.config.sip.cube_mesh.w
    for sip in {place.sip for place in places}:
        cubes = [place.cube for place in places if place.sip == sip and place.cube is not None]
        rows = [cube // w for cube in cubes]
        cols = [cube % w for cube in cubes]
        turned = False
        for i in range(1, len(cubes)):
            turned |= rows[i] != rows[i - 1]
            assert not (turned and cols[i] != cols[i - 1]), "column first"
        if any(place.kind == "io_noc" and place.sip == sip for place in places):
            assert len(set(rows)) <= 1, "to the IO chiplet along the row"


def _meshes(places):
    """Yield the routers of each cube passed, in order."""
    walk, last = [], None
    for place in places:
        if place.kind == "router":
            if walk and last != (place.sip, place.cube):
                yield walk
                walk = []
            walk.append((place.row, place.col))
            last = place.sip, place.cube
    if walk:
        yield walk
