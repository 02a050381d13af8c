"""The engine and the reference, side by side: every transaction ends at the same picosecond."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from kernbench._units import KIB
from kernbench.sim_engine._transaction import COUNT_BITS
from kernbench.topology._naming import pe_dma
from kernbench.topology.builder import resolve_topology
from tests.reference.simulator import Reference
from tests.reference.traffic import play, random_machine, random_traffic
from tests.sim_engine.adapter import Engine
from tests.slow import slow_after

MIXES = {
    "links": ("send",),
    "memory": ("read", "write"),
    "reads": ("read",),
    "all": ("send", "read", "write"),
}


def both(machine, seed, kinds, rounds, **how):
    reference, engine = Reference(machine), Engine(machine)
    asks = random_traffic(machine, seed, kinds, rounds, **how)
    expected = play(reference, asks)
    assert play(engine, asks) == expected
    assert len(expected) > rounds, "little traffic proves little"
    return reference, engine


def test_the_reference_knows_neither_engine_nor_components():
    paths = list((Path(__file__).parents[1] / "reference").glob("*.py"))
    imported = {
        name
        for path in paths
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names])
    }
    assert any(name.startswith("kernbench.topology") for name in imported)
    assert not [name for name in imported if name.startswith(("kernbench.sim_engine", "kernbench.components"))]


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("seed", slow_after(3, range(12)))
def test_random_machines(seed, mix):
    both(random_machine(f"{mix} {seed}"), seed, MIXES[mix], 8)


@pytest.mark.parametrize("seed", slow_after(3, range(12)))
def test_several_requests_under_way_from_one_source(seed):
    both(random_machine(f"many {seed}"), seed, MIXES["all"], 6, per_source=3, sources=6)


@pytest.mark.parametrize(("mix", "seed", "per_source", "sources"), [("all", 1014, 1, 10), ("reads", 80021, 3, 8)])
def test_empty_messages_over_links_without_latency(mix, seed, per_source, sources):
    # They come further at an instant in which others, of a later place in the heap, have come already.
    both(random_machine(f"fuzz {mix} {seed}"), seed, MIXES[mix], 6, per_source=per_source, sources=sources)


def test_gaps_between_flits_that_go_one_by_one_over_their_last_two_links():
    # While none waits at the last link, and some are on their way to it, others come.
    both(random_machine("fuzz reads 135002"), 135002, MIXES["reads"], 6, per_source=3, sources=4)


def test_hundreds_of_flits_among_long_streams_at_one_pe():
    # More single flits than a link stays wary for, while streams take it flit by flit.
    machine, at = resolve_topology("preset:default"), pe_dma(0, 0, 0)
    ends = []
    for sim in (Reference(machine), Engine(machine)):
        done: list[tuple[int, int]] = []
        for pe, count, nbytes in ((1, 2, 256 * KIB), (4, 2, 256 * KIB), (3, 3, 900), (2, 400, 200), (7, 400, 256)):
            for _ in range(count):
                sim.send(pe_dma(0, 0, pe), at, nbytes, lambda pe=pe, sim=sim, done=done: done.append((pe, sim.now)))
        sim.run()
        ends.append(done)
    assert ends[0] == ends[1]


@pytest.mark.parametrize("seed", slow_after(1, range(3)))
@pytest.mark.parametrize("mix", ["memory", "all"])
def test_default_numbers_where_arrivals_often_tie(seed, mix):
    machine = resolve_topology("preset:default", {"sip.cube_mesh.w": 2, "sip.cube_mesh.h": 1})
    both(machine, seed, MIXES[mix], 8, sources=30)


@pytest.mark.parametrize("seed", slow_after(1, range(4)))
def test_one_slice_that_everyone_wants(seed):
    machine = resolve_topology("preset:default", {"sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1, "system.sips.count": 1})
    traffic = random_traffic(machine, seed, ("read", "write"), 12, sources=10)
    asks = [ask._replace(dst="sip0.cube0.hbm_ctrl.pe3") for ask in traffic]
    assert play(Engine(machine), asks) == play(Reference(machine), asks)


@pytest.mark.parametrize("seed", slow_after(2, range(6)))
def test_every_flit_is_reserved_on_every_link(seed):
    # `exact` skips no work: as many reservations as the reference has flits served by links.
    reference, engine = both(random_machine(f"count {seed}"), seed, MIXES["all"], 6)
    assert engine.network.core.reservations == len(reference.network.hops)


@pytest.mark.parametrize("seed", slow_after(2, range(6)))
def test_every_hop_of_every_flit(seed):
    machine = random_machine(f"hops {seed}")
    reference, engine = Reference(machine), Engine(machine, trace=True)
    for sim in (reference, engine):
        play(sim, random_traffic(machine, seed, MIXES["all"], 6))
    # The key of a hop holds the source's number and the source's count.
    traced = sorted((divmod(h.key, 1 << COUNT_BITS), *h[1:]) for h in engine.network.hops)
    assert traced == sorted(tuple(hop) for hop in reference.network.hops)


@pytest.mark.parametrize("seed", slow_after(1, range(4)))
def test_links_are_as_busy_as_the_flits_they_carried(seed):
    machine = random_machine(f"busy {seed}")
    reference, engine = both(machine, seed, MIXES["all"], 6)
    busy: dict[str, int] = {}
    for hop in reference.network.hops:
        busy[hop.link] = busy.get(hop.link, 0) + hop.end_ps - hop.start_ps
    table = engine.engine.records().links
    assert dict(zip(table.names, table.busy_ps.tolist(), strict=True)) == busy
