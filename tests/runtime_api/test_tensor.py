"""Tensors of host and device have torch's attributes; numpy is the reference for values and strides."""

from __future__ import annotations

import numpy as np
import pytest

from kernbench.policy.placement.dp import DPPolicy

WHERE = ["cpu", "ahbm"]


def numbers(*shape):
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


@pytest.mark.parametrize("where", WHERE)
def test_attributes(torch, where):
    x = torch.tensor(numbers(2, 3, 4), dtype=torch.float16, device=where)
    assert x.shape == x.size() == (2, 3, 4)
    assert repr(x.shape) == "torch.Size([2, 3, 4])"
    assert (x.shape.numel(), x.size(-1), x.size(0)) == (24, 4, 2)
    assert (x.stride(), x.stride(0), x.dim(), x.ndim) == ((12, 4, 1), 12, 3, 3)
    assert (x.numel(), x.element_size(), x.nbytes, len(x)) == (24, 2, 48, 2)
    assert x.dtype is torch.float16
    assert x.device == torch.device("cpu" if where == "cpu" else "ahbm:0")
    assert isinstance(x, torch.Tensor)
    assert x.is_contiguous()
    assert x.contiguous() is x


@pytest.mark.parametrize("where", WHERE)
def test_shape_changes_are_numpys(torch, where):
    a = numbers(2, 3, 4)
    x = torch.tensor(a, device=where)
    same = [
        (x.T, a.T),
        (x.transpose(0, -1), a.swapaxes(0, 2)),
        (x.view(6, 4), a.reshape(6, 4)),
        (x.view((4, -1)), a.reshape(4, 6)),
        (x.reshape(-1), a.ravel()),
        (x.transpose(1, 2).contiguous(), a.swapaxes(1, 2)),
        (x.transpose(1, 2).reshape(24), a.swapaxes(1, 2).ravel()),
        (x.view(6, 4).t(), a.reshape(6, 4).T),
        (x.data, a),
        (x[1], a[1]),
        (x[-1, 2], a[-1, 2]),
        (x[:, 0:1][0] if where == "cpu" else x[0, 0:1], a[0, 0:1]),
        (x[1, 1, 1:3], a[1, 1, 1:3]),
        (x[..., None][0], a[..., None][0]),
        (x[None, 1], a[None, 1]),
        (x[...], a),
        (x.view(6, 4)[2:5], a.reshape(6, 4)[2:5]),
        (x.view(3, 8)[1, 2:6], a.reshape(3, 8)[1, 2:6]),
        (x[1][2], a[1][2]),
        (x[0:0], a[0:0]),
    ]
    for tensor, array in same:
        assert tensor.shape == array.shape
        assert (tensor.numpy() == array).all()
    assert x.transpose(0, 1).stride() == (4, 12, 1)
    assert not x.T.is_contiguous()
    assert x.T.contiguous().is_contiguous()
    assert x[0:1, 0].T.is_contiguous(), "a dim of size 1 has no step"
    assert x[0:0].T.is_contiguous()


@pytest.mark.parametrize("where", WHERE)
def test_views_share_memory(torch, where):
    x = torch.zeros(4, 4, device=where)
    x[1].fill_(1)
    x.view(2, 8)[1].copy_(torch.full((8,), 2))
    assert x.tolist() == [[0, 0, 0, 0], [1, 1, 1, 1], [2, 2, 2, 2], [2, 2, 2, 2]]
    x.T.copy_(torch.tensor(numbers(4, 4)))
    assert (x.numpy() == numbers(4, 4).T).all()
    x.clone().zero_()
    assert x[0, 1].item() == 4


@pytest.mark.parametrize("where", WHERE)
def test_values_leave_as_python_numbers(torch, where):
    x = torch.tensor([[1, 2], [3, 4]], dtype=torch.bfloat16, device=where)
    assert x.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert x[1, 0].item() == 3.0
    assert isinstance(x[1, 0].item(), float)
    assert isinstance(torch.tensor(7, device=where).item(), int)
    assert (int(torch.tensor(2.7, device=where)), float(torch.tensor([2], device=where))) == (2, 2.0)
    assert torch.tensor(True, device=where).item() is True
    assert [row.tolist() for row in x] == x.tolist()
    assert np.asarray(x).sum() == 10
    assert not torch.tensor(0.0, device=where)
    with pytest.raises(RuntimeError, match="4 elements cannot be converted to Scalar"):
        x.item()
    with pytest.raises(RuntimeError, match="4 elements"):
        bool(x)


