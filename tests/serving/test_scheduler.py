"""The rules of vLLM v1, step by step."""

from __future__ import annotations

import pytest

from kernbench.errors import ArgumentError
from kernbench.serving import Policy, run
from tests.serving.cases import MS, constant, requests


class Recorder:
    """Steps of 1 ms; what each computed."""

    def __init__(self):
        self.steps = []

    def __call__(self, prefill, contexts):
        self.steps.append((list(prefill), list(contexts)))
        return MS


def steps_of(table, **policy):
    recorder = Recorder()
    result = run(table, recorder, Policy(**{"async_scheduling": False, **policy}))
    return recorder.steps, result


def test_a_prompt_is_computed_in_chunks_and_its_last_gives_the_first_token():
    steps, result = steps_of(requests((0, 100, 3)), max_num_batched_tokens=64)
    assert steps == [([(64, 0)], []), ([(36, 64)], []), ([], [101]), ([], [102])]
    row = result.table.iloc[0]
    assert (row.ttft_ms, row.tpot_ms, row.e2el_ms, row.queue_ms) == (2, 1, 4, 0)


def test_running_requests_come_before_waiting_ones():
    steps, _ = steps_of(requests((0, 10, 3), (0.5, 100, 1)), max_num_batched_tokens=64)
    assert steps == [([(10, 0)], []), ([(63, 0)], [11]), ([(37, 63)], [12])]


def test_a_step_is_shared_by_prompts_in_order_of_arrival():
    steps, result = steps_of(requests((0, 40, 1), (0, 40, 1), (0, 40, 1)), max_num_batched_tokens=64)
    assert steps == [([(40, 0), (24, 0)], []), ([(16, 24), (40, 0)], [])]
    assert result.table["ttft_ms"].tolist() == [1, 2, 2]


def test_without_chunks_a_prompt_waits_for_a_step_with_room_and_nobody_overtakes_it():
    steps, _ = steps_of(
        requests((0, 40, 1), (0, 40, 1), (0, 10, 1)), max_num_batched_tokens=64, enable_chunked_prefill=False
    )
    assert steps == [([(40, 0)], []), ([(40, 0), (10, 0)], [])]


def test_max_num_seqs_limits_the_running_requests():
    steps, _ = steps_of(requests((0, 10, 2), (0, 20, 2)), max_num_seqs=1)
    assert steps == [([(10, 0)], []), ([], [11]), ([(20, 0)], []), ([], [21])]


@pytest.mark.parametrize(("blocks", "first"), [(3, [([(16, 0)], [])]), (4, [([(16, 0), (48, 0)], [])])])
def test_a_request_is_admitted_when_the_blocks_of_its_whole_prompt_are_free(blocks, first):
    steps, _ = steps_of(requests((0, 16, 1), (0, 48, 1)), num_blocks=blocks, max_num_batched_tokens=64)
    assert steps[:1] == first


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize(("blocks", "first"), [(3, [(16, 0)]), (4, [(16, 0), (16, 0)])])
def test_a_chunk_that_would_fit_waits_for_the_blocks_of_the_whole_prompt(blocks, first, caching):
    table = requests((0, 16, 1), (0, 48, 1))
    steps, _ = steps_of(table, num_blocks=blocks, max_num_batched_tokens=32, enable_prefix_caching=caching)
    assert steps[0] == (first, [])


def test_the_latest_request_is_preempted_and_its_tokens_are_computed_again():
    # Two blocks of 4 for each prompt; the 9th token of the first needs a third, and the fifth block is gone.
    steps, result = steps_of(requests((0, 8, 3), (0, 8, 3)), num_blocks=4, block_size=4, enable_prefix_caching=False)
    assert steps == [([(8, 0), (8, 0)], []), ([], [9]), ([], [10]), ([(9, 0)], []), ([], [10])]
    assert result.table["preemptions"].tolist() == [0, 1]
    assert result.table["e2el_ms"].tolist() == [3, 5]


def test_a_preempted_request_finds_its_own_blocks_if_nobody_took_them():
    # The first took one of its two blocks: 4 of its 9 tokens are left.
    steps, result = steps_of(requests((0, 8, 3), (0, 8, 3)), num_blocks=4, block_size=4)
    assert steps[3:] == [([(5, 4)], []), ([], [10])]
    assert result.table["cached_tokens"].tolist() == [0, 0]  # of the prompt, at its first start


def test_a_step_that_preempts_admits_nobody():
    table = requests((0, 8, 3), (0, 8, 3), (0.5, 1, 1))
    steps, _ = steps_of(table, num_blocks=4, block_size=4, enable_prefix_caching=False)
    assert steps[1] == ([], [9])  # two blocks are free now
    assert steps[2] == ([], [10])  # the preempted request is the first that waits


@pytest.mark.parametrize("caching", [True, False])
def test_the_step_that_preempts_a_request_does_not_admit_it_again(caching):
    # Scheduled ahead, the second needs a third block for a token in flight; without that token two, which are free.
    steps, _ = steps_of(
        requests((0, 8, 3), (0, 8, 3)),
        num_blocks=5, block_size=4, async_scheduling=True, enable_prefix_caching=caching,
    )  # fmt: skip
    assert steps[1] == ([], [9])


def test_a_prefix_is_computed_once():
    table = requests((0, 600, 1), (5, 600, 1), hashes=[[7, 8], [7, 9]])
    steps, result = steps_of(table, block_size=16)
    assert steps == [([(600, 0)], []), ([(88, 512)], [])]
    assert result.table["cached_tokens"].tolist() == [0, 512]


def test_a_prefix_is_shared_by_requests_of_one_step():
    steps, result = steps_of(requests((0, 600, 1), (0, 600, 1), hashes=[[7, 8], [7, 9]]), block_size=16)
    assert steps == [([(600, 0), (88, 512)], [])]
    assert result.steps["used_blocks"].tolist() == [38 + 6]  # ceil(600 / 16), and 32 of these are shared


