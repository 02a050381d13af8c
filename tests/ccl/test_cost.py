"""Closed forms against the text books, and against a machine's own closed form of a transfer."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kernbench as kb
from kernbench.ccl import cost
from kernbench.ccl.channels import Ends, RingBuffer, channel_model
from kernbench.ccl.cost import AlphaBeta
from tests.components.queues_under_test import FAR, NEAR, run

US = AlphaBeta(alpha_ns=1000, bw_gbs=50)
TCM = RingBuffer("tcm", 4, 4096, 16)


def ring(n, net):
    return [cost.RingCost(n, net)]


def halves(n, net):
    return [cost.RingCost(2, net)] * (n.bit_length() - 1)


@pytest.mark.parametrize(
    ("levels", "expected_us"),
    [
        (ring(16, US), (30.04, 67.5)),
        (halves(16, US), (8.04, 45.5)),
        (ring(4, US) * 2, (12.04, 49.5)),
    ],
)
def test_anchors(levels, expected_us):
    assert [round(cost.all_reduce(levels, size) / 1000, 2) for size in (1e3, 1e6)] == list(expected_us)


nets = st.builds(AlphaBeta, st.floats(0, 1e4), st.floats(1, 1e3), st.floats(0, 1))


@settings(max_examples=25)
@given(nets, st.integers(2, 300), st.floats(1, 1e9))
def test_formulas(net, n, size):
    alpha, beta, gamma = net.alpha_ns, size / net.bw_gbs, net.gamma_ns * size
    share, around = (n - 1) / n, ring(n, net)
    whole = 2 * (n - 1) * alpha + 2 * share * beta + share * gamma
    assert cost.all_reduce(around, size) == pytest.approx(whole)
    assert cost.reduce_scatter(around, size) + cost.all_gather(around, size) == pytest.approx(whole)
    assert cost.ring_flat(around, size) == pytest.approx((n - 1) * (alpha + beta + gamma))
    assert cost.all_to_all(around, size) == pytest.approx(alpha + share * beta)


@settings(max_examples=25)
@given(nets, st.integers(1, 9), st.floats(1, 1e9))
def test_formulas_of_powers_of_two(net, log, size):
    n, alpha, beta, gamma = 1 << log, net.alpha_ns, size / net.bw_gbs, net.gamma_ns * size
    share, tree = (n - 1) / n, [cost.TreeCost(log, net)]
    halving = 2 * log * alpha + 2 * share * beta + share * gamma
    assert cost.all_reduce(halves(n, net), size) == pytest.approx(halving)
    assert cost.recursive_doubling(halves(n, net), size) == pytest.approx(log * (alpha + beta + gamma))
    both = cost.reduce(tree, size) + cost.broadcast(tree, size)
    assert cost.all_reduce(tree, size) == pytest.approx(2 * log * (alpha + beta) + log * gamma) == both
    assert cost.barrier(tree, 0) == pytest.approx(2 * log * (alpha + 1 / net.bw_gbs))


@settings(max_examples=25)
@given(st.integers(2, 8), st.integers(2, 8), nets, st.floats(1, 1e9))
def test_a_torus_moves_what_one_ring_over_all_does(r, c, net, size):
    torus = cost.all_reduce([cost.RingCost(r, net), cost.RingCost(c, net)], size)
    n, alpha = r * c, net.alpha_ns
    moved = (n - 1) / n * (2 * size / net.bw_gbs + size * net.gamma_ns)
    assert torus == pytest.approx(2 * (r + c - 2) * alpha + moved)


def test_a_fold_takes_the_whole_vector_there_and_back():
    four = halves(4, US)
    fold = cost.all_reduce([cost.TreeCost(1, US), *four], 1e6) - cost.all_reduce(four, 1e6)
    assert fold == pytest.approx(2 * US.first(1e6))


@pytest.fixture(scope="module")
def model():
    return channel_model(kb.load("preset:default"))


def test_the_window_limits_between_sips(model):
    # 4 slots of 4 KiB in a round trip: data, TCM port twice, credit.
    near, centre = (model.channel((0, cube, 0), (1, cube, 0), TCM) for cube in (0, 10))
    assert round(near.window_gbs) == 70
    assert centre.window_gbs == pytest.approx(36.5, abs=0.1)
    assert near.rate_gbs == near.window_gbs < near.bw_gbs == 128


def test_more_slots_reach_the_link(model):
    rates = [
        model.channel((0, 0, 0), (1, 0, 0), RingBuffer("tcm", slots, 4096, 16)).rate_gbs for slots in (2, 4, 8, 16)
    ]
    assert rates[1] == pytest.approx(2 * rates[0])
    assert rates[2:] == [128, 128]


def test_a_long_message_goes_at_the_rate(model):
    for slots in (2, 4, 8):
        channel = model.channel((0, 0, 0), (1, 0, 0), RingBuffer("tcm", slots, 4096, 16))
        more, less = channel.send(64 << 20), channel.send(32 << 20)
        assert (32 << 20) / (more - less) == pytest.approx(channel.rate_gbs, rel=0.001)


def test_a_short_message_takes_its_way(model):
    # 256 B from cube 0 to its neighbour: 53.21 ns of links and nodes less what 4 KiB take beyond a flit, then TCM.
    channel = model.channel((0, 0, 0), (0, 1, 0), TCM)
    assert channel.send(256) == pytest.approx(2 + (68.21 - 15 * 2) + 2 * 0.5)


def test_memories_cost_what_they_say(model):
    tcm, sram, hbm = (
        model.channel((0, 0, 0), (0, 1, 0), RingBuffer(kind, 4, 4096, 16)) for kind in ("tcm", "sram", "hbm")
    )
    assert tcm.send(4096) < hbm.send(4096) < sram.send(4096)
    assert hbm.memory.set_up_ps == 3 * sram.memory.set_up_ps == 6000


def test_queues_share_a_link(model):
    # PE 0 of both cubes 1 and 2 send west over connection 0 of the same ports.
    pairs = (((1, 0), (0, 0)), ((2, 0), (0, 0)))
    assert [model.shared_gbs({(0, 0): Ends(pairs[:n])}, TCM) for n in (1, 2)] == [128, 64]


@pytest.mark.parametrize(("kind", "within"), [("tcm", 0), ("sram", 0.03), ("hbm", 0.08)])
@pytest.mark.parametrize("pair", [NEAR, FAR])
@pytest.mark.parametrize("nbytes", [16, 4096, 65536])
def test_the_machine_takes_as_long(model, kind, within, pair, nbytes):
    # The memories of SRAM and HBM rings have links of their own, on which parts that come and go meet.
    (src, _), (dst, _) = pair

    def send(tl):
        tl.send("E", tl.full((nbytes // 2,), 1, dtype="f16"))

    def receive(tl):
        tl.recv("W", shape=(nbytes // 2,), dtype="f16")

    records = run({src: send, dst: receive}, (pair,), kind=kind).records()
    took = (records.of_kind("recv").end_ps.max() - records.of_kind("send").start_ps.min()) / 1000
    channel = model.channel(src, dst, RingBuffer(kind, 4, 4096, 16))
    assert took == pytest.approx(channel.send(nbytes) - channel.command_ns, rel=within, abs=1e-3)
    assert took >= channel.send(nbytes) - channel.command_ns - 1e-3


def test_adding_takes_a_row_of_lanes_a_cycle(model):
    channel = model.channel((0, 0, 0), (0, 1, 0), TCM, itemsize=2)
    assert channel.reduce(2 * 128) == 3
    assert channel.reduce(2 * 129) == 4
