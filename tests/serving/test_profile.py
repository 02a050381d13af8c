"""Step times from a profile of layers, by hand."""

from __future__ import annotations

import itertools

import pytest

from kernbench.errors import ArgumentError, ConfigError
from kernbench.serving import LayerProfile
from kernbench.serving._profile import CAPTURED

LAYERS = 2


def attention(chunk, before, requests, context):
    """A device with a launch of 5 us; requests that decode share it, none is faster than 0.02 us a token."""
    return 5 + chunk * (before + chunk / 2) / 1000 + max(0.01 * requests, 0.02 * (chunk > 0)) * context


@pytest.fixture
def folder(tmp_path):
    chunks, earlier, counts, contexts = (0, 16, 64), (0, 100), (0, 1, 2, 4, 8), (0, 100, 400)
    rows = ["# made up", "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us"]
    for chunk, before, n, context in itertools.product(chunks, earlier, counts, contexts):
        if (chunk or n) and (chunk or not before) and (n or not context):
            rows.append(f"{chunk},{before},{n},{context},{attention(chunk, before, n, context)}")
    (tmp_path / "attention.csv").write_text("\n".join(rows))
    dense = [
        f"{layer},{n},{us + n}"
        for layer, us in (("qkv_proj", 10), ("layernorm", 1), ("embedding", 3), ("final_layernorm", 2))
        for n in (1, 256)
    ]
    (tmp_path / "dense.csv").write_text("layer,tokens,time_us\n" + "\n".join(dense))
    (tmp_path / "per_sequence.csv").write_text("layer,sequences,time_us\nlm_head,1,50\nlm_head,8,57\n")
    return tmp_path


def profile(folder, **changes):
    files = (folder / f"{name}.csv" for name in ("attention", "dense", "per_sequence"))
    return LayerProfile(
        *files, **{"layers": LAYERS, "kv_heads": 1, "multiprocessors": 100, "captured": (1,), **changes}
    )


def rest(tokens, requests):
    """Products of two layers with two norms each, embedding and last norm, and the head [us]."""
    return LAYERS * (10 + tokens + 2 * (1 + tokens)) + 3 + tokens + 2 + tokens + 49 + requests


def test_a_measured_step_is_the_sum_of_its_layers(folder):
    step = profile(folder)
    assert step(prefill=[(64, 100)], contexts=[]) == pytest.approx(1000 * (rest(64, 1) + 2 * attention(64, 100, 0, 0)))
    assert step(prefill=[], contexts=[101] * 4) == pytest.approx(1000 * (rest(4, 4) + 2 * attention(0, 0, 4, 100)))
    assert step(prefill=[(16, 0)], contexts=[401] * 2) == pytest.approx(
        1000 * (rest(18, 3) + 2 * attention(16, 0, 2, 400))
    )


def test_between_measured_points_times_are_linear(folder):
    step = profile(folder)
    middle = (attention(16, 100, 0, 0) + attention(64, 100, 0, 0)) / 2
    assert step([(40, 100)], []) == pytest.approx(1000 * (rest(40, 1) + 2 * middle))
    assert step([], [251] * 3) == pytest.approx(1000 * (rest(3, 3) + 2 * attention(0, 0, 3, 250)))


def test_split_contexts_are_balanced_and_unsplit_ones_end_one_after_the_other(folder):
    contexts = [101, 101, 401]
    split = 5 + (0.03 * 100 + 0.03 * 100 + 0.03 * 400) / 3
    assert profile(folder)([], contexts) == pytest.approx(1000 * (rest(3, 3) + 2 * split))
    # Three requests for 100 tokens, then one for 300, at most as fast as beside a chunk: 0.02 us a token, not 0.01.
    unsplit = 5 + 0.03 * 100 + 0.02 * 300
    few = profile(folder, multiprocessors=1)
    assert few([], contexts) == pytest.approx(1000 * (rest(3, 3) + 2 * unsplit))
    assert few([], contexts[::-1]) == few([], contexts)


@pytest.mark.parametrize(("requests", "split"), [(3, True), (4, False)])
def test_contexts_are_split_while_requests_and_heads_are_fewer_than_1_6_multiprocessors(folder, requests, split):
    step = profile(folder, kv_heads=2, multiprocessors=5)  # 2 * requests < 8
    uneven = step([], [1] * (requests - 1) + [401])
    balanced = 1000 * (rest(requests, requests) + 2 * (5 + 0.01 * 400))
    assert (uneven == pytest.approx(balanced)) == split
    assert uneven >= balanced


def test_beside_a_chunk_contexts_are_not_split(folder):
    beside = attention(16, 0, 3, 100) + 0.02 * 300
    assert profile(folder)([(16, 0)], [101, 101, 401]) == pytest.approx(1000 * (rest(19, 4) + 2 * beside))


def test_a_second_prompt_adds_its_time_without_a_launch(folder):
    both = (
        attention(64, 100, 0, 0) + attention(16, 0, 0, 0) - 5 - 16 * 8 / 1000
    )  # the least measured is taken as a launch
    assert profile(folder)([(16, 0), (64, 100)], []) == pytest.approx(1000 * (rest(80, 2) + 2 * both))


def test_small_steps_are_padded_to_captured_sizes(folder):
    step = profile(folder, captured=(1, 4, 8))
    attend = 2 * attention(0, 0, 3, 100)
    assert step([], [101] * 3) == pytest.approx(1000 * (rest(4, 3) + attend))
    assert step([(16, 0)], []) == pytest.approx(1000 * (rest(16, 1) + 2 * attention(16, 0, 0, 0)))
    assert (CAPTURED[:5], CAPTURED[-1], len(CAPTURED)) == ((1, 2, 4, 8, 16), 256, 35)


@pytest.mark.parametrize(
    ("prefill", "contexts", "message"),
    [
        ([(65, 0)], [], "65 tokens of a chunk, but the profile ends at 64"),
        ([(16, 101)], [], "101 tokens before a chunk, but the profile ends at 100"),
        ([], [1] * 9, "9 requests.*, but the profile ends at 8"),
        ([], [500], "499 tokens of context, but the profile ends at 400"),
        ([(64, 0)] * 5, [], "320 tokens, but the profile ends at 256"),
    ],
)
def test_nothing_is_guessed_beyond_the_profile(folder, prefill, contexts, message):
    with pytest.raises(ArgumentError, match=message):
        profile(folder)(prefill, contexts)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "dense",
            ("tokens", "count"),
            r"dense\.csv: column tokens is missing; pass a file with the columns layer,tokens",
        ),
        ("dense", ("qkv_proj,1,11", "qkv_proj,1,fast"), r"dense\.csv: row 1: time_us = 'fast' must be a number from 0"),
        (
            "attention",
            ("0,0,4,100,9.0", "0,0,4,101,9.0"),
            r"attention\.csv: kv_decode = 100 is not measured once for each n_decode; complete",
        ),
        ("per_sequence", ("layer,sequences,time_us", ""), r"per_sequence\.csv: "),
    ],
)
def test_a_bad_profile_is_refused(folder, name, change, message):
    path = folder / f"{name}.csv"
    text = path.read_text()
    assert change[0] in text
    path.write_text(text.replace(*change, 1))
    with pytest.raises(ConfigError, match=message):
        profile(folder)
