"""Lower bounds of collectives, by hand."""

from __future__ import annotations

from itertools import pairwise

import pytest

import kernbench as kb
from kernbench.ccl.bounds import _NEEDS, Bounds
from kernbench.errors import KernbenchError

S = 1 << 20


def leaders(n):
    return [(sip, 0, 0) for sip in range(n)]


def test_one_pe_a_sip_is_limited_by_the_one_connection_it_uses():
    # Six SIPs have three links each, but PE 0 of cube 0 leaves its cube over one connection of 128 GB/s.
    bound = Bounds(kb.load("preset:six_sip_torus"), leaders(6)).of("all_reduce", S)
    assert bound.traffic_ns == pytest.approx(2 * 5 / 6 * S / 128)
    assert bound.cut_ns == pytest.approx(S / 128)
    assert (bound.ns, bound.by) == (bound.traffic_ns, "traffic")
    assert bound.memory_ns == pytest.approx(2 * S / 256)
    assert bound.arithmetic_ns == pytest.approx(5 / 6 * S / 2 / 256, rel=0.001)


def test_all_pes_of_a_sip_are_limited_by_its_links():
    machine = kb.load("preset:default")
    places = [(sip, cube, pe) for sip in (0, 1) for cube in range(16) for pe in range(8)]
    bound = Bounds(machine, places).of("all_reduce", 4096)
    assert bound.cut_ns == pytest.approx(128 * 4096 / 128)
    assert bound.by == "cut at sip0"


def test_cubes_are_cut_in_halves():
    # 16 leaders of one SIP, no other SIP: a row of four leaves over four links of one connection each.
    machine = kb.load("preset:default", {"system.sips.count": 1})
    bound = Bounds(machine, [(0, cube, 0) for cube in range(16)], "cube").of("all_reduce", S)
    assert bound.cut_ns == pytest.approx(S / 256)  # a PE's own link, and a corner's two sides
    assert 6 * 16 < bound.latency_ns < 6 * 20  # six crossings of UCIe from corner to corner, and some routers


def test_latency_by_hand():
    # To the IO chiplet and back down: per side one router, two ports of 8 ns, 50 ns between; the wires.
    bound = Bounds(kb.load("preset:default"), leaders(2)).of("all_reduce", 2)
    assert bound.latency_ns == pytest.approx(86.06)
    assert bound.by == "latency"


def test_latency_grows_with_the_distance_of_sips():
    machine = kb.load("preset:default", {"system.sips.count": 8})
    latencies = [Bounds(machine, leaders(n)).of("barrier", 0).latency_ns for n in (2, 3, 5)]
    assert [b - a for a, b in pairwise(latencies)] == pytest.approx([50, 100])


@pytest.mark.parametrize("collective", _NEEDS)
def test_what_a_collective_takes(collective):
    bound = Bounds(kb.load("preset:default", {"system.sips.count": 4}), leaders(4)).of(collective, S)
    sent = {"all_reduce": 6, "barrier": 0}.get(collective, 3)
    assert bound.traffic_ns == pytest.approx(sent * S / (4 * 128))
    assert bound.cut_ns <= S / 128


def test_alone_there_is_nothing_to_send():
    bound = Bounds(kb.load("preset:default"), leaders(1)).of("all_reduce", S)
    assert (bound.latency_ns, bound.cut_ns, bound.traffic_ns, bound.arithmetic_ns) == (0, 0, 0, 0)


def test_unknown_names_are_refused():
    machine = kb.load("preset:default")
    with pytest.raises(KernbenchError, match=r"'all_reduc' is unknown; did you mean all_reduce\?"):
        Bounds(machine, leaders(2)).of("all_reduc", S)
    with pytest.raises(KernbenchError, match="known: rank, cube, pe"):
        Bounds(machine, leaders(2), "sip")
