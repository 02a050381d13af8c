"""Models on a machine: outputs, names, memory, the launches of a call and what they cost."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.nn.attention.bias import causal_lower_right  # noqa: E402

import kernbench as kb  # noqa: E402
from kernbench import DPPolicy  # noqa: E402
from kernbench.ops.matmul import PLACEMENTS, _placements, named  # noqa: E402
from kernbench.torch._device import module_of, operators_of, readable  # noqa: E402
from tests.ops.test_blocks import device  # noqa: E402
from tests.torch.models import Mlp, errors, worst  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch's own
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
MACHINE = "preset:small"


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def mlp():
    torch.manual_seed(0)
    model, x = Mlp().half(), torch.randn(8, 64).half()
    compiled = kb.torch.compile(model, MACHINE)
    with torch.no_grad():
        first, second = compiled(x), compiled(x + 1)
        expected = model(x), model(x + 1)
    return compiled, (first, second), expected


def test_outputs_are_those_of_the_model(mlp):
    _, found, expected = mlp
    assert all(worst(a, b) < 2e-3 for a, b in zip(found, expected, strict=True))
    assert worst(*found) > 0.01  # the second call has its own input


def test_launches_have_the_names_of_modules_and_operators(mlp):
    result = mlp[0].result
    assert [part.name for part in result.launches] == [
        "norm/pow+mean+add+rsqrt+mul", "gate/mm", "up/mm", "silu+mul", "down/addmm", "add",
    ]  # fmt: skip
    assert list(result.table["module"]) == ["norm", "gate", "up", "(model)", "down"]
    assert result.table["ns"].sum() == pytest.approx(sum(part.ns for part in result.launches))
    assert result.device_flops_share == 1.0
    assert not result.host_fallbacks


def test_products_are_native_and_counted(mlp):
    parts = {part.name: part for part in mlp[0].result.launches}
    assert parts["gate/mm"].flops >= 2 * 8 * 64 * 128
    assert parts["gate/mm"].nbytes >= 128 * 64 * 2  # the weight, at least once
    assert set(mlp[0].result.placements["launch"]) == {"gate/mm", "up/mm", "down/addmm"}


def test_the_result_says_why_and_shows_itself(mlp):
    result = mlp[0].result
    assert "HBM slice" in str(result.why("gate/mm"))
    assert result.why().path.makespan_ps / 1000 == pytest.approx(result.latency_ns, rel=0.01)
    assert "gate" in repr(result)
    assert "<table" in result._repr_html_()
    with pytest.raises(KeyError, match=r"no launch 'gates/mm'; there are norm/"):
        result.why("gates/mm")


def test_a_second_call_maps_and_places_nothing(mlp):
    compiled = mlp[0]
    records = compiled.result.records
    start, end = compiled.result._window
    inside = records.within(start, end)
    assert not len(inside.of_kind("map", "h2d", "d2h"))


def test_calls_of_equal_shapes_take_equal_time():
    model, x = Mlp().half(), torch.randn(8, 64).half()
    compiled = kb.torch.compile(model, MACHINE)
    times = []
    with torch.no_grad():
        for _ in range(3):
            compiled(x)
            times.append(compiled.result.latency_ns)
    assert max(times) - min(times) < 0.01 * min(times)


def test_a_graph_saves_the_way_to_the_host():
    x, times = torch.randn(8, 64).half(), {}
    model = Mlp().half()
    with torch.no_grad():
        for graph in (False, True):
            compiled = kb.torch.compile(model, MACHINE, graph=graph)
            y = compiled(x)
            times[graph] = compiled.result.latency_ns
            assert worst(y, model(x)) < 2e-3
    assert times[True] < times[False] - 5 * 200  # five times the way of a launch through PCIe, and back


def test_weights_that_change_are_brought_again():
    model, x = Mlp().half(), torch.randn(8, 64).half()
    compiled = kb.torch.compile(model, MACHINE)
    with torch.no_grad():
        compiled(x)
        model.gate.weight.mul_(2)
        assert worst(compiled(x), model(x)) < 2e-3


def test_torch_compile_finds_the_backend_by_its_name():
    model, x = Mlp().half(), torch.randn(8, 64).half()
    with torch.no_grad():
        y = torch.compile(model, backend="kernbench", options={"machine": MACHINE})(x)
        assert worst(y, model(x)) < 2e-3
    assert [part.module for part in kb.torch.result().launches][:2] == ["norm", "gate"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tp": 2}, r"options: 'tp' needs the whole model: kb\.torch\.compile\(model, tp="),
        ({"plcement": {}}, "options: 'plcement' is unknown; did you mean placement"),
    ],
)
def test_the_backend_refuses_options_that_it_does_not_have(options, message):
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=message):
        torch.compile(Mlp(), backend="kernbench", options={"machine": MACHINE, **options})(torch.randn(8, 64))


def test_the_backend_refuses_modes_of_others():
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="options: 'mode' is unknown; "):
        torch.compile(Mlp(), backend="kernbench", mode="max-autotune")(torch.randn(8, 64))


def test_the_backend_takes_the_options_of_compile():
    layer, x = torch.nn.Sequential(torch.nn.Linear(64, 64)), torch.randn(8, 64)
    options = {"machine": MACHINE, "data": False, "placement": {"0": "columns"}}
    with torch.no_grad():
        assert torch.compile(layer, backend="kernbench", options=options)(x).isnan().all()
    assert list(kb.torch.result().placements["placement"]) == ["columns"]


def test_more_models_of_a_class_than_dynamo_compiles_by_default():
    count, x = torch._dynamo.config.recompile_limit + 1, torch.randn(2, 8)
    layers = [torch.nn.Linear(8, 8) for _ in range(count)]
    with kb.session(MACHINE, data=True) as machine, torch.no_grad():
        for layer in layers:
            assert worst(kb.torch.compile(layer, machine)(x), layer(x)) < 1e-5


@pytest.mark.parametrize("placement", [*PLACEMENTS, DPPolicy(cube="replicate", pe="row_wise")])
@pytest.mark.parametrize(("m", "k", "n"), [(70, 96, 130), (1, 64, 200), (130, 40, 8)])
def test_placements_agree(placement, m, k, n):
    layer, x = torch.nn.Linear(k, n).half(), torch.randn(m, k).half()
    compiled = kb.torch.compile(torch.nn.Sequential(layer), MACHINE, placement={"0": placement})
    with torch.no_grad():
        assert worst(compiled(x), layer(x)) < 2e-3
    row = compiled.result.placements.iloc[0]
    assert (row["placement"], row["why"]) == (named(placement), "as asked for")


def test_products_of_any_strides():
    def product(a, b, c, d):
        return a @ b, torch.bmm(c, d.transpose(1, 2)), torch.bmm(c.transpose(1, 2), d), torch.baddbmm(c, c, c)

    a, b = torch.randn(33, 70).t().half(), torch.randn(33, 65).half()
    c, d = torch.randn(3, 40, 40).half(), torch.randn(3, 40, 40).half()
    compiled = kb.torch.compile(product, MACHINE)
    for found, expected in zip(compiled(a, b, c, d), product(a, b, c, d), strict=True):
        assert worst(found, expected) < 2e-3


@pytest.mark.parametrize(("m", "k", "n"), [(1, 40, 24), (24, 40, 1), (1, 40, 1), (12, 1, 8), (1, 1, 8)])
@pytest.mark.parametrize("turned", [False, True])
def test_batches_of_products_with_vectors(m, k, n, turned):
    a, b = torch.randn(3, m, k).half().requires_grad_(), torch.randn(3, *((n, k) if turned else (k, n))).half()
    b.requires_grad_()

    def product(a, b):
        return torch.bmm(a, b.transpose(1, 2) if turned else b)

    compiled = kb.torch.compile(product, MACHINE)
    found = compiled(a, b)
    assert worst(found, product(a, b)) < 2e-3
    assert len(compiled.result.placements) == (k > 1)
    weights = torch.randn(3, m, n).half()
    gradients = [torch.autograd.grad((f(a, b) * weights).sum(), (a, b)) for f in (compiled, product)]
    assert all(worst(x, y) < 2e-3 for x, y in zip(*gradients, strict=True))


@pytest.mark.parametrize("batch", [4, 1])  # 1: one matrix for all
def test_a_batch_of_products_of_one_row_takes_no_longer_than_of_two(batch):
    def ns(m):
        compiled = kb.torch.compile(torch.matmul, MACHINE, data=False)
        compiled(torch.zeros(4, m, 256).half(), torch.zeros(batch, 256, 448).half())
        return compiled.result.latency_ns

    assert ns(1) <= 1.01 * ns(2)


@pytest.mark.parametrize("placement", [None, "split-K in cubes"])
def test_products_of_one_matrix_are_one_launch_with_fuse(placement):
    model, x = Mlp().half(), torch.randn(8, 64).half()
    wanted = {} if placement is None else {"": placement}
    compiled = kb.torch.compile(model, MACHINE, fuse=True, placement=wanted)
    with torch.no_grad():
        assert worst(compiled(x), model(x)) < 2e-3
    assert compiled.result.placements["launch"].tolist() == ["mm", "down/addmm"]
    assert placement in (None, compiled.result.placements["placement"][0])


def test_a_model_with_gradients_is_not_fused():
    model, x = Mlp().half(), torch.randn(8, 64).half()
    compiled = kb.torch.compile(model, MACHINE, fuse=True)
    compiled(x).sum().backward()
    forward, _ = compiled._device.calls
    assert [step.module for step in forward.steps if step.choice] == ["gate", "up", "down"]


def test_a_product_deeper_than_its_blocks(monkeypatch):
    monkeypatch.setattr(_placements, "DEPTH", 64)
    monkeypatch.setattr(_placements, "room", lambda _: 64 * 64 * 2)
    layer, x = torch.nn.Linear(200, 70).half(), torch.randn(130, 200).half()
    with torch.no_grad():
        assert worst(kb.torch.compile(layer, MACHINE)(x), layer(x)) < 2e-3


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads", "q_len", "kv_len"), [(4, 2, 70, 70), (4, 4, 3, 33), (8, 1, 1, 2048)])
def test_attention(causal, heads, kv_heads, q_len, kv_len):
    def attend(q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)

    q, k, v = (torch.randn(2, n, t, 32).half() for n, t in ((heads, q_len), (kv_heads, kv_len), (kv_heads, kv_len)))
    compiled = kb.torch.compile(attend, MACHINE)
    assert worst(compiled(q, k, v), attend(*(x.float() for x in (q, k, v)))) < 2e-3
    assert compiled.result.launches[-1].operators[0].startswith("attention")


@pytest.mark.parametrize(("q_len", "kv_len"), [(3, 40), (1, 1024), (7, 7)])
def test_causal_attention_of_the_last_tokens_needs_no_mask(q_len, kv_len):
    bias = causal_lower_right(q_len, kv_len)

    def attend(q, k, v, bias):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, bias)

    q, k, v = torch.randn(2, 4, q_len, 32), torch.randn(2, 4, kv_len, 32), torch.randn(2, 4, kv_len, 32)
    compiled = kb.torch.compile(attend, MACHINE)
    assert worst(compiled(q, k, v, bias), attend(q, k, v, bias)) < 1e-4
    assert {part.operators[0] for part in compiled.result.launches} <= {"attention", "attention_merge"}


@pytest.mark.parametrize("shape", [(1, 40), (3, 1)])
def test_a_triangle_that_is_broadcast_stays_a_mask(shape):
    def attend(q, k, v):
        mask = torch.tril(torch.ones(*shape, dtype=torch.bool), diagonal=5)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    q, k, v = torch.randn(2, 4, 3, 32), torch.randn(2, 4, 40, 32), torch.randn(2, 4, 40, 32)
    assert worst(kb.torch.compile(attend, MACHINE)(q, k, v), attend(q, k, v)) < 1e-4


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_attention_with_a_mask_and_a_scale(kind):
    keep = torch.rand(1, 1, 20, 50) > 0.3
    mask = keep if kind == "bool" else torch.where(keep, torch.randn(1, 1, 20, 50), float("-inf"))

    def attend(q, k, v, mask):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, scale=0.3)

    q, k, v = torch.randn(2, 4, 20, 32), torch.randn(2, 4, 50, 32), torch.randn(2, 4, 50, 32)
    half = [x.half() for x in (q, k, v)]
    found = kb.torch.compile(attend, MACHINE)(*half, mask if kind == "bool" else mask.half())
    assert worst(found, attend(q, k, v, mask)) < 3e-3


@pytest.mark.parametrize("options", [{}, {"stride": 2, "padding": 1}, {"groups": 4}, {"dilation": 2}, {"groups": 2}])
@pytest.mark.slow
def test_convolutions_are_products(options):
    layer = torch.nn.Conv2d(4, 8 if options.get("groups") != 4 else 4, 3, **options)
    found, eager = errors(layer, lambda model: kb.torch.compile(model, MACHINE), torch.randn(2, 4, 9, 9))
    assert found <= 2 * eager


class SideBySide(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = torch.nn.ModuleList(torch.nn.Linear(64, n, bias=False) for n in (96, 40, 40))

    def forward(self, x):
        return [part(x) for part in self.parts]


@pytest.mark.parametrize(
    ("ends", "machine"),
    [([3, 3, 20, 30], MACHINE), ([0, 7, 8, 30], MACHINE), ([30, 30, 30, 30], MACHINE), ([3, 3, 20, 30], device())],
)
def test_products_of_groups_of_rows(ends, machine):
    def product(a, b, ends):
        return torch._grouped_mm(a, b.transpose(1, 2), ends)

    a, b = torch.randn(30, 32).bfloat16(), torch.randn(4, 80, 32).bfloat16()
    compiled, offsets = kb.torch.compile(product, machine), torch.tensor(ends, dtype=torch.int32)
    expected, first = torch.zeros(30, 80), 0
    for i, end in enumerate(ends):
        expected[first:end] = a[first:end].float() @ b[i].float().t()
        first = end
    assert worst(compiled(a, b, offsets), expected) < 1e-2
    (part,) = compiled.result.launches
    assert part.operators == ("grouped_mm",)
    assert 2 * 30 * 32 * 80 <= part.flops < 1.1 * 2 * 30 * 32 * 80  # each row once


def test_products_side_by_side_where_pes_share_memory():
    """Three products of one input are one launch; weights and results are separate tensors."""
    model = SideBySide().half()
    x = torch.randn(24, 64).half()
    compiled = kb.torch.compile(model, device(), fuse=True)
    with torch.no_grad():
        for found, expected in zip(compiled(x), model.float()(x.float()), strict=True):
            assert worst(found, expected) < 1e-2
    (part,) = compiled.result.launches
    assert part.operators == ("mm",)


def test_routing_stays_on_the_device():
    def route(x):
        values, places = torch.topk(x, 2, dim=-1)
        counts = torch.histc(places.reshape(-1).float(), bins=5, min=0, max=4)
        return values, places, counts, torch.topk(x, 3, dim=0, largest=False)[1]

    x = torch.randperm(60).reshape(12, 5).float()
    compiled = kb.torch.compile(route, MACHINE)
    for found, expected in zip(compiled(x), route(x), strict=True):
        assert torch.equal(found, expected)
    assert not compiled.result.host_fallbacks


def test_a_histogram_counts_as_torch():
    x = torch.cat([torch.randn(200), torch.tensor([-1.5, 2.0])])
    compiled = kb.torch.compile(lambda x: torch.histc(x, bins=7, min=-1.5, max=2), MACHINE)
    assert torch.equal(compiled(x), torch.histc(x, bins=7, min=-1.5, max=2))


def test_a_number_in_a_tensor_is_read_at_each_call():
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.tensor(2.0))

        def forward(self, x):
            return x * self.scale

    model, x = Scaled(), torch.randn(40)
    compiled = kb.torch.compile(model, MACHINE)
    assert torch.equal(compiled(x), 2 * x)
    model.scale.fill_(3)
    assert torch.equal(compiled(x), 3 * x)
    assert not compiled.result.host_fallbacks


def test_names_of_modules():
    assert readable("L['self'].model.layers[0].mlp") == "model.layers.0.mlp"
    assert readable("L['m']._modules['n']") == "n"
    modules = {"silu": "mlp.act", "mul": "mlp", "add": "", "mm": "mlp.up"}
    assert module_of(["silu", "mul_1"], modules) == "mlp"
    assert module_of(["mm", "add"], modules) == ""
    assert operators_of(["aten.t", "aten.silu", "prims.mul", "aten.silu"]) == ("silu", "mul")


def test_attention_in_plain_operators_runs_as_the_native_kernel():
    class Plain(torch.nn.Module):
        def forward(self, q, k, v):
            return (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1) @ v

    q, k, v = torch.randn(3, 1, 4, 40, 32)
    compiled = kb.torch.compile(Plain(), "preset:small")
    found, eager = errors(Plain(), lambda _: compiled, q, k, v)
    assert found <= 2 * eager
    assert [part.operators for part in compiled.result.launches] == [("attention",)]
    assert not compiled.result.host_fallbacks


def randn(*shape):
    return torch.randn(*shape).half()


def sdpa(*args, **kwargs):
    return torch.nn.functional.scaled_dot_product_attention(*args, **kwargs)


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        pytest.param(lambda q: sdpa(q, q, q), [(9, 16)], id="a matrix each"),
        pytest.param(lambda q, k: sdpa(q, k, k), [(2, 3, 7, 16), (1, 3, 9, 16)], id="a batch that is broadcast"),
        pytest.param(lambda q, k: sdpa(q, k, k), [(2, 1, 7, 16), (2, 3, 9, 16)], id="heads that are broadcast"),
        pytest.param(
            lambda q: sdpa(q, q, q, torch.arange(9).reshape(9, 1) > torch.arange(9)), [(2, 9, 16)], id="no key is seen"
        ),
        pytest.param(lambda a, b, c: torch.addmm(c, a, b), [(3, 0), (0, 5), (3, 5)], id="a sum of nothing"),
        pytest.param(lambda x: x, [(3, 4)], id="no operator"),
    ],
)
def test_forms_of_operators(function, inputs):
    given = [randn(*shape) for shape in inputs]
    with torch.no_grad():
        assert worst(kb.torch.compile(function, MACHINE)(*given), function(*given)) < 4e-3


def test_gradients_of_a_query_that_sees_no_key_are_zero():
    q, seen = randn(2, 9, 16).requires_grad_(), torch.arange(9).reshape(9, 1) > torch.arange(9)
    kb.torch.compile(lambda q: sdpa(q, q, q, seen), MACHINE)(q).sum().backward()
    found, q.grad = q.grad, None
    sdpa(q, q, q, seen).sum().backward()
    assert worst(found, q.grad) < 4e-3


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: torch.nn.LSTM(16, 8, bidirectional=True), (5, 2, 16)),
        (lambda: torch.nn.TransformerEncoderLayer(16, 4, 32), (5, 2, 16)),
    ],
    ids=["LSTM", "TransformerEncoderLayer"],
)
@pytest.mark.slow
def test_layers_that_torch_computes_as_one_operator_run_on_pes(make, shape):
    model, x = make().half().eval(), randn(*shape)
    compiled = kb.torch.compile(model, MACHINE)
    with torch.no_grad():
        found, expected = compiled(x), model(x)
    first = (found, expected) if isinstance(found, torch.Tensor) else (found[0], expected[0])
    assert worst(*first) < 4e-3
    assert compiled.result.device_flops_share == 1
    assert torch.backends.mha.get_fastpath_enabled()


def test_an_operator_of_the_host_has_the_strides_that_it_has_there():
    layers = [
        torch.nn.Conv2d(4, 8, 1, groups=2),
        torch.nn.ConvTranspose2d(8, 6, 2, stride=2),
        torch.nn.Upsample(scale_factor=2),
    ]
    model, x = torch.nn.Sequential(*layers).half().eval(), randn(2, 4, 3, 5)
    compiled = kb.torch.compile(model, MACHINE)
    with torch.no_grad():
        assert worst(compiled(x), model(x)) < 4e-3
    assert [part.name for part in compiled.result.host_fallbacks] == ["1/convolution on the host"]


def test_an_operator_of_the_host_has_all_its_results():
    model = torch.nn.EmbeddingBag(9, 16).half().eval()
    ids = torch.arange(8).reshape(2, 4)
    with torch.no_grad():
        assert worst(kb.torch.compile(model, MACHINE)(ids), model(ids)) < 4e-3


def test_elements_beyond_the_last_are_no_divisors():
    a, b = torch.arange(63, dtype=torch.int32) - 30, torch.arange(63, dtype=torch.int32) % 7 + 1

    def divided(a, b):
        return torch.remainder(a, b), a // b, torch.fmod(a, b)

    for found, expected in zip(kb.torch.compile(divided, MACHINE)(a, b), divided(a, b), strict=True):
        assert torch.equal(found, expected)


def test_a_rotation_of_halves_is_one_launch_for_each_tensor():
    def rotated(q, k, cos, sin):
        def turned(x):
            first, second = x.chunk(2, -1)
            return torch.cat((-second, first), -1)

        return q * cos + turned(q) * sin, k * cos + turned(k) * sin

    given = randn(4, 8, 32), randn(2, 8, 32), randn(8, 32), randn(8, 32)
    compiled = kb.torch.compile(rotated, MACHINE)
    for found, expected in zip(compiled(*given), rotated(*given), strict=True):
        assert worst(found, expected) < 4e-3
    assert len(compiled.result.launches) == 2
