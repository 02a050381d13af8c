"""A transfer alone: the check values, and the closed form over sizes and routes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench._units import serialization_ps
from kernbench.policy._routing import RouteTable, reverse
from kernbench.topology.builder import resolve_topology
from tests.reference.traffic import random_machine
from tests.sim_engine.adapter import Engine

DEFAULT = resolve_topology("preset:default")
PE0 = "sip0.cube0.pe0.pe_dma"


def alone(machine, kind, src, dst, nbytes, offset=0) -> int:
    """Return when a transaction that starts at 0 on an idle machine ends [ps]."""
    engine, ends = Engine(machine), []
    args = (nbytes,) if kind == "send" else (offset, nbytes)
    getattr(engine, kind)(src, dst, *args, lambda: ends.append(engine.now))
    engine.run()
    [end] = ends
    return end


@pytest.mark.parametrize(
    ("src", "slice_of", "ns_256", "ns_4096"),
    [
        (PE0, "sip0.cube0.hbm_ctrl.pe0", 12.00, 27.00),
        (PE0, "sip0.cube0.hbm_ctrl.pe1", 15.06, 30.06),
        (PE0, "sip0.cube0.hbm_ctrl.pe7", 42.60, 57.60),
        (PE0, "sip0.cube1.hbm_ctrl.pe0", 71.42, 101.42),
        (PE0, "sip1.cube0.hbm_ctrl.pe0", 194.12, 224.12),
        ("host", "sip0.cube0.hbm_ctrl.pe0", 277.06, 337.06),
    ],
)
def test_check_values(src, slice_of, ns_256, ns_4096):
    assert alone(DEFAULT, "read", src, slice_of, 256) / 1000 == ns_256
    assert alone(DEFAULT, "read", src, slice_of, 4096) / 1000 == ns_4096


def closed_form_ps(machine, path, nbytes) -> int:
    """total = sum(p_i) + sum(s_i) + (q - 1) max(s_i), s_i = (min(f, n) + h_i) / b_i, n in q flits, a flit to a ps."""
    edges, flit = [machine.graph.edge(a, b) for a, b in pairwise(path)], machine.config.system.flit_bytes
    first = [serialization_ps(min(flit, nbytes) + edge.header_bytes, edge.bw_gbs) for edge in edges]
    more = max(0, -(-nbytes // flit) - 1)
    return sum(edge.latency_ps for edge in edges) + sum(first) + more * max(first)


@st.composite
def journeys(draw):
    machine = random_machine(draw(st.integers(0, 30)))
    kinds = ("pe_dma", "hbm_ctrl", "sram", "m_cpu", "pe_cpu", "io_cpu", "host")
    ends = [node.id for node in machine.graph.nodes() if node.kind in kinds]
    src = draw(st.sampled_from(ends))
    dst = draw(st.sampled_from([e for e in ends if e != src]))
    return machine, src, dst


@given(journeys(), st.integers(0, 20_000))
def test_a_message_alone_takes_the_closed_form(journey, nbytes):
    machine, src, dst = journey
    path = RouteTable(machine.graph).path(src, dst)
    assert alone(machine, "send", src, dst, nbytes) == closed_form_ps(machine, path, nbytes)


@given(journeys(), st.integers(0, 20_000), st.integers(1, 2000))
def test_a_longer_message_never_ends_earlier(journey, nbytes, more):
    machine, src, dst = journey
    assert alone(machine, "send", src, dst, nbytes) <= alone(machine, "send", src, dst, nbytes + more)


@settings(max_examples=30)
@given(st.integers(0, 30), st.integers(1, 5000), st.integers(0, 5000), st.data())
def test_a_read_and_a_write_of_sram_take_two_messages(seed, nbytes, offset, data):
    machine = random_machine(seed)
    nodes = list(machine.graph.nodes())
    src = data.draw(st.sampled_from([n.id for n in nodes if n.kind in ("pe_dma", "host")]))
    sram = data.draw(st.sampled_from([n.id for n in nodes if n.kind == "sram"]))
    path = RouteTable(machine.graph).path(src, sram)
    command = machine.config.system.command_bytes
    read = closed_form_ps(machine, path, command) + closed_form_ps(machine, reverse(path), nbytes)
    write = closed_form_ps(machine, path, nbytes) + closed_form_ps(machine, reverse(path), 16)
    assert alone(machine, "read", src, sram, nbytes, offset) == read
    assert alone(machine, "write", src, sram, nbytes, offset) == write


@pytest.mark.parametrize("kind", ["read", "write"])
def test_a_transaction_alone_never_waits(kind):
    # Its time is its parts: wire and nodes, a flit on every link, the rest on the slowest; memory keeps up.
    far = "sip0.cube15.hbm_ctrl.pe7"
    path = RouteTable(DEFAULT.graph).path(PE0, far)
    there, back = (0, 64 * 256) if kind == "read" else (64 * 256, 16)
    expected = closed_form_ps(DEFAULT, path, there) + 8000 + closed_form_ps(DEFAULT, reverse(path), back)
    assert alone(DEFAULT, kind, PE0, far, 64 * 256) == expected


@pytest.mark.parametrize(
    ("nbytes", "flit_bytes", "flits"),
    [(0, 0, 1), (255, 255, 1), (256, 256, 1), (257, 256, 2), (512, 256, 2), (513, 256, 3)],
)
def test_a_message_is_one_flit_up_to_256_bytes_and_whole_ones_above(nbytes, flit_bytes, flits):
    # Two links of 256 GB/s, and a router of 1 ns between them.
    own = "sip0.cube0.hbm_ctrl.pe0"
    assert alone(DEFAULT, "send", PE0, own, nbytes) == 1000 + 2 * serialization_ps(flit_bytes, 256) + (flits - 1) * 1000


@pytest.mark.parametrize(("gbs", "flit_ps"), [(256.0, 1000), (256.26, 999), (255.999, 1001), (1e6, 1), (1e12, 1)])
def test_a_flit_s_time_is_rounded_up(gbs, flit_ps):
    # 256 B at 256.26 GB/s take 998.98 ps, and at 255.999 a trifle more than 1000.
    machine = DEFAULT.with_({"cube.pe.pe_dma.bw_gbs": gbs, "cube.hbm.channel_bw_gbs": 1})
    assert alone(machine, "send", PE0, "sip0.cube0.hbm_ctrl.pe0", 256) == flit_ps + 1000 + 1000


def changed(**fields):
    return DEFAULT.with_({key.replace("__", "."): value for key, value in fields.items()})


# Two links of 256 GB/s and a router of 1 ns between them: q flits of s bytes take 1 ns + (q + 1) s / 256 GB/s.
@pytest.mark.parametrize(
    ("flit_bytes", "nbytes", "ps"),
    [(64, 64, 1500), (64, 65, 1750), (256, 512, 4000), (512, 512, 5000), (512, 513, 7000)],
)
def test_a_message_is_sent_in_flits_of_the_machine(flit_bytes, nbytes, ps):
    machine = changed(system__flit_bytes=flit_bytes)
    assert alone(machine, "send", PE0, "sip0.cube0.hbm_ctrl.pe0", nbytes) == ps


@pytest.mark.parametrize(("header", "nbytes", "ps"), [(0, 0, 1000), (64, 0, 1500), (64, 256, 3500), (64, 512, 4750)])
def test_every_flit_has_a_header_on_links_of_routers(header, nbytes, ps):
    machine = changed(cube__noc__header_bytes=header)
    assert alone(machine, "send", PE0, "sip0.cube0.hbm_ctrl.pe0", nbytes) == ps


def test_a_header_between_sips_takes_their_link_alone():
    # From one IO chiplet to the next: ports of 256 GB/s, and a link of 128 GB/s and 50 ns between them.
    times = {
        header: alone(changed(system__sip_link__header_bytes=header), "send", "sip0.io.io_cpu", "sip1.io.io_cpu", 256)
        for header in (0, 64)
    }
    assert times == {0: 50_000 + 1000 + 2000 + 1000, 64: 50_000 + 1000 + 2500 + 1000}


@pytest.mark.parametrize(("command", "header", "more"), [(0, 0, 0), (32, 0, 250), (0, 32, 500), (32, 32, 750)])
def test_a_command_has_bytes_and_a_header(command, header, more):
    # A read of 256 B takes 12 ns; the command crosses two links, as do the data.
    machine = changed(system__command_bytes=command, cube__noc__header_bytes=header)
    assert alone(machine, "read", PE0, "sip0.cube0.hbm_ctrl.pe0", 256) == 12_000 + more
    assert alone(machine, "write", PE0, "sip0.cube0.hbm_ctrl.pe0", 256) == 12_126 + (500 if header else 0)


@pytest.mark.parametrize(("efficiency", "ps"), [(1.0, 4000), (0.5, 8000)])
def test_a_protocol_takes_its_share_of_pcie(efficiency, ps):
    # Host link and switch, 128 GB/s and 5 ns; PCIe, 64 GB/s and 100 ns; the end point, 5 ns; its port, 256 GB/s; CPU.
    machine = changed(system__pcie__efficiency=efficiency)
    assert alone(machine, "send", "host", "sip0.io.io_cpu", 256) == 2000 + 5000 + ps + 105_000 + 1000 + 1000


@pytest.mark.parametrize(("efficiency", "ps"), [(1.0, 2000), (0.5, 4000)])
def test_a_protocol_takes_its_share_of_ucie(efficiency, ps):
    machine = changed(cube__ucie__efficiency=efficiency)
    port, other = "sip0.cube0.ucie_e.conn0", "sip0.cube1.ucie_w.conn0"
    assert machine.graph.edge(port, other).service_ps(256) == ps
    assert machine.graph.edge("sip0.io.ucie_r0.conn0", "sip0.cube0.ucie_w.conn0").service_ps(256) == ps
    assert machine.graph.edge(port, "sip0.cube0.r1c5").service_ps(256) == 1000
    path = ("sip0.cube0.pe1.pe_dma", "sip0.cube1.hbm_ctrl.pe1")
    assert alone(machine, "send", *path, 256) == alone(DEFAULT, "send", *path, 256) + ps - 2000
