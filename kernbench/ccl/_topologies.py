"""Topologies of participants: graphs over a subgroup, pure functions of it.

Each returns, for every participant, direction -> (peer, the peer's direction back). In graphs over all participants,
E and W (and N and S) follow their numbers. In hierarchical graphs, `local_E` and `local_W` are the ring of a cube's
PEs; N, S, E, W lead to the same PE of the next cube; `global_N`, ... to the next device.
"""

from __future__ import annotations

from kernbench.ccl._group import Grid, Neighbours, Subgroup
from kernbench.ccl.stages import in_order_parent
from kernbench.errors import ConfigError

_OPPOSITE = {"E": "W", "W": "E", "S": "N", "N": "S"}
_STEP = {"E": (0, 1), "W": (0, -1), "S": (1, 0), "N": (-1, 0)}


def none(subgroup: Subgroup) -> Neighbours:
    return [{} for _ in subgroup.places]


def ring_1d(subgroup: Subgroup) -> Neighbours:
    """Ring: E leads to the next participant, W to the previous one; of two, both lead to the other."""
    return _grid(Grid(subgroup.world_size, 1, wraps=True))


def ring_1d_unidir(subgroup: Subgroup) -> Neighbours:
    """Synonym of `ring_1d`, for kernels that send only to E and receive only from W."""
    return ring_1d(subgroup)


def mesh_2d(subgroup: Subgroup) -> Neighbours:
    """Synonym of `torus_2d`, as in machine files."""
    return torus_2d(subgroup)


def torus_2d(subgroup: Subgroup) -> Neighbours:
    """Rows and columns that are rings: E, W, N, S."""
    grid = subgroup.flat_grid()
    return _grid(Grid(grid.w, grid.h, wraps=True))


def double_torus(subgroup: Subgroup) -> Neighbours:
    """Torus with two sets of queues: `a_E`, ... for data that begin in rows, `b_E`, ... for those in columns."""
    grid = subgroup.flat_grid()
    twice = (_grid(Grid(grid.w, grid.h, wraps=True), prefix) for prefix in ("a_", "b_"))
    return [a | b for a, b in zip(*twice, strict=True)]


def mesh_2d_no_wrap(subgroup: Subgroup) -> Neighbours:
    """Rows and columns without wrap: E, W, N, S, where there is a neighbour."""
    grid = subgroup.flat_grid()
    return _grid(Grid(grid.w, grid.h))


def mesh_cycle(subgroup: Subgroup) -> Neighbours:
    grid = subgroup.flat_grid()
    if subgroup.world_size > 1 and (min(grid.w, grid.h) < 2 or grid.w * grid.h % 2):
        raise ConfigError(
            f"a {grid.w} x {grid.h} mesh has no cycle through all participants; both sides have to be at least 2 and "
            "one of them even: choose ring or mesh_2d instead"
        )
    return mesh_2d_no_wrap(subgroup)


