"""A launch runs where its tensors are, and hands on what it is given."""

from __future__ import annotations

import numpy as np
import pytest

from kernbench.errors import KernelError
from kernbench.policy.placement.dp import DPPolicy
from kernbench.triton_emu._handles import Pointer


def spy(seen):
    def kernel(*args, tl):
        seen.append(((tl.program_id(1), tl.program_id(0)), (tl.num_programs(0), tl.num_programs(1)), args))

    return kernel


def test_runs_on_every_pe_that_holds_a_part(torch):
    seen = []
    x = torch.zeros(4, dp=DPPolicy(pe="row_wise", num_cubes=1, num_pes=2))
    y = torch.zeros(4, dp=DPPolicy(cube="row_wise", num_cubes=2, num_pes=1))
    torch.launch("spy", spy(seen), x, y)
    assert seen == []
    torch.ahbm.synchronize()
    assert sorted(where for where, _, _ in seen) == [(0, 0), (0, 1), (1, 0)]


def test_arguments_arrive_as_they_are(torch):
    seen = []
    x = torch.zeros(4, 4, dtype=torch.float16, device="ahbm")
    given = 3, 2.5, np.float32(1.5), np.int64(7), np.array(2), None, True, "text", [1, 2], {"k": 1}
    torch.launch("spy", spy(seen), x, *given, x[1])
    torch.ahbm.synchronize()
    ((_, _, args),) = seen
    assert args[0] == Pointer(x.data_ptr(), torch.float16)
    assert args[-1] == Pointer(x.data_ptr() + 8, torch.float16)
    assert all(a is b for a, b in zip(args[1:-1], given, strict=True))


def test_runs_on_the_current_device(torch):
    seen = []
    with torch.ahbm.device(1):
        x = torch.zeros(4, device="ahbm")
        torch.launch("spy", spy(seen), x)
    torch.ahbm.synchronize(1)
    assert len(seen) == 1
    assert x.device.index == 1
    with pytest.raises(
        RuntimeError, match=r"'spy': argument 0, tensor 'tensor0', is on ahbm:1, but the current device"
    ):
        torch.launch("spy", spy(seen), x)


def test_refuses_what_is_not_on_a_device(torch):
    x = torch.zeros(2, device="ahbm")
    with pytest.raises(TypeError, match=r"argument 1 is a tensor on the host, \(2, 3\); .*\.to\(\"ahbm\"\)"):
        torch.launch("k", spy([]), x, torch.zeros(2, 3))
    with pytest.raises(TypeError, match=r"argument 0 is a numpy array"):
        torch.launch("k", spy([]), np.zeros(3))
    with pytest.raises(RuntimeError, match=r"no argument is a tensor with elements on ahbm:0"):
        torch.launch("k", spy([]), 1, torch.zeros(0, device="ahbm"))
    assert torch.requests == 0


def test_a_failing_kernel_ends_the_session(torch):
    def bad(x, *, tl):
        raise ValueError("no such luck")

    x = torch.zeros(4, device="ahbm")
    torch.launch("bad", bad, x)
    with pytest.raises(KernelError, match=r"test_launch\.py:\d+.*bad.*no such luck"):
        x.numpy()
    with pytest.raises(Exception, match="open a new session"):
        x.numpy()
    assert not torch.result.records.complete


@pytest.mark.parametrize("kernel", [lambda p: None, lambda p, q, *, tl: None, lambda *, tl: None])
def test_a_kernel_that_does_not_take_the_arguments_is_refused_at_the_launch(torch, kernel):
    with pytest.raises(TypeError, match=r"launch of 'k': kernel <lambda>\(.*cannot be called with 1 arguments and tl"):
        torch.launch("k", kernel, torch.zeros(4, device="ahbm"))
    assert torch.requests == 0
