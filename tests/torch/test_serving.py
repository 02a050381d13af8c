"""Parts of a step are simulated as the model that they are parts of."""

from __future__ import annotations

from functools import partial

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
hf = pytest.importorskip("transformers", reason="transformers is not installed")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

import kernbench as kb  # noqa: E402
from kernbench.errors import ArgumentError  # noqa: E402
from kernbench.notebook import step_part  # noqa: E402
from kernbench.serving._attention import attention_row  # noqa: E402
from kernbench.serving._models import FAMILIES, fields_of  # noqa: E402
from kernbench.serving._parts import part_row  # noqa: E402
from kernbench.torch._serving import LatentAttention, _config, _module  # noqa: E402

MODEL = {
    "hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 128, "vocab_size": 1024,
}  # fmt: skip


@pytest.fixture(scope="module")
def machine():
    return kb.load("preset:small", {"system.sips": {"count": 2, "topology": "ring_1d"}})


OF_EXPERTS = {
    "mixtral": {"num_local_experts": 8}, "qwen3_moe": {"num_experts": 8, "moe_intermediate_size": 1024},
    "qwen2_moe": {"num_experts": 8, "moe_intermediate_size": 1024, "shared_expert_intermediate_size": 1024},
    "deepseek_v3": {
        "n_routed_experts": 8, "moe_intermediate_size": 1024, "n_shared_experts": 1, "n_group": 2, "topk_group": 1,
        "q_lora_rank": 128, "kv_lora_rank": 128, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32,
        "head_dim": 16, "num_key_value_heads": 4, "first_k_dense_replace": 1,
    },
}  # fmt: skip


def part(machine, name, requests=1, tp=1, family="llama", **how):
    model = MODEL | {"model_type": family, "num_experts_per_tok": 2} | OF_EXPERTS.get(family, {})
    return part_row(machine, part=name, requests=requests, tokens=1, context=0, tp=tp, model=model, **how)


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(name for name, of in FAMILIES.items() if not of.experts))
def test_a_layer_is_that_of_its_family(machine, family):
    """Llama and Mistral have equal layers; Qwen2 has biases, Qwen3 norms of heads, Gemma another activation."""
    llama, own = (part(machine, "layer", requests=4, tp=2, family=name) for name in ("llama", family))
    assert (own["ns"] == llama["ns"]) == (family in ("llama", "mistral"))
    assert own["ns"] == pytest.approx(llama["ns"], rel=0.3)


EXPERT = 3 * 512 * 1024 * 2  # bytes of one


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(OF_EXPERTS))
def test_a_layer_of_experts_reads_those_of_its_tokens_on_each_way_of_dividing_them(machine, family):
    one, two, all_ = (part(machine, "layer", requests=n, family=family)["hbm_bytes"] for n in (1, 2, 4))
    # A token has 2 experts, 2 have 4, and 4 have all 8; all PEs read activations, too.
    assert two - one == pytest.approx(2 * EXPERT, rel=0.15)
    assert all_ - two == pytest.approx(4 * EXPERT, rel=0.15)
    tp, ep = (part(machine, "layer", requests=4, tp=2, family=family, ep=ep) for ep in (1, 2))
    for half in (tp, ep):
        assert half["hbm_bytes"] == pytest.approx(all_ / 2, rel=0.12)
        assert half["host_ns"] < 0.05 * half["ns"]
    assert tp["macs_f16"] == ep["macs_f16"]


def test_a_model_of_transformers_has_the_fields_of_its_configuration():
    config = hf.MixtralConfig(num_hidden_layers=2, **(MODEL | {"num_local_experts": 8}))
    with FakeTensorMode():
        found = fields_of(hf.MixtralForCausalLM(config))
    assert found == fields_of(config.to_dict())
    assert found["num_local_experts"] == 8


def test_attention_to_latents_has_the_values_of_transformers():
    sizes = MODEL | {"model_type": "deepseek_v3", "num_experts_per_tok": 2} | OF_EXPERTS["deepseek_v3"]
    module, config = _module(sizes), _config(sizes)
    attention, rotary = module.DeepseekV3Attention(config, 0), module.DeepseekV3RotaryEmbedding(config)
    torch.manual_seed(0)
    for p in attention.parameters():
        torch.nn.init.normal_(p, std=0.1)

    class Cache:
        def update(self, keys, values, _):
            return keys, values

    x = torch.randn(3, 5, 512)
    at = rotary(x, torch.arange(5)[None])
    with torch.no_grad():
        wanted = attention(x, at, None, past_key_values=Cache())[0]
        found = LatentAttention(attention, module.apply_rotary_pos_emb_interleave)(x, at, Cache())[0]
    assert torch.allclose(found, wanted, atol=1e-4 * wanted.abs().max())
    assert wanted.abs().max() > 0.1


