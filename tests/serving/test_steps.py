"""Step times from parts, by hand, and models that are refused; that parts are simulated is in tests/torch."""

from __future__ import annotations

import json
from importlib.util import find_spec

import numpy as np
import pandas as pd
import pytest

import kernbench as kb
from kernbench.errors import ArgumentError, ConfigError, MissingModuleError
from kernbench.serving import _steps, generate, run, steps
from kernbench.serving._models import (
    MODELS,
    check_parallel,
    experts_of,
    fields_of,
    heads_of,
    kv_blocks,
    kv_bytes,
    layers_of,
    weight_bytes,
)
from kernbench.serving._parts import CAPTURED, chunk_sizes, lognormal_contexts, part_row, points_of
from kernbench.serving._steps import COLUMNS, SimulatedSteps
from kernbench.studies import attention as gqa

LAYERS, HOST = 3, 70.0
PATHS = {"layer": 1000, "head": 500}


def attention(requests, tokens, context):
    return 100 * requests + 10 * tokens + context / 10


@pytest.fixture
def table():
    rows = [(part, n, 1, 0, PATHS[part] + n) for part in PATHS for n in (1, 4, 16)]
    rows += [("attention", n, 1, c, attention(n, 1, c)) for n in (1, 4, 16) for c in (100, 200, 400)]
    rows += [("attention", 1, n, n + b, attention(1, n, n + b)) for n in (4, 16) for b in (0, 200, 400 - n)]
    found = pd.DataFrame(rows, columns=["part", "requests", "tokens", "context", "ns"])
    found = found.assign(host_ns=HOST, nbytes=7, energy_uj=0.1 * found["ns"], limit="HBM slice")
    found["path"] = [{"HBM slice": 3.0, "UCIe ports": 1.0}] * len(found)  # three quarters and one quarter
    return SimulatedSteps(found, MODELS["llama3-8b"] | {"num_hidden_layers": LAYERS}, 2, kb.load("preset:small"))


def test_a_step_is_the_sum_of_its_parts(table):
    parts = table.parts(prefill=[], contexts=[100, 200, 400, 400])
    assert parts == {
        "layers": LAYERS * 1004, "attention_decode": pytest.approx(LAYERS * attention(4, 1, 275)),
        "attention_prefill": 0, "head": 504, "host": HOST,
    }  # fmt: skip
    assert table(prefill=[], contexts=[100, 200, 400, 400]) == pytest.approx(sum(parts.values()))


def test_energy_is_that_of_all_sips_without_the_host(table):
    step = {"prefill": [(10, 100)], "contexts": [300, 300]}
    assert table.energy_uj(**step) == pytest.approx(2 * 0.1 * (table(**step) - HOST))
    assert table.parts(**step, column="nbytes")["layers"] == LAYERS * 7


def test_dense_layers_before_those_of_experts_are_parts_of_their_own(table):
    dense = table.table[table.table["part"] == "layer"].assign(part="dense_layer", ns=200)
    rows, model = pd.concat([table.table, dense]), fields_of({**DEEPSEEK, "num_hidden_layers": 5})
    parts = SimulatedSteps(rows, model, 2, kb.load("preset:small")).parts(prefill=[], contexts=[100] * 4)
    assert parts["layers"] == 2 * 1004 + 3 * 200
    assert parts["attention_decode"] == pytest.approx(5 * attention(4, 1, 100))


def test_a_step_is_padded_to_the_next_size(table):
    parts = table.parts(prefill=[], contexts=[300, 300])
    assert parts["layers"] == LAYERS * 1004
    assert parts["head"] == 504
    assert parts["attention_decode"] == pytest.approx(LAYERS * attention(4, 1, 300))


def test_prompts_attend_one_after_another_and_the_head_has_their_last_tokens(table):
    parts = table.parts(prefill=[(10, 100), (4, 396)], contexts=[])
    assert parts["layers"] == LAYERS * 1016
    assert parts["head"] == 504  # of two sequences
    assert parts["attention_prefill"] == pytest.approx(LAYERS * (attention(1, 10, 110) + attention(1, 4, 400)))


