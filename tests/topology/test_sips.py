from __future__ import annotations

from collections import deque

import pytest

from kernbench.errors import ConfigError
from kernbench.topology.builder import resolve_topology
from tests.topology.machines import default


def sips(**keys):
    return default(system__sips=keys).graph.sips


def test_ring_of_two_has_one_link_each_way():
    assert sips(count=2, topology="ring_1d").neighbours == ({1: "e"}, {0: "e"})


def test_ring_joins_the_last_to_the_first():
    ring = sips(count=5, topology="ring_1d")
    assert ring.neighbours[0] == {1: "e", 4: "w"}
    assert ring.path(0, 3) == (0, 4, 3)
    assert ring.path(1, 3) == (1, 2, 3)


def test_ties_go_to_the_lower_next_sip():
    assert sips(count=6, topology="ring_1d").path(0, 3) == (0, 1, 2, 3)
    assert sips(count=6, topology="ring_1d").path(3, 0) == (3, 2, 1, 0)
    assert sips(count=4, topology="mesh_2d_no_wrap").path(3, 0) == (3, 1, 0)


def with_credits(ties, w, h, topology="torus_2d"):
    router = {"flow": "credits", "ties": ties}
    shape = {"count": w * h, "topology": topology} | ({} if topology == "ring_1d" else {"w": w, "h": h})
    return default(system__sips=shape, **{f"system__sip_link__router__{key}": router[key] for key in router}).graph.sips


def test_equally_long_ways_round_rings_by_parity_or_all_of_them():
    # From (0, 0) to (2, 2) on a torus of 4 x 4: east or west, then south or north. SIP 0 is even.
    paths = [(0, 1, 2, 6, 10), (0, 1, 2, 14, 10), (0, 3, 2, 6, 10), (0, 3, 2, 14, 10)]
    assert with_credits("parity", 4, 4).paths(0, 10) == paths[:1]
    assert with_credits("random", 4, 4).paths(0, 10) == paths
    # SIP 5 is odd: the way by parity comes first, west and north.
    assert with_credits("parity", 4, 4).paths(5, 15) == [(5, 4, 7, 3, 15)]
    assert with_credits("random", 4, 4).paths(5, 15)[0] == (5, 4, 7, 3, 15)
    # One step more one way round than the other is no tie, nor are the two sides of a ring of two.
    assert with_credits("random", 4, 4).paths(0, 5) == [(0, 1, 5)]
    assert with_credits("random", 5, 1, "ring_1d").paths(0, 3) == [(0, 4, 3)]
    assert with_credits("random", 4, 2).paths(0, 6) == [(0, 1, 2, 6), (0, 3, 2, 6)]
    assert with_credits("random", 4, 4, "mesh_2d_no_wrap").paths(0, 10) == [(0, 1, 2, 6, 10)]


def test_ties_are_drawn_with_credits_only():
    with pytest.raises(
        ConfigError, match=r"system\.sip_link\.router\.ties = random has no effect .* use flow: credits"
    ):
        resolve_topology("preset:default", {"system.sip_link.router.ties": "random"})


@pytest.mark.parametrize("topology", ["torus_2d", "mesh_2d"])
def test_torus_wraps_both_axes_and_an_axis_of_two_is_one_link(topology):
    torus = sips(count=6, topology=topology, w=3, h=2)
    assert torus.neighbours[0] == {1: "e", 2: "w", 3: "n"}
    assert torus.path(0, 5) == (0, 2, 5)


def test_mesh_without_wrap_ends_at_its_edges():
    mesh = sips(count=9, topology="mesh_2d_no_wrap")
    assert mesh.neighbours[0] == {1: "e", 3: "s"}
    assert mesh.neighbours[4] == {5: "e", 3: "w", 1: "n", 7: "s"}


def test_fully_connected_needs_one_hop():
    full = sips(count=5, topology="fully_connected")
    assert all(full.path(a, b) == (a, b) for a in range(5) for b in range(5) if a != b)


def test_one_sip_has_no_neighbour():
    assert sips(count=1, topology="torus_2d").neighbours == ({},)


def test_a_count_that_is_no_square_needs_w_and_h():
    with pytest.raises(ConfigError, match=r"system\.sips.*w.*h"):
        assert sips(count=6, topology="torus_2d")


@pytest.mark.parametrize(
    "keys",
    [
        {"count": 1, "topology": "ring_1d"},
        {"count": 2, "topology": "ring_1d"},
        {"count": 7, "topology": "ring_1d"},
        {"count": 8, "topology": "ring_1d"},
        {"count": 12, "topology": "torus_2d", "w": 6, "h": 2},
        {"count": 15, "topology": "torus_2d", "w": 3, "h": 5},
        {"count": 5, "topology": "torus_2d", "w": 1, "h": 5},
        {"count": 12, "topology": "mesh_2d_no_wrap", "w": 4, "h": 3},
        {"count": 6, "topology": "fully_connected"},
        {"count": 27, "topology": "torus_3d"},
        {"count": 24, "topology": "torus_3d", "w": 2, "h": 4, "d": 3},
        {"count": 5, "topology": "switch"},
    ],
)
def test_every_path_takes_the_lowest_of_the_nearest_neighbours(keys):
    network = sips(**keys)
    assert len(network.neighbours) == network.count + (keys["topology"] == "switch")
    for dst in range(network.count):
        hops, queue = {dst: 0}, deque([dst])
        while queue:
            here = queue.popleft()
            for sip in network.neighbours[here]:
                if sip not in hops:
                    hops[sip] = hops[here] + 1
                    queue.append(sip)
        for src in range(network.count):
            expected = [src]
            while expected[-1] != dst:
                closer = [s for s in network.neighbours[expected[-1]] if hops[s] < hops[expected[-1]]]
                expected.append(min(closer))
            assert network.path(src, dst) == tuple(expected)
