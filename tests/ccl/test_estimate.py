"""The closed forms of algorithms on a machine."""

from __future__ import annotations

from dataclasses import replace

import pytest

import kernbench as kb
from kernbench.ccl.bounds import Bounds
from kernbench.ccl.estimate import SHAPES, Estimate
from kernbench.ccl.install import load_ccl_config, resolve_algorithm_config
from kernbench.ccl.plan import plan
from kernbench.config import default_ccl_path

CONFIG = load_ccl_config(default_ccl_path())
ONE, CUBES = [(0, 0)], [(cube, 0) for cube in range(16)]
PES = [(cube, pe) for cube in range(16) for pe in range(8)]
PLACES = {"rank": ONE, "cube": CUBES, "pe": PES}


@pytest.fixture(scope="module")
def machine():
    return kb.load("preset:six_sip_torus")


def planned(machine, name, **changes):
    chosen = replace(resolve_algorithm_config(name, CONFIG), **changes)
    return plan(chosen, machine.config, range(machine.config.n_sips), PLACES[chosen.contribution])


def test_every_shipped_algorithm_has_a_form():
    modules = {entry.module.rpartition(".")[2] for entry in CONFIG.algorithms.values()}
    assert modules <= SHAPES.keys()


@pytest.mark.parametrize(
    ("name", "levels"),
    [
        ("ring_allreduce_tcm", [6]),
        ("torus_allreduce", [3, 2]),
        ("halving_doubling_allreduce", ["1", 2, 2]),
        ("tree_allreduce", ["2"]),
        ("intercube_allreduce", ["4", 3, 2]),
        ("intercube_allreduce_corner", ["6", 3, 2]),
        ("hierarchical_allreduce", ["7", "4", 3, 2]),
        ("hierarchical_allreduce_sliced", [8, 16, 3, 2]),
    ],
)
def test_levels(machine, name, levels):
    found = Estimate(planned(machine, name), machine).levels
    assert [level.part.n or str(len(level.part.line)) for level in found] == levels


@pytest.mark.parametrize("name", ["ring_allreduce_tcm", "tree_allreduce", "torus_allreduce", "intercube_allreduce"])
def test_never_below_the_bound_and_never_falling(machine, name):
    run = planned(machine, name)
    bounds = Bounds(machine, list(run.programs), run.algorithm.contribution)
    form = Estimate(run, machine)
    times = [form.ns(16 << k) for k in range(17)]
    assert times == sorted(times)
    assert all(t >= bounds.of("all_reduce", 16 << k).ns for k, t in enumerate(times))


def test_more_slots_never_slow_down(machine):
    times = [Estimate(planned(machine, "ring_allreduce_tcm", n_slots=n), machine).ns(1 << 20) for n in (1, 2, 4, 8, 16)]
    assert times == sorted(times, reverse=True)
    assert times[0] > 3 * times[-1]


def test_alone_it_takes_no_time():
    machine = kb.load("preset:default", {"system.sips.count": 1})
    assert Estimate(planned(machine, "ring_allreduce_tcm"), machine).ns(4096) == 0
