from __future__ import annotations

import pickle

import pytest
from hypothesis import given, settings

from kernbench.errors import ConfigError, KernbenchError
from kernbench.topology import _naming as naming
from kernbench.topology._graph import Graph
from kernbench.topology.builder import Machine, resolve_topology
from tests.topology.machines import default, machines


@pytest.fixture(scope="module")
def graph():
    return default().graph


def test_links_carry_the_bandwidth_and_latency_of_the_file(graph):
    links = {
        ("host", "switch"): (128, 5_000),
        ("switch", "host"): (128, 0),
        ("switch", "sip0.io.pcie_ep"): (64, 105_000),
        ("sip0.io.pcie_ep", "switch"): (64, 105_000),
        ("sip0.io.pcie_ep", "sip0.io.noc"): (256, 0),
        ("sip0.io.noc", "sip0.io.pcie_ep"): (256, 5_000),
        ("sip0.io.noc", "sip0.io.io_cpu"): (256, 0),
        ("sip0.io.noc", "sip0.io.ucie_r3.conn2"): (256, 8_000),
        ("sip0.io.noc", "sip1.io.noc"): (128, 50_000),
        ("sip0.io.ucie_r3.conn2", "sip0.cube12.ucie_w.conn2"): (128, 8_000),
        ("sip0.cube12.ucie_w.conn2", "sip0.io.ucie_r3.conn2"): (128, 8_000),
        ("sip0.cube5.ucie_s.conn1", "sip0.cube9.ucie_n.conn1"): (128, 8_000),
        ("sip0.cube5.ucie_e.conn3", "sip0.cube5.r4c5"): (256, 1_000),
        ("sip0.cube5.r4c5", "sip0.cube5.ucie_e.conn3"): (256, 8_000),
        ("sip0.cube5.r0c0", "sip0.cube5.r0c1"): (256, 1_030),
        ("sip0.cube5.pe3.pe_dma", "sip0.cube5.r1c5"): (256, 1_000),
        ("sip0.cube5.r1c5", "sip0.cube5.hbm_ctrl.pe3"): (256, 0),
        ("sip0.cube5.r1c5", "sip0.cube5.pe3.pe_cpu"): (256, 0),
        ("sip0.cube5.r0c2", "sip0.cube5.m_cpu"): (256, 0),
        ("sip0.cube5.sram", "sip0.cube5.r3c0"): (128, 1_000),
    }
    for (src, dst), (bw_gbs, latency_ps) in links.items():
        edge = graph.edge(src, dst)
        assert (edge.src, edge.dst, edge.bw_gbs, edge.latency_ps) == (src, dst, bw_gbs, latency_ps)


def test_incoming_links_rank_by_side_then_local(graph):
    def order(node_id):
        into = sorted((edge for edge in graph.edges() if edge.dst == node_id), key=lambda edge: edge.rank)
        return [edge.src.removeprefix("sip0.cube5.") for edge in into]

    assert order("sip0.cube5.r1c4") == [
        "r1c5", "r1c3", "r0c4", "r2c4", "hbm_ctrl.pe2", "pe2.pe_cpu", "pe2.pe_dma",
    ]  # fmt: skip
    assert order("sip0.cube5.r1c5") == [
        "ucie_e.conn0", "r1c4", "r0c5", "r2c5", "hbm_ctrl.pe3", "pe3.pe_cpu", "pe3.pe_dma",
    ]  # fmt: skip
    assert order("sip0.cube5.ucie_w.conn0") == ["sip0.cube4.ucie_e.conn0", "r1c0"]
    assert order("sip0.io.noc")[:3] == ["sip1.io.noc", "sip0.io.io_cpu", "sip0.io.pcie_ep"]
    assert order("switch") == ["host", "sip0.io.pcie_ep", "sip1.io.pcie_ep"]


@settings(max_examples=25)
@given(machines())
def test_every_graph_is_whole(machine):
    graph = machine.graph
    nodes, edges = list(graph.nodes()), list(graph.edges())
    assert [graph.index(node.id) for node in nodes] == list(range(len(nodes)))
    pairs = {(edge.src, edge.dst) for edge in edges}
    assert len(pairs) == len(edges)
    assert {(dst, src) for src, dst in pairs} == pairs, "every link has one the other way"
    into: dict[str, list[int]] = {}
    for edge in edges:
        assert graph.edge(edge.src, edge.dst) == edge
        assert edge.latency_ps >= graph.node(edge.dst).overhead_ps
        into.setdefault(edge.dst, []).append(edge.rank)
    assert all(sorted(ranks) == list(range(len(ranks))) for ranks in into.values()), "ranks from 0, without gaps"
    for node in nodes:
        assert naming.parse(node.id).kind == node.kind


