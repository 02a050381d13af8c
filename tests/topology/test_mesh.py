from __future__ import annotations

from collections import deque
from itertools import pairwise

import pytest
from hypothesis import given, settings

from kernbench.errors import ConfigError
from kernbench.topology._mesh import OFFSETS, SIDES
from tests.topology.machines import default, machines


def test_default_layout_is_the_reference_one():
    layout = default().graph.layout
    assert layout.pes == ((0, 0), (0, 1), (1, 4), (1, 5), (4, 0), (4, 1), (5, 4), (5, 5))
    assert (layout.m_cpu, layout.sram) == ((0, 2), (3, 0))
    assert len(layout.routers) == 32
    assert not {(2, 2), (2, 3), (3, 2), (3, 3)} & set(layout.routers)
    assert layout.position_mm((1, 4)) == (13.5, 4.5)
    assert [layout.ports["e", i] for i in range(4)] == [(1, 5), (2, 5), (3, 5), (4, 5)]
    assert [layout.ports["n", i] for i in range(4)] == [(0, 1), (0, 2), (0, 3), (0, 4)]


def test_connections_crowd_on_the_last_router_of_a_short_side():
    layout = default(**SMALL, **ONE_PE).graph.layout
    assert [layout.ports["w", i] for i in range(4)] == [(1, 0)] * 4
    assert [layout.ports["s", i] for i in range(4)] == [(1, 1), (1, 2), (1, 2), (1, 2)]


def test_walk_takes_the_column_first_then_the_row_then_the_shortest_way():
    layout = default().graph.layout
    assert layout.walk((0, 0), (1, 2)) == ((0, 0), (0, 1), (0, 2), (1, 2))
    # The stack is in the way of the column: the row first.
    assert layout.walk((2, 1), (0, 3)) == ((2, 1), (1, 1), (0, 1), (0, 2), (0, 3))
    # Both are blocked, and north is as short as south: N comes first.
    walk = layout.walk((2, 1), (2, 4))
    assert walk == ((2, 1), (1, 1), (1, 2), (1, 3), (1, 4), (2, 4))
    # A turn that is shorter to the south goes there.
    assert layout.walk((3, 1), (3, 4))[1] == (4, 1)


@settings(max_examples=40)
@given(machines())
def test_walks_follow_links_and_are_first_of_the_shortest_where_no_straight_one_is_free(machine):
    layout = machine.graph.layout
    present = set(layout.routers)
    for src in layout.routers:
        hops = _hops(present, src)
        for dst in layout.routers:
            walk = layout.walk(src, dst)
            assert (walk[0], walk[-1]) == (src, dst)
            assert set(walk) <= present
            assert all(abs(a[0] - b[0]) + abs(a[1] - b[1]) == 1 for a, b in pairwise(walk))
            column_first, row_first = _elbow(src, dst, (src[0], dst[1])), _elbow(src, dst, (dst[0], src[1]))
            if set(column_first) <= present:
                assert walk == column_first
            elif set(row_first) <= present:
                assert walk == row_first
            else:
                assert walk == min(_shortest(present, src, dst, hops[dst]), key=_sides)


def _torus(rows: int, cols: int, **overrides):
    place = {
        "cube__pe_layout__pe_routers": [[0, 0]],
        "cube__m_cpu__pos_mm": [1.0, 1.0],
        "cube__sram__pos_mm": [1.0, 1.0],
    }
    at = {"cube__noc__rows": rows, "cube__noc__cols": cols, "cube__noc__removed": [], "cube__noc__topology": "torus"}
    return default(**place, **at | overrides)


@pytest.mark.parametrize(("rows", "cols"), [(5, 4), (3, 2), (8, 1)])
def test_a_torus_takes_the_shorter_way_round_column_first(rows, cols):
    layout = _torus(rows, cols).graph.layout
    for src in layout.routers:
        for dst in layout.routers:
            walk = layout.walk(src, dst)
            apart = [abs(a - b) for a, b in zip(src, dst, strict=True)]
            assert len(walk) - 1 == sum(min(d, n - d) for d, n in zip(apart, (rows, cols), strict=True))
            assert all(b in {layout.neighbour(a, side) for side in SIDES} for a, b in pairwise((src, *walk[1:])))
            assert (src[0], dst[1]) in walk
    # Of equally long ways, even routers take the one east, odd ones west.
    if cols == 4:
        assert [layout.walk((0, c), (0, (c + 2) % 4))[1][1] for c in range(4)] == [1, 0, 3, 2]


def test_a_torus_with_sides_of_one_or_two_is_a_mesh():
    for rows, cols in ((1, 1), (1, 2), (2, 2)):
        torus, mesh = _torus(rows, cols), _torus(rows, cols, cube__noc__topology="mesh")
        assert list(torus.graph.edges()) == list(mesh.graph.edges())
        places = torus.graph.layout.routers
        assert all(torus.graph.layout.walk(a, b) == mesh.graph.layout.walk(a, b) for a in places for b in places)


def test_every_router_of_a_torus_has_four_neighbours_and_links_of_two_pitches():
    graph = _torus(3, 4).graph
    for at in graph.layout.routers:
        links = [e for e in graph.out(f"sip0.cube0.r{at[0]}c{at[1]}") if e.distance_mm]
        assert [e.distance_mm for e in links] == [2 * graph.layout.pitch_mm] * 4
    assert graph.edge("sip0.cube0.r0c3", "sip0.cube0.r0c0").latency_ps == links[0].latency_ps


