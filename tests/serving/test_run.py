"""What every run conserves, what queueing theory says, and what never helps."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.serving import Policy, generate, run
from tests.serving.cases import MS, constant, linear, requests

SIZE = 4  # tokens of a block


@st.composite
def tables(draw, most=12):
    """Requests that arrive at whole ms, so that all steps of 1 ms begin at whole ms; some share prefixes."""
    rows = draw(
        st.lists(st.tuples(st.integers(0, 30), st.integers(1, 40), st.integers(1, 12)), min_size=1, max_size=most)
    )
    return requests(*rows, hashes=[[draw(st.integers(0, 2))] for _ in rows])


@st.composite
def policies(draw, table):
    need = -(-int((table["input_len"] + table["output_len"] - 1).max()) // SIZE)
    return Policy(
        max_num_batched_tokens=draw(st.integers(1, 80)),
        max_num_seqs=draw(st.integers(1, 8)),
        block_size=SIZE,
        num_blocks=draw(st.none() | st.integers(need, 3 * need)),
        enable_prefix_caching=draw(st.booleans()),
        async_scheduling=draw(st.booleans()),
        overhead_ns=draw(st.sampled_from([0.0, 1e5])),
    )


@settings(max_examples=80)
@given(st.data())
def test_requests_blocks_and_tokens_are_conserved(data):
    table = data.draw(tables())
    policy = data.draw(policies(table))
    result = run(table, linear, policy, replicas=data.draw(st.integers(1, 2)))
    found, steps = result.table, result.steps
    # Little's law, L = lambda W: the integral of the requests in the system is the sum of their latencies.
    area = sum(result.replicas["mean_requests"]) * result.duration_s
    assert area == pytest.approx(found["e2el_ms"].sum() / 1000, rel=1e-12)
    # Blocks: never more than there are, and all free at the end.
    assert (steps["used_blocks"] <= (policy.num_blocks or math.inf)).all()
    assert all(each.scheduler.pool.used == 0 for each in result._replicas)
    # Tokens: each but the last of an output is computed once, and again after a preemption.
    computed = steps["prefill_tokens"].sum() + steps["decode_tokens"].sum()
    once = (found["input_len"] + found["output_len"] - 1 - found["cached_tokens"]).sum()
    assert computed == result.replicas["tokens"].sum()
    if policy.enable_prefix_caching:
        assert computed >= once
    elif found["preemptions"].any():
        assert computed > once
    else:
        assert computed == once
    # Rules of the policy.
    assert (steps["prefill_tokens"] + steps["decode_tokens"] <= policy.max_num_batched_tokens).all()
    assert (steps["running"] <= policy.max_num_seqs).all()
    assert len(result._queue) == len(table)
    for request in result._queue:
        assert len(request.times) == request.output
        assert np.all(np.diff(request.times) > 0)
        assert request.arrival <= request.scheduled < request.times[0]
    # Steps of a replica follow one another.
    for _, own in steps.groupby("replica"):
        assert (own["start_s"].to_numpy()[1:] >= own["end_s"].to_numpy()[:-1]).all()


@settings(max_examples=60)
@given(st.data())
def test_a_limit_never_makes_a_request_earlier(data):
    """With steps of one length on a common grid, a request without limits takes the fewest steps."""
    table = data.draw(tables())
    limited = data.draw(policies(table))
    free = {"block_size": SIZE, "enable_prefix_caching": limited.enable_prefix_caching, "async_scheduling": False}
    best = run(table, constant, Policy(max_num_batched_tokens=10**6, max_num_seqs=1000, **free))
    real = run(table, constant, limited)
    for name in ("ttft_ms", "e2el_ms"):
        assert (real.table[name] >= best.table[name] - 1e-9).all()
    assert (best.table["tpot_ms"][table["output_len"] > 1] == 1).all()


@settings(max_examples=40)
@given(st.data())
def test_fewer_blocks_never_save_tokens(data):
    table = data.draw(tables())
    need = -(-int((table["input_len"] + table["output_len"] - 1).max()) // SIZE)
    common = {
        "block_size": SIZE,
        "enable_prefix_caching": False,
        "max_num_batched_tokens": data.draw(st.integers(8, 80)),
    }
    few = run(table, linear, Policy(num_blocks=data.draw(st.integers(need, 2 * need)), **common))
    many = run(table, linear, Policy(**common))
    assert few.replicas["tokens"].sum() >= many.replicas["tokens"].sum()


@settings(max_examples=30)
@given(st.data())
def test_a_smaller_budget_bounds_the_gaps_between_tokens(data):
    """A gap is one step where steps are not scheduled ahead, and a step has at most the tokens of the budget."""
    table = data.draw(tables())
    budget = data.draw(st.integers(16, 80))
    result = run(table, linear, Policy(max_num_batched_tokens=budget, async_scheduling=False))
    gaps = np.concatenate([np.diff(request.times) for request in result._queue])
    assert (gaps <= 1000 * (1e4 + 1e3 * budget)).all()


@settings(max_examples=40)
@given(tables(), st.integers(2, 5))
def test_times_scale_with_steps_and_arrivals(table, factor):
    slow = run(table.assign(arrival_s=table["arrival_s"] * factor), lambda **step: factor * linear(**step))
    fast = run(table, linear)
    for name in ("ttft_ms", "tpot_ms", "e2el_ms"):
        assert slow.table[name].to_numpy() == pytest.approx(factor * fast.table[name].to_numpy(), rel=1e-12)


@settings(max_examples=30)
@given(st.integers(1, 200), st.integers(1, 64))
def test_a_larger_budget_never_delays_a_lone_prompt(prompt, budget):
    times = [
        run(requests((0, prompt, 1)), linear, Policy(max_num_batched_tokens=each)).table["ttft_ms"][0]
        for each in (budget, budget + 1)
    ]
    steps = -(-prompt // budget)
    assert times[0] == pytest.approx((steps * 1e4 + prompt * 1e3) / MS)
    assert times[1] <= times[0]


def test_equal_arguments_give_equal_results():
    table = generate(200, request_rate=30_000, input_len=(40, 1.0), output_len=(8, 0.5), seed=3)
    first, second = (run(table, linear, Policy(num_blocks=100), replicas=2) for _ in range(2))
    assert first.to_dict() == second.to_dict()
    assert first.table["preemptions"].sum() > 0


@pytest.mark.parametrize("rho", [0.5, 0.8])
def test_waiting_time_of_one_server_is_that_of_an_m_d_1_queue(rho):
    """Poisson arrivals at steps of 1 s for one request: Lindley's recursion exactly, Pollaczek and Khinchine's mean."""
    table = generate(20_000, request_rate=rho, input_len=1, output_len=1, seed=7)
    policy = Policy(max_num_seqs=1, enable_prefix_caching=False, async_scheduling=False)
    waits = run(table, lambda prefill, contexts: 1e9, policy).table["queue_ms"].to_numpy() / 1000
    expected, wait = [], 0.0
    for gap in np.diff(table["arrival_s"], prepend=0.0):
        wait = max(0.0, wait + 1 - gap) if expected else 0.0
        expected.append(wait)
    assert waits == pytest.approx(expected, abs=1e-7)
    mean = rho / (2 * (1 - rho))
    batches = waits[200:].reshape(18, -1).mean(axis=1)  # means of long batches are nearly independent
    half = 2.11 * batches.std(ddof=1) / math.sqrt(len(batches))  # of a 95 % confidence interval, Student's t
    assert abs(batches.mean() - mean) < half
    assert half < 0.2 * mean


def test_disagreement_with_the_queue_would_be_seen():
    """The interval above excludes the mean of an M/M/1 queue, which is twice as long."""
    rho = 0.5
    table = generate(20_000, request_rate=rho, input_len=1, output_len=1, seed=7)
    policy = Policy(max_num_seqs=1, enable_prefix_caching=False, async_scheduling=False)
    waits = run(table, lambda prefill, contexts: 1e9, policy).table["queue_ms"] / 1000
    assert waits.mean() < 0.75 * rho / (1 - rho)