def test_more_than_the_largest_size_are_several_runs(table):
    parts = table.parts(prefill=[(36, 0)], contexts=[100] * 20)
    assert parts["layers"] == LAYERS * (3 * 1016 + 1016)  # 56 tokens: 16, 16, 16, and 8 padded to 16
    assert parts["head"] == 516 + 516  # 21 sequences: 16, and 5 padded to 16
    chunks = attention(1, 16, 16) + attention(1, 16, 32) + attention(1, 4, 36)
    assert parts["attention_prefill"] == pytest.approx(LAYERS * chunks)
    assert parts["attention_decode"] == pytest.approx(LAYERS * (attention(16, 1, 100) + attention(4, 1, 100)))


def test_why_names_parts_from_the_longest_and_their_limits(table):
    why = table.why(prefill=[(10, 100)], contexts=[300, 300])
    assert why["part"].tolist() == ["layers", "attention_decode", "attention_prefill", "head", "host"]
    assert why["ns"].sum() == pytest.approx(table(prefill=[(10, 100)], contexts=[300, 300]))
    assert why["limit"].tolist() == ["HBM slice"] * 4 + ["host"]


def test_causes_are_shares_of_the_critical_paths_and_sum_to_the_step(table):
    step = {"prefill": [(10, 100)], "contexts": [300, 300]}
    parts = sum(table.parts(**step).values()) - HOST
    assert table.causes(**step) == pytest.approx({"HBM slice": 0.75 * parts, "UCIe ports": 0.25 * parts, "host": HOST})


@pytest.mark.parametrize(
    ("slowdown", "factor"),
    [
        ({"cube.hbm.channel_bw_gbs": 0.5}, 0.625),
        ({"cube.ucie.port_ns": 0.5}, 0.875),
        ({"cube.hbm.channel_bw_gbs": 2.0, "cube.ucie.port_ns": 0.5}, 1.625),
        ({"cube.noc.link_bw_gbs": 0.5}, 1),
    ],
)
def test_a_prediction_scales_the_resources_that_a_field_sets(table, slowdown, factor):
    step = {"prefill": [(10, 100)], "contexts": [300, 300]}
    assert table.predicted(slowdown)(**step) - HOST == pytest.approx(factor * (table(**step) - HOST))


def test_goodput_on_a_changed_machine_is_predicted_and_simulated(table, monkeypatch):
    """Memory has three quarters of each path, so that 5/8 of the time remain if it is twice as fast."""
    exact = SimulatedSteps(table.table.assign(ns=0.7 * table.table["ns"]), table._model, 2, table._machine)
    monkeypatch.setattr(SimulatedSteps, "with_", lambda self, overrides: exact)
    served = run(generate(20, request_rate=1e9, input_len=8, output_len=5), table)
    faster = {"cube.hbm.channel_bw_gbs": 64, "cube.hbm.bw_gbs": 512, "cube.pe.pe_dma.bw_gbs": 512}
    found = served.what_if(faster, exact=True, tpot_ms=1000)
    assert found.index.tolist() == ["now", "predicted", "simulated"]
    ratio = found["mean_tpot_ms"] / found["mean_tpot_ms"]["now"]
    assert ratio.tolist() == pytest.approx([1, 0.625, 0.7], rel=0.02)  # but for the host's time
    assert served.what_if(faster).equals(found.drop(index="simulated", columns="request_goodput"))


