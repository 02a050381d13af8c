"""Gradients, tensor parallelism, operators of the host, and runs without values."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import kernbench as kb  # noqa: E402
from kernbench.errors import ArgumentError  # noqa: E402
from tests.torch.models import Mlp, worst  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch's own
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
MACHINE = "preset:small"
PLAN = {"gate": "columns", "up": "columns", "down": "rows"}


class Block(torch.nn.Module):
    """A decoder layer of Llama's form: grouped attention with rotation, and SwiGLU."""

    def __init__(self, width: int = 64, heads: int = 4, kv_heads: int = 2) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, width // heads
        self.norm, self.mlp = torch.nn.RMSNorm(width), Mlp(width)
        self.q, self.o = (torch.nn.Linear(width, width, bias=False) for _ in range(2))
        self.k, self.v = (torch.nn.Linear(width, kv_heads * self.size, bias=False) for _ in range(2))

    def forward(self, x):
        h = self.norm(x)
        q, k, v = (layer(h).unflatten(-1, (-1, self.size)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        half = torch.arange(x.shape[1]).outer(10000 ** -(torch.arange(0, self.size, 2) / self.size))
        cos, sin = half.cos().to(x.dtype), half.sin().to(x.dtype)
        q, k = (torch.cat([a * cos - b * sin, a * sin + b * cos], -1) for a, b in (q.chunk(2, -1), k.chunk(2, -1)))
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.mlp(x + self.o(out.transpose(1, 2).flatten(2)))


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
    torch._dynamo.reset()


@pytest.fixture
def two_sips():
    return kb.load(MACHINE, {"system.sips": {"count": 2, "topology": "ring_1d"}})


BLOCK_PLAN = {**dict.fromkeys("qkv", "columns"), "o": "rows", **PLAN}


def gradients(model, call, x):
    model.zero_grad()
    x = x.clone().requires_grad_()
    (call(x).float() ** 2).sum().backward()
    return [x.grad, *(p.grad.clone() for p in model.parameters())]


@pytest.mark.slow
def test_gradients_of_a_decoder_layer():
    model, x = Block(), torch.randn(1, 12, 64)
    exact = gradients(model, model, x)
    model.half()
    eager = gradients(model, model, x.half())
    compiled = kb.torch.compile(model, MACHINE)
    found = gradients(model, compiled, x.half())
    for ours, half, true in zip(found, eager, exact, strict=True):
        assert worst(ours, true) <= 2 * worst(half, true)
    result = compiled.result
    assert result.device_flops_share == 1.0
    products = [part for part in result.launches if part.operators in (("mm",), ("addmm",))]
    assert len(products) == 3 * 7  # of seven layers, and two of each backward


def test_launches_of_a_backward_pass_have_the_modules_of_their_forward_operators():
    model, x = Mlp().half(), torch.randn(8, 64).half().requires_grad_()
    compiled = kb.torch.compile(model, MACHINE, placement={"up": "columns"})
    compiled(x).sum().backward()
    forward, backward = compiled._device.calls
    products = [step for step in backward.steps if step.choice]
    assert [step.module for step in products] == ["down", "down", "up", "up", "gate", "gate"]
    assert {step.module for step in products if step.choice.wanted} == {"up"}
    assert backward.steps[-1].module == "norm"
    assert {step.module for step in backward.steps} <= {step.module for step in forward.steps}


def test_ranks_give_the_output_of_the_model(two_sips):
    model, x = Mlp().half(), torch.randn(8, 64).half()
    compiled = kb.torch.compile(model, two_sips, tp=2, plan=PLAN)
    with torch.no_grad():
        assert worst(compiled(x), model(x)) < 2e-3
    parts = {part.name: part for part in compiled.result.launches}
    assert {launch.sip for launch in parts["gate/mm"].launches} == {0, 1}
    assert {launch.sip for launch in parts["down/all_reduce"].launches} == {0, 1}


def test_one_rank_without_values_takes_the_time_of_all(two_sips):
    model, x, times = Mlp().half(), torch.randn(8, 64).half(), []
    with torch.no_grad():
        for data in (True, False):
            compiled = kb.torch.compile(model, two_sips, tp=2, plan=PLAN, data=data)
            compiled(x)
            times.append(compiled.result.latency_ns)
            assert compiled.result.table["share"].sum() == pytest.approx(1)
    assert times[1] == pytest.approx(times[0], rel=0.005)


def test_a_session_that_has_ended_has_the_same_records(two_sips):
    model, x = Mlp().half(), torch.randn(8, 64).half()
    compiled = kb.torch.compile(model, two_sips, tp=2, plan=PLAN, data=False)
    with torch.no_grad():
        compiled(x)
    before = compiled.result.records
    compiled.close()
    after = compiled._device.session.result.records
    assert after is not before
    for name in ("start_ps", "end_ps", "location", "component", "nbytes", "flops", "component_busy_ps"):
        np.testing.assert_array_equal(getattr(after, name), getattr(before, name))
    np.testing.assert_array_equal(after.links.busy_ps, before.links.busy_ps)
    assert (after.launches, after.makespan_ps, after.complete) == (before.launches, before.makespan_ps, before.complete)


def test_gradients_of_ranks_are_those_of_the_whole_model(two_sips):
    model, x = Block(), torch.randn(1, 12, 64)
    exact = gradients(model, model, x)
    model.half()
    eager = gradients(model, model, x.half())
    compiled = kb.torch.compile(model, two_sips, tp=2, plan=BLOCK_PLAN)
    found = gradients(model, compiled, x.half())
    for ours, half, true in zip(found, eager, exact, strict=True):
        assert worst(ours, true) <= 2 * worst(half, true)
    sums = [part for part in compiled.result.launches if part.operators == ("all_reduce",)]
    assert len(sums) == 2 + 5  # of two row-parallel layers, and of the inputs of five column-parallel ones


def test_gradients_of_two_calls_add_up(two_sips):
    model, x = Mlp(), torch.randn(8, 64)
    compiled = kb.torch.compile(model, two_sips, tp=2, plan=PLAN)
    for _ in range(2):
        compiled(x).sum().backward()
    found = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    (2 * model(x).sum()).backward()
    for ours, p in zip(found, model.parameters(), strict=True):
        assert worst(ours, p.grad) < 1e-4


def test_ranks_follow_the_weights_of_the_model(two_sips):
    model, x = Mlp().half(), torch.randn(8, 64).half()
    compiled = kb.torch.compile(model, two_sips, tp=2, plan=PLAN)
    with torch.no_grad():
        compiled(x)
        for p in model.parameters():
            p.mul_(1.5)
        assert worst(compiled(x), model(x)) < 2e-3


def test_a_graph_of_several_ranks_gives_the_same_output_sooner(two_sips):
    model, x, times = Mlp().half(), torch.randn(8, 64).half(), {}
    with torch.no_grad():
        for graph in (False, True):
            compiled = kb.torch.compile(model, two_sips, tp=2, plan=PLAN, graph=graph)
            assert worst(compiled(x), model(x)) < 2e-3
            times[graph] = compiled.result.latency_ns
    assert times[True] < times[False] - 4 * 200  # of six launches, two begin a graph


def test_a_graph_with_collectives_pays_the_start_of_work_once(two_sips):
    dear = two_sips.with_({"system.host.descriptor_ns": 500, "system.host.collective_start_ns": 3000})
    model, x, times = Mlp().half(), torch.randn(8, 64).half(), {}
    with torch.no_grad():
        for graph in (False, True):
            for machine in (two_sips, dear):
                compiled = kb.torch.compile(model, machine, tp=2, plan=PLAN, graph=graph)
                compiled(x)
                times[graph, machine is dear] = compiled.result.latency_ns
    assert times[True, True] == times[True, False] + 500
    assert times[False, True] >= times[False, False] + 3500


@pytest.mark.slow
def test_waiting_is_not_the_time_of_a_collective(monkeypatch, two_sips):
    """The second rank is 500 ns late: the first one waits, and the collective takes as long as otherwise."""
    from kernbench.torch._device import ModelDevice

    summing = ModelDevice._sum

    def late_sum(self, summed, name, places):
        self.session._host.stream(1).submit(lambda: self.session.engine.env.timeout(500_000))
        summing(self, summed, name, places)

    model, x, results = Mlp().half(), torch.randn(8, 64).half(), []
    with torch.no_grad():
        for late in (False, True):
            if late:
                monkeypatch.setattr(ModelDevice, "_sum", late_sum)
            compiled = kb.torch.compile(model, two_sips, tp=2, plan=PLAN)
            compiled(x)
            results.append(compiled.result)
    tables = [result.table.set_index("module") for result in results]
    sums = [next(part for part in result.launches if part.name == "down/all_reduce") for result in results]
    assert tables[0].loc["down", "wait_ns"] < 20
    assert tables[1].loc["down", "wait_ns"] == pytest.approx(500, rel=0.05)
    assert sums[1].ns == pytest.approx(sums[0].ns, rel=0.1)
    for table, result in zip(tables, results, strict=True):
        assert table["share"].sum() == pytest.approx(1)
        assert table["ns"].sum() == pytest.approx(result.latency_ns)
        assert table["of_roofline"].max() < 1


@pytest.mark.parametrize(
    ("tp", "plan", "message"),
    [
        (3, PLAN, "tp = 3: the machine has 2 SIPs"),
        (2, {"gates": "columns"}, "no linear layer is 'gates'; did you mean gate"),
        (2, {"gate": "diagonal"}, "gate: 'diagonal' is unknown"),
    ],
)
def test_wrong_plans_are_refused(two_sips, tp, plan, message):
    with pytest.raises(ArgumentError, match=message):
        kb.torch.compile(Mlp(), two_sips, tp=tp, plan=plan)


def test_a_size_that_does_not_divide(two_sips):
    with pytest.raises(ArgumentError, match="gate has 127 columns, which tp = 2 does not divide"):
        kb.torch.compile(Mlp(64, 127), two_sips, tp=2, plan=PLAN)


def test_an_operator_of_the_host_is_named_and_takes_time():
    class Sorted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(16, 3000)

        def forward(self, x):
            return torch.sort(self.layer(x)).values.softmax(-1)

    model, x = Sorted(), torch.randn(2, 16)
    compiled = kb.torch.compile(model, MACHINE)
    with torch.no_grad():
        assert worst(compiled(x), model(x)) < 2e-3
    (host,) = compiled.result.host_fallbacks
    assert (host.module, host.operators) == ("", ("sort",))
    assert host.ns > 200  # there and back through PCIe
    assert compiled.result.device_flops_share < 1
    assert "on the host: model: sort" in repr(compiled.result)


def test_without_values_times_are_the_same():
    model, x, times = Mlp().half(), torch.randn(8, 64).half(), []
    with torch.no_grad():
        for data in (True, False):
            compiled = kb.torch.compile(model, MACHINE, data=data)
            y = compiled(x)
            times.append(compiled.result.latency_ns)
    assert times[0] == times[1]
    assert y.isnan().all()


def test_a_model_without_weights():
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    with FakeTensorMode():
        model, x = Mlp(), torch.randn(8, 64)
    compiled = kb.torch.compile(model, MACHINE, data=False)
    with torch.no_grad():
        y = compiled(x)
    assert isinstance(y, FakeTensor)
    assert compiled.result.latency_ns > 0


def test_a_graph_break_is_an_error_that_names_its_line():
    def stop(x):
        y = x * 2
        torch._dynamo.graph_break()
        return y + 1

    with pytest.raises(ArgumentError, match=r"test_parallel\.py:\d+"):
        kb.torch.compile(stop, MACHINE)(torch.randn(4))
