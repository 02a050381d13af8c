"""Step times from parts, by hand, and models that are refused; that parts are simulated is in tests/torch."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pandas as pd
import pytest

from kernbench.errors import ArgumentError, ConfigError, MissingModuleError
from kernbench.serving import steps
from kernbench.serving._steps import MODELS, SimulatedSteps, _chunk_sizes, _fields

LAYERS, HOST = 3, 70.0


def attention(requests, tokens, before):
    return 100 * requests + 10 * tokens + before / 10


@pytest.fixture
def table():
    rows = [(part, n, 1, 0, {"layer": 1000, "head": 500}[part] + n) for part in ("layer", "head") for n in (1, 4, 16)]
    rows += [("attention", n, 1, c, attention(n, 1, c)) for n in (1, 4, 16) for c in (100, 200, 400)]
    rows += [("attention", 1, n, n + b, attention(1, n, b)) for n in (4, 16) for b in (0, 200, 400 - n)]
    found = pd.DataFrame(rows, columns=["part", "requests", "tokens", "context", "ns"])
    return SimulatedSteps(found.assign(host_ns=HOST, nbytes=0, limit="HBM slice"), LAYERS)


def test_a_step_is_the_sum_of_its_parts(table):
    parts = table.parts(prefill=[], contexts=[100, 200, 400, 400])
    mean = sum(attention(4, 1, c) for c in (100, 200, 400, 400)) / 4
    assert parts == {
        "layers": LAYERS * 1004, "attention_decode": pytest.approx(LAYERS * mean), "attention_prefill": 0,
        "head": 504, "host": HOST,
    }  # fmt: skip
    assert table(prefill=[], contexts=[100, 200, 400, 400]) == pytest.approx(sum(parts.values()))


def test_a_step_is_padded_with_the_shortest_context(table):
    parts = table.parts(prefill=[], contexts=[300, 300])
    assert parts["layers"] == LAYERS * 1004
    assert parts["head"] == 504
    padded = (2 * attention(4, 1, 300) + 2 * attention(4, 1, 100)) / 4
    assert parts["attention_decode"] == pytest.approx(LAYERS * padded)


def test_prompts_attend_one_after_another_and_the_head_has_their_last_tokens(table):
    parts = table.parts(prefill=[(10, 100), (4, 396)], contexts=[])
    assert parts["layers"] == LAYERS * 1016
    assert parts["head"] == 504  # of two sequences
    assert parts["attention_prefill"] == pytest.approx(LAYERS * (attention(1, 10, 100) + attention(1, 4, 396)))


def test_more_than_the_largest_size_are_several_runs(table):
    parts = table.parts(prefill=[(36, 0)], contexts=[100] * 20)
    assert parts["layers"] == LAYERS * (3 * 1016 + 1016)  # 56 tokens: 16, 16, 16, and 8 padded to 16
    assert parts["head"] == 516 + 516  # 21 sequences: 16, and 5 padded to 16
    chunks = attention(1, 16, 0) + attention(1, 16, 16) + attention(1, 4, 32)
    assert parts["attention_prefill"] == pytest.approx(LAYERS * chunks)
    assert parts["attention_decode"] == pytest.approx(LAYERS * (attention(16, 1, 100) + attention(4, 1, 100)))


@pytest.mark.parametrize("step", [{"prefill": [], "contexts": [401]}, {"prefill": [(4, 397)], "contexts": []}])
def test_nothing_is_guessed_beyond_the_longest_context(table, step):
    with pytest.raises(
        ArgumentError, match=r"a context of 401 tokens, but the longest simulated is 400; pass .* contexts="
    ):
        table(**step)


def test_chunks_are_simulated_at_some_captured_sizes():
    assert _chunk_sizes([1, 2, 4, 8, 16, 32, 64, 128, 256], 8192) == [16, 64, 256]
    assert _chunk_sizes([1, 64, 128], 128) == [64]
    assert _chunk_sizes([1], 100) == [2]


def test_a_model_is_a_name_a_file_or_its_content(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**MODELS["llama3-70b"], "model_type": "llama"}))
    assert (
        _fields("llama3-70b")
        == _fields(path)
        == _fields(MODELS["llama3-70b"])
        == MODELS["llama3-70b"] | {"head_dim": 128}
    )
    assert _fields({**MODELS["llama3-8b"], "head_dim": 64})["head_dim"] == 64


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        ("llama3-7b", ArgumentError, r"model = 'llama3-7b' is unknown; did you mean llama3-70b\? known: llama3-8b"),
        ({**MODELS["llama3-8b"], "num_local_experts": 8}, ArgumentError, "num_local_experts = 8: only dense decoders"),
        (
            {**MODELS["llama3-8b"], "vocab_size": "many"},
            ConfigError,
            "model: vocab_size = 'many' must be an integer of",
        ),
        ({}, ConfigError, "model: hidden_size = missing must be an integer of at least 1; complete it"),
    ],
)
def test_other_models_are_refused(model, error, message):
    with pytest.raises(error, match=message):
        _fields(model)


def test_a_config_that_is_no_json_is_named(tmp_path):
    path = tmp_path / "config.json"
    path.write_text("{")
    with pytest.raises(
        ConfigError, match=r"config\.json: is damaged, or no config\.json of Hugging Face .*; pass another file"
    ):
        _fields(path)
    path.write_text("[]")
    with pytest.raises(ConfigError, match=r"config\.json: is damaged, or no .* expected an object, found list"):
        _fields(path)


@pytest.mark.skipif(bool(find_spec("torch")), reason="PyTorch is installed")
def test_without_pytorch_the_error_says_what_to_install():
    with pytest.raises(MissingModuleError, match=r"kb\.serving\.steps needs PyTorch: pip install 'kernbench\[torch"):
        steps("llama3-8b", "preset:small")
