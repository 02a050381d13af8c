"""Collectives on the machine: the same values as numpy, with few slots and with many; long vectors in little room."""

from __future__ import annotations

from functools import cache
from itertools import cycle

import numpy as np
import pytest

import kernbench as kb
from kernbench.ccl.algorithm import plan
from kernbench.ccl.alpha_beta import AlphaBeta, Estimate
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.collective import simulator
from kernbench.runtime_api.context import session
from kernbench.studies.ccl import CclStudy
from kernbench.topology.builder import resolve_topology
from tests.ccl.cases import DTYPES, OPS, OVER_GRIDS, OVER_LEVELS, OVER_RANKS, built, reduced, shards

NAMES = {np.dtype(np.float16): "f16", np.dtype(np.float32): "f32"}
ONE_CUBE = {"sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1, "cube.pe_layout.pe_per_corner": 1}
KINDS = ({"buffer_kind": "tcm"}, {"buffer_kind": "sram"}, {"buffer_kind": "hbm"}, {"n_slots": 1, "slot_size": 256})
PLACED = {"intercube": DPPolicy(cube="row_wise", num_pes=1)}


@cache
def machine(sips, w=1, h=1):
    small = {**ONE_CUBE, "sip.cube_mesh.w": w, "sip.cube_mesh.h": h}
    square = {"system.sips.topology": "torus_2d", "system.sips.w": 2, "system.sips.h": sips // 2} if sips > 3 else {}
    return resolve_topology("preset:default", {**small, "system.sips.count": sips, **square})


def run(sips, algorithm, tensors, dp=None, cubes=(1, 1), out=None, data=True, **call):
    """Return what the collective makes of one array a device (or of `out`), and its result."""
    with session(machine(sips, *cubes), data=data) as torch:
        placed = [dict(device=f"ahbm:{rank}", **({"dp": dp} if dp else {})) for rank in range(sips)]
        given = [torch.empty(x.shape, dtype=NAMES[x.dtype], **where) for x, where in zip(tensors, placed, strict=True)]
        for tensor, x in zip(given, tensors, strict=True):
            tensor.copy_(torch.from_numpy(x))
        results = given
        if out is not None:
            results = [torch.zeros(out, dtype=NAMES[tensors[0].dtype], **where) for where in placed]
        torch.collective(list(zip(given, results, strict=True)) if out is not None else given, algorithm, **call)
        values = [tensor.numpy() for tensor in results] if data else []
    return values, torch.result


@pytest.mark.parametrize("name", [*OVER_RANKS, *OVER_GRIDS])
def test_all_reduce_over_devices(name):
    """A covering set: operators, types, sizes, kinds and numbers of slots in turn."""
    ops, sizes = cycle(OPS), cycle((1, 5003, 64, 7))
    start = [*OVER_RANKS, *OVER_GRIDS].index(name)
    for i in range(3):
        op, size, dtype, kind = next(ops), next(sizes), DTYPES[2 * ((start + i) % 2)], KINDS[(start + i) % 4]
        for _ in range(start % 5):
            op = next(ops)
        sips = 4 if name in OVER_GRIDS else (2, 3, 6)[i]
        algorithm = built(name, {**OVER_RANKS, **OVER_GRIDS}[name], **kind)
        x = shards(sips, size, op, dtype)
        values, _ = run(sips, algorithm, x, op=op)
        for got in values:
            np.testing.assert_array_equal(got, reduced(op, x), f"{name} {op} {size} {dtype} {kind}")


@pytest.mark.parametrize("name", OVER_LEVELS)
@pytest.mark.parametrize(("sips", "cubes"), [(1, (3, 2)), (2, (2, 1))])
def test_all_reduce_over_cubes_and_pes(name, sips, cubes):
    topology, mapper = OVER_LEVELS[name]
    n = cubes[0] * cubes[1] * (1 if name == "intercube" else 4)
    x = shards(sips, n * 37)
    values, _ = run(
        sips,
        built(name, topology, mapper=mapper, contribution="pe"),
        [v.reshape(n, 37) for v in x],
        PLACED.get(name, DPPolicy(cube="row_wise", pe="row_wise")),
        cubes,
    )
    want = reduced("sum", [row for v in x for row in v.reshape(n, 37)])
    for got in values:
        np.testing.assert_array_equal(got, np.broadcast_to(want, (n, 37)))


def test_other_collectives():
    n, part = 3, 700
    x = shards(n, n * part)
    rows = np.stack(x).reshape(n, n, part)
    scattered, _ = run(n, built("reduce_scatter", collective="reduce_scatter"), x, out=part)
    np.testing.assert_array_equal(np.stack(scattered), rows.sum(axis=0))
    exchanged, _ = run(n, built("all_to_all", "all_to_all", collective="all_to_all"), x, out=n * part)
    np.testing.assert_array_equal(np.stack(exchanged).reshape(n, n, part), rows.swapaxes(0, 1))
    gathered, _ = run(n, built("all_gather", collective="all_gather"), x, out=n * n * part)
    assert all((v == np.concatenate(x)).all() for v in gathered)
    for name, topology in (("broadcast", "tree_binary"), ("broadcast_ring", "ring_1d")):
        brought, _ = run(n, built(name, topology, collective="broadcast"), x, root=1)
        assert all((v == x[1]).all() for v in brought)
    summed, _ = run(n, built("reduce", "tree_binary", collective="reduce"), x, root=2)
    np.testing.assert_array_equal(summed[2], reduced("sum", x))
    np.testing.assert_array_equal(summed[0], x[0])


@pytest.mark.parametrize(("link_gbs", "gain"), [(128, (0.95, 1.1)), (16, (1.35, 2.0))])
@pytest.mark.slow
def test_both_axes_at_a_time_gain_where_links_are_the_limit(link_gbs, gain):
    """At 128 GB/s the way from a device's cube to its links, which all four share, is the limit."""
    there = machine(16).with_({"system.sip_link.bw_gbs": link_gbs, "system.sips.w": 4, "system.sips.h": 4})
    nbytes, times = 128 << 10, []
    for name in ("torus_2d", "double_torus"):
        algorithm = built(name, name, n_slots=16)
        with session(there, log="off") as torch:
            tensors = [torch.empty(nbytes // 2, dtype=torch.float16, device=f"ahbm:{rank}") for rank in range(16)]
            for _ in range(2):  # the first installs queues
                before = torch.engine.now_ns
                torch.collective(tensors, algorithm)
                for rank in range(16):
                    torch.ahbm.synchronize(rank)
            times.append(torch.engine.now_ns - before)
    model = AlphaBeta(there, simulator(there))
    form = Estimate(plan(algorithm, there.config, range(16), [(0, 0)]), model).ns(nbytes)
    assert 0.85 * times[1] < form < 1.2 * times[1]
    assert times[1] > 2 * 15 / 16 * nbytes / (4 * link_gbs)
    assert gain[0] < times[0] / times[1] < gain[1]


@pytest.mark.parametrize("name", ["ring", "halving_doubling", "double_tree", "tree_binary", "recursive_doubling"])
def test_long_vectors_need_little_room(name):
    """12 MiB on each device do not fit into TCM; the algorithms hold pieces of them only."""
    x = [np.zeros(6 << 20, np.float16)] * 3
    algorithm = built(name, OVER_RANKS[name], n_slots=2, slot_size=64 << 10)
    _, result = run(3, algorithm, x, data=False, chunk_bytes=128 << 10)
    assert result.records.makespan_ps > 0


def test_receives_that_are_ready_at_one_instant_are_matched_as_they_were_posted():
    """Golden: messages of this collective meet, so another order of receives has another time (41,823 ns)."""
    machine = kb.load("preset:six_sip_torus")
    row = CclStudy().simulate(
        machine, algorithm="halving_doubling_allreduce", nbytes=1 << 20, n_slots=4, slot_size=4096
    )
    assert row["latency_ns"] == 41_959.725
