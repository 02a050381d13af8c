"""The alpha-beta model: what is measured, and what algorithms take by it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import reduce
from math import hypot

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kernbench as kb
from kernbench.ccl.algorithm import plan
from kernbench.ccl.algorithms import SHORT_SLICE
from kernbench.ccl.alpha_beta import AlphaBeta, Estimate, StageConnections, StageTime, alpha_beta
from kernbench.ccl.install import load_ccl_config, resolve_algorithm_config
from kernbench.ccl.stages import Ring, Tree
from kernbench.config import default_ccl_path
from kernbench.errors import ConfigError
from kernbench.runtime_api.collective import simulator

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


def estimate(run, machine):
    return Estimate(run, alpha_beta(machine, simulator(machine)))


def connection(model, src, dst, **ring):
    return model.connection(src, dst, replace(resolve_algorithm_config("ring_allreduce_tcm", CONFIG), **ring))


@pytest.fixture(scope="module")
def model(machine):
    return AlphaBeta(machine, simulator(machine))


def test_long_messages_go_at_the_rate_of_the_slowest_link(model):
    assert connection(model, (0, 0, 0), (1, 0, 0)).beta_ns == pytest.approx(1 / 128)


def test_what_is_farther_takes_longer(model):
    pe, cube, sip, two_sips = (connection(model, (0, 0, 0), to) for to in ((0, 0, 1), (0, 1, 0), (1, 0, 0), (4, 0, 0)))
    assert pe.copied_ns[0] < cube.copied_ns[0] < sip.copied_ns[0] < two_sips.copied_ns[0]
    assert pe.round_trip_ns < cube.round_trip_ns < sip.round_trip_ns < two_sips.round_trip_ns


def test_a_longer_link_takes_its_latency_longer(machine):
    latency = machine.config.system.sip_link.latency_ns
    longer = machine.with_({"system.sip_link.latency_ns": latency + 100})
    short, long = (connection(AlphaBeta(m, simulator(m)), (0, 0, 0), (1, 0, 0)) for m in (machine, longer))
    assert long.copied_ns[0] - short.copied_ns[0] == pytest.approx(100)
    assert long.round_trip_ns - short.round_trip_ns == pytest.approx(200)
    assert long.beta_ns == pytest.approx(short.beta_ns)


def test_memories_of_rings_cost_what_they_say(model):
    tcm, sram, hbm = (connection(model, (0, 0, 0), (0, 1, 0), buffer_kind=kind) for kind in ("tcm", "sram", "hbm"))
    assert tcm.copied_ns[-1] < min(sram.copied_ns[-1], hbm.copied_ns[-1])
    assert tcm.round_trip_ns < min(sram.round_trip_ns, hbm.round_trip_ns)


def test_a_kind_of_connection_is_measured_once(machine):
    asked = []

    def counted(*of):
        asked.append(of)
        return simulator(machine)(*of)

    own = AlphaBeta(machine, counted)
    connection(own, (0, 0, 0), (1, 0, 0))
    once = len(asked)
    assert 0 < once < 30
    connection(own, (3, 0, 0), (4, 0, 0))
    assert len(asked) == once
    connection(own, (0, 0, 0), (0, 1, 0))
    assert len(asked) == 2 * once


def test_connections_share_a_link(model):
    # PE 0 of both cubes 1 and 2 send west over connection 0 of the same ports.
    pairs = [((0, 1, 0), (0, 0, 0)), ((0, 2, 0), (0, 0, 0))]
    assert [model.share_ns(pairs[:n], "tcm") for n in (0, 1, 2)] == [0, 1 / 128, 2 / 128]


def test_a_header_takes_its_share_of_a_link():
    machine = kb.load("preset:six_sip_torus", {"system.sip_link.header_bytes": 64})
    model = AlphaBeta(machine, simulator(machine))
    pairs = [((1, 0, 0), (0, 0, 0)), ((1, 1, 0), (0, 1, 0))]
    assert [model.share_ns(pairs[:n], "tcm") for n in (1, 2)] == [1.25 / 128, 2.5 / 128]


@pytest.mark.parametrize("n_slots", [1, 2, 4])
def test_a_message_longer_than_its_slots_waits_to_fill_them_again(machine, model, n_slots):
    pair = ((0, 0, 0), (4, 0, 0))
    found, slot = connection(model, *pair), 4096
    stage = StageConnections(Ring(0, 2, "E", "W"), Counter({(model.kind(*pair), 1): 1}), 1, found.beta_ns)

    def time(chunk):
        return StageTime(stage, [(found, 1, 1)], model, chunk, slot, n_slots, 2, 1)

    window = n_slots * slot
    surplus = found.round_trip_of(slot, slot) - window * found.beta_ns
    assert surplus > 0
    for slots in range(1, 3 * n_slots + 2):
        refills = (slots - 1) // n_slots
        expected = found.at(found.copied_ns, slots * slot) + refills * surplus
        assert time(slots * slot).message(False) == pytest.approx(expected)
        # What is behind the first chunk fills the slots once before it waits.
        whole = time(slot)
        waits = slots // n_slots * found.round_trip_of(slot, slot)
        assert whole.behind(slots * slot, adds=False) == pytest.approx(
            hypot(whole.busy(slots * slot, adds=False), waits)
        )


def test_every_shipped_algorithm_has_a_cost():
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
    found, _ = estimate(planned(machine, name), machine).stages(1 << 20)
    assert [str(stage.steps) if isinstance(stage.of, Tree) else stage.n for stage in found] == stages


@pytest.mark.parametrize("name", ["ring_allreduce_tcm", "tree_allreduce", "torus_allreduce", "intercube_allreduce"])
def test_never_below_the_bound_and_never_falling(machine, name):
    run = planned(machine, name)
    form = estimate(run, machine)
    bounds = alpha_beta(machine, simulator(machine)).bounds(run.programs, run.algorithm.contribution)
    times = [form.ns(16 << k) for k in range(17)]
    assert times == sorted(times)
    assert all(t >= bounds.of("all_reduce", 16 << k).ns for k, t in enumerate(times))


@pytest.mark.slow
def test_short_slices_go_over_a_tree_of_cubes(machine):
    form = estimate(planned(machine, "hierarchical_allreduce_sliced"), machine)
    short, long = form.ns(8 * SHORT_SLICE), form.ns(8 * SHORT_SLICE + 16)
    assert short < 0.95 * long
    messages = sum(sent.connections * sent.messages for sent in form.sent(512))
    assert messages < 768 * 30  # of 768 PEs; around the cubes alone it would be 30 of each


def test_more_slots_never_slow_down(machine):
    times = [estimate(planned(machine, "ring_allreduce_tcm", n_slots=n), machine).ns(1 << 20) for n in (1, 2, 4, 8, 16)]
    assert times == sorted(times, reverse=True)
    assert times[0] > 3 * times[-1]


def test_alone_it_takes_no_time():
    machine = kb.load("preset:default", {"system.sips.count": 1})
    assert estimate(planned(machine, "ring_allreduce_tcm"), machine).ns(4096) == 0


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


@settings(max_examples=10)
@given(
    machines(),
    st.sampled_from([name for name in CONFIG.algorithms if name not in ("mesh_allreduce_4", "tree_allreduce_7")]),
    st.sampled_from(("tcm", "sram", "hbm")),
    st.sampled_from((1, 4, 32)),
    st.integers(8, 1 << 19),
)
@pytest.mark.slow
def test_never_below_the_bound_on_any_machine(machine, name, kind, slots, elements):
    try:
        run = planned(machine, name, buffer_kind=kind, n_slots=slots)
    except ConfigError:
        return  # not on this shape
    bound = alpha_beta(machine, simulator(machine)).bounds(run.programs, run.algorithm.contribution)
    limit = bound.of(run.algorithm.collective, 2 * elements)
    assert estimate(run, machine).ns(2 * elements) >= limit.ns, limit.by


@pytest.mark.parametrize(
    ("name", "vectors"),
    [("ring_allreduce_tcm", 2), ("ring_flat_allreduce", 3), ("recursive_doubling_allreduce", 3), ("tree_broadcast", 1)],
)
def test_a_slow_hbm_decides(name, vectors):
    two = {"system.sips.count": 2, "system.sips.topology": "ring_1d"}
    machine = kb.load("preset:hbm3_conservative", two | {"cube.hbm.channel_bw_gbs": 4})
    hbm = machine.config.cube.hbm
    moved_ns = vectors * (1 << 20) / (hbm.channels * hbm.channel_bw_gbs * hbm.efficiency)
    assert (
        moved_ns < estimate(planned(machine, name), machine).ns(1 << 20) < 1.3 * moved_ns
    )  # links and slots wait for it, too