def test_of_a_prompt_that_is_cached_the_last_block_is_computed():
    steps, _ = steps_of(requests((0, 512, 1), (5, 512, 1), hashes=[[7], [7]]), block_size=16)
    assert steps == [([(512, 0)], []), ([(16, 496)], [])]


def test_a_prefix_is_lost_when_its_blocks_are_used_again_from_its_end():
    # 32 blocks keep the prefix; another request takes 4 of them, and leaves the first 28 * 16 tokens.
    table = requests((0, 512, 1), (5, 64, 1), (10, 600, 1), hashes=[[7], [1], [7, 8]])
    steps, _ = steps_of(table, block_size=16, num_blocks=38)
    assert steps[1:] == [([(64, 0)], []), ([(88, 512)], [])]  # 6 blocks were never used
    steps, _ = steps_of(table, block_size=16, num_blocks=38, enable_prefix_caching=False)
    assert steps[2:] == [([(600, 0)], [])]
    table = requests((0, 512, 1), (5, 160, 1), (10, 600, 1), hashes=[[7], [1], [7, 8]])
    steps, _ = steps_of(table, block_size=16, num_blocks=38)
    assert steps[2:] == [([(600 - 28 * 16, 28 * 16)], [])]


def test_scheduled_ahead_an_arrival_waits_for_the_step_after_the_running_one():
    table = requests((0, 10, 5), (1.5, 10, 1))
    alone, ahead = (steps_of(table, async_scheduling=each)[0] for each in (False, True))
    assert alone == [([(10, 0)], []), ([], [11]), ([(10, 0)], [12]), ([], [13]), ([], [14])]
    assert ahead == [([(10, 0)], []), ([], [11]), ([], [12]), ([(10, 0)], [13]), ([], [14])]


def test_scheduled_ahead_the_place_of_a_finished_request_is_free_one_step_later():
    table = requests((0, 10, 2), (0, 10, 5), (0, 10, 1))
    alone, ahead = (steps_of(table, async_scheduling=each, max_num_seqs=2)[0] for each in (False, True))
    assert [len(prefill) for prefill, _ in alone] == [2, 0, 1, 0, 0]
    assert [len(prefill) for prefill, _ in ahead] == [2, 0, 0, 1, 0]


def test_a_request_that_is_preempted_after_its_last_step_started_is_complete():
    # The second request generates its last token in step 2; in step 3, scheduled meanwhile, the first takes its block.
    table = requests((0, 7, 4), (0, 8, 2))
    steps, result = steps_of(table, num_blocks=5, block_size=4, async_scheduling=True)
    assert result.table["e2el_ms"].tolist() == [4, 2]
    assert steps == [([(7, 0), (8, 0)], []), ([], [8, 9]), ([], [9]), ([], [10])]


@pytest.mark.parametrize(("ahead", "times"), [(False, [3, 6, 9]), (True, [3, 5, 7])])
def test_time_of_the_host_is_hidden_by_a_step_that_runs(ahead, times):
    policy = Policy(overhead_ns=MS, async_scheduling=ahead)
    result = run(requests((0, 10, 3)), lambda prefill, contexts: 2 * MS, policy)
    assert result.table["ttft_ms"][0] == times[0]
    assert (result.steps["end_s"] * 1000).round(9).tolist() == times


def test_the_router_takes_the_replica_with_the_least_load():
    table = requests((0, 10, 9), (0.1, 10, 9), (0.2, 10, 9), (0.3, 10, 9))
    result = run(table, constant, replicas=2)
    assert result.table["replica"].tolist() == [0, 1, 0, 1]
    assert result.replicas["requests"].tolist() == [2, 2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs = 0 must be an integer of at least 1"),
        ({"max_num_batched_tokens": 2.5}, "max_num_batched_tokens = 2.5 must be an integer"),
        ({"num_blocks": -1}, "num_blocks = -1"),
        ({"block_size": 24}, "block_size = 24 must be a power of two up to 512"),
        ({"overhead_ns": float("nan")}, "overhead_ns = nan must be a time"),
    ],
)
def test_a_policy_refuses_impossible_values(change, message):
    with pytest.raises(ArgumentError, match=message):
        Policy(**change)


def test_a_request_that_never_fits_is_refused_before_anything_runs():
    table = requests((0, 10, 1), (0, 100, 30))
    with pytest.raises(
        ArgumentError, match=r"request 1: input_len = 100 and output_len = 30 need 9 blocks .*\.num_blocks = 8;"
    ):
        run(table, constant, Policy(num_blocks=8))
    assert run(table, constant, Policy(num_blocks=9)).metrics["completed"] == 2
    with pytest.raises(ArgumentError, match=r"request 1: .* do not fit into a step .* enable_chunked_prefill=True"):
        run(table, constant, Policy(max_num_batched_tokens=128, enable_chunked_prefill=False))
    assert (
        run(table, constant, Policy(max_num_batched_tokens=129, enable_chunked_prefill=False)).metrics["completed"] == 2
    )


@pytest.mark.parametrize("ns", [0, -1, float("nan"), float("inf")])
def test_a_step_takes_a_finite_time_above_0(ns):
    with pytest.raises(ArgumentError, match="takes a finite time above 0, in ns"):
        run(requests((0, 10, 1)), lambda prefill, contexts: ns)


@pytest.mark.parametrize("replicas", [0, 1.5, True])
def test_replicas_are_counted(replicas):
    with pytest.raises(ArgumentError, match=r"replicas = .* must be an integer of at least 1"):
        run(requests((0, 10, 1)), constant, replicas=replicas)
