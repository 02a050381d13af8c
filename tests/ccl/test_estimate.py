"""The closed forms of algorithms on a machine."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kernbench as kb
from kernbench.ccl.algorithm import plan
from kernbench.ccl.algorithms import SHORT_SLICE
from kernbench.ccl.bounds import Bounds
from kernbench.ccl.cost import Estimate
from kernbench.ccl.install import load_ccl_config, resolve_algorithm_config
from kernbench.config import default_ccl_path
from kernbench.errors import ConfigError

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
    assert [name for name in CONFIG.algorithms if resolve_algorithm_config(name, CONFIG).cost is None] == []


@pytest.mark.parametrize(
    ("name", "stages"),
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
def test_stages(machine, name, stages):
    found, _ = Estimate(planned(machine, name), machine).stages(1 << 20)
    assert [stage.of.n or str(len(stage.of.path)) for stage in found] == stages


@pytest.mark.parametrize("name", ["ring_allreduce_tcm", "tree_allreduce", "torus_allreduce", "intercube_allreduce"])
def test_never_below_the_bound_and_never_falling(machine, name):
    run = planned(machine, name)
    bounds = Bounds(machine, list(run.programs), run.algorithm.contribution)
    form = Estimate(run, machine)
    times = [form.ns(16 << k) for k in range(17)]
    assert times == sorted(times)
    assert all(t >= bounds.of("all_reduce", 16 << k).ns for k, t in enumerate(times))


def test_short_slices_go_over_a_tree_of_cubes(machine):
    form = Estimate(planned(machine, "hierarchical_allreduce_sliced"), machine)
    short, long = form.ns(8 * SHORT_SLICE), form.ns(8 * SHORT_SLICE + 16)
    assert short < 0.95 * long
    messages = sum(sum(sent.channels.values()) * sent.messages for sent in form.sent(512))
    assert messages < 768 * 30  # of 768 PEs; around the cubes alone it would be 30 of each


def test_more_slots_never_slow_down(machine):
    times = [Estimate(planned(machine, "ring_allreduce_tcm", n_slots=n), machine).ns(1 << 20) for n in (1, 2, 4, 8, 16)]
    assert times == sorted(times, reverse=True)
    assert times[0] > 3 * times[-1]


def test_alone_it_takes_no_time():
    machine = kb.load("preset:default", {"system.sips.count": 1})
    assert Estimate(planned(machine, "ring_allreduce_tcm"), machine).ns(4096) == 0


systems = st.sampled_from(
    [
        {"count": 2, "topology": "ring_1d"},
        {"count": 5, "topology": "ring_1d"},
        {"count": 4, "topology": "fully_connected"},
        {"count": 6, "topology": "torus_2d", "w": 3, "h": 2},
        {"count": 6, "topology": "mesh_2d_no_wrap", "w": 3, "h": 2},
        {"count": 16, "topology": "torus_2d", "w": 4, "h": 4},
    ]
)
BANDWIDTHS = (
    "system.sip_link.bw_gbs",
    "cube.ucie.bw_gbs",
    "cube.hbm.channel_bw_gbs",
    "cube.pe.pe_tcm.read_bw_gbs",
    "cube.pe.pe_tcm.write_bw_gbs",
    "cube.pe.pe_math.clock_ghz",
)
LATENCIES = ("system.sip_link.latency_ns", "cube.ucie.port_ns", "cube.hbm.access_ns")


@st.composite
def machines(draw):
    base = {"system.sips.w": None, "system.sips.h": None}
    base |= {f"system.sips.{key}": value for key, value in draw(systems).items()}
    usual = kb.load("preset:default").with_(base)
    slower = {path: draw(st.sampled_from((1, 1, 1 / 2, 1 / 8, 1 / 32))) for path in BANDWIDTHS}
    longer = {path: draw(st.sampled_from((1, 1, 8))) for path in LATENCIES}
    changes = {path: reduce(getattr, path.split("."), usual.config) * x for path, x in {**slower, **longer}.items()}
    return usual.with_(changes)


@settings(max_examples=25)
@given(
    machines(),
    st.sampled_from([name for name in CONFIG.algorithms if name not in ("mesh_allreduce_4", "tree_allreduce_7")]),
    st.sampled_from(("tcm", "sram", "hbm")),
    st.sampled_from((1, 4, 32)),
    st.integers(8, 1 << 19),
)
def test_never_below_the_bound_on_any_machine(machine, name, kind, slots, elements):
    try:
        run = planned(machine, name, buffer_kind=kind, n_slots=slots)
    except ConfigError:
        return  # not on this shape
    bound = Bounds(machine, list(run.programs), run.algorithm.contribution)
    limit = bound.of(run.algorithm.collective, 2 * elements)
    assert Estimate(run, machine).ns(2 * elements) >= limit.ns, limit.by


@pytest.mark.parametrize(
    ("name", "vectors"),
    [("ring_allreduce_tcm", 2), ("ring_flat_allreduce", 3), ("recursive_doubling_allreduce", 3), ("tree_broadcast", 1)],
)
def test_a_slow_hbm_decides(name, vectors):
    two = {"system.sips.count": 2, "system.sips.topology": "ring_1d"}
    machine = kb.load("preset:hbm3_conservative", two | {"cube.hbm.channel_bw_gbs": 4})
    hbm = machine.config.cube.hbm
    moved_ns = vectors * (1 << 20) / (hbm.channels * hbm.channel_bw_gbs * hbm.efficiency)
    assert moved_ns < Estimate(planned(machine, name), machine).ns(1 << 20) < 1.1 * moved_ns