@pytest.mark.parametrize("where", WHERE)
def test_refusals(torch, where):
    x = torch.zeros(2, 6, device=where)
    with pytest.raises(RuntimeError, match=r"shape \[5, -1\] is invalid for input of size 12"):
        x.view(5, -1)
    with pytest.raises(RuntimeError, match=r"use \.reshape"):
        x.T.view(12)
    with pytest.raises(IndexError, match=r"range of \[-2, 1\], but got 2"):
        x.transpose(0, 2)
    with pytest.raises(RuntimeError, match="expects a tensor with <= 2 dims"):
        x.view(1, 2, 6).t()
    with pytest.raises(IndexError):
        x[2]
    with pytest.raises(TypeError, match="0-d"):
        len(x[0, 0])
    with pytest.raises(RuntimeError, match=r"\(3, 6\).*\(2, 6\)"):
        x.copy_(torch.zeros(3, 6))


@pytest.mark.parametrize("where", WHERE)
def test_copy_broadcasts_and_rounds(torch, where):
    x = torch.zeros(2, 3, dtype=torch.int32, device=where)
    x.copy_(torch.tensor([1.9, -1.9, 3.0]))
    assert x.tolist() == [[1, -1, 3], [1, -1, 3]]
    assert x.fill_(5) is x
    assert x.zero_().tolist() == [[0, 0, 0], [0, 0, 0]]


def test_host_tensors_share_memory_with_arrays(torch):
    a = np.zeros((2, 2), np.float32)
    x = torch.from_numpy(a)
    x[0].fill_(1)
    a[1, 1] = 2
    assert x.tolist() == [[1, 1], [0, 2]]
    assert x.numpy() is a
    assert x.data_ptr() == a.ctypes.data
    assert torch.tensor(a).fill_(9).tolist() != x.tolist()
    with pytest.raises(TypeError, match=r"expected np\.ndarray"):
        torch.from_numpy([1, 2])


def test_host_tensors_take_every_index_of_numpy(torch):
    a = numbers(4, 4)
    x = torch.from_numpy(a)
    assert (x[::2, 1].numpy() == a[::2, 1]).all()
    assert (x[torch.tensor([0, 2])].numpy() == a[[0, 2]]).all()
    with pytest.raises(ValueError, match="step must be greater than zero"):
        x[::-1]
    assert repr(torch.tensor([1.5, 2.0])) == "tensor([1.5, 2. ], dtype=torch.float32)"


def test_to(torch):
    x = torch.tensor(numbers(2, 2))
    assert x.to("cpu") is x
    assert x.cpu() is x
    assert x.to(torch.float32) is x
    assert x.to(torch.float16).dtype is torch.float16
    assert x.to("f16").dtype is torch.float16
    on = x.to("ahbm:1", torch.float16)
    assert (on.device, on.dtype) == (torch.device(1), torch.float16)
    assert on.to(on) is on
    assert on.to(device="ahbm:1") is on
    assert x.to(on).device == on.device
    back = on.to("cpu", torch.float32)
    assert (back.numpy() == x.numpy()).all()
    assert x.to(dp=DPPolicy()).device == torch.device("ahbm:0")
    with pytest.raises(ValueError, match=r'\.to\("ahbm", dp=\.\.\.\)'):
        x.to("cpu", dp=DPPolicy())
    with pytest.raises(ValueError, match=r'\.to\("ahbm", dp=\.\.\.\)'):
        on.to("cpu", dp=DPPolicy())
    with pytest.raises(RuntimeError, match="ahbm:0 to ahbm:1"):
        x.to("ahbm:2")


def test_moving_between_devices_keeps_the_placement(torch):
    dp = DPPolicy(cube="row_wise", pe="column_wise")
    x = torch.tensor(numbers(8, 8), device="ahbm:0", dp=dp)
    for moved in (x.to("ahbm:1"), x.clone(), x.to(torch.float16), torch.zeros_like(x, dtype=torch.int8).copy_(x)):
        assert [(s.cube, s.pe, s.index) for s in moved.shards] == [(s.cube, s.pe, s.index) for s in x.shards]
        assert (moved.numpy() == x.numpy()).all()
        assert moved.data_ptr() != x.data_ptr()
    turned = x.to(dp=DPPolicy(cube="column_wise", pe="row_wise"))
    assert (turned.numpy() == x.numpy()).all()
    assert turned.shards[1].index != x.shards[1].index


def test_device_tensors_show_themselves_without_a_read(torch):
    x = torch.zeros(8, 8, dp=DPPolicy(pe="row_wise", num_cubes=1), name="w")
    before = torch.engine.now_ns
    assert repr(x) == "Tensor(w, shape=(8, 8), dtype=torch.float32, device='ahbm:0', 4 shards on 4 PEs of 1 cube)"
    assert "cube0.pe3" in x._repr_html_()
    assert torch.engine.now_ns == before
