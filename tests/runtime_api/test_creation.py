"""Creation functions give what torch gives: shape, type, values, place."""

from __future__ import annotations

import numpy as np
import pytest

from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import session
from tests.runtime_api.machines import small

WHERE = ["cpu", "ahbm"]


@pytest.mark.parametrize("where", WHERE)
def test_values(torch, where):
    made = [
        (torch.zeros(2, 3, device=where), torch.float32, [[0.0] * 3] * 2),
        (torch.ones((2, 1), dtype=torch.int8, device=where), torch.int8, [[1], [1]]),
        (torch.full((2,), 7, device=where), torch.int64, [7, 7]),
        (torch.full((1,), 0.5, device=where), torch.float32, [0.5]),
        (torch.full((1,), True, device=where), torch.bool, [True]),
        (torch.full((1,), 3, dtype="f16", device=where), torch.float16, [3.0]),
        (torch.arange(4, device=where), torch.int64, [0, 1, 2, 3]),
        (torch.arange(1, 3, device=where), torch.int64, [1, 2]),
        (torch.arange(0, 1, 0.25, device=where), torch.float32, [0, 0.25, 0.5, 0.75]),
        (torch.tensor([1, 2], device=where), torch.int64, [1, 2]),
        (torch.tensor([[1.5], [2]], device=where), torch.float32, [[1.5], [2.0]]),
        (torch.tensor([True], device=where), torch.bool, [True]),
        (torch.tensor(np.array([1.5]), device=where), torch.float64, [1.5]),
        (torch.tensor(np.float16(2), device=where), torch.float16, 2.0),
        (torch.tensor([300.0, 1.26], dtype=torch.bfloat16, device=where), torch.bfloat16, [300.0, 1.2578125]),
    ]
    for tensor, dtype, values in made:
        assert tensor.dtype is dtype
        assert tensor.tolist() == values
        assert tensor.device.type == where
    assert torch.empty(2, 3, dtype=torch.int32, device=where).shape == (2, 3)


def test_memory_that_was_used_before_is_zero_where_zeros_are_asked_for(torch):
    x = torch.ones(64, device="ahbm")
    torch.ahbm.synchronize()
    address = x.data_ptr()
    del x
    x = torch.zeros(64, device="ahbm")
    assert x.data_ptr() == address
    assert x.tolist() == [0] * 64


@pytest.mark.parametrize("where", WHERE)
def test_random_numbers(torch, where):
    uniform, normal = torch.rand(40, 50, device=where), torch.randn(40, 50, device=where)
    assert (uniform.dtype, normal.dtype) == (torch.float32, torch.float32)
    u, n = uniform.numpy(), normal.numpy()
    assert 0 <= u.min() < 0.01
    assert 0.99 < u.max() < 1
    assert abs(u.mean() - 0.5) < 0.02
    assert abs(n.mean()) < 0.1
    assert abs(n.std() - 1) < 0.1
    again = torch.rand(40, 50, device=where).numpy()
    assert (again != u).any()
    torch.manual_seed(0)
    assert (torch.rand(40, 50, device=where).numpy() == u).all()
    torch.manual_seed(1)
    assert (torch.rand(40, 50, device=where).numpy() != u).any()
    with pytest.raises(RuntimeError, match=r"floating point type, not torch\.int8"):
        torch.rand(3, dtype=torch.int8, device=where)


def test_a_session_begins_with_the_same_numbers():
    def first():
        with session(small()) as torch:
            return torch.rand(3).tolist()

    assert first() == first()


def test_random_numbers_of_a_device_do_not_depend_on_data():
    def host_numbers(data):
        with session(small(), data=data) as torch:
            torch.rand(5, device="ahbm")
            return torch.rand(3).tolist()

    assert host_numbers(True) == host_numbers(False)


def test_like(torch):
    dp = DPPolicy(pe="column_wise", num_cubes=2)
    x = torch.ones(4, 8, dtype=torch.float16, device="ahbm:1", dp=dp)
    for like in (torch.zeros_like(x), torch.empty_like(x)):
        assert (like.shape, like.dtype, like.device) == (x.shape, x.dtype, x.device)
        assert [s.index for s in like.shards] == [s.index for s in x.shards]
        assert like.data_ptr() != x.data_ptr()
    assert torch.zeros_like(x).tolist() == [[0] * 8] * 4
    assert torch.zeros_like(x.T).shape == (8, 4)
    assert torch.zeros_like(x, dtype=torch.int32).dtype is torch.int32
    assert torch.zeros_like(x, device="cpu").device == torch.device("cpu")
    assert torch.zeros_like(x, device="ahbm:0").device == torch.device("ahbm:0")
    assert torch.zeros_like(torch.ones(2), device="ahbm").tolist() == [0, 0]


def test_dp_means_a_device(torch):
    assert torch.zeros(4, dp=DPPolicy()).device == torch.device("ahbm:0")
    with torch.ahbm.device(1):
        assert torch.zeros(4, dp=DPPolicy()).device == torch.device("ahbm:1")
    assert torch.zeros(4).device == torch.device("cpu")
    with pytest.raises(ValueError, match='use device="ahbm"'):
        torch.zeros(4, dp=DPPolicy(), device="cpu")


def test_refusals(torch):
    with pytest.raises(TypeError, match="layout"):
        torch.zeros(4, layout="strided")
    with pytest.raises(TypeError, match="unknown dtype 'f15'"):
        torch.zeros(4, dtype="f15")
    with pytest.raises(RuntimeError, match="negative size"):
        torch.zeros(4, -1)
    with pytest.raises(TypeError, match="must be integers"):
        torch.zeros(2.5)
    for wrong in ((5, 1), (1, 5, -1), (1, 5, 0)):
        with pytest.raises(RuntimeError, match="step must lead from the first to the last"):
            torch.arange(*wrong)
    assert torch.arange(3, 3).tolist() == []
    with pytest.raises(RuntimeError, match="ahbm:0 to ahbm:1"):
        torch.zeros(4, device="ahbm:2")


def test_dtypes_are_torchs(torch):
    assert str(torch.float16) == "torch.float16"
    assert (torch.half, torch.float, torch.double) == (torch.float16, torch.float32, torch.float64)
    assert (torch.short, torch.int, torch.long) == (torch.int16, torch.int32, torch.int64)
    assert (torch.float16.itemsize, torch.bool.itemsize) == (2, 1)
    assert (torch.float8_e5m2.is_floating_point, torch.int8.is_floating_point) == (True, False)
    assert isinstance(torch.float16, torch.dtype)


def test_creation_takes_no_time_but_the_maps(torch):
    torch.rand(64, 64, dp=DPPolicy())
    assert torch.engine.now_ns == 0
    torch.ahbm.synchronize()
    kinds = {op.kind for op in torch.result.records}
    assert kinds == {"map"}