def _rings(rows: int, cols: int):
    return _torus(rows, cols, cube__noc__topology="rings")


@pytest.mark.parametrize(("rows", "cols"), [(2, 2), (4, 3), (3, 4)])
def test_rings_pass_all_routers_by_links_of_one_pitch_the_shorter_way_round(rows, cols):
    graph = _rings(rows, cols).graph
    layout, n = graph.layout, rows * cols
    beside = {at: {layout.neighbour(at, side) for side in SIDES} - {None} for at in layout.routers}
    ring = [(0, 0)]
    while len(ring) < n:
        ring.append(next(at for at in sorted(beside[ring[-1]]) if at not in ring))
    assert [beside[at] for at in ring] == [{ring[i - 1], ring[(i + 1) % n]} for i in range(n)]
    for i, src in enumerate(ring):
        for j, dst in enumerate(ring):
            walk, apart = layout.walk(src, dst), abs(i - j)
            assert len(walk) - 1 == min(apart, n - apart)
            assert all(b in beside[a] for a, b in pairwise(walk))
    # Half of the routers go each way to the opposite one.
    forward = sum(layout.walk(src, ring[(i + n // 2) % n])[1] == ring[(i + 1) % n] for i, src in enumerate(ring))
    assert forward == n // 2
    links = [e for e in graph.out("sip0.cube0.r0c0") if e.distance_mm]
    assert [e.distance_mm for e in links] == [graph.layout.pitch_mm] * 2


def test_rings_along_one_row_are_a_torus():
    for rows, cols in ((1, 5), (6, 1)):
        rings, torus = _rings(rows, cols).graph, _torus(rows, cols).graph
        assert list(rings.edges()) == list(torus.edges())
        places = rings.layout.routers
        assert all(rings.layout.walk(a, b) == torus.layout.walk(a, b) for a in places for b in places)


SMALL = {
    "cube__noc__rows": 2,
    "cube__noc__cols": 3,
    "cube__noc__removed": [],
    "cube__m_cpu__pos_mm": [1.0, 1.0],
    "cube__sram__pos_mm": [1.0, 1.0],
}
ONE_PE = {"cube__pe_layout__pe_routers": [[0, 0]]}
FOUR_CORNERS = {"pe_per_corner": 2, "corners": ["NW", "SW", "NE", "SE"]}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"cube__noc__removed": [[1, 5]], **ONE_PE}, r"router \[1, 5\] carries UCIe connection 0 of side E; keep it"),
        (
            {**SMALL, "cube__pe_layout": FOUR_CORNERS},
            r"PE 2 at router \[0, 0\] collides with PE 0; give cube.pe_layout.pe_routers",
        ),
        ({**SMALL, "cube__pe_layout__pe_routers": [[0, 3]]}, r"PE 0 at router \[0, 3\] is outside the 2 x 3 mesh"),
        ({"cube__noc__removed": [[0, 1]]}, r"PE 1 at router \[0, 1\] is on a removed router; give .*pe_routers"),
        (
            {"cube__noc__removed": [[1, 2], [2, 1], [2, 3], [3, 2]], **ONE_PE},
            r"the routers left are cut into parts; keep one that joins them",
        ),
        ({"cube__noc__topology": "torus"}, r"removed belongs to cube.noc.topology = mesh: .*set it to \[\]"),
        ({"cube__noc__topology": "rings"}, r"removed belongs to cube.noc.topology = mesh: .*set it to \[\]"),
        (
            {**SMALL, **ONE_PE, "cube__noc__topology": "rings", "cube__noc__rows": 3},
            r"rings needs a closed way through all routers, and the 3 x 3 mesh has none; make rows or cols even",
        ),
    ],
)
def test_what_cannot_be_laid_out_is_refused_with_the_place_and_the_remedy(overrides, message):
    with pytest.raises(ConfigError, match=message):
        default(**overrides)


def _elbow(src, dst, corner):
    walk = [src]
    for goal in (corner, dst):
        while walk[-1] != goal:
            at = walk[-1]
            sign = [(g > x) - (g < x) for g, x in zip(goal, at, strict=True)]
            walk.append((at[0] + sign[0], at[1] + sign[1]))
    return tuple(walk)


def _hops(present, src):
    hops, queue = {src: 0}, deque([src])
    while queue:
        at = queue.popleft()
        for step in OFFSETS.values():
            to = at[0] + step[0], at[1] + step[1]
            if to in present and to not in hops:
                hops[to] = hops[at] + 1
                queue.append(to)
    return hops


def _shortest(present, src, dst, length):
    """Yield every walk of `length` steps from `src` to `dst`."""
    if length == 0:
        if src == dst:
            yield (src,)
        return
    for step in OFFSETS.values():
        to = src[0] + step[0], src[1] + step[1]
        if to in present and abs(to[0] - dst[0]) + abs(to[1] - dst[1]) < length:
            for rest in _shortest(present, to, dst, length - 1):
                yield (src, *rest)


def _sides(walk):
    steps = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(walk)]
    return [SIDES.index(next(side for side in SIDES if OFFSETS[side] == step)) for step in steps]