def test_order_of_creation_changes_nothing():
    forward, backward = default().graph, default().graph
    list(forward.nodes())
    for sip in (1, 0):
        for cube in reversed(range(16)):
            backward.node(naming.m_cpu(sip, cube))
    assert list(forward.nodes()) == list(backward.nodes())
    assert list(forward.edges()) == list(backward.edges())


def test_a_node_of_a_cube_is_made_when_it_is_asked_for():
    graph = Graph(default().config)
    trunk = 2 + 2 * 19
    assert len(graph._nodes) == trunk
    graph.edge("sip1.cube7.m_cpu", "sip1.cube7.r0c2")
    graph.node("sip1.cube7.sram")
    assert [*graph._nodes][trunk:] == ["sip1.cube7.sram"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("sip0.cube16.m_cpu", "no node sip0.cube16.m_cpu in this machine of 2 SIPs x 16 cubes x 8 PEs"),
        ("sip2.io.noc", "nearest: sip1.io.noc"),
        ("sip0.cube3.r2c2", "no node sip0.cube3.r2c2"),
        ("sip0.cube3.pe8.pe_dma", "nearest: .*pe_dma"),
        ("sip0.cube3.pe0.pe_math", "no node"),
        ("cube3", "is not a node id"),
    ],
)
def test_an_unknown_node_is_named_with_the_nearest(graph, wrong, message):
    with pytest.raises(KernbenchError, match=message):
        graph.node(wrong)


def test_an_unknown_link_is_named_with_the_known_ones(graph):
    with pytest.raises(KernbenchError, match=r"no link from host to sip0.io.noc; host leads to switch"):
        graph.edge("host", "sip0.io.noc")
    with pytest.raises(KernbenchError, match=r"no node sip9\.io\.noc"):
        graph.edge("host", "sip9.io.noc")


@pytest.mark.slow
def test_sizes_from_one_pe_to_1024_sips():
    one = default(
        system__sips={"count": 1, "topology": "ring_1d"}, sip__cube_mesh__w=1, sip__cube_mesh__h=1, cube__noc__rows=1,
        cube__noc__cols=1, cube__noc__removed=[], cube__pe_layout={"pe_per_corner": 1, "corners": ["NW"]},
        cube__m_cpu__pos_mm=[1.0, 1.0], cube__sram__pos_mm=[1.0, 1.0],
    )  # fmt: skip
    assert one.config.n_pes == 1
    assert {"sip0.cube0.pe0.pe_dma", "host"} < {node.id for node in one.graph.nodes()}
    large = default(system__sips={"count": 64, "topology": "torus_2d"})
    assert large.graph.edge("sip63.io.noc", "sip56.io.noc").rank == 1, "over the wrap, from the west"
    assert large.graph.node("sip63.cube15.pe7.pe_dma").kind == "pe_dma"
    largest = default(system__sips={"count": 1024, "topology": "ring_1d"})
    assert largest.graph.edge("sip1023.io.noc", "sip0.io.noc").rank == 1, "over the wrap, from the west"


def test_machine_reads_as_its_file_and_with_overrides_is_another():
    machine = default()
    assert machine.spec["cube"]["pe"]["pe_tcm"]["kernel_scratch_mb"] == 1
    small = machine.with_({"sip.cube_mesh.w": 2})
    assert (small.config.n_pes, machine.config.n_pes) == (128, 256)
    assert small.hash != machine.hash
    assert machine.with_(["sip.cube_mesh.w=2"]).hash == small.hash
    assert resolve_topology(machine) is machine
    assert resolve_topology(dict(machine.spec)).hash == machine.hash
    with pytest.raises(TypeError):
        machine.spec["cube"] = {}


def test_machine_says_what_it_is_and_travels_between_processes():
    machine = default()
    machine.graph.node("sip0.cube0.m_cpu")
    assert "2 SIPs ring_1d x 4x4 cubes x 8 PEs = 256 PEs" in repr(machine)
    copy = pickle.loads(pickle.dumps(machine))
    assert isinstance(copy, Machine)
    assert (copy.hash, copy.source) == (machine.hash, machine.source)


def test_a_wrong_file_is_refused():
    with pytest.raises(ConfigError, match=r"bw_gbs"):
        default(cube__hbm__bw_gbs=-256)
