"""Latencies and goodput by hand, and the names of `vllm bench serve`."""

from __future__ import annotations

import json

import numpy as np
import pytest
from matplotlib.figure import Figure

from kernbench.errors import ArgumentError
from kernbench.serving import Policy, generate, run
from tests.serving.cases import MS, constant, linear, requests

# Keys of vllm/benchmarks/serve.py with --save-detailed, less those of audio and of a client with a limit.
DETAILED = {
    "input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "generated_texts", "errors",
}  # fmt: skip
SCALARS = {
    "duration", "completed", "failed", "total_input_tokens", "total_output_tokens", "request_throughput",
    "request_goodput", "output_throughput", "total_token_throughput", "max_output_tokens_per_s",
    "max_concurrent_requests",
    *(f"{kind}_{name}_ms" for kind in ("mean", "median", "std", "p99") for name in ("ttft", "tpot", "itl", "e2el")),
}  # fmt: skip


@pytest.fixture
def served():
    """First tokens after 1, 1 and 3 ms, last after 3, 1 and 4 ms; the third arrives 1.5 ms after the others."""
    table = requests((0, 10, 3), (0, 20, 1), (1.5, 30, 2))
    return run(table, constant, Policy(async_scheduling=False))


def test_times_of_requests_by_hand(served):
    # The third starts with the step from 2 to 3 ms.
    table = served.table
    assert table["queue_ms"].tolist() == [0, 0, 0.5]
    assert table["ttft_ms"].tolist() == [1, 1, 1.5]
    assert table["e2el_ms"].tolist() == [3, 1, 2.5]
    assert table["tpot_ms"].tolist() == [1, 0, 1]
    assert served.duration_s == 0.004


def test_figures_by_hand(served):
    found = served.to_dict()
    assert (found["completed"], found["failed"]) == (3, 0)
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (60, 6)
    assert found["request_throughput"] == pytest.approx(750)
    assert found["output_throughput"] == pytest.approx(1500)
    assert found["total_token_throughput"] == pytest.approx(16_500)
    assert found["mean_ttft_ms"] == pytest.approx(3.5 / 3)
    assert found["median_e2el_ms"] == pytest.approx(2.5)
    assert found["mean_tpot_ms"] == pytest.approx(1)  # of the two requests with more than one token
    assert found["p99_ttft_ms"] == pytest.approx(np.percentile([1, 1, 1.5], 99))
    assert found["std_e2el_ms"] == pytest.approx(np.std([3, 1, 2.5]))
    assert found["itls"] == [pytest.approx([0.001, 0.001]), [], pytest.approx([0.001])]
    assert found["ttfts"] == pytest.approx([0.001, 0.001, 0.0015])
    assert (found["max_concurrent_requests"], found["max_output_tokens_per_s"]) == (2, 6)


def test_goodput_counts_requests_that_meet_all_limits(served):
    assert served.goodput(ttft_ms=1) == pytest.approx(500)
    assert served.goodput(ttft_ms=1, e2el_ms=1) == pytest.approx(250)
    assert served.goodput(tpot_ms=0) == pytest.approx(250)  # one token has no time between tokens: 0, as in vLLM
    assert served.goodput(ttft_ms=1.5, tpot_ms=1, e2el_ms=3) == pytest.approx(750)
    assert served.goodput(ttft_ms=0.9) == 0
    assert served.to_dict(ttft_ms=1)["request_goodput"] == served.goodput(ttft_ms=1)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({}, "no limit is given; pass some of ttft_ms=..., tpot_ms=..., e2el_ms=..."),
        ({"ttft": 1}, "ttft is no limit"),
        ({"ttft_ms": -1}, "ttft_ms = -1 must be a time of at least 0"),
    ],
)
def test_other_limits_are_refused(served, limits, message):
    with pytest.raises(ArgumentError, match=message):
        served.goodput(**limits)


def test_the_file_has_the_names_of_vllm(served, tmp_path):
    served.save(tmp_path / "serve.json", ttft_ms=200)
    found = json.loads((tmp_path / "serve.json").read_text())
    assert found.keys() == SCALARS | DETAILED
    assert served.metrics.keys() == SCALARS
    assert found["request_goodput"] == pytest.approx(750)
    assert found["mean_itl_ms"] == pytest.approx(1000 * np.mean(np.concatenate(found["itls"])))


def test_outputs_of_one_token_have_no_time_between_tokens():
    found = run(requests((0, 10, 1)), constant).metrics
    assert (found["mean_tpot_ms"], found["p99_itl_ms"], found["mean_ttft_ms"]) == (0, 0, 1)


def test_steps_say_what_ran():
    result = run(requests((0, 10, 3), (0, 40, 1)), linear, Policy(max_num_batched_tokens=32, async_scheduling=False))
    steps = result.steps
    assert steps["prefill_tokens"].tolist() == [32, 18, 0]
    assert steps["decode_tokens"].tolist() == [0, 1, 1]
    assert ((steps["end_s"] - steps["start_s"]) * 1e9).tolist() == pytest.approx([42e3, 29e3, 11e3])
    assert steps["used_blocks"].tolist() == [3, 4, 1]  # 22 tokens of the second prompt need 2, and all 40 need 3
    replica = result.replicas.iloc[0]
    assert (replica.steps, replica.tokens, replica.peak_blocks, replica.busy) == (3, 52, 4, 1)


def test_a_curve_serves_the_same_requests_at_other_rates():
    table = generate(400, request_rate=5, input_len=100, output_len=10, seed=1)
    result = run(table, lambda prefill, contexts: 10 * MS)
    here = (len(table) - 1) / (table["arrival_s"].max() - table["arrival_s"].min())
    curve = result.curve([here, 4 * here, 40 * here], ttft_ms=15)
    assert curve["request_rate"].tolist() == [here, 4 * here, 40 * here]
    alike = [name for name in SCALARS if name.endswith("_ms")]
    assert curve.loc[0, alike].tolist() == pytest.approx([result.metrics[name] for name in alike], rel=1e-6)
    assert curve["mean_ttft_ms"].is_monotonic_increasing
    assert curve["request_throughput"].is_monotonic_increasing
    assert set(curve) == {"request_rate", *SCALARS, "tokens_per_s_per_user", "tokens_per_s_per_sip"}
    assert "request_goodput" not in result.curve([here])


@pytest.mark.parametrize("rate", [0, -1, float("inf")])
def test_a_curve_needs_rates(rate):
    result = run(requests((0, 10, 1), (1, 10, 1)), constant)
    with pytest.raises(ArgumentError, match=r"curve: rate = .* must be a finite number"):
        result.curve([rate])
    with pytest.raises(ArgumentError, match="all requests arrive at once"):
        run(requests((0, 10, 1), (0, 10, 1)), constant).curve([1])


def test_a_result_prints_itself_and_fills_axes(served):
    assert repr(served).startswith("3 requests in 0.0 s: 750.00 requests/s, 1,500 output tokens/s")
    ax = Figure().subplots()
    served.plot(ax)
    assert [line.get_label() for line in ax.lines] == ["running", "waiting"]
    assert ax.lines[0].get_ydata().tolist() == served.steps["running"].tolist()