def tree_binary(subgroup: Subgroup) -> Neighbours:
    """Binary heap: `parent` of r is (r - 1) // 2, `child_left` 2 r + 1, `child_right` 2 r + 2."""
    graph = none(subgroup)
    for child in range(1, subgroup.world_size):
        _join(graph, (child - 1) // 2, "child_left" if child % 2 else "child_right", child, "parent")
    return graph


def double_tree(subgroup: Subgroup) -> Neighbours:
    """Two binary trees: `a_parent`, `a_child_left`, `a_child_right`, and `b_...`.

    A participant with children in one is a leaf of the other; with an odd number, 0 may have children in both. Tree a
    is the in-order tree of 1 .. n-1 (odd numbers are its leaves) under root 0; b is its mirror image if n is even, and
    a shifted by one if n is odd (Sanders, Speck, Traeff: Two-tree algorithms for full bandwidth broadcast, reduction
    and scan, Parallel Computing 35, 2009).
    """
    n = subgroup.world_size
    graph = none(subgroup)
    for child in range(n):
        parent = in_order_parent(child, n)
        if parent is not None:
            side = "child_left" if child < parent or parent == 0 else "child_right"
            _join(graph, parent, f"a_{side}", child, "a_parent")
            above, below = ((r + 1) % n if n % 2 else n - 1 - r for r in (parent, child))
            _join(graph, above, f"b_{side}", below, "b_parent")
    return graph


def hypercube(subgroup: Subgroup) -> Neighbours:
    """Partners at distances 2^k: `bit0`, `bit1`, ...; beyond the largest power of two p, r and r - p: `fold`."""
    n = subgroup.world_size
    power = 1 << n.bit_length() - 1
    graph = none(subgroup)
    for bit in range(power.bit_length() - 1):
        for rank in range(power):
            graph[rank][f"bit{bit}"] = (rank ^ 1 << bit, f"bit{bit}")
    for rank in range(power, n):
        _join(graph, rank, "fold", rank - power, "fold")
    return graph


def all_to_all(subgroup: Subgroup) -> Neighbours:
    """Queues between any two participants: `to0`, `to1`, ... by the peer's number."""
    n = subgroup.world_size
    return [{f"to{peer}": (peer, f"to{rank}") for peer in range(n) if peer != rank} for rank in range(n)]


def through_switch(subgroup: Subgroup) -> Neighbours:
    """Queues to the next participant through the switch of the SIPs, which adds what all of them send."""
    n = subgroup.world_size
    return [
        {"to_switch": ((r + 1) % n, "from_switch"), "from_switch": ((r - 1) % n, "to_switch")} if n > 1 else {}
        for r in range(n)
    ]


def intercube(subgroup: Subgroup) -> Neighbours:
    """Mesh of the cubes of each device (N, S, E, W); the root cubes also connect devices (`global_E`, ...)."""
    graph = none(subgroup)
    _cubes(subgroup, graph)
    _devices(subgroup, graph, at_root=True)
    return graph


def local_ring(subgroup: Subgroup) -> Neighbours:
    graph = none(subgroup)
    _local(subgroup, graph)
    return graph


def hierarchical_3level(subgroup: Subgroup) -> Neighbours:
    graph = local_ring(subgroup)
    _cubes(subgroup, graph)
    _devices(subgroup, graph, at_root=False)
    return graph


def _join(graph: Neighbours, a: int, direction: str, b: int, back: str) -> None:
    graph[a][direction] = (b, back)
    graph[b][back] = (a, direction)


def _grid(grid: Grid, prefix: str = "") -> Neighbours:
    graph: Neighbours = [{} for _ in range(grid.w * grid.h)]
    for here in range(grid.w * grid.h):
        row, column = divmod(here, grid.w)
        for side, (down, right) in _STEP.items():
            r, c = row + down, column + right
            if grid.wraps:
                r, c = r % grid.h, c % grid.w
            if 0 <= r < grid.h and 0 <= c < grid.w and (r, c) != (row, column):
                graph[here][prefix + side] = (r * grid.w + c, prefix + _OPPOSITE[side])
    return graph


def _spread(graph: Neighbours, inner: Neighbours, members: list[int]) -> None:
    """Add the graph of some members to that of all; `inner` numbers them by their index in `members`."""
    for here, neighbours in enumerate(inner):
        for direction, (peer, back) in neighbours.items():
            graph[members[here]][direction] = (members[peer], back)


def _ranks(subgroup: Subgroup) -> dict[tuple[int, int, int], int]:
    """Participant numbers by (SIP, cube, PE), each an index among those that take part."""
    sips, cubes, pes = ({n: i for i, n in enumerate(part)} for part in (subgroup.sips, subgroup.cubes, subgroup.pes))
    if len(sips) * len(cubes) * len(pes) != subgroup.world_size:
        raise ConfigError("the cubes, or SIPs, do not take part with the same PEs; spread the tensor evenly over them")
    return {(sips[sip], cubes[cube], pes[pe]): rank for rank, (sip, cube, pe) in enumerate(subgroup.places)}


def _local(subgroup: Subgroup, graph: Neighbours) -> None:
    ranks = _ranks(subgroup)
    ring = _grid(Grid(subgroup.n_pes, 1, wraps=True), "local_")
    for sip in range(subgroup.n_sips):
        for cube in range(subgroup.n_cubes):
            _spread(graph, ring, [ranks[sip, cube, pe] for pe in range(subgroup.n_pes)])


def _cubes(subgroup: Subgroup, graph: Neighbours) -> None:
    ranks = _ranks(subgroup)
    mesh = _grid(Grid(subgroup.cube_w, subgroup.cube_h))
    for sip in range(subgroup.n_sips):
        for pe in range(subgroup.n_pes):
            _spread(graph, mesh, [ranks[sip, cube, pe] for cube in range(subgroup.n_cubes)])


def _devices(subgroup: Subgroup, graph: Neighbours, *, at_root: bool) -> None:
    ranks = _ranks(subgroup)
    between = _grid(subgroup.sip_grid, "global_")
    for cube in [subgroup.root_cube] if at_root else range(subgroup.n_cubes):
        for pe in range(subgroup.n_pes):
            _spread(graph, between, [ranks[sip, cube, pe] for sip in range(subgroup.n_sips)])
