"""Compiled models as the stages of a pipeline: values of outputs and gradients, and what is refused."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import kernbench as kb  # noqa: E402
from kernbench.errors import ArgumentError  # noqa: E402
from kernbench.pipeline import orders, run  # noqa: E402
from tests.pipeline.machines import machine  # noqa: E402
from tests.torch.models import worst  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch's own
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
WIDTH, TOKENS = 64, 8
FORWARD = {0: ["0F0", "0F1", "0F2"], 1: ["1F0", "1F1", "1F2"]}


@pytest.fixture(autouse=True)
def reset():
    torch._dynamo.reset()
    torch.manual_seed(0)


def layers(count):
    """Return decoder layers of Llama in f16."""
    hf = pytest.importorskip("transformers", reason="transformers is not installed")
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

    config = hf.LlamaConfig(
        hidden_size=WIDTH, intermediate_size=128, num_attention_heads=4, num_key_value_heads=2,
        attn_implementation="sdpa",
    )  # fmt: skip

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.rotary = LlamaDecoderLayer(config, 0), LlamaRotaryEmbedding(config)

        def forward(self, x):
            return self.layer(x, position_embeddings=self.rotary(x, torch.arange(x.shape[1])[None]))

    return [Layer().half() for _ in range(count)]


def inputs(count):
    return [torch.randn(1, TOKENS, WIDTH).half().requires_grad_() for _ in range(count)]


def eager(modules, x):
    x = x.detach().requires_grad_()
    y = x
    for module in modules:
        y = module(y)
    return y, x


@pytest.mark.slow
def test_outputs_are_those_of_the_whole_model():
    modules = [torch.nn.Linear(WIDTH, WIDTH).half() for _ in range(2)]
    stages = kb.torch.Stages(modules, [x.detach() for x in inputs(3)])
    for _ in range(2):  # the second run does not compile
        found = run(FORWARD, stages, machine(2), data=True)
        assert [str(span.action) for span in found.spans if span.rank == 1] == FORWARD[1]
        assert len(stages.outputs) == 3
        for x, y in zip(stages._x, stages.outputs, strict=True):
            assert worst(y, eager(modules, x)[0]) < 2e-3


@pytest.mark.parametrize(
    ("table", "count", "message"),
    [
        (FORWARD, 3, "2 modules for the"),
        ({0: ["0F0", "0I0", "0W0"], 1: ["1F0", "1I0", "1W0"]}, 3, "0I0: a backward is one graph"),
        (FORWARD, 2, "0F2: x has 2 microbatches"),
    ],
)
def test_schedules_that_do_not_fit_are_refused(table, count, message):
    table = {0: ["0F0"]} if "modules" in message else table
    stages = kb.torch.Stages([torch.nn.Identity(), torch.nn.Identity()], inputs(count))
    with pytest.raises(ArgumentError, match=message):
        run(table, stages, machine(2))


def test_a_stage_returns_one_tensor():
    class Two(torch.nn.Module):
        def forward(self, x):
            return x, x

    with pytest.raises(ArgumentError, match="stage 0 returns tuple; return one tensor"):
        run(FORWARD, kb.torch.Stages([Two(), Two()], inputs(3)), machine(2))


def test_a_function_needs_a_message():
    with pytest.raises(ArgumentError, match="message = None: a stage that is a function needs"):
        run(FORWARD, lambda *_: None, machine(2))


@pytest.mark.slow
@pytest.mark.parametrize(("schedule", "v", "tp"), [("1F1B", 1, 1), ("Interleaved1F1B", 2, 1), ("1F1B", 1, 2)])
def test_outputs_and_gradients_of_llama_are_those_of_torch(schedule, v, tp):
    """Gradients pass all stages back, so those of the first one's inputs need the right activations everywhere."""
    modules, given = layers(2 * v), inputs(4)
    plan = dict.fromkeys((f"*.{name}_proj" for name in ("q", "k", "v", "gate", "up")), "columns")
    plan |= dict.fromkeys(("*.o_proj", "*.down_proj"), "rows")
    stages = kb.torch.Stages(modules, given, tp=tp, plan=plan if tp > 1 else None)
    found = run(orders(schedule, 2, 4, v), stages, machine(2 * tp), data=True)
    assert len(found.spans) == 2 * 2 * v * 4
    for x, y in zip(given, stages.outputs, strict=True):
        exact, of = eager(modules, x)
        assert worst(y, exact) < 4e-3
        exact.sum().backward()
        assert worst(x.grad, of.grad) < 4e-3
    without = run(orders(schedule, 2, 4, v), stages, machine(2 * tp))  # which does not compile again
    assert without.latency_ns == found.latency_ns


@pytest.mark.slow
def test_stages_of_experts_run_over_the_sips_of_their_rank():
    from tests.torch.test_experts import PLAN, filled, mixtral

    modules, given = [filled(mixtral()).half() for _ in range(2)], [x.detach() for x in inputs(3)]
    stages = kb.torch.Stages(modules, given, tp=2, plan=PLAN)
    found = run(FORWARD, stages, machine(4), data=True)
    assert {x.sip for x in found.result.launches if "dispatch" in x.name} == {0, 1, 2, 3}
    for x, y in zip(given, stages.outputs, strict=True):
        assert worst(y, eager(modules, x)[0]) < 6e-3
