"""Values that are those of eager PyTorch where a program reuses memory, computes with NaN, or has to refuse."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import kernbench as kb  # noqa: E402
from kernbench.errors import KernelError  # noqa: E402
from tests.torch.models import worst  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch's own
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
MACHINE = "preset:small"
functional = torch.nn.functional
NAN = float("nan")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
    torch._dynamo.reset()


def call(function, *inputs):
    return kb.torch.compile(function, MACHINE)(*inputs)


def gradients(function, *inputs):
    """Return the gradients of a function, compiled and eager."""
    both = []
    for run in (kb.torch.compile(function, MACHINE), function):
        given = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
        run(*given).sin().sum().backward()  # the sum of what a norm returns has no gradient
        both.append([x.grad for x in given if x.grad is not None])
    return both


def test_a_gradient_in_the_memory_of_a_kept_activation_is_given_back():
    found, expected = gradients(functional.cross_entropy, torch.randn(1, 5), torch.tensor([1]))
    assert worst(found[0], expected[0]) < 1e-6


def test_buffers_that_a_rank_changes_are_read_back_from_each_rank():
    class Count(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)
            self.seen = torch.nn.Buffer(torch.zeros(8))

        def forward(self, x):
            self.seen.add_(1)
            return self.down(self.up(x)) + self.seen

    model = Count()
    expected = [model(torch.ones(2, 8)) for _ in range(2)]
    model.seen.zero_()
    machine = kb.load(MACHINE, {"system.sips": {"count": 2, "topology": "ring_1d"}})
    compiled = kb.torch.compile(model, machine, tp=2, plan={"up": "columns", "down": "rows"})
    with torch.no_grad():
        found = [compiled(torch.ones(2, 8)) for _ in range(2)]
    assert all(worst(a, b) < 1e-5 for a, b in zip(found, expected, strict=True))
    for rank in compiled._ranks.models:
        assert rank.seen.tolist() == [2.0] * 8


@pytest.mark.parametrize(
    "function",
    [
        torch.relu, lambda x: x.clamp(0, 1), lambda x: torch.maximum(x, x.flip(0)), torch.max, torch.min,
        lambda x: torch.minimum(x, x.flip(0)), lambda x: x.amax(0), lambda x: x.max(0), lambda x: x.min(0),
        lambda x: functional.max_pool1d(x[None], 2), torch.argmax, torch.argmin, lambda x: x.softmax(0),
        lambda x: torch.cummax(x, 0), lambda x: torch.fmax(x, x.flip(0)), lambda x: torch.nan_to_num(x).sum(),
    ],
)  # fmt: skip
def test_nan_is_kept_as_torch_keeps_it(function):
    x = torch.tensor([1.0, NAN, 3.0, -2.0, float("inf"), 0.0])
    for a, b in zip(torch.utils._pytree.tree_leaves(call(function, x)), [*function(x)]
                    if isinstance(function(x), tuple) else [function(x)], strict=True):  # fmt: skip
        assert torch.equal(torch.nan_to_num(a, 99), torch.nan_to_num(b, 99))


@pytest.mark.parametrize("index", [7, -1])
@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("embedding", lambda w, i: functional.embedding(i, w)),
        ("gather", lambda w, i: torch.gather(w, 0, i[None].expand(2, 2))),
        ("index", lambda w, i: w[i + (i < 0) * -9]),
        ("nll_loss_forward", functional.cross_entropy),
    ],
)
def test_an_index_out_of_range_is_refused_with_the_operator(name, function, index):
    w, i = torch.randn(2, 3), torch.tensor([1, index])
    with pytest.raises(KernelError, match=rf"^[^:]*{name}[^:]*: .*index out of bounds"):
        call(function, w, i)


def test_an_index_out_of_range_is_refused_with_the_module():
    model = torch.nn.Sequential(torch.nn.Embedding(4, 3), torch.nn.Linear(3, 3))
    with pytest.raises(KernelError, match=r"^0/embedding.*: .*index out of bounds: 0 <= \w+ < 4"):
        call(model, torch.tensor([4]))


def test_a_check_inside_of_a_masked_part_of_a_kernel():
    def padded(x, i):
        return functional.pad(torch.take(x, i)[:, None] + x, (1, 2))

    x, i = torch.randn(63, 1), torch.randint(63, (63,))
    assert torch.equal(call(padded, x, i), padded(x, i))
    with pytest.raises(KernelError, match=r"take.*: .*index out of bounds"):
        call(padded, x, i + 60)


def test_checks_of_indices_take_no_time():
    table, at = torch.randn(64, 8), torch.arange(63) % 7
    times = []
    for check in (True, False):
        torch._dynamo.reset()
        with pytest.MonkeyPatch.context() as patch:
            if not check:
                patch.setitem(kb.torch._inductor.SETTINGS, "assert_indirect_indexing", False)
            compiled = kb.torch.compile(lambda w, i: w[i] * 2, MACHINE)
            compiled(table, at)
            times.append(compiled.result.latency_ns)
    assert times[0] == times[1]


@pytest.mark.parametrize("divide", [lambda a, b: a // b, lambda a, b: (a // b).sum(), lambda a, _: a // 0])
def test_an_integer_divided_by_zero_is_refused(divide):
    b = torch.arange(63) + 1
    if divide.__code__.co_varnames[1] == "b":
        assert torch.equal(call(divide, torch.arange(63), b), divide(torch.arange(63), b))
    with pytest.raises(KernelError, match=r"floor_divide.*: integer division by zero"):
        call(divide, torch.arange(63), b - 5)


@pytest.mark.parametrize("function", [lambda x: x + torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
                                      lambda x: x[torch.randperm(2)].sum(0)])  # fmt: skip
def test_tensors_that_the_program_makes_on_the_host(function):
    x = torch.randn(2, 2)
    assert worst(call(function, x), function(x)) < 1e-6


def test_lgamma_at_its_poles():
    x = torch.tensor([0.5, 0.0, -1.0, 3.0, float("inf"), 1e30, NAN])
    assert torch.allclose(call(torch.lgamma, x), torch.lgamma(x), equal_nan=True)


@pytest.mark.parametrize("is_trained", [False, True])
@pytest.mark.slow
def test_the_encoder_layer_of_torch(is_trained):
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True).train(is_trained)
    found, expected = gradients(layer, torch.randn(2, 5, 16))
    assert worst(found[0], expected[0]) < 1e-4
    assert worst(call(layer, torch.ones(1, 3, 16)), layer(torch.ones(1, 3, 16))) < 1e-4


def test_gradients_of_attention_that_is_written_by_hand():
    def attention(q, k, v):
        return torch.softmax(q @ k.transpose(-1, -2) / 8**0.5, -1) @ v

    found, expected = gradients(attention, *(torch.randn(2, 4, 16, 8) for _ in range(3)))
    assert all(worst(a, b) < 1e-4 for a, b in zip(found, expected, strict=True))


def test_training_changes_no_time_of_inference_and_no_inference_training():
    def attention(q, k, v):
        return torch.softmax(q @ k.transpose(-1, -2) / 8**0.5, -1) @ v

    times, inputs = [], [torch.randn(2, 4, 16, 8) for _ in range(3)]
    for _ in range(2):
        compiled = kb.torch.compile(attention, MACHINE)
        with torch.no_grad():
            compiled(*inputs)
        times.append(compiled.result.latency_ns)
        torch._dynamo.reset()
        found, expected = gradients(attention, *inputs)
        assert all(worst(a, b) < 1e-4 for a, b in zip(found, expected, strict=True))
        torch._dynamo.reset()
    assert times[0] == times[1]


class OwnError(Exception):
    pass


def test_an_error_of_the_model_arrives_as_it_is():
    def fail(x):
        if x.shape[0] == 3:
            raise OwnError("three rows")
        return x

    line = fail.__code__.co_firstlineno + 2
    with pytest.raises(OwnError, match=r"^three rows$") as caught:
        call(fail, torch.randn(3))
    assert caught.traceback[-1].lineno + 1 == line
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        call(lambda x: x @ torch.ones(7, 8), torch.randn(3, 2))


def test_sizes_that_have_no_groups_of_heads_are_refused():
    pytest.importorskip("transformers", reason="transformers is not installed")
    from kernbench.errors import ArgumentError
    from kernbench.torch._models import make

    with pytest.raises(ArgumentError, match=r"^hidden = 512 with tp = 1: .* multiple of 1024"):
        make("llama3-70b-decode", 1, hidden=512, context=64)
    with pytest.raises(ArgumentError, match=r"multiple of 2048"):
        make("llama3-70b-decode", 2, hidden=1024, context=64)
