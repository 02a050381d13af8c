"""Replicas for prompts, and replicas for the tokens after the first: by hand, and what is conserved."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kernbench as kb
from kernbench.errors import ArgumentError
from kernbench.serving import Policy, generate, run
from kernbench.serving._transfer import _simulated_ns, transfer_ns
from tests.serving.cases import constant, linear, requests


def split(table, steps=constant, transfer=lambda tokens: 1e4 * tokens, decoding=1, **policy):
    policy = Policy(**{"async_scheduling": False, "enable_prefix_caching": False, **policy})
    return run(table, steps, policy, replicas=decoding, prefill_replicas=1, kv_transfer_ns=transfer)


def test_a_prompt_is_computed_by_one_replica_and_its_tokens_by_another():
    result = split(requests((0, 100, 3)))  # a prompt of 1 ms, a transfer of 1 ms, two steps of 1 ms
    row = result.table.iloc[0]
    assert (row.ttft_ms, row.transfer_ms, row.e2el_ms, row.replica) == (1, 1, 4, 1)
    steps = result.steps
    assert steps[["replica", "prefill_tokens", "decode_tokens"]].to_numpy().tolist() == [
        [0, 100, 0],
        [1, 0, 1],
        [1, 0, 1],
    ]
    assert result.replicas["requests"].tolist() == [1, 1]
    phases = result.timeline[["phase", "replica"]].to_numpy().tolist()
    assert phases == [["waiting", 0], ["prefill", 0], ["decode", 1]]


def test_a_request_of_one_token_is_not_sent():
    result = split(requests((0, 100, 1)))
    assert result.table[["e2el_ms", "transfer_ms", "replica"]].to_numpy().tolist() == [[1, 0, 0]]


def test_transfers_of_a_replica_are_sent_one_after_another():
    result = split(requests((0, 100, 2), (0, 200, 2)))  # both prompts in one step, then 1 and 2 ms
    assert result.table["transfer_ms"].tolist() == [1, 3]
    assert result.table["e2el_ms"].tolist() == [3, 5]


@pytest.mark.parametrize(("blocks", "first"), [(14, [1, 1]), (13, [1, 3])])
def test_blocks_of_a_prompt_are_held_until_it_has_arrived(blocks, first):
    """Two prompts of 7 blocks: without room for both, the second starts when the first has been sent, after 2 ms."""
    table = requests((0, 100, 2), (0, 100, 2))
    assert split(table, num_blocks=blocks).table["ttft_ms"].tolist() == first


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.floats(0, 5), st.integers(1, 60), st.integers(1, 12)), min_size=1, max_size=12),
    st.integers(0, 20), st.integers(16, 80), st.booleans(), st.booleans(), st.integers(1, 2),
)  # fmt: skip
def test_requests_blocks_and_tokens_are_conserved(rows, extra, budget, ahead, caching, decoding):
    table = requests(*rows)
    need = -(-max(prompt + output for _, prompt, output in rows) // 4)
    policy = {"block_size": 4, "num_blocks": need + extra, "max_num_batched_tokens": budget}
    result = split(table, linear, decoding=decoding, async_scheduling=ahead, enable_prefix_caching=caching, **policy)
    found = result.table
    # Little's law: the area of the requests in replicas, and of those on the way, is the sum of their latencies.
    area = sum(result.replicas["mean_requests"]) * result.duration_s * 1000 + found["transfer_ms"].sum()
    assert area == pytest.approx(found["e2el_ms"].sum(), rel=1e-9)
    assert all(each.scheduler.pool.used == 0 for each in result._replicas)
    assert (result.steps["used_blocks"] <= need + extra).all()
    if not found["preemptions"].any() and not caching:
        computed = result.steps["prefill_tokens"].sum() + result.steps["decode_tokens"].sum()
        assert computed == (found["input_len"] + found["output_len"] - 1).sum()
    assert all(len(request.times) == request.output for request in result._queue)
    assert all(np.all(np.diff(request.times) > 0) for request in result._queue)


@settings(max_examples=20)
@given(st.floats(1, 50), st.integers(0, 10**6))
def test_a_slower_link_never_makes_a_transfer_shorter(factor, seed):
    """And no request is earlier than without waiting; steps may be shared differently, so that one may be earlier."""
    table = generate(20, request_rate=5000, input_len=(40, 1.0), output_len=4, seed=seed)
    fast, slow = (split(table, constant, lambda tokens, f=f: f * 1e4 * tokens).table for f in (1, factor))
    assert (fast["transfer_ms"] <= slow["transfer_ms"] + 1e-9).all()
    assert slow["ttft_ms"].tolist() == fast["ttft_ms"].tolist()
    assert (slow["e2el_ms"] >= slow["ttft_ms"] + slow["transfer_ms"] + 3 - 1e-9).all()


def test_disaggregation_lowers_the_worst_gaps_of_equally_many_replicas():
    """DistServe (Zhong et al., OSDI 2024): prompts no longer delay tokens of others."""
    table = generate(300, request_rate=300, input_len=500, output_len=20, seed=1)
    together = run(table, linear, Policy(max_num_batched_tokens=512), replicas=2).metrics
    apart = run(
        table, linear, Policy(max_num_batched_tokens=512), prefill_replicas=1, kv_transfer_ns=lambda tokens: 1e4
    ).metrics
    assert apart["p99_tpot_ms"] < 0.5 * together["p99_tpot_ms"]


def test_a_transfer_needs_its_time():
    with pytest.raises(ArgumentError, match="prefill_replicas = 1 needs kv_transfer_ns"):
        run(requests((0, 10, 2)), constant, prefill_replicas=1)
    with pytest.raises(ArgumentError, match=r"kv_transfer_ns\(10\) returned nan; it must be a time from 0"):
        split(requests((0, 10, 2)), transfer=lambda tokens: float("nan"))
    with pytest.raises(ArgumentError, match=r"prefill_replicas = 1\.5 must be an integer"):
        run(requests((0, 10, 2)), constant, prefill_replicas=1.5)


@pytest.mark.parametrize(
    ("preset", "nbytes"),
    [("small", 2**19), ("small", 2**25), ("a100_sxm_calibrated", 2**19), ("a100_sxm_calibrated", 2**25)],
)
def test_a_transfer_is_as_long_as_its_simulation(preset, nbytes):
    """Of keys and values of some tokens and of a long prompt, whatever protocol their size has."""
    machine = kb.load(f"preset:{preset}", {"system.sips": {"count": 2, "topology": "ring_1d"}})
    assert transfer_ns(machine, 1, nbytes) == pytest.approx(_simulated_ns(machine, 1, nbytes), rel=0.05)


def test_a_link_of_half_the_bandwidth_takes_up_to_twice_as_long():
    machine = kb.load("preset:small", {"system.sips": {"count": 2, "topology": "ring_1d"}})
    link_gbs = machine.config.system.sip_link.bw_gbs
    time = transfer_ns(machine, 1, 2**24)
    half = transfer_ns(machine.with_({"system.sip_link.bw_gbs": link_gbs / 2}), 1, 2**24)
    assert time >= 2**24 / link_gbs
    assert time < half <= 2.01 * time
