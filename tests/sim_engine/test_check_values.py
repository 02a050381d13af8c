"""A transfer alone: the check values, and the closed form over sizes and routes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench._units import serialization_ps
from kernbench.policy._routing import Router, reverse
from kernbench.studies.verification_network import Engine
from kernbench.studies.verification_reference import random_machine
from kernbench.topology.builder import resolve_topology

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
    """total = sum(p_i) + sum(min(f, n) / b_i) + max(0, n - f) / min(b_i), n rounded up to flits, a flit to a ps."""
    edges = [machine.graph.edge(a, b) for a, b in pairwise(path)]
    first = [serialization_ps(min(256, nbytes), edge.bw_gbs) for edge in edges]
    more = max(0, -(-nbytes // 256) - 1)
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
    path = Router(machine.graph).path(src, dst)
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
    path = Router(machine.graph).path(src, sram)
    read = closed_form_ps(machine, path, 0) + closed_form_ps(machine, reverse(path), nbytes)
    write = closed_form_ps(machine, path, nbytes) + closed_form_ps(machine, reverse(path), 16)
    assert alone(machine, "read", src, sram, nbytes, offset) == read
    assert alone(machine, "write", src, sram, nbytes, offset) == write


@pytest.mark.parametrize("kind", ["read", "write"])
def test_a_transaction_alone_never_waits(kind):
    # Its time is its parts: wire and nodes, a flit on every link, the rest on the slowest; memory keeps up.
    far = "sip0.cube15.hbm_ctrl.pe7"
    path = Router(DEFAULT.graph).path(PE0, far)
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