def test_what_cannot_be_predicted_is_refused(table):
    served = run(generate(5, request_rate=1e5, input_len=8, output_len=5), table)
    with pytest.raises(ArgumentError, match=r"what_if: cube\.hbm\.size_gib = 24\.0 is no bandwidth, rate or latency"):
        served.what_if({"cube.hbm.size_gib": 24})
    cached = SimulatedSteps(table.table, table._model, 2, kb.load("preset:a100_sxm"))
    with pytest.raises(ArgumentError, match=r"what_if: .* which requests hit the cache; with_\(\.\.\.\) simulates it"):
        cached.what_if({"cube.noc.link_bw_gbs": 6000})
    with pytest.raises(ArgumentError, match=r"what_if: the step times are not those of a machine"):
        run(served.requests, lambda prefill, contexts: 1e6).what_if({"cube.ucie.bw_gbs": 256})


def test_a_wire_is_set_by_a_latency_and_its_link_by_a_rate(table):
    table.table["path"] = [{"wire of the SIP link": 1.0, "SIP link": 1.0}] * len(table.table)
    for field in ("system.sip_link.latency_ns", "system.sip_link.bw_gbs"):
        faster = table.predicted({field: 0.5})
        assert faster.table["ns"].to_numpy() == pytest.approx(0.75 * table.table["ns"].to_numpy())


def test_a_curve_has_tokens_per_user_and_sip_and_their_energy(table):
    served = run(generate(20, request_rate=1e5, input_len=8, output_len=5), table)
    arrivals = served.requests["arrival_s"]
    row = served.curve([19 / (arrivals.max() - arrivals.min())], sip_hour=1.8).iloc[0]  # the same run
    assert row["tokens_per_s_per_user"] == pytest.approx(1000 / row["mean_tpot_ms"])
    assert row["tokens_per_s_per_sip"] == pytest.approx(row["output_throughput"] / 2)
    # Two SIPs cost 0.001 a second.
    assert row["cost_per_million_tokens"] == pytest.approx(1000 / row["output_throughput"])
    with pytest.raises(ArgumentError, match=r"curve: sip_hour = -1 must be a cost of at least 0"):
        served.curve([1], sip_hour=-1)
    # Each step takes 0.2 uJ a ns but for the host's time.
    busy = (served.steps["end_s"] - served.steps["start_s"]).sum() * 1e9
    energy = 0.2 * (busy - HOST * len(served.steps))
    assert row["energy_per_token_uj"] == pytest.approx(energy / row["total_output_tokens"], rel=1e-6)


def test_a_timeline_has_the_phases_of_each_request(table):
    served = run(generate(20, request_rate=1e5, input_len=8, output_len=5), table)
    spans = served.timeline.assign(ms=1000 * (served.timeline["end_s"] - served.timeline["start_s"]))
    by = spans.pivot_table(index="request", columns="phase", values="ms")
    assert by["waiting"].to_numpy() == pytest.approx(served.table["queue_ms"].to_numpy())
    assert (by["waiting"] + by["prefill"]).to_numpy() == pytest.approx(served.table["ttft_ms"].to_numpy())
    assert by.sum(axis=1).to_numpy() == pytest.approx(served.table["e2el_ms"].to_numpy())


class ScheduleRequest:  # of SGLang's simulator: simulation/types.py
    def __init__(self, extend_length, past_kv_length):
        self.extend_length, self.past_kv_length = extend_length, past_kv_length


class ScheduleBatch:
    def __init__(self, reqs):
        self.reqs = reqs


def test_a_predictor_takes_batches_of_sglangs_simulator_and_returns_seconds(table):
    batch = ScheduleBatch([ScheduleRequest(10, 100), ScheduleRequest(1, 299), ScheduleRequest(1, 199)])
    assert table.predict_infer_time(batch) == pytest.approx(table([(10, 100)], [300, 200]) / 1e9)
    assert table.predict_infer_time(ScheduleBatch([])) == 0