@pytest.mark.slow
def test_unequal_experts_take_longer_where_each_sip_has_some(machine):
    equal, skewed = (
        part(machine, "layer", requests=64, tp=2, family="mixtral", ep=2, skew=x)["ns"] for x in (0.0, 2.0)
    )
    assert skewed > 1.1 * equal


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dense_layer", "head"])
def test_a_part_without_experts_is_the_same_whatever_their_ranks(machine, name):
    alone, divided = (part(machine, name, requests=2, tp=2, family="deepseek_v3", ep=ep) for ep in (1, 2))
    assert alone == divided


@pytest.mark.slow
def test_a_layer_has_no_attention_and_its_collectives(machine):
    one, two = (part(machine, "layer", requests=4, tp=tp) for tp in (1, 2))
    shared = part(machine, "head", requests=4, tp=2)
    assert 0 < shared["ns"] < one["ns"]
    # Half of the products on each of two SIPs, and two all-reduces.
    assert two["nbytes"] < 0.75 * one["nbytes"]


@pytest.mark.slow
def test_a_layer_pays_the_start_of_its_protocol_for_each_collective_and_the_host_once(machine):
    changes = {"cube.pe.pe_ipcq.simple.start_ns": 3000, "system.host.collective_start_ns": 7000}
    dear = machine.with_({**changes, "system.host.descriptor_ns": 500})
    free, paid = (part(x, "layer", requests=4, tp=2) for x in (machine, dear))
    assert paid["ns"] == pytest.approx(free["ns"] + 2 * 3000)
    assert (free["host_ns"], paid["host_ns"]) == (0, 500)


@pytest.mark.slow
def test_steps_of_a_small_model_serve_requests(machine):
    model = fields_of({**MODEL, "num_hidden_layers": 4})
    found = kb.serving.steps(model, machine, tp=2, sizes=(1, 4, 16), contexts=(32, 128), workers=1, progress=False)
    assert len(found.table) == 3 + 2 + 3 * 2 + 1 * 3
    assert (found.table["energy_uj"] > 0).all()
    layer = found.table[found.table["part"] == "layer"].set_index("requests")["ns"]
    assert layer.is_monotonic_increasing
    assert found([], [32]) == pytest.approx(sum(found.parts([], [32]).values()))
    assert found.parts([], [32])["layers"] == pytest.approx(4 * layer[1])
    # Contexts at hand are simulated: a batch of equal ones is not the batch of the table.
    attention = attention_row(machine, tokens=1, contexts=[20, 100], heads=2, kv_heads=1, head_dim=128, log="off")["ns"]
    parts = found.parts([], [20, 100])
    assert found.exact([], [20, 100]) == pytest.approx(parts["layers"] + parts["head"] + 4 * attention)
    # Engines pad a batch to the next captured size. A chunk of another length is interpolated; `exact` simulates it.
    own = {n: part_row(machine, part="layer", requests=n, tokens=1, context=0, tp=2, model=model) for n in (3, 4, 16)}
    assert found.parts([], [100] * 3)["layers"] == 4 * own[4]["ns"] > 4 * own[3]["ns"]
    assert found.parts([(10, 50)], [100] * 3)["layers"] == 4 * own[16]["ns"]
    chunk = attention_row(machine, tokens=10, contexts=[60], heads=2, kv_heads=1, head_dim=128, log="off")["ns"]
    parts = found.parts([(10, 50)], [])
    assert found.exact([(10, 50)], []) == pytest.approx(parts["layers"] + parts["head"] + 4 * chunk)
    requests = kb.serving.generate(50, request_rate=2000, input_len=40, output_len=10)
    result = kb.serving.run(requests, found)
    assert result.metrics["completed"] == 50
    assert result.metrics["mean_tpot_ms"] >= found([], [32]) / 1e6


def test_a_part_without_weights_is_refused_where_values_are_computed(machine):
    outcome = kb.run(partial(step_part, part="layer"), machine, data=True)
    assert "part = 'layer': it has no weights; run it without values" in str(outcome.error)


def test_a_model_that_does_not_divide_is_refused(machine):
    model = {**MODEL, "num_hidden_layers": 4}
    with pytest.raises(ArgumentError, match="tp = 3 must divide num_key_value_heads = 2"):
        kb.serving.steps(model, machine, tp=3)
    with pytest.raises(ArgumentError, match=r"tp = 2: the machine has 1 SIPs; load it with system\.sips\.count=2"):
        kb.serving.steps(model, "preset:small", tp=2)
    with pytest.raises(ArgumentError, match=r"sizes = 0 must be an integer of at least 1"):
        kb.serving.steps(model, machine, sizes=(0, 1))
