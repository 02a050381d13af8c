"""Whole messages instead of flits: where the engine certifies a run, it is the flits' run, to the picosecond."""

from __future__ import annotations

import pytest

from kernbench.topology.builder import resolve_topology
from kernbench.topology.naming import hbm, pe_dma
from tests.components.one_pe import gemm, run
from tests.reference.traffic import agents, random_machine, run_traffic
from tests.sim_engine.under_test import Engine


def pair(seed, sources: int, kinds=("send", "read", "write"), rounds: int = 4):
    machine = random_machine(f"whole {seed}")

    def traffic(**options):
        engine = Engine(machine, **options)
        return engine, run_traffic(engine, agents(machine, seed, kinds, rounds, sources=sources))

    return traffic


def test_certified_runs_equal_the_flits():
    certified = 0
    for seed in range(60):
        traffic = pair(seed, sources=2 + seed % 2)
        engine, log = traffic(mode="fast")
        if engine.engine.certified:
            certified += 1
            assert log == traffic()[1], seed
    assert 10 < certified < 60, "some runs certify, and some meet too closely"


def two_streams(mode: str, gap: int):
    """Two messages of 2 KiB to one slice; the second one's head arrives `gap` after the first one's last flit."""
    machine = resolve_topology("preset:default")
    sim, ends = Engine(machine, mode=mode), {}
    # PE 1's flits reach r0c1 from 2 ns on, the last one at 9; PE 0's from 4.03 on.
    for src, t in ((pe_dma(0, 0, 1), 0), (pe_dma(0, 0, 0), 9000 + gap - 4030)):
        sim.at(t, lambda src=src: sim.send(src, hbm(0, 0, 1), 2048, lambda src=src: ends.__setitem__(src, sim.now)))
    sim.run()
    return sim.engine.certified, ends


def test_the_certificate_to_the_picosecond():
    assert two_streams("fast", 1) == (True, two_streams("exact", 1)[1])
    certified, ends = two_streams("fast", -1)
    assert certified is False
    assert ends != two_streams("exact", -1)[1]


def test_exact_needs_no_certificate():
    assert Engine(resolve_topology("preset:small")).engine.certified is None


@pytest.mark.parametrize("variant", ["ref_ref", "load_ref", "load_load"])
def test_products_on_one_pe(variant):
    exact, fast = (run(gemm(128, 256, 128, variant), log="tile", mode=mode) for mode in ("exact", "fast"))
    if fast.certified:
        assert fast.records().digest() == exact.records().digest()
    assert fast.env.events <= exact.env.events
