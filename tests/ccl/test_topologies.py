"""Graphs over participants: every queue has two ends, each of which names the other."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench._registry import TOPOLOGIES
from kernbench.ccl import _topologies as topologies
from kernbench.ccl._group import Grid, Group, Subgroup
from kernbench.errors import ConfigError

FLAT = ("none", "ring_1d", "ring_1d_unidir", "mesh_2d", "torus_2d", "mesh_2d_no_wrap", "double_torus", "tree_binary",
        "double_tree", "hypercube", "all_to_all", "through_switch")  # fmt: skip
GRIDS = ("mesh_cycle",)
LEVELS = ("intercube", "local_ring", "hierarchical_3level")


def flat(n: int, grid: Grid | None = None) -> Subgroup:
    return Subgroup(tuple((sip, 0, 0) for sip in range(n)), Grid(n, 1, wraps=True), grid=grid)


def levels(sip_grid: Grid, w: int, h: int, pes: int, root: int | str = "centre") -> Subgroup:
    places = [(s, c, p) for s in range(sip_grid.w * sip_grid.h) for c in range(w * h) for p in range(pes)]
    return Subgroup(tuple(places), sip_grid, w, root)


def joined(graph: topologies.Neighbours) -> bool:
    """Return whether each end of each queue names the other."""
    return all(
        peer != here and graph[peer].get(back) == (here, way)
        for here, beside in enumerate(graph)
        for way, (peer, back) in beside.items()
    )


def reached(graph: topologies.Neighbours) -> set[int]:
    """Return who can be told of something by participant 0."""
    seen, new = {0}, [0]
    while new:
        beside = {peer for here in new for peer, _ in graph[here].values()}
        new = list(beside - seen)
        seen |= beside
    return seen


def test_every_name_is_tested():
    assert sorted((*FLAT, *GRIDS, *LEVELS)) == TOPOLOGIES.names


@pytest.mark.parametrize("name", FLAT)
@pytest.mark.parametrize("n", [*range(1, 18), 24, 32])
def test_flat_graphs_join_everybody(name, n):
    is_prime = n > 1 and all(n % d for d in range(2, n))
    if is_prime and name.startswith(("mesh", "torus", "double_torus")):
        with pytest.raises(ConfigError, match=f"{n} participants form no grid"):
            TOPOLOGIES.resolve(name)(flat(n))
        return
    graph = TOPOLOGIES.resolve(name)(flat(n))
    assert len(graph) == n
    assert joined(graph)
    assert name == "none" or reached(graph) == set(range(n))


@settings(max_examples=25, deadline=None)
@given(
    sips=st.builds(Grid, st.integers(1, 3), st.integers(1, 3), st.booleans()),
    w=st.integers(1, 3),
    h=st.integers(1, 3),
    pes=st.integers(1, 3),
    root=st.sampled_from(["corner", "centre", 0]),
)
def test_graphs_of_levels_join_what_they_should(sips, w, h, pes, root):
    subgroup = levels(sips, w, h, pes, root)
    full = topologies.hierarchical_3level(subgroup)
    assert joined(full)
    assert reached(full) == set(range(subgroup.world_size))
    cubes = topologies.intercube(subgroup)
    assert joined(cubes)
    assert len(reached(cubes)) == subgroup.world_size // pes
    ring = topologies.local_ring(subgroup)
    assert joined(ring)
    assert len(reached(ring)) == pes


def test_of_two_in_a_ring_both_directions_lead_to_the_other():
    assert topologies.ring_1d(flat(2)) == [
        {"E": (1, "W"), "W": (1, "E")},
        {"E": (0, "W"), "W": (0, "E")},
    ]


def test_a_ring_of_three():
    assert topologies.ring_1d(flat(3))[2] == {"E": (0, "W"), "W": (1, "E")}
    assert topologies.ring_1d_unidir(flat(3)) == topologies.ring_1d(flat(3))


def test_a_mesh_has_ends_and_a_torus_has_none():
    grid = Grid(3, 2)
    corner = topologies.mesh_2d_no_wrap(flat(6, grid))[0]
    assert corner == {"E": (1, "W"), "S": (3, "N")}
    assert topologies.torus_2d(flat(6, grid))[0] == {"E": (1, "W"), "W": (2, "E"), "S": (3, "N"), "N": (3, "S")}
    assert topologies.mesh_2d(flat(6, grid)) == topologies.torus_2d(flat(6, grid))


def test_a_cycle_needs_two_sides_one_of_them_even():
    assert topologies.mesh_cycle(flat(6, Grid(3, 2))) == topologies.mesh_2d_no_wrap(flat(6, Grid(3, 2)))
    assert topologies.mesh_cycle(flat(1)) == [{}]
    with pytest.raises(ConfigError, match="3 x 3 mesh has no cycle"):
        topologies.mesh_cycle(flat(9, Grid(3, 3)))


def test_a_grid_that_does_not_hold_everybody_is_refused():
    with pytest.raises(ConfigError, match="3 x 3 are not the 6 participants"):
        topologies.torus_2d(flat(6, Grid(3, 3)))


def test_the_binary_tree():
    tree = topologies.tree_binary(flat(7))
    assert tree[1] == {"parent": (0, "child_left"), "child_left": (3, "parent"), "child_right": (4, "parent")}
    assert tree[6] == {"parent": (2, "child_right")}


@pytest.mark.parametrize("n", range(2, 34))
def test_each_of_two_trees_spans_everybody_and_inner_members_of_one_are_leaves_of_the_other(n):
    graph = topologies.double_tree(flat(n))
    inner = []
    for tree in "ab":
        own = [{way: to for way, to in beside.items() if way.startswith(tree)} for beside in graph]
        assert reached(own) == set(range(n))
        assert sum(len(beside) for beside in own) == 2 * (n - 1)
        inner.append({r for r, beside in enumerate(own) if any("child" in way for way in beside)})
    assert inner[0] & inner[1] <= ({0} if n % 2 else set())


def test_the_hypercube_folds_what_is_beyond_a_power_of_two():
    graph = topologies.hypercube(flat(6))
    assert graph[5] == {"fold": (1, "fold")}
    assert graph[1] == {"bit0": (0, "bit0"), "bit1": (3, "bit1"), "fold": (5, "fold")}
    assert graph[2] == {"bit0": (3, "bit0"), "bit1": (0, "bit1")}


def test_between_devices_only_root_cubes_talk():
    subgroup = levels(Grid(3, 2, wraps=True), 3, 2, 1)
    graph = topologies.intercube(subgroup)
    talks = [any(way.startswith("global_") for way in beside) for beside in graph]
    assert talks == [cube == subgroup.root_cube for _, cube, _ in subgroup.places]
    root = subgroup.root_cube
    assert root == 4
    assert graph[root]["global_E"] == (6 + root, "global_W")
    assert graph[root]["global_N"] == (18 + root, "global_S")
    assert {"N", "E", "W"} <= graph[root].keys()
    assert "S" not in graph[root]


def test_in_three_levels_a_pe_meets_its_ring_its_likes_of_other_cubes_and_of_other_devices():
    graph = topologies.hierarchical_3level(levels(Grid(2, 1, wraps=True), 2, 1, 4))
    assert graph[0] == {
        "local_E": (1, "local_W"), "local_W": (3, "local_E"),
        "E": (4, "W"),
        "global_E": (8, "global_W"), "global_W": (8, "global_E"),
    }  # fmt: skip


def test_cubes_that_fill_no_rectangle_are_refused():
    subgroup = Subgroup(tuple((0, cube, 0) for cube in (0, 1, 4)), Grid(1, 1), 4)
    with pytest.raises(ConfigError, match="fill no rectangle of a mesh with 4 columns"):
        topologies.intercube(subgroup)


def test_uneven_pes_are_refused():
    subgroup = Subgroup(((0, 0, 0), (0, 0, 1), (0, 1, 0)), Grid(1, 1), 2)
    with pytest.raises(ConfigError, match="evenly"):
        topologies.hierarchical_3level(subgroup)


def test_some_devices_of_a_torus_form_the_rectangle_that_they_fill_or_a_ring(six_sips):
    assert Group.of(six_sips, range(6), [(0, 0)]).sip_grid == Grid(3, 2, wraps=True)
    assert Group.of(six_sips, [0, 1, 3, 4], [(0, 0)]).sip_grid == Grid(2, 2, wraps=True)
    assert Group.of(six_sips, [0, 1, 5], [(0, 0)]).sip_grid == Grid(3, 1, wraps=True)


def test_root_cubes():
    roots = [levels(Grid(1, 1), 4, 4, 1, root).root_cube for root in ("corner", "centre", 7)]
    assert roots == [0, 10, 7]
    with pytest.raises(ConfigError, match="root_cube = 20 takes no part; expected corner, centre or one of"):
        levels(Grid(1, 1), 4, 4, 1, 20).root_cube  # noqa: B018
