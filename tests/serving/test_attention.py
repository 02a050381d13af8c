"""Attention of unequal contexts: its values against numpy, where it runs, and its time."""

from __future__ import annotations

import numpy as np
import pytest

import kernbench as kb
from kernbench.runtime_api.context import session
from kernbench.serving._attention import attention_row, launch_all, prepared
from kernbench.serving._parts import lognormal_contexts

WIDTH = 64


def expected(q, k, v, contexts, heads, kv_heads):
    """softmax(q k^T / sqrt(width)) v of each request and head, with keys packed one request after another."""
    out = np.zeros((len(contexts), heads, v.shape[2]))
    for r, (end, n) in enumerate(zip(np.cumsum(contexts), contexts, strict=True)):
        for h in range(heads):
            own = slice(end - n, end)
            keys, values = (x[h * kv_heads // heads, own].astype(float) for x in (k, v))
            scores = np.exp(keys @ q[r, h].astype(float) / np.sqrt(q.shape[2]))
            out[r, h] = scores / scores.sum() @ values
    return out


@pytest.mark.parametrize(
    ("contexts", "heads", "kv_heads", "more"),
    [([40, 300, 7], 4, 1, 0), ([600, 50, 1000, 3], 8, 2, 0), ([9], 4, 4, 0), ([700, 50, 3], 8, 1, 32), ([9], 2, 1, 32)],
)
def test_unequal_contexts_have_the_values_of_numpy(contexts, heads, kv_heads, more):
    """With `more` elements of keys that are no values, values are the first ones of keys."""
    rng, head_dim = np.random.default_rng(0), WIDTH + more
    with session("preset:small", data=True) as torch:
        steps, tensors = prepared(torch, 1, contexts, heads, kv_heads, head_dim, WIDTH if more else 0)
        assert (tensors["k"] is tensors["v"]) == bool(more)
        values = {
            name: rng.standard_normal(tensors[name].shape).astype(np.float16) for name in ("qk" if more else "qkv")
        }
        for name, value in values.items():
            tensors[name].poke(value)
        launch_all(torch, steps, tensors)
        torch._host.synchronize()
        got = tensors["out"].peek().reshape(len(contexts), heads, WIDTH)
    q, k = (values[name].reshape(n, -1, head_dim) for name, n in (("q", len(contexts)), ("k", kv_heads)))
    v = values.get("v", k[:, :, :WIDTH]).reshape(kv_heads, -1, WIDTH)
    assert got == pytest.approx(expected(q, k, v, contexts, heads, kv_heads), abs=5e-3)


def test_each_pe_attends_to_the_keys_that_it_holds():
    machine = kb.load("preset:small")
    with session(machine) as torch:
        [step, _], tensors = prepared(torch, 1, [100, 1000, 300], 4, 1, WIDTH)
        held = tensors["k"].layout.held(machine.config.pes_per_cube)
    row = 2 * WIDTH  # bytes of a key
    holder = {pes[0]: (first // row, (first + n) // row) for first, n, pes in held}
    starts, attended = (0, 100, 1100), []
    for (cube, pe), units in step.kernel.keywords["units"].items():
        first, last = holder[cube * machine.config.pes_per_cube + pe]
        for unit in units:
            start = starts[unit.batch] + unit.kv[0]
            assert first <= start < start + unit.kv[1] <= last
            attended += range(start, start + unit.kv[1])
    assert sorted(attended) == list(range(1400))


def test_heads_of_a_request_that_is_cut_are_merged_on_different_pes():
    with session("preset:small") as torch:
        [_, merge], _ = prepared(torch, 1, [4000], 4, 1, WIDTH)
    merges = merge.kernel.keywords["merges"]
    assert sorted(each.head for own in merges.values() for each in own) == [0, 1, 2, 3]
    assert len(merges) == 4


def test_a_longer_context_of_one_request_takes_longer_and_levels_of_the_log_agree():
    machine = kb.load("preset:small")
    sizes = {"heads": 4, "kv_heads": 1, "head_dim": WIDTH}
    times = [attention_row(machine, tokens=1, contexts=[256, n], **sizes, log="off")["ns"] for n in (256, 2048)]
    assert times[1] > times[0]
    row = attention_row(machine, tokens=1, contexts=[256, 2048], **sizes)
    assert row["ns"] == times[1]
    assert row["nbytes"] == 2 * 2 * WIDTH * (256 + 2048)
    assert sum(row["path"].values()) >= row["ns"]


def test_a_chunk_is_causal_behind_the_tokens_before_it():
    tokens, context, heads = 40, 100, 2
    rng = np.random.default_rng(0)
    with session("preset:small", data=True) as torch:
        steps, tensors = prepared(torch, tokens, [context], heads, 1, WIDTH)
        values = {name: rng.standard_normal(tensors[name].shape).astype(np.float16) for name in "qkv"}
        for name, value in values.items():
            tensors[name].poke(value)
        launch_all(torch, steps, tensors)
        torch._host.synchronize()
        got = tensors["out"].peek().reshape(tokens, heads, WIDTH)
    q = values["q"].reshape(tokens, heads, WIDTH)
    for i in range(tokens):
        seen = context - tokens + i + 1
        k, v = (values[name][None, :seen] for name in "kv")
        assert got[i] == pytest.approx(expected(q[i : i + 1], k, v, [seen], heads, 1)[0], abs=5e-3)


@pytest.mark.slow
def test_unequal_batches_are_within_15_percent_of_that_of_the_table():
    """A batch is simulated with a spread of contexts and looked up by its mean; what other spreads take instead."""
    machine = kb.load("preset:default")
    sizes = {"heads": 4, "kv_heads": 1, "head_dim": 128, "log": "off"}
    usual = attention_row(machine, tokens=1, contexts=lognormal_contexts(32, 1024), **sizes)["ns"]
    rng = np.random.default_rng(5)
    for sigma in (0.4, 0.8, 1.2):
        drawn = rng.lognormal(0, sigma, 32)
        contexts = np.maximum(1, np.rint(drawn * 1024 / drawn.mean())).astype(int).tolist()
        assert attention_row(machine, tokens=1, contexts=contexts, **sizes)["ns"] == pytest.approx(usual, rel=0.15)
