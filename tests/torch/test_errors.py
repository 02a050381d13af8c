"""What a model cannot have on the machine: one error, with module and operator, or file and line."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import kernbench as kb  # noqa: E402
from kernbench.errors import ArgumentError  # noqa: E402
from tests.torch.models import worst  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch's own
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
MACHINE = "preset:small"


class Inner(torch.nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Outer(torch.nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.layer, self.act = torch.nn.Linear(16, 16), Inner(function)

    def forward(self, x):
        return self.act(self.layer(x))


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
    torch._dynamo.reset()


def call(model, *inputs):
    compiled = kb.torch.compile(model, MACHINE)
    with torch.no_grad():
        return compiled(*inputs), compiled


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda x: torch.view_as_complex(x.reshape(-1, 8, 2)).abs(),
            r"act: view_as_complex is of torch.complex64, .*; compute with its real and imaginary parts",
        ),
        (
            lambda x: x.to(torch.float8_e8m0fnu),
            r"act: to is of torch.float8_e8m0fnu, .*; convert it, for example to torch.int8",
        ),
    ],
)
def test_a_type_that_the_machine_does_not_have_is_refused_with_module_and_operator(function, message):
    with pytest.raises(ArgumentError, match=f"^{message}"):
        call(Outer(function), torch.randn(4, 16))


def test_an_input_of_such_a_type_is_refused():
    with pytest.raises(ArgumentError, match=r"^the model: input is of torch.complex64"):
        call(Inner(lambda x: x.real * 2), torch.zeros(4, dtype=torch.complex64))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.float64])
def test_a_type_that_the_machine_has_is_not(dtype):
    model, x = Outer(lambda x: (x * 8).to(dtype) + 1), torch.randn(4, 16)
    found, _ = call(model, x)
    assert found.dtype == dtype
    assert (found - model(x)).abs().max() <= (0 if dtype != torch.float64 else 1e-5)


def test_a_product_in_f64_runs_on_the_host_which_the_result_names():
    model, x = torch.nn.Sequential(torch.nn.Linear(16, 8)).double(), torch.randn(4, 16).double()
    found, compiled = call(model, x)
    assert worst(found, model(x)) < 1e-12
    (host,) = compiled.result.host_fallbacks
    assert (host.module, host.operators) == ("0", ("addmm",))


def test_a_placement_that_cannot_be_is_refused_in_one_sentence():
    compiled = kb.torch.compile(Outer(torch.relu), MACHINE, placement={"layers": "rows"})
    with pytest.raises(ArgumentError, match=r"^placement: the model has no module 'layers'"):
        compiled(torch.randn(4, 16))


def test_an_error_of_another_backend_or_of_torch_is_not_hidden():
    def wrong(*_):
        raise RuntimeError("of torch")

    compiled = kb.torch.compile(Outer(torch.relu), MACHINE)
    compiled._call = torch.compile(compiled.model, backend=wrong)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="of torch"):
        compiled(torch.randn(4, 16))


def test_a_graph_break_names_file_line_and_cause():
    def stop(x):
        print("now", x.sum().item())
        return x

    line = stop.__code__.co_firstlineno + 1
    with pytest.raises(ArgumentError, match=rf"cannot be compiled as one graph: .*test_errors\.py:{line}: "):
        call(Outer(stop), torch.randn(4, 16))


def test_a_branch_on_values_is_refused():
    x = torch.randn(5, 4)
    with pytest.raises(ArgumentError, match=r"^the model cannot be compiled as one graph: .*data-dependent"):
        call(Inner(lambda x: torch.nn.functional.gaussian_nll_loss(x, x, x * x + 1)), x)


def test_the_backend_does_not_leave_the_rest_of_a_model_to_the_host():
    def stop(x):
        y = x * 2
        print("now")
        return y + 1

    line = stop.__code__.co_firstlineno + 2
    compiled = torch.compile(stop, backend="kernbench", options={"machine": MACHINE})
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=rf"test_errors\.py:{line}: .*run on the host"):
        compiled(torch.randn(4, 16))
