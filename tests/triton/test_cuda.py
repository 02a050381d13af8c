"""Host code that asks for a CUDA device, on the simulated one: inside of the block, and nowhere else."""

from __future__ import annotations

import os
import threading
import warnings
from contextlib import suppress

import pytest

import kernbench as kb
from tests.triton.conftest import KERNELS

os.environ.setdefault("TRITON_INTERPRET", "1")  # as the other tests that import Triton: it is read at the import
try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch
        import triton
except ImportError:
    if os.environ.get("KERNBENCH_TORCH") == "required":
        raise
    pytest.skip("torch and triton are not installed", allow_module_level=True)

OWNERS = (torch, torch.Tensor, torch.cuda, torch.accelerator, torch.fft)


@pytest.fixture
def device(machine):
    with kb.session(machine, data=True) as session, kb.triton.on(session, cuda=True):
        yield session


@pytest.fixture(scope="module")
def kernels():
    return kb.triton.load(KERNELS)


def launched(kernels, x, y):
    """Add two tensors as launchers do."""
    assert x.is_cuda
    assert y.device.type == "cuda"
    out = torch.empty(x.shape, device="cuda", dtype=x.dtype)
    with torch.cuda.device(x.device):
        kernels.add[(triton.cdiv(x.numel(), 16),)](x, y, out, x.numel(), BLOCK=16)
    torch.cuda.synchronize()
    return out


def test_a_launcher_that_allocates_on_cuda(device, kernels):
    x, y = torch.randn(45, device="cuda"), torch.randn(45).cuda()
    found = launched(kernels, x, y)
    assert found.device == torch.device("cuda", 0)
    assert torch.equal(found, x + y)
    assert [launch.name for launch in device.result.launches] == ["add"]


def test_a_device_is_that_of_the_operands(device):
    host, far = torch.ones(4), torch.ones(4, device="cuda:0")
    for x in (far + 1, far[1:], torch.empty_like(far), far.new_zeros(2), far.sum(), host + far, host.to(far),
              torch.as_tensor([1.0], device=0), torch.nn.Linear(4, 4).cuda()(far)):  # fmt: skip
        assert (x.device, x.is_cuda, x.is_cpu, x.get_device()) == (torch.device("cuda:0"), True, False, 0)
    for x in (host + 1, far.cpu(), far.to("cpu"), far.to(host), far.new_zeros(2, device="cpu"), torch.arange(3),
              torch.from_numpy(host.numpy())):  # fmt: skip
        assert (x.device.type, x.is_cuda, x.is_cpu, x.get_device()) == ("cpu", False, True, -1)
    with torch.device("cuda"):
        assert torch.zeros(2).is_cuda
    assert torch.rand(2, generator=torch.Generator(device="cuda").manual_seed(3), device="cuda").is_cuda


def test_moving_copies_once(device):
    host = torch.ones(4)
    far = host.cuda()
    far += 1
    assert host.tolist() == [1] * 4
    assert far.to("cuda").data_ptr() == far.cuda().data_ptr() == far.data_ptr()
    assert host.cpu().data_ptr() == host.data_ptr()
    assert far.to("cuda", torch.float16).dtype == torch.float16
    back = far.cpu()
    far.zero_()
    assert back.tolist() == [2] * 4
    assert torch.as_tensor(host, device="cuda").data_ptr() != host.data_ptr()


def test_gradients_are_on_the_device(device):
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            assert x.is_cuda
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            assert gradient.is_cuda
            return gradient * torch.full((1,), 2.0, device=gradient.device)

    x = torch.ones(3, device="cuda", requires_grad=True)
    Twice.apply(x).sum().backward()
    assert x.grad.is_cuda
    assert x.grad.tolist() == [2] * 3


def test_queries(device):
    assert torch.cuda.is_available()
    assert (torch.cuda.device_count(), torch.cuda.current_device()) == (1, 0)
    assert torch.cuda.get_device_properties(0).multi_processor_count == device.engine.machine.config.n_pes
    assert torch.cuda.get_device_capability() == (8, 0)
    assert torch.accelerator.current_accelerator().type == "cuda"
    assert triton.runtime.driver.active.get_current_target().backend == "cuda"
    assert triton.runtime.driver.active.get_active_torch_device() == torch.device("cuda:0")
    with pytest.raises(RuntimeError, match="one CUDA device, cuda:0"):
        torch.empty(1, device="cuda:1")
    with pytest.raises(RuntimeError, match="one CUDA device, cuda:0"):
        torch.cuda.set_device(1)


def test_events_measure_simulated_time(device, kernels):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    x = torch.ones(64, device="cuda")
    start.record()
    launched(kernels, x, x)
    end.record()
    torch.cuda.synchronize()
    [launch] = device.result.launches
    assert start.elapsed_time(end) * 1e6 >= (launch.end_ps - launch.start_ps) / 1000 > 0


def test_an_operator_that_is_registered_for_cuda_runs(device, kernels):
    library = torch.library.Library("kernbench_test", "FRAGMENT")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: launched(kernels, x, x), "CUDA")
    try:
        x = torch.randn(20, device="cuda")
        assert torch.equal(torch.ops.kernbench_test.twice(x), 2 * x)
    finally:
        library._destroy()


def test_tensors_from_outside_count_as_on_the_device(machine, kernels):
    x = torch.randn(20)
    with kb.session(machine, data=True) as session, kb.triton.on(session, cuda=True):
        found = launched(kernels, x, x)
        moved = x.cuda()
        moved.zero_()
    assert torch.equal(found, 2 * x)
    assert x.any()


def test_nothing_is_left_behind(machine):
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack as modes

    def names():
        return [{k: v for k, v in vars(owner).items() if not hasattr(v, "__path__")} for owner in OWNERS]

    before, depth = names(), len(modes())
    other = []
    session = kb.session(machine)
    with suppress(ZeroDivisionError), session, kb.triton.on(session, cuda=True):
        x = torch.ones(3, device="cuda")
        thread = threading.Thread(target=lambda: other.append(x.device.type))
        thread.start()
        thread.join()
        raise ZeroDivisionError
    assert other == ["cpu"]
    assert x.device.type == "cpu"
    assert not torch.cuda.is_available()
    assert len(modes()) == depth
    for a, b in zip(before, names(), strict=True):
        # Modules of torch that are imported when first used change these two.
        assert {k for k in a.keys() | b.keys() if a.get(k) is not b.get(k)} <= {"_pin_memory_utils", "manual_seed"}
