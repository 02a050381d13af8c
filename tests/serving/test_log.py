"""The scheduler alone against a log of vLLM, with measured times of layers; no constant is fitted to the log.

Both are of vLLM 0.19 on an RTX PRO 6000, Llama-3.1-8B; their first lines say where they are from.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from kernbench.serving import LayerProfile, Policy, run

DATA = Path(__file__).parent / "data"
METRICS = {"ttft_ms": 0.06, "tpot_ms": 0.03, "e2el_ms": 0.04}  # with the largest error of the mean


def ks_p(a, b):
    """P-value of the two-sample test of Kolmogorov and Smirnov, asymptotic (Stephens 1970)."""
    a, b = np.sort(a), np.sort(b)
    both = np.concatenate([a, b])
    shares = [np.searchsorted(x, both, side="right") / len(x) for x in (a, b)]
    root = math.sqrt(len(a) * len(b) / (len(a) + len(b)))
    x = (root + 0.12 + 0.11 / root) * np.abs(shares[0] - shares[1]).max()
    return min(1.0, 2 * sum((-1) ** (k - 1) * math.exp(-2 * (k * x) ** 2) for k in range(1, 101))) if x > 0.2 else 1.0


def tost_margin(simulated, measured):
    """Largest end of the 90 % confidence interval of the mean difference of pairs, over the mean: TOST at 5 %."""
    difference = simulated - measured
    half = 1.645 * difference.std(ddof=1) / math.sqrt(len(difference))
    return (abs(difference.mean()) + half) / measured.mean()


@pytest.fixture(scope="module")
def measured():
    log = pd.read_csv(DATA / "requests.csv", comment="#")
    first, last = log["first_token_s"] - log["arrival_s"], log["last_token_s"] - log["arrival_s"]
    return log.assign(
        ttft_ms=1000 * first, tpot_ms=1000 * (last - first) / (log["output_tokens"] - 1), e2el_ms=1000 * last
    )


@pytest.fixture(scope="module")
def profile():
    files = (DATA / f"{name}.csv" for name in ("attention", "dense", "per_sequence"))
    return LayerProfile(*files, layers=32, kv_heads=8, multiprocessors=188)


def simulate(log, profile, change=lambda contexts: contexts):
    requests = log.rename(columns={"prompt_tokens": "input_len", "output_tokens": "output_len"})
    policy = Policy(max_num_seqs=128, max_num_batched_tokens=2048)
    steps = lambda prefill, contexts: profile(prefill, change(contexts))  # noqa: E731
    return run(requests[["arrival_s", "input_len", "output_len"]], steps, policy).table


@pytest.fixture(scope="module")
def simulated(measured, profile):
    return simulate(measured, profile)


@pytest.mark.parametrize("metric", METRICS)
def test_means_are_those_of_the_engine(measured, simulated, metric):
    assert simulated[metric].mean() == pytest.approx(measured[metric].mean(), rel=METRICS[metric])
    assert tost_margin(simulated[metric], measured[metric]) < 0.1


@pytest.mark.parametrize("metric", METRICS)
def test_distributions_are_those_of_the_engine(measured, simulated, metric):
    assert ks_p(simulated[metric], measured[metric]) > 0.05


def test_equal_contexts_would_miss_the_log(measured, profile):
    """The tests above notice that requests of a step have unequal contexts: with their mean instead, they fail."""
    mean = simulate(
        measured, profile, lambda contexts: [round(sum(contexts) / len(contexts))] * len(contexts) if contexts else []
    )
    assert ks_p(mean["tpot_ms"], measured["tpot_ms"]) < 0.01
    assert mean["ttft_ms"].mean() < 0.94 * measured["ttft_ms"].mean()


def test_the_statistics_find_a_shift_of_a_tenth(measured):
    shifted = 1.1 * measured["tpot_ms"]
    assert ks_p(shifted, measured["tpot_ms"]) < 0.001
    assert tost_margin(shifted, measured["tpot_ms"]) > 0.1
    assert ks_p(measured["tpot_ms"], measured["tpot_ms"]) == 1
