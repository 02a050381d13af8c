"""Load curves: what is offered is sent, latency grows with load, and saturation is where the definition says."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

import kernbench as kb
from kernbench.cli.main import cli
from kernbench.errors import ArgumentError
from kernbench.studies.load_curve import _Run, _saturation, _Traffic, _traffic, warm_up
from tests.slow import slow_after

SIDE = 4
EVERY_ROUTER = [[row, col] for row in range(SIDE) for col in range(SIDE)]


def mesh(flow: str = "credits", **changed):
    return kb.load(
        "preset:default",
        {
            "cube.noc.rows": SIDE,
            "cube.noc.cols": SIDE,
            "cube.noc.removed": [],
            "cube.noc.router.flow": flow,
            "cube.pe_layout.pe_routers": EVERY_ROUTER,
            "cube.m_cpu.pos_mm": [1, 1],
            "cube.sram.pos_mm": [1, 1],
            **changed,
        },
    )


def torus(side: int = 3):
    at = "system.sip_link."
    return kb.load(
        "preset:small",
        {
            "system.sips.count": side * side,
            "system.sips.topology": "torus_2d",
            at + "bw_gbs": 256,
            at + "latency_ns": 1,
            at + "router.flow": "credits",
        },
    )


@pytest.mark.parametrize("packet", [1, 3])
def test_without_load_a_packet_takes_the_cycles_of_its_routers(packet):
    # 2 cycles to the first router, 5 for each of 1 + 2 x 1.25 routers on average, and one for each further flit.
    curve = kb.load_curve(mesh(), packet=packet, loads=[0.01], cycles=400)
    assert curve.zero_load_ns == 2 + 5 * (1 + 2 * 1.25) + packet - 1
    assert curve.cycle_ns == 1


def test_a_torus_is_shorter_than_a_mesh_of_its_size():
    curve = kb.load_curve(torus(), network="sips", loads=[0.01], cycles=400)
    assert curve.zero_load_ns == pytest.approx(2 + 5 * (1 + 2 * 2 / 3))


@pytest.mark.parametrize("flow", ["credits", "unbounded"])
def test_latency_grows_with_load_and_all_that_is_sent_arrives(flow):
    traffic = _Traffic(mesh(flow), "uniform", 2, "cube", 0)
    points = [traffic.point(load, 1000) for load in (0.1, 0.3, 0.5)]
    latencies = [p.latency_ns for p in points]
    assert latencies == sorted(latencies)
    assert latencies[0] > 0.98 * traffic.alone_ns
    assert not points[0].saturated
    for load, point in zip((0.1, 0.3, 0.5), points, strict=True):
        assert point.accepted == pytest.approx(load, rel=0.1)
    run = _Run(traffic)
    sent = run.offer(0.3, 1000)
    run.drain()
    assert len(run.arrived()[0]) == sent == pytest.approx(0.3 / 2 * 1000 * SIDE * SIDE, rel=0.1)


def test_saturation_is_between_the_loads_on_both_sides():
    traffic = _Traffic(mesh(), "hotspot", 1, "cube", 0)
    curve = kb.load_curve(mesh(), pattern="hotspot", loads=[0.1], cycles=2000)
    # One link takes all that goes to the hot slice: 16 terminals x load x (1/8 + 7/8 / 16) < 1.
    assert 0.25 < curve.saturation < 1 / (16 * (1 / 8 + 7 / 8 / 16))
    below, above = (traffic.point(curve.saturation + d, 2000) for d in (-0.03, 0.03))
    assert not below.saturated
    assert above.saturated


@pytest.mark.parametrize(
    ("machine", "network"), slow_after(1, [(mesh(), "cube"), (mesh("unbounded"), "cube"), (torus(), "sips")])
)
def test_one_network_gives_every_pair_the_latency_of_a_new_one(machine, network):
    traffic = _Traffic(machine, "uniform", 3, network, 0)
    n = len(traffic.ends)
    alone = [_Run(traffic).alone(i, j) for i in range(n) for j in range(n)]
    assert traffic.alone_ns == sum(alone) / len(alone) / 1000
    assert _traffic(machine, "uniform", 3, network) is _traffic(machine, "uniform", 3, network)


def test_the_capacity_is_the_load_at_which_the_busiest_link_is_busy_all_the_time():
    # Half of the packets of 2 x 4 terminals cross the middle, over 4 links.
    assert _Traffic(mesh(), "uniform", 8, "cube", 0).capacity == 1.0
    assert _Traffic(mesh(), "transpose", 8, "cube", 0).capacity == 1 / 3
    assert _Traffic(mesh(), "hotspot", 1, "cube", 0).capacity == 1 / (16 * (1 / 8 + 7 / 8 / 16))


@pytest.mark.parametrize(
    ("pattern", "exceeds"), slow_after(1, [("transpose", True), ("hotspot", True), ("uniform", False)])
)
def test_starting_at_the_capacity_saturation_is_that_of_a_bisection_of_all_loads(pattern, exceeds):
    traffic, points = _Traffic(mesh(), pattern, 1, "cube", 0), {}
    found, capacity = _saturation(traffic, points, 400), traffic.capacity
    assert (found >= capacity) is exceeds
    assert max(points) <= max(1.1 * capacity, found + 0.01)
    traffic.capacity = 2.0  # no load is expected to saturate
    assert _saturation(traffic, {}, 400) == found


def test_what_does_not_go_to_the_hot_spot_waits_with_credits():
    # At 0.3 the hot link is busy for 86 % of the time.
    with_credits, without = (_Traffic(mesh(flow), "hotspot", 1, "cube", 0) for flow in ("credits", "unbounded"))
    credits, unbounded = (t.point(0.36, 2000) for t in (with_credits, without))
    assert unbounded.others_ns < unbounded.latency_ns
    assert credits.others_ns / with_credits.alone_ns > 1.2 * unbounded.others_ns / without.alone_ns


def test_patterns_name_their_partners():
    traffic = _Traffic(mesh(), "transpose", 1, "cube", 0)
    assert [EVERY_ROUTER[to] for to in traffic.to] == [[col, row] for row, col in EVERY_ROUTER]
    traffic = _Traffic(mesh(), "tornado", 1, "cube", 0)
    assert EVERY_ROUTER[traffic.to[0]] == [1, 1]
    assert EVERY_ROUTER[traffic.to[-1]] == [0, 0]


@pytest.mark.slow
def test_the_same_seed_gives_the_same_curve():
    one, two, other = (kb.load_curve(mesh(), loads=[0.2], cycles=400, seed=seed) for seed in (1, 1, 2))
    assert one == two
    assert one.points != other.points


def test_the_warm_up_ends_where_the_mean_is_steady():
    assert warm_up([0.0, 5.0, *[10.0, 10.2] * 9]) == 2
    assert warm_up([10.0, 10.2] * 10) == 0


def test_the_warm_up_leaves_batches_with_packets():
    assert warm_up([5.0, *[float("nan")] * 9]) == 0
    assert warm_up([5.0, 9.0, 9.1, *[float("nan")] * 17]) <= 2


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"pattern": "tornadoo"}, "pattern = 'tornadoo' is unknown; did you mean tornado"),
        ({"loads": [0.0]}, "loads: 0 must be > 0 and <= 1"),
        ({"packet": 0}, "packet = 0 must be at least 1 flit"),
        ({"cycles": 10}, "cycles = 10 must be at least"),
        ({"network": "mesh"}, "network = 'mesh' is unknown"),
    ],
)
def test_what_is_refused(wrong, said):
    with pytest.raises(ArgumentError, match=said):
        kb.load_curve(mesh(), **wrong)


def test_a_pattern_without_a_partner_is_refused():
    with pytest.raises(
        ArgumentError, match=r"pattern transpose: the terminal at row 0 and column 1 sends to row 1 and column 0"
    ):
        kb.load_curve("preset:default", pattern="transpose")


def test_the_command_prints_curves_and_draws_them(tmp_path):
    file = tmp_path / "curve.png"
    options = ["--load", "0.1:0.2:0.1", "--packet", "1,2", "--cycles", "400", "--figure", str(file)]
    told = CliRunner().invoke(cli, ["probe", *options, "--topology", "preset:default"])
    assert told.exit_code == 0, told.output
    assert told.output.count("saturation at") == 2
    assert file.read_bytes().startswith(b"\x89PNG")
    refused = CliRunner().invoke(cli, ["probe", "--load", "0.5:0.1"])
    assert refused.exit_code == 2
    assert "must be FROM:TO" in refused.output


@pytest.mark.parametrize("flow", ["credits", "unbounded"])
def test_a_saturated_network_is_left_after_the_same_cycle_on_every_host(flow):
    run = _Run(_Traffic(mesh(flow), "transpose", 8, "cube", 0))
    sent = run.offer(1.0, 400)
    run.drain(600)
    end = 600 * run.traffic.cycle_ps
    assert run.core.now == end
    _, ended, _, _ = run.arrived()
    assert len(ended) < sent
    assert ended.max() <= end