def test_a_replay_table_maps_sorted_requests_to_seconds(table, tmp_path):
    """The format of time_predictor/replay.py there: JSON of sorted [extend, prefix] pairs, to seconds."""
    found = json.loads(table.export("sglang-replay", tmp_path / "replay.json").read_text())
    assert len(found) == 9 + 6
    for key, seconds in found.items():
        pairs = json.loads(key)
        assert key == json.dumps(sorted(pairs))
        batch = ScheduleBatch([ScheduleRequest(*pair) for pair in pairs])
        assert seconds == table.predict_infer_time(batch) > 0
    assert json.dumps([[1, 199]] * 4) in found


def test_a_table_is_exported_as_csv_and_other_formats_are_refused(table, tmp_path):
    pd.testing.assert_frame_equal(
        pd.read_csv(table.export("csv", tmp_path / "steps.csv")), table.table.drop(columns="path")
    )
    with pytest.raises(ArgumentError, match="format = 'cvs' is unknown; did you mean csv"):
        table.export("cvs", tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("step", [{"prefill": [], "contexts": [401]}, {"prefill": [(4, 397)], "contexts": []}])
def test_nothing_is_guessed_beyond_the_longest_context(table, step):
    with pytest.raises(
        ArgumentError, match=r"a context of 401 tokens, but the longest simulated is 400; pass .* contexts="
    ):
        table(**step)


def test_chunks_are_simulated_at_four_captured_sizes():
    assert chunk_sizes(CAPTURED, 8192) == [16, 64, 192, 512]
    assert chunk_sizes([1, 64, 128], 128) == [64]
    assert chunk_sizes([1], 100) == [2]


def test_a_table_has_twelve_layers_a_batch_and_four_chunks_for_each_context():
    points = pd.DataFrame(points_of(CAPTURED, (128, 2048)))
    assert (points["part"] == "layer").sum() == 12
    assert points.query("part == 'head'")["requests"].tolist() == [1, 4, 16, 64, 192, 384, 512]
    assert (points.query("part == 'attention' and tokens == 1")["requests"].value_counts() == 2).all()
    chunks = points[points["tokens"] > 1].groupby("tokens")["context"].apply(list).to_dict()
    assert chunks == {n: [n, n + 128, 2048] for n in (16, 64, 192, 512)}


@pytest.mark.parametrize(("requests", "mean"), [(1, 700), (4, 1000), (64, 128), (512, 2048)])
def test_contexts_of_a_batch_are_unequal_and_have_the_mean(requests, mean):
    contexts = lognormal_contexts(requests, mean)
    assert sum(contexts) == requests * mean
    assert min(contexts) >= 1
    if requests > 1:
        assert np.std(np.log(contexts)) == pytest.approx(0.8, rel=0.35)


def test_parts_that_a_sweep_simulates_have_the_columns_of_a_table():
    point = {"part": "attention", "requests": 4, "tokens": 1, "context": 100}
    model = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
    found = kb.sweep("preset:small", part_row, points=[point], parameters={"tp": 2, "model": model}, progress=False)
    row = found.table[list(COLUMNS)].iloc[0]
    assert sum(json.loads(row["path"]).values()) >= row["ns"] > 0


def test_only_layers_of_experts_are_simulated_again_for_other_ranks_of_them(monkeypatch):
    asked, done = [], RuntimeError("no simulation")

    def sweep(machine, study, *, points, **how):
        asked.append((points, how["scheduler"]))
        raise done

    monkeypatch.setattr(_steps, "find_spec", lambda name: name)
    monkeypatch.setattr(_steps, "sweep", sweep)
    for ep in (1, 2):
        with pytest.raises(RuntimeError, match="no simulation"):
            steps("mixtral-8x7b", "preset:six_sip_torus", tp=2, ep=ep, sizes=(1, 4), scheduler="tcp://host:8786")
    (one, scheduler), (two, _) = asked
    assert scheduler == "tcp://host:8786"
    assert [a["part"] for a, b in zip(one, two, strict=True) if a != b] == ["layer", "layer"]


def test_llama3_is_that_of_its_report():
    own = MODELS["llama3-70b"]
    assert (own["hidden_size"], own["intermediate_size"], own["num_hidden_layers"]) == (gqa.HIDDEN, gqa.FFN, gqa.LAYERS)
    heads = own["num_attention_heads"], own["num_key_value_heads"], own["head_dim"], own["vocab_size"]
    assert heads == (gqa.HEADS, gqa.KV_HEADS, gqa.HEAD_DIM, gqa.VOCABULARY)
    assert weight_bytes(own, 1) == 2 * gqa.WEIGHTS
    # The published 8.03 billion parameters, but for the norms.
    assert weight_bytes(MODELS["llama3-8b"], 1) == pytest.approx(2 * 8.03e9, rel=1e-3)
    assert kv_bytes(own, 8) == 2 * 2 * 128 * 80


# Fields of their config.json: Mixtral-8x7B-v0.1, Qwen3-30B-A3B, Qwen2-57B-A14B.
MIXTRAL = {
    "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "num_key_value_heads": 8, "num_hidden_layers": 32, "vocab_size": 32000, "num_local_experts": 8,
    "num_experts_per_tok": 2,
}  # fmt: skip
QWEN3 = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "moe_intermediate_size": 768, "intermediate_size": 6144,
    "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_hidden_layers": 48,
    "vocab_size": 151936, "num_experts": 128, "num_experts_per_tok": 8, "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}  # fmt: skip
QWEN2 = {
    "model_type": "qwen2_moe", "hidden_size": 3584, "moe_intermediate_size": 2560, "num_attention_heads": 28,
    "shared_expert_intermediate_size": 20480, "num_key_value_heads": 4, "num_hidden_layers": 28,
    "vocab_size": 151936, "num_experts": 64, "num_experts_per_tok": 8,
}  # fmt: skip
DEEPSEEK = {  # DeepSeek-V3
    "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "num_attention_heads": 128, "num_key_value_heads": 128, "num_hidden_layers": 61, "vocab_size": 129280,
    "n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1, "n_group": 8, "topk_group": 4,
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "first_k_dense_replace": 3,
}  # fmt: skip


@pytest.mark.parametrize(("model", "billions"), [(MIXTRAL, 46.7), (QWEN3, 30.5), (QWEN2, 57.4), (DEEPSEEK, 671)])
def test_models_of_experts_have_the_published_number_of_weights(model, billions):
    fields = fields_of(model)
    assert weight_bytes(fields, 1) == pytest.approx(2e9 * billions, rel=2e-3)
    # Each SIP has the whole router, and the matrices that make latents.
    routers = layers_of(fields)["layer"] * fields["hidden_size"] * experts_of(fields)
    latents = 61 * 7168 * (1536 + 512 + 64) if model is DEEPSEEK else 0
    more = 2 * (routers + latents)
    assert 2 * weight_bytes(fields, 2) == pytest.approx(weight_bytes(fields, 1) + more, abs=2)


def test_latent_attention_has_one_key_for_all_heads():
    fields = fields_of(DEEPSEEK)
    assert heads_of(fields, 8) == {"heads": 16, "kv_heads": 1, "head_dim": 576, "latent": 512}
    assert kv_bytes(fields, 1) == kv_bytes(fields, 8) == 61 * 576 * 2  # DeepSeek's reports: 70 kB per token
    assert layers_of(fields) == {"layer": 58, "dense_layer": 3}


@pytest.mark.parametrize(
    ("model", "tp", "ep", "message"),
    [
        (MIXTRAL, 4, 2, "ep = 2 must be 1 or tp = 4"),
        (MODELS["llama3-8b"], 2, 2, "ep = 2: the model has no experts; leave it out"),
        ({**QWEN3, "num_experts": 126}, 4, 4, "tp = 4 must divide num_experts = 126"),
        ({**QWEN2, "shared_expert_intermediate_size": 21}, 4, 4, "tp = 4 must divide shared_expert_interm.* = 21"),
    ],
)
def test_parallelism_that_does_not_divide_is_refused(model, tp, ep, message):
    machine = kb.load("preset:small", {"system.sips": {"count": 4, "topology": "ring_1d"}})
    check_parallel(fields_of(MIXTRAL), 4, 4, machine)
    check_parallel(fields_of(MIXTRAL), 4, 1, machine)
    with pytest.raises(ArgumentError, match=message):
        check_parallel(fields_of(model), tp, ep, machine)


def test_blocks_are_what_the_memory_holds_beside_the_weights(table):
    config, model = kb.load("preset:default").config, MODELS["llama3-8b"]
    memory = config.cube.hbm.slice_bytes(config.pes_per_cube) * config.pes_per_sip
    blocks = kv_blocks(model, 1, config, 16, 0.9)
    room = 0.9 * memory - weight_bytes(model, 1)
    assert 0 <= room - blocks * 16 * kv_bytes(model, 1) < 16 * kv_bytes(model, 1)
    assert kv_blocks(model, 1, config, 32, 0.9) == blocks // 2
    own, small = model | {"num_hidden_layers": LAYERS}, kb.load("preset:small").config
    assert table.num_blocks() == kv_blocks(own, 2, small, 16, 0.9)
    with pytest.raises(ArgumentError, match=r"GB of weights on a SIP leave no room .* use a larger tp"):
        kv_blocks(MODELS["llama3-70b"], 1, kb.load("preset:small").config, 16, 0.05)
    with pytest.raises(ArgumentError, match=r"memory_utilization = 1\.5 must be a share"):
        table.num_blocks(memory_utilization=1.5)


def test_a_model_is_a_name_a_file_or_its_content(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**MODELS["llama3-70b"], "model_type": "llama"}))
    assert fields_of("llama3-70b") == fields_of(path) == fields_of(MODELS["llama3-70b"]) == MODELS["llama3-70b"]
    assert fields_of({**MODELS["llama3-8b"], "head_dim": 64})["head_dim"] == 64


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        ("llama3-7b", ArgumentError, r"model = 'llama3-7b' is unknown; did you mean llama3-70b\? known: llama3-8b"),
        (
            {**MIXTRAL, "num_local_experts": None},
            ConfigError,
            "model: num_local_experts = missing must be an integer of",
        ),
        ({**QWEN3, "decoder_sparse_step": 2}, ArgumentError, r"decoder_sparse_step = 2: layers of this form are not"),
        (
            {**DEEPSEEK, "first_k_dense_replace": 61},
            ConfigError,
            r"first_k_dense_replace = 61 must be an integer from 0",
        ),
        ({**DEEPSEEK, "kv_lora_rank": None}, ConfigError, r"kv_lora_rank = missing must be an integer of at least 1"),
        ({**MODELS["llama3-8b"], "kv_lora_rank": 512}, ArgumentError, r"kv_lora_rank = 512: layers of this form are"),
        (
            {**MODELS["llama3-8b"], "model_type": "gemma2"},
            ArgumentError,
            "'gemma2' is not supported; did you",
        ),
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
        fields_of(model)


def test_a_config_that_is_no_json_is_named(tmp_path):
    path = tmp_path / "config.json"
    path.write_text("{")
    with pytest.raises(
        ConfigError, match=r"config\.json: is damaged, or no config\.json of Hugging Face .*; pass another file"
    ):
        fields_of(path)
    path.write_text("[]")
    with pytest.raises(ConfigError, match=r"config\.json: is damaged, or no .* expected an object, found list"):
        fields_of(path)


@pytest.mark.skipif(bool(find_spec("torch")), reason="PyTorch is installed")
def test_without_pytorch_the_error_says_what_to_install():
    with pytest.raises(MissingModuleError, match=r"kb\.serving\.steps needs PyTorch: pip install 'kernbench\[torch"):
        steps("llama3-8b", "preset:small")
