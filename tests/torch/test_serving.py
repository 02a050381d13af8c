"""Parts of a step are simulated as the model that they are parts of."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
hf = pytest.importorskip("transformers", reason="transformers is not installed")

import kernbench as kb  # noqa: E402
from kernbench.errors import ArgumentError  # noqa: E402
from kernbench.serving._steps import part_ns  # noqa: E402

MODEL = {
    "hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 128, "vocab_size": 1024,
}  # fmt: skip


@pytest.fixture(scope="module")
def machine():
    return kb.load("preset:small", {"system.sips": {"count": 2, "topology": "ring_1d"}})


def part(machine, name, requests=1, tokens=1, context=0, tp=1):
    return part_ns(machine, part=name, requests=requests, tokens=tokens, context=context, tp=tp, model=MODEL)


@pytest.mark.parametrize(("tokens", "context"), [(1, 64), (16, 64)])
def test_attention_is_that_of_a_compiled_model(machine, tokens, context):
    """One request of two SIPs has two query heads and one kv head on each; a chunk sees the tokens before it."""
    x = torch.empty(1, tokens, 2 * 128, dtype=torch.float16)  # as a projection gives it: heads are side by side
    k, v = (torch.empty(1, 1, context, 128, dtype=torch.float16) for _ in "kv")

    class Attend(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.keys, self.values = torch.nn.Buffer(k), torch.nn.Buffer(v)

        def forward(self, x):
            q = x.view(1, tokens, 2, 128).transpose(1, 2)
            seen = torch.tril(torch.ones(tokens, context, dtype=torch.bool), diagonal=context - tokens)
            return torch.nn.functional.scaled_dot_product_attention(
                q, self.keys, self.values, attn_mask=seen, enable_gqa=True
            )

    compiled = kb.torch.compile(Attend(), machine, data=False, graph=True)
    compiled(x)
    own = part(machine, "attention", tokens=tokens, context=context, tp=2)
    assert own["ns"] == pytest.approx(compiled.result.latency_ns, rel=0.1)  # tensors are elsewhere in the memories
    assert own["host_ns"] == 0


@pytest.mark.slow
def test_a_layer_has_no_attention_and_its_collectives(machine):
    one, two = (part(machine, "layer", requests=4, tp=tp) for tp in (1, 2))
    shared = part(machine, "head", requests=4, tp=2)
    assert 0 < shared["ns"] < one["ns"]
    # Half of the products on each of two SIPs, and two all-reduces.
    assert two["nbytes"] < 0.75 * one["nbytes"]


@pytest.mark.slow
def test_steps_of_a_small_model_serve_requests(machine):
    model = {**MODEL, "num_hidden_layers": 4}
    found = kb.serving.steps(model, machine, tp=2, sizes=(1, 4, 16), contexts=(32, 128), workers=1, progress=False)
    assert len(found.table) == 3 + 3 + 3 * 2 + 1 * 3
    layer = found.table[found.table["part"] == "layer"].set_index("requests")["ns"]
    assert layer.is_monotonic_increasing
    assert found([], [32]) == pytest.approx(sum(found.parts([], [32]).values()))
    assert found.parts([], [32])["layers"] == pytest.approx(4 * layer[1])
    requests = kb.serving.generate(50, request_rate=2000, input_len=40, output_len=10)
    result = kb.serving.run(requests, found)
    assert result.metrics["completed"] == 50
    assert result.metrics["mean_tpot_ms"] >= found([], [32]) / 1e6


def test_a_model_that_does_not_divide_is_refused(machine):
    model = {**MODEL, "num_hidden_layers": 4}
    with pytest.raises(ArgumentError, match="tp = 3 must divide num_key_value_heads = 2"):
        kb.serving.steps(model, machine, tp=3)
    with pytest.raises(ArgumentError, match=r"tp = 2: the machine has 1 SIPs; load it with system\.sips\.count=2"):
        kb.serving.steps(model, "preset:small", tp=2)
    with pytest.raises(ArgumentError, match=r"sizes = 0 must be an integer of at least 1"):
        kb.serving.steps(model, machine, sizes=(0, 1))
