"""A model as a program: run, swept, and a workload of the explorer; it is compiled once."""

from __future__ import annotations

import cloudpickle
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import kernbench as kb  # noqa: E402
from kernbench.errors import ArgumentError  # noqa: E402
from kernbench.notebook._model import DONE, Explorer  # noqa: E402
from tests.torch.models import Mlp  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch's own
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture
def call():
    torch._dynamo.reset()
    torch.manual_seed(0)
    return kb.torch.program(Mlp().half(), torch.randn(8, 64).half())


def test_a_model_runs_on_many_machines_and_is_compiled_once(call):
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    machine = kb.load("preset:small")
    times = [kb.run(call, machine.with_({"cube.hbm.channel_bw_gbs": bw})).result.latency_ns for bw in (32, 16, 8, 32)]
    assert times[0] == times[3]
    assert times[0] < times[1] < times[2]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before + 1


def test_a_copy_takes_the_same_time(call):
    first, second = (kb.run(x, "preset:small").result for x in (call, cloudpickle.loads(cloudpickle.dumps(call))))
    assert [x.name for x in first.launches] == [x.name for x in second.launches]
    assert first.latency_ns == second.latency_ns


def run(explorer):
    assert explorer.run(), explorer.obstacle
    assert explorer.wait(300)
    assert explorer.state.status == DONE, explorer.state.message
    return explorer.state.finished


def test_a_model_is_a_workload_of_the_explorer(call):
    explorer = Explorer(kb.load("preset:small"), [call])
    assert explorer.workload.name == "Mlp"
    frames = []
    explorer.on_change.append(lambda: frames.append(explorer.state.frame))
    times = {}
    for graph in (False, True):
        assert explorer.set("graph", graph)
        times[graph] = run(explorer).result.latency_ns
    finished = explorer.state.finished
    assert "gate/mm" in [launch.name for launch in finished.result.launches]
    assert "gate" in list(finished.outcome.shown.table["module"])
    assert times[True] < times[False]
    assert any(frames)


def test_the_explorer_says_why_a_model_takes_so_long_and_what_a_change_does(call):
    explorer = Explorer(kb.load("preset:small"), [call])
    before = run(explorer)
    assert before.why.reasons
    [path, value] = ["cube.hbm.channel_bw_gbs", 16]
    foreseen = before.result.what_if(f"{path}={value}").predicted_ns
    explorer.form.set(path, str(value))
    after = run(explorer).result.latency_ns
    assert after > 1.05 * before.result.latency_ns
    assert before.result.latency_ns < foreseen
    assert foreseen == pytest.approx(after, rel=0.02)


def test_a_kernel_of_the_installed_triton_is_a_workload():
    from tests.triton.kernels import add

    x, y, out = torch.randn(1000), torch.randn(1000), torch.zeros(1000)
    with pytest.raises(ArgumentError, match=r"add is a Triton kernel .* kb.triton.program\(kernel, grid, x\)"):
        Explorer(kb.load("preset:small"), [add])
    explorer = Explorer(kb.load("preset:small"), [kb.triton.program(add, (8,), x, y, out, 1000, BLOCK=128)])
    assert [launch.name for launch in run(explorer).result.launches] == ["add"]
    assert torch.equal(out, x + y)


@pytest.mark.parametrize("made", [Mlp, Mlp(), lambda x: x])
def test_a_model_without_inputs_is_refused(made):
    given = made if isinstance(made, (type, torch.nn.Module)) else kb.torch.compile(made, "preset:small")
    with pytest.raises(ArgumentError, match=r"is a PyTorch model and needs inputs; pass kb.torch.program\(model, x\)"):
        Explorer(kb.load("preset:small"), [given])
